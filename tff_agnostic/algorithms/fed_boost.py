"""FedBoost and AFLBoost: weighted ensembles of trained predictors; each round sends only a few.

FedBoost: Hamer, Mohri, Suresh 2020, "FedBoost: Communication-Efficient [...]", figure 1. The
ensemble mixes trained predictors h_1 to h_q, and only their weights alpha are learned. A round
sends C predictors to its clients, and each client returns the gradient with respect to these
predictors' weights. The figure leaves open how to sample the predictors, and how to estimate the
gradient from the sampled ones; options choose both.

AFLBoost: figure 2 of the same paper, which learns an ensemble for the worst mixture of domains. A
round also moves lambda along the domains' losses. In the figure, lines 4 and 5 give client j the
weight m_j / m. This differs from objective (11), sum_k lambda_k L_k, where L_k is the mean loss of
domain k. Here, as in Stochastic-AFL, an example of domain k has the weight lambda_k / N_k, where
N_k is the domain's expected number of examples per round; `weighs_by_cohort` selects the figure's
weights. `--preset=paper` runs both figures as printed; they return the mean of alpha.

The agnostic objective of section 3 is the worst Bregman divergence B_F(D_k || h), not the worst
loss: for the log loss it is L_k(h) minus the entropy of D_k, for the squared loss L_k(h) minus the
variance of D_k. With the entropies or variances as baselines, lambda follows the divergences; see
`domain_weights.excess`.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np

from tff_agnostic import computations as core
from tff_agnostic.algorithms.saddle_point import LossEstimatorOptions, running_mean
from tff_agnostic.base.later import tf
from tff_agnostic.boosting.alpha import AlphaSteps, BoostOptions, boost_algorithm, require_ensemble
from tff_agnostic.domain_weights.ascent import ALPHA, LAMBDA, MEAN_LAMBDA, lambda_ascent
from tff_agnostic.domain_weights.excess import excess_losses

# Figures 1 and 2 leave open the mirror map F and the sampling; this package's defaults are
# entropy and equation (8).
_PAPER = {
    "predictor_draw": "independent",
    "gradient_estimator": "masked",
    "uniform_share": 0.0,
    "repetitions": 1,
}


class FedBoostState(NamedTuple):
    """The state of the server.

    Attributes:
        weights: alpha_t (trainable), and the predictors' arrays (non-trainable).
        mean_alpha: alpha^A, the mean of alpha_1 to alpha_t, float32 [q].
        taken: Number of steps with examples, int32 scalar.
        steps: Number of all steps, which seeds the draws, int32 scalar.
    """

    weights: core.ModelWeights
    mean_alpha: tf.Tensor
    taken: tf.Tensor
    steps: tf.Tensor


def fed_boost(
    problem: core.Problem, options: BoostOptions, *, mean_first: bool = False
) -> core.Algorithm:
    """Returns FedBoost; its models are the ensembles with the last alpha and with the mean alpha.

    Args:
        problem: The learning problem, whose model is an ensemble.
        mean_first: Whether the main model is the ensemble with the mean alpha^A, as in figure 1.
    """
    model, p = require_ensemble(problem.model, "fed_boost"), problem.num_domains
    alphas = AlphaSteps(model, options, problem.seed)

    def initialize() -> FedBoostState:
        # alpha_1 = argmin F, which is uniform for both mirror maps.
        weights = core.as_tensors(model.initial_weights)
        zero = tf.constant(0)
        return FedBoostState(weights, weights.trainable[0], zero, zero)

    def repetition(state: FedBoostState, summed: core.TrainingOutput) -> FedBoostState:
        # Lines 4 and 5 of figure 1: delta_t L = sum_j m_j / m grad L_j; beta is m, the number of
        # examples in the cohort.
        (alpha,), (gradient,) = state.weights.trainable, summed.weighted_delta
        moved = alphas.next(alpha, gradient, summed.beta, state.steps)
        has_examples = summed.beta > 0
        taken = state.taken + tf.cast(has_examples, tf.int32)
        return FedBoostState(
            core.ModelWeights([moved], state.weights.non_trainable),
            # alpha^A includes alpha_t, but not alpha_{t+1}.
            running_mean(state.mean_alpha, alpha, taken, has_examples),
            taken,
            state.steps + 1,
        )

    return boost_algorithm(
        "fed_boost",
        problem,
        alphas,
        initialize,
        repetition,
        scale=lambda state: tf.ones([p]),
        mean_first=mean_first,
    )


ALGORITHM = core.AlgorithmSpec(
    label="FedBoost",
    paper="Hamer et al. 2020, figure 1",
    build=fed_boost,
    options=BoostOptions,
    traits=frozenset(core.Trait) - {core.Trait.ONE_DOMAIN_IS_FED_AVG},
    paper_settings=_PAPER,
    paper_arguments={"mean_first": True},
)


@dataclasses.dataclass(frozen=True)
class AflBoostOptions(BoostOptions, LossEstimatorOptions):
    """Options of AFLBoost, for alpha and lambda."""


class AflBoostState(NamedTuple):
    """The state of the server: FedBoost's state, and lambda.

    Attributes:
        lambda_: Coordinates of lambda_t in the set Lambda, float32.
        mean_lambda: lambda^A, the mean of lambda_1 to lambda_t, float32 [p].
    """

    weights: core.ModelWeights
    mean_alpha: tf.Tensor
    lambda_: tf.Tensor
    mean_lambda: tf.Tensor
    taken: tf.Tensor
    steps: tf.Tensor


def afl_boost(
    problem: core.Problem,
    options: AflBoostOptions,
    *,
    weighs_by_cohort: bool = False,
    mean_first: bool = False,
) -> core.Algorithm:
    """Returns AFLBoost; its models are the ensembles with the last alpha and with the mean alpha.

    Args:
        problem: The learning problem, whose model is an ensemble.
        weighs_by_cohort: Whether an example of domain k has the weight lambda_k / m (figure 2,
            lines 4 and 5), where m is the cohort's number of examples. If False, the weight is
            lambda_k / N_k (objective 11).
        mean_first: Whether the main model is the ensemble with the mean alpha^A, as in figure 2.
    """
    if weighs_by_cohort and options.loss_estimate != "unbiased":
        reason = "where examples weigh lambda_k / m, as in the paper's preset"
        raise options.error("loss_estimate", f"unbiased {reason}")
    model, p = require_ensemble(problem.model, "afl_boost"), problem.num_domains
    alphas = AlphaSteps(model, options, problem.seed)
    lambdas = lambda_ascent(options.lambda_, problem.domain_names, problem.expected_counts)
    # N_k
    expected = np.asarray(problem.expected_counts or (1.0,) * p, np.float32)
    baselines = options.lambda_.known_baselines(p)

    def initialize() -> AflBoostState:
        # alpha_1 = argmin F, which is uniform for both mirror maps.
        weights = core.as_tensors(model.initial_weights)
        lambda_, zero = tf.constant(lambdas.initial, tf.float32), tf.constant(0)
        return AflBoostState(
            weights, weights.trainable[0], lambda_, lambdas.mixture(lambda_), zero, zero
        )

    def scale(state: AflBoostState) -> tf.Tensor:
        mixture = lambdas.mixture(state.lambda_)
        return mixture if weighs_by_cohort else mixture / expected

    def repetition(state: AflBoostState, summed: core.TrainingOutput) -> AflBoostState:
        # Lines 4 to 7 of figure 2.
        (alpha,), (gradient,) = state.weights.trainable, summed.weighted_delta
        sums = summed.domain_sums
        counts = tf.cast(sums.counts, tf.float32)
        m = tf.reduce_sum(counts)
        has_examples = m > 0
        weight = m if weighs_by_cohort else tf.cast(has_examples, tf.float32)
        moved = alphas.next(alpha, gradient, weight, state.steps)
        # delta_lambda,t L = (L_1, ..., L_p) at alpha~; in the figure,
        # sum_j m_j / m grad_lambda L_j.
        losses = options.domain_losses(sums, expected)
        if weighs_by_cohort:
            losses = tf.math.divide_no_nan(sums.losses, m)
        losses = excess_losses(losses, baselines, sums.counts > 0)
        taken = state.taken + tf.cast(has_examples, tf.int32)
        mixture = lambdas.mixture(state.lambda_)
        return AflBoostState(
            core.ModelWeights([moved], state.weights.non_trainable),
            # alpha^A and lambda^A include alpha_t and lambda_t, but
            # not alpha_{t+1} and lambda_{t+1}.
            running_mean(state.mean_alpha, alpha, taken, has_examples),
            lambdas.next(state.lambda_, losses, counts),
            running_mean(state.mean_lambda, mixture, taken, has_examples),
            taken,
            state.steps + 1,
        )

    return boost_algorithm(
        "afl_boost",
        problem,
        alphas,
        initialize,
        repetition,
        scale,
        mean_first,
        max_weight=None if weighs_by_cohort else core.MAX_ROUND_SHARE,
        domain_weights=[
            core.Column(LAMBDA, lambda r: lambdas.mixture(r.after.lambda_)),
            core.Column(ALPHA, lambda r: scale(r.before)),
            core.Column(MEAN_LAMBDA, lambda r: r.after.mean_lambda),
        ],
        lambda_set=lambdas.lambda_set,
    )


AFL_BOOST = core.AlgorithmSpec(
    label="AFLBoost",
    paper="Hamer et al. 2020, figure 2",
    build=afl_boost,
    options=AflBoostOptions,
    traits=frozenset({core.Trait.PARTITION_BLIND, core.Trait.LEARNS_FROM_EVERY_DOMAIN}),
    paper_settings={
        **_PAPER,
        "lambda_set": "simplex",
        "loss_estimate": "unbiased",
        "lambda_absent": "zero",  # line 5: a domain without examples has a gradient of 0
    },
    paper_arguments={"weighs_by_cohort": True, "mean_first": True},  # lines 4 and 5
)
