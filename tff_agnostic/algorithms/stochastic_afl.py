"""Stochastic-AFL: Mohri, Sivek, Suresh 2019, "Agnostic Federated Learning", figures 3 and 4.

Every round is one step of both players, from the same point: w descends along a gradient of
sum_i lambda_i L_i, lambda climbs along the losses, and what is evaluated is the mean of the
iterates. The paper has no federated round. Here each client of the cohort sends one gradient of all
its examples, or of a sample, each scaled by alpha_i = lambda_i / n_i. n_i is the number of
examples of domain i that a round is expected to have, from totals over all clients, so that under
uniform sampling of clients the sums are unbiased estimates of both gradients; a ratio of sums, such
as the mean loss of a cohort, is not.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, ClassVar, NamedTuple, Optional

import numpy as np

from tff_agnostic import computations as core
from tff_agnostic.algorithms.saddle_point import (
    DOMAIN_LOSSES,
    LAMBDA_GRADIENTS,
    STEP_DECAYS,
    WEIGHTS_GRADIENTS,
    GameGradientOptions,
    GameStepOptions,
    Gradients,
    LossEstimatorOptions,
    optimistic,
    project_to_ball,
    running_mean,
    scaled_step,
)
from tff_agnostic.base.options import Within
from tff_agnostic.domain_weights.ascent import (
    ALPHA,
    FREEZE,
    LAMBDA,
    MEAN_LAMBDA,
    ZERO,
    LambdaOptions,
    lambda_ascent,
)
from tff_agnostic.domain_weights.excess import excess_losses
from tff_agnostic.errors import UserError
from tff_agnostic.later import tf
from tff_agnostic.stateless_random import fold_in, stateless_seed

# Of one client, in secure sums: as for AgnosticFedAvg, a share of the round.
_MAX_BETA = 10.0
# Keep the draws of the two players apart.
_OF_WEIGHTS, _OF_LAMBDA = 0, 1


@dataclasses.dataclass(frozen=True)
class StochasticAflOptions(
    LambdaOptions,
    GameGradientOptions,
    GameStepOptions,
    LossEstimatorOptions,
    core.HoldoutOptions,
):
    """Options of Stochastic-AFL; gamma_w is the server's learning rate.

    Attributes:
        server: How the server steps.
        sample_size: Examples that each client draws for its gradient; all if not given.
    """

    own_update: ClassVar[str] = "projected_gradient"
    server: core.ServerUpdate = core.ServerUpdate()
    sample_size: Optional[Annotated[int, Within(least=1)]] = None

    @property
    def own_absent_domains(self) -> str:
        """What the estimate of the losses needs."""
        return self.absent_by_estimate()

    def __post_init__(self) -> None:
        """Refuses CVaR too: the largest of unbiased estimates is no unbiased estimate of it."""
        super().__post_init__()
        if self.lambda_update == "cvar":
            raise UserError(
                "--lambda_update: Stochastic-AFL steps along estimates of the losses, and "
                "cvar has no step: expected another, or --algorithm=agnostic_fed_avg"
            )
        self.check_baselines("Stochastic-AFL")


class LastGradients(NamedTuple):
    """The gradients that optimistic steps look back to.

    Attributes:
        gradients: Gradients of the last step.
        is_known: 1 for domains whose loss is among them, 0 before a domain's first loss; float32
            [p].
    """

    gradients: Gradients
    is_known: tf.Tensor


class StochasticAflState(NamedTuple):
    """What the server remembers.

    Attributes:
        weights: w_t.
        optimizer_state: State of the server optimizer.
        lambda_: lambda_t, by its coordinates in Lambda.
        mean_weights: w_A, the mean of w_1 to w_t; w_0 before.
        mean_lambda: lambda_A, the mean of lambda_1 to lambda_t, float32 [p]; lambda_0 before.
        steps: t, rounds that had examples, int32 scalar.
        rounds: All rounds, int32 scalar: what draws are made from.
        before: The last gradients, for the optimistic variant; empty otherwise.
    """

    weights: core.ModelWeights
    optimizer_state: Any
    lambda_: tf.Tensor
    mean_weights: list[tf.Tensor]
    mean_lambda: tf.Tensor
    steps: tf.Tensor
    rounds: tf.Tensor
    before: Any


def client_work(
    broadcast: core.Broadcast,
    clients: core.Clients,
    *,
    model: core.Model,
    num_domains: int,
    sample_size: Optional[int],
    holdout: core.Holdout,
) -> core.TrainingOutput:
    """Sends one gradient at w of the scaled losses, as `weighted_delta`, and the losses at w."""
    weights, alpha = broadcast
    if holdout.is_active:
        sums, training = core.measure_domains(model, num_domains, weights, clients, holdout)
        gradient, _ = core.gradient_pass(model, num_domains, weights, training, alpha, sample_size)
    else:
        gradient, sums = core.gradient_pass(
            model, num_domains, weights, clients, alpha, sample_size
        )
    beta = clients.map(lambda n_k: core.client_weight(alpha, n_k), sums.trained_counts)
    return core.update_output(gradient, beta, sums, clients)


def stochastic_afl(problem: core.Problem, options: StochasticAflOptions) -> core.Algorithm:
    """Returns Stochastic-AFL; its models are w_A, the mean of the iterates, and the last one."""
    model, p = problem.model, problem.num_domains
    if model.constraint is not None:
        raise UserError(
            "--algorithm=stochastic_afl: expected a model without weight constraints, which its "
            "mean of iterates does not meet, found one with constraints"
        )
    optimizer = options.server.build(model)
    steps = lambda_ascent(options, problem.domain_names, problem.expected_counts)
    holdout = options.holdout(problem.seed)
    expected = problem.expected_counts or (1.0,) * p
    # n_i, of the examples that are trained on, and of those that are measured
    of_clients = expected, problem.expected_kept_out
    expected_trained = np.asarray(holdout.trained_part(*of_clients), np.float32)
    expected_measured = np.asarray(holdout.measured_part(*of_clients), np.float32)
    decay = STEP_DECAYS[options.step_decay]
    weights_gradient = WEIGHTS_GRADIENTS[options.weights_gradient]
    lambda_gradient = LAMBDA_GRADIENTS[options.lambda_gradient]
    domain_losses = DOMAIN_LOSSES[options.loss_estimate]
    baselines = options.baselines(p)

    def initialize() -> StochasticAflState:
        weights, optimizer_state = core.initial_model(model, optimizer)
        # lambda_0
        lambda_ = tf.constant(steps.initial, tf.float32)
        no_gradients = Gradients([tf.zeros_like(w) for w in weights.trainable], tf.zeros([p]))
        return StochasticAflState(
            weights=weights,
            optimizer_state=optimizer_state,
            lambda_=lambda_,
            mean_weights=list(weights.trainable),
            mean_lambda=steps.mixture(lambda_),
            steps=tf.constant(0),
            rounds=tf.constant(0),
            before=LastGradients(no_gradients, tf.zeros([p])) if options.optimistic else (),
        )

    def seed_of(state: StochasticAflState, player: int) -> tf.Tensor:
        seed = fold_in(tf.constant(problem.seed, tf.int64), state.rounds)
        return stateless_seed(fold_in(seed, player))

    def scale(state: StochasticAflState) -> tf.Tensor:
        # alpha_i = lambda_i / n_i
        lambda_ = steps.mixture(state.lambda_)
        return weights_gradient(lambda_, seed_of(state, _OF_WEIGHTS)) / expected_trained

    def broadcast(state: StochasticAflState) -> core.Broadcast:
        return core.Broadcast(state.weights, scale(state))

    def estimates(state: StochasticAflState, summed: core.TrainingOutput) -> Gradients:
        # delta_lambda L
        sums = summed.domain_sums
        losses = excess_losses(domain_losses(sums, expected_measured), baselines, sums.counts > 0)
        by_lambda = lambda_gradient(losses, seed_of(state, _OF_LAMBDA))
        # delta_w L
        return Gradients(summed.weighted_delta, by_lambda)

    def finish(state: StochasticAflState, summed: core.TrainingOutput) -> StochasticAflState:
        sums = summed.domain_sums
        has_examples = tf.reduce_sum(tf.cast(sums.trained_counts, tf.float32)) > 0
        t = state.steps + tf.cast(has_examples, tf.int32)
        factor = decay(tf.cast(tf.maximum(t, 1), tf.float32))
        found = estimates(state, summed)
        before = state.before
        directions = found
        if options.optimistic:
            last = before.gradients
            if options.lambda_absent == FREEZE:
                # As in the first step, g_{t-2} is g_{t-1} at a domain's first loss.
                losses = tf.where(before.is_known > 0, last.losses, found.losses)
                last = last._replace(losses=losses)
            directions = optimistic(found, last, t)
        # w_t = Project_W(w_{t-1} - gamma_w delta_w L)
        one = tf.cast(has_examples, tf.float32)
        trained = core.average_and_apply(optimizer, state, directions.weights, one)
        trainable = scaled_step(state.weights.trainable, trained.weights.trainable, factor)
        if options.weights_radius is not None:
            trainable = project_to_ball(trainable, options.weights_radius)
        # lambda_t = Project_Lambda(lambda_{t-1} + gamma_lambda delta_lambda L)
        counts = sums.trained_and_measured()
        if options.loss_estimate == "unbiased" and options.lambda_absent == ZERO:
            # The 0 of a domain that is trained on, and not measured, belongs to the mean, too.
            counts = tf.cast(sums.counts, tf.float32), None
        lambda_ = steps.next(state.lambda_, directions.losses, *counts, factor)
        # w_A, lambda_A
        mean_weights = [
            running_mean(mean, w, t, has_examples) for mean, w in zip(state.mean_weights, trainable)
        ]
        mean_lambda = running_mean(state.mean_lambda, steps.mixture(lambda_), t, has_examples)
        if options.optimistic:
            is_measured = sums.counts > 0
            if options.lambda_absent == FREEZE:
                # Nothing was taken back of a loss whose domain stayed away since: it is the last.
                losses = tf.where(is_measured, found.losses, before.gradients.losses)
                found = found._replace(losses=losses)
            is_known = tf.maximum(before.is_known, tf.cast(is_measured, tf.float32))
            before = tf.nest.map_structure(
                lambda new, old: tf.where(has_examples, new, old),
                LastGradients(found, is_known),
                before,
            )
        return StochasticAflState(
            core.ModelWeights(trainable, state.weights.non_trainable),
            trained.optimizer_state,
            lambda_,
            mean_weights,
            mean_lambda,
            t,
            state.rounds + 1,
            before,
        )

    def models(state: StochasticAflState) -> core.Models:
        return {
            core.MAIN_MODEL: core.ModelWeights(state.mean_weights, state.weights.non_trainable),
            "last": state.weights,
        }

    training = core.CommunicationStep(
        name="training",
        broadcast=broadcast,
        client_work=core.HashablePartial(
            client_work,
            model=model,
            num_domains=p,
            sample_size=options.sample_size,
            holdout=holdout,
        ),
        bounds=core.training_bounds(model, _MAX_BETA, holdout=holdout),
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
                core.Column(LAMBDA, lambda r: steps.mixture(r.after.lambda_)),
                core.Column(ALPHA, lambda r: scale(r.before)),
                core.Column(MEAN_LAMBDA, lambda r: r.after.mean_lambda),
            ],
            finalizer=[core.Column(weight, lambda r: r.sums[0].beta)],
        ),
        models=models,
        with_weights=_start_from,
        lambda_set=steps.lambda_set,
    )


def _start_from(state: StochasticAflState, weights: core.ModelWeights) -> StochasticAflState:
    return state._replace(
        weights=weights,
        mean_weights=list(weights.trainable),
        steps=core.as_tensors(np.zeros([], np.int32)),
    )


ALGORITHM = core.AlgorithmSpec(
    label="Stochastic-AFL",
    paper="Mohri et al. 2019, figures 3 and 4",
    build=stochastic_afl,
    options=StochasticAflOptions,
    traits=frozenset({core.Trait.PARTITION_BLIND}),
    paper_settings={
        # Figure 3, with the per-domain gradient of its section 4.
        "server_optimizer": "sgd",
        "lambda_update": "projected_gradient",
        "loss_estimate": "unbiased",
        "weights_gradient": "per_domain",
        "lambda_gradient": "every_domain",
        "step_decay": "none",
        "optimistic": False,
        "lambda_absent": "zero",
        "chi2_weight": 0.0,
        "measured_share": 0.0,
    },
)
