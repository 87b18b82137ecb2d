"""How a client learns whether it is in the tail: from a survey, from the round before, or tracked.

Of Delta-FL (Laguel et al. 2021) a round is: losses, their quantile, training by those above it. The
quantile has to be known before a client trains, and a server that sees sums only can have it

- from a *survey*, an exchange of its own before the training;
- *lagged*, from the losses that clients send beside their updates: those of the round before;
- *tracked*: one number that moves by a factor until the right share of the clients is below it.

The latter two are rounds of one exchange, as platforms have them.
"""

import dataclasses
from typing import Any, Callable, NamedTuple, Protocol

import tensorflow as tf

from tff_agnostic.aggregations.limits import Bound
from tff_agnostic.computations.tails.cuts import (
    GRID,
    Cut,
    everyone,
    histogram_of,
    share_of,
)

# A tracked threshold starts at this part of the mean loss: one that is too high falls slowly, and
# until it has fallen nobody trains.
_FIRST_PART = 0.1


class Losses(NamedTuple):
    """What clients say of their losses, for a cut.

    Attributes:
        histogram: Their weights by bins of their losses, int64 [bins].
    """

    histogram: tf.Tensor


class Below(NamedTuple):
    """What they say where a threshold is tracked.

    Attributes:
        below: Weight of those whose loss is below it, int64 scalar.
        total: Weight of all, int64 scalar.
        weighted_loss: Sum of the losses times the weights, float32 scalar.
    """

    below: tf.Tensor
    total: tf.Tensor
    weighted_loss: tf.Tensor


class Eta(NamedTuple):
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


class OfHistogram(Threshold):
    """A threshold that is made of a histogram of the losses: what clients say for it."""

    def statement(self, threshold: Any, loss: tf.Tensor, weight: tf.Tensor) -> Losses:
        """See `Threshold.statement`."""
        del threshold
        return Losses(histogram_of(loss, weight))

    def bounds(self, heaviest: float, max_loss: float) -> Losses:
        """See `Threshold.bounds`."""
        del max_loss
        return Losses(Bound(heaviest, integer=True))

    def total(self, said: Losses) -> tf.Tensor:
        """See `Threshold.total`."""
        return tf.reduce_sum(said.histogram)


@dataclasses.dataclass(frozen=True)
class Binned(OfHistogram):
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

    def next(self, threshold: Cut, said: Losses) -> Cut:
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

    def initial(self) -> Eta:
        """See `Threshold.initial`."""
        return Eta(tf.constant(0.0))

    def share(self, threshold: Eta, loss: tf.Tensor) -> tf.Tensor:
        """See `Threshold.share`; here 0 or 1."""
        return tf.cast((loss >= threshold.eta) | (threshold.eta <= 0), tf.float32)

    def statement(self, threshold: Eta, loss: tf.Tensor, weight: tf.Tensor) -> Below:
        """See `Threshold.statement`."""
        below = tf.where(loss < threshold.eta, weight, tf.zeros_like(weight))
        return Below(below, weight, loss * tf.cast(weight, tf.float32))

    def bounds(self, heaviest: float, max_loss: float) -> Below:
        """See `Threshold.bounds`."""
        number = Bound(heaviest, integer=True)
        return Below(number, number, Bound(heaviest * max_loss))

    def next(self, threshold: Eta, said: Below) -> Eta:
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
        return Eta(tf.where(said.total > 0, eta, threshold.eta))

    def total(self, said: Below) -> tf.Tensor:
        """See `Threshold.total`."""
        return said.total

    def loss(self, threshold: Eta) -> tf.Tensor:
        """See `Threshold.loss`."""
        return threshold.eta
