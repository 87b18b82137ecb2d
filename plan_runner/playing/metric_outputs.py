"""Metrics that a plan hands out beside its new state, as servers of the platform take them."""

import itertools
from collections.abc import Mapping
from typing import Optional

import numpy as np

from plan_runner.errors import PlanError
from plan_runner.files.manifest import TensorType
from plan_runner.graphs.checkpoints import type_of


def with_metrics(
    tensors: Mapping[str, np.ndarray],
    outputs: Mapping[str, np.ndarray],
    expected: Mapping[str, TensorType],
    where: str,
) -> dict[str, np.ndarray]:
    """Returns the tensors of a checkpoint and the metrics among the outputs of a round.

    Args:
        tensors: What the server has written; earlier plans have their metrics there alone.
        outputs: What it has handed out, by name: a metric, or each of its elements as NAME/INDEX.
        expected: Types of the metrics.
        where: What it is, for messages.

    Raises:
        PlanError: If a metric is handed out in part, or is another one in the checkpoint.
    """
    together = dict(tensors)
    for name, kind in expected.items():
        found = _metric(name, kind, outputs, where)
        if found is None:
            continue
        written = together.setdefault(name, found)
        if type_of(written) != type_of(found) or written.tobytes() != found.tobytes():
            raise PlanError(
                f"{where}: {name}: expected one value, found another one in the checkpoint than "
                "what is handed out"
            )
    return together


def other_outputs(
    outputs: Mapping[str, np.ndarray], metrics: Mapping[str, TensorType]
) -> dict[str, np.ndarray]:
    """Returns the outputs that are no part of one of the metrics, such as values of all domains."""
    parts = {part for name, kind in metrics.items() for part in (name, *_elements(name, kind))}
    return {name: value for name, value in outputs.items() if name not in parts}


def _metric(
    name: str, kind: TensorType, outputs: Mapping[str, np.ndarray], where: str
) -> Optional[np.ndarray]:
    if name in outputs:
        return outputs[name]
    parts = _elements(name, kind)
    found = [outputs[part] for part in parts if part in outputs]
    if not found:
        return None
    if len(found) != len(parts) or any(value.shape for value in found):
        raise PlanError(
            f"{where}: {name}: expected {len(parts)} scalars, one for each element, found "
            f"{len(found)} outputs"
        )
    return np.array(found, found[0].dtype).reshape([size or 0 for size in kind.shape])


def _elements(name: str, kind: TensorType) -> list[str]:
    sizes = [size or 0 for size in kind.shape]
    return ["/".join(map(str, (name, *at))) for at in itertools.product(*map(range, sizes))]
