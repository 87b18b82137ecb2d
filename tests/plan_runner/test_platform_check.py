"""The tool that reads exports with the platform's own definitions, which whoever checks fetches.

Here they are those of the runner, with changes.
"""

import json
import shutil
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2
from tensorflow.core.framework import graph_pb2, node_def_pb2

from plan_runner import plan_pb2
from tests.plan_runner.exports import rehash
from tools.platform_check import main

pytest.importorskip("grpc_tools")

_PROTO = Path(plan_pb2.__file__).with_name("plan.proto").read_text()
_TASK = """
syntax = "proto3";
package google.ondevicepersonalization.federatedcompute.proto;
message Task { string population_name = 1; int64 total_iteration = 3; }
message CreateTaskRequest { Task task = 1; }
"""
# A message with one field that nobody knows: number 1, of two bytes.
_FOREIGN = descriptor_pb2.FileDescriptorProto(name="xy").SerializeToString()


@pytest.fixture
def export(exports, tmp_path):
    folder = tmp_path / "export"
    shutil.copytree(exports["daf"], folder)
    return folder


@pytest.fixture
def check(tmp_path, capfd):
    """Checks an export with definitions; returns the status, and what was printed."""
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
def test_what_the_definitions_know(exports, check, profile):
    status, printed = check(exports[profile])
    assert status == 0
    assert printed.count("known fields only") == printed.count("the same when written again") == 2


@pytest.mark.parametrize(
    ("line", "file", "found"),
    [
        ("  int32 version = 9;\n", "plan.pb", "plan.pb: field 9 of Plan"),
        (
            "  string collection_uri = 2;\n",
            "client_only_plan.pb",
            "phase: tensorflow_spec: example_selector: field 2 of ExampleSelector",
        ),
    ],
)
def test_a_field_that_they_do_not_know_is_named(export, check, line, file, found):
    if file == "client_only_plan.pb":
        device = plan_pb2.ClientOnlyPlan.FromString((export / file).read_bytes())
        selector = device.phase.tensorflow_spec.example_selector
        selector.collection_uri = "app:/examples"
        (export / file).write_bytes(device.SerializeToString(deterministic=True))
        rehash(export)
    assert line in _PROTO
    status, printed = check(export, plan=_PROTO.replace(line, ""))
    assert status == 1
    assert f"1 unknown field: {file}" in printed
    assert printed.count(found) == 1


def test_on_device_personalizations_own_field_is_told_and_no_fault(export, check):
    def change(plan):
        spec = plan.phase[0].client_phase.tensorflow_spec
        spec.example_selector.collection_uri = "app:/examples"

    _change_plan(export, change)
    (line,) = (line for line in _PROTO.splitlines() if "= 999;" in line)
    status, printed = check(export, plan=_PROTO.replace(line, ""))
    assert status == 0
    assert "plan.pb, Plan: known fields only, but for On-Device Personalization's 999" in printed


def test_an_unknown_field_in_a_graph(export, check):
    def change(plan):
        graph = plan.server_graph_prepare_bytes
        node = node_def_pb2.NodeDef(name="odd")
        foreign = b"\x9a\x06" + bytes([len(_FOREIGN)]) + _FOREIGN  # field 99
        node.MergeFromString(foreign)
        graph.value += graph_pb2.GraphDef(node=[node]).SerializeToString()

    _change_plan(export, change)
    status, printed = check(export)
    assert status == 1
    assert "plan.pb: server_graph_prepare_bytes: node: field 99 of NodeDef" in printed


def test_other_bytes_when_written_again(export, check):
    content = (export / "plan.pb").read_bytes()
    # The version, before what it is written after.
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
def test_the_task_message(export, check, task, status, expected):
    (export / "task.json").write_text(json.dumps({"task": task}))
    rehash(export)
    found, printed = check(export, plan=_PROTO, task=_TASK)
    (line,) = (line for line in printed.splitlines() if line.startswith("  task.json"))
    assert (found, expected in line) == (status, True)


def test_what_is_not_defined_is_said(export, check):
    (export / "task.json").write_text("{}")
    rehash(export)
    status, printed = check(export, task=_TASK)
    assert status == 0
    assert printed.count("not checked") == 2


def test_no_message_at_all_is_no_success(export, check):
    status, printed = check(export, other='syntax = "proto3"; message Other {}')
    assert status == 2
    assert "--protos: expected" in printed


@pytest.mark.parametrize(
    ("definitions", "expected"),
    [
        ({"plan": "message {"}, "--protos: protoc cannot compile"),
        ({}, "--protos: expected .proto files in"),
    ],
)
def test_definitions_that_are_none(export, tmp_path, capfd, definitions, expected):
    for name, content in definitions.items():
        (tmp_path / f"{name}.proto").write_text(content)
    (tmp_path / "empty").mkdir()
    folder = tmp_path if definitions else tmp_path / "empty"
    assert main([f"--protos={folder}", f"--plan={export}"]) == 2
    printed = capfd.readouterr().err
    assert f"check_against_platform: {expected}" in printed
    assert "Traceback" not in printed


def test_a_damaged_export(export, check):
    (export / "plan.pb").write_bytes(b"")
    status, printed = check(export)
    assert status == 2
    assert "plan.pb" in printed
