"""Epsilon of what a run has released so far."""

import math
from collections.abc import Callable, Sequence
from typing import Optional

import numpy as np
from dp_accounting import rdp

from tff_agnostic.errors import UserError
from tff_agnostic.privacy.mechanism import Mechanism
from tff_agnostic.privacy.sampling import PLD, RDP
from tff_agnostic.registry import Registry

# Of a larger epsilon it is no matter how much larger it is.
_MOST_WORKED_OUT = 100.0
_ORDERS = tuple(map(float, rdp.rdp_privacy_accountant.DEFAULT_RDP_ORDERS))


class PrivacyAccountant:
    """Tells epsilon after any number of releases of each mechanism; answers are kept.

    An answer takes milliseconds with `rdp` and about a tenth of a second with `pld`, however many
    releases there were. It keeps nothing of a run, so a resumed run asks for what it has reached.

    Args:
        mechanisms: What is released of one fleet, e.g. training, and evaluation on the same
            clients. All of it is composed.
        delta: The delta that epsilon is for.
        name: A name of `ACCOUNTANTS`; the first mechanism's default that applies to all if None.

    Raises:
        UserError: If no accountant, or not the named one, applies to every mechanism, or they
            differ in which fleets are neighbours.
    """

    def __init__(
        self, mechanisms: Sequence[Mechanism], delta: float, name: Optional[str] = None
    ) -> None:
        self.mechanisms = tuple(mechanisms)
        self.delta = delta
        self.name = accountant_name(self.mechanisms, name)
        self._found: dict[tuple[int, ...], float] = {}

    def epsilon(self, *counts: int) -> float:
        """Returns epsilon; infinite without noise.

        Args:
            *counts: How many releases there were of each mechanism, in their order.
        """
        if len(counts) != len(self.mechanisms):
            raise ValueError(f"expected {len(self.mechanisms)} numbers, found {counts}")
        if counts not in self._found:
            self._found[counts] = self._epsilon(counts)
        return self._found[counts]

    def _epsilon(self, counts: tuple[int, ...]) -> float:
        pairs = [(m, int(count)) for m, count in zip(self.mechanisms, counts) if count]
        if not pairs:
            return 0.0
        if any(mechanism.noise_multiplier == 0 for mechanism, _ in pairs):
            return math.inf
        return max(0.0, float(ACCOUNTANTS[self.name](pairs, self.delta)))


def accountant_name(mechanisms: Sequence[Mechanism], wanted: Optional[str] = None) -> str:
    """Returns the accountant for mechanisms that are composed.

    Args:
        mechanisms: At least one.
        wanted: The one to use, if it applies; otherwise the default.

    Raises:
        UserError: See `PrivacyAccountant`.
    """
    first, *others = mechanisms
    different = next((m.adjacency for m in others if m.adjacency != first.adjacency), None)
    if different is not None:
        raise UserError(
            f"privacy: expected one kind of neighbours for all releases, found {first.adjacency!r} "
            f"and {different!r}"
        )
    if wanted is not None:
        _ = ACCOUNTANTS[wanted]
    common = [name for name in first.accountants if all(name in m.accountants for m in others)]
    if not common or (wanted is not None and wanted not in common):
        raise UserError(
            f"--privacy_accountant: expected {' or '.join(common) or 'another'} for these "
            f"mechanisms and cohorts, found {wanted}"
        )
    return wanted or common[0]


def _rdp_epsilon(pairs: Sequence[tuple[Mechanism, int]], delta: float) -> float:
    total = np.sum([mechanism.rdp(count, _ORDERS) for mechanism, count in pairs], axis=0)
    if np.any(np.isnan(total)):
        raise ValueError(f"a Renyi divergence is not a number: {[m for m, _ in pairs]}")
    # With very much noise rounding leaves a little less than nothing.
    total = np.maximum(total, 0.0)
    epsilon, _ = rdp.compute_epsilon(_ORDERS, total, delta)
    return float(epsilon)


def _pld_epsilon(pairs: Sequence[tuple[Mechanism, int]], delta: float) -> float:
    quickly = _rdp_epsilon(pairs, delta)
    if quickly > _MOST_WORKED_OUT:
        # It holds as well. Privacy losses would take minutes and gigabytes to say as little.
        return quickly
    (mechanism, count), *others = pairs
    # The first is what is composed most often with itself.
    interval = mechanism.interval(count)
    loss = mechanism.privacy_loss(count, interval)
    for mechanism, count in others:
        loss = loss.compose(mechanism.privacy_loss(count, interval))
    return float(loss.get_epsilon_for_delta(delta))


# PLD: numerical composition of privacy losses, the tighter; RDP: Renyi divergences.
ACCOUNTANTS: Registry[Callable[[Sequence[tuple[Mechanism, int]], float], float]] = Registry(
    "privacy accountant", {PLD: _pld_epsilon, RDP: _rdp_epsilon}
)
