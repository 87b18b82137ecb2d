"""Noise for an epsilon, rounds for a budget, and which delta."""

import functools
from collections.abc import Callable, Sequence
from typing import Optional

from dp_accounting import ExplicitBracketInterval, NoOpDpEvent, calibrate_dp_mechanism
from dp_accounting.mechanism_calibration import NoOptimumFoundError

from tff_agnostic.errors import UserError
from tff_agnostic.privacy.accountant import PrivacyAccountant, accountant_name
from tff_agnostic.privacy.budget import LEAST_NOISE
from tff_agnostic.privacy.mechanism import Mechanism
from tff_agnostic.privacy.sampling import RDP

# Noise that is looked for: above, nothing is learned.
_MOST_NOISE = 2.0**20
# Of the noise multiplier, of itself.
_TOLERANCE = 1e-5
# Steps in which less noise is tried, of the noise before.
_NEARLY = 0.8
# The epsilons that are calibrated know their delta.
_NO_DELTA = 0.0
# More than any run has. Of many more no account is worked out: privacy losses would take hours.
MAX_ROUNDS = 2**20

# What is released at a noise multiplier.
Mechanisms = Callable[[float], Sequence[Mechanism]]


def default_delta(clients: int) -> float:
    """Returns one over ten times the clients."""
    return 1 / (10 * clients)


def check_delta(delta: float, clients: int) -> None:
    """Raises a `UserError` unless delta is above 0 and below one over the clients.

    With one over the clients a mechanism that publishes everything of one of them would do.
    """
    if not 0 < delta < 1 / clients:
        raise UserError(
            f"--delta: expected more than 0 and less than {1 / clients:.3g}, one over the number "
            f"of clients, found {delta:g}"
        )


def check_rounds(rounds: int) -> None:
    """Raises a `UserError` if there are more rounds than an account is worked out for."""
    if rounds > MAX_ROUNDS:
        raise UserError(
            f"--rounds: expected at most {MAX_ROUNDS} with differential privacy, found {rounds}"
        )


def noise_for_epsilon(
    mechanisms: Mechanisms,
    counts: Sequence[int],
    target_epsilon: float,
    delta: float,
    accountant: Optional[str] = None,
) -> float:
    """Returns the least noise multiplier with which epsilon is at most the target.

    Args:
        mechanisms: Returns what is released at a noise multiplier.
        counts: How often each of it is released.
        target_epsilon: The budget.
        delta: The delta that it is for.
        accountant: See `PrivacyAccountant`.

    Raises:
        UserError: If no noise reaches the target, or hardly any is needed.
    """
    name = accountant_name(mechanisms(1.0), accountant)

    @functools.cache
    def epsilon(noise_multiplier: float, by: str = name) -> float:
        return PrivacyAccountant(mechanisms(noise_multiplier), delta, by).epsilon(*counts)

    high = _first_power(lambda z: epsilon(z, RDP) <= target_epsilon, LEAST_NOISE)
    if name != RDP and high is not None:
        # Renyi divergences are quicker, and ask for little more noise.
        high = _calibrated(lambda z: epsilon(z, RDP), high / 2, high, target_epsilon)
    if high is None or epsilon(high) > target_epsilon:
        # Of very small ones the two differ in what they round.
        high = _first_power(lambda z: epsilon(z) <= target_epsilon, 1.0)
    if high is None:
        raise UserError(
            f"--target_epsilon: expected one that some noise reaches, found {target_epsilon:g}: "
            f"{epsilon(_MOST_NOISE):.6g} is left with a noise multiplier of {_MOST_NOISE:g}"
        )
    low = _NEARLY * high
    while epsilon(low) <= target_epsilon:
        low, high = _NEARLY * low, low
        if high <= LEAST_NOISE:
            raise UserError(
                f"--target_epsilon: expected less than {epsilon(high):.6g}, which a noise "
                f"multiplier of {high:g} has already, found {target_epsilon:g}"
            )
    return _calibrated(epsilon, low, high, target_epsilon)


def _calibrated(
    epsilon: Callable[[float], float], low: float, high: float, target_epsilon: float
) -> float:
    """Returns the least noise that is enough, between one that may be and one that is enough."""
    if epsilon(low) <= target_epsilon:
        return low
    try:
        found: float = calibrate_dp_mechanism(
            _Fresh,
            lambda noise_multiplier: epsilon(float(noise_multiplier)),
            target_epsilon,
            _NO_DELTA,
            ExplicitBracketInterval(low, high),
            tol=_TOLERANCE * high,
        )
    except NoOptimumFoundError:
        # Rounding of the accountant: the end of the bracket is enough noise.
        found = high
    return found


def rounds_for_budget(
    mechanism: Mechanism, target_epsilon: float, delta: float, accountant: Optional[str] = None
) -> int:
    """Returns the most rounds after which epsilon is at most the target.

    Args:
        mechanism: What a round releases.
        target_epsilon: The budget.
        delta: The delta that it is for.
        accountant: See `PrivacyAccountant`.

    Raises:
        UserError: If the first round is too much, or no number of rounds that can be run.
    """
    known = PrivacyAccountant([mechanism], delta, accountant)
    first = known.epsilon(1)
    if first > target_epsilon:
        raise UserError(
            f"--target_epsilon: expected at least {first:.6g}, which one round costs with a noise "
            f"multiplier of {mechanism.noise_multiplier:g}, found {target_epsilon:g}"
        )
    low, high = 1, 2
    while high <= MAX_ROUNDS and known.epsilon(high) <= target_epsilon:
        low, high = high, 2 * high
    if high > MAX_ROUNDS:
        raise UserError(
            f"--target_epsilon: expected a budget that rounds exhaust, found {target_epsilon:g}: "
            f"{low} rounds cost {known.epsilon(low):.6g}"
        )
    while high - low > 1:
        middle = (low + high) // 2
        if known.epsilon(middle) <= target_epsilon:
            low = middle
        else:
            high = middle
    return low


def _first_power(is_enough: Callable[[float], bool], least: float) -> Optional[float]:
    """Returns the least power of 2 that is enough, from `least` to `_MOST_NOISE`, or None."""
    noise = 1.0
    while noise > least and is_enough(noise / 2):
        noise /= 2
    while not is_enough(noise):
        noise *= 2
        if noise > _MOST_NOISE:
            return None
    return noise


class _Fresh:
    """What `calibrate_dp_mechanism` asks of an accountant, for epsilons that are known already."""

    ledger = NoOpDpEvent()

    def __init__(self) -> None:
        self._epsilon = 0.0

    def compose(self, epsilon: float) -> "_Fresh":
        self._epsilon = epsilon
        return self

    def get_epsilon(self, delta: float) -> float:
        del delta
        return self._epsilon
