"""Rounds of a fleet, plain and with secure sums, equal run_plan's."""

from __future__ import annotations

import json
import shutil

import pytest

from fleet.player import Player, sum_plan
from fleet.secure_aggregation.messages import Type, list_message
from fleet.settings import Timeouts, manifest_sha256
from fleet.wire import Kind, Message, decoded, refusal_text
from plan_runner.errors import PlanError
from plan_runner.export import DEFAULT_LIMITS
from tests.fleet.fleet import Fleet, LocalChannel
from tests.plan_runner.exports import rehash, write_clients

_CLIENTS = {"ann": [(1.0, 4), (2.0, 5)], "bob": [(3.0, 6)], "cyd": [], "dee": [(0.1, 1)] * 3}
# Requests in their order; True if the sum contains a node that does not answer the request.
_SECURE = {"BEGIN": False, "ROSTER": False, "DELIVERY": False, "SURVIVORS": True, "VOTES": True}
_STAGES = {"secure": _SECURE, "daf": {"WORK": False}}


@pytest.fixture(scope="module", params=["secure", "daf"])
def fleet(request, exports, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    export = folder / "export"
    shutil.copytree(exports[request.param], export)
    rehash(export, privacy={"maximum_clients_per_round": 6})
    made = Fleet(folder / "fleet", export, write_clients(folder / "clients", _CLIENTS))
    made.profile = request.param
    yield made
    made.close()


@pytest.fixture
def secure_fleet(fleet):
    if fleet.profile != "secure":
        pytest.skip("about secure sums")
    return fleet


def metrics(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["metrics"] for line in lines]


def served(fleet, folder, rounds, channel=None, stop="", player=None, **changes):
    """Runs rounds of the server; returns the listener."""
    channel = channel or LocalChannel(fleet.nodes())
    changes = {"cohort_size": 4, **changes}
    return fleet.serve(folder / "server", rounds, channel, stop, player, **changes)


def state(folder) -> bytes:
    return (folder / "server" / "server_state.ckpt").read_bytes()


def events(folder, *names):
    lines = (folder / "server" / "rounds.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] in names]


@pytest.mark.nightly_cases("daf")
@pytest.mark.slow
def test_resumed_rounds_equal_run_plan(fleet, tmp_path):
    served(fleet, tmp_path, 3, stop="training 2: next state written")
    recorder = served(fleet, tmp_path, 3, player=Player)
    assert state(tmp_path) == fleet.simulated(tmp_path, [fleet.names] * 3)
    assert metrics(tmp_path / "server") == metrics(tmp_path / "run_plan")
    assert len(recorder.lines) == 2


@pytest.mark.slow
def test_node_that_dies_at_any_stage_is_excluded(fleet, tmp_path):
    """In each round, another node dies at another stage; it is back in the next round."""
    stages = _STAGES[fleet.profile]
    cohorts, dead = [], {}
    for number, is_in_sum in enumerate(stages.values(), 1):
        node = fleet.names[number % 4]
        dead[number] = node, list(stages)[number - 1 :]
        cohorts.append([name for name in fleet.names if is_in_sum or name != node])
    channel = LocalChannel(fleet.nodes())

    def is_lost(node, stage):
        victim, lost = dead.get(channel.round, ("", []))
        return node == victim and stage in lost

    channel.lost = is_lost
    recorder = served(fleet, tmp_path, len(stages), channel, rest_rounds=0)
    assert [event["names"] for event in events(tmp_path, "done")] == cohorts
    assert state(tmp_path) == fleet.simulated(tmp_path, cohorts)
    assert sum("no answer" in line for line in recorder.lines) >= len(stages)


@pytest.mark.nightly_cases("secure")
@pytest.mark.slow
def test_server_killed_at_any_step_resumes(fleet, tmp_path):
    recorder = served(fleet, tmp_path / "once", 1)
    steps = [step.removeprefix("training 1: ") for step in recorder.steps]
    assert steps[0] == "begun" and steps[-1] == "state replaced"
    channel = LocalChannel(fleet.nodes())
    for number, step in enumerate(steps, 1):
        stop = f"training {number}: {step}"
        assert served(fleet, tmp_path, number, channel, stop).steps[-1] == stop
        before = len(channel.carried)
        served(fleet, tmp_path, number, channel)
        asked = {stage for _, stage, _, _ in channel.carried[before:]} - {"HELLO"}
        # The server does not repeat requests whose answers are on disk.
        assert asked == set(_STAGES[fleet.profile]) - set(_done(fleet.profile, steps, step))
    rounds = len(steps)
    assert state(tmp_path) == fleet.simulated(tmp_path, [fleet.names] * rounds)
    assert [event["round"] for event in events(tmp_path, "begun")] == [*range(1, rounds + 1)]
    assert not events(tmp_path, "given up")
    assert not list((tmp_path / "server").glob("*_sums"))
    assert not list((tmp_path / "server").glob("*_sessions/*.session"))
    assert len(metrics(tmp_path / "server")) == rounds


def _done(profile, steps, step):
    """Returns the requests whose answers are on disk after a step."""
    if step in ("done", "state replaced"):
        return list(_STAGES[profile])
    if profile == "daf":
        return []
    answers = ["KEYS", "SHARES", "MASKED", "VOTE"]
    reached = steps.index(step)
    return [r for r, answer in zip(_SECURE, answers) if steps.index(answer) <= reached]


@pytest.mark.slow
def test_too_few_nodes_raise_plan_error(fleet, tmp_path):
    channel = LocalChannel(fleet.nodes())
    channel.lost = lambda node, stage: stage in ("DELIVERY", "WORK") and node in ("ann", "bob")
    with pytest.raises(PlanError, match="training 1: given up 2 times, the last time: ") as caught:
        served(fleet, tmp_path, 1, channel, attempts=2)
    assert "\n" not in str(caught.value)
    assert len({event["session"] for event in events(tmp_path, "begun")}) == 2
    # When the nodes are back, the round runs with new keys.
    served(fleet, tmp_path, 1)
    assert state(tmp_path) == fleet.simulated(tmp_path, [fleet.names])


@pytest.mark.slow
def test_absent_nodes_are_reported(fleet, tmp_path):
    nodes = {name: node for name, node in fleet.nodes().items() if name != "dee"}
    recorder = served(fleet, tmp_path, 1, LocalChannel(nodes))
    assert recorder.lines[0] == "training: round 1: 3 of 4 nodes are there, without dee"
    del nodes["bob"]
    with pytest.raises(PlanError, match=r"at least 3 nodes .*, found 2, without bob, dee$"):
        served(fleet, tmp_path, 2, LocalChannel(nodes))


@pytest.mark.slow
def test_server_waits_for_patience_or_timeout(fleet, tmp_path, monkeypatch):
    """Patience applies once enough nodes have answered; until then, the timeout applies."""
    monkeypatch.setattr("fleet.members._NOT_LATE_SECONDS", 0.01)
    channel = LocalChannel(fleet.nodes())
    stage, name = {"secure": ("ROSTER", "shares"), "daf": ("WORK", "work")}[fleet.profile]
    channel.lost = lambda node, asked: node == "dee" and asked == stage
    recorder = served(fleet, tmp_path, 1, channel, timeouts=Timeouts(300, 300, 300, patience=3))
    (late,) = [
        exchange for _, _, exchange in recorder.exchanges if exchange.answered < exchange.asked
    ]
    assert (late.stage, late.answered) == (name, 3) and late.seconds < 100
    channel.lost = lambda node, asked: node in ("cyd", "dee") and asked == stage
    timeouts = Timeouts(0.5, 0.5, 0.5, patience=1)
    with pytest.raises(PlanError, match="given up 1 time,"):
        served(fleet, tmp_path, 2, channel, timeouts=timeouts, attempts=1, rest_rounds=0)


@pytest.mark.slow
def test_failing_node_is_excluded_without_delay(fleet, tmp_path):
    channel = LocalChannel(fleet.nodes())
    stage = next(iter(_STAGES[fleet.profile]))
    channel.failing = lambda node, asked: (node, asked, channel.round) == ("dee", stage, 1)
    recorder = served(fleet, tmp_path, 4, channel, timeouts=Timeouts(300, 300, 300), rest_rounds=2)
    failed = recorder.exchanges[0][2]
    assert (failed.asked, failed.answered) == (4, 3) and failed.seconds < 100
    assert any("node dee: it answers: nothing" in line for line in recorder.lines)
    cohorts = [event["cohort"] for event in events(tmp_path, "begun")]
    assert [("dee" in cohort) for cohort in cohorts] == [True, False, False, True]


@pytest.mark.slow
def test_server_repeats_requests_for_shares(secure_fleet, tmp_path):
    channel, lost = LocalChannel(secure_fleet.nodes()), ["ann", "bob"]

    def is_lost(node, stage):
        if stage == "VOTES" and node in lost:
            lost.remove(node)
            return True
        return False

    channel.lost = is_lost
    served(secure_fleet, tmp_path, 1, channel)
    assert not lost
    assert state(tmp_path) == secure_fleet.simulated(tmp_path, [secure_fleet.names])


def test_refusal_text_is_one_printable_line():
    text = "\ud800round 9: epsilon 0.01\n\x1b[2Jno \x00 end" + "x" * 5000
    shown = refusal_text(decoded(Message(Kind.REFUSED, {"words": text}).encoded(), "answer"))
    assert shown.startswith("round 9: epsilon 0.01 [2Jno end")
    assert len(shown.encode()) == 1000 and shown.isprintable()


@pytest.mark.slow
def test_plan_can_increase_minimum_number_of_clients(secure_fleet, tmp_path):
    export = shutil.copytree(secure_fleet.export, tmp_path / "export")
    limits = {"maximum_clients_per_round": 6, "minimum_clients_per_round": 5}
    rehash(export, privacy=limits)
    sha256 = manifest_sha256(export)
    about = secure_fleet.player(export, sha256, DEFAULT_LIMITS, False).about
    assert [sum_plan(sha256, about, n).min_clients for n in (3, 6)] == [5, 6]


@pytest.mark.slow
def test_logs_do_not_depend_on_examples(secure_fleet, tmp_path, caplog, capfd):
    """Rounds of other examples, with equal counts, give equal logs."""
    caplog.set_level("DEBUG")
    logs = []
    for shift in (0, 3):
        examples = {n: [(x, i + shift) for x, i in pairs] for n, pairs in _CLIENTS.items()}
        write_clients(secure_fleet.clients, examples)
        caplog.clear()
        recorder = served(secure_fleet, tmp_path / str(shift), 1)
        journal = events(tmp_path / str(shift), "begun", "done")
        digests = ("session", "before", "after")
        steps = [{k: v for k, v in event.items() if k not in digests} for event in journal]
        logs.append((recorder.lines, steps, caplog.messages, capfd.readouterr()))
    assert logs[0] == logs[1]
    assert state(tmp_path / "0") != state(tmp_path / "3")


@pytest.mark.slow
def test_node_rejects_invalid_messages_and_other_plans(fleet):
    node, manifest = fleet.nodes()["ann"], manifest_sha256(fleet.export)

    def words_in(answer):
        message = decoded(answer, "answer")
        assert message.kind == Kind.REFUSED and "\n" not in message.head["words"]
        return message.head["words"]

    def asked(kind, *parts, **head):
        return node.answer(
            Message(kind, {"tag": "x", "manifest": manifest, **head}, parts).encoded()
        )

    def greeted(**changes):
        head = {"sums": "", "challenge": bytes(32).hex(), "min_clients": 3, **changes}
        return asked(Kind.HELLO, **head)

    assert decoded(greeted(), "answer").head["tag"] == "x"
    assert "expected a message of this fleet" in words_in(node.answer(b"nonsense"))
    newer = Message(Kind.HELLO, {}).encoded().replace(b"FLEET\x01", b"FLEET\x02")
    assert "expected version 1 of the fleet's messages, found 2" in words_in(node.answer(newer))
    assert "expected a request, found WELCOME" in words_in(asked(Kind.WELCOME))
    # Answers repeat the request's tag, so its length is limited.
    assert "tag: expected at most 64" in words_in(asked(Kind.HELLO, tag="x" * 65_000))
    assert "operator of this node has pinned" in words_in(greeted(manifest="0" * 64))
    assert "manifest: expected 64 hexadecimal" in words_in(greeted(manifest="x"))
    stage = words_in(asked(Kind.STAGE, list_message(Type.ROSTER, bytes(32), ())))
    work = words_in(asked(Kind.WORK, b"x", id="0" * 64))
    if fleet.profile == "secure":
        assert words_in(greeted(min_clients=4)).startswith("min_clients: expected 3")
        assert words_in(greeted()).startswith("secure sums: expected this node's settings")
        assert stage == "session 0000000000000000: expected a session that has begun, found ROSTER"
        assert "expected secure aggregation for this plan" in work
    else:
        assert decoded(greeted(), "answer").kind == Kind.WELCOME
        assert "expected plain sums for this plan" in stage
        # More details could reveal examples to the server.
        assert work == "the client's work failed on this node, whose log says why"
