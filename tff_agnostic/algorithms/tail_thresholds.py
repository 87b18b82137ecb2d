"""Thresholds of the clients' losses from sums alone: surveyed, refined, lagged, tracked, smoothed.

A level theta of Delta-FL (Laguel et al. 2021) keeps the clients with the largest losses, theta of
their weight. A client has to know before it trains whether it is among them. The server sees sums
only, and can find the quantile of the losses

- from a *survey*, a communication step before the training;
- *refined*, from three surveys, each of the digits of the losses that share the digits before;
- *lagged*, from the losses that clients send along with their updates: those of the round before;
- *tracked*: one number that moves by a factor until the right share of the clients is below it.

The latter two are rounds of one step, which is all that platforms allow.

For a survey and a lagged threshold each client adds its weight to the bin of its loss. Clients
above the bin of the quantile count in full, those in it with the share that is left of theta, and
those below it not at all. Losses in one bin count as equal: a bin of the grid is 2.7% wide, so that
a threshold is off by 1.36% at most. (Where the tail is a few clients, bins of twice that width cost
1.7% of the objective, and these 0.3%: see the tests.) Losses below 0, such as log densities, share
one bin, and so do losses of 1e6 and more. A threshold in either is reported as the open end of the
grid, and refused.

A refined threshold is the quantile itself, a float32. It knows no range: a constant that is added
to all losses changes neither who trains nor with which share.

The smoothed objective (section IV of the paper) has the Moreau envelope h_nu in the place of
max(., 0):

    eta + (1/theta) sum_k alpha_k h_nu(F_k - eta)
    h_nu(r) = r^2 / (2 nu) on [0, nu], r - nu / 2 above, 0 below

A client whose loss is above eta counts with h_nu'(F_k - eta), which grows from 0 at eta to 1 at
eta + nu, so that clients do not begin to train from one round to the next. The eta that minimises
the objective is the one with which exactly theta of the weight counts. A loss is the centre of its
bin; one below 0 is far below the grid.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple, Protocol

import numpy as np

from tff_agnostic.aggregations.aggregation import Bound
from tff_agnostic.computations.histograms import LogGrid
from tff_agnostic.later import tf

GRID = LogGrid(num_bins=1025)
_ROUNDING = 1e-12
# A tracked threshold starts at this part of the mean loss: one that is too high falls slowly, and
# until it has fallen nobody trains.
_FIRST_PART = 0.1
# Sums of weights round in float64; shares of the whole that differ by less are equal.
_SMOOTHED_ROUNDING = 1e-9
# Bins below the first of the grid: of losses below 0, and of a cut that every loss is above.
_BELOW_ZERO, _BELOW_ALL = -1, -2
# A float32 has 32 bits, which three surveys read, 11 in each from the largest on.
_DIGIT_BITS = 11
_FIRST_SHIFT = 2 * _DIGIT_BITS
_NUM_DIGITS = 2**_DIGIT_BITS


class Cut(NamedTuple):
    """Where the tail begins.

    Attributes:
        bin: Index of a bin of `GRID`, int32 scalar; -1 for losses below 0, and -2 before any loss
            is known.
        share: How much of its weight a client in this bin counts, in [0, 1], float32 scalar.
    """

    bin: tf.Tensor
    share: tf.Tensor


def everyone() -> Cut:
    """Returns the cut that every client is above."""
    return Cut(tf.constant(_BELOW_ALL), tf.constant(1.0))


def share_of(cut: Cut, loss: tf.Tensor) -> tf.Tensor:
    """Returns how much of its weight a client counts, float32.

    Args:
        cut: Where the tail begins.
        loss: F_k, float32 of any shape; the server's histogram has it in the same bin.
    """
    return _share_above(_bin_of(loss), cut.bin, cut.share)


def _share_above(position: tf.Tensor, cut: tf.Tensor, share: tf.Tensor) -> tf.Tensor:
    return tf.where(position > cut, 1.0, tf.where(tf.equal(position, cut), share, 0.0))


def _bin_of(loss: tf.Tensor) -> tf.Tensor:
    # Rounding may put a loss of 0 slightly below it.
    return tf.where(loss < -GRID.lower, _BELOW_ZERO, GRID.bin_of(loss))


def histogram_of(loss: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
    """Returns the histogram of one client, int64 [1 + bins]: its weight in the bin of its loss.

    Args:
        loss: F_k, float32 scalar; below 0 it is in the first bin.
        weight: alpha_k, an integer, int64 scalar.
    """
    return _one_hot(_bin_of(loss) - _BELOW_ZERO, GRID.num_bins - _BELOW_ZERO, weight)


def _one_hot(position: tf.Tensor, size: int, weight: tf.Tensor) -> tf.Tensor:
    # TensorFlow vectorises a comparison over clients, and no write at an index.
    is_here = tf.equal(tf.range(size, dtype=position.dtype), position)
    return tf.where(is_here, weight, tf.zeros_like(weight))


class _Quantile(NamedTuple):
    """The bin of the (1 - theta)-quantile, the smallest with at most theta of the weight above it.

    Attributes:
        bin: Its index, int32.
        inside: Weight in it, float64.
        left: What is left of theta of the weight, float64.
        rounding: What may be left of it by rounding: 0.29 * 100 is less than 29 in floating point.
    """

    bin: tf.Tensor
    inside: tf.Tensor
    left: tf.Tensor
    rounding: tf.Tensor


def _quantile(histogram: tf.Tensor, theta_weight: tf.Tensor, rounding: tf.Tensor) -> _Quantile:
    weights = tf.cast(histogram, tf.float64)
    # Integers: sums are exact.
    above = tf.cumsum(weights, exclusive=True, reverse=True)
    is_tail = (above <= theta_weight + rounding) & (weights > 0)
    bin_ = tf.argmax(tf.cast(is_tail, tf.int32), output_type=tf.int32)
    return _Quantile(bin_, weights[bin_], theta_weight - above[bin_], rounding)


def _first_quantile(histogram: tf.Tensor, theta: float) -> _Quantile:
    total = tf.cast(tf.reduce_sum(histogram), tf.float64)
    return _quantile(histogram, theta * total, _ROUNDING * total)


def exact_share(quantile: _Quantile) -> tf.Tensor:
    """Returns the share of clients at the quantile with which exactly theta of the weight counts.

    It is the maximiser pi of sum_k pi_k F_k among those with pi_k <= alpha_k / theta: alpha_k /
    theta above the quantile, and at it what is left.
    """
    left = tf.where(quantile.left > quantile.rounding, quantile.left, 0.0)
    share = tf.minimum(tf.math.divide_no_nan(left, quantile.inside), 1.0)
    return tf.cast(share, tf.float32)


def paper_share(quantile: _Quantile) -> tf.Tensor:
    """Returns the share of Algorithm 2, line 6: F_k >= Quantile(1 - theta) counts in full.

    More than theta of the weight counts: 51 of 100 equal clients at theta = 0.5.
    """
    del quantile
    return tf.constant(1.0)


class LossHistogram(NamedTuple):
    """What clients send of their losses, for a quantile.

    Attributes:
        histogram: Their weights by bins of their losses, or by digits of them, int64 [bins].
    """

    histogram: tf.Tensor


class TailShare(NamedTuple):
    """What clients send where a threshold is tracked.

    Attributes:
        below: Weight of those whose loss is below it, int64 scalar.
        total: Weight of all, int64 scalar.
        weighted_loss: Sum of the losses times the weights, float32 scalar.
    """

    below: tf.Tensor
    total: tf.Tensor
    weighted_loss: tf.Tensor


class TrackedThreshold(NamedTuple):
    """A tracked threshold.

    Attributes:
        eta: The loss from which on clients count, float32 scalar; 0 before any loss is known.
    """

    eta: tf.Tensor


class Threshold(Protocol):
    """A way to find where the tail of a level begins."""

    @property
    def unordered(self) -> str:
        """The losses among which no threshold can be found, in words; "" if there are none."""
        return ""

    def initial(self) -> Any:
        """Returns the threshold before any loss is known, with which everyone counts."""

    def share(self, threshold: Any, loss: tf.Tensor) -> tf.Tensor:
        """Returns how much of its weight a client with a loss counts, float32 in [0, 1]."""

    def question(self, *said: Any) -> Any:
        """Returns what clients get before a survey, from the statements of earlier surveys."""
        del said
        return ()

    def statement(self, question: Any, loss: tf.Tensor, weight: tf.Tensor) -> Any:
        """Returns what one client sends of its loss.

        Args:
            question: The question of a survey; without surveys, the threshold.
            loss: F_k, float32 scalar.
            weight: alpha_k, int64 scalar.
        """

    def bounds(self, heaviest: float, max_loss: float) -> Any:
        """Returns the bounds of a statement, for clients of at most this weight and loss."""

    def next(self, threshold: Any, *said: Any) -> Any:
        """Returns the threshold that all statements make, or the old one without any."""

    def total(self, *said: Any) -> tf.Tensor:
        """Returns the weight of all clients with a loss, int64."""

    def loss(self, threshold: Any) -> tf.Tensor:
        """Returns the threshold as a loss, float32."""

    def is_unordered(self, threshold: float, mean_loss: float) -> bool:
        """Whether a reported threshold is among the losses that `unordered` names.

        Args:
            threshold: The threshold as a loss.
            mean_loss: Mean loss of the round's examples.
        """
        del threshold, mean_loss
        return False


class HistogramThreshold(Threshold):
    """A threshold made of histograms of the losses or of their digits.

    Attributes:
        theta: Conformity level.
    """

    theta: float

    def next(self, threshold: Any, *said: LossHistogram) -> Any:
        """See `Threshold.next`."""
        if self.theta == 1:
            # FedAvg: no client's share may be a rounding below 1.
            return self.initial()
        is_known = self.total(*said) > 0
        return tf.nest.map_structure(
            lambda new, old: tf.where(is_known, new, old), self.threshold_of(*said), threshold
        )

    def threshold_of(self, *said: LossHistogram) -> Any:
        """Returns the threshold of statements with a positive total."""

    def bounds(self, heaviest: float, max_loss: float) -> LossHistogram:
        """See `Threshold.bounds`."""
        del max_loss
        return LossHistogram(Bound(heaviest, integer=True))

    def total(self, *said: LossHistogram) -> tf.Tensor:
        """See `Threshold.total`."""
        return tf.reduce_sum(said[0].histogram)


class BinnedThreshold(HistogramThreshold):
    """A threshold made of the histogram of the losses on `GRID`."""

    @property
    def unordered(self) -> str:
        """See `Threshold.unordered`."""
        return f"those below 0 or of {GRID.upper:g} and more, which share a bin"

    def statement(self, question: Any, loss: tf.Tensor, weight: tf.Tensor) -> LossHistogram:
        """See `Threshold.statement`."""
        del question
        return LossHistogram(histogram_of(loss, weight))


@dataclasses.dataclass(frozen=True)
class CutThreshold(BinnedThreshold):
    """A threshold that is a bin of a histogram, of this round or of the last one.

    Attributes:
        theta: Conformity level.
        share_at: Quantile -> how much a client at it counts.
    """

    theta: float
    share_at: Callable[[_Quantile], tf.Tensor]

    def initial(self) -> Cut:
        """See `Threshold.initial`."""
        return everyone()

    def share(self, threshold: Cut, loss: tf.Tensor) -> tf.Tensor:
        """See `Threshold.share`."""
        return share_of(threshold, loss)

    def threshold_of(self, *said: LossHistogram) -> Cut:
        """See `HistogramThreshold.threshold_of`."""
        quantile = _first_quantile(said[0].histogram, self.theta)
        return Cut(quantile.bin + _BELOW_ZERO, self.share_at(quantile))

    def loss(self, threshold: Cut) -> tf.Tensor:
        """See `Threshold.loss`: the centre of the bin; 0 for that of losses below 0."""
        center = tf.gather(tf.constant(GRID.centers(), tf.float32), tf.maximum(threshold.bin, 0))
        return tf.where(tf.equal(threshold.bin, _BELOW_ZERO), 0.0, center)

    def is_unordered(self, threshold: float, mean_loss: float) -> bool:
        """See `Threshold.is_unordered`."""
        del mean_loss
        return not 0 < threshold < float(np.float32(GRID.upper))


class Digits(NamedTuple):
    """Which digit of a loss a survey asks for, and of which losses.

    Attributes:
        prefix: The key of these losses without this digit and later ones, int64 scalar.
        shift: Number of bits after the digit, int64 scalar.
    """

    prefix: tf.Tensor
    shift: tf.Tensor


class ExactCut(NamedTuple):
    """Where the tail begins, exactly.

    Attributes:
        key: Key of a loss, int64 scalar.
        share: How much of its weight a client with this loss counts, float32 scalar.
    """

    key: tf.Tensor
    share: tf.Tensor


def key_of(loss: tf.Tensor) -> tf.Tensor:
    """Returns integers in [0, 2^32) in the order of the losses, int64; equal ones for 0 and -0."""
    bits = tf.bitcast(loss + 0.0, tf.int32)
    ordered = tf.where(bits < 0, tf.bitwise.bitwise_xor(bits, tf.int32.max), bits)
    return tf.cast(ordered, tf.int64) - tf.int32.min


def loss_of_key(key: tf.Tensor) -> tf.Tensor:
    """Returns the loss with a key, float32."""
    ordered = tf.cast(key + tf.int32.min, tf.int32)
    bits = tf.where(ordered < 0, tf.bitwise.bitwise_xor(ordered, tf.int32.max), ordered)
    return tf.bitcast(bits, tf.float32)


@dataclasses.dataclass(frozen=True)
class Refined(HistogramThreshold):
    """A threshold that is the quantile of the losses, from histograms of their digits.

    Attributes:
        theta: Conformity level.
        share_at: Quantile -> how much a client at it counts.
    """

    theta: float
    share_at: Callable[[_Quantile], tf.Tensor]

    def initial(self) -> ExactCut:
        """See `Threshold.initial`."""
        return ExactCut(key_of(tf.constant(-np.inf, tf.float32)), tf.constant(1.0))

    def share(self, threshold: ExactCut, loss: tf.Tensor) -> tf.Tensor:
        """See `Threshold.share`."""
        return _share_above(key_of(loss), threshold.key, threshold.share)

    def question(self, *said: LossHistogram) -> Digits:
        """See `Threshold.question`."""
        return self._searched(said)[0]

    def statement(self, question: Digits, loss: tf.Tensor, weight: tf.Tensor) -> LossHistogram:
        """See `Threshold.statement`: the weight at a digit; zeros for losses of other prefixes."""
        digits = tf.bitwise.right_shift(key_of(loss), question.shift)
        prefix = tf.bitwise.right_shift(digits, tf.constant(_DIGIT_BITS, tf.int64))
        digit = tf.bitwise.bitwise_and(digits, tf.constant(_NUM_DIGITS - 1, tf.int64))
        asked = tf.where(tf.equal(prefix, question.prefix), weight, tf.zeros_like(weight))
        return LossHistogram(_one_hot(digit, _NUM_DIGITS, asked))

    def threshold_of(self, *said: LossHistogram) -> ExactCut:
        """See `HistogramThreshold.threshold_of`."""
        digits, quantile = self._searched(said)
        return ExactCut(digits.prefix, self.share_at(quantile))

    def loss(self, threshold: ExactCut) -> tf.Tensor:
        """See `Threshold.loss`; NaN before any loss is known, and where everyone counts."""
        is_known = threshold.key > self.initial().key
        return tf.where(is_known, loss_of_key(threshold.key), np.nan)

    def _searched(self, said: Sequence[LossHistogram]) -> tuple[Digits, Any]:
        """Returns the next digits to ask for, and the quantile among the last ones."""
        digits = Digits(tf.constant(0, tf.int64), tf.constant(_FIRST_SHIFT, tf.int64))
        quantile: Any = None
        for statements in said:
            if quantile is None:
                quantile = _first_quantile(statements.histogram, self.theta)
            else:
                quantile = _quantile(statements.histogram, quantile.left, quantile.rounding)
            prefix = digits.prefix * _NUM_DIGITS + tf.cast(quantile.bin, tf.int64)
            digits = Digits(prefix, digits.shift - _DIGIT_BITS)
        return digits, quantile


@dataclasses.dataclass(frozen=True)
class Tracked(Threshold):
    """A threshold that follows the quantile by factors (Andrew et al. 2021, of clipping norms).

    Attributes:
        theta: Conformity level.
        rate: r in eta exp(-r (below / total - (1 - theta))).
    """

    theta: float
    rate: float

    @property
    def unordered(self) -> str:
        """See `Threshold.unordered`."""
        return "those of 0 and below on average, which factors do not reach"

    def initial(self) -> TrackedThreshold:
        """See `Threshold.initial`."""
        return TrackedThreshold(tf.constant(0.0))

    def share(self, threshold: TrackedThreshold, loss: tf.Tensor) -> tf.Tensor:
        """See `Threshold.share`; here 0 or 1."""
        return tf.cast((loss >= threshold.eta) | (threshold.eta <= 0), tf.float32)

    def statement(
        self, question: TrackedThreshold, loss: tf.Tensor, weight: tf.Tensor
    ) -> TailShare:
        """See `Threshold.statement`."""
        below = tf.where(loss < question.eta, weight, tf.zeros_like(weight))
        return TailShare(below, weight, loss * tf.cast(weight, tf.float32))

    def bounds(self, heaviest: float, max_loss: float) -> TailShare:
        """See `Threshold.bounds`."""
        number = Bound(heaviest, integer=True)
        return TailShare(number, number, Bound(heaviest * max_loss))

    def next(self, threshold: TrackedThreshold, *said: TailShare) -> TrackedThreshold:
        """See `Threshold.next`; with the first losses it is a part of their mean."""
        if self.theta == 1:
            # FedAvg: a threshold that only follows the losses would exclude clients while they
            # fall.
            return self.initial()
        (sums,) = said
        total = tf.cast(sums.total, tf.float32)
        below = tf.math.divide_no_nan(tf.cast(sums.below, tf.float32), total)
        moved = threshold.eta * tf.exp(-self.rate * (below - (1.0 - self.theta)))
        first = tf.maximum(_FIRST_PART * tf.math.divide_no_nan(sums.weighted_loss, total), 0.0)
        eta = tf.where(threshold.eta > 0, moved, first)
        return TrackedThreshold(tf.where(sums.total > 0, eta, threshold.eta))

    def total(self, *said: TailShare) -> tf.Tensor:
        """See `Threshold.total`."""
        return said[0].total

    def loss(self, threshold: TrackedThreshold) -> tf.Tensor:
        """See `Threshold.loss`."""
        return threshold.eta

    def is_unordered(self, threshold: float, mean_loss: float) -> bool:
        """See `Threshold.is_unordered`."""
        return threshold <= 0 and mean_loss <= 0


class SmoothedEta(NamedTuple):
    """Where clients begin to count.

    Attributes:
        eta: A loss, float32 scalar.
    """

    eta: tf.Tensor


def smoothed_share(eta: tf.Tensor, loss: tf.Tensor, nu: float) -> tf.Tensor:
    """Returns h_nu'(F_k - eta), float32 in [0, 1], of losses of any shape."""
    return tf.clip_by_value((_binned(loss) - eta) / nu, 0.0, 1.0)


def smoothed_eta(histogram: tf.Tensor, theta: float, nu: float) -> tf.Tensor:
    """Returns the eta with sum_k alpha_k h_nu'(F_k - eta) = theta sum_k alpha_k, a float32 scalar.

    Of several it is the largest, as for a level within nu of no client's loss.

    Args:
        histogram: The clients' weights by bins, see `histogram_of`; with a positive sum.
        theta: Conformity level, in (0, 1].
        nu: Width over which clients begin to count, in the unit of the loss, positive.
    """
    # Losses below 0 are where they count only if eta is below all others' reach.
    centers = np.concatenate([[-GRID.upper], GRID.centers()])
    # What counts falls in eta, and is linear between these.
    kinks = np.sort(np.concatenate([centers - nu, centers]))
    # Above eta some of each weight counts, above eta + nu all of it.
    some = np.searchsorted(centers, kinks, "right")
    all_ = np.searchsorted(centers, kinks + nu, "right")
    weights = tf.cast(histogram, tf.float64)
    weight, weighted = _sums_from(weights, some, all_), _sums_from(weights * centers, some, all_)
    in_part = (weighted.between - kinks * weight.between) / nu
    counted = weight.above + in_part
    wanted = theta * tf.reduce_sum(weights)
    # The last kink at which enough counts; at the first one all do.
    last = tf.reduce_sum(tf.cast(counted >= wanted * (1 - _SMOOTHED_ROUNDING), tf.int32)) - 1
    last = tf.clip_by_value(last, 0, len(kinks) - 2)
    falls = counted[last] - counted[last + 1]
    part = tf.clip_by_value(tf.math.divide_no_nan(counted[last] - wanted, falls), 0.0, 1.0)
    kinks = tf.constant(kinks)
    return tf.cast(kinks[last] + part * (kinks[last + 1] - kinks[last]), tf.float32)


@dataclasses.dataclass(frozen=True)
class Smoothed(BinnedThreshold):
    """A threshold above which clients count more and more, of this round or of the last one.

    Attributes:
        theta: Conformity level.
        nu: See `smoothed_eta`.
    """

    theta: float
    nu: float

    def initial(self) -> SmoothedEta:
        """See `Threshold.initial`: no loss is below 0."""
        return SmoothedEta(tf.constant(-self.nu))

    def share(self, threshold: SmoothedEta, loss: tf.Tensor) -> tf.Tensor:
        """See `Threshold.share`."""
        return smoothed_share(threshold.eta, loss, self.nu)

    def threshold_of(self, *said: LossHistogram) -> SmoothedEta:
        """See `HistogramThreshold.threshold_of`."""
        return SmoothedEta(smoothed_eta(said[0].histogram, self.theta, self.nu))

    def loss(self, threshold: SmoothedEta) -> tf.Tensor:
        """See `Threshold.loss`."""
        return threshold.eta

    def is_unordered(self, threshold: float, mean_loss: float) -> bool:
        """See `Threshold.is_unordered`; with losses of at least 0, all count in full at -nu."""
        del mean_loss
        return threshold < -1.01 * self.nu or threshold > GRID.upper - 2 * self.nu


class _Sums(NamedTuple):
    """Sums over bins, for each of several pairs of bins, float64.

    Attributes:
        between: From the first bin of a pair to the one before the second.
        above: From the second on.
    """

    between: tf.Tensor
    above: tf.Tensor


def _sums_from(values: tf.Tensor, first: np.ndarray, second: np.ndarray) -> _Sums:
    from_bin = tf.concat([tf.cumsum(values, reverse=True), tf.zeros([1], tf.float64)], axis=0)
    above = tf.gather(from_bin, second)
    return _Sums(tf.gather(from_bin, first) - above, above)


def _binned(loss: tf.Tensor) -> tf.Tensor:
    # A loss that is not a number has no bin; its client is excluded elsewhere.
    bins = tf.clip_by_value(GRID.bin_of(loss), 0, GRID.num_bins - 1)
    center = tf.gather(tf.constant(GRID.centers(), tf.float32), bins)
    return tf.where(loss < -GRID.lower, -GRID.upper, center)
