"""A plan as the platform's own builder writes it, made here by hand, is played.

Names, targets and outputs are those of `federated_compute_plan_builder.py` of
privacysandbox/federatedcompute at commit 1ab457f, for a computation in DistributeAggregateForm:
metrics are handed out as `server/...` and are written as `metrics/...`, and variables of the result
graph put what the server's own tools want to know beside the state.
"""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from plan_runner import plan_pb2
from plan_runner.export import TensorType, open_export
from plan_runner.graph_session import read_checkpoint, type_of, write_checkpoint
from plan_runner.rounds import run_rounds
from plan_runner.verify import conformance_clients
from tests.plan_runner.exports import MEANS, STATE, rehash, write_export
from tests.plan_runner.plans import daf_plan, spec

v1, raw = tf.compat.v1, tf.raw_ops
# Names of Google's own; what they hold is the test's.
_TYPE, _ORDER = "brella_tff_type_signature", "brella_tensor_ordering"
_METADATA = {_TYPE: b"<float32,int64>", _ORDER: b"server/0,server/1"}
_PATHS = {
    "prepare": (
        "server_state_input_filepath",
        "server_prepare_output_filepath",
        "server_intermediate_state_output_filepath",
    ),
    "result": (
        "server_intermediate_state_input_filepath",
        "aggregate_result_input_filepath",
        "server_state_output_filepath",
    ),
}
_SAVE_STATE = "save_server_state_tensors"


def _restore(path: tf.Tensor, name: str, dtype: Any) -> tf.Tensor:
    (value,) = raw.RestoreV2(
        prefix=path, tensor_names=[name], shape_and_slices=[""], dtypes=[dtype]
    )
    return value


def _save(path: tf.Tensor, tensors: dict[str, Any], name: str) -> tf.Operation:
    empty = ["" for _ in tensors]
    return raw.SaveSlices(
        filename=path,
        tensor_names=list(tensors),
        shapes_and_slices=empty,
        data=list(tensors.values()),
        name=name,
    )


def _prepare_graph() -> bytes:
    with tf.Graph().as_default() as graph:
        state, client, kept = (v1.placeholder(tf.string, [], name) for name in _PATHS["prepare"])
        values = [_restore(state, f"server/{i}", d) for i, d in enumerate((tf.float32, tf.int64))]
        _save(client, {"client/0": values[0]}, "save_prepared_values_tensors")
        of_state = {f"intermediate_state/{i}": value for i, value in enumerate(values)}
        _save(kept, of_state, "save_intermediate_state_values_tensors")
    return graph.as_graph_def().SerializeToString()


def _result_graph() -> bytes:
    with tf.Graph().as_default() as graph:
        kept, sums, state = (v1.placeholder(tf.string, [], name) for name in _PATHS["result"])
        dtypes = tuple(enumerate((tf.float32, tf.int64)))
        mean, rounds = (_restore(kept, f"intermediate_state/{i}", d) for i, d in dtypes)
        total, count = (_restore(sums, f"intermediate_update/0/{i}", d) for i, d in dtypes)
        new = [mean + total / tf.cast(count, tf.float32), rounds + 1]
        metrics = {"loss": total, "count": count}
        handed_out = {name: tf.identity(value, f"server/{name}") for name, value in metrics.items()}
        variables = [v1.Variable(b"", name=_TYPE, use_resource=True)]
        variables.append(v1.Variable(_METADATA[_ORDER], name=_ORDER, use_resource=True))
        initialize = v1.variables_initializer(variables, "initialize_metadata_vars")
        with tf.control_dependencies([initialize]):
            assign = variables[0].assign(_METADATA[_TYPE])
        tensors = {
            "server/0": new[0],
            "server/1": new[1],
            **{f"metrics/{name}": value for name, value in handed_out.items()},
        }
        with tf.control_dependencies([assign.op]):
            for name, variable in zip((_TYPE, _ORDER), variables):
                tensors[name] = variable.read_value()
            _save(state, tensors, _SAVE_STATE)
    return graph.as_graph_def().SerializeToString()


def _platform_plan() -> plan_pb2.Plan:
    plan = daf_plan()
    plan.ClearField("tensorflow_config_proto")
    plan.server_graph_prepare_bytes.value = _prepare_graph()
    plan.server_graph_result_bytes.value = _result_graph()
    phase = plan.phase[0].server_phase_v2
    for name, router, graph_spec in (
        ("prepare", phase.prepare_router, phase.tensorflow_spec_prepare),
        ("result", phase.result_router, phase.tensorflow_spec_result),
    ):
        graph_spec.Clear()
        for field, path in zip(router.DESCRIPTOR.fields, _PATHS[name]):
            setattr(router, field.name, f"{path}:0")
            graph_spec.input_tensor_specs.append(spec(f"{path}:0", tf.string))
    phase.tensorflow_spec_prepare.target_node_names.extend(
        ["save_prepared_values_tensors", "save_intermediate_state_values_tensors"]
    )
    result = phase.tensorflow_spec_result
    result.target_node_names.append(_SAVE_STATE)
    for name, dtype in (("server/loss:0", tf.float32), ("server/count:0", tf.int64)):
        result.output_tensor_specs.append(spec(name, dtype))
    return plan


@pytest.fixture
def folder(tmp_path):
    folder = write_export(tmp_path / "export", _platform_plan(), "daf")
    state = {**STATE, **{name: np.array(value) for name, value in _METADATA.items()}}
    write_checkpoint(folder / "server_state.ckpt", state)
    types = {name: type_of(np.asarray(value)) for name, value in state.items()}
    metrics = {"metrics/loss": TensorType("float32", ()), "metrics/count": TensorType("int64", ())}
    tensors = {
        group: {name: {"dtype": t.dtype, "shape": list(t.shape)} for name, t in kinds.items()}
        for group, kinds in (("server_state", types), ("metrics", metrics))
    }
    rehash(folder, tensors=tensors)
    return folder


def test_it_is_played_as_one_of_ours(folder):
    export = open_export(folder)
    results = list(run_rounds(export, [conformance_clients(export)] * 3))
    assert [float(result.state["server/0"]) for result in results] == MEANS
    assert [float(result.outputs["server/loss"]) for result in results] == [-24.0, 0.0, 0.0]
    for result in results:
        assert result.metrics["metrics/loss"] == result.outputs["server/loss"]
        assert result.outputs["server/count"] == result.metrics["metrics/count"] == 3


def test_what_the_servers_tools_want_stays_in_the_state(folder, tmp_path):
    export = open_export(folder)
    *_, result = run_rounds(export, [conformance_clients(export)] * 2)
    path = tmp_path / "state.ckpt"
    write_checkpoint(path, result.state)
    written = read_checkpoint(path, "the state")
    assert {name: written[name].item() for name in _METADATA} == _METADATA
    (again,) = run_rounds(export, [conformance_clients(export)], path)
    assert float(again.state["server/0"]) == MEANS[2]
