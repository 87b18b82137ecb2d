"""The domain weights lambda and the counts they are scaled by (Ro et al. 2021, Algorithm 1).

Pure functions on float32 vectors [p], one entry per domain, usable with NumPy arrays.
"""

import dataclasses
from collections.abc import Sequence
from typing import Callable, NamedTuple, Optional

import numpy as np
import tensorflow as tf

from tff_agnostic.errors import UserError
from tff_agnostic.registry import Registry
from tff_agnostic.settings import Settings, setting

_SUM_TOLERANCE = 1e-3
# The window is part of the server's state, and so of every checkpoint.
_MAX_WINDOW_BYTES = 64 * 2**20
# The smallest normal float32: what is smaller, processors may take for 0.
_SMALLEST_WEIGHT = float(np.finfo(np.float32).tiny)


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
    """Returns lambda * exp(gamma L), normalised (SERVER line 12), in the log domain.

    A positive weight stays positive, however small; 0 stays 0. A product gamma L beyond float32's
    range gives the limit: all weight on the domains with the largest loss.
    """
    losses = tf.convert_to_tensor(losses)
    exponents = learning_rate * losses
    # The same up to a factor of all weights, and it rounds otherwise: only where it has to be.
    from_largest = learning_rate * (losses - tf.reduce_max(losses))
    in_range = tf.reduce_all(tf.math.is_finite(exponents))
    logits = tf.math.log(lambda_) + tf.where(in_range, exponents, from_largest)
    unnormalized = tf.exp(logits - tf.reduce_max(logits))
    normalized = unnormalized / tf.reduce_sum(unnormalized)
    return tf.where(lambda_ > 0, tf.maximum(normalized, _SMALLEST_WEIGHT), 0.0)


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


@dataclasses.dataclass(frozen=True)
class DomainWeightsOptions(Settings):
    """How lambda moves; part of the settings of algorithms that have it.

    Attributes:
        domain_weight_update: Name of a member of `DOMAIN_WEIGHT_UPDATES`.
        domain_learning_rate: gamma_lambda; positive.
        window: r, the number of rounds whose counts scale lambda.
        initial_domain_weights: lambda_0, p numbers on the simplex; uniform if None. A weight of 0
            stays 0 under exponentiated gradient.
        initial_domain_counts: N_0, p positive numbers that fill the window before the first round.
            With r = 1 only their ratios matter, and only in the first round; with r > 1 they stand
            beside real counts for r - 1 rounds more, so that their size matters too.
        freeze_absent_domains: Keep the weight of a domain without examples in a round. Otherwise
            its loss counts as 0, as the paper's section 4 has it (line 11 as printed is 0/0).
    """

    domain_weight_update: str = setting(
        "exponentiated_gradient", "How lambda moves.", choices=DOMAIN_WEIGHT_UPDATES
    )
    domain_learning_rate: float = setting(0.01, "gamma_lambda.", positive=True)
    window: int = setting(1, "r, rounds whose counts scale lambda.", at_least=1)
    initial_domain_weights: Optional[tuple[float, ...]] = setting(
        None, "lambda_0, comma-separated; uniform if not given."
    )
    initial_domain_counts: Optional[tuple[float, ...]] = setting(
        None,
        "N_0, comma-separated; if not given, the counts that a round is expected to have, from the "
        "totals over all training clients.",
    )
    freeze_absent_domains: bool = setting(
        False,
        "Keep lambda of a domain without examples in a round; otherwise its loss counts as 0.",
    )


def initial_domain_state(
    options: DomainWeightsOptions,
    num_domains: int,
    expected_counts: Optional[Sequence[float]] = None,
) -> DomainState:
    """Returns lambda_0 and a window filled with N_0.

    Args:
        options: The settings.
        num_domains: p.
        expected_counts: N_0 where the settings have none; ones if None.

    Raises:
        UserError: If the initial weights or counts do not fit `num_domains`, the weights are not a
            point of the simplex, a count is not positive, or the window is too large to be part of
            every checkpoint.
    """
    p = num_domains
    most_rounds = _MAX_WINDOW_BYTES // (np.dtype(np.float32).itemsize * p)
    if options.window > most_rounds:
        raise UserError(
            f"--window: expected at most {most_rounds} rounds of {p} domains each, which make "
            f"{_MAX_WINDOW_BYTES // 2**20} MiB, found {options.window}"
        )
    flag = "--initial_domain_weights"
    weights = _vector(flag, options.initial_domain_weights, p, default=1.0 / p)
    if np.any(weights < 0) or abs(weights.sum() - 1) > _SUM_TOLERANCE:
        raise UserError(
            f"{flag}: expected non-negative numbers that sum to 1, found "
            f"{list(options.initial_domain_weights or ())}, which sum to {weights.sum():g}"
        )
    given = options.initial_domain_counts
    counts = _vector(
        "--initial_domain_counts", expected_counts if given is None else given, p, default=1.0
    )
    if np.any(counts <= 0):
        raise UserError(
            f"--initial_domain_counts: expected positive numbers, found {counts.tolist()}"
        )
    return DomainState(
        lambda_=(weights / weights.sum()).astype(np.float32),
        window=np.tile(counts.astype(np.float32), [options.window, 1]),
        mean_counts=counts.astype(np.float32),
    )


def _vector(
    flag: str, values: Optional[Sequence[float]], length: int, default: float
) -> np.ndarray:
    if values is None:
        return np.full([length], default)
    vector = np.asarray(values, np.float64)
    if vector.shape != (length,):
        raise UserError(f"{flag}: expected {length} numbers, one per domain, found {vector.size}")
    return vector


def update_domain_weights(
    options: DomainWeightsOptions, lambda_: tf.Tensor, losses: tf.Tensor, counts: tf.Tensor
) -> tf.Tensor:
    """Returns lambda_t from lambda_{t-1}, the mean losses L and the counts N_t of the round.

    With `options.freeze_absent_domains`, absent domains keep their weight and the others share the
    rest in the proportions that the update gives them. A round without any example changes nothing.
    A weight that the update leaves positive stays positive: one that were rounded to 0 could never
    grow again.
    """
    update = DOMAIN_WEIGHT_UPDATES[options.domain_weight_update]
    if options.freeze_absent_domains:
        # Updates depend on differences of losses. Beside the 0 of an absent domain, negative losses
        # could leave the present ones without any weight to share.
        losses = tf.where(counts > 0, losses - tf.minimum(tf.reduce_min(losses), 0.0), 0.0)
    updated = update(lambda_, losses, options.domain_learning_rate)
    is_positive = updated > 0
    if options.freeze_absent_domains:
        present = tf.cast(counts > 0, lambda_.dtype)
        share = tf.math.divide_no_nan(updated * present, tf.reduce_sum(updated * present))
        updated = share * tf.reduce_sum(lambda_ * present) + lambda_ * (1.0 - present)
    updated = tf.where(is_positive, tf.maximum(updated, _SMALLEST_WEIGHT), updated)
    return tf.where(tf.reduce_sum(counts) > 0, updated, lambda_)


def update_where_measured(
    options: DomainWeightsOptions,
    lambda_: tf.Tensor,
    losses: tf.Tensor,
    measured: tf.Tensor,
    trained: tf.Tensor,
) -> tf.Tensor:
    """Returns lambda_t where losses are measured on other examples than those that are trained on.

    A domain whose examples in a round are all trained on has a loss that nobody knows, which is not
    that of an absent domain: it keeps its weight, as absent ones do with `freeze_absent_domains`. A
    round in which nothing is measured changes nothing.

    Args:
        options: The settings.
        lambda_: lambda_{t-1}.
        losses: L, the mean losses of the round.
        measured: Examples of each domain that they are the mean of.
        trained: Examples of each domain that are trained on.
    """
    moves = measured > 0
    if not options.freeze_absent_domains:
        # Of a domain that is absent L is 0, as ever.
        moves |= tf.equal(trained, 0)
    moves &= tf.reduce_sum(measured) > 0
    freezing = dataclasses.replace(options, freeze_absent_domains=True)
    return update_domain_weights(freezing, lambda_, losses, tf.cast(moves, tf.float32))
