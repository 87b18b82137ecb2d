"""Plans whose server's graph is fed with secure sums, in its variables (`server_phase`)."""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from plan_runner import plan_pb2
from plan_runner.clients.client import Client
from plan_runner.clients.client_graph import ClientGraph
from plan_runner.errors import PlanError
from plan_runner.graphs.check import Permissions, check_graph
from plan_runner.graphs.checkpoint_op import OPS_AROUND, CheckpointOp
from plan_runner.graphs.checkpoints import read_checkpoint
from plan_runner.graphs.messages import check_parts, graph_of, tensor_name
from plan_runner.graphs.session import GraphSession, load_graph
from plan_runner.profiles.profile import Profile, RoundOutcome
from plan_runner.profiles.secure_sums import SecureSum, read_side_channel

_WHERE = "plan.pb: server_phase"
# Every path is always fed, as a default in the graph would be a path of the plan's choice; nothing
# can be read or written here.
_NOWHERE = "/dev/null/unused"
_SAVERS = (
    "write_client_init",
    "write_intermediate_update",
    "read_intermediate_update",
    "write_accumulators",
)


class SecureProfile(Profile):
    """Plays rounds in which clients send nothing outside secure sums.

    Args:
        plan: The plan.

    Raises:
        PlanError: If it is not one of this profile.
    """

    def __init__(self, plan: plan_pb2.Plan) -> None:
        check_parts(
            plan,
            "plan.pb",
            ("phase", "client_graph_bytes", "server_graph_bytes", "server_savepoint", "version"),
            ("tensorflow_config_proto", "client_tflite_graph_bytes"),
        )
        check_parts(plan.phase[0], "plan.pb: phase", ("client_phase", "server_phase"))
        phase = plan.phase[0].server_phase
        # What is not here, read_update above all, would be sums outside of the side channels.
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
        self._tensors = {
            name: read_side_channel(name, channel, f"{where}: {name}")
            for name, channel in read.side_channel_tensors.items()
        }
        self._savepoint = CheckpointOp(plan.server_savepoint, "plan.pb: server_savepoint")
        self._ops = {
            name: CheckpointOp(getattr(phase, name), f"{_WHERE}: {name}") for name in _SAVERS
        }
        savers = [self._savepoint, *self._ops.values()]
        self._paths = sorted({saver.path for saver in savers})
        graph_def = graph_of(plan.server_graph_bytes, f"{_WHERE}: graph")
        paths = frozenset(self._paths)
        fed = frozenset(tensor_name(tensor.restore_name) for tensor in self._tensors.values())
        check_graph(graph_def, Permissions(paths, paths, fed), f"{_WHERE}: graph")
        self._graph = load_graph(graph_def, f"{_WHERE}: graph")
        # As on servers of their own: what is in a session's variables never leaves it but by
        # checkpoints, and the one that aggregates has no state of the server.
        with contextlib.ExitStack() as stack:
            self._coordinator = stack.enter_context(self._session("coordinator"))
            self._aggregator = stack.enter_context(self._session("aggregator"))
            self._coordinator.require(
                [
                    *(name for saver in savers for name in saver.names),
                    *(getattr(read, name) for name in OPS_AROUND if getattr(read, name)),
                    *(tensor_name(tensor.restore_name) for tensor in self._tensors.values()),
                    *(tensor_name(metric.variable_name) for metric in phase.metrics),
                    phase.phase_init_op,
                    phase.intermediate_aggregate_into_accumulators_op,
                    phase.apply_aggregrated_updates_op,
                ]
            )
            self.client = ClientGraph(plan, writes_update=False)
            stack.callback(self.client.close)
            if set(self.client.outputs) != set(self._tensors):
                raise PlanError(
                    f"{where}: side_channel_tensors: expected the client's tensors "
                    f"{sorted(self.client.outputs)}, found {sorted(self._tensors)}"
                )
            # All is well: the sessions stay open.
            self._sessions = stack.pop_all()

    def run_round(self, state: Path, clients: Sequence[Client], scratch: Path) -> RoundOutcome:
        """Plays a round; see `Profile`."""
        self.client.check_cohort(clients)
        sums = {name: SecureSum(tensor, len(clients)) for name, tensor in self._tensors.items()}
        down, partial = scratch / "client.ckpt", scratch / "intermediate.ckpt"
        new_state = scratch / "state.ckpt"
        coordinator = self._coordinator
        self._savepoint.restore(coordinator, state)
        self._run_op(coordinator, "phase_init_op")
        self._ops["write_client_init"].save(coordinator, down)
        for client in clients:
            values = self.client.run(client.name, client.examples(), down)
            for name, value in values.items():
                sums[name].add(value, f"client {client.name}")
        self._aggregate({name: s.result() for name, s in sums.items()}, partial)
        self._ops["read_intermediate_update"].restore(coordinator, partial)
        self._run_op(coordinator, "intermediate_aggregate_into_accumulators_op")
        self._ops["write_accumulators"].save(coordinator, scratch / "accumulators.ckpt")
        self._run_op(coordinator, "apply_aggregrated_updates_op")
        self._savepoint.save(coordinator, new_state)
        tensors = read_checkpoint(new_state, f"{_WHERE}: the new state")
        bytes_up = float(sum(s.bytes_up for s in sums.values()))
        return RoundOutcome(tensors, down.stat().st_size, bytes_up, self._measured())

    def close(self) -> None:
        """Ends its sessions."""
        self._sessions.close()

    def _aggregate(self, sums: Mapping[str, np.ndarray], partial: Path) -> None:
        read = self._phase.read_aggregated_update
        feeds = {tensor.restore_name: sums[name] for name, tensor in self._tensors.items()}
        aggregator = self._aggregator
        self._run_op(aggregator, "phase_init_op")
        aggregator.run([read.before_restore_op], feeds, "read_aggregated_update")
        if read.after_restore_op:
            aggregator.run([read.after_restore_op], feeds, "read_aggregated_update")
        self._ops["write_intermediate_update"].save(aggregator, partial)

    def _measured(self) -> dict[str, np.ndarray]:
        """Returns the values that the plan names as metrics, as they are in the variables now."""
        metrics = self._phase.metrics
        names = [tensor_name(metric.variable_name) for metric in metrics]
        values = self._coordinator.run(names, {}, "metrics") if names else []
        return {metric.stat_name: value for metric, value in zip(metrics, values)}

    def _run_op(self, session: GraphSession, name: str) -> None:
        session.run([getattr(self._phase, name)], {}, name)

    def _session(self, role: str) -> GraphSession:
        always = {path: _NOWHERE for path in self._paths}
        return GraphSession(self._graph, f"{_WHERE}: {role}", always=always)
