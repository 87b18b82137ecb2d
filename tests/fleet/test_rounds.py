"""Rounds of a fleet: real players in sandboxes, real secure sums, and the runner's results."""

from __future__ import annotations

import csv
import json
import shutil

import pytest

from fleet import wire
from fleet.player import Player, sum_plan
from fleet.secure_aggregation.messages import roster_message
from fleet.server import FleetServer
from fleet.settings import Timeouts, manifest_sha256
from fleet.wire import Kind, Message, decoded
from plan_runner.errors import PlanError
from plan_runner.export import DEFAULT_LIMITS
from tests.fleet.fleet import Fleet, LocalChannel, Stopped, Told
from tests.plan_runner.exports import rehash, write_clients
from tests.plan_runner.harness import call

_CLIENTS = {"ann": [(1.0, 4), (2.0, 5)], "bob": [(3.0, 6)], "cyd": [], "dee": [(0.1, 1)] * 3}


@pytest.fixture(scope="module", params=["secure", "daf"])
def fleet(request, exports, tmp_path_factory):
    """Nodes that play small plans."""
    folder = tmp_path_factory.mktemp(request.param)
    export = folder / "export"
    shutil.copytree(exports[request.param], export)
    rehash(export, privacy={"maximum_clients_per_round": 6})
    made = Fleet(folder / "fleet", export, write_clients(folder / "clients", _CLIENTS))
    made.profile = request.param
    yield made
    made.close()


def expected(fleet, folder, cohorts) -> bytes:
    """The state that the runner leads to with the same cohorts."""
    file = folder / "cohorts.txt"
    file.write_text("".join(f"{','.join(names)}\n" for names in cohorts))
    outcome = call(
        f"--plan={fleet.export}",
        f"--clients={fleet.clients}",
        f"--cohorts={file}",
        f"--output={folder / 'run_plan'}",
        "--trust",
    )
    assert outcome.status == 0, outcome
    return (folder / "run_plan" / "server_state.ckpt").read_bytes()


def metrics(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["metrics"] for line in lines]


def served(fleet, folder, rounds, channel=None, stop="", player=None, **changes):
    """Plays rounds; returns what was told."""
    told, channel = Told(stop), channel or LocalChannel(fleet.nodes())
    settings = fleet.server_settings(state=folder / "server", **{"cohort_size": 4, **changes})
    server = FleetServer(settings, channel, told, player or fleet.player)
    try:
        server.run(rounds)
    except Stopped:
        assert stop
    finally:
        server.close()
    return told


def state(folder) -> bytes:
    return (folder / "server" / "server_state.ckpt").read_bytes()


def events(folder, *names):
    lines = (folder / "server" / "rounds.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] in names]


@pytest.mark.nightly_cases("daf")
@pytest.mark.slow
def test_rounds_are_the_runners_bit_for_bit(fleet, tmp_path):
    # Another process goes on in the middle of a round.
    served(fleet, tmp_path, 3, stop="training 2: next state written")
    told = served(fleet, tmp_path, 3, player=Player)
    assert state(tmp_path) == expected(fleet, tmp_path, [fleet.names] * 3)
    assert metrics(tmp_path / "server") == metrics(tmp_path / "run_plan")
    assert len(told.lines) == 2
    with open(tmp_path / "server" / "metrics.csv") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["round"]) for row in rows] == [1, 2, 3]


# The requests in order, and whether a node that gets none from there on is in the sum.
_SECURE = {"BEGIN": False, "ROSTER": False, "DELIVERY": False, "SURVIVORS": True, "VOTES": True}
_STAGES = {"secure": _SECURE, "daf": {"WORK": False}}


@pytest.mark.slow
def test_a_node_that_dies_at_any_stage_is_left_out_whole_or_not_at_all(fleet, tmp_path):
    """Round after round another node dies, at another stage; it is back in the next round."""
    stages = _STAGES[fleet.profile]
    cohorts, dead = [], {}
    for number, is_in_sum in enumerate(stages.values(), 1):
        node = fleet.names[number % 4]
        dead[number] = node, list(stages)[number - 1 :]
        cohorts.append([name for name in fleet.names if is_in_sum or name != node])
    channel = LocalChannel(fleet.nodes())

    def is_lost(node, stage):
        return (
            channel.round in dead
            and node == dead[channel.round][0]
            and stage in dead[channel.round][1]
        )

    channel.lost = is_lost
    told = served(fleet, tmp_path, len(stages), channel, rest_rounds=0)
    assert [event["names"] for event in events(tmp_path, "done")] == cohorts
    assert state(tmp_path) == expected(fleet, tmp_path, cohorts)
    assert sum("no answer" in line for line in told.lines) >= len(stages)


@pytest.mark.nightly_cases("secure")
@pytest.mark.slow
def test_a_server_that_is_killed_anywhere_goes_on_from_there(fleet, tmp_path):
    """In each round the server is killed at another step, and another one goes on."""
    told = served(fleet, tmp_path / "once", 1)
    steps = [step.removeprefix("training 1: ") for step in told.steps]
    assert steps[0] == "begun" and steps[-1] == "state replaced"
    channel = LocalChannel(fleet.nodes())
    for number, step in enumerate(steps, 1):
        stop = f"training {number}: {step}"
        assert served(fleet, tmp_path, number, channel, stop).steps[-1] == stop
        before = len(channel.carried)
        served(fleet, tmp_path, number, channel)
        asked = {stage for _, stage, _, _ in channel.carried[before:]} - {"HELLO"}
        # What was on the disk is not asked for again.
        assert asked == set(_STAGES[fleet.profile]) - set(_done(fleet.profile, steps, step))
    rounds = len(steps)
    assert state(tmp_path) == expected(fleet, tmp_path, [fleet.names] * rounds)
    # Nobody had to begin again.
    assert [event["round"] for event in events(tmp_path, "begun")] == [*range(1, rounds + 1)]
    assert not events(tmp_path, "given up")
    assert not list((tmp_path / "server").glob("*_sums"))
    assert not list((tmp_path / "server").glob("*_sessions/*.session"))
    assert len(metrics(tmp_path / "server")) == rounds


def _done(profile, steps, step):
    """The requests of which all answers are on the disk after a step."""
    if step in ("done", "state replaced"):
        return list(_STAGES[profile])
    if profile == "daf":
        return []
    answers = ["KEYS", "SHARES", "MASKED", "VOTE", "OPENING"]
    reached = steps.index(step)
    # What opens the sum is asked for again: no disk has it.
    return [r for r, answer in list(zip(_SECURE, answers))[:-1] if steps.index(answer) <= reached]


@pytest.mark.slow
def test_too_few_nodes_are_said_in_a_line(fleet, tmp_path):
    channel = LocalChannel(fleet.nodes())
    channel.lost = lambda node, stage: stage in ("DELIVERY", "WORK") and node in ("ann", "bob")
    with pytest.raises(PlanError, match="training 1: given up 2 times, the last time: ") as caught:
        served(fleet, tmp_path, 1, channel, attempts=2)
    assert "\n" not in str(caught.value)
    assert len({event["session"] for event in events(tmp_path, "begun")}) == 2
    # Later they are there again: a round that was given up is played with new keys.
    served(fleet, tmp_path, 1)
    assert state(tmp_path) == expected(fleet, tmp_path, [fleet.names])


@pytest.mark.slow
def test_who_is_not_there_is_named(fleet, tmp_path):
    nodes = {name: node for name, node in fleet.nodes().items() if name != "dee"}
    told = served(fleet, tmp_path, 2, LocalChannel(nodes))
    assert told.lines[0] == "training: round 1: 3 of 4 nodes are there, without dee"
    told = served(fleet, tmp_path, 3)
    assert not any("are there" in line for line in told.lines)
    del nodes["bob"]
    line = "training 4: expected at least 3 nodes within 0.5 s, found 2, without bob, dee"
    with pytest.raises(PlanError, match=f"^{line}$"):
        served(fleet, tmp_path, 4, LocalChannel(nodes))


@pytest.mark.slow
def test_a_late_node_is_waited_for_as_long_as_the_others_took(fleet, tmp_path, monkeypatch):
    """Once enough have answered; until then all of the timeout is theirs."""
    monkeypatch.setattr("fleet.members._NOT_LATE_SECONDS", 0.01)
    channel = LocalChannel(fleet.nodes())
    stage, name = {"secure": ("ROSTER", "shares"), "daf": ("WORK", "work")}[fleet.profile]
    channel.lost = lambda node, asked: node == "dee" and asked == stage
    told = served(fleet, tmp_path, 1, channel, timeouts=Timeouts(*[300.0] * 7, patience=3))
    (late,) = [found for _, _, found in told.exchanges if found.answered < found.asked]
    # Nodes are called when they are asked: all the others have answered at once.
    assert (late.stage, late.answered) == (name, 3) and late.seconds < 100
    channel.lost = lambda node, asked: node in ("cyd", "dee") and asked == stage
    with pytest.raises(PlanError, match="given up 1 time,"):
        timeouts = Timeouts(*[0.5] * 7, patience=1)
        served(fleet, tmp_path, 2, channel, timeouts=timeouts, attempts=1, rest_rounds=0)


@pytest.mark.slow
def test_a_node_of_which_the_transport_knows_that_it_fails_is_not_waited_for(fleet, tmp_path):
    channel = LocalChannel(fleet.nodes())
    stage = next(iter(_STAGES[fleet.profile]))
    channel.failing = lambda node, asked: node == "dee" and asked == stage
    told = served(fleet, tmp_path, 1, channel, timeouts=Timeouts(*[300.0] * 7))
    failed = told.exchanges[0][2]
    assert (failed.asked, failed.answered) == (4, 3) and failed.seconds < 100
    assert any("node dee: it answers: nothing" in line for line in told.lines)
    assert events(tmp_path, "done")[0]["names"] == ["ann", "bob", "cyd"]


@pytest.mark.slow
def test_openings_are_asked_for_again_before_a_sum_is_given_up(fleet, tmp_path):
    if fleet.profile != "secure":
        pytest.skip("plain sums are not opened")
    channel, lost = LocalChannel(fleet.nodes()), ["ann", "bob"]

    def is_lost(node, stage):
        if stage == "VOTES" and node in lost:
            lost.remove(node)
            return True
        return False

    channel.lost = is_lost
    served(fleet, tmp_path, 1, channel)
    assert not lost
    assert state(tmp_path) == expected(fleet, tmp_path, [fleet.names])


@pytest.mark.slow
def test_late_nodes_are_left_out_for_some_rounds(fleet, tmp_path):
    channel = LocalChannel(fleet.nodes())
    stage = next(iter(_STAGES[fleet.profile]))
    channel.lost = lambda node, asked: (node, asked, channel.round) == ("dee", stage, 1)
    served(fleet, tmp_path, 5, channel, rest_rounds=2)
    names = [event["cohort"] for event in events(tmp_path, "begun")]
    assert [("dee" in cohort) for cohort in names] == [True, False, False, True, True]


@pytest.mark.slow
def test_nodes_and_servers_with_other_plans_say_so(fleet, tmp_path):
    """Hello, with what is not the node's own."""
    node = fleet.nodes()["ann"]

    def words(**changes):
        head = {"tag": "x", "manifest": manifest_sha256(fleet.export), "sums": "", **changes}
        head = {"challenge": bytes(32).hex(), "min_clients": 3, "checks_survivors": True, **head}
        answer = decoded(node.answer(Message(Kind.HELLO, head).encoded()), "answer")
        assert answer.head["tag"] == "x"
        return answer.head["words"] if answer.kind == Kind.REFUSED else answer.kind

    assert "which the operator of this node has pinned" in words(manifest="0" * 64)
    assert "manifest: expected 64 hexadecimal digits" in words(manifest="x")
    if fleet.profile == "secure":
        assert words(min_clients=4).startswith("min_clients: expected 3 as this node has")
        assert words(checks_survivors=False).startswith("checks_survivors: expected True")
        assert words() == "secure sums: expected those of this node's plan, the server has others"
    else:
        assert words() == Kind.WELCOME


@pytest.mark.slow
def test_words_of_others_are_one_line_that_every_terminal_shows():
    words = "\ud800round 9: epsilon 0.01\n\x1b[2Jno \x00 end" + "x" * 5000
    read = decoded(Message(Kind.REFUSED, {"words": words}).encoded(), "answer")
    shown = wire.words_of(read)
    assert shown.startswith("round 9: epsilon 0.01 [2Jno end")
    assert len(shown.encode()) == 1000 and shown.isprintable()


@pytest.mark.slow
def test_no_sum_of_fewer_than_the_plan_says_is_opened(fleet, tmp_path):
    """Whatever the settings of servers and nodes say."""
    if fleet.profile != "secure":
        pytest.skip("plain sums have no fewest clients")
    export = shutil.copytree(fleet.export, tmp_path / "export")
    limits = {"maximum_clients_per_round": 6, "minimum_clients_per_round": 5}
    rehash(export, privacy=limits)
    about = fleet.player(export, manifest_sha256(export), DEFAULT_LIMITS, False).about
    assert about.min_clients == 5
    assert sum_plan(manifest_sha256(export), about, 3, True).min_clients == 5
    assert sum_plan(manifest_sha256(export), about, 6, True).min_clients == 6


@pytest.mark.slow
def test_no_log_depends_on_a_clients_integers(fleet, tmp_path, caplog, capfd):
    """Rounds of other examples, as many of each client: whatever is written down is the same.

    The sums' mean is in the state alone, of which the journal has a hash.
    """
    if fleet.profile != "secure":
        pytest.skip("plain sums are the server's to see")
    caplog.set_level("DEBUG")
    logs = []
    for shift in (0, 3):
        examples = {n: [(x, i + shift) for x, i in pairs] for n, pairs in _CLIENTS.items()}
        write_clients(fleet.clients, examples)
        caplog.clear()
        told = served(fleet, tmp_path / str(shift), 1)
        journal = events(tmp_path / str(shift), "begun", "done")
        steps = [{k: v for k, v in event.items() if k not in _DIGESTS} for event in journal]
        logs.append((told.lines, steps, caplog.messages, capfd.readouterr()))
    assert logs[0] == logs[1]
    # It would show: the sums differ.
    assert state(tmp_path / "0") != state(tmp_path / "3")


_DIGESTS = ("session", "before", "after")


@pytest.mark.slow
def test_what_a_server_sends_never_ends_a_node(fleet):
    node, manifest = fleet.nodes()["ann"], manifest_sha256(fleet.export)
    begun = decoded(node.answer(b"nonsense"), "answer")
    assert begun.kind == Kind.REFUSED and "expected a message of this fleet" in begun.head["words"]
    newer = Message(Kind.HELLO, {}).encoded().replace(b"FLEET\x01", b"FLEET\x02")
    assert "expected version 1 of the fleet's messages, found 2" in words_of(node.answer(newer))
    assert "expected a request, found WELCOME" in words_of(asked(node, Kind.WELCOME))
    # An answer has its request's tag, and would be longer than a message may be.
    long = words_of(asked(node, Kind.HELLO, tag="x" * 65_000, manifest=manifest))
    assert long == "message of the server: tag: expected at most 64 ASCII characters, found others"
    unknown = roster_message(bytes(32), ())
    if fleet.profile == "secure":
        found = words_of(asked(node, Kind.STAGE, unknown, manifest=manifest))
        assert found == "session 0000000000000000: expected a session that began, found ROSTER"
        found = words_of(asked(node, Kind.WORK, b"x", manifest=manifest, id="0" * 64))
        assert "expected secure aggregation for this plan" in found
    else:
        found = words_of(asked(node, Kind.STAGE, unknown, manifest=manifest))
        assert "expected work of plain sums for this plan" in found
        found = words_of(asked(node, Kind.WORK, b"x", manifest=manifest, id="0" * 64))
        # What is wrong with its work may tell of its examples.
        assert found == "the client's work failed on this node, whose log says why"


def asked(node, kind, *parts, **head) -> bytes:
    return node.answer(Message(kind, {"tag": "x", **head}, parts).encoded())


def words_of(answer) -> str:
    message = decoded(answer, "answer")
    assert message.kind == Kind.REFUSED
    assert "\n" not in message.head["words"]
    return message.head["words"]
