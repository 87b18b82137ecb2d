"""Errors for export folders that differ from their manifests, and for files with false sizes."""

import io
import json
import os
import shutil
import zipfile

import numpy as np
import pytest
import tensorflow as tf

from plan_runner.errors import PlanError
from plan_runner.export import check_frames, open_export, read_arrays
from plan_runner.graph_check import check_bounds, tensor_bytes
from tests.plan_runner.exports import rehash, write_client
from tests.plan_runner.refusals import refusal
from tests.support import golden


@pytest.fixture
def folder(exports, tmp_path):
    return shutil.copytree(exports["daf"], tmp_path / "export")


def refused(folder) -> str:
    return refusal(open_export, folder)


def change(folder, **changes):
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_opened_export_reads_checked_content(folder):
    (folder / "plan.pb").rename(folder / "real.pb")
    (folder / "plan.pb").symlink_to("real.pb")
    rehash(folder)
    export = open_export(folder)
    assert export.read("plan.pb") == (folder / "real.pb").read_bytes()
    assert export.manifest.conformance.clients == ("ann", "bob", "cyd")
    os.truncate(folder / "real.pb", 10)
    with pytest.raises(PlanError, match="expected the manifest's sha256, the file has changed"):
        export.read("plan.pb")


def test_missing_folder_or_manifest_raises(tmp_path):
    assert refused(tmp_path / "x").endswith("x: expected the folder of an export, found none")
    assert "expected the file manifest.json, found none" in refused(tmp_path)


def test_changed_or_missing_file_raises(folder):
    path = folder / "plan.pb"
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    assert f"plan.pb: expected {len(content)} bytes as in the manifest, found" in refused(folder)
    path.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    assert "plan.pb: expected the sha256 " in refused(folder)
    path.unlink()
    assert "plan.pb: expected the manifest's file, found none" in refused(folder)
    path.mkdir()
    assert "plan.pb: expected the manifest's file, found none" in refused(folder)


@pytest.mark.parametrize(
    "name",
    ["plan.pb", "server_state.ckpt", "conformance/round_2.npz", "conformance/clients/bob.tfrecord"],
)
def test_manifest_without_a_needed_file_raises(folder, name):
    files = json.loads((folder / "manifest.json").read_text())["files"]
    del files[name]
    change(folder, files=files)
    assert f"manifest.json: files: expected '{name}', found none" in refused(folder)


@pytest.mark.parametrize("name", ["a/../../secret", "", ".", "./plan.pb", "a//b", "a\0b"])
def test_open_export_rejects_paths_outside(folder, name):
    files = json.loads((folder / "manifest.json").read_text())["files"]
    change(folder, files={**files, name: {"sha256": "0" * 64, "bytes": 1}})
    assert f"expected paths within the export, found {name!r}" in refused(folder)


def test_open_export_rejects_unlisted_links(folder, tmp_path):
    (folder / "more").symlink_to(tmp_path)
    assert "more: expected the manifest's files only, found this one" in refused(folder)


@golden.values
def test_open_export_rejects_manifests_with_wrong_parts(folder, case):
    change(folder, **case)
    error = refused(folder)
    assert error.startswith("manifest.json: ")
    return error


@pytest.mark.parametrize("content", [b"", b"\xff", b"[" * 100_000, b"[]"])
def test_open_export_rejects_invalid_manifests(folder, content):
    (folder / "manifest.json").write_bytes(content)
    assert refused(folder).startswith("manifest.json: expected ")


# --- Files that claim false sizes raise errors


def test_arrays_read_from_archives_equal_numpys(tmp_path):
    half = tf.bfloat16.as_numpy_dtype
    arrays = {
        "server/0": np.arange(6, dtype=np.float32).reshape(2, 3),
        "text": np.array([b"ab", b"c"]),
        "empty": np.zeros([0, 5], np.int64),
        "scalar": np.float64(0.5),
        "in_columns": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "half": np.array([1.5, 2.5], half),
    }
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "file.npz", **arrays)
        loaded = read_arrays(tmp_path / "file.npz", 1.0)
        with np.load(tmp_path / "file.npz") as expected:
            assert set(loaded) == set(expected)
            for name in expected:
                assert loaded[name].dtype == expected[name].dtype
                np.testing.assert_array_equal(loaded[name], expected[name])


def test_archive_limit_applies_to_all_members_together(tmp_path):
    np.savez_compressed(tmp_path / "file.npz", a=np.zeros(50_000), b=np.zeros(50_000))
    assert len(read_arrays(tmp_path / "file.npz", 0.81)) == 2
    with pytest.raises(PlanError, match=r"expected at most 0.79 MB when unpacked .*, found 0.8 MB"):
        read_arrays(tmp_path / "file.npz", 0.79)


def test_member_larger_than_claimed_raises(tmp_path):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", bytes(1_000_000))
    content = bytearray(file.getvalue())
    entry = content.rindex(b"PK\x01\x02")
    content[entry + 24 : entry + 28] = (64).to_bytes(4, "little")
    (tmp_path / "file.npz").write_bytes(content)
    with pytest.raises(PlanError, match=r"expected an .npz file, cannot read it"):
        read_arrays(tmp_path / "file.npz", 0.5)


def test_file_truncated_within_a_record_raises(tmp_path):
    path, records = tmp_path / "file", [b"", b"abc", b"x" * 30]
    write_client(path, records)
    content = path.read_bytes()
    # A file that is truncated between two records is valid, but has fewer records.
    ends = [sum(16 + len(r) for r in records[:n]) for n in range(len(records) + 1)]
    for length in range(len(content) + 1):
        path.write_bytes(content[:length])
        if length in ends:
            check_frames(path, len(records))
        else:
            with pytest.raises(PlanError, match="expected a TFRecord file, cannot read it"):
                check_frames(path, len(records))


def test_tensor_bytes_is_the_size_of_unpacked_values():
    assert tensor_bytes(tf.make_tensor_proto(np.zeros([3, 5], np.float64))) == 120
    assert tensor_bytes(tf.make_tensor_proto(1.0, shape=[7])) == 28
    assert tensor_bytes(tf.make_tensor_proto("text")) == 1
    assert tensor_bytes(tf.make_tensor_proto(np.zeros([0, 1 << 40], np.int8))) == 0


def _graph(**calls):
    graph = tf.compat.v1.GraphDef()
    for name, called in calls.items():
        function = graph.library.function.add()
        function.signature.name = name
        for number, other in enumerate(called):
            node = function.node_def.add(name=f"n{number}", op=other if number % 2 else "If")
            if not number % 2:
                node.attr["then_branch"].func.name = other
    return graph


def test_nested_function_calls_are_accepted():
    for calls in (
        {"a": "bb", "b": "cc", "c": "d", "d": ""},
        {"a": "bc", "b": "d", "c": "d", "d": ""},
        # These nested calls are deeper than Python's recursion limit.
        {str(n): (str(n + 1),) for n in range(5000)},
    ):
        check_bounds(_graph(**calls), "graph")


@pytest.mark.parametrize("calls", [{"a": "a"}, {"a": "b", "b": "cd", "c": "", "d": "eb", "e": ""}])
def test_recursive_functions_raise(calls):
    with pytest.raises(PlanError, match=r"^graph: function [ab]: recursion is not allowed"):
        check_bounds(_graph(**calls), "graph")


def test_constant_limit_applies_to_all_constants_together():
    graph = tf.compat.v1.GraphDef()
    for number in range(5):
        if number == 4:
            check_bounds(graph, "graph")
        node = graph.node.add(name=f"n{number}", op="Const")
        node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(1.0))
        node.attr["value"].tensor.tensor_shape.dim.add(size=1 << 26)
    with pytest.raises(PlanError, match=r"^graph: n4: expected constants of at most 1 GiB in a"):
        check_bounds(graph, "graph")
