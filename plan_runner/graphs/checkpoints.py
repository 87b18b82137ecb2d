"""Checkpoints of TensorFlow's first format: one file, a table of tensors."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf

from plan_runner.errors import PlanError
from plan_runner.files.manifest import TensorType


def read_checkpoint(path: Path, where: str) -> dict[str, np.ndarray]:
    """Returns the tensors of a checkpoint by name.

    Args:
        path: The file; one in a folder of the runner's own, as the name is taken for a pattern.
        where: What it is, for the message.

    Raises:
        PlanError: If it is none, or damaged.
    """
    if not path.is_file():
        raise PlanError(f"{where}: expected a checkpoint, found none")
    try:
        reader = tf.compat.v1.train.NewCheckpointReader(str(path))
        names = sorted(reader.get_variable_to_shape_map())
        return {name: np.asarray(reader.get_tensor(name)) for name in names}
    except (tf.errors.OpError, RuntimeError, ValueError) as e:
        # What TensorFlow says names the runner's own file.
        raise PlanError(
            f"{where}: expected a checkpoint, cannot read it (it is another file, or damaged)"
        ) from e


def write_checkpoint(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
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
    """Checks that tensors are exactly those expected.

    Raises:
        PlanError: If one is missing, of another dtype or shape, or not expected.
    """
    for name, kind in expected.items():
        if name not in found:
            raise PlanError(f"{where}: expected the tensor {name}, found none")
        actual = type_of(found[name])
        if not kind.admits(actual.dtype, found[name].shape):
            raise PlanError(f"{where}: {name}: expected {kind}, found {actual}")
    for name in found:
        if name not in expected:
            raise PlanError(f"{where}: expected {len(expected)} tensors, found {name} as well")
