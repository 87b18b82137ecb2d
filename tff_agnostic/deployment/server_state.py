"""The way back from checkpoints of a server: the state of a run by the names of its tensors."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from plan_runner.command.read_state import read_state
from plan_runner.errors import PlanError
from plan_runner.files.export import Export
from plan_runner.files.limits import Limits
from plan_runner.graphs.checkpoints import check_tensors
from tff_agnostic.computations.exchange import RunState
from tff_agnostic.computations.template import type_from_spec
from tff_agnostic.deployment.naming import METRICS, SERVER, leaves, named
from tff_agnostic.errors import UserError

# The tensor of a server's state that says after how many rounds it is.
ROUND_NUM = f"{SERVER}/round_num"
_OF_ALGORITHM = f"{SERVER}/algorithm/"


def read_server_state(
    export: Export, path: Path, limits: Limits, trust: bool
) -> dict[str, np.ndarray]:
    """Returns the state's tensors in a server's checkpoint, by the names that they have today.

    Args:
        export: The export that the server was given.
        path: The checkpoint; the metrics of its last round may be beside the state.
        limits: What reading it may take.
        trust: Read it without a sandbox.

    Raises:
        UserError: If it cannot be read, or its state is not that of the export.
    """
    try:
        tensors = read_state(path, limits, trust)
        state = {n: value for n, value in tensors.items() if not n.startswith(f"{METRICS}/")}
        check_tensors(state, export.manifest.server_state, str(path))
    except PlanError as e:
        raise UserError(str(e)) from e
    return _with_names_of_today(state)


def _with_names_of_today(state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Puts the algorithm's state where it is now: exports of 0.1.0 had nothing beside it."""
    if any(name.startswith(_OF_ALGORITHM) for name in state):
        return dict(state)
    top = f"{SERVER}/"
    return {
        name if name == ROUND_NUM else f"{_OF_ALGORITHM}{name[len(top) :]}": value
        for name, value in state.items()
    }


def names_of(state: Any) -> list[str]:
    """Returns the name in a server's checkpoint of each leaf of a state.

    Args:
        state: The state, of arrays or tensors; leaves are in the order of `tf.nest.flatten`.
    """
    spec = tf.nest.map_structure(lambda v: tf.TensorSpec(v.shape, v.dtype), state)
    names = [leaf.name for leaf in named(leaves(type_from_spec(spec)), SERVER)]
    # TFF has its own order, which is not TensorFlow's where there are mappings.
    numbered = tf.nest.pack_sequence_as(state, list(range(len(names))))
    order = tff.structure.flatten(tff.structure.from_container(numbered, recursive=True))
    name_of = dict(zip(order, names))
    return [name_of[number] for number in range(len(names))]


def state_of(template: RunState, tensors: Mapping[str, np.ndarray], where: str) -> RunState:
    """Returns the state that a server's tensors are.

    Args:
        template: A state of the same algorithm and aggregation.
        tensors: By their names, as `read_server_state` returns them.
        where: Where they come from, for the message.

    Raises:
        UserError: If they are those of another model or algorithm.
    """
    names, values = names_of(template), []
    for name, leaf in zip(names, tf.nest.flatten(template)):
        if name not in tensors:
            raise UserError(f"{where}: expected the tensor {name} of this algorithm, found none")
        expected, found = np.asarray(leaf), tensors[name]
        if (found.dtype, found.shape) != (expected.dtype, expected.shape):
            raise UserError(
                f"{where}: {name}: expected {expected.dtype}{list(expected.shape)} of this model "
                f"and algorithm, found {found.dtype}{list(found.shape)}"
            )
        values.append(found[()])
    if more := sorted({*tensors} - {*names}):
        raise UserError(f"{where}: expected the state of this algorithm, found {more[0]} as well")
    return tf.nest.pack_sequence_as(template, values)
