"""Our own plan.proto: the numbers are the platform's, and what it leaves out survives."""

import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

from plan_runner import plan_pb2

ROOT = Path(__file__).parents[3]

# Written down from the platform's definition, as message: {field: number}.
NUMBERS = {
    "Plan": {
        "server_savepoint": 2,
        "phase": 4,
        "server_graph_bytes": 7,
        "client_graph_bytes": 8,
        "version": 9,
        "tensorflow_config_proto": 11,
        "client_tflite_graph_bytes": 12,
        "server_graph_prepare_bytes": 13,
        "server_graph_result_bytes": 14,
    },
    "Plan.Phase": {"client_phase": 1, "server_phase": 2, "server_phase_v2": 4},
    "ClientOnlyPlan": {"graph": 1, "phase": 2, "tensorflow_config_proto": 4, "tflite_graph": 5},
    "ClientPhase": {
        "name": 2,
        "minimum_number_of_participants": 3,
        "tensorflow_spec": 4,
        "federated_compute": 5,
    },
    "TensorflowSpec": {
        "dataset_token_tensor_name": 1,
        "input_tensor_specs": 2,
        "output_tensor_specs": 3,
        "target_node_names": 4,
        "constant_inputs": 5,
        # Of On-Device Personalization's copy of the definition.
        "example_selector": 999,
    },
    "TensorflowSpec.ConstantInputsEntry": {"key": 1, "value": 2},
    "FederatedComputeIORouter": {
        "input_filepath_tensor_name": 1,
        "output_filepath_tensor_name": 2,
        "aggregations": 3,
    },
    "FederatedComputeIORouter.AggregationsEntry": {"key": 1, "value": 2},
    "AggregationConfig": {"secure_aggregation": 2},
    "SecureAggregationConfig": {},
    "ExampleSelector": {"criteria": 1, "collection_uri": 2, "resumption_token": 3},
    "ServerPhaseV2": {
        "name": 1,
        "aggregations": 2,
        "tensorflow_spec_prepare": 3,
        "prepare_router": 4,
        "tensorflow_spec_result": 5,
        "result_router": 6,
    },
    "ServerPrepareIORouter": {
        "prepare_server_state_input_filepath_tensor_name": 1,
        "prepare_output_filepath_tensor_name": 2,
        "prepare_intermediate_state_output_filepath_tensor_name": 3,
    },
    "ServerResultIORouter": {
        "result_intermediate_state_input_filepath_tensor_name": 1,
        "result_aggregate_result_input_filepath_tensor_name": 2,
        "result_server_state_output_filepath_tensor_name": 3,
    },
    "ServerAggregationConfig": {
        "intrinsic_uri": 1,
        "intrinsic_args": 4,
        "output_tensors": 5,
        "inner_aggregations": 6,
    },
    "ServerAggregationConfig.IntrinsicArg": {"input_tensor": 2, "state_tensor": 3},
    "ServerPhase": {
        "phase_init_op": 1,
        "write_client_init": 2,
        "read_update": 3,
        "aggregate_into_accumulators_op": 4,
        "apply_aggregrated_updates_op": 5,
        "metrics": 6,
        "write_intermediate_update": 7,
        "name": 8,
        "read_intermediate_update": 9,
        "read_aggregated_update": 10,
        "intermediate_aggregate_into_accumulators_op": 11,
        "write_accumulators": 12,
    },
    "Metric": {"variable_name": 1, "stat_name": 2, "weight_name": 3},
    "CheckpointOp": {
        "saver_def": 1,
        "before_restore_op": 2,
        "after_restore_op": 3,
        "before_save_op": 4,
        "after_save_op": 5,
        "side_channel_tensors": 6,
        "session_token_tensor_name": 7,
    },
    "CheckpointOp.SideChannelTensorsEntry": {"key": 1, "value": 2},
    "SideChannel": {"secure_aggregand": 1, "restore_name": 2},
    "SideChannel.SecureAggregand": {
        "quantized_input_bitwidth": 2,
        "dimension": 3,
        "dtype": 4,
        "fixed_modulus": 5,
        "modulus_times_shard_size": 6,
    },
    "SideChannel.SecureAggregand.Dimension": {"size": 1},
    "SideChannel.SecureAggregand.FixedModulus": {"modulus": 1},
    "SideChannel.SecureAggregand.ModulusTimesShardSize": {"base_modulus": 1},
}

ONEOFS = {
    "ClientPhase": {"spec": {"tensorflow_spec"}, "io_router": {"federated_compute"}},
    "AggregationConfig": {"protocol_config": {"secure_aggregation"}},
    "ServerPhaseV2": {
        "server_prepare_io_router": {"prepare_router"},
        "server_result_io_router": {"result_router"},
    },
    "ServerAggregationConfig.IntrinsicArg": {"arg": {"input_tensor", "state_tensor"}},
    "SideChannel": {"type": {"secure_aggregand"}},
    "SideChannel.SecureAggregand": {
        "modulus_scheme": {
            "quantized_input_bitwidth",
            "fixed_modulus",
            "modulus_times_shard_size",
        }
    },
}


def messages():
    """Every message of the file, by its name within the package."""
    package = plan_pb2.DESCRIPTOR.package
    left = list(plan_pb2.DESCRIPTOR.message_types_by_name.values())
    while left:
        message = left.pop()
        left += message.nested_types
        yield message.full_name[len(package) + 1 :], message


def test_every_number_is_the_platforms():
    assert plan_pb2.DESCRIPTOR.package == "google.internal.federated.plan"
    found = {
        name: {field.name: field.number for field in message.fields} for name, message in messages()
    }
    assert found == NUMBERS


def test_every_choice_is_the_platforms():
    found = {
        name: {one.name: {field.name for field in one.fields} for one in message.oneofs}
        for name, message in messages()
        if message.oneofs
    }
    assert found == ONEOFS


def test_tensorflows_messages_are_bytes_and_enums_are_numbers():
    of_bytes = {
        f"{name}.{field.name}"
        for name, message in messages()
        for field in message.fields
        if field.type == field.TYPE_BYTES
    }
    assert of_bytes == {
        "CheckpointOp.saver_def",
        "ClientOnlyPlan.graph",
        "ClientOnlyPlan.tflite_graph",
        "Plan.client_tflite_graph_bytes",
        "ServerAggregationConfig.IntrinsicArg.input_tensor",
        "ServerAggregationConfig.IntrinsicArg.state_tensor",
        "ServerAggregationConfig.output_tensors",
        "TensorflowSpec.ConstantInputsEntry.value",
        "TensorflowSpec.input_tensor_specs",
        "TensorflowSpec.output_tensor_specs",
    }


def test_the_checked_in_code_is_that_of_the_proto(tmp_path):
    pytest.importorskip("grpc_tools")
    outputs = [f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT}", *outputs]
    subprocess.run([*command, "plan_runner/plan.proto"], cwd=ROOT, check=True)
    for path in (tmp_path / "plan_runner").iterdir():
        assert path.read_text() == (ROOT / "plan_runner" / path.name).read_text(), path.name


def test_unknown_fields_survive_a_round_trip():
    # Field 10 of a plan and field 6 of a client phase, neither of them known here.
    foreign = descriptor_pb2.DescriptorProto(name="x" * 20)
    plan = plan_pb2.Plan(version=1)
    plan.phase.add().client_phase.name = "Client"
    inner = plan.phase[0].client_phase.SerializeToString() + b"\x32\x03abc"
    client = plan_pb2.ClientPhase.FromString(inner)
    plan.phase[0].client_phase.CopyFrom(client)
    content = plan.SerializeToString() + b"\x52" + bytes([foreign.ByteSize()])
    content += foreign.SerializeToString()
    again = plan_pb2.Plan.FromString(content)
    assert again.SerializeToString() == content
    assert again.phase[0].client_phase.SerializeToString() == inner
