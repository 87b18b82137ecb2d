"""A client's TFLite graph, unmodified, in TFLite's interpreter: what the platform's client runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from plan_runner import plan_pb2
from plan_runner.clients.kernel import token_of
from plan_runner.errors import PlanError, reason
from plan_runner.graphs.messages import constants, tensor_specs

_WHERE = "client_only_plan.pb: tflite_graph"

_NO_FLEX = "link the Flex delegate"


class TfLiteClient:
    """Plays one client after the other; TensorFlow's kernel of ExternalDataset has to be loaded.

    Args:
        content: The flatbuffer, which was checked before.
        phase: How it is run.

    Raises:
        PlanError: If the interpreter does not take it.
    """

    def __init__(self, content: bytes, phase: plan_pb2.ClientPhase) -> None:
        self._spec, self._router = phase.tensorflow_spec, phase.federated_compute
        where = f"{_WHERE}: constant_inputs"
        self._constants = {}
        for tensor, value in constants(self._spec.constant_inputs, where).items():
            # A client of the platform feeds text.
            if value.shape:
                raise PlanError(f"{where}: {tensor}: expected one value, found {value.shape}")
            self._constants[tensor] = value.item()
        self._outputs = tensor_specs(self._spec.output_tensor_specs, f"{_WHERE}: outputs")
        try:
            self._interpreter = tf.lite.Interpreter(model_content=content)
            self._interpreter.allocate_tensors()
        except (RuntimeError, ValueError) as e:
            # As in the package of TensorFlow 2.21: nothing is wrong with the graph.
            if _NO_FLEX in str(e):
                raise PlanError("TFLite has no Flex delegate in this TensorFlow") from e
            raise PlanError(f"{_WHERE}: expected a graph for TFLite, found {reason(e)}") from e
        self._inputs = _indices(self._interpreter.get_input_details())

    def run(
        self, name: str, examples: Sequence[bytes], checkpoint: Path, update: Optional[Path] = None
    ) -> dict[str, np.ndarray]:
        """Plays one client; see `ClientGraph.run`."""
        feeds: dict[str, Any] = {
            self._spec.dataset_token_tensor_name: token_of(examples),
            self._router.input_filepath_tensor_name: str(checkpoint).encode(),
        }
        if update is not None:
            feeds[self._router.output_filepath_tensor_name] = str(update).encode()
        feeds.update(self._constants)
        if set(feeds) != set(self._inputs):
            raise PlanError(
                f"{_WHERE}: expected inputs {sorted(feeds)}, found {sorted(self._inputs)}"
            )
        try:
            for tensor, value in feeds.items():
                self._interpreter.set_tensor(self._inputs[tensor], np.array(value, np.bytes_))
            self._interpreter.invoke()
        except (RuntimeError, ValueError) as e:
            raise PlanError(f"{_WHERE}: client {name}: the graph failed ({reason(e)})") from e
        if update is not None and not update.is_file():
            raise PlanError(f"{_WHERE}: client {name}: expected an update, the graph wrote none")
        found = _indices(self._interpreter.get_output_details())
        return {output: self._interpreter.get_tensor(found[output]) for output in self._outputs}


def _indices(details: Sequence[dict[str, Any]]) -> dict[str, int]:
    return {detail["name"]: detail["index"] for detail in details}
