"""Settings, messages and the state folder of a fleet."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path

import pytest

from fleet import keys
from fleet.node_noise.noise import PrivacyRequirements
from fleet.settings import (
    DataSettings,
    NodeSettings,
    PlanSettings,
    ServerSettings,
    Timeouts,
    manifest_sha256,
    read_identity,
    read_node_settings,
    read_roster,
    read_server_settings,
)
from fleet.state_folder import DRAWN, GIVEN_UP, RoundJournal, StartedRound, StateFolder
from fleet.wire import Kind, Message, decoded
from plan_runner.export import TRAINING, Limits
from tests.plan_runner.refusals import refusal
from tests.support import golden

_NODE = f"""
export = "export"
manifest_sha256 = "{"0" * 64}"
identity = "a.key"
roster = "roster.toml"
state = "state"
limits = {{ max_records = 7 }}
"""
_DATA = "data = { tfrecord = 'a.tfrecord' }\n"
_SERVER = 'export = "export"\nroster = "roster.toml"\nstate = "state"\n'
_PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "fleet_settings.md"


@pytest.mark.parametrize(
    ("heading", "kind"),
    [
        ("server.toml", ServerSettings),
        ("node.toml", NodeSettings),
        ("The table data", DataSettings),
        ("The table evaluation", PlanSettings),
        ("The table privacy", PrivacyRequirements),
        ("The table timeouts", Timeouts),
        ("The table limits", Limits),
    ],
)
def test_documentation_lists_settings_with_defaults(heading, kind):
    _, section = re.split(rf"^## {re.escape(heading)}\n", _PAGE.read_text(), flags=re.MULTILINE)
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", section.split("\n## ")[0], re.MULTILINE)
    assert rows == [(field.name, _as_written(field)) for field in dataclasses.fields(kind)]


def _as_written(field: dataclasses.Field) -> str:
    default = field.default
    if field.default_factory is not dataclasses.MISSING:
        default = field.default_factory()
    if default is dataclasses.MISSING:
        return "required"
    if dataclasses.is_dataclass(default):
        return "see below"
    if isinstance(default, float):
        return f"{default:g}"
    return "none" if default is None else json.dumps(default)


def test_paths_are_relative_to_the_file(tmp_path):
    file = tmp_path / "node.toml"
    file.write_text(_NODE + "data = { client = 'ann', store = 's' }\n")
    node = read_node_settings(file)
    assert node.export == tmp_path / "export" and node.limits.max_records == 7
    assert node.data == DataSettings(store=tmp_path / "s", client="ann")
    assert node.min_clients == 3 and node.evaluation is None
    (tmp_path / "server.toml").write_text(f"{_SERVER}timeouts = {{ work = 5 }}\n")
    assert read_server_settings(tmp_path / "server.toml").timeouts == Timeouts(work=5.0)


@golden.values
def test_server_settings_reject_invalid_values(tmp_path, case):
    (tmp_path / "server.toml").write_text(f"{_SERVER}{case}\n")
    return refusal(read_server_settings, tmp_path / "server.toml")


@golden.values
def test_data_settings_reject_invalid_values(tmp_path, case):
    (tmp_path / "node.toml").write_text(f"{_NODE}data = {{ {case} }}\n")
    return refusal(read_node_settings, tmp_path / "node.toml")


@pytest.mark.parametrize("mode", [0o644, 0o600])
def test_identity_file_must_have_mode_600(tmp_path, mode):
    key = tmp_path / "a.key"
    key.write_text(f"{'ab' * 32}\n")
    key.chmod(mode)
    if mode == 0o600:
        assert read_identity(key) == b"\xab" * 32
        key.write_text("ab")
        assert "64 hexadecimal digits, found 2" in refusal(read_identity, key)
    else:
        assert "found mode 644: chmod 600" in refusal(read_identity, key)


@golden.values
def test_roster_rejects_invalid_identities(tmp_path, case):
    (tmp_path / "roster.toml").write_text(case)
    return refusal(read_roster, tmp_path / "roster.toml")


def test_missing_files_raise_plan_errors(tmp_path):
    assert "cannot read it (No such file" in refusal(read_node_settings, tmp_path / "node.toml")
    assert "expected the file manifest.json, found none" in refusal(manifest_sha256, tmp_path)
    assert "expected the folder of an export" in refusal(manifest_sha256, tmp_path / "export")
    (tmp_path / "node.toml").write_text(_NODE.replace("0" * 64, "x") + _DATA)
    assert "manifest_sha256: expected 64" in refusal(read_node_settings, tmp_path / "node.toml")


def test_message_has_one_encoding():
    message = Message(Kind.WORK, {"tag": "x"}, (b"", b"abc"))
    data = message.encoded()
    read = decoded(data, "here")
    assert (read.kind, read.head, read.parts) == (Kind.WORK, {"tag": "x"}, (b"", b"abc"))
    for end in range(len(data)):
        assert refusal(decoded, data[:end], "here").startswith("here: expected ")
    assert "parts that fill the message" in refusal(decoded, data + b"x", "here")
    assert "expected a known kind" in refusal(decoded, data[:6] + b"\xff" + data[7:], "here")
    assert "tag: expected int, found str" in refusal(read.get, "tag", int)


def open_journal(folder) -> tuple[StateFolder, RoundJournal]:
    state_folder = StateFolder(folder)
    return state_folder, RoundJournal(state_folder, TRAINING, "0" * 64, b"initial")


def test_second_server_in_a_state_folder_raises(tmp_path):
    state_folder, _ = open_journal(tmp_path)
    assert "expected one server" in refusal(StateFolder, tmp_path)
    state_folder.close()
    StateFolder(tmp_path).close()


def test_journal_resumes_after_each_step(tmp_path):
    state_folder, journal = open_journal(tmp_path)
    journal.begin(1, StartedRound(b"s" * 32, ("a", "b")))
    journal.write(GIVEN_UP, 1, why="too few", asked_to_open=False)
    journal.begin(1, StartedRound(b"t" * 32, ("a", "b")))
    state_folder.close()
    state_folder, journal = open_journal(tmp_path)
    assert journal.completed == 0 and journal.state == b"initial"
    assert journal.pending(1) == journal.pending() == (b"t" * 32, ("a", "b"))
    assert journal.pending(2) is None and journal.drawn(1) is None
    journal.write(DRAWN, 1, cohort=["a", "b"])
    state_folder.close()
    state_folder, journal = open_journal(tmp_path)
    assert journal.drawn(1) == ["a", "b"]
    row = {"round": 1, "clients": 2, "metrics": {"loss": [0.5, None], "n": 3}}
    journal.finish(1, b"after", row, {"clients": 2})
    state_folder.close()
    # A server that is killed while it writes leaves an incomplete line.
    with open(tmp_path / "rounds.jsonl", "ab") as file:
        file.write(b'{"event": "beg')
    state_folder, journal = open_journal(tmp_path)
    assert journal.completed == 1 and journal.state == b"after" and journal.pending() is None
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == row
    state_folder.close()
    (tmp_path / "server_state.ckpt").write_bytes(b"other")
    assert "expected the state after round 1, with the sha256" in refusal(open_journal, tmp_path)


def test_changed_journal_raises(tmp_path):
    state_folder, _ = open_journal(tmp_path)
    result = refusal(RoundJournal, state_folder, TRAINING, "1" * 64, b"initial")
    assert "expected rounds of the manifest 1111" in result
    state_folder.close()
    for line in (
        '{"event": "begun"}',
        "[]",
        '{"kind": "training"}',
        '{"event": "began", "kind": "training"}',
        '{"event": [], "kind": "training"}',
        '{"event": "begun", "kind": []}',
        '[["event", "begun"], ["kind", "training"]]',
    ):
        (tmp_path / "rounds.jsonl").write_text(f"{line}\n")
        assert "rounds.jsonl, line 1: expected" in refusal(open_journal, tmp_path)


def test_journal_without_plan_raises_and_keeps_the_state(tmp_path):
    state_folder, journal = open_journal(tmp_path)
    begun = (tmp_path / "rounds.jsonl").read_bytes()
    (tmp_path / "rounds.jsonl").write_bytes(b"")
    state_folder.close()
    # If a server is killed before it writes the plan's event, the initial state is left.
    state_folder, journal = open_journal(tmp_path)
    journal.begin(1, StartedRound(b"s" * 32, ("a", "b")))
    state_folder.close()
    events = (tmp_path / "rounds.jsonl").read_bytes().removeprefix(begun)
    for content, state in ((events, b"initial"), (b"", b"after")):
        (tmp_path / "rounds.jsonl").write_bytes(content)
        (tmp_path / "server_state.ckpt").write_bytes(state)
        state_folder = StateFolder(tmp_path)
        message = refusal(RoundJournal, state_folder, TRAINING, "0" * 64, b"initial")
        assert "rounds.jsonl: expected the plan of the existing state" in message
        state_folder.close()
        assert (tmp_path / "server_state.ckpt").read_bytes() == state


def test_leftover_partial_files_are_removed(tmp_path):
    keys.make_node_keys(tmp_path / "a", "a")
    for make in (
        StateFolder,
        lambda folder: keys.make_node_keys(folder, "b"),
        lambda folder: keys.make_server_keys(folder, ["here"], [tmp_path / "a/a.public.toml"], 1),
    ):
        folder = tmp_path / "folder"
        folder.mkdir()
        (folder / ".partial_abc").write_bytes(b"a secret")
        make(folder)
        assert not list(folder.glob(".partial_*"))
        shutil.rmtree(folder)


def test_full_disk_keeps_the_journal(tmp_path, monkeypatch):
    state_folder, journal = open_journal(tmp_path)
    before = (tmp_path / "rounds.jsonl").read_bytes()

    def full(file):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    assert "(No space left on device)" in refusal(journal.write, GIVEN_UP, 1)
    assert (tmp_path / "rounds.jsonl").read_bytes() == before
    state_folder.close()
