"""FedAvg and its variants: target-only FedAvg, FedProx, FedAvg-Sub.

FedAvg (McMahan et al. 2017) is Algorithm 1 of Ro et al. 2021 with alpha fixed at 1 for every
domain, so that beta^k is the client's number of examples. Target-only FedAvg fixes alpha at 1 for
one domain and at 0 for the others.

FedProx: Li et al. 2020, "Federated Optimization in Heterogeneous Networks", Algorithm 2. Client k
minimises F_k(w) + mu / 2 ||w - w^t||^2 approximately: the gradient of every local step gains mu (w
- w^t), which is 0 in the first step.

FedAvg-Sub: Laguel et al. 2021, "A Superquantile Approach to Federated Learning with Heterogeneous
Devices". Delta-FL trains only the clients with the largest losses. FedAvg-Sub is its control: it
trains about as many clients, theta m from a cohort of m, drawn regardless of their losses.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Callable, Optional

import numpy as np

from tff_agnostic import computations as core
from tff_agnostic.base.later import tf
from tff_agnostic.base.options import Verbatim, Within
from tff_agnostic.base.stateless_random import uniform
from tff_agnostic.domain_weights.ascent import ALPHA

_SHARE = core.ReportField(
    "share",
    "share of the round's weight",
    per_domain=True,
    unit=core.Unit.SHARE,
    role=core.Role.DOMAIN_WEIGHT,
    is_drawn=True,
)
# Settings of McMahan et al. 2017, Algorithm 1: clients run SGD on each batch's mean loss, and the
# server averages their weights.
_PAPER = {**core.AVERAGE, "client_normalizer": "batch"}
# Index of FedAvg-Sub's draw with a client's seed; indices from 0 are for shuffling.
_DRAW = -2


@dataclasses.dataclass(frozen=True)
class FedAvgOptions(core.AveragingOptions):
    """Options of FedAvg: local training and the server's optimizer."""


def client_work(
    broadcast: core.Broadcast,
    clients: core.Clients,
    *,
    model: core.Model,
    num_domains: int,
    training: core.ClientTraining,
    proximal: float = 0.0,
) -> core.TrainingOutput:
    """Trains locally on all examples, each scaled by its domain's alpha.

    Because alpha is constant, clients need no separate pass to measure losses: they measure losses
    and metrics during the first epoch, on each batch before its step.
    """
    weights, alpha = broadcast
    # The weight beta is the number of examples n_k if alpha is 1.
    counts = core.domain_counts(num_domains, clients)
    beta = clients.map(lambda n_k: core.client_weight(alpha, n_k), counts)
    trained, sums = core.local_sgd(
        model, training, weights, clients, alpha, beta, num_domains, proximal
    )
    return core.training_output(weights, trained, beta, sums, clients)


def fed_avg(
    problem: core.Problem,
    options: FedAvgOptions,
    name: str = "fed_avg",
    alpha: Optional[Sequence[float]] = None,
    proximal: float = 0.0,
    taking_part: float = 1.0,
) -> core.Algorithm:
    """Returns FedAvg, in which each example is weighted by its domain's scale.

    Args:
        name: Name of the algorithm or variation.
        alpha: Scale of each domain, p numbers; all 1 if None.
        proximal: Weight mu of FedProx's proximal term; 0 for FedAvg.
        taking_part: Expected fraction of a cohort that trains: theta of FedAvg-Sub.
    """
    scale = np.array(alpha or [1.0] * problem.num_domains, np.float32)
    expected = problem.expected_counts
    expected_weight = None
    if expected is not None:
        expected_weight = taking_part * float(np.dot(scale, expected))

    def share(r: core.RoundView) -> tf.Tensor:
        # The domain weights in the loss that this round's clients minimised.
        weight = scale * tf.cast(r.sums[-1].domain_counts, tf.float32)
        return tf.math.divide_no_nan(weight, tf.reduce_sum(weight))

    # `core.averaging` computes w_t = sum_k n_k w^k / sum_k n_k.
    return core.averaging(
        name,
        problem,
        options,
        client_work,
        static={"proximal": proximal},
        send=lambda memory: tf.constant(scale),
        bounds=core.training_bounds(
            problem.model, expected_weight=expected_weight, contributing=taking_part
        ),
        domain_columns=[
            core.Column(_SHARE, share),
            core.Column(ALPHA, lambda r: tf.constant(scale)),
        ],
        while_training=True,
    )


ALGORITHM = core.AlgorithmSpec(
    label="FedAvg",
    paper="McMahan et al. 2017",
    build=fed_avg,
    options=FedAvgOptions,
    traits=frozenset(core.Trait),
    paper_settings=_PAPER,
)


def build_fed_avg(
    model: core.Model,
    num_domains: int,
    options: FedAvgOptions = FedAvgOptions(),
    aggregation: core.Aggregation = core.PlainSum(),
    seed: int = 0,
) -> core.LearningProcess:
    """Returns FedAvg as a TFF learning process with the interface of `build_agnostic_fed_avg`."""
    problem = core.Problem.numbered(model, num_domains, seed)
    algorithm = core.with_rate_columns(fed_avg(problem, options), options)
    return core.build_learning_process(algorithm, aggregation)


@dataclasses.dataclass(frozen=True)
class TargetOnlyOptions(FedAvgOptions):
    """Options of FedAvg on one domain.

    Attributes:
        target_domain: Name of the only training domain.
    """

    target_domain: Optional[str] = None


def fed_avg_target_only(problem: core.Problem, options: TargetOnlyOptions) -> core.Algorithm:
    """Returns FedAvg on the examples of one domain."""
    names = problem.domain_names
    if options.target_domain is None:
        raise options.error("target_domain", f"one of {', '.join(names)}", Verbatim("none"))
    if options.target_domain not in names:
        raise options.error("target_domain", f"one of {', '.join(names)}")
    alpha = [0.0] * len(names)
    alpha[names.index(options.target_domain)] = 1.0
    return fed_avg(problem, options, "fed_avg_target_only", alpha)


TARGET_ONLY = core.AlgorithmSpec(
    label="FedAvg (target-only)",
    paper="Ro et al. 2021, section 5",
    build=fed_avg_target_only,
    options=TargetOnlyOptions,
    traits=frozenset(core.Trait) - {core.Trait.DOMAIN_BLIND, core.Trait.LEARNS_FROM_EVERY_DOMAIN},
    paper_settings=_PAPER,
)


@dataclasses.dataclass(frozen=True)
class FedProxOptions(FedAvgOptions):
    """Options of FedProx.

    Attributes:
        mu: Weight of FedProx's proximal term mu / 2 ||w - w^t||^2.
    """

    mu: Annotated[float, Within(least=0.0)] = 0.1


def fed_prox(problem: core.Problem, options: FedProxOptions) -> core.Algorithm:
    """Returns FedProx; clients are averaged by their numbers of examples, as in FedAvg."""
    return fed_avg(problem, options, "fed_prox", proximal=options.mu)


FED_PROX = core.AlgorithmSpec(
    label="FedProx",
    paper="Li et al. 2020, Algorithm 2",
    build=fed_prox,
    options=FedProxOptions,
    traits=frozenset(core.Trait) - {core.Trait.ONE_DOMAIN_IS_FED_AVG},
    paper_settings=_PAPER,
)


@dataclasses.dataclass(frozen=True)
class FedAvgSubOptions(FedAvgOptions):
    """Options of FedAvg-Sub.

    Attributes:
        cohort_share: theta: probability that a client of a cohort trains in FedAvg-Sub.
    """

    cohort_share: Annotated[float, Within(above=0, most=1.0)] = 0.5


def sub_client_work(
    broadcast: core.Broadcast,
    clients: core.Clients,
    *,
    train: Callable[[core.Broadcast, core.Clients], core.TrainingOutput],
    cohort_share: float,
) -> core.TrainingOutput:
    """Runs `train` (FedAvg); clients that are not drawn send zeros and count as zero-weight."""
    output = train(broadcast, clients)
    is_drawn = takes_part(clients.seed, cohort_share)
    kept: core.TrainingOutput = core.zero_unless(is_drawn, output)
    outcome = output.clients
    contributed = tf.where(is_drawn, outcome.contributed, 0)
    zero_weight = outcome.zero_weight + (outcome.contributed - contributed)
    counts = outcome._replace(contributed=contributed, zero_weight=zero_weight)
    return kept._replace(clients=counts)


def takes_part(seed: tf.Tensor, cohort_share: float) -> tf.Tensor:
    """Returns whether each client is drawn, bool; draws are independent, with probability theta.

    Args:
        seed: Seed of each client in this round, int64.
        cohort_share: Probability theta, in (0, 1].
    """
    return uniform(seed, _DRAW) < cohort_share


def fed_avg_sub(problem: core.Problem, options: FedAvgSubOptions) -> core.Algorithm:
    """Returns FedAvg in which each client takes part with probability theta."""
    base = fed_avg(problem, options, "fed_avg_sub", taking_part=options.cohort_share)
    (training,) = base.steps
    work = core.HashablePartial(
        sub_client_work, train=training.client_work, cohort_share=options.cohort_share
    )
    return dataclasses.replace(base, steps=(dataclasses.replace(training, client_work=work),))


FED_AVG_SUB = core.AlgorithmSpec(
    label="FedAvg-Sub",
    paper="Laguel et al. 2021",
    build=fed_avg_sub,
    options=FedAvgSubOptions,
    # Two copies of a client have the same seed, so either both are drawn or neither is.
    traits=frozenset({core.Trait.COHORT_TWICE_IS_ONCE}),
    paper_settings=_PAPER,
)
