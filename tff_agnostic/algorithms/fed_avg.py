"""FedAvg (McMahan et al. 2017) and its variations: target domain only, FedProx, FedAvg-Sub.

It is made of the pieces of Algorithm 1 of Ro et al. 2021, where alpha never moves. Uniform: alpha_i
is 1 for every domain, so that beta^k is the client's number of examples. Target-only: alpha is 1
for one domain and 0 for the others, so that only its examples train.

FedProx: Li et al. 2020, "Federated Optimization in Heterogeneous Networks", Algorithm 2.

Client k minimises F_k(w) + mu / 2 ||w - w^t||^2 approximately: the gradient of every local step
gains mu (w - w^t), which is 0 at the first one.

FedAvg-Sub: FedAvg on a part of the cohort (Laguel, Pillutla, Malick, Harchaoui 2021).

Their "A Superquantile Approach to Federated Learning with Heterogeneous Devices" trains on the
clients of a cohort with the largest losses. This is its control of the budget: FedAvg on as many
clients, about theta m of m, drawn regardless of their losses.
"""

import dataclasses
from typing import Any, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_agnostic.aggregations.aggregation import Aggregation, PlainSum
from tff_agnostic.computations.algorithm import (
    MAIN_MODEL,
    Algorithm,
    AlgorithmSpec,
    ClientFunction,
    Exchange,
    Problem,
    Report,
    Sums,
    Trait,
)
from tff_agnostic.computations.client_output import (
    ClientCounts,
    TrainingBroadcast,
    TrainingOutput,
    client_weight,
    domain_sums,
    training_output_bounds,
    training_outputs,
    zeros_unless,
)
from tff_agnostic.computations.clients import ClientGroup, PerClient, one_client
from tff_agnostic.computations.domain_losses import domain_counts
from tff_agnostic.computations.local_training import LocalTrainingOptions, local_training
from tff_agnostic.computations.server import (
    ServerOptimizerOptions,
    TrainingState,
    average_and_apply,
    initial_training_state,
    training_quantities,
    training_report,
)
from tff_agnostic.computations.tff_process import build_learning_process
from tff_agnostic.errors import UserError
from tff_agnostic.models.model import Model
from tff_agnostic.registry import Registry
from tff_agnostic.report_fields import Quantity, Role, Unit
from tff_agnostic.settings import part_of, setting
from tff_agnostic.stateless_random import uniform

_DOMAIN_WEIGHTS: dict[str, Any] = {
    "share": Quantity(
        "share",
        "share of the round's weight",
        per_domain=True,
        unit=Unit.SHARE,
        role=Role.DOMAIN_WEIGHT,
        is_drawn=True,
        file_name="domain_weights",
        formerly=("lambda",),
    ),
    "alpha": Quantity("alpha", "scale alpha of a domain", per_domain=True),
}
# This use of a client's seed; its shuffling has those from 0.
_DRAW = -2


def train_without_domain_pass(
    model: Model,
    num_domains: int,
    options: LocalTrainingOptions,
    broadcast: TrainingBroadcast,
    clients: ClientGroup,
    seed: tf.Tensor,
    per_client: PerClient = one_client,
    proximal: float = 0.0,
) -> TrainingOutput:
    """CLIENT where alpha never moves, so that no loss at w has to be known.

    Losses and metrics are those of the first epoch, each example's before its batch's step.
    """
    weights, alpha = broadcast
    counts = domain_counts(num_domains, clients)
    beta = per_client(lambda n_k: client_weight(alpha, n_k), counts)
    trained, sums = local_training(
        model,
        options,
        weights,
        clients,
        alpha,
        beta,
        seed,
        per_client,
        measured_domains=num_domains,
        proximal=proximal,
    )
    return training_outputs(weights, trained, beta, sums, clients, per_client)


@dataclasses.dataclass(frozen=True)
class FedAvgOptions(LocalTrainingOptions, ServerOptimizerOptions):
    """Settings: those of clients' training and of the server's optimizer."""


@dataclasses.dataclass(frozen=True)
class TargetOnlyOptions(FedAvgOptions):
    """Settings of FedAvg on one domain.

    Attributes:
        target_domain: Name of the domain.
    """

    target_domain: Optional[str] = setting(None, "Name of the only domain that is trained on.")


@dataclasses.dataclass(frozen=True)
class FedAvgClient:
    """What a client does: local training on its examples, each with the scale of its domain.

    Attributes:
        model: The model.
        num_domains: p.
        options: How clients train.
        proximal: mu of FedProx; 0 for FedAvg.
    """

    model: Model
    num_domains: int
    options: LocalTrainingOptions
    proximal: float = 0.0

    def __call__(
        self,
        broadcast: TrainingBroadcast,
        clients: ClientGroup,
        seed: tf.Tensor,
        per_client: PerClient,
    ) -> TrainingOutput:
        """Returns what each client sends."""
        return train_without_domain_pass(
            self.model,
            self.num_domains,
            self.options,
            broadcast,
            clients,
            seed,
            per_client,
            proximal=self.proximal,
        )


def fed_avg(problem: Problem, options: FedAvgOptions) -> Algorithm:
    """Returns FedAvg over all domains."""
    scale = np.ones([problem.num_domains], np.float32)
    return with_constant_scale("fed_avg", problem, options, scale)


def fed_avg_target_only(problem: Problem, options: TargetOnlyOptions) -> Algorithm:
    """Returns FedAvg on the examples of one domain.

    Raises:
        UserError: If there is no target domain, or the problem has none of its name.
    """
    names = problem.domain_names
    if options.target_domain is None:
        raise UserError(
            f"--target_domain: expected one of {', '.join(names)} with "
            "--algorithm=fed_avg_target_only, found none"
        )
    index_of = Registry("domain in --target_domain", {name: i for i, name in enumerate(names)})
    scale = np.eye(len(names), dtype=np.float32)[index_of[options.target_domain]]
    return with_constant_scale("fed_avg_target_only", problem, options, scale)


def with_constant_scale(
    name: str,
    problem: Problem,
    options: FedAvgOptions,
    alpha: np.ndarray,
    proximal: float = 0.0,
) -> Algorithm:
    """Returns FedAvg in which each example weighs what its domain's scale says.

    Args:
        name: Name of the algorithm.
        problem: What is learned.
        options: Settings.
        alpha: Scale of each domain, float32 [p].
        proximal: mu of FedProx.
    """
    model = problem.model
    optimizer = options.build_server_optimizer()
    expected = problem.expected_counts
    expected_beta = None if expected is None else float(np.dot(alpha, expected))

    def prepare(state: TrainingState, sums: Sums) -> TrainingBroadcast:
        del sums
        return TrainingBroadcast(state.weights, tf.constant(alpha))

    def finish(state: TrainingState, sums: Sums) -> tuple[TrainingState, Report]:
        (summed,) = sums
        # w_t = sum_k n_k w^k / sum_k n_k
        update = average_and_apply(
            optimizer, state.weights, state.optimizer_state, summed.weighted_delta, summed.beta
        )
        # The mixture of domains that the round's average minimised.
        weight = alpha * tf.cast(summed.domain_counts, tf.float32)
        share = tf.math.divide_no_nan(weight, tf.reduce_sum(weight))
        report = training_report(
            model,
            domain_sums(summed),
            summed.clients,
            update.update_norm,
            domain_weights={"share": share, "alpha": tf.constant(alpha)},
        )
        return TrainingState(update.weights, update.optimizer_state), report

    training = Exchange(
        name="training",
        prepare=prepare,
        client=FedAvgClient(
            model, len(alpha), part_of(options, LocalTrainingOptions), proximal=proximal
        ),
        bounds=lambda limits: training_output_bounds(
            model, limits, float(limits.max_examples), expected_beta=expected_beta
        ),
    )
    return Algorithm(
        name=name,
        initialize=lambda: initial_training_state(model, optimizer),
        exchanges=(training,),
        finish=finish,
        models=lambda state: {MAIN_MODEL: state.weights},
        quantities=training_quantities(model, _DOMAIN_WEIGHTS, while_training=True),
        client_data_spec=model.client_data_spec(),
        seed=problem.seed,
    )


ALGORITHM = AlgorithmSpec(
    label="FedAvg (uniform)",
    paper="McMahan et al. 2017",
    build=fed_avg,
    options=FedAvgOptions,
    traits=frozenset(Trait),
)
TARGET_ONLY = AlgorithmSpec(
    label="FedAvg (target-only)",
    paper="Ro et al. 2021, section 5",
    build=fed_avg_target_only,
    options=TargetOnlyOptions,
    traits=frozenset(
        {Trait.ONE_DOMAIN_IS_FED_AVG, Trait.PARTITION_BLIND, Trait.COHORT_TWICE_IS_ONCE}
    ),
)


def build_fed_avg(
    model: Model,
    num_domains: int,
    options: FedAvgOptions = FedAvgOptions(),
    aggregation: Aggregation = PlainSum(),
    seed: int = 0,
) -> tff.learning.templates.LearningProcess:
    """Returns FedAvg as a TFF learning process with the interface of `build_agnostic_fed_avg`."""
    problem = Problem.of_numbered_domains(model, num_domains, seed)
    return build_learning_process(fed_avg(problem, options), aggregation)


@dataclasses.dataclass(frozen=True)
class FedProxOptions(FedAvgOptions):
    """Settings of FedProx.

    Attributes:
        mu: Weight of the proximal term; with 0 it is FedAvg. A batch has its share of the term:
            all of it with `batch_normalizer` "batch", and with "client" the share of the client's
            examples that it holds, as of the client's loss.
    """

    mu: float = setting(
        0.1, "Weight of FedProx's proximal term mu / 2 ||w - w^t||^2.", at_least=0.0
    )


def fed_prox(problem: Problem, options: FedProxOptions) -> Algorithm:
    """Returns FedProx; clients are averaged by their numbers of examples, as in FedAvg."""
    scale = np.ones([problem.num_domains], np.float32)
    return with_constant_scale("fed_prox", problem, options, scale, proximal=options.mu)


FED_PROX = AlgorithmSpec(
    label="FedProx",
    paper="Li et al. 2020, Algorithm 2",
    build=fed_prox,
    options=FedProxOptions,
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
class FedAvgSubOptions(FedAvgOptions):
    """Settings of FedAvg-Sub.

    Attributes:
        cohort_share: theta, the probability with which a client of the cohort takes part.
    """

    cohort_share: float = setting(
        0.5,
        "theta: the probability with which each client of a cohort takes part in FedAvg-Sub.",
        positive=True,
        at_most=1.0,
    )


@dataclasses.dataclass(frozen=True)
class FedAvgSubClient:
    """What a client does: FedAvg, if it is drawn.

    Attributes:
        train: What clients of FedAvg do.
        cohort_share: theta.
    """

    train: ClientFunction
    cohort_share: float

    def __call__(
        self,
        broadcast: TrainingBroadcast,
        clients: ClientGroup,
        seed: tf.Tensor,
        per_client: PerClient,
    ) -> TrainingOutput:
        """Returns what each client sends: zeros and its count, if it is not drawn."""
        output: TrainingOutput = self.train(broadcast, clients, seed, per_client)
        is_drawn = takes_part(seed, self.cohort_share)
        kept: TrainingOutput = zeros_unless(is_drawn, output)
        return kept._replace(clients=_counted(output.clients, is_drawn))


def takes_part(seed: tf.Tensor, cohort_share: float) -> tf.Tensor:
    """Returns whether each client is drawn, boolean: all by themselves, with the same probability.

    Args:
        seed: Seed of each client in this round, int64.
        cohort_share: The probability, in (0, 1].
    """
    return uniform(seed, _DRAW) < cohort_share


def _counted(counts: ClientCounts, is_drawn: tf.Tensor) -> ClientCounts:
    """Counts clients that would have contributed, and were not drawn, as without weight."""
    contributed = tf.where(is_drawn, counts.contributed, 0)
    left_out = counts.contributed - contributed
    return counts._replace(contributed=contributed, zero_weight=counts.zero_weight + left_out)


def fed_avg_sub(problem: Problem, options: FedAvgSubOptions) -> Algorithm:
    """Returns FedAvg whose clients each take part with probability theta."""
    base = fed_avg(problem, options)
    (training,) = base.exchanges
    client: Any = FedAvgSubClient(training.client, options.cohort_share)
    return dataclasses.replace(
        base, name="fed_avg_sub", exchanges=(dataclasses.replace(training, client=client),)
    )


FED_AVG_SUB = AlgorithmSpec(
    label="FedAvg-Sub",
    paper="Laguel et al. 2021",
    build=fed_avg_sub,
    options=FedAvgSubOptions,
    # Twins have the same seed, and are drawn together.
    traits=frozenset({Trait.COHORT_TWICE_IS_ONCE}),
)
