"""The sensitivity of trees against every pattern of participations, and against TensorFlow's."""

import itertools

import pytest

from tests import golden
from tff_agnostic.errors import UserError
from tff_agnostic.privacy.tree import Participations, squared_sensitivity


def _nodes(rounds, restart_every):
    """The complete nodes of all trees, as ranges of rounds."""
    per_tree = restart_every or max(rounds, 1)
    for start in range(0, rounds, per_tree):
        length = min(per_tree, rounds - start)
        size = 1
        while size <= length:
            for i in range(length // size):
                yield range(start + i * size, start + (i + 1) * size)
            size *= 2


def _largest(participations, rounds):
    nodes = list(_nodes(rounds, participations.restart_every))
    most = min(participations.max_participations or rounds, rounds)
    patterns = itertools.chain.from_iterable(
        itertools.combinations(range(rounds), k) for k in range(most + 1)
    )
    return max(
        sum(sum(t in node for t in pattern) ** 2 for node in nodes)
        for pattern in patterns
        if all(b - a >= participations.min_separation for a, b in zip(pattern, pattern[1:]))
    )


_CASES = [
    (Participations(*case), rounds)
    for case in [(1,), (2,), (3, 2), (None, 2), (2, 5), (None, 3, 4), (4, 2, 3), (2, 1, 6), (3, 4)]
    for rounds in (0, 1, 2, 5, 7, 8, 11, 12)
]


@pytest.mark.parametrize(("participations", "rounds"), _CASES, ids=str)
def test_no_pattern_moves_more_and_one_moves_as_much(participations, rounds):
    assert squared_sensitivity(participations, rounds) == _largest(participations, rounds)


@pytest.mark.parametrize(("most", "apart", "rounds"), [(4, 9, 60), (3, 7, 64), (5, 1, 33)])
def test_trees_without_restart_are_tensorflow_privacys(most, apart, rounds):
    from tensorflow_privacy.privacy.analysis import tree_aggregation_accountant

    # It counts the rounds between two participations.
    rho = tree_aggregation_accountant.compute_zcdp_single_tree(1.0, rounds, most, apart - 1)
    assert squared_sensitivity(Participations(most, apart), rounds) == 2 * rho


def test_a_client_in_every_round():
    # 8 leaves, 4 nodes of 2, 2 of 4, and the root.
    assert squared_sensitivity(Participations(8), 8) == 8 + 4 * 4 + 2 * 16 + 64


def test_rounds_by_the_thousand():
    assert squared_sensitivity(Participations(6, 313), 2000) == 79
    # Not more than once in each of 40 trees of 100 rounds, and six times at all.
    assert squared_sensitivity(Participations(6, 313, 100), 4000) == 6 * 7


@golden.values
def test_what_bounds_nothing_is_refused(case):
    return golden.refusal(Participations, *case)


@pytest.mark.parametrize(
    ("participations", "rounds"),
    [
        (Participations(min_separation=2), 10**6),
        (Participations(max_participations=10**5), 10**6),
        (Participations(min_separation=100, restart_every=1000), 10**6),
    ],
)
def test_patterns_that_are_too_many_to_search_are_refused(participations, rounds):
    with pytest.raises(UserError, match=r"^--rounds: expected fewer with --privacy=tree, found 10"):
        squared_sensitivity(participations, rounds)


@pytest.mark.parametrize("most", [2**31 - 1, 10**6])
def test_huge_bounds_that_bind_nothing_are_quick(most):
    rounds = 10**6
    every_round = sum((rounds >> h) * (1 << h) ** 2 for h in range(rounds.bit_length()))
    assert squared_sensitivity(Participations(max_participations=most), rounds) == every_round
    far = Participations(min_separation=2**31 - 1)
    assert squared_sensitivity(far, rounds) == rounds.bit_length()
