"""Where the tail of the clients' losses begins: cuts of a histogram in sums, smoothed, tracked.

A level theta of Delta-FL (Laguel et al. 2021) keeps the clients with the largest losses, theta of
their weight. A client has to know before it trains whether it is among them. The server sees sums
only, and can find the quantile of the losses

- from a *survey*, a communication step before the training;
- *lagged*, from the losses that clients send beside their updates: those of the round before;
- *tracked*: one number that moves by a factor until the right share of the clients is below it.

The latter two are rounds of one step, which is all that platforms allow.

For a survey and a lagged threshold each client adds its weight to the bin of its loss. Clients
above the bin of the quantile count in full, those in it with the share that is left of theta, and
those below it not at all. Losses in one bin count as equal: a bin of the grid is 2.7% wide, so that
a threshold is off by 1.36% at most. (Where the tail is a few clients, bins of twice that width cost
1.7% of the objective, and these 0.3%: see the tests.)

The smoothed objective (section IV of the paper) has the Moreau envelope h_nu in the place of
max(., 0):

    eta + (1/theta) sum_k alpha_k h_nu(F_k - eta)
    h_nu(r) = r^2 / (2 nu) on [0, nu], r - nu / 2 above, 0 below

A client whose loss is above eta counts with h_nu'(F_k - eta), which grows from 0 at eta to 1 at
eta + nu, so that clients do not begin to train from one round to the next. The eta that minimises
the objective is the one with which exactly theta of the weight counts. A loss is the centre of its
bin.
"""

from __future__ import annotations

import dataclasses
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


class Cut(NamedTuple):
    """Where the tail begins.

    Attributes:
        bin: Index of a bin of `GRID`, int32 scalar.
        share: How much of its weight a client in this bin counts, in [0, 1], float32 scalar.
    """

    bin: tf.Tensor
    share: tf.Tensor


def everyone() -> Cut:
    """Returns the cut below which there is nobody."""
    return Cut(tf.constant(0), tf.constant(1.0))


def share_of(cut: Cut, loss: tf.Tensor) -> tf.Tensor:
    """Returns how much of its weight a client counts, float32.

    Args:
        cut: Where the tail begins.
        loss: F_k, float32 of any shape; the server's histogram has it in the same bin.
    """
    bin_ = GRID.bin_of(loss)
    in_bin = tf.where(tf.equal(bin_, cut.bin), cut.share, 0.0)
    return tf.where(bin_ > cut.bin, 1.0, in_bin)


def histogram_of(loss: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
    """Returns the histogram of one client, int64 [bins]: its weight in the bin of its loss.

    Args:
        loss: F_k, float32 scalar.
        weight: alpha_k, a whole number, int64 scalar.
    """
    # A comparison, and no write at an index: that is what TensorFlow vectorises over clients.
    is_here = tf.equal(tf.range(GRID.num_bins), GRID.bin_of(loss))
    return tf.where(is_here, weight, tf.zeros_like(weight))


def exact_cut(histogram: tf.Tensor, theta: float) -> Cut:
    """Returns the cut with which exactly theta of the weight counts.

    It is the maximiser pi of sum_k pi_k F_k among those with pi_k <= alpha_k / theta: alpha_k /
    theta above the cut, and in it what is left.

    Args:
        histogram: The clients' weights by bins, int64 [bins], with a positive sum.
        theta: Conformity level, in (0, 1].
    """
    found = _quantile(histogram, theta)
    left = tf.where(found.left > found.rounding, found.left, 0.0)
    share = tf.cast(tf.minimum(left / found.inside, 1.0), tf.float32)
    # An empty bin is the quantile where all clients count.
    return Cut(found.bin, tf.where(found.inside > 0, share, 1.0))


def paper_cut(histogram: tf.Tensor, theta: float) -> Cut:
    """Returns the cut of Algorithm 2, line 6: F_k >= Quantile(1 - theta) counts in full.

    More than theta of the weight counts: 51 of 100 equal clients at theta = 0.5.
    """
    return Cut(_quantile(histogram, theta).bin, tf.constant(1.0))


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


def _quantile(histogram: tf.Tensor, theta: float) -> _Quantile:
    weights = tf.cast(histogram, tf.float64)
    # Whole numbers: sums are exact.
    above = tf.cumsum(weights, exclusive=True, reverse=True)
    total = tf.reduce_sum(weights)
    rounding = _ROUNDING * total
    is_tail = above <= theta * total + rounding
    bin_ = tf.argmax(tf.cast(is_tail, tf.int32), output_type=tf.int32)
    return _Quantile(bin_, weights[bin_], theta * total - above[bin_], rounding)


class LossHistogram(NamedTuple):
    """What clients say of their losses, for a cut.

    Attributes:
        histogram: Their weights by bins of their losses, int64 [bins].
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

    def initial(self) -> Any:
        """Returns the threshold before any loss is known, with which everyone counts."""

    def share(self, threshold: Any, loss: tf.Tensor) -> tf.Tensor:
        """Returns how much of its weight a client with a loss counts, float32 in [0, 1]."""

    def statement(self, threshold: Any, loss: tf.Tensor, weight: tf.Tensor) -> Any:
        """Returns what one client says of its loss, from its weight, an int64 scalar."""

    def bounds(self, heaviest: float, max_loss: float) -> Any:
        """Returns the bounds of a statement, for clients of at most this weight and loss."""

    def next(self, threshold: Any, said: Any) -> Any:
        """Returns the threshold that all statements make, or the old one without any."""

    def total(self, said: Any) -> tf.Tensor:
        """Returns the weight of all clients with a loss, int64."""

    def loss(self, threshold: Any) -> tf.Tensor:
        """Returns the threshold as a loss, float32."""


class HistogramThreshold(Threshold):
    """A threshold that is made of a histogram of the losses: what clients say for it."""

    def statement(self, threshold: Any, loss: tf.Tensor, weight: tf.Tensor) -> LossHistogram:
        """See `Threshold.statement`."""
        del threshold
        return LossHistogram(histogram_of(loss, weight))

    def bounds(self, heaviest: float, max_loss: float) -> LossHistogram:
        """See `Threshold.bounds`."""
        del max_loss
        return LossHistogram(Bound(heaviest, integer=True))

    def total(self, said: LossHistogram) -> tf.Tensor:
        """See `Threshold.total`."""
        return tf.reduce_sum(said.histogram)


@dataclasses.dataclass(frozen=True)
class CutThreshold(HistogramThreshold):
    """A threshold that is a bin of a histogram, of this round or of the last one.

    Attributes:
        theta: Conformity level.
        cut: (histogram, theta) -> cut, which says what a client in its bin counts.
    """

    theta: float
    cut: Callable[[tf.Tensor, float], Cut]

    def initial(self) -> Cut:
        """See `Threshold.initial`."""
        return everyone()

    def share(self, threshold: Cut, loss: tf.Tensor) -> tf.Tensor:
        """See `Threshold.share`."""
        return share_of(threshold, loss)

    def next(self, threshold: Cut, said: LossHistogram) -> Cut:
        """See `Threshold.next`."""
        found = self.cut(said.histogram, self.theta)
        is_known = tf.reduce_sum(said.histogram) > 0
        return Cut(*(tf.where(is_known, new, old) for new, old in zip(found, threshold)))

    def loss(self, threshold: Cut) -> tf.Tensor:
        """See `Threshold.loss`: that of the centre of the bin."""
        return tf.gather(tf.constant(GRID.centers(), tf.float32), threshold.bin)


@dataclasses.dataclass(frozen=True)
class Tracked(Threshold):
    """A threshold that follows the quantile by factors (Andrew et al. 2021, of clipping norms).

    Attributes:
        theta: Conformity level.
        rate: r in eta exp(-r (below / total - (1 - theta))).
    """

    theta: float
    rate: float

    def initial(self) -> TrackedThreshold:
        """See `Threshold.initial`."""
        return TrackedThreshold(tf.constant(0.0))

    def share(self, threshold: TrackedThreshold, loss: tf.Tensor) -> tf.Tensor:
        """See `Threshold.share`; here 0 or 1."""
        return tf.cast((loss >= threshold.eta) | (threshold.eta <= 0), tf.float32)

    def statement(
        self, threshold: TrackedThreshold, loss: tf.Tensor, weight: tf.Tensor
    ) -> TailShare:
        """See `Threshold.statement`."""
        below = tf.where(loss < threshold.eta, weight, tf.zeros_like(weight))
        return TailShare(below, weight, loss * tf.cast(weight, tf.float32))

    def bounds(self, heaviest: float, max_loss: float) -> TailShare:
        """See `Threshold.bounds`."""
        number = Bound(heaviest, integer=True)
        return TailShare(number, number, Bound(heaviest * max_loss))

    def next(self, threshold: TrackedThreshold, said: TailShare) -> TrackedThreshold:
        """See `Threshold.next`; with the first losses it is a part of their mean."""
        if self.theta == 1:
            # FedAvg: a threshold that only follows the losses would leave clients out while they
            # fall.
            return self.initial()
        total = tf.cast(said.total, tf.float32)
        below = tf.math.divide_no_nan(tf.cast(said.below, tf.float32), total)
        moved = threshold.eta * tf.exp(-self.rate * (below - (1.0 - self.theta)))
        first = tf.maximum(_FIRST_PART * tf.math.divide_no_nan(said.weighted_loss, total), 0.0)
        eta = tf.where(threshold.eta > 0, moved, first)
        return TrackedThreshold(tf.where(said.total > 0, eta, threshold.eta))

    def total(self, said: TailShare) -> tf.Tensor:
        """See `Threshold.total`."""
        return said.total

    def loss(self, threshold: TrackedThreshold) -> tf.Tensor:
        """See `Threshold.loss`."""
        return threshold.eta


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

    Of several it is the largest, as for a level of which nobody's loss is in reach.

    Args:
        histogram: The clients' weights by bins of `GRID`, int64 [bins], with a positive sum.
        theta: Conformity level, in (0, 1].
        nu: Width over which clients begin to count, in the unit of the loss, positive.
    """
    centers = GRID.centers()
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
class Smoothed(HistogramThreshold):
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

    def next(self, threshold: SmoothedEta, said: LossHistogram) -> SmoothedEta:
        """See `Threshold.next`."""
        if self.theta == 1:
            # FedAvg: nobody's share may be a rounding below 1.
            return self.initial()
        found = smoothed_eta(said.histogram, self.theta, self.nu)
        is_known = tf.reduce_sum(said.histogram) > 0
        return SmoothedEta(tf.where(is_known, found, threshold.eta))

    def loss(self, threshold: SmoothedEta) -> tf.Tensor:
        """See `Threshold.loss`."""
        return threshold.eta


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
    # The bin of a loss that is no number is not one of them; whoever has it is left out elsewhere.
    bins = tf.clip_by_value(GRID.bin_of(loss), 0, GRID.num_bins - 1)
    return tf.gather(tf.constant(GRID.centers(), tf.float32), bins)
