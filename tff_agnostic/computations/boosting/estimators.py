"""Estimates of the gradient by alpha from predictors that were sampled.

The text of Hamer, Mohri, Suresh 2020 mixes the first two, and section 4.2 prints a bias that is not
that of either; the third is its corrected form, whose mean over all masks was enumerated. Pure
functions on float32 [n, C], C predictors that were sent.
"""

from typing import Callable, NamedTuple, Optional

import tensorflow as tf

from tff_agnostic.registry import Registry


class Sent(NamedTuple):
    """The predictors that a client gets; float32 [C] each.

    Attributes:
        alpha: alpha_k.
        gamma: gamma_k, with which it was sampled.
        is_sampled: 1_k: 0 for what fills the room of a message.
    """

    alpha: tf.Tensor
    gamma: tf.Tensor
    is_sampled: tf.Tensor


# (gradients at alpha~ [n, C], |h_k|^2 [n or 1, C], predictors) -> estimates [n, C].
Estimate = Callable[[tf.Tensor, tf.Tensor, Sent], tf.Tensor]


class GradientEstimator(NamedTuple):
    """An estimator.

    Attributes:
        estimate: The estimate.
        loss: Of which it is one; None for every loss.
        uses_norms: Whether it reads |h_k|^2, which of large distributions takes longer than the
            rest.
    """

    estimate: Estimate
    loss: Optional[str] = None
    uses_norms: bool = False


def masked(gradients: tf.Tensor, squared_norms: tf.Tensor, sent: Sent) -> tf.Tensor:
    """1_k g_k: figures 1 and 2; of what is sampled rarely the mean is small."""
    del squared_norms
    return gradients * sent.is_sampled


def divided(gradients: tf.Tensor, squared_norms: tf.Tensor, sent: Sent) -> tf.Tensor:
    """1_k / gamma_k g_k; the mean exceeds the gradient of the squared loss by `unbiased`'s bias."""
    del squared_norms
    return gradients * (sent.is_sampled / sent.gamma)


def unbiased(gradients: tf.Tensor, squared_norms: tf.Tensor, sent: Sent) -> tf.Tensor:
    """The same less 2 alpha_k |h_k|^2 (1 / gamma_k - 1), whose mean is the gradient.

    It is that of the squared loss, and draws have to be independent.
    """
    bias = 2.0 * sent.alpha * squared_norms * (1.0 / sent.gamma - 1.0)
    return (gradients - bias) * (sent.is_sampled / sent.gamma)


def centred(gradients: tf.Tensor, squared_norms: tf.Tensor, sent: Sent) -> tf.Tensor:
    """1_k / gamma_k (1 + g_k), for the log loss, where sum_k alpha_k (1 + g_k) = 0.

    All g_k are about -1 there. Steps ignore what all coordinates have in common, but a mask makes a
    reward for being sampled of it.
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
