"""Stochastic-AFL: Mohri, Sivek, Suresh 2019, "Agnostic Federated Learning", figures 3 and 4.

Every round is one step of both players, from the same point: w descends along a gradient of
sum_i lambda_i L_i, lambda climbs along the losses, and what is evaluated is the mean of the
iterates. The paper has no federated round; this one asks each client of the cohort for one gradient
of all its examples, or of a sample, each scaled by alpha_i = lambda_i / n_i. n_i is the number of
examples of domain i that a round is expected to have, from totals over all clients, so that under
uniform sampling of clients the sums are unbiased estimates of both gradients; a ratio of sums, such
as the mean loss of a cohort, is not.
"""

import dataclasses
from collections import OrderedDict
from typing import Any, ClassVar, NamedTuple, Optional

import numpy as np
import tensorflow as tf

from tff_agnostic.algorithms.saddle_point import (
    DOMAIN_LOSSES,
    LAMBDA_GRADIENTS,
    STEP_DECAYS,
    WEIGHTS_GRADIENTS,
    DomainLossesOptions,
    GameGradientOptions,
    GameStepOptions,
    Gradients,
    optimistic,
    project_to_ball,
    running_mean,
    scaled_step,
)
from tff_agnostic.computations.algorithm import (
    MAIN_MODEL,
    Algorithm,
    AlgorithmSpec,
    Exchange,
    Problem,
    Report,
    Sums,
    Trait,
)
from tff_agnostic.computations.client_output import (
    AnyTrainingOutput,
    TrainingBroadcast,
    client_weight,
    domain_sums,
    training_output_bounds,
    update_outputs,
)
from tff_agnostic.computations.clients import ClientGroup, PerClient
from tff_agnostic.computations.domain_losses import DomainLossOptions, ExampleSplit, measured
from tff_agnostic.computations.local_training import gradient_pass
from tff_agnostic.computations.server import (
    ServerOptimizerOptions,
    as_tensors,
    average_and_apply,
    initial_training_state,
    training_quantities,
    training_report,
)
from tff_agnostic.domain_weights.ascent import LAMBDA_QUANTITIES, LambdaOptions, lambda_steps
from tff_agnostic.errors import UserError
from tff_agnostic.models.model import Model, ModelWeights
from tff_agnostic.report_fields import Quantity
from tff_agnostic.settings import setting
from tff_agnostic.stateless_random import fold_in, stateless_seed

# Of one client, in secure sums: as for AgnosticFedAvg, a share of the round.
_MAX_BETA = 10.0
# Keep the draws of the two players apart.
_OF_WEIGHTS, _OF_LAMBDA = 0, 1


@dataclasses.dataclass(frozen=True)
class StochasticAflOptions(
    ServerOptimizerOptions,
    LambdaOptions,
    GameGradientOptions,
    GameStepOptions,
    DomainLossesOptions,
    DomainLossOptions,
):
    """Settings of Stochastic-AFL; gamma_w is the server's learning rate.

    Attributes:
        sample_size: Examples that each client draws; all if None.
    """

    own_update: ClassVar[str] = "projected_gradient"
    sample_size: Optional[int] = setting(
        None, "Examples that each client draws for its gradient; all if not given.", at_least=1
    )

    def __post_init__(self) -> None:
        """Refuses CVaR too: the largest of unbiased estimates is no unbiased estimate of it."""
        super().__post_init__()
        if self.domain_weight_update == "cvar":
            raise UserError(
                "--domain_weight_update: Stochastic-AFL steps along estimates of the losses, and "
                "cvar has no step: expected another, or --algorithm=agnostic_fed_avg"
            )


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
        before: The gradients of the last step, for the optimistic variant; empty otherwise.
    """

    weights: ModelWeights
    optimizer_state: Any
    lambda_: tf.Tensor
    mean_weights: list[tf.Tensor]
    mean_lambda: tf.Tensor
    steps: tf.Tensor
    rounds: tf.Tensor
    before: Any


def stochastic_afl(problem: Problem, options: StochasticAflOptions) -> Algorithm:
    """Returns Stochastic-AFL; its models are w_A, the mean of the iterates, and the last one.

    Raises:
        UserError: If the initial domain weights or the set of lambda do not fit the domains.
    """
    model, p = problem.model, problem.num_domains
    optimizer = options.build_server_optimizer()
    steps = lambda_steps(options, problem.domain_names, problem.expected_counts)
    split = options.example_split(problem.seed)
    expected = problem.expected_counts or (1.0,) * p
    # n_i, of the examples that are trained on, and of those that are measured
    expected_trained = np.asarray(split.trained_of(expected), np.float32)
    expected_measured = np.asarray(split.measured_of(expected), np.float32)
    decay = STEP_DECAYS[options.step_decay]
    weights_gradient = WEIGHTS_GRADIENTS[options.weights_gradient]
    lambda_gradient = LAMBDA_GRADIENTS[options.lambda_gradient]
    domain_losses = DOMAIN_LOSSES[options.domain_losses]

    def initialize() -> StochasticAflState:
        weights, optimizer_state = initial_training_state(model, optimizer)
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
            before=no_gradients if options.optimistic else (),
        )

    def seed_of(state: StochasticAflState, player: int) -> tf.Tensor:
        seed = fold_in(tf.constant(problem.seed, tf.int64), state.rounds)
        return stateless_seed(fold_in(seed, player))

    def scale(state: StochasticAflState) -> tf.Tensor:
        # alpha_i = lambda_i / n_i
        lambda_ = steps.mixture(state.lambda_)
        return weights_gradient(lambda_, seed_of(state, _OF_WEIGHTS)) / expected_trained

    def prepare(state: StochasticAflState, sums: Sums) -> TrainingBroadcast:
        del sums
        return TrainingBroadcast(state.weights, scale(state))

    def estimates(state: StochasticAflState, summed: AnyTrainingOutput) -> Gradients:
        # delta_lambda L
        losses = domain_losses(domain_sums(summed), expected_measured)
        by_lambda = lambda_gradient(losses, seed_of(state, _OF_LAMBDA))
        # delta_w L
        return Gradients(summed.weighted_delta, by_lambda)

    def finish(state: StochasticAflState, sums: Sums) -> tuple[StochasticAflState, Report]:
        (summed,) = sums
        of_domains = domain_sums(summed)
        counts = tf.cast(of_domains.trained, tf.float32)
        has_examples = tf.reduce_sum(counts) > 0
        t = state.steps + tf.cast(has_examples, tf.int32)
        factor = decay(tf.cast(tf.maximum(t, 1), tf.float32))
        found = estimates(state, summed)
        before = state.before
        directions = optimistic(found, before, t) if options.optimistic else found
        # w_t = Project_W(w_{t-1} - gamma_w delta_w L)
        update = average_and_apply(
            optimizer,
            state.weights,
            state.optimizer_state,
            directions.weights,
            tf.cast(has_examples, tf.float32),
        )
        trainable = scaled_step(state.weights.trainable, update.weights.trainable, factor)
        if options.weights_radius is not None:
            trainable = project_to_ball(trainable, options.weights_radius)
        # lambda_t = Project_Lambda(lambda_{t-1} + gamma_lambda delta_lambda L)
        measured_counts = tf.cast(of_domains.counts, tf.float32) if split.is_apart else None
        lambda_ = steps.next(state.lambda_, directions.losses, counts, measured_counts, factor)
        # w_A, lambda_A
        mean_weights = [
            running_mean(mean, w, t, has_examples) for mean, w in zip(state.mean_weights, trainable)
        ]
        mean_lambda = running_mean(state.mean_lambda, steps.mixture(lambda_), t, has_examples)
        report = training_report(
            model,
            of_domains,
            summed.clients,
            tf.linalg.global_norm([n - o for n, o in zip(trainable, state.weights.trainable)]),
            domain_weights={
                "lambda": steps.mixture(lambda_),
                "alpha": scale(state),
                "mean_lambda": mean_lambda,
            },
        )
        report["finalizer"]["weight"] = summed.beta
        if options.optimistic:
            before = tf.nest.map_structure(
                lambda new, old: tf.where(has_examples, new, old), found, before
            )
        return (
            StochasticAflState(
                ModelWeights(trainable, state.weights.non_trainable),
                update.optimizer_state,
                lambda_,
                mean_weights,
                mean_lambda,
                t,
                state.rounds + 1,
                before,
            ),
            report,
        )

    def models(state: StochasticAflState) -> dict[str, ModelWeights]:
        return {
            MAIN_MODEL: ModelWeights(state.mean_weights, state.weights.non_trainable),
            "last": state.weights,
        }

    quantities = training_quantities(
        model,
        domain_weights={
            **LAMBDA_QUANTITIES,
            "mean_lambda": Quantity("mean_lambda", "mean of lambda so far", per_domain=True),
        },
        is_apart=split.is_apart,
    )
    quantities["finalizer"]["weight"] = Quantity(
        "weight", "sum of the clients' weights, 1 on average"
    )
    training = Exchange(
        name="training",
        prepare=prepare,
        client=GradientClient(model, p, options.sample_size, split),
        bounds=lambda limits: training_output_bounds(model, limits, _MAX_BETA, split.is_apart),
    )
    return Algorithm(
        name="stochastic_afl",
        initialize=initialize,
        exchanges=(training,),
        finish=finish,
        models=models,
        quantities=OrderedDict(quantities),
        client_data_spec=model.client_data_spec(),
        seed=problem.seed,
        with_weights=_start_from,
        lambda_set=steps.lambda_set,
    )


def _start_from(state: StochasticAflState, weights: ModelWeights) -> StochasticAflState:
    return state._replace(
        weights=weights,
        mean_weights=list(weights.trainable),
        steps=as_tensors(np.zeros([], np.int32)),
    )


ALGORITHM = AlgorithmSpec(
    label="Stochastic-AFL",
    paper="Mohri et al. 2019, figures 3 and 4",
    build=stochastic_afl,
    options=StochasticAflOptions,
    traits=frozenset({Trait.PARTITION_BLIND}),
)


@dataclasses.dataclass(frozen=True)
class GradientClient:
    """What a client does: one gradient at w, and its losses there.

    Attributes:
        model: The model.
        num_domains: p.
        sample_size: Examples that it draws; all if None.
        split: Which examples losses are measured on, and which the gradient is of.
    """

    model: Model
    num_domains: int
    sample_size: Optional[int] = None
    split: ExampleSplit = ExampleSplit()

    def __call__(
        self,
        broadcast: TrainingBroadcast,
        clients: ClientGroup,
        seed: tf.Tensor,
        per_client: PerClient,
    ) -> AnyTrainingOutput:
        """Returns what each client sends: in `weighted_delta` the gradient of its scaled losses."""
        weights, alpha = broadcast
        training, apart = clients, None
        if self.split.is_apart:
            apart, training = measured(
                self.model, self.num_domains, self.split, weights, clients, per_client
            )
        gradient, passed = gradient_pass(
            self.model,
            self.num_domains,
            weights,
            training,
            alpha,
            seed,
            per_client,
            self.sample_size,
        )
        sums = passed if apart is None else apart
        beta = per_client(lambda n_k: client_weight(alpha, n_k), sums.trained)
        return update_outputs(gradient, beta, sums, clients, per_client)
