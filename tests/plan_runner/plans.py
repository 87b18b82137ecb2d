"""Small plans in plain TensorFlow: a mean that moves towards the clients' values.

The state is the mean and the number of rounds; a client sends the sum of `x - mean` and a count.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saver_pb2, struct_pb2

from plan_runner import plan_pb2

v1 = tf.compat.v1
raw = tf.raw_ops

FEATURES = {"x": {"dtype": "float32", "shape": []}, "n": {"dtype": "int64", "shape": []}}
MODULUS = 1024
Change = Callable[[tf.Tensor], tf.Tensor]
SIDE = "sidechannel_secagg_federated_secure_sum_bitwidth_update"


def spec(name: str, dtype: Any, shape: Sequence[int] = ()) -> bytes:
    return struct_pb2.TensorSpecProto(
        name=name, dtype=tf.as_dtype(dtype).as_datatype_enum, shape=tf.TensorShape(shape).as_proto()
    ).SerializeToString()


def _path(name: str) -> tf.Tensor:
    return v1.placeholder(tf.string, [], name)


def _read(path: tf.Tensor, **tensors: Any) -> list[tf.Tensor]:
    names = list(tensors.values())
    return raw.RestoreV2(
        prefix=path,
        tensor_names=[name for name, _ in names],
        shape_and_slices=["" for _ in names],
        dtypes=[dtype for _, dtype in names],
    )


def _save(path: tf.Tensor, tensors: Mapping[str, tf.Tensor], name: str) -> tf.Operation:
    return raw.SaveSlices(
        filename=path,
        tensor_names=list(tensors),
        shapes_and_slices=["" for _ in tensors],
        data=list(tensors.values()),
        name=name,
    )


def _summed(term: Callable[[Any], tf.Tensor]) -> list[tf.Tensor]:
    """Returns (sum of `term`, count) over a placeholder dataset that `_external` later replaces."""
    stand_in = raw.TensorSliceDataset(
        components=[tf.constant([""])], output_shapes=[[]], name="examples"
    )
    dataset = tf.data.experimental.from_variant(stand_in, tf.TensorSpec([], tf.string))
    features = {
        name: tf.io.FixedLenFeature(kind["shape"], tf.as_dtype(kind["dtype"]))
        for name, kind in FEATURES.items()
    }
    zero = tf.zeros([], term({"x": tf.constant(0.0), "n": tf.constant(0, tf.int64)}).dtype)

    def add(total: Any, record: Any) -> Any:
        return total[0] + term(tf.io.parse_single_example(record, features)), total[1] + 1

    return dataset.reduce((zero, tf.constant(0, tf.int64)), add)


def _external(graph: tf.Graph, uri: str = "app:///examples") -> bytes:
    definition = graph.as_graph_def()
    selector = plan_pb2.ExampleSelector(collection_uri=uri).SerializeToString()
    node = next(node for node in definition.node if node.name == "examples")
    node.Clear()
    node.name, node.op = "examples", "ExternalDataset"
    node.input.extend(["data_token", "selector"])
    constant = definition.node.add(name="selector", op="Const")
    constant.attr["dtype"].type = tf.string.as_datatype_enum
    constant.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(selector))
    return definition.SerializeToString()


def _pack(message: Any, content: bytes) -> None:
    message.type_url, message.value = "type.googleapis.com/tensorflow.GraphDef", content


def _client_phase(plan: plan_pb2.Plan) -> Any:
    phase = plan.phase.add().client_phase
    phase.tensorflow_spec.dataset_token_tensor_name = "data_token:0"
    phase.tensorflow_spec.input_tensor_specs.append(spec("input_filepath:0", tf.string))
    phase.federated_compute.input_filepath_tensor_name = "input_filepath:0"
    return phase


def daf_plan(on_client: Change = lambda x: x, on_server: Change = lambda x: x) -> plan_pb2.Plan:
    """Returns the plan with plain sums.

    Args:
        on_client: Function that changes the client's sum.
        on_server: Function that changes the mean that the server sends.
    """
    plan = plan_pb2.Plan(version=1)
    phase = _client_phase(plan)
    phase.tensorflow_spec.input_tensor_specs.append(spec("output_filepath:0", tf.string))
    phase.tensorflow_spec.target_node_names.append("save_client_update_tensors")
    phase.federated_compute.output_filepath_tensor_name = "output_filepath:0"
    with tf.Graph().as_default() as graph:
        v1.placeholder(tf.string, [], "data_token")
        (mean,) = _read(_path("input_filepath"), mean=("client/0", tf.float32))
        total, count = _summed(lambda features: features["x"] - mean)
        tensors = {"update/0": on_client(total), "update/1": count}
        _save(_path("output_filepath"), tensors, "save_client_update_tensors")
    _pack(plan.client_graph_bytes, _external(graph))

    server = plan.phase[0].server_phase_v2
    for number, dtype in enumerate((tf.float32, tf.int64)):
        aggregation = server.aggregations.add(intrinsic_uri="federated_sum")
        aggregation.intrinsic_args.add(input_tensor=spec(f"update/{number}", dtype))
        aggregation.output_tensors.append(spec(f"intermediate_update/0/{number}", dtype))
    server_state = {"mean": ("server/0", tf.float32), "rounds": ("server/1", tf.int64)}
    with tf.Graph().as_default() as graph:
        mean, rounds = _read(_path("state_in"), **server_state)
        _save(_path("client_out"), {"client/0": on_server(mean)}, "save_client")
        kept = {"intermediate_state/0": mean, "intermediate_state/1": rounds}
        _save(_path("kept_out"), kept, "save_kept")
    _pack(plan.server_graph_prepare_bytes, graph.as_graph_def().SerializeToString())
    router = server.prepare_router
    router.prepare_server_state_input_filepath_tensor_name = "state_in:0"
    router.prepare_output_filepath_tensor_name = "client_out:0"
    router.prepare_intermediate_state_output_filepath_tensor_name = "kept_out:0"
    prepare = server.tensorflow_spec_prepare
    for name in ("state_in:0", "client_out:0", "kept_out:0"):
        prepare.input_tensor_specs.append(spec(name, tf.string))
    prepare.target_node_names.extend(["save_client", "save_kept"])

    with tf.Graph().as_default() as graph:
        mean, rounds = _read(
            _path("kept_in"),
            mean=("intermediate_state/0", tf.float32),
            rounds=("intermediate_state/1", tf.int64),
        )
        total, count = _read(
            _path("sums_in"),
            total=("intermediate_update/0/0", tf.float32),
            count=("intermediate_update/0/1", tf.int64),
        )
        new = {"server/0": mean + total / tf.cast(count, tf.float32), "server/1": rounds + 1}
        metrics = {"metrics/count": count, "metrics/loss": tf.stack([total, np.nan])}
        _save(_path("state_out"), {**new, **metrics}, "save_state")
    _pack(plan.server_graph_result_bytes, graph.as_graph_def().SerializeToString())
    after = server.result_router
    after.result_intermediate_state_input_filepath_tensor_name = "kept_in:0"
    after.result_aggregate_result_input_filepath_tensor_name = "sums_in:0"
    after.result_server_state_output_filepath_tensor_name = "state_out:0"
    result = server.tensorflow_spec_result
    for name in ("kept_in:0", "sums_in:0", "state_out:0"):
        result.input_tensor_specs.append(spec(name, tf.string))
    result.target_node_names.append("save_state")
    return plan


def secure_plan() -> plan_pb2.Plan:
    plan = plan_pb2.Plan(version=1)
    phase = _client_phase(plan)
    for number in range(2):
        name = f"{SIDE}/{number}:0"
        phase.tensorflow_spec.output_tensor_specs.append(spec(name, tf.int64))
        phase.federated_compute.aggregations[name].secure_aggregation.SetInParent()
    with tf.Graph().as_default() as graph:
        v1.placeholder(tf.string, [], "data_token")
        (mean,) = _read(_path("input_filepath"), mean=("client/0", tf.float32))
        # The client must read its checkpoint, although the value does not matter.
        unchanged = tf.cast(mean * 0, tf.int64)
        total, count = _summed(lambda features: features["n"] + unchanged)
        for number, value in enumerate((total, count)):
            tf.identity(value, f"{SIDE}/{number}")
    _pack(plan.client_graph_bytes, _external(graph))

    server = plan.phase[0].server_phase
    with tf.Graph().as_default() as graph:

        def variable(name: str, dtype: Any) -> Any:
            return v1.get_variable(name, [], dtype, v1.zeros_initializer(), use_resource=True)

        state = [variable("server/0", tf.float32), variable("server/1", tf.int64)]
        count = variable("metrics/count", tf.int64)
        restored = [variable(f"restored/{n}", tf.int64) for n in range(2)]
        totals = [variable(f"totals/{n}", tf.int64) for n in range(2)]
        tf.group(*(v.assign(0) for v in (count, *restored, *totals)), name="phase_init")
        feeds = [v1.placeholder(tf.int64, [], f"fed/{n}") for n in range(2)]
        tf.group(*(v.assign(f) for v, f in zip(restored, feeds)), name="take_sums")
        with tf.control_dependencies([]):
            tf.group(*(t.assign_add(r) for t, r in zip(totals, restored)), name="add_sums")
        mean = state[0] + tf.cast(totals[0], tf.float32) / tf.cast(totals[1], tf.float32)
        updates = [state[0].assign(mean), state[1].assign_add(1), count.assign(totals[1])]
        tf.group(*updates, name="apply")

        def saver(name: str, saved: Mapping[str, Any], restored: Mapping[str, Any]) -> bytes:
            path = v1.placeholder_with_default("/nowhere", [], f"{name}/path")
            with tf.control_dependencies([_save(path, saved, f"{name}/slices")] if saved else []):
                tf.identity(path, f"{name}/save")
            values = _read(path, **{key: (key, v.dtype) for key, v in restored.items()})
            assigned = [v.assign(value) for v, value in zip(restored.values(), values or [])]
            tf.group(*assigned, name=f"{name}/restore")
            return saver_pb2.SaverDef(
                filename_tensor_name=f"{name}/path:0",
                save_tensor_name=f"{name}/save:0",
                restore_op_name=f"{name}/restore",
                version=saver_pb2.SaverDef.V1,
            ).SerializeToString()

        values = {v.op.name: v for v in state}
        plan.server_savepoint.saver_def = saver(
            "savepoint", {**values, "metrics/count": count}, values
        )
        server.write_client_init.saver_def = saver(
            "client_init", {"client/0": state[0]}, {"client/0": state[0]}
        )
        sums = {f"sums/{n}": v for n, v in enumerate(totals)}
        server.write_intermediate_update.saver_def = saver(
            "intermediate", sums, {f"sums/{n}": v for n, v in enumerate(restored)}
        )
        server.read_intermediate_update.saver_def = server.write_intermediate_update.saver_def
        server.write_accumulators.saver_def = saver("accumulators", sums, sums)
    _pack(plan.server_graph_bytes, graph.as_graph_def().SerializeToString())
    server.phase_init_op = "phase_init"
    server.read_aggregated_update.before_restore_op = "take_sums"
    server.read_aggregated_update.after_restore_op = "add_sums"
    for number in range(2):
        channel = server.read_aggregated_update.side_channel_tensors[f"{SIDE}/{number}:0"]
        channel.restore_name = f"fed/{number}:0"
        channel.secure_aggregand.fixed_modulus.modulus = MODULUS
        channel.secure_aggregand.dtype = tf.int64.as_datatype_enum
    server.intermediate_aggregate_into_accumulators_op = "add_sums"
    server.apply_aggregrated_updates_op = "apply"
    return plan
