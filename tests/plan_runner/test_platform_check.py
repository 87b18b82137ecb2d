"""The tool platform_check reads exports with changed definitions of the platform."""

import json
import shutil
from pathlib import Path

import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2

from plan_runner import plan_pb2
from tests.plan_runner.exports import rehash
from tools.platform_check import main

pytest.importorskip("grpc_tools")
if not Path(tf.sysconfig.get_include(), "tensorflow/core/framework/graph.proto").exists():
    pytest.skip("this TensorFlow ships no .proto files", allow_module_level=True)

_PROTO = Path(plan_pb2.__file__).with_name("plan.proto").read_text()
_TASK = """
syntax = "proto3";
package google.ondevicepersonalization.federatedcompute.proto;
message Task { string population_name = 1; int64 total_iteration = 3; }
message CreateTaskRequest { Task task = 1; }
"""


@pytest.fixture
def export(exports, tmp_path):
    return shutil.copytree(exports["daf"], tmp_path / "export")


@pytest.fixture
def check(tmp_path, capfd):
    """Returns a function that checks an export and returns the exit status and the output."""
    folder = tmp_path / "protos"

    def run(export, **definitions):
        folder.mkdir()
        for name, content in (definitions or {"plan": _PROTO}).items():
            (folder / f"{name}.proto").write_text(content)
        status = main([f"--protos={folder}", f"--plan={export}"])
        printed = capfd.readouterr()
        return status, printed.out + printed.err

    return run


def _change_plan(folder, change):
    plan = plan_pb2.Plan.FromString((folder / "plan.pb").read_bytes())
    change(plan)
    (folder / "plan.pb").write_bytes(plan.SerializeToString(deterministic=True))
    rehash(folder)


@pytest.mark.parametrize("profile", ["daf", "secure"])
def test_platform_check_accepts_known_fields(exports, check, profile):
    status, printed = check(exports[profile])
    assert status == 0
    assert printed.count("known fields only") == printed.count("the same when written again") == 2


def test_platform_check_reports_unknown_fields(export, check):
    line = "  int32 version = 9;\n"
    assert line in _PROTO
    status, printed = check(export, plan=_PROTO.replace(line, ""))
    assert status == 1
    assert "1 unknown field: plan.pb" in printed
    assert printed.count("plan.pb: field 9 of Plan") == 1


def test_platform_check_accepts_on_device_personalizations_field(export, check):
    def change(plan):
        spec = plan.phase[0].client_phase.tensorflow_spec
        spec.example_selector.collection_uri = "app:/examples"

    _change_plan(export, change)
    (line,) = (line for line in _PROTO.splitlines() if "= 999;" in line)
    status, printed = check(export, plan=_PROTO.replace(line, ""))
    assert status == 0
    assert "plan.pb, Plan: known fields only, but for On-Device Personalization's 999" in printed


def test_platform_check_reports_unknown_fields_in_graphs(export, check):
    def change(plan):
        graph = plan.server_graph_prepare_bytes
        node = node_def_pb2.NodeDef(name="odd")
        # Field 99 is a message whose field 1 has two bytes.
        node.MergeFromString(b"\x9a\x06\x04\x0a\x02xy")
        graph.value += graph_pb2.GraphDef(node=[node]).SerializeToString()

    _change_plan(export, change)
    status, printed = check(export)
    assert status == 1
    assert "plan.pb: server_graph_prepare_bytes: node: field 99 of NodeDef" in printed


def test_platform_check_rejects_noncanonical_bytes(export, check):
    content = (export / "plan.pb").read_bytes()
    # Writing the message again moves the version field, which is first here.
    (export / "plan.pb").write_bytes(b"\x48\x01" + content)
    rehash(export)
    status, printed = check(export)
    assert status == 1
    assert f"plan.pb, Plan: {len(content) + 2:,} bytes, and others when written again" in printed


@pytest.mark.parametrize(
    ("task", "status", "expected"),
    [
        ({"populationName": "fleet", "totalIteration": "3"}, 0, "known fields only"),
        ({"population": "fleet"}, 1, 'no field named "population"'),
        ({"totalIteration": "many"}, 1, "totalIteration"),
    ],
)
def test_platform_check_validates_task_messages(export, check, task, status, expected):
    (export / "task.json").write_text(json.dumps({"task": task}))
    rehash(export)
    actual, printed = check(export, plan=_PROTO, task=_TASK)
    (line,) = (line for line in printed.splitlines() if line.startswith("  task.json"))
    assert (actual, expected in line) == (status, True)


def test_platform_check_reports_messages_without_definition(export, check):
    (export / "task.json").write_text("{}")
    rehash(export)
    status, printed = check(export, task=_TASK)
    assert status == 0
    assert printed.count("not checked") == 2


def test_invalid_definitions_print_an_error(exports, check):
    status, printed = check(exports["daf"], plan="message {")
    assert status == 2
    assert "--protos: protoc cannot compile" in printed and "Traceback" not in printed
