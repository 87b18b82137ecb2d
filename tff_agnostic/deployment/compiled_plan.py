"""A plan in memory, and graph variables with their checkpoints."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Optional

from plan_runner import plan_pb2
from tff_agnostic.base.later import tf
from tff_agnostic.base.options import OptionError, Verbatim
from tff_agnostic.base.report_fields import ReportFields
from tff_agnostic.deployment.client_graph import ExampleSource
from tff_agnostic.deployment.graphs import Leaf, file_path, restore, save

# Largest modulus of the platform's protocol.
_LARGEST_MODULUS = 1 << 62


@dataclasses.dataclass(frozen=True)
class PlanSettings:
    """The settings of a plan, in addition to its round.

    Attributes:
        quantities: Descriptions of the round's metrics.
        max_clients: Maximum number of clients in a secure sum.
        modular: First path components of the values that clients send modulo 2^bits. Wider sums
            would reveal more than the privacy account assumes.
    """

    source: ExampleSource
    quantities: ReportFields
    max_clients: int
    modular: tuple[str, ...] = ()

    def modulus(self, path: str, bits: int) -> int:
        """Returns the modulus for the secure sum of a leaf, by path and bits of the leaf."""
        if path.partition("/")[0] in self.modular:
            return 1 << bits
        return sum_modulus(bits, self.max_clients)


def sum_modulus(bits: int, clients: int) -> int:
    """Returns the smallest power of 2 above any sum of `clients` values with `bits` bits each."""
    modulus = 1 << (clients * (2**bits - 1)).bit_length()
    if modulus > _LARGEST_MODULUS:
        modulus_text = (
            f"2^{modulus.bit_length() - 1} of {clients} clients with values of {bits} bits"
        )
        expected = "a modulus of secure sums of at most 2^62"
        raise OptionError("max_clients_per_round", expected, Verbatim(modulus_text))
    return modulus


@dataclasses.dataclass(frozen=True)
class PlanTensors:
    """Specs of the tensors in a round's checkpoints, and in a client's update.

    Attributes:
        state: Specs of the server's state.
        client_input: Specs of the tensors that the server sends to clients.
        update: Specs of a client's update.
        metrics: Specs of the server's metrics.
    """

    state: tuple[Leaf, ...]
    client_input: tuple[Leaf, ...]
    update: tuple[Leaf, ...]
    metrics: tuple[Leaf, ...]


@dataclasses.dataclass(frozen=True)
class SecureValue:
    """A securely summed tensor of the client output.

    Attributes:
        name: Name of the tensor in the client's graph.
        leaf: The tensor in the client output.
        bits: Number of bits of one client's values.
        modulus: Modulus of the secure sum.
    """

    name: str
    leaf: Leaf
    bits: int
    modulus: int


@dataclasses.dataclass(frozen=True)
class CompiledPlan:
    """A plan, with the parts that an export describes.

    Attributes:
        client_graph: The client's graph in the plan.
        client_phase: The client's phase in `plan`.
        tensors: Specs of the tensors in all checkpoints.
        secure: Securely summed tensors; empty in the profile `daf`.
    """

    plan: plan_pb2.Plan
    client_graph: tf.compat.v1.GraphDef
    client_phase: plan_pb2.ClientPhase
    tensors: PlanTensors
    secure: tuple[SecureValue, ...] = ()


class Variables:
    """Graph variables for the tensors of a checkpoint."""

    def __init__(self, specs: Sequence[tf.TensorSpec]) -> None:
        self.specs = list(specs)
        self._variables = [
            tf.Variable(tf.zeros(spec.shape, spec.dtype), name=spec.name) for spec in specs
        ]

    def read(self) -> list[tf.Tensor]:
        """Returns tensors with the values of the variables."""
        return [variable.read_value() for variable in self._variables]

    def initialize(self) -> list[tf.Operation]:
        """Returns ops that set all variables to zero."""
        return [variable.initializer for variable in self._variables]

    def assign(self, values: Sequence[tf.Tensor]) -> list[tf.Operation]:
        """Returns ops that compute all values before they assign any: values may use variables."""
        with tf.control_dependencies(list(values)):
            return [
                variable.assign(value, read_value=False)
                for variable, value in zip(self._variables, values)
            ]

    def add(self, values: Sequence[tf.Tensor]) -> list[tf.Operation]:
        """Returns ops that add a value to each variable."""
        return [
            variable.assign_add(value, read_value=False)
            for variable, value in zip(self._variables, values)
        ]


def checkpoint_op(
    name: str, variables: Variables, also_saved: Optional[Variables] = None
) -> plan_pb2.CheckpointOp:
    """Returns the message that saves variables to a checkpoint, and restores them from it.

    Args:
        also_saved: Further variables, which are saved but not restored.
    """
    saved = [variables] if also_saved is None else [variables, also_saved]
    with tf.name_scope(name):
        path = file_path("path")
        save_op = save(
            path,
            [spec for group in saved for spec in group.specs],
            [value for group in saved for value in group.read()],
            "save",
        )
        with tf.control_dependencies([save_op]):
            saved_path = tf.identity(path, "saved_path")
        restored = restore(path, variables.specs, "restore")
        restore_op = tf.group(*variables.assign(restored), name="restore_all")
    saver = tf.compat.v1.train.SaverDef(
        filename_tensor_name=path.name,
        save_tensor_name=saved_path.name,
        restore_op_name=restore_op.name,
        version=tf.compat.v1.train.SaverDef.V1,
    )
    return plan_pb2.CheckpointOp(saver_def=saver.SerializeToString(deterministic=True))


def checkpoint_op_names(op: plan_pb2.CheckpointOp) -> list[str]:
    """Returns the names of all nodes that a `CheckpointOp` refers to."""
    names = [op.before_restore_op, op.after_restore_op, op.before_save_op, op.after_save_op]
    saver = tf.compat.v1.train.SaverDef.FromString(op.saver_def)
    names += [saver.filename_tensor_name, saver.save_tensor_name, saver.restore_op_name]
    names += [channel.restore_name for channel in op.side_channel_tensors.values()]
    return [name for name in names if name]
