"""The window of counts that lambda is scaled by (Ro et al. 2021, Algorithm 1).

Pure functions on float32 vectors [p], one entry per domain, usable with NumPy arrays.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple, Optional

import numpy as np
import tensorflow as tf

from tff_agnostic.computations.minimax.lambda_options import LambdaOptions
from tff_agnostic.computations.minimax.lambda_steps import LambdaSteps, per_domain
from tff_agnostic.errors import UserError
from tff_agnostic.settings import setting

# The window is part of the server's state, and so of every checkpoint.
_MAX_WINDOW_BYTES = 64 * 2**20


class DomainState(NamedTuple):
    """What the server remembers of the domains between rounds.

    Attributes:
        lambda_: Domain weights lambda_t, a point of Lambda by its coordinates, which are lambda_t
            itself but in a hull; float32 [p], in a hull of q mixtures [q].
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


@dataclasses.dataclass(frozen=True)
class DomainWeightsOptions(LambdaOptions):
    """How lambda moves, and what it is scaled by.

    Attributes:
        window: r, the number of rounds whose counts scale lambda.
        initial_domain_counts: N_0, p positive numbers that fill the window before the first round.
            With r = 1 only their ratios matter, and only in the first round; with r > 1 they stand
            beside real counts for r - 1 rounds more, so that their size matters too.
    """

    window: int = setting(1, "r, rounds whose counts scale lambda.", at_least=1)
    initial_domain_counts: Optional[tuple[float, ...]] = setting(
        None,
        "N_0, comma-separated; if not given, the counts that a round is expected to have, from the "
        "totals over all training clients.",
    )


def initial_domain_state(
    options: DomainWeightsOptions,
    steps: LambdaSteps,
    expected_counts: Optional[Sequence[float]] = None,
) -> DomainState:
    """Returns lambda_0 and a window filled with N_0.

    Args:
        options: The settings.
        steps: What moves lambda.
        expected_counts: N_0 where the settings have none; ones if None.

    Raises:
        UserError: If there are more or fewer initial counts than domains, a count is not positive,
            or the window is too large to be part of every checkpoint.
    """
    p = len(steps.training_mixture)
    most_rounds = _MAX_WINDOW_BYTES // (np.dtype(np.float32).itemsize * p)
    if options.window > most_rounds:
        raise UserError(
            f"--window: expected at most {most_rounds} rounds of {p} domains each, which make "
            f"{_MAX_WINDOW_BYTES // 2**20} MiB, found {options.window}"
        )
    given = options.initial_domain_counts
    counts = per_domain(
        "--initial_domain_counts", expected_counts if given is None else given, p, default=1.0
    )
    if np.any(counts <= 0):
        raise UserError(
            f"--initial_domain_counts: expected positive numbers, found {counts.tolist()}"
        )
    return DomainState(
        lambda_=np.array(steps.initial, np.float32),
        window=np.tile(counts.astype(np.float32), [options.window, 1]),
        mean_counts=counts.astype(np.float32),
    )
