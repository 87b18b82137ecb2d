"""FedAvg (McMahan et al. 2017) from the pieces of Algorithm 1 of Ro et al. 2021: alpha never moves.

Uniform: alpha_i = 1 for every domain, so that beta^k is the client's number of examples.
Target-only: alpha is 1 for one domain and 0 for the others, so that only its examples train.
"""

import dataclasses
from typing import Any, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_agnostic.aggregations.aggregation import Aggregation, PlainSum
from tff_agnostic.algorithms.spec import AlgorithmSpec, Problem, Trait
from tff_agnostic.computations.client_group import ClientGroup, PerClient
from tff_agnostic.computations.client_update import train_without_domain_pass
from tff_agnostic.computations.exchange import MAIN_MODEL, Algorithm, Exchange, Report, Sums
from tff_agnostic.computations.local_training import LocalTrainingOptions
from tff_agnostic.computations.server_optimizers import ServerOptimizerOptions
from tff_agnostic.computations.server_update import (
    TrainingState,
    average_and_apply,
    domain_sums,
    initial_training_state,
    training_output_bounds,
    training_quantities,
    training_report,
)
from tff_agnostic.computations.structures import TrainingBroadcast, TrainingOutput
from tff_agnostic.computations.template import build_learning_process
from tff_agnostic.errors import UserError
from tff_agnostic.models.functional import Model
from tff_agnostic.quantities import Quantity, Role, Unit
from tff_agnostic.registry import Registry
from tff_agnostic.settings import part_of, setting


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
