"""The smoothed objective of Delta-FL (Laguel et al. 2021, section IV), from a histogram in sums.

With the Moreau envelope h_nu in the place of max(., 0) the objective is

    eta + (1/theta) sum_k alpha_k h_nu(F_k - eta)
    h_nu(r) = r^2 / (2 nu) on [0, nu], r - nu / 2 above, 0 below

so that a client does not begin to train from one round to the next: one whose loss is above eta
counts with h_nu'(F_k - eta), which grows from 0 at eta to 1 at eta + nu. The eta that minimises it
is the one with which exactly theta of the weight counts. A loss is the centre of its bin.
"""

import dataclasses
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tff_agnostic.computations.tails.cuts import GRID
from tff_agnostic.computations.tails.thresholds import Losses, OfHistogram

# Sums of weights round in float64; shares of the whole that differ by less are equal.
_ROUNDING = 1e-9


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
    last = tf.reduce_sum(tf.cast(counted >= wanted * (1 - _ROUNDING), tf.int32)) - 1
    last = tf.clip_by_value(last, 0, len(kinks) - 2)
    falls = counted[last] - counted[last + 1]
    part = tf.clip_by_value(tf.math.divide_no_nan(counted[last] - wanted, falls), 0.0, 1.0)
    kinks = tf.constant(kinks)
    return tf.cast(kinks[last] + part * (kinks[last + 1] - kinks[last]), tf.float32)


@dataclasses.dataclass(frozen=True)
class Smoothed(OfHistogram):
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

    def next(self, threshold: SmoothedEta, said: Losses) -> SmoothedEta:
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
