"""How lambda climbs in its set: one step a round on the domains' losses.

Sources: Mohri, Sivek, Suresh 2019, sections 3 and 4; Ro et al. 2021, Algorithm 1, SERVER line 12.
Pure functions on float32 vectors, usable with NumPy arrays.
"""

import dataclasses
import types
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from tff_agnostic.computations.minimax.lambda_options import CHI2_SIGNS, LambdaOptions
from tff_agnostic.computations.minimax.lambda_updates import (
    SMALLEST_WEIGHT,
    DomainWeightUpdate,
    Step,
)
from tff_agnostic.errors import UserError
from tff_agnostic.lambda_sets.lambda_set import LambdaSet
from tff_agnostic.lambda_sets.simplex import Simplex
from tff_agnostic.quantities import Quantity, Role

_SUM_TOLERANCE = 1e-3

# Describes what algorithms report of lambda, beside losses.
LAMBDA_QUANTITIES: Mapping[str, Quantity] = types.MappingProxyType(
    {
        "lambda": Quantity(
            "lambda",
            "domain weight lambda",
            per_domain=True,
            role=Role.DOMAIN_WEIGHT,
            is_drawn=True,
            file_name="domain_weights",
        ),
        "alpha": Quantity("alpha", "scale alpha of a domain", per_domain=True),
    }
)


@dataclasses.dataclass(frozen=True)
class LambdaSteps:
    """Moves lambda; what `LambdaOptions` make of the domains of a problem.

    Attributes:
        options: The settings.
        lambda_set: Lambda.
        training_mixture: m_bar, the domains' shares of the training examples, p positive numbers.
        initial: The coordinates of lambda_0.
        update: How lambda moves.
    """

    options: LambdaOptions
    lambda_set: LambdaSet
    training_mixture: tuple[float, ...]
    initial: tuple[float, ...]
    update: DomainWeightUpdate

    def mixture(self, coordinates: tf.Tensor) -> tf.Tensor:
        """Returns lambda, float32 [p], of coordinates in the set."""
        return self.lambda_set.mixture(coordinates)

    def next(
        self,
        coordinates: tf.Tensor,
        losses: tf.Tensor,
        counts: tf.Tensor,
        measured: Optional[tf.Tensor] = None,
        rate_factor: Optional[tf.Tensor] = None,
    ) -> tf.Tensor:
        """Returns the coordinates of lambda_t from those of lambda_{t-1}.

        A domain without examples in the round is absent: its loss is 0, or it keeps its weight with
        `freeze_absent_domains`. One whose examples are all trained on, and none measured, is not
        absent, and nobody knows its loss: it keeps its weight. A round without any loss changes
        nothing. A weight that the update leaves positive stays positive: one that were rounded to 0
        could never grow again.

        Args:
            coordinates: Of lambda_{t-1}, float32 [q].
            losses: L, the mean losses of the domains, float32 [p].
            counts: N_t, the round's examples of each domain, float32 [p].
            measured: How many examples each loss is the mean of, if those are others than the ones
                that are trained on, float32 [p].
            rate_factor: What gamma_lambda is multiplied by in this round; 1 if None.
        """
        keeps_absent = self.options.freeze_absent_domains
        known = counts > 0
        if measured is not None:
            known = measured > 0
            if not keeps_absent:
                known |= tf.equal(counts, 0)
            known &= tf.reduce_sum(measured) > 0
            keeps_absent = True
        rate = self.options.domain_learning_rate
        if rate_factor is not None:
            rate = rate * rate_factor
        moved = self._moved(coordinates, losses, known, keeps_absent, rate)
        return tf.where(tf.reduce_any(known), moved, coordinates)

    def _moved(
        self,
        coordinates: tf.Tensor,
        losses: tf.Tensor,
        known: tf.Tensor,
        keeps_unknown: bool,
        rate: Any,
    ) -> tf.Tensor:
        keeps_weights = keeps_unknown and isinstance(self.lambda_set, Simplex)
        if keeps_weights:
            # Updates depend on differences of losses. Beside the 0 of an absent domain, negative
            # losses could leave the present ones without any weight to share.
            losses = tf.where(known, losses - tf.minimum(tf.reduce_min(losses), 0.0), 0.0)
        elif keeps_unknown:
            # In other sets no weight can be kept alone: what is unknown is taken for the mean.
            losses = tf.where(known, losses, self._mean_of_known(coordinates, losses, known))
        if self.options.chi2_weight:
            losses += self._chi2_slope(coordinates)
        slopes = self.lambda_set.slopes(losses)
        step = Step(coordinates, slopes, rate, known if keeps_weights else None)
        updated = self.update(self.lambda_set, step)
        is_positive = updated > 0
        if keeps_weights:
            # The others share the rest in the proportions that the update gives them.
            present = tf.cast(known, coordinates.dtype)
            share = tf.math.divide_no_nan(updated * present, tf.reduce_sum(updated * present))
            kept = coordinates * (1.0 - present)
            updated = share * tf.reduce_sum(coordinates * present) + kept
        return tf.where(is_positive, tf.maximum(updated, SMALLEST_WEIGHT), updated)

    def _mean_of_known(
        self, coordinates: tf.Tensor, losses: tf.Tensor, known: tf.Tensor
    ) -> tf.Tensor:
        weights = self.mixture(coordinates) * tf.cast(known, tf.float32)
        return tf.math.divide_no_nan(tf.reduce_sum(weights * losses), tf.reduce_sum(weights))

    def _chi2_slope(self, coordinates: tf.Tensor) -> tf.Tensor:
        m = tf.constant(self.training_mixture, tf.float32)
        sign = CHI2_SIGNS[self.options.chi2_sign]
        return sign * self.options.chi2_weight * 2.0 * (self.mixture(coordinates) - m) / m


def lambda_steps(
    options: LambdaOptions,
    domain_names: Sequence[str],
    expected_counts: Optional[Sequence[float]] = None,
) -> LambdaSteps:
    """Returns what moves lambda among the domains of a problem.

    Args:
        options: The settings.
        domain_names: Of the p domains.
        expected_counts: Examples of each domain in a round, whose shares are the training mixture;
            uniform if None.

    Raises:
        UserError: If lambda_0 does not fit the domains, is no point of the simplex or not in the
            set, or if the set is empty.
    """
    p = len(domain_names)
    counts = np.ones([p]) if expected_counts is None else np.asarray(expected_counts, np.float64)
    training_mixture = counts / counts.sum()
    lambda_set = options.build_lambda_set(domain_names, training_mixture)
    flag = "--initial_domain_weights"
    given = options.initial_domain_weights
    way = options.way()
    update = way.build(options, tuple(training_mixture.tolist()))
    if given is None and (options.lambda_set == "ball" or way.starts_at_training_mixture):
        weights = training_mixture
    else:
        weights = per_domain(flag, given, p, default=1.0 / p)
    if np.any(weights < 0) or abs(weights.sum() - 1) > _SUM_TOLERANCE:
        raise UserError(
            f"{flag}: expected non-negative numbers that sum to 1, found "
            f"{list(options.initial_domain_weights or ())}, which sum to {weights.sum():g}"
        )
    initial = lambda_set.start(weights / weights.sum())
    return LambdaSteps(
        options, lambda_set, tuple(training_mixture.tolist()), tuple(initial.tolist()), update
    )


def per_domain(
    flag: str, values: Optional[Sequence[float]], length: int, default: float
) -> np.ndarray:
    """Returns values of a flag as a float64 vector with an entry per domain.

    Raises:
        UserError: Naming the flag, if there are more or fewer.
    """
    if values is None:
        return np.full([length], default)
    vector = np.asarray(values, np.float64)
    if vector.shape != (length,):
        raise UserError(f"{flag}: expected {length} numbers, one per domain, found {vector.size}")
    return vector
