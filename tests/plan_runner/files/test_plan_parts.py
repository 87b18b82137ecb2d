"""Plans with missing, unknown or contradictory parts."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf
from google.protobuf import descriptor_pb2

from plan_runner import plan_pb2
from plan_runner.errors import PlanError
from plan_runner.export import open_export
from plan_runner.plan_messages import parse_plan
from plan_runner.rounds import load_profile, run_rounds
from tests import golden
from tests.plan_runner.exports import rehash
from tests.plan_runner.plans import spec


def refused(profile, plan) -> str:
    """What is said of a plan on its way through parsing and loading."""
    content = plan if isinstance(plan, bytes) else plan.SerializeToString()
    with pytest.raises(PlanError) as caught:
        load_profile(profile, parse_plan(content, "plan.pb"))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def daf(exports):
    return plan_pb2.Plan.FromString((exports["daf"] / "plan.pb").read_bytes())


@pytest.fixture
def secure(exports):
    return plan_pb2.Plan.FromString((exports["secure"] / "plan.pb").read_bytes())


def test_whole_plans_load(daf, secure):
    load_profile("daf", parse_plan(daf.SerializeToString(), "plan.pb")).close()
    load_profile("secure", parse_plan(secure.SerializeToString(), "plan.pb")).close()


def test_truncated_plans(daf):
    content = daf.SerializeToString()
    for length in (0, 1, 10, len(content) // 2, len(content) - 1):
        assert refused("daf", content[:length]).startswith("plan.pb: ")


def test_the_other_profile(daf, secure):
    assert refused("secure", daf) == "plan.pb: expected the part server_graph_bytes, found none"
    expected = "plan.pb: expected the part server_graph_prepare_bytes, found none"
    assert refused("daf", secure) == expected


def test_versions_and_phases(daf):
    daf.version = 2
    assert refused("daf", daf) == "plan.pb: version: expected 1, found 2"
    daf.version = 1
    daf.phase.add().CopyFrom(daf.phase[0])
    assert refused("daf", daf) == "plan.pb: phase: expected one, found 2"
    del daf.phase[:]
    assert refused("daf", daf) == "plan.pb: phase: expected one, found 0"


def test_unknown_parts_are_named_by_place(daf):
    content = daf.SerializeToString()
    assert refused("daf", content + b"\x52\x00").startswith("plan.pb: expected known parts only")
    server = daf.phase[0].server_phase_v2
    router = plan_pb2.ServerResultIORouter.FromString(
        server.result_router.SerializeToString() + b"\x22\x01x"
    )
    server.result_router.CopyFrom(router)
    expected = "plan.pb: phase: server_phase_v2: result_router: expected known parts only"
    assert refused("daf", daf).startswith(expected)


def test_unknown_parts_in_maps_are_found(secure):
    channels = secure.phase[0].server_phase.read_aggregated_update.side_channel_tensors
    name = sorted(channels)[0]
    channel = plan_pb2.SideChannel.FromString(channels[name].SerializeToString() + b"\x52\x00")
    channels[name].CopyFrom(channel)
    assert "side_channel_tensors: expected known parts only" in refused("secure", secure)


def without(plan, path):
    *parents, name = path.split(".")
    message = plan
    for parent in parents:
        message = message[int(parent)] if parent.isdigit() else getattr(message, parent)
    message.ClearField(name)
    return plan


@golden.values
def test_missing_parts_of_daf_plans(daf, case):
    return refused("daf", without(daf, case))


@golden.values
def test_missing_parts_of_secure_plans(secure, case):
    return refused("secure", without(secure, case))


def test_nothing_goes_outside_of_secure_sums(secure):
    server = secure.phase[0].server_phase
    server.read_update.saver_def = server.write_client_init.saver_def
    assert "expected no part read_update in this profile" in refused("secure", secure)
    server.ClearField("read_update")
    server.aggregate_into_accumulators_op = "apply"
    assert "expected no part aggregate_into_accumulators_op" in refused("secure", secure)
    server.ClearField("aggregate_into_accumulators_op")
    client = secure.phase[0].client_phase
    client.federated_compute.output_filepath_tensor_name = "output_filepath:0"
    assert "expected no part output_filepath_tensor_name" in refused("secure", secure)
    client.federated_compute.ClearField("output_filepath_tensor_name")
    client.tensorflow_spec.target_node_names.append("save_client_update_tensors")
    assert "expected no part target_node_names" in refused("secure", secure)
    del client.tensorflow_spec.target_node_names[:]
    name = client.federated_compute.aggregations.__iter__().__next__()
    client.federated_compute.aggregations[name].Clear()
    assert "expected secure_aggregation of every tensor" in refused("secure", secure)


def test_tensors_that_no_side_channel_takes(secure):
    channels = secure.phase[0].server_phase.read_aggregated_update.side_channel_tensors
    del channels[sorted(channels)[0]]
    assert "side_channel_tensors: expected the client's tensors" in refused("secure", secure)


def test_session_tokens_are_not_heeded(secure):
    secure.phase[0].server_phase.write_client_init.session_token_tensor_name = "token:0"
    assert "expected no part session_token_tensor_name" in refused("secure", secure)


def test_savers_of_several_files(secure):
    from tensorflow.core.protobuf import saver_pb2

    saver = saver_pb2.SaverDef.FromString(secure.server_savepoint.saver_def)
    saver.version = saver_pb2.SaverDef.V2
    secure.server_savepoint.saver_def = saver.SerializeToString()
    assert "server_savepoint: saver_def: expected a saver of one file" in refused("secure", secure)


def test_names_that_the_graph_does_not_have(daf, secure):
    daf.phase[0].client_phase.tensorflow_spec.target_node_names[0] = "elsewhere"
    assert "plan.pb: client: expected 'elsewhere' in the graph" in refused("daf", daf)
    secure.phase[0].server_phase.phase_init_op = "elsewhere"
    assert "expected 'elsewhere' in the graph" in refused("secure", secure)


def test_inputs_that_are_no_paths(daf):
    spec_ = daf.phase[0].client_phase.tensorflow_spec
    spec_.input_tensor_specs.append(spec("another:0", "float32"))
    assert "client: input_tensor_specs: expected ['input_filepath:0'" in refused("daf", daf)
    spec_.input_tensor_specs[2] = spec_.input_tensor_specs[0]
    assert "expected input_filepath:0 once, found it again" in refused("daf", daf)
    spec_.input_tensor_specs[2] = b"\xff\xff"
    assert "input_tensor_specs: expected TensorSpecProto, cannot parse" in refused("daf", daf)


def test_one_path_for_two_files(daf):
    router = daf.phase[0].server_phase_v2.prepare_router
    router.prepare_output_filepath_tensor_name = "state_in:0"
    assert "prepare_router: expected a tensor of its own for every path" in refused("daf", daf)


def test_one_tensor_summed_twice(daf):
    aggregations = daf.phase[0].server_phase_v2.aggregations
    aggregations.add().CopyFrom(aggregations[0])
    assert "aggregations: expected every tensor once" in refused("daf", daf)


def test_graphs_that_are_none(daf):
    daf.client_graph_bytes.value = b"\xff\xff"
    assert refused("daf", daf).startswith("plan.pb: client: graph: expected GraphDef, cannot parse")
    daf.client_graph_bytes.type_url = "type.googleapis.com/other.Message"
    assert "graph: expected tensorflow.GraphDef, found" in refused("daf", daf)


def test_graphs_that_tensorflow_does_not_take(daf):
    graph = tf.compat.v1.GraphDef.FromString(daf.server_graph_prepare_bytes.value)
    graph.versions.min_consumer = 1 << 30
    daf.server_graph_prepare_bytes.value = graph.SerializeToString()
    assert "prepare: graph: expected a graph, cannot import it" in refused("daf", daf)


def test_constants_that_are_none(daf):
    constants = daf.phase[0].client_phase.tensorflow_spec.constant_inputs
    constants["max_examples:0"] = b"\x08\xe7\x07"
    assert "constant_inputs: max_examples:0: expected" in refused("daf", daf)
    constants["max_examples:0"] = b"\xff"
    assert "constant_inputs: max_examples:0: expected TensorProto" in refused("daf", daf)


def test_a_configuration_is_heeded_for_graphs_only(daf):
    config = tf.compat.v1.ConfigProto(device_count={"CPU": 0})
    config.cluster_def.job.add(name="elsewhere")
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    daf.tensorflow_config_proto.value = config.SerializeToString()
    load_profile("daf", daf).close()
    daf.tensorflow_config_proto.value = b"\xff"
    assert "tensorflow_config_proto: expected ConfigProto" in refused("daf", daf)


def test_the_least_number_of_clients(exports, daf, tmp_path):
    daf.phase[0].client_phase.minimum_number_of_participants = 3
    folder = shutil.copytree(exports["daf"], tmp_path / "export")
    (folder / "plan.pb").write_bytes(daf.SerializeToString())
    rehash(folder)
    export = open_export(folder)
    from plan_runner.rounds import conformance_clients

    clients = conformance_clients(export)
    assert len(list(run_rounds(export, [clients]))) == 1
    with pytest.raises(PlanError, match=r"^cohort: expected at least 3 clients, found 2$"):
        list(run_rounds(export, [clients[:2]]))


# --- Our own plan.proto: the numbers are the platform's, and what it leaves out survives


ROOT = Path(__file__).parents[3]

# Written down from the platform's definition: a message a line, each field with its number, and the
# choice that it is one of. `example_selector` is that of On-Device Personalization's copy.
MESSAGES = ROOT / "tests/golden/plan_runner/files/platform_messages.txt"


def messages():
    """Every message of the file, by its name within the package."""
    package = plan_pb2.DESCRIPTOR.package
    left = list(plan_pb2.DESCRIPTOR.message_types_by_name.values())
    while left:
        message = left.pop()
        left += message.nested_types
        yield message.full_name[len(package) + 1 :], message


def _number(field):
    return field.number


def test_every_number_and_choice_is_the_platforms():
    def described(field):
        one = field.containing_oneof
        return f"{field.name}={field.number}" + (f" of {one.name}" if one else "")

    assert plan_pb2.DESCRIPTOR.package == "google.internal.federated.plan"
    found = {
        f"{name}: {', '.join(map(described, sorted(message.fields, key=_number)))}".strip()
        for name, message in messages()
    }
    assert found == set(MESSAGES.read_text().splitlines())


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
