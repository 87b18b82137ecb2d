"""A graph of a plan and a session that runs it, with its checkpoints."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional

import numpy as np
import tensorflow as tf
from google.protobuf import any_pb2
from tensorflow.core.protobuf import config_pb2

from plan_runner.errors import PlanError, reason
from plan_runner.export import TensorType
from plan_runner.graph_check import saver_def, tensor_name, unpacked
from plan_runner.plan_messages import check_parts, parse_foreign
from plan_runner.ram_files import File

# Lines that TensorFlow puts before the line with the error.
_HEADINGS = ("Graph execution error:", "root error(s) found.")
OPS_AROUND = ("before_restore_op", "after_restore_op", "before_save_op", "after_save_op")


def load_graph(graph_def: tf.compat.v1.GraphDef, where: str) -> tf.Graph:
    """Makes a graph of its definition, which was checked before."""
    graph = tf.Graph()
    try:
        with graph.as_default():
            tf.graph_util.import_graph_def(graph_def, name="")
    except (tf.errors.OpError, ValueError, TypeError, KeyError) as e:
        raise PlanError(f"{where}: expected a graph, cannot import it ({reason(e)})") from e
    return graph


def session_config(packed: any_pb2.Any, where: str) -> tf.compat.v1.ConfigProto:
    """Returns a session's configuration: of the one that a plan may bring, what concerns graphs.

    Nothing else of it: it may name devices, hosts and files.
    """
    config = tf.compat.v1.ConfigProto()
    if packed.type_url or packed.value:
        given = parse_foreign(config_pb2.ConfigProto, unpacked(packed, "ConfigProto", where), where)
        config.graph_options.CopyFrom(given.graph_options)
    return config


class GraphSession:
    """Runs a graph; to be closed, or used as a context manager.

    Args:
        where: What it is, for messages.
        config: The session's configuration.
        always: Default values of tensors that every run feeds.
    """

    def __init__(
        self,
        graph: tf.Graph,
        where: str,
        config: Optional[tf.compat.v1.ConfigProto] = None,
        always: Optional[Mapping[str, Any]] = None,
    ) -> None:
        self._where = where
        self._always = dict(always or {})
        self._session = tf.compat.v1.Session(graph=graph, config=config)
        self.require(self._always)

    def require(self, names: Iterable[str]) -> None:
        """Checks that the graph has the tensors and operations of these names."""
        for name in names:
            try:
                self._session.graph.as_graph_element(name)
            except (KeyError, ValueError) as e:
                raise PlanError(f"{self._where}: expected {name!r} in the graph, found none") from e

    def run(
        self, names: Sequence[str], feeds: Mapping[str, Any], doing: str = ""
    ) -> list[np.ndarray]:
        """Runs the session once; returns the values of the tensors among `names`.

        Args:
            feeds: Values by the names of tensors.
            doing: Name of the work, for messages.
        """
        place = f"{self._where}: {doing}" if doing else self._where
        fed = {**self._always, **{tensor_name(name): value for name, value in feeds.items()}}
        try:
            values = self._session.run(list(names), fed)
        except tf.errors.OpError as e:
            failure = f"{type(e).__name__}: {reason(ValueError(_error_line(str(e.message))))}"
            raise PlanError(f"{place}: the graph failed ({failure})") from e
        except (KeyError, TypeError, ValueError) as e:
            raise PlanError(f"{place}: expected names and values of the graph, {reason(e)}") from e
        return [np.asarray(value) for value in values if value is not None]

    def close(self) -> None:
        """Ends the session."""
        self._session.close()

    def __enter__(self) -> "GraphSession":
        """Returns itself."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Ends the session."""
        self.close()


def _error_line(message: str) -> str:
    """Returns an operation's error line, without the place in the exporter's code."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    for i, line in enumerate(lines):
        if line.startswith("Node: "):
            lines = lines[i + 1 :]
            break
    said = [line for line in lines if not line.endswith(_HEADINGS)]
    return said[0] if said else ""


class CheckpointOp:
    """Saves or restores variables of a session.

    Attributes:
        path: The name of the tensor that holds the file's path.
        names: The names in the graph that it uses.

    Args:
        message: The plan's own.
        where: Which one it is, for messages.
    """

    def __init__(self, message: Any, where: str) -> None:
        check_parts(message, where, ("saver_def",), OPS_AROUND)
        saver = saver_def(message.saver_def, f"{where}: saver_def")
        self._message = message
        self._where = where
        self._save = saver.save_tensor_name
        self._restore = saver.restore_op_name
        self.path = tensor_name(saver.filename_tensor_name)
        around = [getattr(message, name) for name in OPS_AROUND]
        self.names = [name for name in (self._save, self._restore, self.path, *around) if name]

    def save(self, session: GraphSession, path: File) -> None:
        """Writes a checkpoint."""
        self._run(session, self._message.before_save_op)
        self._run(session, self._save, path)
        self._run(session, self._message.after_save_op)
        if not path.is_file():
            raise PlanError(f"{self._where}: expected a checkpoint, the graph wrote none")

    def restore(self, session: GraphSession, path: File) -> None:
        """Reads a checkpoint."""
        self._run(session, self._message.before_restore_op)
        self._run(session, self._restore, path)
        self._run(session, self._message.after_restore_op)

    def _run(self, session: GraphSession, name: str, path: Optional[File] = None) -> None:
        if name:
            feeds = {} if path is None else {self.path: str(path)}
            session.run([name], feeds, self._where.rpartition(": ")[2])


def read_checkpoint(path: File, where: str) -> dict[str, np.ndarray]:
    """Returns the tensors of a checkpoint by name.

    Args:
        path: The file; one in a folder of the runner's own, as the name is taken for a pattern.
        where: What it is, for the message.
    """
    if not path.is_file():
        raise PlanError(f"{where}: expected a checkpoint, found none")
    try:
        reader = tf.compat.v1.train.NewCheckpointReader(str(path))
        names = sorted(reader.get_variable_to_shape_map())
        return {name: np.asarray(reader.get_tensor(name)) for name in names}
    except (tf.errors.OpError, RuntimeError, ValueError) as e:
        # TensorFlow's message names the runner's own file.
        raise PlanError(
            f"{where}: expected a checkpoint, cannot read it (it is another file, or damaged)"
        ) from e


def write_checkpoint(path: File, tensors: Mapping[str, np.ndarray]) -> None:
    """Writes a checkpoint; at least one tensor."""
    names = sorted(tensors)
    with tf.device("CPU:0"):
        tf.raw_ops.Save(
            filename=str(path),
            tensor_names=names,
            data=[tf.constant(tensors[name], type_of(tensors[name]).dtype) for name in names],
        )


def type_of(value: np.ndarray) -> TensorType:
    """Returns a value's type in TensorFlow's words."""
    dtype = "string" if value.dtype.kind in "OSU" else tf.as_dtype(value.dtype).name
    return TensorType(dtype, value.shape)


def check_tensors(
    found: Mapping[str, np.ndarray], expected: Mapping[str, TensorType], where: str
) -> None:
    """Checks that tensors are exactly those expected."""
    for name, kind in expected.items():
        if name not in found:
            raise PlanError(f"{where}: expected the tensor {name}, found none")
        actual = type_of(found[name])
        if not kind.admits(actual.dtype, found[name].shape):
            raise PlanError(f"{where}: {name}: expected {kind}, found {actual}")
    for name in found:
        if name not in expected:
            raise PlanError(f"{where}: expected {len(expected)} tensors, found {name} as well")
