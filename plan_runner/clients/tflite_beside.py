"""The TFLite graph that devices get, run beside TensorFlow's on the same clients."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Optional

import numpy as np

from plan_runner import plan_pb2
from plan_runner.clients.kernel import kernel_problem
from plan_runner.clients.tflite_check import check_tflite
from plan_runner.clients.tflite_client import TfLiteClient
from plan_runner.errors import PlanError
from plan_runner.files import export as exports
from plan_runner.files.export import Export
from plan_runner.files.parsing import parse
from plan_runner.graphs.check import Permissions
from plan_runner.graphs.checkpoints import read_checkpoint

_WHERE = f"{exports.CLIENT_ONLY_PLAN}: tflite_graph"


class TfLiteBeside:
    """Compares what clients send.

    Attributes:
        clients: How many were compared.
        largest: The largest difference, as a share of a tensor's largest number, or of 1 if that is
            larger: integers of secure sums are floats on their way there.

    Args:
        client: Runs the TFLite graph.
    """

    def __init__(self, client: TfLiteClient) -> None:
        self._client = client
        self.clients = 0
        self.largest = 0.0

    def compare(
        self,
        name: str,
        examples: Sequence[bytes],
        checkpoint: Path,
        update: Optional[Path],
        sent: Mapping[str, np.ndarray],
    ) -> None:
        """Runs a client once more, and compares.

        Args:
            name: The client's name, for messages.
            examples: Its serialised examples.
            checkpoint: What the server has sent.
            update: The checkpoint that it has written, if it writes one.
            sent: What it sends otherwise.

        Raises:
            PlanError: If the graph fails, or sends other tensors.
        """
        other = update and update.with_name(f"{update.name}.tflite")
        found = self._client.run(name, examples, checkpoint, other)
        if update is not None and other is not None:
            sent, found = read_checkpoint(update, name), read_checkpoint(other, name)
            other.unlink()
        if set(found) != set(sent):
            raise PlanError(f"{_WHERE}: expected {sorted(sent)}, found {sorted(found)}")
        for tensor, value in sent.items():
            self.largest = max(self.largest, _difference(value, found[tensor], tensor))
        self.clients += 1


def tflite_beside(export: Export) -> TfLiteBeside:
    """Returns what runs an export's TFLite graph.

    Raises:
        PlanError: If it cannot be run here: there is none, or no kernel of ExternalDataset, or it
            is not one that may run, or that TFLite takes.
    """
    plan = parse(plan_pb2.Plan, export.read(exports.PLAN), exports.PLAN)
    name = exports.CLIENT_ONLY_PLAN
    device = parse(plan_pb2.ClientOnlyPlan, export.read(name), name)
    if not device.tflite_graph:
        raise PlanError(f"{_WHERE}: expected one, found none")
    if kernel_problem():
        raise PlanError(kernel_problem())
    phase = plan.phase[0].client_phase
    check_tflite(device.tflite_graph, Permissions.of_client(phase), _WHERE)
    return TfLiteBeside(TfLiteClient(device.tflite_graph, phase))


def _difference(expected: np.ndarray, found: np.ndarray, name: str) -> float:
    if (expected.dtype, expected.shape) != (found.dtype, found.shape):
        raise PlanError(
            f"{_WHERE}: {name}: expected {expected.dtype}{list(expected.shape)}, found "
            f"{found.dtype}{list(found.shape)}"
        )
    a, b = expected.astype(np.float64), found.astype(np.float64)
    scale = max(1.0, float(np.max(np.abs(a), initial=0.0)))
    differences = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b) / scale)
    # A NaN beside a number differs by more than anything.
    return float(np.max(np.where(np.isnan(differences), np.inf, differences), initial=0.0))
