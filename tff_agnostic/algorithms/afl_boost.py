"""AFLBoost: Hamer, Mohri, Suresh 2020, figure 2: an ensemble for the worst mixture of domains.

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

from tff_agnostic.algorithms.spec import AlgorithmSpec, Problem, Trait
from tff_agnostic.computations.boosting.alpha_steps import (
    PREDICTOR_QUANTITIES,
    alpha_steps,
    ensemble_of,
    last_and_mean,
    repeated_exchange,
    start_from,
)
from tff_agnostic.computations.boosting.client import BoostBroadcast
from tff_agnostic.computations.boosting.options import BoostOptions
from tff_agnostic.computations.exchange import Algorithm, Report, Sums
from tff_agnostic.computations.minimax.game_estimates import DOMAIN_LOSSES, DomainLossesOptions
from tff_agnostic.computations.minimax.game_steps import running_mean
from tff_agnostic.computations.minimax.lambda_options import LambdaOptions
from tff_agnostic.computations.minimax.lambda_steps import LAMBDA_QUANTITIES, lambda_steps
from tff_agnostic.computations.server_update import (
    as_tensors,
    domain_sums,
    training_quantities,
    training_report,
)
from tff_agnostic.errors import UserError
from tff_agnostic.models.functional import ModelWeights
from tff_agnostic.quantities import Quantity

# Of one client, in secure sums: as for AgnosticFedAvg, a share of the round.
_MAX_BETA = 10.0


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


ALGORITHM = AlgorithmSpec(
    label="AFLBoost",
    paper="Hamer et al. 2020, figure 2",
    build=afl_boost,
    options=AflBoostOptions,
    traits=frozenset({Trait.PARTITION_BLIND, Trait.LEARNS_FROM_EVERY_DOMAIN}),
)
