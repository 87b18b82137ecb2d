"""Cohorts: their sizes, and who is in them how often."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from fleet.members import SAMPLINGS, Draw
from plan_runner.errors import PlanError

_NODES = [bytes([n]) for n in range(10)]
_DRAWS = 4000


def drawn(sampling, **changes):
    given = {"candidates": _NODES, "fewest": 3, "most": 8, "size": 4, "fleet": 10, **changes}
    generator = random.Random(0)
    return [SAMPLINGS[sampling](Draw(**given), generator) for _ in range(_DRAWS)]


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_every_node_is_in_as_many_cohorts(sampling):
    cohorts = drawn(sampling)
    assert all(len(set(c)) == len(c) and 3 <= len(c) <= 8 for c in cohorts)
    if sampling != "poisson":
        assert {len(c) for c in cohorts} == {4}
    share = sum(map(len, cohorts)) / 10
    # Seven standard deviations of a binomial number.
    bound = 7 * (_DRAWS * 0.25) ** 0.5
    counts = Counter(node for cohort in cohorts for node in cohort)
    assert len(counts) == 10
    assert all(abs(count - share) < bound for count in counts.values())


def test_sizes_by_chance_are_binomial_but_for_what_cannot_be_played():
    sizes = Counter(map(len, drawn("poisson", fewest=0, most=10)))
    assert abs(sum(k * n for k, n in sizes.items()) / _DRAWS - 4) < 0.2
    variance = sum((k - 4) ** 2 * n for k, n in sizes.items()) / _DRAWS
    assert abs(variance - 10 * 0.4 * 0.6) < 0.3
    # A node that is not there is missing from the cohort, and nobody is in its place.
    half = Counter(map(len, drawn("poisson", fewest=0, candidates=_NODES[:5])))
    assert abs(sum(k * n for k, n in half.items()) / _DRAWS - 2) < 0.2
    with pytest.raises(PlanError, match="expected 3 to 8 of 2 nodes by chance"):
        drawn("poisson", candidates=_NODES[:2])


def test_all_are_drawn_up_to_the_most():
    assert {len(c) for c in drawn("uniform", size=None)} == {8}
    assert {len(c) for c in drawn("uniform", size=None, candidates=_NODES[:6])} == {6}


def test_each_domain_has_as_many():
    # Seven of one domain, two of another, one that tells none.
    domains = {node: "north" if node[0] < 7 else "south" for node in _NODES[:9]}
    for cohort in drawn("by_domain", size=6, domains=domains)[:100]:
        of = Counter(domains.get(node, "") for node in cohort)
        assert of == {"north": 3, "south": 2, "": 1}
