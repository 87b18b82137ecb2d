"""FedBoost: Hamer, Mohri, Suresh 2020, "FedBoost: Communication-Efficient [...]", figure 1.

Trained predictors h_1 to h_q are mixed, and only their weights alpha are learned: a round sends C
of them to its clients, whatever q is, and each client answers with the gradient by their weights.
What the figure leaves open is a setting: which predictors are sent, and what is made of a gradient
that was taken at a part of the ensemble.
"""

from typing import NamedTuple

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
from tff_agnostic.computations.minimax.game_steps import running_mean
from tff_agnostic.computations.server_update import (
    as_tensors,
    domain_sums,
    training_quantities,
    training_report,
)
from tff_agnostic.models.functional import ModelWeights


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
