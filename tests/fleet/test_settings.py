"""Settings, keys, messages and the state folder of a fleet: what is wrong is one line."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

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
from fleet.state_folder import RoundJournal, StartedRound, StateFolder
from fleet.wire import Kind, Message, decoded
from plan_runner.errors import PlanError
from plan_runner.export import TRAINING, Limits

_NODE = """
export = "export"
manifest_sha256 = "{pin}"
identity = "a.key"
roster = "roster.toml"
state = "state"
data = {{ tfrecord = "a.tfrecord" }}
limits = {{ max_records = 7 }}
"""
_SERVER = 'export = "export"\nroster = "roster.toml"\nstate = "state"\n'


def refused(function, *arguments) -> str:
    with pytest.raises(PlanError) as caught:
        function(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


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
def test_the_page_has_each_setting_with_its_default(heading, kind):
    _, section = re.split(rf"^## {re.escape(heading)}\n", _PAGE.read_text(), flags=re.MULTILINE)
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", section.split("\n## ")[0], re.MULTILINE)
    assert rows == [(field.name, _as_written(field)) for field in dataclasses.fields(kind)]


def _as_written(field: dataclasses.Field) -> str:
    if field.default is not dataclasses.MISSING:
        default = field.default
    elif field.default_factory is not dataclasses.MISSING:
        default = field.default_factory()
    else:
        return "required"
    if dataclasses.is_dataclass(default):
        return "see below"
    if isinstance(default, float):
        return f"{default:g}"
    return "none" if default is None else json.dumps(default)


def test_paths_are_relative_to_the_file(tmp_path):
    file = tmp_path / "node.toml"
    file.write_text(_NODE.format(pin="0" * 64))
    settings = read_node_settings(file)
    assert settings.export == tmp_path / "export"
    assert settings.data.tfrecord == tmp_path / "a.tfrecord"
    assert settings.limits.max_records == 7
    file.write_text(file.read_text().replace("tfrecord = ", "client = 'ann', store = "))
    assert read_node_settings(file).data == DataSettings(
        store=tmp_path / "a.tfrecord", client="ann"
    )
    assert settings.min_clients == 3 and settings.evaluation is None
    (tmp_path / "server.toml").write_text(f"{_SERVER}timeouts = {{ work = 5 }}\nseed = 3\n")
    server = read_server_settings(tmp_path / "server.toml")
    assert server.timeouts.work == 5.0 and server.timeouts.keys == 60.0 and server.seed == 3


@pytest.mark.parametrize(
    ("added", "message"),
    [
        ("cohort = 3", "server.toml: expected some of export, roster, state,"),
        ("cohort_size = 'x'", "server.toml: cohort_size: expected a whole number, found 'x'"),
        ("cohort_size = true", "server.toml: cohort_size: expected a whole number, found True"),
        ("cohort_size = 2", "server.toml: cohort_size: expected at least 3, found 2"),
        (
            "sampling = 'lots'",
            "sampling: expected one of uniform, poisson, by_domain, found 'lots'",
        ),
        ("sampling = 'poisson'", "sampling: expected a cohort_size with poisson, found none"),
        ("timeouts = { work = 0 }", "timeouts: work: expected seconds above 0, found 0.0"),
        ("timeouts = { patience = 0.5 }", "timeouts: patience: expected at least 1, found 0.5"),
        ("timeouts = 3", "server.toml: timeouts: expected a table, found 3"),
        ("evaluation = { every = 2 }", "evaluation: expected export, found none"),
        ("export = 'again'", "expected a TOML file, cannot read it (Cannot overwrite a value"),
    ],
)
def test_settings_that_are_wrong(tmp_path, added, message):
    (tmp_path / "server.toml").write_text(f"{_SERVER}{added}\n")
    assert message in refused(read_server_settings, tmp_path / "server.toml")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("load = 'a.py'\nstore = 's'", "one of tfrecord, store, load, found store, load"),
        ("config = { a = 1 }", "data: expected one of tfrecord, store, load, found none"),
        ("store = 's'", "data: store: expected the client that this node is, found none"),
        ("load = 'a.py'\nclient = 'a'", "data: client has no effect without store"),
        ("tfrecord = 'a'\nsplit = 'test'", "data: split has no effect without store"),
        ("store = 's'\nclient = 3", "data: client: expected a text, found 3"),
    ],
)
def test_data_that_are_wrong(tmp_path, data, message):
    lines = [line for line in _NODE.format(pin="0" * 64).splitlines() if line[:4] != "data"]
    (tmp_path / "node.toml").write_text("\n".join([*lines, "[data]", data]))
    assert message in refused(read_node_settings, tmp_path / "node.toml")


def test_files_that_are_wrong(tmp_path):
    assert "cannot read it (No such file" in refused(read_node_settings, tmp_path / "node.toml")
    (tmp_path / "node.toml").write_text(_NODE.format(pin="x"))
    found = refused(read_node_settings, tmp_path / "node.toml")
    assert found.endswith("manifest_sha256: expected 64 hexadecimal digits, found 'x'")
    key = tmp_path / "a.key"
    key.write_text(f"{'ab' * 32}\n")
    key.chmod(0o644)
    assert "its owner alone may read, found mode 644: chmod 600" in refused(read_identity, key)
    key.chmod(0o600)
    assert read_identity(key) == b"\xab" * 32
    key.write_text("ab")
    assert "64 hexadecimal digits, found another text" in refused(read_identity, key)
    roster = tmp_path / "roster.toml"
    roster.write_text(f'a = "{"ab" * 32}"\nb = "{"ab" * 32}"\n')
    assert "b: expected a key of its own, found a's" in refused(read_roster, roster)
    roster.write_text("")
    assert "expected identities, found none" in refused(read_roster, roster)
    assert "expected the folder of an export" in refused(manifest_sha256, tmp_path)


def test_a_message_has_one_form():
    message = Message(Kind.WORK, {"tag": "x"}, (b"", b"abc"))
    data = message.encoded()
    found = decoded(data, "here")
    assert (found.kind, found.head, found.parts) == (Kind.WORK, {"tag": "x"}, (b"", b"abc"))
    # Cut anywhere, or longer, it is none.
    for end in range(len(data)):
        assert refused(decoded, data[:end], "here").startswith("here: expected ")
    assert refused(decoded, data + b"x", "here").startswith("here: expected parts that fill")
    assert "expected a known kind" in refused(decoded, data[:6] + b"\xff" + data[7:], "here")
    assert "tag: expected int, found str" in refused(found.get, "tag", int)


def opened(folder) -> tuple[StateFolder, RoundJournal]:
    kept = StateFolder(folder)
    return kept, RoundJournal(kept, TRAINING, "0" * 64, b"initial")


def test_one_server_has_a_folder(tmp_path):
    kept, _ = opened(tmp_path)
    assert "expected one server, another one has this folder" in refused(StateFolder, tmp_path)
    kept.close()
    StateFolder(tmp_path).close()


def test_a_round_is_written_step_by_step(tmp_path):
    kept, track = opened(tmp_path)
    track.begin(1, StartedRound(b"s" * 32, ("a", "b")))
    track.give_up(1, "too few", asked_to_open=False)
    track.begin(1, StartedRound(b"t" * 32, ("a", "b")))
    kept.close()
    kept, track = opened(tmp_path)
    assert track.completed == 0 and track.state == b"initial" and track.attempts(1) == 2
    assert track.pending(1) == (b"t" * 32, ("a", "b"))
    assert track.drawn(1) is None
    track.draw(1, ["a", "b"])
    kept.close()
    kept, track = opened(tmp_path)
    assert track.drawn(1) == ["a", "b"]
    row = {"round": 1, "clients": 2, "metrics": {"loss": [0.5, None], "n": 3}}
    track.finish(1, b"after", row, {"clients": 2})
    kept.close()
    # Half a line of a server that was ended.
    with open(tmp_path / "rounds.jsonl", "ab") as file:
        file.write(b'{"event": "beg')
    kept, track = opened(tmp_path)
    assert track.completed == 1 and track.state == b"after"
    assert (tmp_path / "metrics.csv").read_text() == "round,clients,loss/0,loss/1,n\n1,2,0.5,,3\n"
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == row
    kept.close()
    # Another server's state.
    (tmp_path / "server_state.ckpt").write_bytes(b"other")
    assert "expected the state after round 1, with the sha256" in refused(opened, tmp_path)


def test_changed_journals_are_refused(tmp_path):
    kept, _ = opened(tmp_path)
    kept.close()
    (tmp_path / "rounds.jsonl").write_text('{"event": "begun"}\n')
    assert "rounds.jsonl, line 1: expected an event of a round" in refused(opened, tmp_path)
    (tmp_path / "rounds.jsonl").write_text("")
    kept = StateFolder(tmp_path)
    found = refused(RoundJournal, kept, TRAINING, "1" * 64, b"initial")
    assert "expected rounds of the manifest 1111" in found
    kept.close()


def test_a_full_disk_leaves_whole_events(tmp_path, monkeypatch):
    kept, track = opened(tmp_path)
    track.begin(1, StartedRound(b"s" * 32, ("a",)))
    before = (tmp_path / "rounds.jsonl").read_bytes()

    def full(file):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    found = refused(track.give_up, 1, "why", False)
    assert found == f"{tmp_path}: cannot read or write (No space left on device)"
    assert (tmp_path / "rounds.jsonl").read_bytes() == before
    kept.close()
