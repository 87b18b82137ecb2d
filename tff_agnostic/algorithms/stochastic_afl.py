"""Stochastic-AFL: Mohri, Sivek, Suresh 2019, "Agnostic Federated Learning", figures 3 and 4.

In every round both players take one step from the same point: w descends along the gradient of
sum_i lambda_i L_i, and lambda ascends along the losses. The mean of the iterates is evaluated. The
paper defines no federated round. Here, each client sends one gradient, over all its examples or a
sample. In it, examples of domain i are scaled by alpha_i = lambda_i / n_i, where n_i is the
domain's expected number of examples per round, which follows from totals over all clients. Under
uniform client sampling, the sums over the cohort are then unbiased estimates of both gradients. The
server's step therefore does not divide by a sum over the round, unlike `core.averaging`.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Callable, NamedTuple, Optional

import numpy as np

from tff_agnostic import computations as core
from tff_agnostic.algorithms.saddle_point import (
    Estimate,
    LastGradients,
    LossEstimatorOptions,
    all_domains,
    optimistic_step,
    project_to_ball,
    running_mean,
    scaled_step,
)
from tff_agnostic.base.errors import UserError
from tff_agnostic.base.later import tf
from tff_agnostic.base.options import Within
from tff_agnostic.base.stateless_random import fold_in, stateless_seed
from tff_agnostic.domain_weights.ascent import (
    ALPHA,
    FREEZE,
    LAMBDA,
    MEAN_LAMBDA,
    ZERO,
    LambdaPlayer,
    ProjectedGradient,
    Slope,
    lambda_ascent,
)
from tff_agnostic.domain_weights.excess import excess_losses

# Numbers of the two players, which distinguish their random draws.
_WEIGHTS_DRAW, _LAMBDA_DRAW = 0, 1


@dataclasses.dataclass(frozen=True)
class StochasticAflOptions(LossEstimatorOptions, core.HoldoutOptions):
    """Options of Stochastic-AFL; gamma_w is the server's learning rate.

    Attributes:
        server: Options of the server's step along w's gradient.
        lambda_: Options of lambda.
        sample_size: Number of examples that each client samples for its gradient; None for all
            examples.
    """

    server: core.ServerUpdate = core.ServerUpdate()
    lambda_: LambdaPlayer = LambdaPlayer(update=ProjectedGradient())
    sample_size: Optional[Annotated[int, Within(least=1)]] = None


class StochasticAflState(NamedTuple):
    """The state of the server.

    Attributes:
        weights: Model weights w_t.
        optimizer_state: State of the server optimizer.
        lambda_: Coordinates of lambda_t in the set Lambda, float32.
        mean_weights: w_A, the mean of w_1 to w_t; w_0 before the first round.
        mean_lambda: lambda_A, the mean of lambda_1 to lambda_t, float32 [p]; lambda_0 before the
            first round.
        steps: Number t of rounds with examples, int32 scalar.
        rounds: Number of all rounds, which seeds the draws, int32 scalar.
        last: `LastGradients` of the optimistic variant; () otherwise.
    """

    weights: core.ModelWeights
    optimizer_state: Any
    lambda_: tf.Tensor
    mean_weights: list[tf.Tensor]
    mean_lambda: tf.Tensor
    steps: tf.Tensor
    rounds: tf.Tensor
    last: Any


def client_work(
    broadcast: core.Broadcast,
    clients: core.Clients,
    *,
    model: core.Model,
    num_domains: int,
    sample_size: Optional[int],
    holdout: core.Holdout,
) -> core.TrainingOutput:
    """Sends the gradient of the scaled losses at w, as `weighted_delta`, and the losses at w."""
    weights, alpha = broadcast
    training = holdout.training(clients)
    gradient, sums = core.gradient_pass(model, num_domains, weights, training, alpha, sample_size)
    if holdout.is_active:
        sums, _ = core.measure_domains(model, num_domains, weights, clients, holdout)
    beta = clients.map(lambda n_k: core.client_weight(alpha, n_k), sums.trained_counts)
    return core.update_output(gradient, beta, sums, clients)


def stochastic_afl(
    problem: core.Problem,
    options: StochasticAflOptions,
    *,
    weights_gradient: Estimate = all_domains,
    lambda_gradient: Estimate = all_domains,
    slope: Optional[Slope] = None,
    decay: Optional[Callable[[tf.Tensor], tf.Tensor]] = None,
    optimistic: bool = False,
    weights_radius: Optional[float] = None,
) -> core.Algorithm:
    """Returns Stochastic-AFL; its models are w_A, the mean of the iterates, and the last iterate.

    Args:
        weights_gradient: Called with lambda and a seed; returns the domain weights in w's gradient.
            Figure 4 uses `drawn_by_lambda`.
        lambda_gradient: Called with the losses and a seed; returns lambda's gradient. Figure 4 uses
            `one_drawn_loss`.
        slope: Slope of an additional term of lambda's objective; see `lambda_ascent`.
        decay: Maps the number t of the step, float32 from 1, to the factor of both players' steps
            (F.2).
        optimistic: Whether both players step along 2 g_{t-1} - g_{t-2} (F.3).
        weights_radius: Radius of the ball W around 0 to which the weights are projected; None to
            not project.
    """
    model, p = problem.model, problem.num_domains
    if model.constraint is not None:
        raise UserError(
            "Stochastic-AFL: expected a model without weight constraints, as the mean of its "
            "iterates may violate them, found one with constraints"
        )
    optimizer = options.server.build(model)
    ascent = lambda_ascent(options.lambda_, problem.domain_names, problem.expected_counts, slope)
    holdout = options.holdout(problem.seed)
    # Expected counts n_i of trained and of measured examples.
    counts = problem.expected_counts or (1.0,) * p, problem.expected_kept_out
    expected_trained = np.asarray(holdout.trained_part(*counts), np.float32)
    expected_measured = np.asarray(holdout.measured_part(*counts), np.float32)
    baselines = options.lambda_.known_baselines(p)

    def initialize() -> StochasticAflState:
        weights, optimizer_state = core.initial_model(model, optimizer)
        lambda_, zero = tf.constant(ascent.initial, tf.float32), tf.constant(0)
        no_gradients = [tf.zeros_like(w) for w in weights.trainable], tf.zeros([p])
        return StochasticAflState(
            weights=weights,
            optimizer_state=optimizer_state,
            lambda_=lambda_,
            mean_weights=list(weights.trainable),
            mean_lambda=ascent.mixture(lambda_),
            steps=zero,
            rounds=zero,
            last=LastGradients(*no_gradients, tf.zeros([p], tf.bool)) if optimistic else (),
        )

    def player_seed(state: StochasticAflState, player: int) -> tf.Tensor:
        seed = fold_in(tf.constant(problem.seed, tf.int64), state.rounds)
        return stateless_seed(fold_in(seed, player))

    def scale(state: StochasticAflState) -> tf.Tensor:
        # The paper's alpha_i is lambda_i / n_i.
        lambda_ = ascent.mixture(state.lambda_)
        return weights_gradient(lambda_, player_seed(state, _WEIGHTS_DRAW)) / expected_trained

    def finish(state: StochasticAflState, summed: core.TrainingOutput) -> StochasticAflState:
        sums = summed.domain_sums
        has_examples = tf.reduce_sum(tf.cast(sums.trained_counts, tf.float32)) > 0
        t = state.steps + tf.cast(has_examples, tf.int32)
        factor = None if decay is None else decay(tf.cast(tf.maximum(t, 1), tf.float32))
        # delta_w L, delta_lambda L
        by_weights = summed.weighted_delta
        losses = options.domain_losses(sums, expected_measured)
        losses = excess_losses(losses, baselines, sums.counts > 0)
        by_lambda = lambda_gradient(losses, player_seed(state, _LAMBDA_DRAW))
        last = state.last
        if optimistic:
            has_loss = (sums.counts > 0) | (options.lambda_.absent != FREEZE)
            by_weights, by_lambda, new = optimistic_step(last, by_weights, by_lambda, t, has_loss)
            last = tf.nest.map_structure(lambda n, o: tf.where(has_examples, n, o), new, last)
        # w_t = Project_W(w_{t-1} - gamma_w delta_w L)
        one = tf.cast(has_examples, tf.float32)
        trained = core.average_and_apply(optimizer, state, by_weights, one)
        trainable = trained.weights.trainable
        if factor is not None:
            trainable = scaled_step(state.weights.trainable, trainable, factor)
        if weights_radius is not None:
            trainable = project_to_ball(trainable, weights_radius)
        # lambda_t = Project_Lambda(lambda_{t-1} + gamma_lambda delta_lambda L)
        counts = sums.trained_and_measured()
        if options.loss_estimate == "unbiased" and options.lambda_.absent == ZERO:
            # A domain that is trained but not measured also enters the mean, with a loss of 0.
            counts = tf.cast(sums.counts, tf.float32), None
        lambda_ = ascent.next(state.lambda_, by_lambda, *counts, factor)

        def mean(before: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
            return running_mean(before, value, t, has_examples)

        return trained._replace(
            weights=core.ModelWeights(trainable, state.weights.non_trainable),
            lambda_=lambda_,
            # w_A, lambda_A
            mean_weights=list(map(mean, state.mean_weights, trainable)),
            mean_lambda=mean(state.mean_lambda, ascent.mixture(lambda_)),
            steps=t,
            rounds=state.rounds + 1,
            last=last,
        )

    def models(state: StochasticAflState) -> core.Models:
        return {
            core.MAIN_MODEL: core.ModelWeights(state.mean_weights, state.weights.non_trainable),
            "last": state.weights,
        }

    def with_weights(state: StochasticAflState, weights: core.ModelWeights) -> StochasticAflState:
        no_steps = core.as_tensors(np.zeros([], np.int32))
        mean_weights = list(weights.trainable)
        return state._replace(weights=weights, mean_weights=mean_weights, steps=no_steps)

    training = core.CommunicationStep(
        name="training",
        broadcast=lambda state: core.Broadcast(state.weights, scale(state)),
        client_work=core.HashablePartial(
            client_work,
            model=model,
            num_domains=p,
            sample_size=options.sample_size,
            holdout=holdout,
        ),
        bounds=core.training_bounds(model, core.MAX_ROUND_SHARE, holdout=holdout),
    )
    weight = core.ReportField("weight", "sum of the clients' weights, 1 on average")
    return core.Algorithm(
        name="stochastic_afl",
        problem=problem,
        initialize=initialize,
        steps=(training,),
        finish=finish,
        columns=core.training_columns(
            model,
            holdout.is_active,
            domain_weights=[
                core.Column(LAMBDA, lambda r: ascent.mixture(r.after.lambda_)),
                core.Column(ALPHA, lambda r: scale(r.before)),
                core.Column(MEAN_LAMBDA, lambda r: r.after.mean_lambda),
            ],
            finalizer=[core.Column(weight, lambda r: r.sums[0].beta)],
        ),
        models=models,
        with_weights=with_weights,
        lambda_set=ascent.lambda_set,
    )


ALGORITHM = core.AlgorithmSpec(
    label="Stochastic-AFL",
    paper="Mohri et al. 2019, figures 3 and 4",
    build=stochastic_afl,
    options=StochasticAflOptions,
    traits=frozenset({core.Trait.PARTITION_BLIND}),
    paper_settings={
        # The paper's figure 3, with the per-domain gradient of its section 4.
        "server_optimizer": "sgd",
        "lambda_update": "projected_gradient",
        "loss_estimate": "unbiased",
        "lambda_absent": "zero",
        "measured_share": 0.0,
    },
)
