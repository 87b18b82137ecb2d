"""TensorFlow sessions that run a plan's graphs, and the checkpoints that the graphs exchange."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from plan_runner.errors import PlanError, reason
from plan_runner.export import TensorType
from plan_runner.graph_check import saver_def, tensor_name
from plan_runner.plan_messages import check_parts
from plan_runner.ram_files import File

# Ends of the heading lines that precede TensorFlow's error line.
_HEADINGS = ("Graph execution error:", "root error(s) found.")
OPS_AROUND = ("before_restore_op", "after_restore_op", "before_save_op", "after_save_op")


def load_graph(graph_def: tf.compat.v1.GraphDef, where: str) -> tf.Graph:
    """Imports a graph definition, which must have been checked."""
    graph = tf.Graph()
    try:
        with graph.as_default():
            tf.graph_util.import_graph_def(graph_def, name="")
    except (tf.errors.OpError, ValueError, TypeError, KeyError) as e:
        raise PlanError(f"{where}: expected a graph, cannot import it ({reason(e)})") from e
    return graph


class GraphSession:
    """A TensorFlow session of a graph.

    Args:
        where: Name of the graph, for error messages.
        always: Values to feed in every run, keyed by tensor name.
    """

    def __init__(
        self, graph: tf.Graph, where: str, always: Optional[Mapping[str, Any]] = None
    ) -> None:
        self._where = where
        self._always = dict(always or {})
        self._session = tf.compat.v1.Session(graph=graph)
        self.require(self._always)

    def require(self, names: Iterable[str]) -> None:
        """Checks that the graph has tensors or operations with these names."""
        for name in names:
            try:
                self._session.graph.as_graph_element(name)
            except (KeyError, ValueError) as e:
                raise PlanError(f"{self._where}: expected {name!r} in the graph, found none") from e

    def run(
        self, names: Sequence[str], feeds: Mapping[str, Any], doing: str = ""
    ) -> list[np.ndarray]:
        """Runs the session once, and returns the values of the tensors in `names`.

        Args:
            names: Names of tensors and operations.
            feeds: Values to feed, keyed by tensor name.
            doing: Description of the run, for error messages.
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
        """Closes the session."""
        self._session.close()


def _error_line(message: str) -> str:
    """Returns the line that states an operation's error, from a message with a long traceback."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    for i, line in enumerate(lines):
        if line.startswith("Node: "):
            lines = lines[i + 1 :]
            break
    return next((line for line in lines if not line.endswith(_HEADINGS)), "")


class CheckpointOp:
    """Saves or restores a session's variables, as a plan's `CheckpointOp` message specifies.

    Attributes:
        path: Name of the tensor with the checkpoint's path.
        names: Names of the tensors and operations that the message names.

    Args:
        message: The `CheckpointOp` message.
        where: Name of the message, for error messages.
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
        """Saves the session's variables to a checkpoint."""
        self._run(session, self._message.before_save_op)
        self._run(session, self._save, path)
        self._run(session, self._message.after_save_op)
        if not path.is_file():
            raise PlanError(f"{self._where}: expected a checkpoint, the graph wrote none")

    def restore(self, session: GraphSession, path: File) -> None:
        """Restores the session's variables from a checkpoint."""
        self._run(session, self._message.before_restore_op)
        self._run(session, self._restore, path)
        self._run(session, self._message.after_restore_op)

    def _run(self, session: GraphSession, name: str, path: Optional[File] = None) -> None:
        if name:
            feeds = {} if path is None else {self.path: str(path)}
            session.run([name], feeds, self._where.rpartition(": ")[2])


def checkpoint_content(path: Path) -> bytes:
    """Returns the bytes of a checkpoint file, for a copy whose name has no special characters.

    TensorFlow treats the name of a checkpoint as a pattern.
    """
    try:
        return path.read_bytes()
    except OSError as e:
        raise PlanError(f"{path}: expected a checkpoint, cannot read it ({e.strerror})") from e


def read_checkpoint(path: File, where: str) -> dict[str, np.ndarray]:
    """Returns the tensors of a checkpoint, keyed by name.

    Args:
        path: File whose path has no special characters, as TensorFlow treats it as a pattern.
        where: Name of the checkpoint, for error messages.
    """
    if not path.is_file():
        raise PlanError(f"{where}: expected a checkpoint, found none")
    try:
        reader = tf.compat.v1.train.NewCheckpointReader(str(path))
        names = sorted(reader.get_variable_to_shape_map())
        return {name: np.asarray(reader.get_tensor(name)) for name in names}
    except (tf.errors.OpError, RuntimeError, ValueError) as e:
        # TensorFlow's message would name the copy instead of the user's file.
        raise PlanError(f"{where}: expected a checkpoint, found a damaged or different file") from e


def write_checkpoint(path: File, tensors: Mapping[str, np.ndarray]) -> None:
    """Writes a checkpoint with at least one tensor."""
    names = sorted(tensors)
    with tf.device("CPU:0"):
        tf.raw_ops.Save(
            filename=str(path),
            tensor_names=names,
            data=[tf.constant(tensors[name], tensor_type(tensors[name]).dtype) for name in names],
        )


def tensor_type(value: np.ndarray) -> TensorType:
    """Returns the type of an array."""
    dtype = "string" if value.dtype.kind in "OSU" else tf.as_dtype(value.dtype).name
    return TensorType(dtype, value.shape)


def check_tensors(
    tensors: Mapping[str, np.ndarray], expected: Mapping[str, TensorType], where: str
) -> None:
    """Checks that tensors have exactly the expected names and types."""
    for name, kind in expected.items():
        if name not in tensors:
            raise PlanError(f"{where}: expected the tensor {name}, found none")
        actual = tensor_type(tensors[name])
        if not kind.admits(actual.dtype, tensors[name].shape):
            raise PlanError(f"{where}: {name}: expected {kind}, found {actual}")
    for name in tensors:
        if name not in expected:
            raise PlanError(f"{where}: expected {len(expected)} tensors, found {name} as well")
