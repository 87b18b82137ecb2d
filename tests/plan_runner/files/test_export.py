"""Folders that are not exports, or not as their manifest says."""

import json
import os
import shutil

import pytest

from plan_runner.errors import PlanError
from plan_runner.export import open_export
from tests import golden
from tests.plan_runner.exports import rehash


@pytest.fixture
def folder(exports, tmp_path):
    return shutil.copytree(exports["daf"], tmp_path / "export")


def refused(folder) -> str:
    with pytest.raises(PlanError) as caught:
        open_export(folder)
    message = str(caught.value)
    assert "\n" not in message
    return message


def change(folder, **changes):
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_an_export_opens(folder):
    export = open_export(folder)
    assert export.read("plan.pb") == (folder / "plan.pb").read_bytes()
    assert export.manifest.conformance.clients == ("ann", "bob", "cyd")


def test_no_folder(tmp_path):
    assert refused(tmp_path / "x").endswith("x: expected the folder of an export, found none")
    assert "expected the file manifest.json, found none" in refused(tmp_path)


@pytest.mark.parametrize(
    "name",
    ["plan.pb", "client_only_plan.pb", "server_state.ckpt", "conformance/clients/ann.tfrecord"],
)
def test_every_file_is_checked(folder, name):
    path = folder / name
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    assert f"{name}: expected {len(content)} bytes as in the manifest, found" in refused(folder)
    path.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    assert f"{name}: expected the sha256 " in refused(folder)
    path.unlink()
    assert f"{name}: expected the manifest's file, found none" in refused(folder)
    # As a folder in its place is.
    path.mkdir()
    assert f"{name}: expected the manifest's file, found none" in refused(folder)


@pytest.mark.parametrize(
    "name",
    ["plan.pb", "server_state.ckpt", "conformance/round_2.npz", "conformance/clients/bob.tfrecord"],
)
def test_a_file_that_the_manifest_does_not_name(folder, name):
    files = json.loads((folder / "manifest.json").read_text())["files"]
    del files[name]
    change(folder, files=files)
    assert f"manifest.json: files: expected '{name}', found none" in refused(folder)


def test_a_file_too_many(folder):
    (folder / "conformance" / "extra.txt").write_text("x")
    assert "extra.txt: expected the manifest's files only, found this one" in refused(folder)


def test_a_linked_folder_too_many(folder, tmp_path):
    (folder / "more").symlink_to(tmp_path)
    assert "more: expected the manifest's files only, found this one" in refused(folder)


@pytest.mark.parametrize(
    "name",
    ["../secret", "/etc/passwd", "a/../../secret", "", ".", "./plan.pb", "a//b", "a\0b"],
)
def test_paths_outside(folder, name):
    files = json.loads((folder / "manifest.json").read_text())["files"]
    change(folder, files={**files, name: {"sha256": "0" * 64, "bytes": 1}})
    assert f"expected paths within the export, found {name!r}" in refused(folder)


def test_names_that_no_file_can_have(folder):
    files = json.loads((folder / "manifest.json").read_text())["files"]
    change(folder, files={**files, "\ud800": {"sha256": "0" * 64, "bytes": 1}})
    assert ": expected a file, found " in refused(folder)


@pytest.mark.parametrize("absolute", [True, False])
def test_links_out(folder, tmp_path, absolute):
    path = folder / "plan.pb"
    path.rename(tmp_path / "plan.pb")
    path.symlink_to(tmp_path / "plan.pb" if absolute else "../plan.pb")
    # The content would be right.
    assert "plan.pb: expected a file within the export, it links to another" in refused(folder)


def test_a_linked_folder_out(folder, tmp_path):
    (folder / "conformance").rename(tmp_path / "conformance")
    (folder / "conformance").symlink_to(tmp_path / "conformance")
    assert "expected a file within the export, it links to another" in refused(folder)


def test_the_manifest_itself_as_a_link(folder, tmp_path):
    (folder / "manifest.json").rename(tmp_path / "manifest.json")
    (folder / "manifest.json").symlink_to(tmp_path / "manifest.json")
    assert "manifest.json: expected a file within the export" in refused(folder)


def test_a_loop_of_links(folder):
    (folder / "plan.pb").unlink()
    (folder / "plan.pb").symlink_to("plan.pb")
    assert "plan.pb: expected" in refused(folder)


def test_links_within_are_files_as_any(folder):
    (folder / "plan.pb").rename(folder / "real.pb")
    (folder / "plan.pb").symlink_to("real.pb")
    rehash(folder)
    assert open_export(folder).read("plan.pb")


def test_a_change_after_the_check(folder):
    export = open_export(folder)
    os.truncate(folder / "plan.pb", 10)
    with pytest.raises(PlanError, match="expected the manifest's sha256, it has changed"):
        export.read("plan.pb")


@golden.values
def test_manifests_with_wrong_parts(folder, case):
    change(folder, **case)
    found = refused(folder)
    assert found.startswith("manifest.json: ")
    return found


@pytest.mark.parametrize("part", ["format", "profile", "files", "tensors", "conformance"])
def test_manifests_with_missing_parts(folder, part):
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest[part]
    path.write_text(json.dumps(manifest))
    assert refused(folder) == f"manifest.json: expected the part '{part}', found none"


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 100_000, b"[]", b"3"])
def test_manifests_that_are_none(folder, content):
    (folder / "manifest.json").write_bytes(content)
    assert refused(folder).startswith("manifest.json: expected ")
