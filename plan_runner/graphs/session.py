"""A graph of a plan and a session that runs it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional

import numpy as np
import tensorflow as tf
from google.protobuf import any_pb2
from tensorflow.core.protobuf import config_pb2

from plan_runner.errors import PlanError, reason
from plan_runner.graphs.messages import parse_foreign, tensor_name, unpacked

# Lines that TensorFlow puts before the one that says what has happened.
_HEADINGS = ("Graph execution error:", "root error(s) found.")


def load_graph(graph_def: tf.compat.v1.GraphDef, where: str) -> tf.Graph:
    """Makes a graph of its definition, which was checked before.

    Raises:
        PlanError: If TensorFlow does not take it.
    """
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

    Raises:
        PlanError: If what the plan brings is something else.
    """
    config = tf.compat.v1.ConfigProto()
    if packed.type_url or packed.value:
        given = parse_foreign(config_pb2.ConfigProto, unpacked(packed, "ConfigProto", where), where)
        config.graph_options.CopyFrom(given.graph_options)
    return config


class GraphSession:
    """Runs a graph; to be closed, or used as a context manager.

    Args:
        graph: The graph.
        where: What it is, for messages.
        config: The session's configuration.
        always: Values of tensors that every run feeds unless it says otherwise.
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
        """Checks that the graph has the tensors and operations of these names.

        Raises:
            PlanError: If one is missing.
        """
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
            names: Tensors and operations.
            feeds: Values by the names of tensors.
            doing: Whose work it is, for messages.

        Raises:
            PlanError: If a name or a feed does not fit the graph, or it fails.
        """
        place = f"{self._where}: {doing}" if doing else self._where
        fed = {**self._always, **{tensor_name(name): value for name, value in feeds.items()}}
        try:
            values = self._session.run(list(names), fed)
        except tf.errors.OpError as e:
            failure = f"{type(e).__name__}: {reason(ValueError(_said(str(e.message))))}"
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


def _said(message: str) -> str:
    """Returns the line that an operation says, without where the exporter's code made it."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    for i, line in enumerate(lines):
        if line.startswith("Node: "):
            lines = lines[i + 1 :]
            break
    said = [line for line in lines if not line.endswith(_HEADINGS)]
    return said[0] if said else ""
