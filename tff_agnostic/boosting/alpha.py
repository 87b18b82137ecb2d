"""Updates of alpha, the predictors' weights: options, broadcasts, client work, and mirror steps.

Source: Hamer, Mohri, Suresh 2020, figures 1 and 2.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Callable, NamedTuple, Optional

from tff_agnostic import computations as core
from tff_agnostic.base.errors import UserError
from tff_agnostic.base.later import tf
from tff_agnostic.base.options import OneOf, Options, Verbatim, Within
from tff_agnostic.base.registry import Registry
from tff_agnostic.base.stateless_random import fold_in
from tff_agnostic.boosting.ensemble import EnsembleModel
from tff_agnostic.boosting.mixture_losses import MIXTURE_LOSSES
from tff_agnostic.boosting.sampling import (
    GRADIENT_ESTIMATORS,
    PREDICTOR_DRAWS,
    PREDICTOR_SAMPLINGS,
    SampledPredictors,
    SentPredictors,
)
from tff_agnostic.domain_weights.ascent import exponentiated_gradient, projected_gradient
from tff_agnostic.domain_weights.sets import LambdaSet
from tff_agnostic.models.model import Examples, Model, ModelWeights

_FLOAT_BYTES = 4
# (alpha, direction of ascent, step size) -> alpha, after a step in a mirror map and a projection.
MIRROR_MAPS: Registry[Callable[[tf.Tensor, tf.Tensor, float], tf.Tensor]] = Registry(
    "mirror map",
    {
        "entropy": exponentiated_gradient,
        # "euclidean" has F = |x|^2 / 2. "squared" has F = |x|^2, as printed in section 3.1, with
        # the gradient 2 x.
        "euclidean": projected_gradient,
        "squared": lambda alpha, ascent, eta: projected_gradient(alpha, ascent, eta / 2),
    },
)
# The best estimator of each loss; docs/reference/algorithms/fed_boost.md compares the estimators.
_BEST_ESTIMATOR = {"log": "centred", "squared": "unbiased"}


def require_ensemble(model: Model, algorithm: str) -> EnsembleModel:
    """Returns a problem's model; raises a `UserError` unless it is an ensemble."""
    if not isinstance(model, EnsembleModel):
        raise UserError(
            f"{algorithm} learns how to mix trained predictors: expected base predictors, namely "
            "folders of runs, Keras models or files of base_predictors, found none"
        )
    return model


@dataclasses.dataclass(frozen=True)
class EnsembleOptions(Options):
    """Options of algorithms whose model is an ensemble.

    Attributes:
        base_predictors: Predictors to mix, comma-separated: folders of runs, Keras models with the
            task's inputs and outputs, files of base_predictors.
    """

    base_predictors: Optional[tuple[Path, ...]] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.base_predictors == ():
            raise self.error("base_predictors", "at least one path")


@dataclasses.dataclass(frozen=True)
class BoostOptions(EnsembleOptions):
    """Options of FedBoost, and of algorithms based on it, such as AFLBoost.

    Attributes:
        predictor_sampling: Predictors sent per round: all (none), a sample with equal probabilities
            (uniform), or a sample by weight (weighted).
        budget: Number C of predictors sent per round; half of the predictors if not given. Only
            with predictor_sampling uniform or weighted.
        uniform_share: Fraction of uniform sampling, in [0, 1), in weighted sampling, so that every
            predictor can be sampled; the paper has none. Only with predictor_sampling weighted.
        predictor_draw: Method of drawing predictors with their probabilities: at most C in total
            (systematic), or an independent coin flip per predictor, with mean C, as in the paper
            (independent). Only with predictor_sampling uniform or weighted.
        gradient_estimator: Estimate of the gradient from the sampled predictors: the paper's
            figures (masked), divided by the probabilities (divided), divided and corrected for its
            bias (unbiased; squared loss), or an estimate of 1 + gradient (centred; log loss). If
            not given, centred for the log loss and unbiased for the squared loss.
        mirror_map: Mirror map of alpha: exponentiated gradients (entropy), or projected gradients
            with F = |x|^2 / 2 (euclidean) or F = |x|^2, as in the paper (squared).
        alpha_learning_rate: Step size eta of the predictors' weights alpha.
        repetitions: Number R of steps of alpha per round; each step sends its own sample of
            predictors to the same clients.
    """

    predictor_sampling: Annotated[str, OneOf(PREDICTOR_SAMPLINGS)] = "weighted"
    budget: Optional[Annotated[int, Within(least=1)]] = None
    uniform_share: Annotated[float, Within(least=0.0, below=1.0)] = 0.2
    predictor_draw: Annotated[str, OneOf(PREDICTOR_DRAWS)] = "systematic"
    gradient_estimator: Optional[Annotated[str, OneOf(GRADIENT_ESTIMATORS)]] = None
    mirror_map: Annotated[str, OneOf(MIRROR_MAPS)] = "entropy"
    alpha_learning_rate: Annotated[float, Within(above=0)] = 0.1
    repetitions: Annotated[int, Within(least=1)] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if (
            self.mirror_map != "entropy"
            and self.predictor_sampling == "weighted"
            and not self.uniform_share
        ):
            reason = "projections can make a weight 0, which would never be sampled again"
            expected = f"a positive share with weighted sampling and {self.mirror_map}: {reason}"
            raise self.error("uniform_share", expected)

    def estimator(self, model: EnsembleModel) -> str:
        """Returns the name of the gradient estimator, which must support the ensemble's loss."""
        name = self.gradient_estimator or _BEST_ESTIMATOR[model.mixture_loss]
        loss = GRADIENT_ESTIMATORS[name].loss
        if loss not in (None, model.mixture_loss):
            reason = Verbatim(f"{name}, which is for the {loss} loss")
            expected = f"one for the ensemble's {model.mixture_loss} loss"
            raise self.error("gradient_estimator", expected, reason)
        return name


class BoostBroadcast(NamedTuple):
    """The server's message, which contains only the sampled predictors.

    Attributes:
        weights: Weights alpha~ [C] and arrays of the sampled predictors.
        sent: Weights alpha and sampling probabilities of these predictors.
        scale: Weight of each domain's examples, float32 [p].
    """

    weights: ModelWeights
    sent: SentPredictors
    scale: tf.Tensor


@dataclasses.dataclass(frozen=True)
class AlphaSteps:
    """The server's steps of alpha, and the messages to clients.

    Attributes:
        model: The ensemble.
    """

    model: EnsembleModel
    options: BoostOptions
    seed: int

    @property
    def budget(self) -> int:
        """Number C of predictors to sample."""
        q, budget = self.model.num_predictors, self.options.budget
        if budget is not None and budget > q:
            raise self.options.error("budget", f"at most {q}, the number of base predictors")
        if self.options.predictor_sampling == "none":
            return q
        return -(-q // 2) if budget is None else budget

    @property
    def room(self) -> int:
        """Number of predictors that fit into a message."""
        if self.options.predictor_sampling == "none":
            return self.model.num_predictors
        draw = PREDICTOR_DRAWS[self.options.predictor_draw]
        return draw.room(self.budget, self.model.num_predictors)

    def gammas(self, alpha: tf.Tensor) -> tf.Tensor:
        """Returns the sampling probabilities gamma_k, float32 [q]."""
        sampling = PREDICTOR_SAMPLINGS[self.options.predictor_sampling]
        return sampling(alpha, self.budget, self.options.uniform_share)

    def drawn(self, alpha: tf.Tensor, step: tf.Tensor) -> SampledPredictors:
        """Returns the sampled predictors H_t (line 2), a function of seed, alpha and step.

        Args:
            alpha: alpha_t, float32 [q].
            step: Index of the step in the run, int; seeds the sampling.
        """
        q = self.model.num_predictors
        if self.options.predictor_sampling == "none":
            return SampledPredictors(tf.range(q), tf.ones([q]))
        seed = fold_in(tf.constant(self.seed, tf.int64), step)
        draw = PREDICTOR_DRAWS[self.options.predictor_draw]
        return draw(self.gammas(alpha), self.budget, seed)

    def broadcast(self, weights: ModelWeights, scale: tf.Tensor, step: tf.Tensor) -> BoostBroadcast:
        """Returns the broadcast of the sampled predictors (line 3).

        Args:
            weights: Weights of the complete ensemble.
            scale: Weight of each domain's examples, float32 [p].
            step: As in `drawn`.
        """
        (alpha,) = weights.trainable
        indices, is_sampled = self.drawn(alpha, step)
        alphas = tf.gather(alpha, indices)
        gamma = tf.gather(self.gammas(alpha), indices)
        # alpha~_k = alpha_k / gamma_k, or 0 for predictors that were not sampled. If none is
        # sampled, send alpha itself: alpha will not change, but clients can still measure losses.
        mixed = tf.where(tf.reduce_any(is_sampled > 0), alphas / gamma * is_sampled, alphas)
        members = self.model.members
        assert members is not None
        stacks = members.chosen(weights.non_trainable, indices)
        sent = SentPredictors(alphas, gamma, is_sampled)
        return BoostBroadcast(ModelWeights([mixed], stacks), sent, scale)

    def next(
        self, alpha: tf.Tensor, gradient: tf.Tensor, weight: tf.Tensor, step: tf.Tensor
    ) -> tf.Tensor:
        """Returns alpha_{t+1} (lines 4, 5); alpha_t if nothing was sampled or the weight is 0.

        Args:
            alpha: alpha_t, float32 [q].
            gradient: Sum of the clients' gradients, float32 [room].
            weight: Divisor of the gradient.
            step: As in `drawn`.
        """
        indices, is_sampled = self.drawn(alpha, step)
        # This is delta_t L, with 0 for predictors that were not sent.
        delta = tf.math.divide_no_nan(gradient, weight)
        delta = tf.scatter_nd(indices[:, tf.newaxis], delta, tf.shape(alpha))
        mirror_map = MIRROR_MAPS[self.options.mirror_map]
        # [grad F]^{-1} (grad F(alpha_t) - eta delta_t L), projected on the simplex.
        moved = mirror_map(alpha, -delta, self.options.alpha_learning_rate)
        has_step = (weight > 0) & tf.reduce_any(is_sampled > 0)
        return tf.where(has_step, moved, alpha)

    def columns(self, num_domains: int) -> tuple[core.Column, ...]:
        """Returns columns of the first repetition's sampled predictors, and the round's bytes."""
        model, repetitions = self.model, self.options.repetitions
        # A message contains the predictors, four numbers per predictor (alpha~, alpha, gamma,
        # whether it is sampled), and the domains' scales.
        sent = model.message_bytes(self.room) + (4 * self.room + num_domains) * _FLOAT_BYTES

        def sampled(r: core.RoundView) -> tf.Tensor:
            (alpha,) = r.before.weights.trainable
            drawn = self.drawn(alpha, r.before.steps)
            return tf.cast(tf.reduce_sum(drawn.is_sampled), tf.int64)

        def column(key: str, label: str, value: Callable[[core.RoundView], Any]) -> core.Column:
            field = core.ReportField(f"predictors/{key}", label)
            return core.Column(field, value, ("predictors", key))

        return (
            column("sampled", "predictors that were sampled", sampled),
            column(
                "bytes_sent",
                "bytes sent to each client, including unused space",
                lambda r: tf.constant(repetitions * sent, tf.int64),
            ),
            column(
                "bytes_of_ensemble",
                "bytes of the complete ensemble, for comparison",
                lambda r: tf.constant(repetitions * model.num_bytes, tf.int64),
            ),
        )


def boost_algorithm(
    name: str,
    problem: core.Problem,
    alphas: AlphaSteps,
    initialize: Callable[[], Any],
    repetition: Callable[[Any, core.TrainingOutput], Any],
    scale: Callable[[Any], tf.Tensor],
    mean_first: bool,
    max_weight: Optional[float] = None,
    domain_weights: Sequence[core.Column] = (),
    lambda_set: Optional[LambdaSet] = None,
) -> core.Algorithm:
    """Returns an algorithm that learns alpha; a round has one step per repetition.

    States have the fields `weights`, `mean_alpha`, `taken` and `steps`; see
    `fed_boost.FedBoostState`.

    Args:
        problem: The learning problem, with an ensemble as its model.
        alphas: The steps of alpha.
        initialize: () -> the state before the first round.
        repetition: (state, sum of a repetition) -> the next state.
        scale: state -> weight of each domain's examples, float32 [p].
        mean_first: Whether the main model is the ensemble with the mean alpha; otherwise it has the
            last alpha.
        max_weight: Bound of a client's weight; see `core.training_bounds`.
        domain_weights: Columns about the weights of domains.
        lambda_set: See `core.Algorithm`.
    """
    model, options, p = alphas.model, alphas.options, problem.num_domains
    estimator = options.estimator(model)

    def after(state: Any, *sums: core.TrainingOutput) -> Any:
        return functools.reduce(repetition, sums, state)

    def broadcast(state: Any, *sums: core.TrainingOutput) -> BoostBroadcast:
        now = after(state, *sums)
        return alphas.broadcast(now.weights, scale(now), now.steps)

    def models(state: Any) -> core.Models:
        mean = ModelWeights([state.mean_alpha], state.weights.non_trainable)
        if mean_first:
            return {core.MAIN_MODEL: mean, "last": state.weights}
        return {core.MAIN_MODEL: state.weights, "mean": mean}

    def step(step_name: str) -> core.CommunicationStep:
        return core.CommunicationStep(
            name=step_name,
            broadcast=broadcast,
            client_work=core.HashablePartial(
                client_work,
                model=model,
                num_domains=p,
                estimator=estimator,
                room=alphas.room,
            ),
            bounds=core.training_bounds(model, max_weight),
            bytes_per_example=model.message_bytes_per_example(alphas.room),
        )

    def norm(r: core.RoundView) -> tf.Tensor:
        return tf.norm(r.after.weights.trainable[0] - r.before.weights.trainable[0])

    repetitions = options.repetitions
    names = ["training"]
    if repetitions > 1:
        names = [f"repetition_{r + 1}" for r in range(repetitions)]
    return core.Algorithm(
        name=name,
        problem=problem,
        initialize=initialize,
        steps=tuple(map(step, names)),
        finish=after,
        columns=(
            *core.training_columns(
                model, domain_weights=domain_weights, norm=norm, output=lambda r: r.sums[0]
            ),
            *alphas.columns(p),
        ),
        models=models,
        with_weights=_start_from,
        lambda_set=lambda_set,
        single_step_options=() if repetitions == 1 else ("repetitions=1",),
    )


def _start_from(state: Any, weights: ModelWeights) -> Any:
    return state._replace(
        weights=weights, mean_alpha=weights.trainable[0], taken=tf.zeros_like(state.taken)
    )


class _Pass(NamedTuple):
    gradient: tf.Tensor
    sums: core.DomainSums


def client_work(
    broadcast: BoostBroadcast,
    clients: core.Clients,
    *,
    model: EnsembleModel,
    num_domains: int,
    estimator: str,
    room: int,
) -> core.TrainingOutput:
    """Client work: grad L_j at alpha~, with respect to the received predictors' weights (line 3).

    Args:
        num_domains: Number of domains p.
        estimator: Name in `GRADIENT_ESTIMATORS`.
        room: Number of predictors per message; the work is traced separately for each number.

    Returns:
        A `TrainingOutput` whose `weighted_delta` is each client's scaled gradient, float32 [room].
    """
    del room
    (alpha,), stacks = broadcast.weights.trainable, broadcast.weights.non_trainable
    members, loss = model.members, MIXTURE_LOSSES[model.mixture_loss]
    estimate = GRADIENT_ESTIMATORS[estimator]
    assert members is not None

    def client_gradient(examples: Examples, scale: tf.Tensor, gradient: tf.Tensor) -> Any:
        outputs = members.outputs(stacks, examples["x"])
        losses, gradients = loss.at(outputs, alpha, examples["y"])
        norms = tf.zeros([1, 1])
        if estimate.uses_norms:
            norms = outputs.per_example(outputs.squared_norms(), examples["y"])
        estimates = estimate.estimate(gradients, norms, broadcast.sent)
        step = tf.linalg.matvec(estimates, scale, transpose_a=True)
        predictions = members.predictions(outputs, alpha, examples["x"])
        return gradient + step, core.example_measures(model, examples, losses, predictions)

    def add_batch(batch: core.Batch, so_far: _Pass) -> _Pass:
        examples = clients.take(batch.positions)
        scale = tf.gather(broadcast.scale, examples["domain_id"])
        scale *= tf.cast(batch.is_present, tf.float32)
        gradient, measures = clients.map(client_gradient, examples, scale, so_far.gradient)
        sums = core.add_to_domains(so_far.sums, examples["domain_id"], batch.is_present, measures)
        return _Pass(gradient, sums)

    zeros = clients.map(lambda _: tf.zeros_like(alpha), clients.num_examples)
    initial = _Pass(zeros, core.zero_sums(model, num_domains, clients))
    result: _Pass = clients.fold_batches(members.examples_at_once, add_batch, initial)
    beta = clients.map(lambda n_j: core.client_weight(broadcast.scale, n_j), result.sums.counts)
    return core.update_output([result.gradient], beta, result.sums, clients)
