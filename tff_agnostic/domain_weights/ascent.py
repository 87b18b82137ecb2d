"""Updates of lambda: mirror ascent, CVaR, or none, with one step per round along domain losses.

Sources of mirror ascent: Ro et al. 2021, Algorithm 1, SERVER line 12; Mohri, Sivek, Suresh 2019,
sections 3 and 4.2 (both mirror maps) and equation (6) (the additional term `chi2`).

CVaR over domains: Laguel et al. 2021, "A Superquantile Approach to Federated Learning with
Heterogeneous Devices", equation (2), with the p domains instead of devices. A level theta in (0, 1]
allows the mixtures pi with pi_i <= alpha_i / theta, where alpha is the training mixture. Assume
that all examples of a domain have the domain's loss. The maximum of sum_i pi_i L_i is then the (1 -
theta)-superquantile: the mean loss over the worst fraction theta of the examples. theta = 1 allows
only alpha. If theta is at most every alpha_i, only the worst domain counts.

The functions are pure, take vectors with an entry per domain, and also accept NumPy arrays.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Callable, Literal, Optional, Self, Union

import numpy as np

from tff_agnostic.base.later import tf
from tff_agnostic.base.options import Options, Verbatim, Within
from tff_agnostic.base.report_fields import ReportField, Role
from tff_agnostic.domain_weights.ball import BallSet
from tff_agnostic.domain_weights.sets import (
    BoxSet,
    HullSet,
    LambdaSet,
    Simplex,
    SimplexSet,
    project_to_simplex,
)

# Minimum positive weight: the smallest normal float32, as processors may treat smaller ones as 0.
SMALLEST_WEIGHT = float(np.finfo(np.float32).tiny)
# Fractions of the total below this limit are rounding errors.
_ROUNDING = 1e-12
# Signs of the `chi2` term.
PENALTY, PESSIMISM = -1, 1
FREEZE: Literal["freeze"] = "freeze"
ZERO: Literal["zero"] = "zero"
_SUM_TOLERANCE = 1e-3
# Columns of algorithms with a lambda.
LAMBDA = ReportField(
    "lambda",
    "domain weight lambda",
    per_domain=True,
    role=Role.DOMAIN_WEIGHT,
    is_drawn=True,
)
ALPHA = ReportField("alpha", "scale alpha of a domain", per_domain=True)
MEAN_LAMBDA = ReportField("mean_lambda", "mean of lambda so far", per_domain=True)


def exponentiated_gradient(
    lambda_: tf.Tensor, losses: tf.Tensor, learning_rate: float
) -> tf.Tensor:
    """Returns lambda * exp(gamma L), normalised (SERVER line 12), in the log domain.

    A positive weight stays positive, however small, and 0 stays 0. If gamma L exceeds float32's
    range, the result is the limit: all weight on the domains with the largest loss.
    """
    losses = tf.convert_to_tensor(losses)
    exponents = learning_rate * losses
    # Subtract the maximum only if necessary: it cancels in the normalisation, but changes rounding.
    from_largest = learning_rate * (losses - tf.reduce_max(losses))
    in_range = tf.reduce_all(tf.math.is_finite(exponents))
    logits = tf.math.log(lambda_) + tf.where(in_range, exponents, from_largest)
    unnormalized = tf.exp(logits - tf.reduce_max(logits))
    normalized = unnormalized / tf.reduce_sum(unnormalized)
    return tf.where(lambda_ > 0, tf.maximum(normalized, SMALLEST_WEIGHT), 0.0)


def projected_gradient(lambda_: tf.Tensor, losses: tf.Tensor, learning_rate: float) -> tf.Tensor:
    """Returns the projection of lambda + gamma L on the simplex (Mohri et al. 2019, 4.2)."""
    return project_to_simplex(lambda_ + learning_rate * losses)


# A number for each domain.
Shares = tuple[float, ...]
# (lambda, training mixture), [p] each -> slope of an objective term, [p].
Slope = Callable[["tf.Tensor", "tf.Tensor"], "tf.Tensor"]


def chi2(mu: float, sign: int = PENALTY) -> Slope:
    """Returns the slope of plus or minus mu times the chi2 distance from the training mixture.

    Mohri et al. (equation 6) add the term inside the maximum over lambda, as pessimism of their
    bound. Distributionally robust optimisation subtracts it, as a penalty that keeps lambda near
    the training mixture m_bar.

    Args:
        mu: Weight of the term.
        sign: `PENALTY` to subtract the term, `PESSIMISM` to add it.
    """

    def slope(lambda_: tf.Tensor, training_mixture: tf.Tensor) -> tf.Tensor:
        return sign * mu * 2.0 * (lambda_ - training_mixture) / training_mixture

    return slope


def worst_within(losses: tf.Tensor, largest: tf.Tensor, total: tf.Tensor) -> tf.Tensor:
    """Returns the pi that maximises sum_i pi_i L_i, with 0 <= pi_i <= b_i and the given total.

    If the loss L_i is above a threshold, pi_i is b_i; if it is below, pi_i is 0. Domains whose loss
    is the threshold get the rest in proportion to b. If sum_i b_i is less than the total, b is
    scaled up first.

    Args:
        losses: Losses L of the domains, float [p].
        largest: Maximum weights b, float64 [p], at least 0.
        total: Sum of pi, float64 scalar, at least 0.
    """
    room = tf.reduce_sum(largest)
    largest = largest * tf.maximum(tf.math.divide_no_nan(total, room), 1.0)
    p = tf.size(losses)
    order = tf.argsort(losses, direction="DESCENDING", stable=True)
    descending = tf.gather(losses, order)
    is_new = tf.concat([[0], tf.cast(descending[1:] < descending[:-1], tf.int32)], axis=0)
    # Rank of each loss; equal losses have the same rank.
    ranks = tf.scatter_nd(order[:, tf.newaxis], tf.cumsum(is_new), [p])
    rank_totals = tf.math.unsorted_segment_sum(largest, ranks, p)
    above = tf.cumsum(rank_totals, exclusive=True)
    rest = total - above
    rest = tf.where(rest > _ROUNDING * total, rest, 0.0)
    share = tf.minimum(tf.math.divide_no_nan(rest, rank_totals), 1.0)
    return largest * tf.gather(share, ranks)


def cvar_step(
    lambda_: tf.Tensor,
    losses: tf.Tensor,
    training_mixture: Sequence[float],
    conformity: float,
    rate: float = 1.0,
    is_free: Optional[tf.Tensor] = None,
) -> tf.Tensor:
    """Returns (1 - rate) lambda + rate pi, where pi is the worst mixture that the level allows.

    Weights that are not free do not change, and pi is the worst mixture with these weights. The
    free weights share the remaining total within their bounds alpha_i / theta, or in proportion to
    alpha if the total exceeds these bounds.

    Args:
        lambda_: A point of the simplex, float32 [p].
        losses: Losses L of the domains, float32 [p].
        training_mixture: Training mixture alpha, p positive numbers that sum to 1.
        conformity: Level theta, in (0, 1].
        rate: Fraction of the step from lambda to pi, in (0, 1].
        is_free: Whether each weight may change, bool [p]; None if all may.
    """
    # Use float64: in sums over all domains, float32 would lose the weights of rare domains.
    before = tf.cast(lambda_, tf.float64)
    free = tf.ones_like(before) if is_free is None else tf.cast(is_free, tf.float64)
    kept = before * (1.0 - free)
    largest = tf.constant(training_mixture, tf.float64) / conformity * free
    total = tf.ones([], tf.float64) if is_free is None else tf.reduce_sum(before * free)
    worst = worst_within(losses, largest, total) + kept
    return tf.cast((1.0 - rate) * before + rate * worst, tf.float32)


@dataclasses.dataclass(frozen=True)
class ExponentiatedGradient(Options):
    """Mirror ascent with the entropy as mirror map: line 12 of Ro et al. 2021."""


@dataclasses.dataclass(frozen=True)
class ProjectedGradient(Options):
    """Mirror ascent with half the squared norm as mirror map: figure 3 of Mohri et al. 2019."""


@dataclasses.dataclass(frozen=True)
class Fixed(Options):
    """Constant lambda."""


@dataclasses.dataclass(frozen=True)
class Cvar(Options):
    """Steps towards the worst mixture that a level of CVaR over domains allows.

    Attributes:
        level: Level theta, in (0, 1]: each domain's lambda is at most 1 / theta times its weight in
            the training mixture. 1 gives the training mixture, a small theta the worst domain.
        rate: Step size towards the worst mixture in a round, in (0, 1]; 1 is the full step.
    """

    level: Annotated[float, Within(above=0, most=1)] = 0.5
    rate: Annotated[float, Within(above=0, most=1)] = 0.1


@dataclasses.dataclass(frozen=True)
class LambdaPlayer(Options):
    """Options of lambda: its update, and its set of mixtures.

    Attributes:
        update: Update of lambda.
        learning_rate: Learning rate of lambda (gamma_lambda), for steps along the losses.
        set: Set of domain mixtures whose worst case counts: all mixtures (simplex), mixtures within
            bounds per domain (box), mixtures between those of a file (hull), or mixtures near the
            training mixture (ball).
        initial: lambda_0, comma-separated. If not given, it is uniform; in a ball and for CVaR it
            is the training mixture. A hull starts from the mean of its mixtures.
        absent: Treatment of a domain without examples in a round: keep its lambda, or in other sets
            than the simplex use the mean loss of the other domains (freeze); or count its loss as 0
            (zero). If not given, freeze; in Stochastic-AFL and AFLBoost zero, if losses are
            unbiased.
        baselines: Baselines b of excess losses: lambda follows L - b instead of L. Numbers, one per
            domain, comma-separated; the folder of a complete run, for its losses; own (train,
            compare): losses of a baseline run of each domain alone, saved in baselines.json, which
            can be given later; or trivial (train, compare): losses of class shares, means or
            unigrams of each domain.
        baseline_losses: Losses of a baseline run that are used: on training examples, like lambda's
            signal, or on held-out examples.

    Source:
        Ro et al. 2021, Algorithm 1, line 12 of the server; Mohri, Sivek, Suresh 2019, section 4.

    Example:
        >>> steps = lambda_ascent(LambdaPlayer(learning_rate=0.1), ["common", "rare"])
        >>> losses, counts = np.float32([1, 2]), np.float32([30, 5])  # [p]
        >>> steps.next(np.float32([0.5, 0.5]), losses, counts).numpy().round(3)
        array([0.475, 0.525], dtype=float32)
    """

    update: Union[ExponentiatedGradient, ProjectedGradient, Fixed, Cvar] = ExponentiatedGradient()
    learning_rate: Annotated[float, Within(above=0)] = 0.01
    set: Union[SimplexSet, BoxSet, HullSet, BallSet] = SimplexSet()
    initial: Optional[tuple[float, ...]] = None
    absent: Optional[Literal["freeze", "zero"]] = None
    baselines: Union[tuple[float, ...], str, None] = None
    baseline_losses: Literal["training", "heldout"] = "training"

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.update, Cvar) and not isinstance(self.set, SimplexSet):
            expected = "simplex with the update cvar, whose level already limits the mixtures"
            raise self.error("set", expected)

    @property
    def moves(self) -> bool:
        """Whether lambda changes with the losses."""
        return not isinstance(self.update, Fixed)

    def known_baselines(self, num_domains: int) -> Optional[tuple[float, ...]]:
        """Returns the baselines b, p numbers; None if lambda follows the losses themselves."""
        numbers = self.baselines
        if numbers is None:
            return None
        if isinstance(numbers, str):
            expected = f"{num_domains} numbers, one per domain, or a file of them"
            made = "train and compare compute them and save them in baselines.json"
            raise self.error("baselines", expected, Verbatim(f"{numbers!r}: {made}"))
        if len(numbers) != num_domains:
            expected = f"{num_domains} numbers, one per domain"
            raise self.error("baselines", expected, Verbatim(len(numbers)))
        # If all baselines are 0, return None: with them, negative losses would be clipped to 0.
        return numbers if any(numbers) else None


@dataclasses.dataclass(frozen=True)
class LambdaOptions(Options):
    """Options of algorithms with a lambda.

    Attributes:
        lambda_: Options of lambda.
    """

    lambda_: LambdaPlayer = LambdaPlayer()

    def __post_init__(self) -> None:
        """Sets the algorithm's treatment of absent domains if none is given."""
        if self.lambda_.absent is None:
            player = dataclasses.replace(self.lambda_, absent=self.usually_absent)
            object.__setattr__(self, "lambda_", player)
        super().__post_init__()

    @property
    def usually_absent(self) -> Literal["freeze", "zero"]:
        """The algorithm's treatment of absent domains."""
        return FREEZE

    def with_baselines(self, baselines: Iterable[float]) -> Self:
        """Returns the options with the given baselines of excess losses."""
        player = dataclasses.replace(self.lambda_, baselines=tuple(baselines))
        return dataclasses.replace(self, lambda_=player)


@dataclasses.dataclass(frozen=True)
class LambdaAscent:
    """The ascent of lambda over the domains of a problem.

    Attributes:
        lambda_set: The set Lambda.
        training_mixture: m_bar, each domain's fraction of the training examples, p positive
            numbers.
        initial: Coordinates of lambda_0.
        slope: Slope of an additional term of the objective; None without one.
    """

    options: LambdaPlayer
    lambda_set: LambdaSet
    training_mixture: Shares
    initial: tuple[float, ...]
    slope: Optional[Slope] = None

    def mixture(self, coordinates: tf.Tensor) -> tf.Tensor:
        """Returns lambda, float32 [p], for coordinates in the set."""
        return self.lambda_set.mixture(coordinates)

    def next(
        self,
        coordinates: tf.Tensor,
        losses: tf.Tensor,
        counts: tf.Tensor,
        measured: Optional[tf.Tensor] = None,
        rate_factor: Optional[tf.Tensor] = None,
    ) -> tf.Tensor:
        """Returns the coordinates of lambda_t from the coordinates of lambda_{t-1}.

        A domain without examples in the round is absent: with `absent` "freeze" it keeps its
        weight, with "zero" its loss is 0. A domain with training examples but no measured examples
        keeps its weight. A round without any loss changes nothing.

        Args:
            coordinates: Coordinates of lambda_{t-1}, float32 [q].
            losses: L, the mean losses of the domains, float32 [p].
            counts: N_t, number of the round's examples of each domain, float32 [p].
            measured: Number of measured examples of each domain, float32 [p]; None if they are the
                training examples.
            rate_factor: Factor of gamma_lambda in this round; 1 if None.
        """
        keeps_absent = self.options.absent == FREEZE
        has_loss = counts > 0
        if measured is not None:
            has_loss = measured > 0
            if not keeps_absent:
                has_loss |= tf.equal(counts, 0)
            has_loss &= tf.reduce_sum(measured) > 0
            keeps_absent = True
        rate: Any = self.options.learning_rate
        if rate_factor is not None:
            rate = rate * rate_factor
        moved = self._moved(coordinates, losses, has_loss, keeps_absent, rate)
        return tf.where(tf.reduce_any(has_loss), moved, coordinates)

    def _updated(
        self, coordinates: tf.Tensor, gradient: tf.Tensor, rate: Any, is_free: Optional[tf.Tensor]
    ) -> tf.Tensor:
        """Returns the next coordinates; entries that are not free have no meaning."""
        update = self.options.update
        if isinstance(update, Fixed):
            return coordinates
        if isinstance(update, Cvar):
            mixture = self.training_mixture
            return cvar_step(coordinates, gradient, mixture, update.level, update.rate, is_free)
        if isinstance(update, ExponentiatedGradient):
            moved = exponentiated_gradient(coordinates, gradient, rate)
            return self.lambda_set.project_kl(moved)
        point = coordinates + rate * gradient
        if is_free is None:
            return self.lambda_set.project(point)
        # On the simplex, the sum of the free weights is the total that frozen weights leave.
        total = tf.reduce_sum(tf.where(is_free, coordinates, 0.0))
        return project_to_simplex(point, total, is_free)

    def _moved(
        self,
        coordinates: tf.Tensor,
        losses: tf.Tensor,
        has_loss: tf.Tensor,
        keeps_unknown: bool,
        rate: Any,
    ) -> tf.Tensor:
        keeps_weights = keeps_unknown and isinstance(self.lambda_set, Simplex)
        if keeps_unknown and not keeps_weights:
            # Only a simplex allows freezing single weights. In other sets, an unknown loss counts
            # as the mean loss.
            weights = self.mixture(coordinates) * tf.cast(has_loss, tf.float32)
            mean = tf.math.divide_no_nan(tf.reduce_sum(weights * losses), tf.reduce_sum(weights))
            losses = tf.where(has_loss, losses, mean)
        if self.slope is not None:
            training_mixture = tf.constant(self.training_mixture, tf.float32)
            losses += self.slope(self.mixture(coordinates), training_mixture)
        if keeps_weights:
            # Updates depend on differences of losses, and absent domains count as 0. Shift negative
            # losses up, or present domains could lose all weight.
            losses = tf.where(has_loss, losses, 0.0)
            losses = tf.where(has_loss, losses - tf.minimum(tf.reduce_min(losses), 0.0), 0.0)
        gradient = self.lambda_set.gradient(losses)
        updated = self._updated(coordinates, gradient, rate, has_loss if keeps_weights else None)
        is_positive = updated > 0
        if keeps_weights:
            # Scale the updated free weights to the total that they had before.
            present = tf.cast(has_loss, coordinates.dtype)
            share = tf.math.divide_no_nan(updated * present, tf.reduce_sum(updated * present))
            kept = coordinates * (1.0 - present)
            updated = share * tf.reduce_sum(coordinates * present) + kept
        # A positive weight must stay positive: after rounding to 0, it could never grow again.
        return tf.where(is_positive, tf.maximum(updated, SMALLEST_WEIGHT), updated)


def lambda_ascent(
    options: LambdaPlayer,
    domain_names: Sequence[str],
    expected_counts: Optional[Sequence[float]] = None,
    slope: Optional[Slope] = None,
) -> LambdaAscent:
    """Returns the ascent of lambda over the domains of a problem.

    Args:
        domain_names: Names of the p domains.
        expected_counts: Number of examples of each domain in a round, which defines the training
            mixture; uniform if None.
        slope: Slope of an additional term of the objective, such as `chi2`; None without one.
    """
    p = len(domain_names)
    if slope is not None and isinstance(options.update, (Fixed, Cvar)):
        expected = "a step along the losses, as the objective has an additional term"
        raise options.error("update", expected)
    counts = np.ones([p]) if expected_counts is None else np.asarray(expected_counts, np.float64)
    training_mixture = counts / counts.sum()
    lambda_set = options.set.build(domain_names, training_mixture)
    weights = training_mixture
    if options.initial is not None:
        weights = np.asarray(options.initial, np.float64)
        if weights.shape != (p,):
            expected = f"{p} numbers, one per domain"
            raise options.error("initial", expected, Verbatim(weights.size))
    elif not isinstance(options.set, BallSet) and not isinstance(options.update, Cvar):
        # For CVaR, start from the training mixture, which every level allows.
        weights = np.full([p], 1.0 / p)
    if np.any(weights < 0) or abs(weights.sum() - 1) > _SUM_TOLERANCE:
        problem = Verbatim(f"{weights.tolist()}, which sum to {weights.sum():g}")
        raise options.error("initial", "non-negative numbers that sum to 1", problem)
    initial = tuple(lambda_set.start(weights / weights.sum()).tolist())
    return LambdaAscent(options, lambda_set, tuple(training_mixture.tolist()), initial, slope)
