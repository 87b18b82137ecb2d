"""Thresholds on client losses, which the server finds only from sums over clients.

A level theta of Delta-FL (Laguel et al. 2021) trains the clients with the largest losses, up to a
fraction theta of the total weight. Before it trains, a client compares its loss with a threshold
eta. The server, which sees only sums over clients, finds eta in one of four ways:

- *survey*: each client adds its weight alpha_k to the histogram bin of its loss F_k, and eta is the
  bin of the (1 - theta)-quantile;
- *refined*: three surveys find the exact quantile, a float32, digit by digit; each survey counts
  only losses that share the digits found so far;
- *lagged*: clients send their bins along with their updates, for the next round's eta;
- *tracked*: each round multiplies eta by a factor, so that a fraction theta of the weight tends to
  be above eta (as for the adaptive clipping norm of Andrew et al. 2021).

Losses in one bin count as equal. A bin is 2.7% wide. With few clients in the tail, this costs 0.3%
of the objective; bins of twice the width cost 1.7%. Losses below 0, such as log densities, share
one bin, as do losses of 1e6 and more. Delta-FL rejects a threshold in either of these two bins.

The smoothed objective (section IV) replaces max(., 0) by its Moreau envelope h_nu:

    eta + (1/theta) sum_k alpha_k h_nu(F_k - eta)
    h_nu(r) = r^2 / (2 nu) on [0, nu], r - nu / 2 above, 0 below

A client counts with the fraction h_nu'(F_k - eta) of its weight, which grows from 0 at eta to 1 at
eta + nu. At the minimising eta, exactly a fraction theta of the total weight counts. Every loss is
represented by the centre of its bin.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any, Callable, ClassVar, NamedTuple, Optional, Protocol, Union

import numpy as np

from tff_agnostic.aggregations.aggregation import Bound
from tff_agnostic.base.later import tf
from tff_agnostic.base.options import Options, Within
from tff_agnostic.computations.histograms import LogGrid

GRID = LogGrid(num_bins=1025)
_OFF_GRID = f"losses below 0 or of {GRID.upper:g} and more, which share a bin"
# Bin indices before the grid's first bin: for losses below 0, and for the threshold before
# any loss is known.
_BELOW_ZERO, _BELOW_ALL = -1, -2
# Relative tolerances for rounding errors in sums of weights: in floating point, 0.29 * 100
# is less than 29.
_ROUNDING = 1e-12
_SMOOTHED_ROUNDING = 1e-9
# First eta of a tracked threshold, as a fraction of the mean loss. Too high an eta would fall
# slowly, and no client would train meanwhile.
_FIRST_PART = 0.1
# A loss key has three digits of 11 bits, which hold a float32.
_DIGIT_BITS = 11
_FIRST_SHIFT = 2 * _DIGIT_BITS
_NUM_DIGITS = 2**_DIGIT_BITS


@dataclasses.dataclass(frozen=True)
class SurveyThreshold(Options):
    """Threshold at the quantile of a survey's losses, in bins 2.7% wide.

    Attributes:
        rounds: Number of training rounds per survey (Algorithm 1 of the paper).
    """

    rounds: Annotated[int, Within(least=1)] = 1
    surveys: ClassVar[tuple[str, ...]] = ("survey",)


@dataclasses.dataclass(frozen=True)
class RefinedThreshold(SurveyThreshold):
    """Threshold at the exact quantile of the losses, from three surveys."""

    surveys: ClassVar[tuple[str, ...]] = ("survey", "second_survey", "third_survey")


@dataclasses.dataclass(frozen=True)
class LaggedThreshold(Options):
    """Threshold at the quantile of the previous round's losses, without a survey."""

    rounds: ClassVar[int] = 1
    surveys: ClassVar[tuple[str, ...]] = ()


@dataclasses.dataclass(frozen=True)
class TrackedThreshold(Options):
    """Threshold that each round multiplies by a factor, without a survey.

    Attributes:
        rate: Step size with which log(eta) moves in a round.
    """

    rate: Annotated[float, Within(above=0)] = 0.2
    rounds: ClassVar[int] = 1
    surveys: ClassVar[tuple[str, ...]] = ()


@dataclasses.dataclass(frozen=True)
class ExactBoundary(Options):
    """Clients at the threshold share what remains of theta after the clients above it."""


@dataclasses.dataclass(frozen=True)
class PaperBoundary(Options):
    """Clients at the threshold count in full, as in the paper."""


@dataclasses.dataclass(frozen=True)
class SmoothBoundary(Options):
    """Clients above the threshold count more, the larger their losses (smoothed objective).

    Attributes:
        width: Distance nu: a client counts in full if its loss exceeds the threshold by at least
            nu.
    """

    width: Annotated[float, Within(above=0)] = 0.1


Boundary = Union[ExactBoundary, PaperBoundary, SmoothBoundary]


class TailStart(NamedTuple):
    """A threshold, and the fraction of weight that clients exactly at the threshold keep.

    Attributes:
        bin: Index of a bin in `GRID`, or the `loss_key` of a loss; an integer scalar.
        share: Fraction of their weight that clients at the threshold keep, float32 scalar.
    """

    bin: tf.Tensor
    share: tf.Tensor


class TailShare(NamedTuple):
    """A client's answer for a tracked threshold.

    Attributes:
        below: The client's weight if its loss is below eta, otherwise 0, int64 scalar.
        total: The client's weight, int64 scalar.
        weighted_loss: The client's loss times its weight, float32 scalar.
    """

    below: tf.Tensor
    total: tf.Tensor
    weighted_loss: tf.Tensor


class Digits(NamedTuple):
    """The digit of the loss keys that a survey counts.

    Attributes:
        prefix: Digits before the counted digit; only losses with this prefix are counted, int64
            scalar.
        shift: Number of bits after the counted digit, int64 scalar.
    """

    prefix: tf.Tensor
    shift: tf.Tensor


class Threshold(Protocol):
    """A method to find a level's threshold eta: a `TailStart`, or a loss, float32 scalar."""

    theta: float

    def initial(self) -> Any:
        """Returns eta before any loss is known; all clients then count in full."""

    def share(self, eta: Any, loss: tf.Tensor) -> tf.Tensor:
        """Returns the fraction of each client's weight that counts, float32 in [0, 1]."""

    def question(self, *answers: Any) -> Any:
        """Returns the question of the next survey, from the summed answers to earlier surveys."""
        del answers
        return ()

    def answer(self, question: Any, loss: tf.Tensor, weight: tf.Tensor) -> Any:
        """Returns one client's statistic of its loss.

        Args:
            question: The survey's question; eta if there are no surveys.
            loss: The client's loss F_k, float32 scalar.
            weight: The client's weight alpha_k, int64 scalar.
        """

    def bounds(self, heaviest: float, max_loss: float) -> Any:
        """Returns the bounds of an answer, for clients with at most this weight and loss."""

    def next(self, eta: Any, *answers: Any) -> Any:
        """Returns eta from the summed answers of all surveys; unchanged if their weight is 0."""

    def total(self, *answers: Any) -> tf.Tensor:
        """Returns the weight of all clients that answered, int64."""

    def loss(self, eta: Any) -> tf.Tensor:
        """Returns eta as a loss, float32."""
        return eta

    def unordered(self, loss: float, mean_loss: float) -> str:
        """Describes the losses that this threshold cannot order; "" if it can order them.

        Args:
            loss: The threshold as a loss.
            mean_loss: Mean loss of the round's examples.
        """
        del loss, mean_loss
        return ""


def build_threshold(theta: float, kind: Options, boundary: Boundary) -> Threshold:
    """Returns the threshold of a level."""
    if isinstance(kind, TrackedThreshold):
        return _Tracked(theta, kind.rate)
    if isinstance(boundary, SmoothBoundary):
        return _Smoothed(theta, boundary.width)
    share_at = paper_share if isinstance(boundary, PaperBoundary) else exact_share
    return (_Refined if isinstance(kind, RefinedThreshold) else _Binned)(theta, share_at)


class Quantile(NamedTuple):
    """The bin of the (1 - theta)-quantile: the lowest bin with at most theta of the weight above.

    Attributes:
        bin: Index of the bin, int32.
        inside: Weight in the bin, float64.
        left: theta times the total weight, minus the weight above the bin, float64.
        rounding: Largest `left` that can result from rounding errors, float64.
    """

    bin: tf.Tensor
    inside: tf.Tensor
    left: tf.Tensor
    rounding: tf.Tensor


def find_quantile(
    histogram: tf.Tensor, theta: float, within: Optional[Quantile] = None
) -> Quantile:
    """Returns a histogram's quantile; `within` is the quantile of the previous digits, if any."""
    weights = tf.cast(histogram, tf.float64)
    if within is None:
        total = tf.cast(tf.reduce_sum(histogram), tf.float64)
        left, rounding = theta * total, _ROUNDING * total
    else:
        left, rounding = within.left, within.rounding
    # Float64 sums of integer weights are exact below 2^53.
    above = tf.cumsum(weights, exclusive=True, reverse=True)
    is_tail = (above <= left + rounding) & (weights > 0)
    bin_ = tf.argmax(tf.cast(is_tail, tf.int32), output_type=tf.int32)
    return Quantile(bin_, weights[bin_], left - above[bin_], rounding)


def exact_share(quantile: Quantile) -> tf.Tensor:
    """Returns the fraction that clients at the quantile keep, so that theta of the weight counts.

    Let the distribution pi maximise sum_k pi_k F_k subject to pi_k <= alpha_k / theta. Then pi_k is
    alpha_k / theta above the quantile, and clients at the quantile divide the rest.
    """
    left = tf.where(quantile.left > quantile.rounding, quantile.left, 0.0)
    share = tf.minimum(tf.math.divide_no_nan(left, quantile.inside), 1.0)
    return tf.cast(share, tf.float32)


def paper_share(quantile: Quantile) -> tf.Tensor:
    """Returns 1: in line 6 of Algorithm 2, all clients with F_k >= Quantile(1 - theta) count.

    More than a fraction theta of the weight may count: for example, 51 of 100 clients with equal
    weights at theta = 0.5.
    """
    del quantile
    return tf.constant(1.0)


class _HistogramThreshold(Threshold):
    """A threshold from histograms of the clients' weights, int64 [bins], by loss or by digit."""

    def answer(self, question: Any, loss: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
        return _one_hot(_loss_bin(loss) - _BELOW_ZERO, GRID.num_bins - _BELOW_ZERO, weight)

    def bounds(self, heaviest: float, max_loss: float) -> Bound:
        return Bound(heaviest, integer=True)

    def total(self, *answers: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(answers[0])

    def next(self, eta: Any, *answers: tf.Tensor) -> Any:
        if self.theta == 1:
            # theta = 1 is FedAvg: rounding must not lower any client's fraction below 1.
            return self.initial()
        is_known = self.total(*answers) > 0
        return tf.nest.map_structure(
            lambda new, old: tf.where(is_known, new, old), self.find_eta(*answers), eta
        )

    def find_eta(self, *answers: tf.Tensor) -> Any:
        """Returns eta from answers with a positive total."""


def _loss_bin(loss: tf.Tensor) -> tf.Tensor:
    # Rounding may put a loss of 0 slightly below 0.
    return tf.where(loss < -GRID.lower, _BELOW_ZERO, GRID.bin_index(loss))


def _one_hot(position: tf.Tensor, size: int, weight: tf.Tensor) -> tf.Tensor:
    # TensorFlow vectorises a comparison over clients, but not a write at an index.
    is_here = tf.equal(tf.range(size, dtype=position.dtype), position)
    return tf.where(is_here, weight, tf.zeros_like(weight))


def _share(position: tf.Tensor, start: TailStart) -> tf.Tensor:
    return tf.where(
        position > start.bin, 1.0, tf.where(tf.equal(position, start.bin), start.share, 0.0)
    )


@dataclasses.dataclass(frozen=True)
class _Binned(_HistogramThreshold):
    """Threshold at the bin of the losses' quantile, in this round or the previous one."""

    theta: float
    share_at: Callable[[Quantile], tf.Tensor]

    def initial(self) -> TailStart:
        return TailStart(tf.constant(_BELOW_ALL), tf.constant(1.0))

    def share(self, eta: TailStart, loss: tf.Tensor) -> tf.Tensor:
        return _share(_loss_bin(loss), eta)

    def find_eta(self, *answers: tf.Tensor) -> TailStart:
        quantile = find_quantile(answers[0], self.theta)
        return TailStart(quantile.bin + _BELOW_ZERO, self.share_at(quantile))

    def loss(self, eta: TailStart) -> tf.Tensor:
        # The threshold's loss is the centre of its bin; 0 for the bin of losses below 0.
        center = tf.gather(tf.constant(GRID.centers(), tf.float32), tf.maximum(eta.bin, 0))
        return tf.where(tf.equal(eta.bin, _BELOW_ZERO), 0.0, center)

    def unordered(self, loss: float, mean_loss: float) -> str:
        return "" if 0 < loss < float(np.float32(GRID.upper)) else _OFF_GRID


@dataclasses.dataclass(frozen=True)
class _Refined(_HistogramThreshold):
    """Threshold at the exact quantile of the losses, from histograms of their digits."""

    theta: float
    share_at: Callable[[Quantile], tf.Tensor]

    def initial(self) -> TailStart:
        return TailStart(loss_key(tf.constant(-np.inf, tf.float32)), tf.constant(1.0))

    def share(self, eta: TailStart, loss: tf.Tensor) -> tf.Tensor:
        return _share(loss_key(loss), eta)

    def question(self, *answers: tf.Tensor) -> Digits:
        return self._search(answers)[0]

    def answer(self, question: Digits, loss: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
        # Add the weight at the loss's digit, or nothing if the loss has a different prefix than the
        # question.
        digits = tf.bitwise.right_shift(loss_key(loss), question.shift)
        prefix = tf.bitwise.right_shift(digits, tf.constant(_DIGIT_BITS, tf.int64))
        digit = tf.bitwise.bitwise_and(digits, tf.constant(_NUM_DIGITS - 1, tf.int64))
        asked = tf.where(tf.equal(prefix, question.prefix), weight, tf.zeros_like(weight))
        return _one_hot(digit, _NUM_DIGITS, asked)

    def find_eta(self, *answers: tf.Tensor) -> TailStart:
        digits, quantile = self._search(answers)
        return TailStart(digits.prefix, self.share_at(quantile))

    def loss(self, eta: TailStart) -> tf.Tensor:
        # The threshold's loss is NaN before any loss is known, and if all clients count.
        return tf.where(eta.bin > self.initial().bin, loss_from_key(eta.bin), np.nan)

    def _search(self, answers: Sequence[tf.Tensor]) -> tuple[Digits, Any]:
        """Returns the digit that the next survey counts, and the quantile of the last survey."""
        digits = Digits(tf.constant(0, tf.int64), tf.constant(_FIRST_SHIFT, tf.int64))
        quantile = None
        for answer in answers:
            quantile = find_quantile(answer, self.theta, quantile)
            prefix = digits.prefix * _NUM_DIGITS + tf.cast(quantile.bin, tf.int64)
            digits = Digits(prefix, digits.shift - _DIGIT_BITS)
        return digits, quantile


def loss_key(loss: tf.Tensor) -> tf.Tensor:
    """Returns integers in [0, 2^32) that sort as the losses do, int64; equal for 0 and -0."""
    bits = tf.bitcast(loss + 0.0, tf.int32)
    ordered = tf.where(bits < 0, tf.bitwise.bitwise_xor(bits, tf.int32.max), bits)
    return tf.cast(ordered, tf.int64) - tf.int32.min


def loss_from_key(key: tf.Tensor) -> tf.Tensor:
    """Returns the loss with this `loss_key`, float32."""
    ordered = tf.cast(key + tf.int32.min, tf.int32)
    bits = tf.where(ordered < 0, tf.bitwise.bitwise_xor(ordered, tf.int32.max), ordered)
    return tf.bitcast(bits, tf.float32)


@dataclasses.dataclass(frozen=True)
class _Tracked(Threshold):
    """A threshold that each round multiplies by a factor; 0 before any loss is known."""

    theta: float
    rate: float

    def initial(self) -> tf.Tensor:
        return tf.constant(0.0)

    def share(self, eta: tf.Tensor, loss: tf.Tensor) -> tf.Tensor:
        return tf.cast((loss >= eta) | (eta <= 0), tf.float32)

    def answer(self, question: tf.Tensor, loss: tf.Tensor, weight: tf.Tensor) -> TailShare:
        below = tf.where(loss < question, weight, tf.zeros_like(weight))
        return TailShare(below, weight, loss * tf.cast(weight, tf.float32))

    def bounds(self, heaviest: float, max_loss: float) -> TailShare:
        weight = Bound(heaviest, integer=True)
        return TailShare(weight, weight, Bound(heaviest * max_loss))

    def total(self, *answers: TailShare) -> tf.Tensor:
        return answers[0].total

    def next(self, eta: tf.Tensor, *answers: TailShare) -> tf.Tensor:
        if self.theta == 1:
            # theta = 1 is FedAvg: a threshold that follows falling losses would exclude clients.
            return self.initial()
        (sums,) = answers
        total = tf.cast(sums.total, tf.float32)
        # The next eta is eta exp(-rate (below / total - (1 - theta))).
        below = tf.math.divide_no_nan(tf.cast(sums.below, tf.float32), total)
        moved = eta * tf.exp(-self.rate * (below - (1.0 - self.theta)))
        first = tf.maximum(_FIRST_PART * tf.math.divide_no_nan(sums.weighted_loss, total), 0.0)
        return tf.where(sums.total > 0, tf.where(eta > 0, moved, first), eta)

    def unordered(self, loss: float, mean_loss: float) -> str:
        among = "losses whose mean is at most 0, where factors cannot move it"
        return among if loss <= 0 and mean_loss <= 0 else ""


@dataclasses.dataclass(frozen=True)
class _Smoothed(_HistogramThreshold):
    """The smoothed objective's eta, from the losses of this round or the previous one."""

    theta: float
    nu: float

    def initial(self) -> tf.Tensor:
        # At eta = -nu, all clients count in full, as no loss is below 0.
        return tf.constant(-self.nu)

    def share(self, eta: tf.Tensor, loss: tf.Tensor) -> tf.Tensor:
        return smoothed_share(eta, loss, self.nu)

    def find_eta(self, *answers: tf.Tensor) -> tf.Tensor:
        return smoothed_eta(answers[0], self.theta, self.nu)

    def unordered(self, loss: float, mean_loss: float) -> str:
        # At eta = -nu, all losses of at least 0 count in full.
        is_off = loss < -1.01 * self.nu or loss > GRID.upper - 2 * self.nu
        return _OFF_GRID if is_off else ""


def smoothed_share(eta: tf.Tensor, loss: tf.Tensor, nu: float) -> tf.Tensor:
    """Returns h_nu'(F_k - eta), float32 in [0, 1], for losses of any shape."""
    # NaN has no bin; `tail_work` excludes such clients.
    bins = tf.clip_by_value(GRID.bin_index(loss), 0, GRID.num_bins - 1)
    center = tf.gather(tf.constant(GRID.centers(), tf.float32), bins)
    binned = tf.where(loss < -GRID.lower, -GRID.upper, center)
    return tf.clip_by_value((binned - eta) / nu, 0.0, 1.0)


def smoothed_eta(histogram: tf.Tensor, theta: float, nu: float) -> tf.Tensor:
    """Returns the eta with sum_k alpha_k h_nu'(F_k - eta) = theta sum_k alpha_k, a float32 scalar.

    If there are several solutions, this is the largest one. There may be several if no client's
    loss lies within nu of eta.

    Args:
        histogram: The clients' weights by bin, int64 [1 + bins], with a positive sum; the first bin
            is for losses below 0.
        theta: Conformity level, in (0, 1].
        nu: A client counts in full if its loss exceeds eta by at least nu.
    """
    # The bin of losses below 0 gets a very low centre: these losses count only if all others count
    # in full.
    centers = np.concatenate([[-GRID.upper], GRID.centers()])
    # The counted weight decreases in eta, and is linear between these points.
    kinks = np.sort(np.concatenate([centers - nu, centers]))
    # For each kink, find the first bin that counts, and the first bin that counts in full.
    some = np.searchsorted(centers, kinks, "right")
    full = np.searchsorted(centers, kinks + nu, "right")
    weights = tf.cast(histogram, tf.float64)

    def sum_from(first: np.ndarray, values: tf.Tensor) -> tf.Tensor:
        sums = tf.concat([tf.cumsum(values, reverse=True), tf.zeros([1], tf.float64)], axis=0)
        return tf.gather(sums, first)

    in_full = sum_from(full, weights)
    weight = sum_from(some, weights) - in_full
    weighted = sum_from(some, weights * centers) - sum_from(full, weights * centers)
    counted = in_full + (weighted - kinks * weight) / nu
    target = theta * tf.reduce_sum(weights)
    # Find the last kink with enough counted weight; at the first kink all clients count.
    last = tf.reduce_sum(tf.cast(counted >= target * (1 - _SMOOTHED_ROUNDING), tf.int32)) - 1
    last = tf.clip_by_value(last, 0, len(kinks) - 2)
    falls = counted[last] - counted[last + 1]
    part = tf.clip_by_value(tf.math.divide_no_nan(counted[last] - target, falls), 0.0, 1.0)
    kinks = tf.constant(kinks)
    return tf.cast(kinks[last] + part * (kinks[last + 1] - kinks[last]), tf.float32)
