"""Plans without secure aggregation, whose server sums clients' updates (`server_phase_v2`)."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from plan_runner import plan_pb2
from plan_runner.client import ClientGraph
from plan_runner.errors import PlanError
from plan_runner.export import TensorType
from plan_runner.graph_check import (
    NamedTensor,
    Permissions,
    check_graph,
    parse_graph,
    tensor_name,
    tensor_spec,
    tensor_specs,
)
from plan_runner.graph_session import (
    GraphSession,
    check_tensors,
    load_graph,
    read_checkpoint,
    write_checkpoint,
)
from plan_runner.plan_messages import check_parts
from plan_runner.profile import Profile, Sent, Sums
from plan_runner.ram_files import File

_WHERE = "plan.pb: server_phase_v2"
_URI = "federated_sum"
_KEPT = "intermediate.ckpt"
# NumPy's dtype kinds of numbers; V is the kind of bfloat16.
_SUMMABLE = "iufV"


class DafProfile(Profile):
    """A plan without secure aggregation."""

    def __init__(self, plan: plan_pb2.Plan) -> None:
        check_parts(
            plan,
            "plan.pb",
            (
                "phase",
                "client_graph_bytes",
                "server_graph_prepare_bytes",
                "server_graph_result_bytes",
                "version",
            ),
            ("client_tflite_graph_bytes",),
        )
        check_parts(plan.phase[0], "plan.pb: phase", ("client_phase", "server_phase_v2"))
        phase = plan.phase[0].server_phase_v2
        check_parts(
            phase,
            _WHERE,
            (
                "aggregations",
                "tensorflow_spec_prepare",
                "prepare_router",
                "tensorflow_spec_result",
                "result_router",
            ),
            ("name",),
        )
        self._sums = [
            read_sum(config, f"{_WHERE}: aggregations {number}")
            for number, config in enumerate(phase.aggregations, 1)
        ]
        for names in ([s.source.name for s in self._sums], [s.result.name for s in self._sums]):
            if len(set(names)) != len(names):
                where = f"{_WHERE}: aggregations"
                raise PlanError(f"{where}: expected every tensor once, found {names}")
        paths = _paths(phase.prepare_router, f"{_WHERE}: prepare_router")
        self._state_in, self._client_out, self._kept_out = paths
        self._prepare = _ServerGraph(
            plan.server_graph_prepare_bytes,
            phase.tensorflow_spec_prepare,
            paths[:1],
            paths[1:],
            f"{_WHERE}: prepare",
        )
        paths = _paths(phase.result_router, f"{_WHERE}: result_router")
        self._kept_in, self._sums_in, self._state_out = paths
        self._result = _ServerGraph(
            plan.server_graph_result_bytes,
            phase.tensorflow_spec_result,
            paths[:2],
            paths[2:],
            f"{_WHERE}: result",
            ("output_tensor_specs",),
        )
        self.client = ClientGraph(plan, writes_update=True)
        self._sessions = (self._prepare.session, self._result.session, self.client)

    def begin_round(self, state: File, scratch: File) -> File:
        """See `Profile`."""
        down, kept = scratch / "client.ckpt", scratch / _KEPT
        self._prepare.run({self._state_in: state}, {self._client_out: down, self._kept_out: kept})
        return down

    def play_client(
        self, name: str, examples: Sequence[bytes], checkpoint: File, scratch: File
    ) -> Sent:
        """See `Profile`."""
        update = scratch / "update.ckpt"
        update.unlink(missing_ok=True)
        self.client.run(name, examples, checkpoint, update)
        return read_update(update, name)

    def new_sums(self) -> Sums:
        """See `Profile`."""
        return PlainSums(self._sums)

    def end_round(
        self, sums: Mapping[str, np.ndarray], scratch: File
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """See `Profile`."""
        aggregate, new_state = scratch / "aggregate.ckpt", scratch / "state.ckpt"
        write_checkpoint(aggregate, sums)
        outputs = self._result.run(
            {self._kept_in: scratch / _KEPT, self._sums_in: aggregate}, {self._state_out: new_state}
        )
        return read_checkpoint(new_state, f"{_WHERE}: the new state"), outputs


def read_update(checkpoint: File, client: str) -> Sent:
    """Reads a client's update from the checkpoint that the client graph wrote."""
    tensors = read_checkpoint(checkpoint, f"update of client {client}")
    return Sent(tensors, checkpoint.stat().st_size, checkpoint)


def _paths(router: Any, where: str) -> list[str]:
    names = [field.name for field in router.DESCRIPTOR.fields]
    check_parts(router, where, names)
    values = [getattr(router, name) for name in names]
    if len(set(values)) != len(values):
        raise PlanError(f"{where}: expected a different tensor for every path, found {values}")
    return values


class _ServerGraph:
    """A server graph that reads and writes checkpoint files in one run."""

    def __init__(
        self,
        packed: Any,
        spec: Any,
        reads: Sequence[str],
        writes: Sequence[str],
        where: str,
        optional: Sequence[str] = (),
    ) -> None:
        self._where = where
        check_parts(spec, where, ("input_tensor_specs", "target_node_names"), optional)
        inputs = tensor_specs(spec.input_tensor_specs, f"{where}: input_tensor_specs")
        if set(inputs) != {*reads, *writes}:
            raise PlanError(
                f"{where}: input_tensor_specs: expected {sorted([*reads, *writes])}, "
                f"found {sorted(inputs)}"
            )
        self._targets = list(spec.target_node_names)
        self._outputs = tensor_specs(spec.output_tensor_specs, f"{where}: output_tensor_specs")
        graph_def = parse_graph(packed, f"{where}: graph")
        permissions = Permissions(
            frozenset(tensor_name(name) for name in reads),
            frozenset(tensor_name(name) for name in writes),
        )
        check_graph(graph_def, permissions, f"{where}: graph")
        self.session = GraphSession(load_graph(graph_def, f"{where}: graph"), where)
        self.session.require([*inputs, *self._targets, *self._outputs])

    def run(self, reads: Mapping[str, File], writes: Mapping[str, File]) -> dict[str, np.ndarray]:
        """Runs the graph; returns the outputs, keyed by tensor name without ":0"."""
        feeds = {name: str(path) for name, path in {**reads, **writes}.items()}
        values = self.session.run([*self._outputs, *self._targets], feeds)
        for name, path in writes.items():
            if not path.is_file():
                raise PlanError(f"{self._where}: expected a file at {name}, the graph wrote none")
        return {name.partition(":")[0]: value for name, value in zip(self._outputs, values)}


@dataclasses.dataclass(frozen=True)
class PlainSum:
    """A sum over clients: the tensor in clients' checkpoints, and in the aggregate checkpoint."""

    source: NamedTensor
    result: NamedTensor


def read_sum(config: Any, where: str) -> PlainSum:
    """Converts a ServerAggregationConfig message."""
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


class PlainSums(Sums):
    """Sums the updates of a round's clients in the order of arrival."""

    def __init__(self, sums: Sequence[PlainSum]) -> None:
        self._sums = sums
        self._expected = {s.source.name: s.source.kind for s in sums}
        self._totals: dict[str, np.ndarray] = {}

    def add(self, client: str, sent: Sent) -> None:
        """See `Sums`."""
        where = f"update of client {client}"
        check_tensors(sent.tensors, self._expected, where)
        for name, value in sent.tensors.items():
            if value.dtype.kind not in _SUMMABLE:
                raise PlanError(f"{where}: {name}: expected numbers, found {value.dtype.name}")
            # Start from zero, as a server does, because -0.0 + 0.0 is 0.0.
            total = self._totals.setdefault(name, np.zeros(value.shape, value.dtype))
            if total.shape != value.shape:
                expected = f"expected the shape {total.shape} of the clients before"
                raise PlanError(f"{where}: {name}: {expected}, found {value.shape}")
            # Do not warn about infinities and NaNs, as the plan's graphs handle them.
            with np.errstate(all="ignore"):
                np.add(total, value, out=total)

    def results(self) -> dict[str, np.ndarray]:
        """Returns the sums, keyed by tensor name in the server's graph; zeros without clients."""
        return {
            s.result.name: self._totals.get(s.source.name, _zeros(s.result.kind))
            for s in self._sums
        }


def _zeros(kind: TensorType) -> np.ndarray:
    sizes = [size or 0 for size in kind.shape]
    return np.zeros(sizes, tf.as_dtype(kind.dtype).as_numpy_dtype)
