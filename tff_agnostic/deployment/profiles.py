"""The two kinds of plans: `daf` with plain sums, and `secure` with secure sums.

In `secure`, a client's tensors go to a secure aggregation protocol instead of a checkpoint. Side
channels feed the sums to the server's graph.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

from plan_runner import plan_pb2
from tff_agnostic.base.errors import UserError
from tff_agnostic.base.later import tf, tff
from tff_agnostic.base.registry import Registry
from tff_agnostic.base.report_fields import ReportFields
from tff_agnostic.computations.verification import without_graph_optimization
from tff_agnostic.deployment import graphs
from tff_agnostic.deployment.client_graph import (
    TfFunction,
    build_client_graph,
    client_work,
    from_compiled,
    from_local_computation,
)
from tff_agnostic.deployment.compiled_plan import (
    CompiledPlan,
    PlanSettings,
    PlanTensors,
    SecureValue,
    Variables,
    checkpoint_op,
    checkpoint_op_names,
)
from tff_agnostic.deployment.graphs import (
    file_path,
    finished,
    node_spec,
    restore,
    save,
    serialized_spec,
)
from tff_agnostic.deployment.metrics import scalar_outputs

_FEDERATED_SUM = "federated_sum"
_URI = "federated_secure_sum_bitwidth"


@dataclasses.dataclass(frozen=True)
class Profile:
    """A kind of plan.

    Attributes:
        aggregation: Name of the aggregation.
        build: Called with (round, settings); returns the plan. A round is a function (state at the
            server, client data) -> (state, metrics).
        server: Requirements on a server, for the manifest.
    """

    aggregation: str
    build: Callable[[tff.Computation, PlanSettings], CompiledPlan]
    server: str


def build_daf_plan(round_: tff.Computation, settings: PlanSettings) -> CompiledPlan:
    """Returns the plan of a round with plain sums; see `Profile.build`."""
    form = tff.backends.mapreduce.get_distribute_aggregate_form_for_computation(round_)
    prepare = from_local_computation(form.server_prepare)
    work = from_local_computation(form.client_work)
    result = from_local_computation(form.server_result)
    require_only_sums(form.client_to_server_aggregation)

    state_type, metrics_type = result.result_type
    client_input_type, intermediate_type = prepare.result_type
    tensors = PlanTensors(
        state=graphs.leaves(state_type),
        client_input=graphs.leaves(graphs.only_element(client_input_type)),
        update=graphs.leaves(graphs.only_element(work.result_type)),
        metrics=graphs.leaves(metrics_type),
    )
    # The sums have the clients' result type, as the compiler sums only the client output.
    summed = graphs.leaves(work.result_type)
    intermediate = graphs.leaves(graphs.only_element(intermediate_type))

    phase = plan_pb2.ServerPhaseV2(name="Aggregate")
    prepare_graph = _prepare_graph(phase, prepare, tensors, intermediate)
    for update, total in zip(
        graphs.named(tensors.update, graphs.UPDATE),
        graphs.named(summed, graphs.INTERMEDIATE_UPDATE),
    ):
        config = phase.aggregations.add(intrinsic_uri=_FEDERATED_SUM)
        config.intrinsic_args.add(input_tensor=serialized_spec(update))
        config.output_tensors.append(serialized_spec(total))
    result_graph = _result_graph(
        phase, result, tensors, _ResultInputs(intermediate, summed), settings.quantities
    )
    client_graph, client_phase = build_client_graph(
        client_work(work, tensors.client_input, tensors.update), settings.source
    )

    plan = plan_pb2.Plan(version=1)
    plan.phase.add(client_phase=client_phase, server_phase_v2=phase)
    plan.client_graph_bytes.Pack(client_graph, deterministic=True)
    plan.server_graph_prepare_bytes.Pack(prepare_graph, deterministic=True)
    plan.server_graph_result_bytes.Pack(result_graph, deterministic=True)
    return CompiledPlan(plan, client_graph, client_phase, tensors)


def build_secure_plan(round_: tff.Computation, settings: PlanSettings) -> CompiledPlan:
    """Returns the plan of a round with secure sums; see `Profile.build`."""
    form = tff.backends.mapreduce.get_map_reduce_form_for_computation(
        round_, without_graph_optimization()
    )
    prepare = from_compiled(form.prepare)
    work = from_compiled(form.work)
    update = from_compiled(form.update)
    summed_type = graphs.only_element(require_only_secure_sums(work.result_type))
    state_type, metrics_type = update.result_type

    tensors = PlanTensors(
        state=graphs.leaves(state_type),
        client_input=graphs.leaves(graphs.only_element(prepare.result_type)),
        update=graphs.leaves(summed_type),
        metrics=graphs.leaves(metrics_type),
    )
    names = graphs.side_channel_names(_URI, tensors.update)
    bits = _constants(from_compiled(form.secure_sum_bitwidth))
    secure = tuple(
        SecureValue(f"{name}:0", leaf, width, settings.modulus(leaf.path, width))
        for name, leaf, width in zip(names, tensors.update, bits)
    )
    plan = plan_pb2.Plan(version=1)
    client_graph, client_phase = build_client_graph(
        client_work(work, tensors.client_input, (), names), settings.source
    )
    phase = plan.phase.add(client_phase=client_phase).server_phase
    server_graph = _server_graph(
        plan, phase, _ServerWork(prepare, update, settings), tensors, secure
    )
    plan.client_graph_bytes.Pack(client_graph, deterministic=True)
    plan.server_graph_bytes.Pack(server_graph, deterministic=True)
    return CompiledPlan(plan, client_graph, client_phase, tensors, secure)


PROFILES: Registry[Profile] = Registry(
    "profile",
    {
        "daf": Profile(
            "plain", build_daf_plan, "runs ServerPhaseV2; of aggregations, federated_sum"
        ),
        "secure": Profile(
            "secure",
            build_secure_plan,
            "runs ServerPhase, and a secure aggregation protocol for its side channels",
        ),
    },
)


def two_results(process: tff.learning.templates.LearningProcess) -> tff.Computation:
    """Converts a process's `next` to a function with two results, as TFF's forms require."""
    state_type, client_data_type = process.next.type_signature.parameter

    @tff.federated_computation(state_type, client_data_type)
    def round_(state: tff.Value, client_data: tff.Value) -> tuple[tff.Value, tff.Value]:
        output = process.next(state, client_data)
        return output.state, output.metrics

    return round_


def require_only_sums(aggregation: tff.Computation) -> None:
    """Checks that an aggregation of a DistributeAggregateForm only sums the client output."""
    block = aggregation.to_building_block().result
    uris = [
        value.function.uri
        for _, value in block.locals
        if isinstance(value, tff.framework.Call)
        and isinstance(value.function, tff.framework.Intrinsic)
    ]
    others = sorted({uri for uri in uris if uri != _FEDERATED_SUM})
    if others or len(uris) != 1 or len(block.locals) != 1:
        raise UserError(
            "profile daf: expected one sum of client updates, found "
            f"{', '.join(others) or f'{len(block.locals)} operations'}; the profile secure "
            "has secure sums"
        )


def _prepare_graph(
    phase: plan_pb2.ServerPhaseV2,
    prepare: TfFunction,
    tensors: PlanTensors,
    intermediate: Sequence[graphs.Leaf],
) -> tf.compat.v1.GraphDef:
    spec, router = phase.tensorflow_spec_prepare, phase.prepare_router
    with tf.Graph().as_default() as graph:
        state_path = file_path("server_state_input_filepath")
        client_path = file_path("client_checkpoint_output_filepath")
        intermediate_path = file_path("intermediate_state_output_filepath")
        router.prepare_server_state_input_filepath_tensor_name = state_path.name
        router.prepare_output_filepath_tensor_name = client_path.name
        router.prepare_intermediate_state_output_filepath_tensor_name = intermediate_path.name

        state = restore(state_path, graphs.named(tensors.state, graphs.SERVER), "restore_state")
        results = prepare(state, "prepare")
        split = len(tensors.client_input)
        client_specs = graphs.named(tensors.client_input, graphs.CLIENT)
        intermediate_specs = graphs.named(intermediate, graphs.INTERMEDIATE_STATE)
        ops = [
            save(client_path, client_specs, results[:split], "save_client_checkpoint"),
            save(intermediate_path, intermediate_specs, results[split:], "save_intermediate_state"),
        ]
        return _finish(graph, spec, [state_path, client_path, intermediate_path], ops)


class _ResultInputs(NamedTuple):
    """Inputs of the result graph: the part of the state that the server keeps, and the sums."""

    intermediate: Sequence[graphs.Leaf]
    summed: Sequence[graphs.Leaf]


def _result_graph(
    phase: plan_pb2.ServerPhaseV2,
    result: TfFunction,
    tensors: PlanTensors,
    inputs: _ResultInputs,
    quantities: ReportFields,
) -> tf.compat.v1.GraphDef:
    spec, router = phase.tensorflow_spec_result, phase.result_router
    with tf.Graph().as_default() as graph:
        intermediate_path = file_path("intermediate_state_input_filepath")
        aggregate_path = file_path("aggregate_result_input_filepath")
        state_path = file_path("server_state_output_filepath")
        router.result_intermediate_state_input_filepath_tensor_name = intermediate_path.name
        router.result_aggregate_result_input_filepath_tensor_name = aggregate_path.name
        router.result_server_state_output_filepath_tensor_name = state_path.name

        arguments = [
            *restore(
                intermediate_path,
                graphs.named(inputs.intermediate, graphs.INTERMEDIATE_STATE),
                "restore_intermediate_state",
            ),
            *restore(
                aggregate_path,
                graphs.named(inputs.summed, graphs.INTERMEDIATE_UPDATE),
                "restore_aggregate",
            ),
        ]
        specs = [
            *graphs.named(tensors.state, graphs.SERVER),
            *graphs.named(tensors.metrics, graphs.METRICS),
        ]
        results = result(arguments, "result")
        ops = [save(state_path, specs, results, "save_server_state")]
        outputs = scalar_outputs(tensors.metrics, results[len(tensors.state) :], quantities)
        paths = [intermediate_path, aggregate_path, state_path]
        return _finish(graph, spec, paths, ops, list(outputs.values()))


def _finish(
    graph: tf.Graph,
    spec: plan_pb2.TensorflowSpec,
    paths: Sequence[tf.Tensor],
    ops: Any,
    outputs: Sequence[tf.Tensor] = (),
) -> tf.compat.v1.GraphDef:
    spec.input_tensor_specs.extend(map(node_spec, paths))
    spec.target_node_names.extend(op.name for op in ops)
    spec.output_tensor_specs.extend(map(node_spec, outputs))
    return finished(graph, [node.name for node in (*paths, *ops, *outputs)])


def require_only_secure_sums(work_result: tff.Type) -> tff.Type:
    """Checks that `federated_secure_sum_bitwidth` sums all client results of a MapReduceForm.

    Args:
        work_result: Type of a client's result: one part for plain sums, and one for each kind of
            secure sum.

    Returns:
        Type of the part that `federated_secure_sum_bitwidth` sums.
    """
    plain, by_bit_width, *others = work_result
    outside = [leaf.path for part in (plain, *others) for leaf in graphs.leaves(part)]
    if outside:
        raise UserError(
            f"profile secure: expected {_URI} only, found {len(outside)} values of a client "
            f"in other sums: {', '.join(outside)}"
        )
    return by_bit_width


def _constants(function: TfFunction) -> list[int]:
    with tf.Graph().as_default() as graph:
        results = function([], "constants")
        with tf.compat.v1.Session(graph=graph) as session:
            return [int(value) for value in session.run(results)]


class _ServerWork(NamedTuple):
    prepare: TfFunction
    update: TfFunction
    settings: PlanSettings


def _server_graph(
    plan: plan_pb2.Plan,
    phase: plan_pb2.ServerPhase,
    work: _ServerWork,
    tensors: PlanTensors,
    secure: Sequence[SecureValue],
) -> tf.compat.v1.GraphDef:
    with tf.Graph().as_default() as graph:
        state = Variables(graphs.named(tensors.state, graphs.SERVER))
        metrics = Variables(graphs.named(tensors.metrics, graphs.METRICS))
        client = Variables(graphs.named(tensors.client_input, graphs.CLIENT))
        # `intermediate` is the sum of one aggregator's clients, `aggregated` the sum over all
        # aggregators.
        intermediate = Variables(_by_kind(tensors.update, graphs.INTERMEDIATE_UPDATE))
        aggregated = Variables(_by_kind(tensors.update, graphs.AGGREGATED_UPDATE))

        plan.server_savepoint.CopyFrom(checkpoint_op("savepoint", state, also_saved=metrics))
        plan.server_savepoint.before_restore_op = _group(
            [*state.initialize(), *metrics.initialize()], "initialize_state"
        )
        phase.name = "Aggregate"
        phase.phase_init_op = _group(
            [*intermediate.initialize(), *aggregated.initialize()], "initialize_accumulators"
        )
        phase.write_client_init.CopyFrom(checkpoint_op("write_client_init", client))
        phase.write_client_init.before_save_op = _group(
            client.assign(work.prepare(state.read(), "prepare")), "prepare_client_input"
        )
        phase.read_aggregated_update.CopyFrom(_read_side_channels(secure, intermediate))
        between = checkpoint_op("intermediate_update", intermediate)
        phase.write_intermediate_update.CopyFrom(between)
        phase.read_intermediate_update.CopyFrom(between)
        phase.intermediate_aggregate_into_accumulators_op = _group(
            aggregated.add(intermediate.read()), "aggregate"
        )
        phase.write_accumulators.CopyFrom(checkpoint_op("write_accumulators", aggregated))
        results = work.update([*state.read(), *aggregated.read()], "update")
        split = len(tensors.state)
        # Assign to the variables only after all results are computed, as the results depend on
        # them.
        with tf.control_dependencies(results):
            assigned = state.assign(results[:split]) + metrics.assign(results[split:])
        phase.apply_aggregrated_updates_op = _group(assigned, "apply_aggregated_updates")
        outputs = scalar_outputs(tensors.metrics, metrics.read(), work.settings.quantities)
        for name, value in outputs.items():
            phase.metrics.add(variable_name=value.name, stat_name=name)
        return finished(graph, _names(plan, phase))


def _read_side_channels(
    secure: Sequence[SecureValue], intermediate: Variables
) -> plan_pb2.CheckpointOp:
    op = plan_pb2.CheckpointOp()
    received = Variables(graphs.named([value.leaf for value in secure], f"{_URI}_{graphs.UPDATE}"))
    fed = []
    for value, spec in zip(secure, received.specs):
        placeholder = tf.compat.v1.placeholder(spec.dtype, spec.shape, f"feed_{spec.name}")
        fed.append(placeholder)
        channel = op.side_channel_tensors[value.name]
        channel.restore_name = placeholder.name
        channel.secure_aggregand.fixed_modulus.modulus = value.modulus
        channel.secure_aggregand.dtype = spec.dtype.as_datatype_enum
        for size in spec.shape:
            channel.secure_aggregand.dimension.add(size=size)
    op.before_restore_op = _group(received.assign(fed), "receive_sums")
    op.after_restore_op = _group(intermediate.assign(received.read()), "take_over_sums")
    return op


def _by_kind(summed: Sequence[graphs.Leaf], prefix: str) -> list[tf.TensorSpec]:
    # Use index 1, as the platform's tools use index 0 for plain sums.
    return graphs.named(summed, f"{prefix}/1")


def _group(ops: Sequence[Any], name: str) -> str:
    return str(tf.group(*ops, name=name).name)


def _names(plan: plan_pb2.Plan, phase: plan_pb2.ServerPhase) -> list[str]:
    checkpoint_ops = [
        plan.server_savepoint,
        phase.write_client_init,
        phase.read_aggregated_update,
        phase.write_intermediate_update,
        phase.write_accumulators,
    ]
    return [
        *(name for op in checkpoint_ops for name in checkpoint_op_names(op)),
        phase.phase_init_op,
        phase.intermediate_aggregate_into_accumulators_op,
        phase.apply_aggregrated_updates_op,
        *(metric.variable_name for metric in phase.metrics),
    ]
