"""A base predictor that was read, and what it has to have in common with the task."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tff_agnostic.errors import UserError
from tff_agnostic.models.functional import Model, ModelWeights
from tff_agnostic.models.mixtures.holding import Architecture
from tff_agnostic.models.user_model_check import NUM_ROWS, described
from tff_agnostic.tasks.task import DATA, Task, TaskContext

FLAG = "--base_predictors"


@dataclasses.dataclass(frozen=True)
class MixingTask:
    """The task of the run that mixes.

    Attributes:
        task: It, loaded.
        name: Name of the task.
        options: All of its options.
        context: What else it was loaded from.
        trust: Whether Keras files may run code.
    """

    task: Task
    name: str
    options: Mapping[str, Any]
    context: TaskContext
    trust: bool = False


@dataclasses.dataclass(frozen=True)
class BasePredictor:
    """A predictor of an ensemble.

    Attributes:
        weights: Its weights.
        architecture: What it says, given them.
        told_apart_by: A text that other architectures do not have; "" of the task's own model.
    """

    weights: ModelWeights
    architecture: Architecture
    told_apart_by: str = ""


def check_same(path: Path, fingerprint: Mapping[str, str], expected: Mapping[str, str]) -> None:
    """Checks that a predictor is of the same vocabulary, say; examples may differ.

    Args:
        path: Of the predictor.
        fingerprint: What it depends on; see `Task.fingerprint`.
        expected: That of a task.

    Raises:
        UserError: If something that both know differs.
    """
    for name, value in expected.items():
        if name != DATA and name in fingerprint and fingerprint[name] != value:
            raise UserError(
                f"{FLAG}: {path}: expected the {name} of this task ({value}), found another one "
                f"({fingerprint[name]})"
            )


def rows_of(spec: Any) -> Any:
    """Returns two examples that differ, in the structure of specs with a first dimension of None.

    Numbers are random, and integers 0 in the first example and 1 in the second one.
    """
    rng = np.random.default_rng(0)

    def rows(one: tf.TensorSpec) -> tf.Tensor:
        shape = [NUM_ROWS, *(n or 1 for n in one.shape[1:])]
        if one.dtype.is_floating:
            return tf.constant(rng.normal(size=shape), one.dtype)
        values = np.arange(NUM_ROWS).reshape([NUM_ROWS] + [1] * (len(shape) - 1))
        return tf.cast(np.broadcast_to(values, shape), one.dtype)

    return tf.nest.map_structure(rows, spec)


def check_outputs(path: Path, found: Any, model: Model) -> None:
    """Checks that a predictor's outputs for `rows_of` are those of the task's model.

    Raises:
        UserError: If their shape is another one.
    """
    x = rows_of(model.example_spec["x"])
    expected = model.predict(_tensors(model.initial_weights), x, False, tf.zeros([2], tf.int32))
    if not tf.is_tensor(found) or found.shape != expected.shape or not found.dtype.is_floating:
        text = described(found) if tf.is_tensor(found) else "several"
        raise UserError(
            f"{FLAG}: {path}: expected outputs {described(expected)} as those of the task's model, "
            f"found {text}"
        )


def _tensors(weights: ModelWeights) -> ModelWeights:
    return tf.nest.map_structure(tf.constant, weights)
