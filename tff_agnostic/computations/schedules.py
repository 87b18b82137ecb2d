"""Learning-rate schedules over rounds, such as gamma_t of Laguel et al. 2021, Algorithm 2.

A schedule is a factor of the first rate in round t, counted from 0. Clients know t from the seed of
their round, so messages need not contain it; a server optimizer counts t. A constant rate is a
Python number instead of a tensor, so that it changes neither graphs nor states.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Union

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.later import tf
from tff_agnostic.base.options import Options, Verbatim, Within
from tff_agnostic.base.report_fields import ReportField
from tff_agnostic.computations.algorithm import Algorithm, Column

_MAX_ROUNDS = 100_000
_Rounds = Annotated[int, Within(least=1)]


@dataclasses.dataclass(frozen=True)
class Constant(Options):
    """A constant rate."""

    def at(self, t: tf.Tensor) -> Any:
        """Returns the factor of round t, a float32 scalar."""
        return 1.0


@dataclasses.dataclass(frozen=True)
class InverseTime(Options):
    """The factor 1 / (1 + t / T).

    Attributes:
        rounds: Number of rounds T.
    """

    rounds: _Rounds = 100

    def at(self, t: tf.Tensor) -> tf.Tensor:
        """Returns the factor of round t, a float32 scalar."""
        return 1.0 / (1.0 + t / self.rounds)


@dataclasses.dataclass(frozen=True)
class InverseSqrt(Options):
    """The factor 1 / sqrt(1 + t / T).

    Attributes:
        rounds: Number of rounds T.
    """

    rounds: _Rounds = 100

    def at(self, t: tf.Tensor) -> tf.Tensor:
        """Returns the factor of round t, a float32 scalar."""
        return tf.math.rsqrt(1.0 + t / self.rounds)


@dataclasses.dataclass(frozen=True)
class Exponential(Options):
    """The factor f^(t / T).

    Attributes:
        rounds: Number of rounds T.
        factor: Factor f after T rounds.
    """

    rounds: _Rounds = 100
    factor: Annotated[float, Within(above=0)] = 0.1

    def at(self, t: tf.Tensor) -> tf.Tensor:
        """Returns the factor of round t, a float32 scalar."""
        # Use the logarithm of the exact f: rounding f to float32 first would multiply
        # the error by t.
        return tf.exp(t * (math.log(self.factor) / self.rounds))


@dataclasses.dataclass(frozen=True)
class Cosine(Options):
    """The factor f + (1 - f) (1 + cos(pi t / T)) / 2 (Loshchilov and Hutter 2017, equation 5).

    Attributes:
        rounds: Number of rounds T, after which the rate is constant.
        lowest: Last factor f.
    """

    rounds: _Rounds = 100
    lowest: Annotated[float, Within(least=0)] = 0.1

    def at(self, t: tf.Tensor) -> tf.Tensor:
        """Returns the factor of round t, a float32 scalar."""
        part = tf.minimum(t / self.rounds, 1.0)
        return self.lowest + (1.0 - self.lowest) * 0.5 * (1.0 + tf.cos(math.pi * part))


@dataclasses.dataclass(frozen=True)
class Piecewise(Options):
    """A piecewise constant factor.

    Attributes:
        rounds: Rounds in which the factor changes, in ascending order.
        factors: Factor from each of these rounds on.
    """

    rounds: tuple[int, ...] = (100,)
    factors: Annotated[tuple[float, ...], Within(above=0)] = (0.1,)

    def __post_init__(self) -> None:
        super().__post_init__()
        rounds = self.rounds
        if not rounds or rounds[0] < 1 or any(b <= a for a, b in itertools.pairwise(rounds)):
            raise self.error("rounds", "ascending positive numbers")
        if len(self.factors) != len(rounds):
            expected = f"{len(rounds)}, one for each round with a change"
            raise self.error("factors", expected, Verbatim(len(self.factors)))

    def at(self, t: tf.Tensor) -> tf.Tensor:
        """Returns the factor of round t, a float32 scalar."""
        passed = tf.reduce_sum(tf.cast(t >= tf.constant(self.rounds, tf.float32), tf.int32))
        return tf.gather(tf.constant((1.0, *self.factors), tf.float32), passed)


Schedule = Union[Constant, InverseTime, InverseSqrt, Exponential, Cosine, Piecewise]


@dataclasses.dataclass(frozen=True)
class Rate:
    """A learning rate by round.

    Attributes:
        first: Rate of the first round.
        schedule: Factor of the first rate in each round.
    """

    first: float
    schedule: Schedule = Constant()

    @property
    def is_constant(self) -> bool:
        """Whether the rate is the same number in all rounds."""
        return isinstance(self.schedule, Constant)

    def at(self, t: Any, scale: float = 1.0) -> Any:
        """Returns the rate of round t times `scale`: a Python number if constant, else float32.

        In rounds with a factor of 1, the result equals the first rate bit by bit.

        Args:
            t: The round, from 0; an int32 scalar.
            scale: Factor of the rate.
        """
        if self.is_constant:
            return self.first * scale
        factor = self.schedule.at(tf.cast(t, tf.float32))
        return tf.constant(self.first * scale, tf.float32) * factor

    def inverse_at(self, t: Any) -> Any:
        """Returns 1 / rate of round t, with the type of `at`; 0 for a rate of 0."""
        rate = self.at(t)
        return 1.0 / rate if self.is_constant else tf.math.reciprocal_no_nan(rate)


_RATES: Mapping[str, str] = {
    "client": "learning rate of the clients' SGD",
    "server": "learning rate of the server optimizer",
}


def with_rate_columns(algorithm: Algorithm, options: Any) -> Algorithm:
    """Returns the algorithm with a column for each learning rate that has a schedule.

    Args:
        options: Options of the algorithm: the client options are in a field `client`, the server
            options in a field `server`.
    """
    columns = []
    for part, label in _RATES.items():
        rate = getattr(getattr(options, part, None), "rate", None)
        if rate is not None and not rate.is_constant:
            field = ReportField(f"{part}_learning_rate", label)
            columns.append(Column(field, _round_rate(rate)))
    return dataclasses.replace(algorithm, columns=(*algorithm.columns, *columns))


def _round_rate(rate: Rate) -> Callable[[Any], tf.Tensor]:
    return lambda r: tf.cast(rate.at(r.round_num), tf.float32)


def tabulated(function: Callable[[int], Any], rounds: int) -> Rate:
    """Returns a rate that tabulates a function of the round, such as a Keras schedule.

    Pass the result's `first` and `schedule` as `learning_rate` and `schedule` of the clients or the
    server. After `rounds` the rate is constant.

        rate = tabulated(keras.optimizers.schedules.CosineDecay(0.5, 100), rounds=100)
        client = ClientTraining(learning_rate=rate.first, schedule=rate.schedule)

    Args:
        function: Maps a round, counted from 0, to the rate, a positive number.
        rounds: Number of rounds of the table, at most 100,000.
    """
    if not 1 <= rounds <= _MAX_ROUNDS:
        raise UserError(f"rounds: expected 1 to {_MAX_ROUNDS}, found {rounds}")
    rates = [_number(function, t) for t in range(rounds)]
    changes = [t for t in range(1, rounds) if rates[t] != rates[t - 1]]
    if not changes:
        return Rate(rates[0])
    return Rate(rates[0], Piecewise(tuple(changes), tuple(rates[t] / rates[0] for t in changes)))


def _number(function: Callable[[int], Any], t: int) -> float:
    try:
        value = float(function(t))
    except (TypeError, ValueError):
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise UserError(
            f"function: expected a positive number as its value, found {function(t)!r:.100} in "
            f"round {t}"
        )
    return value
