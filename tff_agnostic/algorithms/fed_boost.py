"""FedBoost and AFLBoost: how to mix trained predictors, of which a round sends a few.

FedBoost: Hamer, Mohri, Suresh 2020, "FedBoost: Communication-Efficient [...]", figure 1.

Trained predictors h_1 to h_q are mixed, and only their weights alpha are learned: a round sends C
of them to its clients, whatever q is, and each client answers with the gradient by their weights.
What the figure leaves open is a setting: which predictors are sent, and what is made of a gradient
that was taken at a part of the ensemble.

AFLBoost: Hamer, Mohri, Suresh 2020, figure 2: an ensemble for the worst mixture of domains.

As in FedBoost, a round sends C predictors and moves the weights alpha of the ensemble; beside it,
lambda climbs along the losses of the domains. Lines 4 and 5 as printed weigh clients by m_j / m,
which is not the objective (11), sum_k lambda_k L_k with the mean loss L_k of each domain: here, as
in Stochastic-AFL, an example of domain k counts lambda_k / N_k, where N_k are the examples of it
that a round is expected to have.
"""

import dataclasses
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tff_agnostic.algorithms.saddle_point import DOMAIN_LOSSES, DomainLossesOptions, running_mean
from tff_agnostic.boosting.alpha import (
    PREDICTOR_QUANTITIES,
    BoostBroadcast,
    BoostOptions,
    alpha_steps,
    ensemble_of,
    last_and_mean,
    repeated_exchange,
    start_from,
)
from tff_agnostic.computations.algorithm import (
    Algorithm,
    AlgorithmSpec,
    Problem,
    Report,
    Sums,
    Trait,
)
from tff_agnostic.computations.client_output import domain_sums
from tff_agnostic.computations.server import as_tensors, training_quantities, training_report
from tff_agnostic.domain_weights.ascent import LAMBDA_QUANTITIES, LambdaOptions, lambda_steps
from tff_agnostic.errors import UserError
from tff_agnostic.models.model import ModelWeights
from tff_agnostic.report_fields import Quantity

# Of one client, in secure sums: as for AgnosticFedAvg, a share of the round.
_MAX_BETA = 10.0


class FedBoostState(NamedTuple):
    """What the server remembers.

    Attributes:
        weights: alpha_t, and the arrays of the predictors.
        mean_alpha: alpha^A, the mean of alpha_1 to alpha_t, float32 [q].
        taken: Steps that had examples, int32 scalar.
        steps: All steps, int32 scalar: what draws are made from.
    """

    weights: ModelWeights
    mean_alpha: tf.Tensor
    taken: tf.Tensor
    steps: tf.Tensor


def fed_boost(problem: Problem, options: BoostOptions) -> Algorithm:
    """Returns FedBoost; its models are the ensembles of the last alpha, and of the mean.

    Raises:
        UserError: If the model is no ensemble, or the settings do not fit it.
    """
    model, p = ensemble_of(problem.model, "fed_boost"), problem.num_domains
    alphas = alpha_steps(model, options, problem.seed)

    def initialize() -> FedBoostState:
        # alpha_1 = argmin F: uniform, for both mirror maps
        weights = as_tensors(model.initial_weights)
        zero = tf.constant(0)
        return FedBoostState(weights, weights.trainable[0], zero, zero)

    def after(state: FedBoostState, sums: Sums) -> FedBoostState:
        """Lines 4 and 5 of each repetition whose sum is there."""
        for summed in sums:
            (alpha,), (gradient,) = state.weights.trainable, summed.weighted_delta
            # delta_t L = sum_j m_j / m grad L_j: beta is m, the examples of the cohort
            moved = alphas.next(alpha, gradient, summed.beta, state.steps)
            has_examples = summed.beta > 0
            taken = state.taken + tf.cast(has_examples, tf.int32)
            state = FedBoostState(
                ModelWeights([moved], state.weights.non_trainable),
                # alpha^A has alpha_t, and not what becomes of it
                running_mean(state.mean_alpha, alpha, taken, has_examples),
                taken,
                state.steps + 1,
            )
        return state

    def prepare(state: FedBoostState, sums: Sums) -> BoostBroadcast:
        now = after(state, sums)
        return alphas.broadcast(now.weights, tf.ones([p]), now.steps)

    def finish(state: FedBoostState, sums: Sums) -> tuple[FedBoostState, Report]:
        (alpha,), first = state.weights.trainable, sums[0]
        next_state = after(state, sums)
        report = training_report(
            model,
            domain_sums(first),
            first.clients,
            tf.norm(next_state.weights.trainable[0] - alpha),
            domain_weights={},
        )
        report["predictors"] = alphas.report(alpha, state.steps, p)
        return next_state, report

    quantities = training_quantities(model, domain_weights={})
    quantities["predictors"] = PREDICTOR_QUANTITIES
    return Algorithm(
        name="fed_boost",
        initialize=initialize,
        exchanges=repeated_exchange(alphas, p, prepare, lambda limits: float(limits.max_examples)),
        finish=finish,
        models=lambda state: last_and_mean(state.weights, state.mean_alpha),
        quantities=quantities,
        client_data_spec=model.client_data_spec(),
        seed=problem.seed,
        with_weights=start_from,
        in_one_exchange="" if options.repetitions == 1 else "--repetitions=1",
    )


ALGORITHM = AlgorithmSpec(
    label="FedBoost",
    paper="Hamer et al. 2020, figure 1",
    build=fed_boost,
    options=BoostOptions,
    traits=frozenset(
        {
            Trait.DOMAIN_BLIND,
            Trait.PARTITION_BLIND,
            Trait.COHORT_TWICE_IS_ONCE,
            Trait.LEARNS_FROM_EVERY_DOMAIN,
        }
    ),
)


@dataclasses.dataclass(frozen=True)
class AflBoostOptions(BoostOptions, LambdaOptions, DomainLossesOptions):
    """Settings of AFLBoost: those of both players, and how losses of domains are estimated."""


class AflBoostState(NamedTuple):
    """What the server remembers.

    Attributes:
        weights: alpha_t, and the arrays of the predictors.
        mean_alpha: alpha^A, the mean of alpha_1 to alpha_t, float32 [q].
        lambda_: lambda_t, by its coordinates in Lambda.
        mean_lambda: lambda^A, the mean of lambda_1 to lambda_t, float32 [p].
        taken: Steps that had examples, int32 scalar.
        steps: All steps, int32 scalar: what draws are made from.
    """

    weights: ModelWeights
    mean_alpha: tf.Tensor
    lambda_: tf.Tensor
    mean_lambda: tf.Tensor
    taken: tf.Tensor
    steps: tf.Tensor


def afl_boost(problem: Problem, options: AflBoostOptions) -> Algorithm:
    """Returns AFLBoost; its models are the ensembles of the last alpha, and of the mean.

    Raises:
        UserError: If the model is no ensemble, or the settings do not fit it or the domains.
    """
    if options.domain_weight_update == "cvar":
        raise UserError(
            "--domain_weight_update: AFLBoost steps along estimates of the losses, and cvar has no "
            "step: expected another, or --algorithm=agnostic_fed_avg"
        )
    model, p = ensemble_of(problem.model, "afl_boost"), problem.num_domains
    alphas = alpha_steps(model, options, problem.seed)
    lambdas = lambda_steps(options, problem.domain_names, problem.expected_counts)
    # N_k
    expected = np.asarray(problem.expected_counts or (1.0,) * p, np.float32)
    domain_losses = DOMAIN_LOSSES[options.domain_losses]

    def initialize() -> AflBoostState:
        # alpha_1 = argmin F: uniform, for both mirror maps
        weights = as_tensors(model.initial_weights)
        lambda_, zero = tf.constant(lambdas.initial, tf.float32), tf.constant(0)
        return AflBoostState(
            weights, weights.trainable[0], lambda_, lambdas.mixture(lambda_), zero, zero
        )

    def scale(state: AflBoostState) -> tf.Tensor:
        return lambdas.mixture(state.lambda_) / expected

    def after(state: AflBoostState, sums: Sums) -> AflBoostState:
        """Lines 4 to 7 of each repetition whose sum is there."""
        for summed in sums:
            (alpha,), (gradient,) = state.weights.trainable, summed.weighted_delta
            of_domains = domain_sums(summed)
            counts = tf.cast(of_domains.counts, tf.float32)
            has_examples = tf.reduce_sum(counts) > 0
            one = tf.cast(has_examples, tf.float32)
            moved = alphas.next(alpha, gradient, one, state.steps)
            # delta_lambda,t L = (L_1, ..., L_p), at alpha~
            losses = domain_losses(of_domains, expected)
            taken = state.taken + tf.cast(has_examples, tf.int32)
            mixture = lambdas.mixture(state.lambda_)
            state = AflBoostState(
                ModelWeights([moved], state.weights.non_trainable),
                # alpha^A and lambda^A have alpha_t and lambda_t, and not what becomes of them
                running_mean(state.mean_alpha, alpha, taken, has_examples),
                lambdas.next(state.lambda_, losses, counts),
                running_mean(state.mean_lambda, mixture, taken, has_examples),
                taken,
                state.steps + 1,
            )
        return state

    def prepare(state: AflBoostState, sums: Sums) -> BoostBroadcast:
        now = after(state, sums)
        return alphas.broadcast(now.weights, scale(now), now.steps)

    def finish(state: AflBoostState, sums: Sums) -> tuple[AflBoostState, Report]:
        (alpha,), first = state.weights.trainable, sums[0]
        next_state = after(state, sums)
        report = training_report(
            model,
            domain_sums(first),
            first.clients,
            tf.norm(next_state.weights.trainable[0] - alpha),
            domain_weights={
                "lambda": lambdas.mixture(next_state.lambda_),
                "alpha": scale(state),
                "mean_lambda": next_state.mean_lambda,
            },
        )
        report["predictors"] = alphas.report(alpha, state.steps, p)
        return next_state, report

    quantities = training_quantities(
        model,
        domain_weights={
            **LAMBDA_QUANTITIES,
            "mean_lambda": Quantity("mean_lambda", "mean of lambda so far", per_domain=True),
        },
    )
    quantities["predictors"] = PREDICTOR_QUANTITIES
    return Algorithm(
        name="afl_boost",
        initialize=initialize,
        exchanges=repeated_exchange(alphas, p, prepare, lambda limits: _MAX_BETA),
        finish=finish,
        models=lambda state: last_and_mean(state.weights, state.mean_alpha),
        quantities=quantities,
        client_data_spec=model.client_data_spec(),
        seed=problem.seed,
        with_weights=start_from,
        lambda_set=lambdas.lambda_set,
        in_one_exchange="" if options.repetitions == 1 else "--repetitions=1",
    )


AFL_BOOST = AlgorithmSpec(
    label="AFLBoost",
    paper="Hamer et al. 2020, figure 2",
    build=afl_boost,
    options=AflBoostOptions,
    traits=frozenset({Trait.PARTITION_BLIND, Trait.LEARNS_FROM_EVERY_DOMAIN}),
)
