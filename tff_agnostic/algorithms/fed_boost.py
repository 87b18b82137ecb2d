"""FedBoost and AFLBoost: how to mix trained predictors when a round sends a few of them.

FedBoost: Hamer, Mohri, Suresh 2020, "FedBoost: Communication-Efficient [...]", figure 1. Trained
predictors h_1 to h_q are mixed, and only their weights alpha are learned. A round sends C of them
to its clients, whatever q is, and each client answers with the gradient by their weights. What the
figure leaves open is a setting: which predictors are sent, and what is made of a gradient that was
taken at a part of the ensemble.

AFLBoost: figure 2 of the same paper: an ensemble for the worst mixture of domains. A round sends C
predictors and moves alpha, and lambda climbs along the losses of the domains. Lines 4 and 5 as
printed weigh clients by m_j / m, which is not the objective (11), sum_k lambda_k L_k with the mean
loss L_k of each domain. Here, as in Stochastic-AFL, an example of domain k counts lambda_k / N_k,
where N_k are the examples of it that a round is expected to have; `example_weight="cohort"` is the
figure. `--preset=paper` makes both figures of this file what is printed.

The agnostic objective of section 3 is the worst Bregman divergence B_F(D_k || h), and not the worst
loss: of the log loss it is L_k(h) less the entropy of D_k, of the squared loss less its variance.
With these numbers as baselines, lambda follows the divergences; see `domain_weights.excess`.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import numpy as np

from tff_agnostic import computations as core
from tff_agnostic.algorithms.saddle_point import DOMAIN_LOSSES, LossEstimatorOptions, running_mean
from tff_agnostic.base.options import OneOf
from tff_agnostic.boosting.alpha import (
    BoostOptions,
    alpha_steps,
    boost_algorithm,
    ensemble_of,
)
from tff_agnostic.domain_weights.ascent import (
    ALPHA,
    LAMBDA,
    MEAN_LAMBDA,
    LambdaOptions,
    lambda_ascent,
)
from tff_agnostic.domain_weights.excess import OWN, excess_losses
from tff_agnostic.errors import UserError
from tff_agnostic.later import tf
from tff_agnostic.registry import Registry

# Of one client, in secure sums: as for AgnosticFedAvg, a share of the round.
_MAX_BETA = 10.0
EXAMPLE_WEIGHTS: Registry[str] = Registry(
    "weight of an example",
    {
        "domain": "lambda_k / N_k, by the examples N_k that a round is expected to have of its "
        "domain k: objective (11) of the paper",
        "cohort": "lambda_k / m, by the examples m of the cohort: lines 4 and 5 of figure 2",
    },
)
# Figures 1 and 2 leave open F and the way to sample; entropy and (8) are this package's defaults.
_PAPER: Mapping[str, Any] = types.MappingProxyType(
    {
        "predictor_draw": "independent",
        "gradient_estimator": "masked",
        "uniform_share": 0.0,
        "repetitions": 1,
        "returned_alpha": "mean",
    }
)


class FedBoostState(NamedTuple):
    """What the server remembers.

    Attributes:
        weights: alpha_t, and the arrays of the predictors.
        mean_alpha: alpha^A, the mean of alpha_1 to alpha_t, float32 [q].
        taken: Steps that had examples, int32 scalar.
        steps: All steps, int32 scalar: what draws are made from.
    """

    weights: core.ModelWeights
    mean_alpha: tf.Tensor
    taken: tf.Tensor
    steps: tf.Tensor


def fed_boost(problem: core.Problem, options: BoostOptions) -> core.Algorithm:
    """Returns FedBoost; its models are the ensembles of the last alpha, and of the mean."""
    model, p = ensemble_of(problem.model, "fed_boost"), problem.num_domains
    alphas = alpha_steps(model, options, problem.seed)

    def initialize() -> FedBoostState:
        # alpha_1 = argmin F: uniform, for both mirror maps
        weights = core.as_tensors(model.initial_weights)
        zero = tf.constant(0)
        return FedBoostState(weights, weights.trainable[0], zero, zero)

    def repetition(state: FedBoostState, summed: core.TrainingOutput) -> FedBoostState:
        # Lines 4 and 5; delta_t L = sum_j m_j / m grad L_j: beta is m, the cohort's examples.
        (alpha,), (gradient,) = state.weights.trainable, summed.weighted_delta
        moved = alphas.next(alpha, gradient, summed.beta, state.steps)
        has_examples = summed.beta > 0
        taken = state.taken + tf.cast(has_examples, tf.int32)
        return FedBoostState(
            core.ModelWeights([moved], state.weights.non_trainable),
            # alpha^A has alpha_t, and not what becomes of it.
            running_mean(state.mean_alpha, alpha, taken, has_examples),
            taken,
            state.steps + 1,
        )

    return boost_algorithm(
        "fed_boost", problem, alphas, initialize, repetition, scale=lambda state: tf.ones([p])
    )


ALGORITHM = core.AlgorithmSpec(
    label="FedBoost",
    paper="Hamer et al. 2020, figure 1",
    build=fed_boost,
    options=BoostOptions,
    traits=frozenset(
        {
            core.Trait.DOMAIN_BLIND,
            core.Trait.PARTITION_BLIND,
            core.Trait.COHORT_TWICE_IS_ONCE,
            core.Trait.LEARNS_FROM_EVERY_DOMAIN,
        }
    ),
    paper_settings=_PAPER,
)


@dataclasses.dataclass(frozen=True)
class AflBoostOptions(BoostOptions, LambdaOptions, LossEstimatorOptions):
    """Options of AFLBoost: both players' settings, and the estimate of the domains' losses.

    Attributes:
        example_weight: What an example of domain k counts in AFLBoost.
    """

    example_weight: Annotated[str, OneOf(EXAMPLE_WEIGHTS)] = "domain"

    def __post_init__(self) -> None:
        """Refuses CVaR, and estimates and baselines that do not fit the other settings."""
        super().__post_init__()
        if self.lambda_update == "cvar":
            raise UserError(
                "--lambda_update: AFLBoost steps along estimates of the losses, and cvar "
                "has no step: expected another, or --algorithm=agnostic_fed_avg"
            )
        if self.example_weight == "cohort" and self.loss_estimate != "unbiased":
            raise UserError(
                f"--loss_estimate={self.loss_estimate} has no effect with --example_weight=cohort, "
                "which divides all losses by the cohort's examples: it needs "
                "--example_weight=domain"
            )
        self.check_baselines("AFLBoost")
        if self.lambda_baselines == OWN and self.ensemble_loss == "squared":
            raise UserError(
                f"--lambda_baselines: expected numbers or trivial with --ensemble_loss=squared, "
                f"found {OWN}, whose reference runs have the task's own loss"
            )

    @property
    def own_absent_domains(self) -> str:
        """What the estimate of the losses needs."""
        return self.absent_by_estimate()


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

    weights: core.ModelWeights
    mean_alpha: tf.Tensor
    lambda_: tf.Tensor
    mean_lambda: tf.Tensor
    taken: tf.Tensor
    steps: tf.Tensor


def afl_boost(problem: core.Problem, options: AflBoostOptions) -> core.Algorithm:
    """Returns AFLBoost; its models are the ensembles of the last alpha, and of the mean."""
    is_by_cohort = options.example_weight == "cohort"
    model, p = ensemble_of(problem.model, "afl_boost"), problem.num_domains
    alphas = alpha_steps(model, options, problem.seed)
    lambdas = lambda_ascent(options, problem.domain_names, problem.expected_counts)
    # N_k
    expected = np.asarray(problem.expected_counts or (1.0,) * p, np.float32)
    domain_losses = DOMAIN_LOSSES[options.loss_estimate]
    baselines = options.baselines(p)

    def initialize() -> AflBoostState:
        # alpha_1 = argmin F: uniform, for both mirror maps
        weights = core.as_tensors(model.initial_weights)
        lambda_, zero = tf.constant(lambdas.initial, tf.float32), tf.constant(0)
        return AflBoostState(
            weights, weights.trainable[0], lambda_, lambdas.mixture(lambda_), zero, zero
        )

    def scale(state: AflBoostState) -> tf.Tensor:
        mixture = lambdas.mixture(state.lambda_)
        return mixture if is_by_cohort else mixture / expected

    def repetition(state: AflBoostState, summed: core.TrainingOutput) -> AflBoostState:
        # Lines 4 to 7.
        (alpha,), (gradient,) = state.weights.trainable, summed.weighted_delta
        sums = summed.domain_sums
        counts = tf.cast(sums.counts, tf.float32)
        m = tf.reduce_sum(counts)
        has_examples = m > 0
        weight = m if is_by_cohort else tf.cast(has_examples, tf.float32)
        moved = alphas.next(alpha, gradient, weight, state.steps)
        # delta_lambda,t L = (L_1, ..., L_p), at alpha~; as printed sum_j m_j / m grad_lambda L_j
        losses = excess_losses(domain_losses(sums, expected), baselines, sums.counts > 0)
        if is_by_cohort:
            losses = tf.math.divide_no_nan(sums.losses, m)
        taken = state.taken + tf.cast(has_examples, tf.int32)
        mixture = lambdas.mixture(state.lambda_)
        return AflBoostState(
            core.ModelWeights([moved], state.weights.non_trainable),
            # alpha^A and lambda^A have alpha_t and lambda_t, and not what becomes of them.
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
        max_weight=None if is_by_cohort else _MAX_BETA,
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
        "example_weight": "cohort",  # lines 4 and 5
        "lambda_set": "simplex",
        "loss_estimate": "unbiased",
        "lambda_absent": "zero",  # line 5: a domain without examples has a gradient of 0
        "chi2_weight": 0.0,
    },
)
