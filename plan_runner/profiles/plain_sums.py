"""Sums of the tensors in clients' checkpoints, made by the server."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from plan_runner.errors import PlanError
from plan_runner.files.manifest import TensorType
from plan_runner.graphs.checkpoints import check_tensors
from plan_runner.graphs.messages import NamedTensor, check_parts, tensor_spec

_URI = "federated_sum"
_SUMMABLE = "iufV"  # NumPy's kinds; TensorFlow's bfloat16 is of the last.


@dataclasses.dataclass(frozen=True)
class PlainSum:
    """One sum: its tensor in a client's checkpoint, and in the server's."""

    source: NamedTensor
    result: NamedTensor


def read_sum(config: Any, where: str) -> PlainSum:
    """Reads a ServerAggregationConfig.

    Raises:
        PlanError: If it is another aggregation than a sum of one tensor.
    """
    if config.intrinsic_uri != _URI:
        raise PlanError(f"{where}: intrinsic_uri: expected {_URI}, found {config.intrinsic_uri!r}")
    check_parts(config, where, ("intrinsic_uri", "intrinsic_args", "output_tensors"))
    if len(config.intrinsic_args) != 1 or len(config.output_tensors) != 1:
        raise PlanError(f"{where}: expected one argument and one output, found more")
    check_parts(config.intrinsic_args[0], f"{where}: intrinsic_args", ("input_tensor",))
    source = tensor_spec(config.intrinsic_args[0].input_tensor, f"{where}: input_tensor")
    result = tensor_spec(config.output_tensors[0], f"{where}: output_tensors")
    if source.kind != result.kind:
        raise PlanError(
            f"{where}: expected the output to be {source.kind} as the input, found {result.kind}"
        )
    return PlainSum(source, result)


class PlainSums:
    """Adds up the updates of one round's clients, in the order in which they come."""

    def __init__(self, sums: Sequence[PlainSum]) -> None:
        self._sums = sums
        self._expected = {s.source.name: s.source.kind for s in sums}
        self._totals: dict[str, np.ndarray] = {}

    def add(self, update: dict[str, np.ndarray], where: str) -> None:
        """Adds one client's tensors.

        Raises:
            PlanError: If they are not those that the plan sums.
        """
        check_tensors(update, self._expected, where)
        for name, value in update.items():
            if value.dtype.kind not in _SUMMABLE:
                raise PlanError(f"{where}: {name}: expected numbers, found {value.dtype.name}")
            # From zero, as a server does: the sum of one -0.0 is 0.0.
            total = self._totals.setdefault(name, np.zeros(value.shape, value.dtype))
            if total.shape != value.shape:
                found = f"expected the shape {total.shape} of the clients before"
                raise PlanError(f"{where}: {name}: {found}, found {value.shape}")
            # What is not finite is the graphs' business.
            with np.errstate(all="ignore"):
                np.add(total, value, out=total)

    def results(self) -> dict[str, np.ndarray]:
        """Returns the sums under the names that the server's graph reads; zeros of no clients."""
        return {
            s.result.name: self._totals.get(s.source.name, _zeros(s.result.kind))
            for s in self._sums
        }


def _zeros(kind: TensorType) -> np.ndarray:
    sizes = [size or 0 for size in kind.shape]
    return np.zeros(sizes, tf.as_dtype(kind.dtype).as_numpy_dtype)
