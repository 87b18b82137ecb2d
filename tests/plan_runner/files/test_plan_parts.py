"""Errors for plans with missing, unknown or contradictory parts; the messages of plan.proto."""

import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf
from google.protobuf import descriptor_pb2
from tensorflow.core.protobuf import saver_pb2

from plan_runner import plan_pb2
from plan_runner.plan_messages import parse_plan
from plan_runner.rounds import load_profile
from tests.plan_runner.plans import SIDE, spec
from tests.plan_runner.refusals import refusal
from tests.support import golden
from tests.support.platform import has_tff


def refused(profile, plan) -> str:
    """Returns the error of parsing and loading a plan."""
    content = plan if isinstance(plan, bytes) else plan.SerializeToString()
    return refusal(lambda: load_profile(profile, parse_plan(content, "plan.pb")))


@pytest.fixture
def daf(exports):
    return plan_pb2.Plan.FromString((exports["daf"] / "plan.pb").read_bytes())


@pytest.fixture
def secure(exports):
    return plan_pb2.Plan.FromString((exports["secure"] / "plan.pb").read_bytes())


def test_truncated_plans_raise(daf):
    content = daf.SerializeToString()
    for length in (0, 1, 10, len(content) // 2, len(content) - 1):
        assert refused("daf", content[:length]).startswith("plan.pb: ")


def test_unknown_parts_raise_with_their_place(daf, secure):
    content = daf.SerializeToString()
    assert refused("daf", content + b"\x52\x00").startswith("plan.pb: expected only known fields")
    server = daf.phase[0].server_phase_v2
    router = server.result_router.SerializeToString() + b"\x22\x01x"
    server.result_router.CopyFrom(plan_pb2.ServerResultIORouter.FromString(router))
    expected = "plan.pb: phase: server_phase_v2: result_router: expected only known fields"
    assert refused("daf", daf).startswith(expected)
    channels = secure.phase[0].server_phase.read_aggregated_update.side_channel_tensors
    name = sorted(channels)[0]
    channel = plan_pb2.SideChannel.FromString(channels[name].SerializeToString() + b"\x52\x00")
    channels[name].CopyFrom(channel)
    assert "side_channel_tensors: expected only known fields" in refused("secure", secure)


def parent_and_name(plan, path):
    """Returns the message that has a field, and the field's name or the element's number."""
    *parents, name = path.split(".")
    message = plan
    for parent in parents:
        message = message[int(parent)] if parent.isdigit() else getattr(message, parent)
    return message, name


def without(plan, path):
    message, name = parent_and_name(plan, path)
    message.ClearField(name)
    return plan


@golden.values
def test_daf_plans_with_missing_parts_raise(daf, case):
    return refused("daf", without(daf, case))


@golden.values
def test_secure_plans_with_missing_parts_raise(secure, case):
    return refused("secure", without(secure, case))


def _later_graph(plan):
    graph = tf.compat.v1.GraphDef.FromString(plan.server_graph_prepare_bytes.value)
    graph.versions.min_consumer = 1 << 30
    plan.server_graph_prepare_bytes.value = graph.SerializeToString()


def _set(path, value):
    """Returns a function that sets a field, or an element of a repeated field."""

    def change(plan):
        message, name = parent_and_name(plan, path)
        if name.isdigit():
            message[int(name)] = value
        else:
            setattr(message, name, value)

    return change


def _append(path, value=None):
    """Returns a function that appends a value to a repeated field, by default its first value."""

    def change(plan):
        values = getattr(*parent_and_name(plan, path))
        values.append(values[0] if value is None else value)

    return change


_CLIENT = "phase.0.client_phase"
_INPUTS = f"{_CLIENT}.tensorflow_spec.input_tensor_specs"
_ROUTER = "phase.0.server_phase_v2.prepare_router"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_set("version", 2), "plan.pb: version: expected 1, found 2"),
        (_append("phase"), "plan.pb: phase: expected one, found 2"),
        (_set("tensorflow_config_proto.value", b"x"), "no part tensorflow_config_proto"),
        (_set(f"{_CLIENT}.minimum_number_of_participants", 3), "no part minimum_number_of_part"),
        (_set(f"{_CLIENT}.tensorflow_spec.target_node_names.0", "x"), "expected 'x' in the graph"),
        (_append(_INPUTS, spec("another:0", "float32")), "input_tensor_specs: expected ['input"),
        (_append(_INPUTS), "expected input_filepath:0 once, found it again"),
        (_set(f"{_INPUTS}.0", b"\xff\xff"), "input_tensor_specs: expected TensorSpecProto, cannot"),
        (
            _set(f"{_ROUTER}.prepare_output_filepath_tensor_name", "state_in:0"),
            "prepare_router: expected a different tensor for every path",
        ),
        (_append("phase.0.server_phase_v2.aggregations"), "expected every tensor once"),
        (_set("client_graph_bytes.value", b"\xff"), "client: graph: expected GraphDef, cannot"),
        (_set("client_graph_bytes.type_url", "x"), "graph: expected tensorflow.GraphDef, found"),
        (_later_graph, "prepare: graph: expected a graph, cannot import it"),
    ],
)
def test_contradictory_daf_plans_raise(daf, change, message):
    change(daf)
    assert message in refused("daf", daf)


_SERVER = "phase.0.server_phase"


def _no_channel(plan):
    del plan.phase[0].server_phase.read_aggregated_update.side_channel_tensors[f"{SIDE}/0:0"]


def _plain_output(plan):
    plan.phase[0].client_phase.federated_compute.aggregations[f"{SIDE}/0:0"].Clear()


def _many_file_saver(plan):
    saver = saver_pb2.SaverDef.FromString(plan.server_savepoint.saver_def)
    saver.version = saver_pb2.SaverDef.V2
    plan.server_savepoint.saver_def = saver.SerializeToString()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        # Clients send nothing outside of secure sums.
        (_set(f"{_SERVER}.read_update.saver_def", b"x"), "expected no part read_update in this"),
        (_set(f"{_SERVER}.aggregate_into_accumulators_op", "x"), "no part aggregate_into_acc"),
        (
            _set(f"{_CLIENT}.federated_compute.output_filepath_tensor_name", "x"),
            "expected no part output_filepath_tensor_name",
        ),
        (_append(f"{_CLIENT}.tensorflow_spec.target_node_names", "save"), "no part target_node"),
        (_plain_output, "expected secure_aggregation of every tensor"),
        (_no_channel, "side_channel_tensors: expected the client's tensors"),
        (_set(f"{_SERVER}.write_client_init.session_token_tensor_name", "x"), "no part session_t"),
        (_many_file_saver, "server_savepoint: saver_def: expected a saver of one file"),
        (_set(f"{_SERVER}.phase_init_op", "x"), "expected 'x' in the graph"),
    ],
)
def test_contradictory_secure_plans_raise(secure, change, message):
    change(secure)
    assert message in refused("secure", secure)


# --- plan.proto


ROOT = Path(__file__).parents[3]

# From the platform's definition: a line per message with its fields, their numbers, and the oneofs
# that they belong to. On-Device Personalization defines the field `example_selector`.
MESSAGES = ROOT / "tests/golden/plan_runner/files/platform_messages.txt"


def messages():
    """Yields (name within the package, descriptor) for each message in plan.proto."""
    package = plan_pb2.DESCRIPTOR.package
    waiting = list(plan_pb2.DESCRIPTOR.message_types_by_name.values())
    while waiting:
        message = waiting.pop()
        waiting += message.nested_types
        yield message.full_name[len(package) + 1 :], message


def test_proto_fields_equal_the_platforms():
    def described(field):
        one = field.containing_oneof
        return f"{field.name}={field.number}" + (f" of {one.name}" if one else "")

    assert plan_pb2.DESCRIPTOR.package == "google.internal.federated.plan"
    lines = set()
    for name, message in messages():
        fields = sorted(message.fields, key=lambda field: field.number)
        lines.add(f"{name}: {', '.join(map(described, fields))}".strip())
    assert lines == set(MESSAGES.read_text().splitlines())


def test_fields_with_tensorflow_messages_are_bytes():
    fields = {
        f"{name}.{field.name}"
        for name, message in messages()
        for field in message.fields
        if field.type == field.TYPE_BYTES
    }
    assert fields == {
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


@pytest.mark.skipif(not has_tff(), reason="the reference platform's protoc writes plan_pb2.py")
def test_generated_code_is_up_to_date(tmp_path):
    pytest.importorskip("grpc_tools")
    outputs = [f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT}", *outputs]
    subprocess.run([*command, "plan_runner/plan.proto"], cwd=ROOT, check=True)
    for path in (tmp_path / "plan_runner").iterdir():
        assert path.read_text() == (ROOT / "plan_runner" / path.name).read_text(), path.name


def test_unknown_fields_survive_a_round_trip():
    # plan.proto defines neither field 10 of a plan nor field 6 of a client phase.
    foreign = descriptor_pb2.DescriptorProto(name="x" * 20)
    plan = plan_pb2.Plan(version=1)
    plan.phase.add().client_phase.name = "Client"
    inner = plan.phase[0].client_phase.SerializeToString() + b"\x32\x03abc"
    plan.phase[0].client_phase.CopyFrom(plan_pb2.ClientPhase.FromString(inner))
    content = plan.SerializeToString() + b"\x52" + bytes([foreign.ByteSize()])
    content += foreign.SerializeToString()
    again = plan_pb2.Plan.FromString(content)
    assert again.SerializeToString() == content
    assert again.phase[0].client_phase.SerializeToString() == inner
