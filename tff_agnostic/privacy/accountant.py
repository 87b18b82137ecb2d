"""Computes epsilon of composed releases, calibrates noise and rounds, and states guarantees."""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional

import numpy as np

from tff_agnostic.base.errors import UserError, counted
from tff_agnostic.base.files import finite_or_none
from tff_agnostic.base.later import dp_accounting, scipy
from tff_agnostic.base.options import OptionError, Verbatim
from tff_agnostic.base.registry import Registry
from tff_agnostic.privacy.mechanisms import MIN_NOISE, Mechanism
from tff_agnostic.privacy.sampling import PLD, RDP

# Maximum epsilon that `pld` computes; larger values guarantee nothing anyway.
_MAX_COMPUTED = 100.0
# Upper end of the search for a noise multiplier: with more noise, models learn nothing.
_MAX_NOISE = 2.0**20
# Relative tolerance of calibrated noise multipliers.
_TOLERANCE = 1e-6
# In the first part of a search, the grid of privacy losses is coarser by this factor, to save time.
# This adds less than 0.02 to epsilon, and nearly the same for similar noise multipliers.
_COARSER = 30.0
# Integer orders for a rough bound of epsilon, in a twentieth of the time that all orders take.
_FEW_ORDERS = (2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0)
# Maximum number of rounds, more than any run has. An account of many more would take hours.
MAX_ROUNDS = 2**20
UNIT = "client"
_EVALUATIONS = "evaluations: their numbers are exact, and the evaluated clients are not protected"
# Disclosures that no account covers.
_NEVER_COVERED = (
    "tuning: other runs on the same clients, and the choice of settings by their results",
    "the choice of the algorithm by results on the same clients",
    "the length of a round, and whether a client was online",
    "errors that end a command: they name clients and their values",
)
# Disclosures that an account of training does not cover.
NOT_COVERED = (_EVALUATIONS, *_NEVER_COVERED)
# Value above which epsilon guarantees next to nothing.
WEAK_EPSILON = 10.0
# Maximum probability of noise outside its generator's range, as a fraction of delta.
_TAIL_SHARE = 0.01


@functools.cache
def _orders() -> tuple[float, ...]:
    return tuple(map(float, dp_accounting.rdp.rdp_privacy_accountant.DEFAULT_RDP_ORDERS))


class PrivacyAccountant:
    """Computes epsilon for given numbers of releases of each mechanism, with a cache.

    A computation takes milliseconds with `rdp` and about a tenth of a second with `pld`, for any
    number of releases. The accountant keeps no count of a run's releases; callers pass the numbers.

    Args:
        mechanisms: The mechanisms to compose, all about one client population, such as training and
            evaluation on the same clients.
        delta: The delta of (epsilon, delta).
        name: A name in `ACCOUNTANTS`. None selects one that applies to all mechanisms: of these,
            the one that the first mechanism prefers.
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
            *counts: Number of releases of each mechanism, in order.
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


def accountant_name(mechanisms: Sequence[Mechanism], requested: Optional[str] = None) -> str:
    """Returns the name of the accountant for composed mechanisms.

    Args:
        mechanisms: One or more mechanisms to compose.
        requested: Name of the accountant to use, which must apply; None for the default.
    """
    first, *others = mechanisms
    different = next((m.adjacency for m in others if m.adjacency != first.adjacency), None)
    if different is not None:
        raise UserError(
            f"privacy: expected one kind of neighbours for all releases, found {first.adjacency!r} "
            f"and {different!r}"
        )
    if requested is not None:
        _ = ACCOUNTANTS[requested]
    common = [name for name in first.accountants if all(name in m.accountants for m in others)]
    if not common or (requested is not None and requested not in common):
        expected = f"{' or '.join(common) or 'another'} for these mechanisms and cohorts"
        raise OptionError("privacy_accountant", expected, Verbatim(requested))
    return requested or common[0]


def _rdp_epsilon(
    pairs: Sequence[tuple[Mechanism, int]], delta: float, orders: Optional[tuple[float, ...]] = None
) -> float:
    orders = _orders() if orders is None else orders
    total = np.sum([mechanism.rdp(count, orders) for mechanism, count in pairs], axis=0)
    if np.any(np.isnan(total)):
        raise ValueError(f"a Renyi divergence is not a number: {[m for m, _ in pairs]}")
    # Clip at 0: with a lot of noise, rounding may make divergences slightly negative.
    total = np.maximum(total, 0.0)
    epsilon, _ = dp_accounting.rdp.compute_epsilon(orders, total, delta)
    return float(epsilon)


def _rough_rdp_epsilon(pairs: Sequence[tuple[Mechanism, int]], delta: float) -> float:
    return _rdp_epsilon(pairs, delta, _FEW_ORDERS)


def _pld_epsilon(
    pairs: Sequence[tuple[Mechanism, int]], delta: float, coarser: float = 1.0
) -> float:
    if _rough_rdp_epsilon(pairs, delta) > _MAX_COMPUTED:
        quickly = _rdp_epsilon(pairs, delta)
        if quickly > _MAX_COMPUTED:
            # Return the rough bound: privacy losses would take minutes and gigabytes, for
            # an equally useless epsilon.
            return quickly
    (mechanism, count), *others = pairs
    # Use the first mechanism's grid for all mechanisms, as this one has the most releases.
    interval = coarser * mechanism.interval(count)
    loss = mechanism.privacy_loss(count, interval)
    for mechanism, count in others:
        loss = loss.compose(mechanism.privacy_loss(count, interval))
    return float(loss.get_epsilon_for_delta(delta))


def _rough_pld_epsilon(pairs: Sequence[tuple[Mechanism, int]], delta: float) -> float:
    return _pld_epsilon(pairs, delta, _COARSER)


# The accountant PLD composes privacy losses numerically, and is tighter;
# RDP uses Renyi divergences.
ACCOUNTANTS: Registry[Callable[[Sequence[tuple[Mechanism, int]], float], float]] = Registry(
    "privacy accountant", {PLD: _pld_epsilon, RDP: _rdp_epsilon}
)
# For each accountant, a function that computes an upper bound of epsilon in a tenth of the time.
# Searches start with this function, and end with the accountant itself.
_ROUGH = {PLD: _rough_pld_epsilon, RDP: _rough_rdp_epsilon}

# Function that maps a noise multiplier to the mechanisms to compose.
Mechanisms = Callable[[float], Sequence[Mechanism]]


def default_delta(clients: int) -> float:
    """Returns 1 / (10 clients)."""
    return 1 / (10 * clients)


def check_delta(delta: float, clients: int) -> None:
    """Raises OptionError unless 0 < delta < 1 / clients.

    With delta = 1 / clients, publishing all data of one random client would count as private.
    """
    if not 0 < delta < 1 / clients:
        expected = f"more than 0 and less than {1 / clients:.3g}, one over the number of clients"
        raise OptionError("delta", expected, Verbatim(f"{delta:g}"))


def check_tail(tail: float, delta: float) -> None:
    """Raises OptionError if the probability of noise outside its generator's range is too high.

    Args:
        tail: Bound on this probability over the entire run.
    """
    if tail > _TAIL_SHARE * delta:
        raise OptionError(
            "delta",
            f"at least {tail / _TAIL_SHARE:.3g}, {1 / _TAIL_SHARE:g} times the probability "
            "that noise exceeds its generator's tail during the run",
            Verbatim(f"{delta:.3g}: fewer rounds lower this minimum"),
        )


def check_rounds(rounds: int) -> None:
    """Raises OptionError if accounts do not support this many rounds."""
    if rounds > MAX_ROUNDS:
        raise OptionError("rounds", f"at most {MAX_ROUNDS} with differential privacy", rounds)


def noise_for_epsilon(
    mechanisms: Mechanisms,
    counts: Sequence[int],
    target_epsilon: float,
    delta: float,
    accountant: Optional[str] = None,
) -> float:
    """Returns the minimum noise multiplier for which epsilon meets the target, to within 1e-6.

    A rough bound of epsilon gives the starting point. From there the secant method uses the
    accountant itself, on log(epsilon), which is nearly linear in the log of the noise multiplier.

    Args:
        mechanisms: Maps a noise multiplier to the mechanisms to compose.
        counts: Number of releases of each mechanism.
        accountant: See `PrivacyAccountant`.
    """
    name = accountant_name(mechanisms(1.0), accountant)

    @functools.cache
    def epsilon(noise_multiplier: float) -> float:
        return PrivacyAccountant(mechanisms(noise_multiplier), delta, name).epsilon(*counts)

    @functools.cache
    def rough(noise_multiplier: float) -> float:
        pairs = [(m, n) for m, n in zip(mechanisms(noise_multiplier), counts) if n]
        return max(0.0, _ROUGH[name](pairs, delta))

    # Use `epsilon` if the target is so small that no noise brings the rough bound below it.
    cheap = next((e for e in (rough, epsilon) if e(_MAX_NOISE) <= target_epsilon), None)
    if cheap is None:
        smallest = f"{epsilon(_MAX_NOISE):.6g} is left with a noise multiplier of {_MAX_NOISE:g}"
        target = Verbatim(f"{target_epsilon:g}: {smallest}")
        raise OptionError("target_epsilon", "a budget that some noise attains", target)
    high = _first_power(lambda z: cheap(z) <= target_epsilon)
    noise = _calibrated(epsilon, cheap, high, target_epsilon)
    if noise <= MIN_NOISE:
        spent = f"{epsilon(noise):.6g}, which a noise multiplier of {noise:g} has already"
        raise OptionError("target_epsilon", f"less than {spent}", Verbatim(f"{target_epsilon:g}"))
    return noise


def _calibrated(
    epsilon: Callable[[float], float],
    rough: Callable[[float], float],
    high: float,
    target_epsilon: float,
) -> float:
    """Returns the minimum noise multiplier that meets the target, at least `MIN_NOISE`.

    Args:
        epsilon: Maps a noise multiplier to epsilon.
        rough: Maps a noise multiplier to an upper bound of epsilon, with which the search starts.
        high: Noise multiplier at which both functions meet the target; `rough` does not meet it at
            half of `high`.
    """
    low = MIN_NOISE
    if high <= low:
        return low
    noise = scipy.optimize.brentq(lambda z: rough(z) - target_epsilon, high / 2, high, rtol=1e-4)
    slope = math.log(rough(noise) / rough(1.01 * noise)) / math.log(1 / 1.01)
    last: Optional[tuple[float, float]] = None
    while high > low * (1 + _TOLERANCE):
        current = epsilon(noise)
        low, high = (low, noise) if current <= target_epsilon else (noise, high)
        if last is not None and 0 < current != last[1]:
            slope = math.log(current / last[1]) / math.log(noise / last[0])
        last = (noise, current)
        root = noise * (target_epsilon / current) ** (1 / slope) if current > 0 else 0.0
        # Try a value slightly above the root, then one slightly below: both bracket the root.
        noise = root * (1 + 0.4 * _TOLERANCE)
        if noise > high * (1 - 0.1 * _TOLERANCE):
            noise = root * (1 - 0.4 * _TOLERANCE)
        if not low < noise < high:
            noise = math.sqrt(low * high)
    return high


def rounds_for_budget(
    mechanism: Mechanism, target_epsilon: float, delta: float, accountant: Optional[str] = None
) -> int:
    """Returns the maximum number of rounds for which epsilon is at most the target.

    Args:
        accountant: See `PrivacyAccountant`.
    """
    accounts = PrivacyAccountant([mechanism], delta, accountant)
    first = accounts.epsilon(1)
    if first > target_epsilon:
        cost = f"one round costs with a noise multiplier of {mechanism.noise_multiplier:g}"
        expected = f"at least {first:.6g}, which {cost}"
        raise OptionError("target_epsilon", expected, Verbatim(f"{target_epsilon:g}"))
    low, high = 1, 2
    while high <= MAX_ROUNDS and accounts.epsilon(high) <= target_epsilon:
        low, high = high, 2 * high
    if high > MAX_ROUNDS:
        cost = f"{low} rounds cost {accounts.epsilon(low):.6g}"
        target = Verbatim(f"{target_epsilon:g}: {cost}")
        raise OptionError("target_epsilon", "a budget that rounds exhaust", target)
    while high - low > 1:
        middle = (low + high) // 2
        if accounts.epsilon(middle) <= target_epsilon:
            low = middle
        else:
            high = middle
    return low


def _first_power(is_enough: Callable[[float], bool]) -> float:
    """Returns the smallest power of 2, at least `MIN_NOISE`, for which `is_enough` is true."""
    noise = 1.0
    while noise > MIN_NOISE and is_enough(noise / 2):
        noise /= 2
    while noise < _MAX_NOISE and not is_enough(noise):
        noise *= 2
    return noise


def guarantee(epsilon: float, delta: float, scope: str) -> str:
    """Returns the guarantee as text, with a note if it is weak.

    Args:
        epsilon: Epsilon; infinite without noise.
        scope: Text after "differential privacy", such as "of each client after 3 rounds".
    """
    if not math.isfinite(epsilon):
        return f"no differential privacy {scope}: without noise epsilon is infinite"
    weak = f", which promises next to nothing: epsilon is above {WEAK_EPSILON:g}"
    return (
        f"({epsilon:.4g}, {delta:.3g})-differential privacy {scope}"
        f"{weak if epsilon > WEAK_EPSILON else ''}"
    )


def noise_warning(
    noise_multiplier: float, clients_per_round: int, rounds: int, is_tree: bool = False
) -> Optional[str]:
    """Returns a warning, without full stop, if noise exceeds the clients' signal; else None.

    Args:
        noise_multiplier: Noise multiplier z of a round's release.
        rounds: Number T of rounds; the signal grows with T, the noise with sqrt(T).
        is_tree: Whether the noise is on a tree of sums over rounds; it then does not grow with T.
    """
    if noise_multiplier <= clients_per_round * (rounds if is_tree else math.sqrt(rounds)):
        return None
    return (
        f"nothing can be learnt: the noise of a round is {noise_multiplier:.4g} times what one "
        f"client can change, and {counted(rounds, 'round')} of "
        f"{counted(clients_per_round, 'client')} do not stand out"
    )


@dataclasses.dataclass(frozen=True)
class PrivacyStatement:
    """The guarantee of a run, and its assumptions.

    Attributes:
        epsilon: Epsilon of all releases so far.
        delta: The delta of (epsilon, delta).
        rounds: Number of releases, such as rounds, that the guarantee covers.
        noise_multiplier: Noise multiplier z of a round's complete release.
        split: Noise multiplier of each group of values in the release.
        adjacency: How neighbouring client populations differ.
        sampling: The assumption about cohorts, as a sentence without full stop.
        accountant: Name of the accountant.
        library: Version of dp-accounting that computed epsilon.
        unit: Unit of privacy: neighbouring populations differ in one unit's data.
        not_covered: Disclosures that the guarantee does not cover.
        remarks: Additional notes, such as that the noise seed is known.
        count_noun: Noun for the releases that `rounds` counts.
        noise_generator: Title of the noise generator; None if the statement is not about a run.
        noise_tail: Bound on the probability that any noise is outside its generator's range; None
            if the statement is not about a run.
    """

    epsilon: float
    delta: float
    rounds: int
    noise_multiplier: float
    split: Mapping[str, float]
    adjacency: str
    sampling: str
    accountant: str
    library: str
    unit: str = UNIT
    not_covered: tuple[str, ...] = NOT_COVERED
    remarks: tuple[str, ...] = ()
    count_noun: str = "rounds"
    noise_generator: Optional[str] = None
    noise_tail: Optional[float] = None

    def to_dict(self) -> dict[str, Any]:
        """Returns the statement as JSON values; an infinite epsilon (without noise) is None."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        values[values.pop("count_noun")] = values.pop("rounds")
        for name in ("noise_generator", "noise_tail"):
            if values[name] is None:
                del values[name]
        return {
            **values,
            "epsilon": finite_or_none(self.epsilon),
            "split": dict(self.split),
            "not_covered": list(self.not_covered),
            "remarks": list(self.remarks),
        }

    @property
    def text(self) -> str:
        """Returns the guarantee in one line."""
        scope = f"of each {self.unit} after {self.rounds} {self.count_noun}"
        return guarantee(self.epsilon, self.delta, scope)

    def rows(self) -> list[tuple[str, str]]:
        """Returns the statement as rows of a table, (label, value)."""
        split = ", ".join(f"{name} {z:.4g}" for name, z in self.split.items())
        return [
            ("guarantee", self.text),
            ("neighbours", self.adjacency),
            ("taken for granted", self.sampling),
            ("noise multiplier", f"{self.noise_multiplier:.6g}"),
            ("of each group", split),
            ("accountant", f"{self.accountant}, {self.library}"),
            *([] if self.noise_generator is None else [("noise generator", self.noise_generator)]),
            *([] if self.noise_tail is None else [("beyond its tail", f"{self.noise_tail:.2g}")]),
            *(("not covered", text) for text in self.not_covered),
            *(("remark", text) for text in self.remarks),
        ]


def statement(
    accountant: PrivacyAccountant,
    counts: Sequence[int],
    split: Mapping[str, float],
    remarks: Sequence[str] = (),
    evaluations_are_private: bool = False,
    count_noun: str = "rounds",
    noise_generator: Optional[str] = None,
    noise_tail: Optional[float] = None,
) -> PrivacyStatement:
    """Returns the privacy statement after given numbers of releases.

    Args:
        counts: Number of releases of each mechanism; the statement gives the first mechanism's
            noise and number of releases.
        split: Noise multiplier of each group of values in a release.
        remarks: See `PrivacyStatement`.
        evaluations_are_private: Whether evaluations have their own statement.
        count_noun: See `PrivacyStatement`.
        noise_generator: See `PrivacyStatement`.
        noise_tail: See `PrivacyStatement`.
    """
    first = accountant.mechanisms[0]
    assumptions = dict.fromkeys(mechanism.assumption for mechanism in accountant.mechanisms)
    return PrivacyStatement(
        epsilon=accountant.epsilon(*counts),
        delta=accountant.delta,
        rounds=counts[0],
        noise_multiplier=first.noise_multiplier,
        split=dict(split),
        adjacency=first.adjacency,
        sampling="; ".join(assumptions),
        accountant=accountant.name,
        library=f"dp-accounting {importlib.metadata.version('dp-accounting')}",
        not_covered=_NEVER_COVERED if evaluations_are_private else NOT_COVERED,
        remarks=tuple(remarks),
        count_noun=count_noun,
        noise_generator=noise_generator,
        noise_tail=noise_tail,
    )
