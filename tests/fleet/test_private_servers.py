"""A server that adds noise follows its plan's sampling, or reports the actual epsilon.

Players are stand-ins: the server samples the cohorts and writes the accounts.
"""

import dataclasses
import itertools
import json
import math
import random
import shutil
from collections import Counter

import dp_accounting
import pytest
from scipy import stats

from fleet.node_noise.account import ReleasedRounds
from fleet.node_noise.server_noise import Draw, ServerNoise
from fleet.player import About, RoundEnd
from plan_runner.errors import PlanError
from tests.fleet.fleet import Fleet, LocalChannel
from tests.fleet.gaussian import exact_gaussian_epsilon
from tests.plan_runner.exports import rehash
from tests.plan_runner.refusals import refusal
from tests.support import golden

_Z, _DELTA = 2.0, 1 / 640
_POISSON = dataclasses.asdict(Draw("poisson", 64, 10.0, 0.15625, 1.0))
_FIXED = dataclasses.asdict(Draw("fixed_size", 8, 4.0, 0.5, 2.0))
_SPACED = dataclasses.asdict(Draw("spaced", 12, 4.0, 1.0, 1.0, 2, 3))
# Stand-in for sums without noise, which no file may contain.
_SUMS = b"sums of clients without noise"


class _Player:
    """A stand-in for a player; its states count the rounds."""

    about = About("training", (), None, 0)

    def check_examples(self, *args):
        pass

    check_update = check_examples

    def begin(self, state):
        return b"checkpoint"

    def update(self, *args):
        return b"update"

    def plain_sums(self, updates):
        return _SUMS

    def end(self, state, sums, number, clients, *sizes):
        row = {"round": number, "clients": clients, "metrics": {}}
        return RoundEnd(state + b".", row, f"round {number}")

    def close(self):
        pass


class _Served:
    """A fleet, and the events and metrics of its server's rounds."""

    def __init__(self, folder, nodes, export):
        clients = folder / "clients"
        clients.mkdir(parents=True)
        for number in range(nodes):
            (clients / f"node_{number:02}.tfrecord").touch()
        self.folder, self.export = folder, export
        self.fleet = Fleet(folder / "fleet", export, clients)
        self.fleet.player = lambda *args: _Player()
        self.channel = LocalChannel(self.fleet.nodes())

    def run(self, rounds, weaker=False, stop="", **settings):
        state, player = self.folder / "server", self.fleet.player
        return self.fleet.serve(state, rounds, self.channel, stop, player, weaker, **settings)

    def events(self, name):
        path = self.folder / "server" / "rounds.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [event for event in map(json.loads, lines) if event["event"] == name]

    @property
    def rows(self):
        lines = (self.folder / "server" / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]


@pytest.fixture
def served(exports, tmp_path):
    def make(draw, nodes, rounds, claimed=1000.0):
        """Returns a fleet with a copy of an export whose server adds noise."""
        noise = {
            "mechanism": "tree" if draw["scheme"] == "spaced" else "central",
            "groups": [{"noise_multiplier": _Z}],
            "delta": _DELTA,
            "draw": draw,
            "rounds": rounds,
            "guarantee_as_simulated": {"epsilon": claimed},
        }
        export = shutil.copytree(exports["daf"], tmp_path / "export")
        rehash(export, privacy={"differential_privacy": noise})
        return _Served(tmp_path / "f", nodes, export)

    return make


def _known(squares):
    """Returns epsilon if the attacker knows the rounds, whose contributions have these squares."""
    return exact_gaussian_epsilon(math.sqrt(squares) / _Z, _DELTA)


def test_poisson_plan_samples_nodes_independently(served):
    fleet = served(_POISSON, 64, 12)
    recorder = fleet.run(12)
    cohorts = [sorted(event["cohort"]) for event in fleet.events("drawn")]
    assert cohorts == [event["names"] for event in fleet.events("done")]
    sizes = list(map(len, cohorts))
    assert stats.binomtest(sum(sizes), 64 * 12, 0.15625).pvalue > 1e-6 and len(set(sizes)) > 3
    event = dp_accounting.PoissonSampledDpEvent(0.15625, dp_accounting.GaussianDpEvent(_Z))
    bound = dp_accounting.rdp.RdpAccountant().compose(event, 12).get_epsilon(_DELTA)
    assert fleet.rows[-1]["epsilon"] == pytest.approx(bound, rel=1e-3)
    assert recorder.lines[-1].endswith("sampled as planned; the plan claims 1000 after 12 rounds")


def test_server_releases_empty_rounds(served):
    fleet = served({**_POISSON, "clients": 3, "per_round": 0.1, "rate": 1 / 30}, 3, 5)
    fleet.run(5)
    assert any(row["clients"] == 0 for row in fleet.rows)
    assert len(fleet.rows) == 5


@golden.values
def test_server_rejects_settings_against_its_plan(served, tmp_path, case):
    draw, nodes, rounds, settings = case
    draws = {"poisson": _POISSON, "spaced": _SPACED}
    fleet = served(draws.get(draw, {**_FIXED, "scheme": draw}), nodes, 2)
    message = refusal(lambda: fleet.run(rounds, **settings))
    assert "--weaker_privacy" in message
    assert not list((fleet.folder / "server").glob("*account*"))
    assert not fleet.events("begun")
    return message


def test_weaker_privacy_reports_epsilon_of_all_rounds(served):
    """The four nodes are in all four rounds; the plan samples 10 of 64 nodes in two rounds."""
    fleet = served(_POISSON, 4, 2, claimed=0.2986)
    recorder = fleet.run(4, weaker=True, cohort_size=4)
    expected = [_known(count) for count in range(1, 5)]
    assert expected[-1] == pytest.approx(2.995, abs=1e-3)
    assert [row["epsilon"] for row in fleet.rows] == pytest.approx(expected, rel=1e-6)
    assert {row["delta"] for row in fleet.rows} == {_DELTA}
    assert fleet.events("done")[-1]["row"]["epsilon"] == fleet.rows[-1]["epsilon"]
    assert sum("weaker privacy than the plan's" in line for line in recorder.lines) == 3
    before = next(line for line in recorder.lines if "round 4: epsilon" in line)
    assert f"epsilon at most {expected[2]:.4g} before and {expected[3]:.4g} after it" in before
    assert f"4 rounds released, epsilon at most {expected[3]:.4g} at" in recorder.lines[-1]
    assert "assuming known cohorts" in recorder.lines[-1]


def test_account_does_not_forget_known_cohorts(tmp_path):
    """Later rounds with the plan's sampling do not hide earlier cohorts."""
    noise = ServerNoise(_Z, _DELTA, Draw("poisson", 64, 10.0, 0.15625, 1.0), 9, 9.0)
    path, client = tmp_path / "account.jsonl", b"1"
    for number, is_drawn in enumerate([True, True, False, True], 1):
        ReleasedRounds(path, noise, None, is_drawn).release(number, [client])
        result = ReleasedRounds(path, noise).epsilon
        if number < 3:
            assert result == noise.sampled_epsilon(number)
        else:
            assert result == pytest.approx(_known(number), rel=1e-6)
    # Repeating a round does not count it again.
    ReleasedRounds(path, noise).release(4, [b"2"])
    assert ReleasedRounds(path, noise).epsilon == result


def test_target_epsilon_stops_the_server(served):
    fleet = served(_POISSON, 4, 2, claimed=0.2986)
    limit = _known(2) + 1e-3
    with pytest.raises(PlanError, match="after 3 rounds it would be"):
        fleet.run(4, weaker=True, target_epsilon=limit)
    assert len(fleet.rows) == 2


def test_fixed_size_sampling_does_not_replace_absent_nodes(served):
    """Sampling from the connected nodes would select each of them more often than planned."""
    fleet = served(_FIXED, 8, 12)
    gone = {"node_00", "node_01", "node_02"}
    fleet.channel.lost = lambda node, stage: node in gone
    fleet.run(12)
    drawn = [event["cohort"] for event in fleet.events("drawn")]
    assert all(len(set(cohort)) == 4 for cohort in drawn)
    assert [event["names"] for event in fleet.events("done")] == [
        sorted(set(cohort) - gone) for cohort in drawn
    ]
    assert any(gone & set(cohort) for cohort in drawn)


def test_cohorts_are_unpredictable(served, monkeypatch):
    """Neither the seed of Python's generator nor the settings determine the cohorts."""
    fleet, cohorts = served(_POISSON, 64, 3), []
    for number in (1, 2):
        random.seed(0)
        fleet.folder = fleet.folder.parent / str(number)
        fleet.run(3)
        cohorts.append([event["cohort"] for event in fleet.events("drawn")])
    assert cohorts[0] != cohorts[1]


def test_tree_plan_leaves_space_between_a_nodes_rounds(served):
    fleet = served(_SPACED, 12, 6)
    fleet.run(3)
    fleet.run(6)
    rounds = {}
    for event in fleet.events("done"):
        assert len(event["names"]) == 4
        for name in event["names"]:
            rounds.setdefault(name, []).append(event["round"])
    for numbers in rounds.values():
        assert all(b - a >= 3 for a, b in itertools.pairwise(numbers)) and len(numbers) <= 2
    # A node's two rounds, three apart, are in tree nodes over one, two and four rounds.
    assert fleet.rows[-1]["epsilon"] <= _known(8) * (1 + 1e-6)


def test_tree_plan_without_spacing_reports_its_epsilon(served):
    fleet = served(_SPACED, 4, 6)
    fleet.run(6, weaker=True, cohort_size=4)
    # Each client is in all rounds: 6 tree nodes over one round, 3 over two, and 1 over four.
    expected = _known(6 * 1 + 3 * 4 + 1 * 16)
    assert fleet.rows[-1]["epsilon"] == pytest.approx(expected, rel=1e-6)


def test_server_files_never_contain_sums(served):
    fleet = served(_FIXED, 8, 9)
    steps = [step.removeprefix("training 1: ") for step in fleet.run(1).steps]
    for number, step in enumerate(steps, 2):
        fleet.run(number, stop=f"training {number}: {step}")
        files = [path for path in (fleet.folder / "server").rglob("*") if path.is_file()]
        assert files and not any(_SUMS in path.read_bytes() for path in files)
    fleet.run(len(steps) + 1)
    # A server that is killed after it has sampled a round's cohort does not sample again.
    for event in ("drawn", "done"):
        assert [e["round"] for e in fleet.events(event)] == [*range(1, len(steps) + 2)]
    with pytest.raises(PlanError, match="keeps_sums: expected false if the server adds"):
        fleet.run(9, keeps_sums=True)


def test_uniform_cohorts_have_fixed_size_and_equal_frequencies(served):
    fleet = served({**_POISSON, "scheme": "everyone", "rate": 1.0, "per_round": 64.0}, 8, 40)
    fleet.run(40, cohort_size=4)
    cohorts = [event["cohort"] for event in fleet.events("begun")]
    assert all(len(set(cohort)) == 4 for cohort in cohorts)
    counts = Counter(name for cohort in cohorts for name in cohort)
    # The tolerance is six standard deviations of a binomial count.
    assert len(counts) == 8 and all(abs(count - 20) < 19 for count in counts.values())
