"""Replaces `GraphSession.run` so that plans run in TFF's worker.

The runtime uses the worker's build of TensorFlow, which differs from Python's: results are bitwise
equal only in the worker.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from plan_runner.graph_check import tensor_name
from plan_runner.graph_session import GraphSession

_in_python = GraphSession.run
_COMPUTATIONS = "computations in the worker"


def use(monkeypatch: Any) -> None:
    """Lets plans run in TFF's worker."""
    monkeypatch.setattr(GraphSession, "run", run)


def run(
    self: GraphSession, names: Sequence[str], feeds: Mapping[str, Any], doing: str = ""
) -> list[np.ndarray]:
    """Runs a graph in the worker; graphs with variables stay in Python's TensorFlow."""
    graph = self._session.graph
    if any(node.type == "VarHandleOp" for node in graph.get_operations()):
        return _in_python(self, names, feeds, doing)
    fed = {**self._always, **{tensor_name(name): value for name, value in feeds.items()}}
    computations = vars(self).setdefault(_COMPUTATIONS, {})
    key = (tuple(names), tuple(fed))
    if key not in computations:
        computations[key] = _computation(graph, names, list(fed))
    _, *results = computations[key](list(fed.values()))
    return [np.asarray(result) for result in results]


def _computation(graph: tf.Graph, names: Sequence[str], fed: Sequence[str]) -> tff.Computation:
    tensors = [graph.get_tensor_by_name(name) for name in fed]
    types = [
        tff.TensorType(
            np.str_ if tensor.dtype == tf.string else tensor.dtype.as_numpy_dtype,
            tensor.shape.as_list(),
        )
        for tensor in tensors
    ]

    @tff.tensorflow.computation(types)
    def in_worker(values: Any) -> list[tf.Tensor]:
        elements = tf.graph_util.import_graph_def(
            graph.as_graph_def(),
            input_map={name: values[i] for i, name in enumerate(fed)},
            return_elements=list(names),
            name="",
        )
        nodes = [element for element in elements if isinstance(element, tf.Operation)]
        with tf.control_dependencies(nodes):
            done = tf.constant(True)
        return [done, *(element for element in elements if not isinstance(element, tf.Operation))]

    return in_worker
