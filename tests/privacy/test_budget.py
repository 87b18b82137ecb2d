"""The split of a budget among groups of values."""

import pytest

from tff_agnostic.privacy.mechanisms import effective_noise_multiplier
from tff_agnostic.privacy.options import AccountingOptions


@pytest.mark.parametrize(("z", "share"), [(1.0, 0.9), (0.3, 0.8), (7.0, 0.02)])
def test_groups_together_have_the_noise_of_the_whole(z, share):
    options = AccountingOptions(clients=100, clients_per_round=10, update_share=share)
    groups = options.noise_multipliers(z)
    assert groups["update"] == pytest.approx(z / share**0.5)
    assert effective_noise_multiplier(groups.values()) == pytest.approx(z)


def test_a_group_without_noise_leaves_none():
    assert effective_noise_multiplier([1.0, 0.0]) == 0
