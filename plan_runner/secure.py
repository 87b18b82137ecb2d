"""Plans with secure aggregation, whose server graph receives the sums (`server_phase`)."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from plan_runner import plan_pb2
from plan_runner.client import ClientGraph
from plan_runner.errors import PlanError
from plan_runner.export import TensorType
from plan_runner.graph_check import Permissions, check_graph, dtype_name, parse_graph, tensor_name
from plan_runner.graph_session import (
    OPS_AROUND,
    CheckpointOp,
    GraphSession,
    load_graph,
    read_checkpoint,
)
from plan_runner.plan_messages import check_parts
from plan_runner.profile import Profile, Sent, Sums
from plan_runner.ram_files import File

_WHERE = "plan.pb: server_phase"
# Value to feed for all paths that a run does not use, as the graph's default could be any path. No
# file can be read or written here.
_NOWHERE = "/dev/null/unused"
_SAVERS = (
    "write_client_init",
    "write_intermediate_update",
    "read_intermediate_update",
    "write_accumulators",
)
LARGEST_MODULUS = 1 << 62
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


class SecureProfile(Profile):
    """A plan whose clients send all values by secure aggregation.

    Attributes:
        tensors: The securely summed tensors, keyed by name.
    """

    def __init__(self, plan: plan_pb2.Plan) -> None:
        check_parts(
            plan,
            "plan.pb",
            ("phase", "client_graph_bytes", "server_graph_bytes", "server_savepoint", "version"),
            ("client_tflite_graph_bytes",),
        )
        check_parts(plan.phase[0], "plan.pb: phase", ("client_phase", "server_phase"))
        phase = plan.phase[0].server_phase
        # Reject all fields but these. For example, read_update would sum values without protection.
        check_parts(
            phase,
            _WHERE,
            (
                "phase_init_op",
                "intermediate_aggregate_into_accumulators_op",
                "apply_aggregrated_updates_op",
                "read_aggregated_update",
                *_SAVERS,
            ),
            ("name", "metrics"),
        )
        self._phase = phase
        read = phase.read_aggregated_update
        where = f"{_WHERE}: read_aggregated_update"
        check_parts(
            read, where, ("side_channel_tensors", "before_restore_op"), ("after_restore_op",)
        )
        self.tensors = {
            name: read_side_channel(name, channel, f"{where}: {name}")
            for name, channel in read.side_channel_tensors.items()
        }
        self._savepoint = CheckpointOp(plan.server_savepoint, "plan.pb: server_savepoint")
        self._ops = {
            name: CheckpointOp(getattr(phase, name), f"{_WHERE}: {name}") for name in _SAVERS
        }
        savers = [self._savepoint, *self._ops.values()]
        self._paths = sorted({saver.path for saver in savers})
        graph_def = parse_graph(plan.server_graph_bytes, f"{_WHERE}: graph")
        paths = frozenset(self._paths)
        fed = frozenset(tensor_name(tensor.restore_name) for tensor in self.tensors.values())
        check_graph(graph_def, Permissions(paths, paths, fed), f"{_WHERE}: graph")
        self._graph = load_graph(graph_def, f"{_WHERE}: graph")
        # Use two sessions, as on separate servers: variables leave a session only by checkpoints,
        # and the aggregator does not have the server's state.
        self._coordinator = self._session("coordinator")
        self._aggregator = self._session("aggregator")
        self._coordinator.require(
            [
                *(name for saver in savers for name in saver.names),
                *(getattr(read, name) for name in OPS_AROUND if getattr(read, name)),
                *fed,
                *(tensor_name(metric.variable_name) for metric in phase.metrics),
                phase.phase_init_op,
                phase.intermediate_aggregate_into_accumulators_op,
                phase.apply_aggregrated_updates_op,
            ]
        )
        self.client = ClientGraph(plan, writes_update=False)
        if set(self.client.outputs) != set(self.tensors):
            raise PlanError(
                f"{where}: side_channel_tensors: expected the client's tensors "
                f"{sorted(self.client.outputs)}, found {sorted(self.tensors)}"
            )
        self._sessions = (self._coordinator, self._aggregator, self.client)

    def begin_round(self, state: File, scratch: File) -> File:
        """See `Profile`."""
        down, coordinator = scratch / "client.ckpt", self._coordinator
        self._savepoint.restore(coordinator, state)
        self._run_op(coordinator, "phase_init_op")
        self._ops["write_client_init"].save(coordinator, down)
        return down

    def play_client(
        self, name: str, examples: Sequence[bytes], checkpoint: File, scratch: File
    ) -> Sent:
        """See `Profile`."""
        del scratch
        size = sum(tensor.packed_bytes for tensor in self.tensors.values())
        return Sent(self.client.run(name, examples, checkpoint), size)

    def new_sums(self) -> Sums:
        """See `Profile`."""
        return SecureSums(self.tensors)

    def end_round(
        self, sums: Mapping[str, np.ndarray], scratch: File
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """See `Profile`."""
        partial, new_state = scratch / "intermediate.ckpt", scratch / "state.ckpt"
        coordinator = self._coordinator
        self._aggregate(sums, partial)
        self._ops["read_intermediate_update"].restore(coordinator, partial)
        self._run_op(coordinator, "intermediate_aggregate_into_accumulators_op")
        self._ops["write_accumulators"].save(coordinator, scratch / "accumulators.ckpt")
        self._run_op(coordinator, "apply_aggregrated_updates_op")
        self._savepoint.save(coordinator, new_state)
        return read_checkpoint(new_state, f"{_WHERE}: the new state"), self._measured()

    def _aggregate(self, sums: Mapping[str, np.ndarray], partial: File) -> None:
        read = self._phase.read_aggregated_update
        feeds = {tensor.restore_name: sums[name] for name, tensor in self.tensors.items()}
        aggregator = self._aggregator
        self._run_op(aggregator, "phase_init_op")
        aggregator.run([read.before_restore_op], feeds, "read_aggregated_update")
        if read.after_restore_op:
            aggregator.run([read.after_restore_op], feeds, "read_aggregated_update")
        self._ops["write_intermediate_update"].save(aggregator, partial)

    def _measured(self) -> dict[str, np.ndarray]:
        """Returns the current values of the plan's metrics, keyed by name."""
        metrics = self._phase.metrics
        names = [tensor_name(metric.variable_name) for metric in metrics]
        values = self._coordinator.run(names, {}, "metrics") if names else []
        return {metric.stat_name: value for metric, value in zip(metrics, values)}

    def _run_op(self, session: GraphSession, name: str) -> None:
        session.run([getattr(self._phase, name)], {}, name)

    def _session(self, role: str) -> GraphSession:
        always = {path: _NOWHERE for path in self._paths}
        return GraphSession(self._graph, f"{_WHERE}: {role}", always=always)


@dataclasses.dataclass(frozen=True)
class SecureTensor:
    """A tensor that clients send by secure aggregation.

    Attributes:
        modulus: Modulus of the sum; each client's values are below the modulus.
        restore_name: Name of the placeholder for the sum in the server's graph.
    """

    name: str
    kind: TensorType
    modulus: int
    restore_name: str

    @property
    def packed_bytes(self) -> int:
        """Number of bytes of a client's values, packed with ceil(log2(modulus)) bits each."""
        size = math.prod(size or 0 for size in self.kind.shape)
        return -(-size * (self.modulus - 1).bit_length() // 8)


def read_side_channel(name: str, channel: Any, where: str) -> SecureTensor:
    """Converts a SideChannel message."""
    if not channel.HasField("secure_aggregand") or not channel.restore_name:
        raise PlanError(
            f"{where}: expected secure_aggregand and restore_name, found one of them missing"
        )
    aggregand = channel.secure_aggregand
    dtype = dtype_name(aggregand.dtype, f"{where}: dtype")
    if dtype not in _INTEGERS:
        raise PlanError(f"{where}: dtype: expected integers, found {dtype}")
    shape = tuple(dimension.size for dimension in aggregand.dimension)
    if any(size < 0 for size in shape):
        raise PlanError(f"{where}: dimension: expected sizes, found {shape}")
    modulus = aggregand.fixed_modulus.modulus
    if not 1 <= modulus <= LARGEST_MODULUS:
        raise PlanError(f"{where}: fixed_modulus: expected 1 to 2^62, found {modulus}")
    return SecureTensor(name, TensorType(dtype, shape), modulus, channel.restore_name)


def in_graph(tensor: SecureTensor, total: np.ndarray) -> np.ndarray:
    """Converts a sum from uint64 to the dtype that the server's graph expects."""
    dtype = np.dtype(tensor.kind.dtype)
    largest = int(total.max()) if total.size else 0
    if largest > np.iinfo(dtype).max:
        raise PlanError(f"{tensor.name}: expected a sum within {dtype}, found {largest}")
    return total.astype(dtype)


class SecureSums(Sums):
    """The sums of all tensors over a round's clients, each modulo the tensor's modulus."""

    def __init__(self, tensors: Mapping[str, SecureTensor]) -> None:
        self._tensors = tensors
        # uint64 holds the sum of two values, because moduli are at most 2^62.
        self._totals = {
            name: np.zeros([size or 0 for size in tensor.kind.shape], np.uint64)
            for name, tensor in tensors.items()
        }

    def add(self, client: str, sent: Sent) -> None:
        """See `Sums`."""
        for name, value in sent.tensors.items():
            kind, modulus = self._tensors[name].kind, self._tensors[name].modulus
            place = f"client {client}: {name}"
            if not kind.admits(value.dtype.name, value.shape):
                actual = TensorType(value.dtype.name, value.shape)
                raise PlanError(f"{place}: expected {kind}, found {actual}")
            if value.size:
                smallest, largest = int(value.min()), int(value.max())
                if smallest < 0 or largest >= modulus:
                    wrong = smallest if smallest < 0 else largest
                    raise PlanError(
                        f"{place}: expected values from 0 to {modulus - 1}, found {wrong}"
                    )
            total = self._totals[name] + value.astype(np.uint64)
            self._totals[name] = total % np.uint64(modulus)

    def results(self) -> dict[str, np.ndarray]:
        """See `Sums`."""
        return {
            name: in_graph(tensor, self._totals[name]) for name, tensor in self._tensors.items()
        }
