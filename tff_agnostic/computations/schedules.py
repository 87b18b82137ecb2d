"""Learning rates that fall by round: gamma_t of Laguel et al. 2021, Algorithm 2, and of others.

A schedule is a factor of the rate in round t, which is 0 in the first round. Clients know t from
the seed of their round, so that no message changes; a server's optimizer counts it. A rate that is
constant is a number and no tensor: graphs and states are then those without a schedule.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any, Union

from tff_agnostic.computations.algorithm import Algorithm, Column
from tff_agnostic.errors import UserError
from tff_agnostic.later import tf
from tff_agnostic.registry import Registry
from tff_agnostic.report_fields import ReportField
from tff_agnostic.settings import setting

CONSTANT = "constant"
# t -> rate: Keras' schedules, and functions of TensorFlow.
RateOfRound = Callable[[Any], Any]
_MOST_ROUNDS = 100_000


def _piecewise(t: tf.Tensor, rounds: tuple[int, ...], factors: tuple[float, ...]) -> tf.Tensor:
    passed = tf.reduce_sum(tf.cast(t >= tf.constant(rounds, tf.float32), tf.int32))
    return tf.gather(tf.constant((1.0, *factors), tf.float32), passed)


def _cosine(t: tf.Tensor, rounds: tuple[int, ...], factors: tuple[float, ...]) -> tf.Tensor:
    # Loshchilov and Hutter 2017, equation (5), without restarts
    part = tf.minimum(t / rounds[0], 1.0)
    return factors[0] + (1.0 - factors[0]) * 0.5 * (1.0 + tf.cos(math.pi * part))


def _exponential(t: tf.Tensor, rounds: tuple[int, ...], factors: tuple[float, ...]) -> tf.Tensor:
    # f^(t / T), by a logarithm of f itself: rounded to float32, f would be off t times over.
    return tf.exp(t * (math.log(factors[0]) / rounds[0]))


# (t, T, f) -> factor of the rate; t float32. The help says what each is.
SCHEDULES: Registry[Callable[[Any, tuple[int, ...], tuple[float, ...]], Any]] = Registry(
    "schedule",
    {
        CONSTANT: lambda t, rounds, factors: 1.0,
        "inverse_time": lambda t, rounds, factors: 1.0 / (1.0 + t / rounds[0]),
        "inverse_sqrt": lambda t, rounds, factors: tf.math.rsqrt(1.0 + t / rounds[0]),
        "exponential": _exponential,
        "cosine": _cosine,
        "piecewise": _piecewise,
    },
)
_FALLING = tuple(name for name in SCHEDULES if name != CONSTANT)
_WITH_FACTORS = ("exponential", "cosine", "piecewise")


def schedule_setting(whose: str, rate: str) -> Any:
    """Declares the field WHOSE_schedule, beside WHOSE_schedule_rounds and WHOSE_schedule_factors.

    Args:
        whose: The beginning of the fields' names, as in the other two functions.
        rate: The rate's symbol.
    """
    del whose
    return setting(
        CONSTANT,
        f"How {rate} falls from round to round: see docs/reference/algorithms/schedules.md.",
        choices=SCHEDULES,
        # In Python, a schedule of Keras or a function of t, whose value is the rate itself.
        also=Callable,
    )


def rounds_setting(whose: str) -> Any:
    """Declares the field WHOSE_schedule_rounds."""
    return setting(
        (100,),
        "T of the schedule: a number of rounds; of piecewise one or more, rising.",
        only_with=(f"{whose}_schedule", _FALLING),
    )


def factors_setting(whose: str) -> Any:
    """Declares the field WHOSE_schedule_factors."""
    return setting(
        (0.1,),
        "f of the schedule, a factor of the first round's rate; of piecewise one for each T.",
        only_with=(f"{whose}_schedule", _WITH_FACTORS),
    )


@dataclasses.dataclass(frozen=True)
class Rate:
    """A learning rate by round.

    Attributes:
        first: The rate, of which a schedule has factors.
        schedule: A name in `SCHEDULES`, or a function of t whose value is the rate.
        rounds: T.
        factors: f.
    """

    first: float
    schedule: Union[str, RateOfRound] = CONSTANT
    rounds: tuple[int, ...] = ()
    factors: tuple[float, ...] = ()

    @property
    def is_constant(self) -> bool:
        """Whether it is the same number in all rounds."""
        return self.schedule == CONSTANT

    def at(self, t: Any, scale: float = 1.0) -> Any:
        """Returns the rate of a round times `scale`: a number if it is constant, else float32.

        Where the factor is 1, it has the bits of the constant.

        Args:
            t: The round, from 0; an int32 scalar.
            scale: What it is multiplied by.
        """
        if self.is_constant:
            return self.first * scale
        if not isinstance(self.schedule, str):
            return self._of_function(t) * scale
        factor = SCHEDULES[self.schedule](tf.cast(t, tf.float32), self.rounds, self.factors)
        return tf.constant(self.first * scale, tf.float32) * factor

    def inverse_at(self, t: Any) -> Any:
        """Returns 1 over the rate of a round, as `at` does; 0 where the rate is 0."""
        rate = self.at(t)
        return 1.0 / rate if self.is_constant else tf.math.reciprocal_no_nan(rate)

    def _of_function(self, t: Any) -> tf.Tensor:
        assert not isinstance(self.schedule, str)
        try:
            return tf.cast(self.schedule(t), tf.float32)
        except tf.errors.OperatorNotAllowedInGraphError as e:
            raise UserError(
                "schedule: expected a function of TensorFlow's operations, as rounds are traced, "
                "found one that decides by the round in Python: use tf.where, or "
                "tff_agnostic.api.train, which makes a table of it"
            ) from e


def rate_of(options: Any, whose: str) -> Rate:
    """Returns a rate of an algorithm's settings; "client" or "server"."""
    schedule = f"{whose}_schedule"
    return Rate(
        getattr(options, f"{whose}_learning_rate"),
        getattr(options, schedule),
        getattr(options, f"{schedule}_rounds"),
        getattr(options, f"{schedule}_factors"),
    )


def check_schedule(options: Any, whose: str) -> None:
    """Checks the fields of a schedule against one another."""
    rate, flag = rate_of(options, whose), f"--{whose}_schedule"
    if rate.is_constant or not isinstance(rate.schedule, str):
        return
    rounds, factors = rate.rounds, rate.factors
    if not rounds or rounds[0] < 1 or any(b <= a for a, b in itertools.pairwise(rounds)):
        found = ",".join(map(str, rounds)) or "none"
        raise UserError(f"{flag}_rounds: expected positive numbers that rise, found {found}")
    is_piecewise = rate.schedule == "piecewise"
    if not is_piecewise and len(rounds) > 1:
        raise UserError(f"{flag}_rounds: expected one number with {flag}={rate.schedule}")
    if rate.schedule not in _WITH_FACTORS:
        return
    wanted = len(rounds) if is_piecewise else 1
    if len(factors) != wanted:
        raise UserError(f"{flag}_factors: expected {wanted}, one for each T, found {len(factors)}")
    # Only along a cosine does a rate become 0 in the end.
    lowest = 0.0 if rate.schedule == "cosine" else None
    for factor in factors:
        if not (factor > 0 or factor == lowest):
            raise UserError(f"{flag}_factors: expected a positive number, found {factor:g}")


_RATES: Mapping[str, str] = {
    "client": "learning rate of the clients' SGD",
    "server": "learning rate of the server optimizer",
}


def _column(whose: str, rate: Rate) -> Column:
    field = ReportField(f"{whose}_learning_rate", _RATES[whose])
    return Column(field, lambda r: tf.cast(rate.at(r.round_num), tf.float32))


def with_rate_columns(algorithm: Algorithm, options: Any) -> Algorithm:
    """Returns the algorithm, which reports each of its rates that has a schedule.

    Args:
        options: What it was built with.
    """
    of_options = [whose for whose in _RATES if hasattr(options, f"{whose}_schedule")]
    rates = {whose: rate_of(options, whose) for whose in of_options}
    columns = [_column(whose, rate) for whose, rate in rates.items() if not rate.is_constant]
    if not columns:
        return algorithm
    return dataclasses.replace(algorithm, columns=(*algorithm.columns, *columns))


def tabulated(values: Mapping[str, Any], rounds: int) -> dict[str, Any]:
    """Returns settings in which schedules that are functions are piecewise, as files have them.

    After the last round that was asked for, the rate stays what it was there.

    Args:
        values: Settings by flag.
        rounds: T of the run.
    """
    found = dict(values)
    for whose in _RATES:
        function = values.get(f"{whose}_schedule")
        if not callable(function):
            continue
        rate = f"{whose}_learning_rate"
        if values.get(rate) is not None:
            raise UserError(
                f"--{rate}: expected none beside a {whose}_schedule that is a function of the "
                f"round, whose value is the rate, found {values[rate]}"
            )
        if rounds > _MOST_ROUNDS:
            raise UserError(
                f"--{whose}_schedule: expected a name for more than {_MOST_ROUNDS} rounds, found a "
                "function"
            )
        rates = [_number(whose, function, t) for t in range(rounds)]
        changes = [t for t in range(1, rounds) if rates[t] != rates[t - 1]]
        found[rate] = rates[0]
        found[f"{whose}_schedule"] = "piecewise" if changes else CONSTANT
        if changes:
            found[f"{whose}_schedule_rounds"] = tuple(changes)
            found[f"{whose}_schedule_factors"] = tuple(rates[t] / rates[0] for t in changes)
    return found


def _number(whose: str, function: RateOfRound, t: int) -> float:
    try:
        value = float(function(t))
    except (TypeError, ValueError):
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise UserError(
            f"--{whose}_schedule: expected a function whose value is a positive number, found "
            f"{function(t)!r:.100} in round {t}"
        )
    return value
