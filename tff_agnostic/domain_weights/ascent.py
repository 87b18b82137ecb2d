"""How lambda moves: mirror ascent, CVaR, or not at all; one step a round by the domains' losses.

Mirror ascent: Ro et al. 2021, Algorithm 1, SERVER line 12; Mohri, Sivek, Suresh 2019, sections 3
and 4.2, with either mirror map, and equation (6) for the term in chi2.

CVaR over domains: Laguel et al. 2021, "A Superquantile Approach to Federated Learning with
Heterogeneous Devices", equation (2), with the p domains in the place of devices. A level theta in
(0, 1] allows the mixtures pi with pi_i <= alpha_i / theta, where alpha is the training mixture. The
largest sum_i pi_i L_i over them is the mean loss of the worst theta of the examples, where those of
a domain count alike: the (1 - theta)-superquantile, or conditional value at risk. theta = 1 allows
alpha alone; a theta of at most every alpha_i allows all mixtures, and the worst domain counts.

The arithmetic is in pure functions on vectors of one entry per domain, usable with NumPy arrays.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Sequence
from typing import Any, Callable, ClassVar, NamedTuple, Optional

import numpy as np

from tff_agnostic.domain_weights.sets import (
    LambdaSet,
    LambdaSetOptions,
    Simplex,
    project_to_simplex,
)
from tff_agnostic.errors import UserError
from tff_agnostic.later import tf
from tff_agnostic.registry import Registry
from tff_agnostic.report_fields import ReportField, Role
from tff_agnostic.settings import resolve_aliases, setting

# The smallest normal float32: what is smaller, processors may take for 0.
SMALLEST_WEIGHT = float(np.finfo(np.float32).tiny)
# Of the total: what sums of bounds that should fill it exactly may leave.
_ROUNDING = 1e-12
# For `only_with`: CVaR has no step along the losses, and fixed weights do not follow the losses.
_STEPS = ("lambda_update", ("exponentiated_gradient", "projected_gradient"))
MOVING = ("lambda_update", (*_STEPS[1], "cvar"))
# What mu chi2(lambda || m_bar) is to the objective: equation (6) of Mohri et al. adds it within the
# maximum, which is the pessimism of their bound, and a convex function of lambda; taken away, it is
# the penalty of distributionally robust optimisation, and keeps lambda near m_bar.
CHI2_SIGNS: Registry[float] = Registry("sign of chi2", {"penalty": -1.0, "pessimism": 1.0})
FREEZE, ZERO = "freeze", "zero"
ABSENT_DOMAINS: Registry[str] = Registry(
    "treatment of absent domains",
    {
        FREEZE: "it keeps its weight; in other sets than the simplex its loss is the others' mean",
        # Line 11 of Ro et al. as printed is 0/0.
        ZERO: "its loss is 0, as section 4 of Ro et al. has it",
    },
)
_SUM_TOLERANCE = 1e-3
# What algorithms report of lambda.
LAMBDA = ReportField(
    "lambda",
    "domain weight lambda",
    per_domain=True,
    role=Role.DOMAIN_WEIGHT,
    is_drawn=True,
    file_name="domain_weights",
)
ALPHA = ReportField("alpha", "scale alpha of a domain", per_domain=True)
MEAN_LAMBDA = ReportField("mean_lambda", "mean of lambda so far", per_domain=True)


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
    return tf.where(lambda_ > 0, tf.maximum(normalized, SMALLEST_WEIGHT), 0.0)


def projected_gradient(lambda_: tf.Tensor, losses: tf.Tensor, learning_rate: float) -> tf.Tensor:
    """Returns the projection of lambda + gamma L on the simplex (Mohri et al. 2019, 4.2)."""
    return project_to_simplex(lambda_ + learning_rate * losses)


class AscentInput(NamedTuple):
    """What a round has for lambda to move by.

    Attributes:
        coordinates: Of lambda_{t-1} in its set, float32 [q].
        gradient: The gradient of sum_i lambda_i L_i by them, float32 [q].
        learning_rate: gamma_lambda.
        is_free: Which coordinates may change, bool [q]; all if None. The others get back what they
            had, whatever the update returns for them.
    """

    coordinates: tf.Tensor
    gradient: tf.Tensor
    learning_rate: Any
    is_free: Optional[tf.Tensor] = None


def entropy_step(lambda_set: LambdaSet, step: AscentInput) -> tf.Tensor:
    """Mirror ascent with the entropy as mirror map."""
    moved = exponentiated_gradient(step.coordinates, step.gradient, step.learning_rate)
    return lambda_set.project_kl(moved)


def euclidean_step(lambda_set: LambdaSet, step: AscentInput) -> tf.Tensor:
    """Mirror ascent with half the squared norm as mirror map."""
    point = step.coordinates + step.learning_rate * step.gradient
    if step.is_free is None:
        return lambda_set.project(point)
    # On a simplex whose other weights are frozen, the free ones share the rest.
    total = tf.reduce_sum(tf.where(step.is_free, step.coordinates, 0.0))
    return project_to_simplex(point, total, step.is_free)


def no_step(lambda_set: LambdaSet, step: AscentInput) -> tf.Tensor:
    """Returns the coordinates unchanged."""
    del lambda_set
    return step.coordinates


# (set, what the round has) -> coordinates.
DomainWeightUpdate = Callable[[LambdaSet, AscentInput], "tf.Tensor"]


def worst_within(losses: tf.Tensor, largest: tf.Tensor, total: tf.Tensor) -> tf.Tensor:
    """Returns the pi with the largest sum_i pi_i L_i among those of 0 <= pi_i <= b_i, sum = total.

    It is b_i for losses above a cut and 0 below; equal losses share what is left at the cut in
    proportion to b. Where sum_i b_i is less than the total, all of b is scaled up to it.

    Args:
        losses: L, float [p]; they are compared as they are, and equal ones are ties.
        largest: b, float64 [p], at least 0.
        total: What is shared, float64 scalar, at least 0.

    Returns:
        pi, float64 [p].
    """
    room = tf.reduce_sum(largest)
    largest = largest * tf.maximum(tf.math.divide_no_nan(total, room), 1.0)
    p = tf.size(losses)
    order = tf.argsort(losses, direction="DESCENDING", stable=True)
    descending = tf.gather(losses, order)
    is_new = tf.concat([[0], tf.cast(descending[1:] < descending[:-1], tf.int32)], axis=0)
    # The rank of each loss; all that is equal has one rank.
    ranks = tf.scatter_nd(order[:, tf.newaxis], tf.cumsum(is_new), [p])
    of_rank = tf.math.unsorted_segment_sum(largest, ranks, p)
    above = tf.cumsum(of_rank, exclusive=True)
    left = total - above
    left = tf.where(left > _ROUNDING * total, left, 0.0)
    share = tf.minimum(tf.math.divide_no_nan(left, of_rank), 1.0)
    return largest * tf.gather(share, ranks)


def cvar_step(
    lambda_: tf.Tensor,
    losses: tf.Tensor,
    training_mixture: Sequence[float],
    conformity: float,
    rate: float = 1.0,
    is_free: Optional[tf.Tensor] = None,
) -> tf.Tensor:
    """Returns (1 - rate) lambda + rate pi, where pi is the worst mixture of the level.

    Weights that are not free stay as they are, and pi is the worst of the mixtures that have them:
    the others share the rest within their own bounds alpha_i / theta or, where the rest is more
    than these allow, in proportion to alpha.

    Args:
        lambda_: A point of the simplex, float32 [p].
        losses: L, float32 [p].
        training_mixture: alpha, p positive numbers that sum to 1.
        conformity: theta, in (0, 1].
        rate: How far lambda goes to pi, in (0, 1].
        is_free: Which weights may change, bool [p]; all if None.
    """
    # float32 would lose the shares of rare domains in sums of all.
    before = tf.cast(lambda_, tf.float64)
    free = tf.ones_like(before) if is_free is None else tf.cast(is_free, tf.float64)
    kept = before * (1.0 - free)
    largest = tf.constant(training_mixture, tf.float64) / conformity * free
    total = tf.ones([], tf.float64) if is_free is None else tf.reduce_sum(before * free)
    worst = worst_within(losses, largest, total) + kept
    return tf.cast((1.0 - rate) * before + rate * worst, tf.float32)


class _UpdateRule(NamedTuple):
    """A way for lambda to move.

    Attributes:
        build: (settings, training mixture) -> the update.
        check: Raises a `UserError` if it does not go with other settings.
        starts_at_training_mixture: Whether this is lambda_0 where none is given.
    """

    build: Callable[[LambdaOptions, Sequence[float]], DomainWeightUpdate]
    check: Callable[[LambdaOptions], None] = lambda options: None
    starts_at_training_mixture: bool = False


def _always(update: DomainWeightUpdate) -> _UpdateRule:
    return _UpdateRule(lambda options, training_mixture: update)


def _check_cvar(options: LambdaOptions) -> None:
    flag = f"--lambda_update={options.lambda_update}"
    if options.lambda_set != "simplex":
        raise UserError(
            f"--lambda_set: expected simplex with {flag}, whose --domain_conformity is a set of "
            f"mixtures itself, found {options.lambda_set}"
        )
    if options.chi2_weight:
        raise UserError(
            f"--chi2_weight: expected 0 with {flag}, which finds the largest of a sum that is "
            f"linear in lambda, found {options.chi2_weight:g}"
        )


def _cvar(options: LambdaOptions, training_mixture: Sequence[float]) -> DomainWeightUpdate:
    def update(lambda_set: LambdaSet, step: AscentInput) -> tf.Tensor:
        del lambda_set
        return cvar_step(
            step.coordinates,
            step.gradient,
            training_mixture,
            options.domain_conformity,
            options.cvar_rate,
            step.is_free,
        )

    return update


DOMAIN_WEIGHT_UPDATES: Registry[_UpdateRule] = Registry(
    "domain weight update",
    {
        "exponentiated_gradient": _always(entropy_step),
        "projected_gradient": _always(euclidean_step),
        "fixed": _always(no_step),
        # The one mixture that every level allows.
        "cvar": _UpdateRule(_cvar, _check_cvar, starts_at_training_mixture=True),
    },
)


@dataclasses.dataclass(frozen=True)
class LambdaOptions(LambdaSetOptions):
    """How lambda moves, and where; part of the settings of algorithms that have it.

    Attributes:
        lambda_update: Name of a member of `DOMAIN_WEIGHT_UPDATES`; made with None, it is
            `own_update`.
        lambda_learning_rate: gamma_lambda; positive.
        domain_conformity: theta of CVaR, in (0, 1].
        cvar_rate: How far lambda goes to CVaR's worst mixture in a round, in (0, 1]. A setting of
            its own: tasks set gamma_lambda for steps along losses, to 0.03 and less.
        lambda_initial: lambda_0, p numbers on the simplex; if None, uniform, or in a ball
            and for CVaR the training mixture. A weight of 0 stays 0 under exponentiated gradient.
            A hull starts from the mean of its mixtures.
        lambda_absent: Member of `ABSENT_DOMAINS`; made with None, it is `own_absent_domains`.
        freeze_absent_domains: An earlier name: true is "freeze", false is "zero".
        chi2_weight: mu of a term mu chi2(lambda || m_bar) of the objective, at least 0.
        chi2_sign: Member of `CHI2_SIGNS`.
    """

    lambda_update: Optional[str] = setting(
        None,
        "How lambda moves; if not given, as in the algorithm's paper: exponentiated_gradient in "
        "AgnosticFedAvg, projected_gradient in Stochastic-AFL.",
        choices=DOMAIN_WEIGHT_UPDATES,
    )
    lambda_learning_rate: float = setting(
        0.01,
        "Learning rate of lambda (gamma_lambda).",
        positive=True,
        only_with=_STEPS,
    )
    domain_conformity: float = setting(
        0.5,
        "theta of CVaR over domains, in (0, 1]: lambda is up to 1 / theta times the training "
        "mixture in any domain; 1 is the training mixture, a small theta the worst domain.",
        positive=True,
        at_most=1.0,
        only_with=("lambda_update", ("cvar",)),
    )
    cvar_rate: float = setting(
        0.1,
        "How far lambda goes to the worst mixture of CVaR's level in a round, in (0, 1]; 1 is all "
        "the way.",
        positive=True,
        at_most=1.0,
        only_with=("lambda_update", ("cvar",)),
    )
    lambda_initial: Optional[tuple[float, ...]] = setting(
        None,
        "lambda_0, comma-separated; if not given, uniform, or in a ball and for CVaR the training "
        "mixture.",
        only_with=("lambda_set", ("simplex", "box", "ball")),
    )
    lambda_absent: Optional[str] = setting(
        None,
        "What becomes of lambda of a domain that is absent from a round: it stays as it is, or in "
        "other sets than the simplex the domain has the mean loss of the others (freeze); or its "
        "loss counts as 0 (zero). If not given, freeze; in Stochastic-AFL and AFLBoost zero, if "
        "losses are unbiased.",
        choices=ABSENT_DOMAINS,
        short="Lambda of an absent domain stays (freeze), or its loss counts as 0 (zero).",
        only_with=MOVING,
    )
    freeze_absent_domains: Optional[bool] = setting(
        None,
        "Until the next release another name of --lambda_absent=freeze.",
        alias=("lambda_absent", types.MappingProxyType({True: FREEZE, False: ZERO})),
        is_stored=False,
    )
    chi2_weight: float = setting(
        0.0,
        "Weight mu of a term mu chi2(lambda || training mixture) in the objective.",
        at_least=0.0,
        only_with=_STEPS,
    )
    chi2_sign: str = setting(
        "penalty",
        "Whether that term keeps lambda near the training mixture (penalty) or drives it away "
        "(pessimism; Mohri et al., equation 6).",
        choices=CHI2_SIGNS,
    )
    # How lambda moves in the algorithm's paper.
    own_update: ClassVar[str] = "exponentiated_gradient"

    def __post_init__(self) -> None:
        """Puts what the algorithm has of its own where nothing is given; see `Settings`."""
        if self.lambda_update is None:
            object.__setattr__(self, "lambda_update", self.own_update)
        resolve_aliases(self)
        if self.lambda_absent is None:
            object.__setattr__(self, "lambda_absent", self.own_absent_domains)
        super().__post_init__()
        self.update_rule().check(self)

    @property
    def own_absent_domains(self) -> str:
        """What the algorithm does with absent domains where nothing is given."""
        return FREEZE

    def update_rule(self) -> _UpdateRule:
        """Returns how lambda moves."""
        assert self.lambda_update is not None
        return DOMAIN_WEIGHT_UPDATES[self.lambda_update]


@dataclasses.dataclass(frozen=True)
class LambdaAscent:
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

        A domain without examples in the round is absent: it keeps its weight, or its loss is 0 with
        `lambda_absent` "zero". One whose examples are all trained on, and none measured, is not
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
        keeps_absent = self.options.lambda_absent == FREEZE
        known = counts > 0
        if measured is not None:
            known = measured > 0
            if not keeps_absent:
                known |= tf.equal(counts, 0)
            known &= tf.reduce_sum(measured) > 0
            keeps_absent = True
        rate = self.options.lambda_learning_rate
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
        if keeps_unknown and not keeps_weights:
            # In other sets no weight can be kept alone: what is unknown is taken for the mean.
            losses = tf.where(known, losses, self._mean_of_known(coordinates, losses, known))
        if self.options.chi2_weight:
            losses += self._chi2_slope(coordinates)
        if keeps_weights:
            # Updates depend on differences of slopes. Beside the 0 of an absent domain, negative
            # ones could leave the present domains without any weight to share.
            losses = tf.where(known, losses, 0.0)
            losses = tf.where(known, losses - tf.minimum(tf.reduce_min(losses), 0.0), 0.0)
        gradient = self.lambda_set.gradient(losses)
        step = AscentInput(coordinates, gradient, rate, known if keeps_weights else None)
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


def lambda_ascent(
    options: LambdaOptions,
    domain_names: Sequence[str],
    expected_counts: Optional[Sequence[float]] = None,
) -> LambdaAscent:
    """Returns what moves lambda among the domains of a problem.

    Args:
        options: The settings.
        domain_names: Of the p domains.
        expected_counts: Examples of each domain in a round, whose shares are the training mixture;
            uniform if None.
    """
    p = len(domain_names)
    counts = np.ones([p]) if expected_counts is None else np.asarray(expected_counts, np.float64)
    training_mixture = counts / counts.sum()
    lambda_set = options.build_lambda_set(domain_names, training_mixture)
    flag = "--lambda_initial"
    given = options.lambda_initial
    update_rule = options.update_rule()
    update = update_rule.build(options, tuple(training_mixture.tolist()))
    if given is None and (options.lambda_set == "ball" or update_rule.starts_at_training_mixture):
        weights = training_mixture
    else:
        weights = per_domain(flag, given, p, default=1.0 / p)
    if np.any(weights < 0) or abs(weights.sum() - 1) > _SUM_TOLERANCE:
        raise UserError(
            f"{flag}: expected non-negative numbers that sum to 1, found "
            f"{list(options.lambda_initial or ())}, which sum to {weights.sum():g}"
        )
    initial = lambda_set.start(weights / weights.sum())
    return LambdaAscent(
        options, lambda_set, tuple(training_mixture.tolist()), tuple(initial.tolist()), update
    )


def per_domain(
    flag: str, values: Optional[Sequence[float]], length: int, default: float
) -> np.ndarray:
    """Returns values of a flag as a float64 vector with an entry per domain."""
    if values is None:
        return np.full([length], default)
    vector = np.asarray(values, np.float64)
    if vector.shape != (length,):
        raise UserError(f"{flag}: expected {length} numbers, one per domain, found {vector.size}")
    return vector
