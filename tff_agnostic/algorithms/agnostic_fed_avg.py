"""AgnosticFedAvg: Algorithm 1 of Ro et al. 2021, "Communication-Efficient Agnostic FedAvg"."""

import dataclasses
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_agnostic.aggregations.aggregation import Aggregation, PlainSum
from tff_agnostic.algorithms.spec import AlgorithmSpec, Problem, Trait
from tff_agnostic.computations.client_group import ClientGroup, PerClient
from tff_agnostic.computations.client_update import client_weight, training_outputs
from tff_agnostic.computations.exchange import MAIN_MODEL, Algorithm, Exchange, Report, Sums
from tff_agnostic.computations.kept_out import DomainLossOptions, ExampleSplit, measured
from tff_agnostic.computations.local_training import LocalTrainingOptions, local_training
from tff_agnostic.computations.minimax import domain_window as dw
from tff_agnostic.computations.minimax.lambda_steps import LAMBDA_QUANTITIES, lambda_steps
from tff_agnostic.computations.server_optimizers import ServerOptimizerOptions
from tff_agnostic.computations.server_update import (
    as_tensors,
    average_and_apply,
    domain_sums,
    initial_training_state,
    mean_domain_losses,
    training_output_bounds,
    training_quantities,
    training_report,
)
from tff_agnostic.computations.structures import AnyTrainingOutput, TrainingBroadcast
from tff_agnostic.computations.template import build_learning_process
from tff_agnostic.models.functional import Model, ModelWeights
from tff_agnostic.settings import part_of

# A client's weight is its share of the round, about 1 / c; more when a domain was rarer in the
# window than it is on the client.
_MAX_BETA = 10.0


@dataclasses.dataclass(frozen=True)
class AgnosticFedAvgOptions(
    LocalTrainingOptions, ServerOptimizerOptions, dw.DomainWeightsOptions, DomainLossOptions
):
    """Settings: of clients' training, of the server's optimizer, of lambda and of its losses."""


class AgnosticFedAvgState(NamedTuple):
    """What the server remembers.

    Attributes:
        weights: w_t.
        optimizer_state: State of the server optimizer.
        domains: lambda_t, the window of counts, and their mean.
    """

    weights: ModelWeights
    optimizer_state: Any
    domains: dw.DomainState


@dataclasses.dataclass(frozen=True)
class AgnosticClient:
    """CLIENT of Algorithm 1.

    A client without examples, or whose update, weight or losses are not finite, adds nothing to any
    sum but the count of such clients.

    Attributes:
        model: The model.
        num_domains: p.
        options: How clients train.
        split: Which examples are measured, and which are trained on.
    """

    model: Model
    num_domains: int
    options: LocalTrainingOptions
    split: ExampleSplit = ExampleSplit()

    def __call__(
        self,
        broadcast: TrainingBroadcast,
        clients: ClientGroup,
        seed: tf.Tensor,
        per_client: PerClient,
    ) -> AnyTrainingOutput:
        """Returns what each client sends."""
        weights, alpha = broadcast
        # L^k, N^k
        sums, training = measured(
            self.model, self.num_domains, self.split, weights, clients, per_client
        )
        # beta^k
        beta = per_client(lambda n_k: client_weight(alpha, n_k), sums.trained)
        # w^k
        trained, _ = local_training(
            self.model, self.options, weights, training, alpha, beta, seed, per_client
        )
        return training_outputs(weights, trained, beta, sums, clients, per_client)


def agnostic_fed_avg(problem: Problem, options: AgnosticFedAvgOptions) -> Algorithm:
    """Returns AgnosticFedAvg.

    Raises:
        UserError: If initial domain weights or counts do not fit the number of domains.
    """
    model, p = problem.model, problem.num_domains
    optimizer = options.build_server_optimizer()
    split = options.example_split(problem.seed)
    steps = lambda_steps(options, problem.domain_names, problem.expected_counts)
    domains_0 = dw.initial_domain_state(options, steps, split.trained_of(problem.expected_counts))

    def initialize() -> AgnosticFedAvgState:
        # w_0, lambda_0, N_0
        return AgnosticFedAvgState(
            *initial_training_state(model, optimizer), domains=as_tensors(domains_0)
        )

    def scale(domains: dw.DomainState) -> tf.Tensor:
        # alpha_t = lambda_{t-1} / (sum_{j=t-r}^{t-1} N_j / r)
        return dw.scaling_vector(steps.mixture(domains.lambda_), domains.mean_counts)

    def prepare(state: AgnosticFedAvgState, sums: Sums) -> TrainingBroadcast:
        del sums
        return TrainingBroadcast(state.weights, scale(state.domains))

    def finish(state: AgnosticFedAvgState, sums: Sums) -> tuple[AgnosticFedAvgState, Report]:
        (summed,) = sums
        of_domains = domain_sums(summed)
        # w_t = sum_k beta^k w^k / beta_t
        update = average_and_apply(
            optimizer, state.weights, state.optimizer_state, summed.weighted_delta, summed.beta
        )
        # N_t = sum_k N^k
        counts = tf.cast(of_domains.trained, tf.float32)
        # L = sum_k L^k / N_t, where those that are measured are counted
        losses = mean_domain_losses(of_domains)
        # lambda_t = lambda_{t-1} exp(gamma_lambda L) / sum_i lambda_{t-1}^i exp(gamma_lambda L_i)
        measured_counts = tf.cast(of_domains.counts, tf.float32) if split.is_apart else None
        lambda_ = steps.next(state.domains.lambda_, losses, counts, measured_counts)
        window, mean_counts = dw.append_counts(
            state.domains.window, state.domains.mean_counts, counts
        )
        report = training_report(
            model,
            of_domains,
            summed.clients,
            update.update_norm,
            domain_weights={"lambda": steps.mixture(lambda_), "alpha": scale(state.domains)},
        )
        domains = dw.DomainState(lambda_, window, mean_counts)
        return AgnosticFedAvgState(update.weights, update.optimizer_state, domains), report

    training = Exchange(
        name="training",
        prepare=prepare,
        client=AgnosticClient(model, p, part_of(options, LocalTrainingOptions), split),
        # sum_k beta^k = sum_i alpha_i N_t^i, which is sum_i lambda_i where a round is as expected.
        bounds=lambda limits: training_output_bounds(
            model, limits, _MAX_BETA, split.is_apart, expected_beta=1.0
        ),
    )
    return Algorithm(
        name="agnostic_fed_avg",
        initialize=initialize,
        exchanges=(training,),
        finish=finish,
        models=lambda state: {MAIN_MODEL: state.weights},
        quantities=training_quantities(
            model, domain_weights=LAMBDA_QUANTITIES, is_apart=split.is_apart
        ),
        client_data_spec=model.client_data_spec(),
        seed=problem.seed,
        lambda_set=steps.lambda_set,
    )


ALGORITHM = AlgorithmSpec(
    label="AgnosticFedAvg",
    paper="Ro et al. 2021, Algorithm 1",
    build=agnostic_fed_avg,
    options=AgnosticFedAvgOptions,
    traits=frozenset(
        {
            Trait.ONE_DOMAIN_IS_FED_AVG,
            Trait.PARTITION_BLIND,
            Trait.COHORT_TWICE_IS_ONCE,
            Trait.LEARNS_FROM_EVERY_DOMAIN,
        }
    ),
)


def build_agnostic_fed_avg(
    model: Model,
    num_domains: int,
    options: AgnosticFedAvgOptions = AgnosticFedAvgOptions(),
    aggregation: Aggregation = PlainSum(),
    seed: int = 0,
) -> tff.learning.templates.LearningProcess:
    """Returns AgnosticFedAvg as a TFF learning process.

    Its `next` takes the state and, for each client of the cohort, a mapping of "x", "y" and
    "domain_id" (int32 in [0, p)) with equal first dimensions. One broadcast and one aggregation are
    all the communication of a round.

    Args:
        model: The model to train; see `models.model_from_keras`.
        num_domains: p.
        options: Settings of the algorithm.
        aggregation: How client outputs are summed.
        seed: Of local shuffling and dropout.

    Raises:
        UserError: If the settings do not fit `num_domains`.
    """
    problem = Problem.of_numbered_domains(model, num_domains, seed)
    return build_learning_process(agnostic_fed_avg(problem, options), aggregation)
