"""The domain weights lambda and the counts they are scaled by (Ro et al. 2021, Algorithm 1).

Pure functions on float32 vectors [p], one entry per domain, usable with NumPy arrays.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Callable, NamedTuple, Optional

import numpy as np
import tensorflow as tf

from tff_agnostic.errors import UserError
from tff_agnostic.registry import Registry

_SUM_TOLERANCE = 1e-3


class DomainState(NamedTuple):
    """What the server remembers of the domains between rounds.

    Attributes:
        lambda_: Domain weights lambda_t, a point of the simplex Delta_p, float32 [p].
        window: Examples per domain of the last r rounds, oldest first, float32 [r, p].
        mean_counts: Mean of the window per domain or, for a domain absent from the whole window,
            its last positive mean; always positive, float32 [p].
    """

    lambda_: tf.Tensor
    window: tf.Tensor
    mean_counts: tf.Tensor


@dataclasses.dataclass(frozen=True)
class DomainWeightsParams:
    """How lambda moves.

    Attributes:
        update: Name of a member of `DOMAIN_WEIGHT_UPDATES`.
        learning_rate: gamma_lambda; positive.
        window_size: r, the number of rounds whose counts scale lambda.
        initial_weights: lambda_0, p numbers on the simplex; uniform if None.
        initial_counts: N_0, p positive numbers that fill the window before the first round; ones
            if None. Only their ratios matter until r rounds have passed, but the bound of a secure
            sum of beta is stated for counts like those of a real round.
        freeze_absent: Keep the weight of a domain without examples in a round. Otherwise its loss
            counts as 0, as in the paper.
    """

    update: str = "exponentiated_gradient"
    learning_rate: float = 0.01
    window_size: int = 1
    initial_weights: Optional[tuple[float, ...]] = None
    initial_counts: Optional[tuple[float, ...]] = None
    freeze_absent: bool = False

    def __post_init__(self) -> None:
        """Checks what can be checked without the number of domains."""
        _ = DOMAIN_WEIGHT_UPDATES[self.update]
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise UserError(
                f"domain learning rate: expected a positive number, found {self.learning_rate}"
            )
        if self.window_size < 1:
            raise UserError(f"window: expected at least 1 round, found {self.window_size}")


def initial_domain_state(params: DomainWeightsParams, num_domains: int) -> DomainState:
    """Returns lambda_0 and a window filled with N_0.

    Raises:
        UserError: If the initial weights or counts do not fit `num_domains`, the weights are not a
            point of the simplex, or a count is not positive.
    """
    p = num_domains
    weights = _vector("initial domain weights", params.initial_weights, p, default=1.0 / p)
    if np.any(weights < 0) or abs(weights.sum() - 1) > _SUM_TOLERANCE:
        raise UserError(
            "initial domain weights: expected non-negative numbers that sum to 1, found "
            f"{list(params.initial_weights or ())}, which sum to {weights.sum():g}"
        )
    counts = _vector("initial domain counts", params.initial_counts, p, default=1.0)
    if np.any(counts <= 0):
        raise UserError(
            "initial domain counts: expected positive numbers, found "
            f"{list(params.initial_counts or ())}"
        )
    return DomainState(
        lambda_=(weights / weights.sum()).astype(np.float32),
        window=np.tile(counts.astype(np.float32), [params.window_size, 1]),
        mean_counts=counts.astype(np.float32),
    )


def _vector(
    what: str, values: Optional[Sequence[float]], length: int, default: float
) -> np.ndarray:
    if values is None:
        return np.full([length], default)
    vector = np.asarray(values, np.float64)
    if vector.shape != (length,):
        raise UserError(f"{what}: expected {length} numbers, one per domain, found {vector.size}")
    if not np.all(np.isfinite(vector)):
        raise UserError(f"{what}: expected finite numbers, found {list(values)}")
    return vector


def scaling_vector(lambda_: tf.Tensor, mean_counts: tf.Tensor) -> tf.Tensor:
    """Returns alpha_t = lambda_{t-1} / mean of the window (SERVER line 4)."""
    return lambda_ / mean_counts


def append_counts(
    window: tf.Tensor, mean_counts: tf.Tensor, counts: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Slides N_t into the window and updates the mean counts.

    The paper leaves a domain that is absent from the whole window at 0/0; its last positive mean
    is kept instead. A round without any example leaves everything as it was.
    """
    slid = tf.concat([window[1:], counts[tf.newaxis]], axis=0)
    mean = tf.reduce_mean(slid, axis=0)
    any_examples = tf.reduce_sum(counts) > 0
    new_mean = tf.where(mean > 0, mean, mean_counts)
    return tf.where(any_examples, slid, window), tf.where(any_examples, new_mean, mean_counts)


def exponentiated_gradient(
    lambda_: tf.Tensor, losses: tf.Tensor, learning_rate: float
) -> tf.Tensor:
    """Returns lambda * exp(gamma L), normalised (SERVER line 12), in the log domain."""
    logits = tf.math.log(lambda_) + learning_rate * losses
    unnormalized = tf.exp(logits - tf.reduce_max(logits))
    return unnormalized / tf.reduce_sum(unnormalized)


def projected_gradient(lambda_: tf.Tensor, losses: tf.Tensor, learning_rate: float) -> tf.Tensor:
    """Returns the projection of lambda + gamma L on the simplex (Mohri et al. 2019, 4.2)."""
    return project_to_simplex(lambda_ + learning_rate * losses)


def fixed(lambda_: tf.Tensor, losses: tf.Tensor, learning_rate: float) -> tf.Tensor:
    """Returns lambda unchanged."""
    del losses, learning_rate
    return lambda_


def project_to_simplex(vector: tf.Tensor) -> tf.Tensor:
    """Returns the point of the simplex nearest to `vector` [p] in Euclidean distance.

    Source: Duchi et al. 2008, "Efficient projections onto the l1-ball", figure 1.
    """
    descending = tf.sort(vector, direction="DESCENDING")
    ranks = tf.range(1, tf.size(vector) + 1, dtype=vector.dtype)
    excess = (tf.cumsum(descending) - 1.0) / ranks
    support_size = tf.reduce_sum(tf.cast(descending > excess, tf.int32))
    return tf.maximum(vector - excess[support_size - 1], 0.0)


DomainWeightUpdate = Callable[[tf.Tensor, tf.Tensor, float], tf.Tensor]
DOMAIN_WEIGHT_UPDATES: Registry[DomainWeightUpdate] = Registry(
    "domain weight update",
    {
        "exponentiated_gradient": exponentiated_gradient,
        "projected_gradient": projected_gradient,
        "fixed": fixed,
    },
)


def update_domain_weights(
    params: DomainWeightsParams, lambda_: tf.Tensor, losses: tf.Tensor, counts: tf.Tensor
) -> tf.Tensor:
    """Returns lambda_t from lambda_{t-1}, the mean losses L and the counts N_t of the round.

    With `params.freeze_absent`, absent domains keep their weight and the others share the rest in
    the proportions that the update gives them. A round without any example changes nothing.
    """
    update = DOMAIN_WEIGHT_UPDATES[params.update]
    if params.freeze_absent:
        # Updates depend on differences of losses. Beside the 0 of an absent domain, negative losses
        # could leave the present ones without any weight to share.
        losses = tf.where(counts > 0, losses - tf.minimum(tf.reduce_min(losses), 0.0), 0.0)
    updated = update(lambda_, losses, params.learning_rate)
    if params.freeze_absent:
        present = tf.cast(counts > 0, lambda_.dtype)
        share = tf.math.divide_no_nan(updated * present, tf.reduce_sum(updated * present))
        updated = share * tf.reduce_sum(lambda_ * present) + lambda_ * (1.0 - present)
    return tf.where(tf.reduce_sum(counts) > 0, updated, lambda_)
