"""Epsilon of composed releases, calibration of noise and rounds, and the statement for reports."""

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
from tff_agnostic.privacy.mechanisms import LEAST_NOISE, Mechanism
from tff_agnostic.privacy.sampling import PLD, RDP

# Larger epsilons are not computed by `pld`: they guarantee nothing anyway.
_MOST_WORKED_OUT = 100.0
# End of the search range of noise multipliers: with more noise nothing is learned.
_MOST_NOISE = 2.0**20
# Relative tolerance of a calibrated noise multiplier.
_TOLERANCE = 1e-6
# A search first uses a grid of losses so much coarser, on which an account is as much faster. It
# adds less than .02 to epsilon, and nearly as much to that of neighbouring noise multipliers.
_COARSER = 30.0
# With these few orders, which are whole numbers, a bound takes a twentieth of the time.
_FEW_ORDERS = (2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0)
# More than any run has. For many more, privacy losses would take hours.
MAX_ROUNDS = 2**20
UNIT = "client"
_EVALUATIONS = "evaluations: their numbers are exact, and the evaluated clients are not protected"
# Not covered by any account.
_NEVER_COVERED = (
    "tuning: other runs on the same clients, and the choice of settings by their results",
    "the choice of the algorithm by results on the same clients",
    "the length of a round, and whether a client was online",
    "errors that end a command: they name clients and their values",
)
# Not covered by an account of training.
NOT_COVERED = (_EVALUATIONS, *_NEVER_COVERED)
# Above it, epsilon guarantees next to nothing.
WEAK_EPSILON = 10.0
# Part of delta that the probability of noise beyond its generator's tail may have.
_TAIL_SHARE = 0.01


@functools.cache
def _orders() -> tuple[float, ...]:
    return tuple(map(float, dp_accounting.rdp.rdp_privacy_accountant.DEFAULT_RDP_ORDERS))


class PrivacyAccountant:
    """Computes epsilon for given numbers of releases of each mechanism, and caches it.

    That takes milliseconds with `rdp` and about a tenth of a second with `pld`, whatever the number
    of releases. No state of a run is kept here: a resumed run passes the numbers it has reached.

    Args:
        mechanisms: The releases about one client population, e.g. training, and evaluation on the
            same clients. All of them are composed.
        delta: The delta that epsilon is for.
        name: A name of `ACCOUNTANTS`; the first mechanism's default that applies to all if None.
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
        expected = f"{' or '.join(common) or 'another'} for these mechanisms and cohorts"
        raise OptionError("privacy_accountant", expected, Verbatim(wanted))
    return wanted or common[0]


def _rdp_epsilon(
    pairs: Sequence[tuple[Mechanism, int]], delta: float, orders: Optional[tuple[float, ...]] = None
) -> float:
    orders = _orders() if orders is None else orders
    total = np.sum([mechanism.rdp(count, orders) for mechanism, count in pairs], axis=0)
    if np.any(np.isnan(total)):
        raise ValueError(f"a Renyi divergence is not a number: {[m for m, _ in pairs]}")
    # With very much noise, rounding may leave slightly negative divergences.
    total = np.maximum(total, 0.0)
    epsilon, _ = dp_accounting.rdp.compute_epsilon(orders, total, delta)
    return float(epsilon)


def _rough_rdp_epsilon(pairs: Sequence[tuple[Mechanism, int]], delta: float) -> float:
    return _rdp_epsilon(pairs, delta, _FEW_ORDERS)


def _pld_epsilon(
    pairs: Sequence[tuple[Mechanism, int]], delta: float, coarser: float = 1.0
) -> float:
    if _rough_rdp_epsilon(pairs, delta) > _MOST_WORKED_OUT:
        quickly = _rdp_epsilon(pairs, delta)
        if quickly > _MOST_WORKED_OUT:
            # A valid bound. Privacy losses would take minutes and gigabytes for one as useless.
            return quickly
    (mechanism, count), *others = pairs
    # The first mechanism is composed most often with itself: its grid is used for all.
    interval = coarser * mechanism.interval(count)
    loss = mechanism.privacy_loss(count, interval)
    for mechanism, count in others:
        loss = loss.compose(mechanism.privacy_loss(count, interval))
    return float(loss.get_epsilon_for_delta(delta))


def _rough_pld_epsilon(pairs: Sequence[tuple[Mechanism, int]], delta: float) -> float:
    return _pld_epsilon(pairs, delta, _COARSER)


# PLD: numerical composition of privacy losses, the tighter; RDP: Renyi divergences.
ACCOUNTANTS: Registry[Callable[[Sequence[tuple[Mechanism, int]], float], float]] = Registry(
    "privacy accountant", {PLD: _pld_epsilon, RDP: _rdp_epsilon}
)
# Valid and larger, in a tenth of the time: for searches, which end with the accountant itself.
_ROUGH = {PLD: _rough_pld_epsilon, RDP: _rough_rdp_epsilon}

# From a noise multiplier to all that is released.
Mechanisms = Callable[[float], Sequence[Mechanism]]


def default_delta(clients: int) -> float:
    """Returns one over ten times the clients."""
    return 1 / (10 * clients)


def check_delta(delta: float, clients: int) -> None:
    """Raises a `UserError` unless delta is above 0 and below one over the clients.

    With delta of one over the clients, publishing all data of one random client would be private.
    """
    if not 0 < delta < 1 / clients:
        expected = f"more than 0 and less than {1 / clients:.3g}, one over the number of clients"
        raise OptionError("delta", expected, Verbatim(f"{delta:g}"))


def check_tail(tail: float, delta: float, field: str = "delta") -> None:
    """Raises a `UserError` if noise may lie beyond its generator's tail with too much probability.

    Args:
        tail: Bound of the probability over the whole run.
        delta: The delta that epsilon is for.
        field: Name of the option that sets delta.
    """
    if tail > _TAIL_SHARE * delta:
        raise OptionError(
            field,
            f"at least {tail / _TAIL_SHARE:.3g}, {1 / _TAIL_SHARE:g} times the probability of "
            "noise beyond the tail of its generator over the whole run",
            Verbatim(f"{delta:.3g}: fewer rounds make it less"),
        )


def check_rounds(rounds: int) -> None:
    """Raises a `UserError` if there are more rounds than an account is worked out for."""
    if rounds > MAX_ROUNDS:
        raise OptionError("rounds", f"at most {MAX_ROUNDS} with differential privacy", rounds)


def noise_for_epsilon(
    mechanisms: Mechanisms,
    counts: Sequence[int],
    target_epsilon: float,
    delta: float,
    accountant: Optional[str] = None,
) -> float:
    """Returns the least noise multiplier with which epsilon is at most the target, or 1e-6 more.

    A rough account tells where it is. From there the secant method goes on with the accountant
    itself, in logarithms, in which epsilon is nearly a line.

    Args:
        mechanisms: Returns what is released at a noise multiplier.
        counts: How often each of it is released.
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

    # Of very small epsilons the rough account may know none.
    cheap = next((e for e in (rough, epsilon) if e(_MOST_NOISE) <= target_epsilon), None)
    if cheap is None:
        left = f"{epsilon(_MOST_NOISE):.6g} is left with a noise multiplier of {_MOST_NOISE:g}"
        found = Verbatim(f"{target_epsilon:g}: {left}")
        raise OptionError("target_epsilon", "one that some noise reaches", found)
    high = _first_power(lambda z: cheap(z) <= target_epsilon)
    noise = _calibrated(epsilon, cheap, high, target_epsilon)
    if noise <= LEAST_NOISE:
        spent = f"{epsilon(noise):.6g}, which a noise multiplier of {noise:g} has already"
        raise OptionError("target_epsilon", f"less than {spent}", Verbatim(f"{target_epsilon:g}"))
    return noise


def _calibrated(
    epsilon: Callable[[float], float],
    rough: Callable[[float], float],
    high: float,
    target_epsilon: float,
) -> float:
    """Returns the least noise that is enough, at least `LEAST_NOISE`.

    Args:
        epsilon: What has to be at most the target.
        rough: At least epsilon; it tells where the search begins.
        high: With it both are at most the target; half of it is not enough for `rough`.
    """
    low = LEAST_NOISE
    if high <= low:
        return low
    noise = scipy.optimize.brentq(lambda z: rough(z) - target_epsilon, high / 2, high, rtol=1e-4)
    # Of log(epsilon) over log(z).
    slope = math.log(rough(noise) / rough(1.01 * noise)) / math.log(1 / 1.01)
    last: Optional[tuple[float, float]] = None
    while high > low * (1 + _TOLERANCE):
        found = epsilon(noise)
        low, high = (low, noise) if found <= target_epsilon else (noise, high)
        if last is not None and 0 < found != last[1]:
            slope = math.log(found / last[1]) / math.log(noise / last[0])
        last = (noise, found)
        root = noise * (target_epsilon / found) ** (1 / slope) if found > 0 else 0.0
        # First a little above the root, then a little below it: between them it is known.
        noise = root * (1 + 0.4 * _TOLERANCE)
        if noise > high * (1 - 0.1 * _TOLERANCE):
            noise = root * (1 - 0.4 * _TOLERANCE)
        if not low < noise < high:
            noise = math.sqrt(low * high)
    return high


def rounds_for_budget(
    mechanism: Mechanism, target_epsilon: float, delta: float, accountant: Optional[str] = None
) -> int:
    """Returns the most rounds after which epsilon is at most the target.

    Args:
        accountant: See `PrivacyAccountant`.
    """
    known = PrivacyAccountant([mechanism], delta, accountant)
    first = known.epsilon(1)
    if first > target_epsilon:
        cost = f"one round costs with a noise multiplier of {mechanism.noise_multiplier:g}"
        expected = f"at least {first:.6g}, which {cost}"
        raise OptionError("target_epsilon", expected, Verbatim(f"{target_epsilon:g}"))
    low, high = 1, 2
    while high <= MAX_ROUNDS and known.epsilon(high) <= target_epsilon:
        low, high = high, 2 * high
    if high > MAX_ROUNDS:
        cost = f"{low} rounds cost {known.epsilon(low):.6g}"
        found = Verbatim(f"{target_epsilon:g}: {cost}")
        raise OptionError("target_epsilon", "a budget that rounds exhaust", found)
    while high - low > 1:
        middle = (low + high) // 2
        if known.epsilon(middle) <= target_epsilon:
            low = middle
        else:
            high = middle
    return low


def _first_power(is_enough: Callable[[float], bool]) -> float:
    """Returns the least power of 2 that is enough, at least `LEAST_NOISE`; `_MOST_NOISE` is."""
    noise = 1.0
    while noise > LEAST_NOISE and is_enough(noise / 2):
        noise /= 2
    while noise < _MOST_NOISE and not is_enough(noise):
        noise *= 2
    return noise


def guarantee(epsilon: float, delta: float, of_what: str) -> str:
    """Returns the guarantee in words; it says so if the guarantee is weak.

    Args:
        epsilon: Epsilon; infinite without noise.
        of_what: The text after "differential privacy", such as "of each client after 3 rounds".
    """
    if not math.isfinite(epsilon):
        return f"no differential privacy {of_what}: without noise epsilon is infinite"
    weak = f", which promises next to nothing: epsilon is above {WEAK_EPSILON:g}"
    return (
        f"({epsilon:.4g}, {delta:.3g})-differential privacy {of_what}"
        f"{weak if epsilon > WEAK_EPSILON else ''}"
    )


def drowned(
    noise_multiplier: float, clients_per_round: int, rounds: int, is_tree: bool = False
) -> Optional[str]:
    """Returns a sentence, without full stop, if noise drowns all that clients send; None otherwise.

    Args:
        noise_multiplier: z of a round's release.
        rounds: Over T rounds what clients send grows by T, and noise by the root of T.
        is_tree: Whether it is noise on sums over the rounds, which does not grow.
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
        epsilon: Epsilon of everything released so far.
        delta: The delta that it is for.
        rounds: Rounds, or other releases, after which it holds.
        noise_multiplier: z of a round's whole release.
        split: Noise multiplier of each group of the release.
        adjacency: How neighbouring client populations differ.
        sampling: The assumption about cohorts, a sentence without full stop.
        accountant: Name of the accountant.
        library: The release of dp-accounting that computed epsilon.
        unit: The unit of privacy, whose data neighbours differ in.
        not_covered: Limits of the guarantee.
        remarks: Further notes for the reader, e.g. that a noise seed was given.
        of_what: What `rounds` counts.
        noise_generator: Title of the generator of the noise; None where there is no run.
        noise_tail: Bound of the probability that any noise lies beyond its generator's tail; None
            where there is no run.
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
    of_what: str = "rounds"
    noise_generator: Optional[str] = None
    noise_tail: Optional[float] = None

    def to_dict(self) -> dict[str, Any]:
        """Returns it for JSON; an infinite epsilon, that of no noise, is None."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        values[values.pop("of_what")] = values.pop("rounds")
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
        of_what = f"of each {self.unit} after {self.rounds} {self.of_what}"
        return guarantee(self.epsilon, self.delta, of_what)

    def rows(self) -> list[tuple[str, str]]:
        """Returns lines of a table: what, and its value."""
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
    of_what: str = "rounds",
    noise_generator: Optional[str] = None,
    noise_tail: Optional[float] = None,
) -> PrivacyStatement:
    """Returns what holds after a number of releases.

    Args:
        counts: How often each mechanism was released; the statement describes the first one.
        split: Noise multiplier of each group of its releases.
        remarks: See `PrivacyStatement`.
        evaluations_are_private: Whether evaluations have a statement, too.
        of_what: See `PrivacyStatement`.
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
        of_what=of_what,
        noise_generator=noise_generator,
        noise_tail=noise_tail,
    )
