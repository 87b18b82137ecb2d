"""Sampling of the predictors that a round sends, and gradient estimators that correct for it.

Source: Hamer, Mohri, Suresh 2020, section 4.1, equation (8). Samplers draw predictor k with
probability gamma_k; they are pure functions on vectors [q]. Estimators are pure functions on
float32 [n, C], for C sent predictors. The paper's text mixes `masked` and `divided`, and the bias
printed in section 4.2 applies to neither; `unbiased` is the corrected form, whose mean was verified
by enumeration of all masks.
"""

from __future__ import annotations

import math
from typing import Callable, NamedTuple, Optional

from tff_agnostic.base.later import tf
from tff_agnostic.base.registry import Registry
from tff_agnostic.base.stateless_random import fold_in, random_order, uniform

# Numbers that distinguish several draws with the same seed.
_FILLING, _ORDER, _START, _COINS = 0, 1, 2, 3
# With independent draws, a message has space for this number of standard deviations, of at most
# sqrt(C) each, above the mean C.
_ROOM = 5.0

# (alpha [q], C, uniform fraction) -> gamma, float32 [q], each in (0, 1], with a sum of at most C.
Gammas = Callable[["tf.Tensor", int, float], "tf.Tensor"]


def no_sampling(alpha: tf.Tensor, budget: int, uniform_share: float) -> tf.Tensor:
    """Returns gamma_k = 1: no sampling."""
    del budget, uniform_share
    return tf.ones_like(alpha)


def uniformly(alpha: tf.Tensor, budget: int, uniform_share: float) -> tf.Tensor:
    """Returns gamma_k = C / q."""
    del uniform_share
    return tf.fill(tf.shape(alpha), budget / alpha.shape[0])


def by_weight(alpha: tf.Tensor, budget: int, uniform_share: float) -> tf.Tensor:
    """Returns gamma_k = min(1, alpha_k C) (equation 8), mixed with a fraction of uniform sampling.

    Without this fraction, a predictor of weight 0 would never be sampled again. The sum of the
    gammas is at most C; the cap at 1 reduces it.
    """
    even = budget / alpha.shape[0]
    by_alpha = tf.minimum(1.0, alpha * float(budget))
    return (1.0 - uniform_share) * by_alpha + uniform_share * even


PREDICTOR_SAMPLINGS: Registry[Gammas] = Registry(
    "predictor sampling", {"none": no_sampling, "uniform": uniformly, "weighted": by_weight}
)


class SampledPredictors(NamedTuple):
    """The predictors in a message: sampled predictors and padding.

    Attributes:
        indices: Indices of the predictors, int32 [room], all different.
        is_sampled: 1 for predictors in H_t, 0 for padding; float32 [room].
    """

    indices: tf.Tensor
    is_sampled: tf.Tensor


class PredictorSampler(NamedTuple):
    """A method to draw predictors with given probabilities.

    Attributes:
        chosen: (gamma, seed) -> whether each predictor is in H_t, bool [q].
        room: (C, q) -> number of predictors that fit into a message.
    """

    chosen: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
    room: Callable[[int, int], int]

    def __call__(self, gamma: tf.Tensor, budget: int, seed: tf.Tensor) -> SampledPredictors:
        """Returns the predictors to send in a round.

        Args:
            gamma: Probabilities, float32 [q].
            budget: Number C of predictors to draw.
            seed: Seed of the round, int64 scalar.
        """
        q = gamma.shape[0]
        room = self.room(budget, q)
        chosen = self.chosen(gamma, seed)
        # Put the predictors in H_t first, in a random order: if there are too many,
        # random ones are dropped.
        order = _random_order(q, fold_in(seed, tf.constant(_FILLING)))
        is_padding = tf.cast(~tf.gather(chosen, order), tf.int32)
        indices = tf.gather(order, tf.argsort(is_padding, stable=True))[:room]
        return SampledPredictors(indices, tf.cast(tf.gather(chosen, indices), tf.float32))


def systematic(gamma: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Draws predictor k with probability gamma_k, by systematic sampling in a random order.

    The gammas are interpreted as consecutive intervals, and a predictor is drawn if its interval
    contains one of the points u, u + 1, u + 2, ... The number of draws is the sum of the gammas,
    rounded up or down, and never more than C. Unlike in the paper's figure, draws are not
    independent: in most cases, drawing one predictor makes it less likely that others are drawn.
    """
    order = _random_order(gamma.shape[0], fold_in(seed, tf.constant(_ORDER)))
    # Use float64, because the sum of a thousand gammas must be exactly C.
    ends = tf.cumsum(tf.cast(tf.gather(gamma, order), tf.float64))
    total = tf.round(ends[-1])
    is_whole = tf.abs(ends[-1] - total) < 1e-4
    last = tf.where(is_whole, total, ends[-1])
    ends = tf.concat([tf.minimum(ends[:-1], last), [last]], axis=0)
    passed = tf.floor(ends + tf.cast(uniform(seed, _START), tf.float64))
    taken = tf.concat([passed[:1] > 0, passed[1:] > passed[:-1]], axis=0)
    return tf.scatter_nd(order[:, tf.newaxis], tf.cast(taken, tf.int32), tf.shape(gamma)) > 0


def independent(gamma: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Draws each predictor by its own coin flip, as in figures 1 and 2; H_t may be empty."""
    seeds = fold_in(seed, tf.range(gamma.shape[0]))
    return uniform(seeds, _COINS) < gamma


def _exactly(budget: int, q: int) -> int:
    return min(budget, q)


def _with_reserve(budget: int, q: int) -> int:
    return min(q, math.ceil(budget + _ROOM * math.sqrt(budget)))


def _random_order(q: int, seed: tf.Tensor) -> tf.Tensor:
    return tf.reshape(random_order(seed, tf.constant(q), tf.constant(q)), [q])


PREDICTOR_DRAWS: Registry[PredictorSampler] = Registry(
    "draw of predictors",
    {
        "systematic": PredictorSampler(systematic, _exactly),
        "independent": PredictorSampler(independent, _with_reserve),
    },
)


class SentPredictors(NamedTuple):
    """The predictors that a client receives; float32 [C] each.

    Attributes:
        alpha: Weights alpha_k.
        gamma: Sampling probabilities gamma_k.
        is_sampled: 1_k: 1 for sampled predictors, 0 for padding.
    """

    alpha: tf.Tensor
    gamma: tf.Tensor
    is_sampled: tf.Tensor


# (gradients at alpha~ [n, C], |h_k|^2 [n or 1, C], predictors) -> estimates [n, C].
Estimate = Callable[["tf.Tensor", "tf.Tensor", SentPredictors], "tf.Tensor"]


class GradientEstimator(NamedTuple):
    """An estimator of the gradient.

    Attributes:
        loss: Name of the only loss that the estimator supports; None if it supports every loss.
        uses_norms: Whether the estimator uses |h_k|^2, the most costly term for large
            distributions.
    """

    estimate: Estimate
    loss: Optional[str] = None
    uses_norms: bool = False


def masked(gradients: tf.Tensor, squared_norms: tf.Tensor, sent: SentPredictors) -> tf.Tensor:
    """Returns 1_k g_k (figures 1 and 2); its mean is too small for rarely sampled predictors."""
    del squared_norms
    return gradients * sent.is_sampled


def divided(gradients: tf.Tensor, squared_norms: tf.Tensor, sent: SentPredictors) -> tf.Tensor:
    """Returns 1_k / gamma_k g_k; for the squared loss it has the bias that `unbiased` subtracts."""
    del squared_norms
    return gradients * (sent.is_sampled / sent.gamma)


def unbiased(gradients: tf.Tensor, squared_norms: tf.Tensor, sent: SentPredictors) -> tf.Tensor:
    """Returns 1_k / gamma_k (g_k - b_k) with b_k = 2 alpha_k |h_k|^2 (1 / gamma_k - 1).

    Its mean is the gradient, for the squared loss and independent draws.
    """
    # This is b_k of section 4.2, corrected.
    bias = 2.0 * sent.alpha * squared_norms * (1.0 / sent.gamma - 1.0)
    return (gradients - bias) * (sent.is_sampled / sent.gamma)


def centred(gradients: tf.Tensor, squared_norms: tf.Tensor, sent: SentPredictors) -> tf.Tensor:
    """Returns 1_k / gamma_k (1 + g_k), for the log loss, where sum_k alpha_k (1 + g_k) = 0.

    For the log loss all g_k are about -1. Steps ignore such a common offset. If it were masked by
    1_k, however, it would reward the sampled predictors.
    """
    del squared_norms
    return (1.0 + gradients) * (sent.is_sampled / sent.gamma)


GRADIENT_ESTIMATORS: Registry[GradientEstimator] = Registry(
    "gradient estimator",
    {
        "masked": GradientEstimator(masked),
        "divided": GradientEstimator(divided),
        "unbiased": GradientEstimator(unbiased, loss="squared", uses_norms=True),
        "centred": GradientEstimator(centred, loss="log"),
    },
)
