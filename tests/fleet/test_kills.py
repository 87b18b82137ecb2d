"""What a demo kills."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from plan_runner.errors import PlanError
from tests.fleet import kills

_NAMES = [f"node_{number}" for number in range(10)]
_STAGES = ("keys", "shares", "work", "vote", "opening")


@pytest.mark.parametrize(
    ("kill", "rounds", "expected"),
    [
        (None, 3, {}),
        ("node", 3, {(2, "keys"): ["node_9"]}),
        ("server", 1, {(1, "keys"): ["server"]}),
        ("superlink", 3, {(2, "keys"): ["superlink"]}),
    ],
)
def test_one_dies_in_the_second_round(kill, rounds, expected):
    assert kills.schedule(kill, _NAMES, rounds, _STAGES) == expected


def test_a_fifth_dies_in_each_round_and_the_server_five_times_in_fifty():
    found = kills.schedule("often", _NAMES, 50, _STAGES, seed=1)
    died = [(number, stage, who) for (number, stage), names in found.items() for who in names]
    assert sorted(n for n, _, who in died if who == "server") == [5, 15, 25, 35, 45]
    of_nodes = [(n, stage, who) for n, stage, who in died if who != "server"]
    assert Counter(n for n, _, _ in of_nodes) == dict.fromkeys(range(1, 51), 2)
    # 100 deaths: of each stage and node seven deviations of the binomial around their mean at most.
    assert set(Counter(stage for _, stage, _ in of_nodes)) == set(_STAGES)
    assert all(0 < count < 48 for count in Counter(stage for _, stage, _ in of_nodes).values())
    assert set(Counter(who for _, _, who in of_nodes)) == set(_NAMES)
    for name in _NAMES:
        rounds = sorted(n for n, _, who in of_nodes if who == name)
        assert all(later - earlier > 2 for earlier, later in itertools.pairwise(rounds))
    # What went on after a cut is killed as it would have been.
    assert kills.schedule("often", _NAMES, 50, _STAGES, seed=1) == found
    assert kills.schedule("often", _NAMES, 50, _STAGES, seed=2) != found


def test_enough_nodes_are_left():
    with pytest.raises(PlanError, match=r"^--kill=node: expected at least 4 --nodes, found 3$"):
        kills.check_nodes("node", 3)
    kills.check_nodes(None, 3)
    kills.check_nodes("node", 4)
    kills.check_nodes("often", 5)
