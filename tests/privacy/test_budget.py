"""The split of a budget among groups of values."""

import numpy as np
import pytest

from tff_agnostic.errors import UserError
from tff_agnostic.privacy import (
    BudgetSplit,
    Group,
    clip_bit_stddev,
    effective_noise_multiplier,
)


def _split(**shares: float) -> BudgetSplit:
    return BudgetSplit(tuple(Group(*item) for item in shares.items()))


def test_groups_together_have_the_noise_of_the_whole():
    split = _split(update=0.9, losses=0.05, counts=0.05)
    groups = split.noise_multipliers(1.0)
    expected = {"update": 1.0541, "losses": 4.4721, "counts": 4.4721}
    assert groups == pytest.approx(expected, abs=5e-5)
    assert effective_noise_multiplier(groups.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("seed", range(5))
def test_any_split_has_the_noise_of_the_whole(seed):
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.ones(rng.integers(1, 8)))
    split = BudgetSplit(tuple(Group(f"{i}", share) for i, share in enumerate(shares)))
    z = rng.uniform(0.1, 10)
    bits = split.with_clip_bits(["0"], 0.01)
    for of in (split, bits):
        assert effective_noise_multiplier(of.noise_multipliers(z).values()) == pytest.approx(z)
    assert [g.name for g in bits.groups] == [*(g.name for g in split.groups), "0/clip"]
    assert bits.noise_multipliers(z)["0/clip"] == pytest.approx(10 * z)


def test_a_group_without_noise_leaves_none():
    assert effective_noise_multiplier([1.0, 0.0]) == 0


def test_noise_on_bits_is_for_a_sensitivity_of_a_half():
    # TFF's default for 50 clients: a standard deviation of 2.5, which it accounts for as z_b = 5.
    assert clip_bit_stddev(5.0) == 2.5


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ((Group("a", -1.0), Group("b", 2.0)), "expected numbers above 0, found -1 of 'a'"),
        ((Group("a", float("nan")),), "expected numbers above 0, found nan of 'a'"),
        ((Group("a", 0.5), Group("b", 0.6)), "expected to add up to 1, found 1.1"),
        ((Group("a", 0.5), Group("a", 0.5)), "expected different groups, found 'a' twice"),
        ((), "expected to add up to 1, found 0"),
    ],
)
def test_what_is_no_split_is_refused(groups, message):
    with pytest.raises(UserError, match=message):
        BudgetSplit(groups)


@pytest.mark.parametrize(
    ("names", "share", "message"),
    [
        (["losses"], 0.1, "expected a group of update to clip adaptively, found 'losses'"),
        (["update"], 1.0, "expected 1 clip bits to leave something"),
        (["update"], 0.0, "found a share of 0 each"),
    ],
)
def test_bits_that_cannot_be_are_refused(names, share, message):
    with pytest.raises(UserError, match=message):
        _split(update=1.0).with_clip_bits(names, share)
