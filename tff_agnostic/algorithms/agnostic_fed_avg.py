"""AgnosticFedAvg: Algorithm 1 of Ro et al. 2021, with the window of counts that scales lambda.

The arithmetic is in pure functions on float32 vectors [p], one entry per domain, usable with NumPy
arrays.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_agnostic.aggregations.aggregation import Aggregation, PlainSum
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
    training_outputs,
)
from tff_agnostic.computations.clients import ClientGroup, PerClient
from tff_agnostic.computations.domain_losses import (
    DomainLossOptions,
    ExampleSplit,
    mean_domain_losses,
    measured,
)
from tff_agnostic.computations.local_training import LocalTrainingOptions, local_training
from tff_agnostic.computations.server import (
    ServerOptimizerOptions,
    as_tensors,
    average_and_apply,
    initial_training_state,
    training_quantities,
    training_report,
)
from tff_agnostic.computations.tff_process import build_learning_process
from tff_agnostic.domain_weights.ascent import (
    LAMBDA_QUANTITIES,
    LambdaOptions,
    LambdaSteps,
    lambda_steps,
    per_domain,
)
from tff_agnostic.errors import UserError
from tff_agnostic.models.model import Model, ModelWeights
from tff_agnostic.settings import part_of, setting

# A client's weight is its share of the round, about 1 / c; more when a domain was rarer in the
# window than it is on the client.
_MAX_BETA = 10.0
# The window is part of the server's state, and so of every checkpoint.
_MAX_WINDOW_BYTES = 64 * 2**20


@dataclasses.dataclass(frozen=True)
class DomainWeightsOptions(LambdaOptions):
    """How lambda moves, and what it is scaled by.

    Attributes:
        window: r, the number of rounds whose counts scale lambda.
        initial_domain_counts: N_0, p positive numbers that fill the window before the first round.
            With r = 1 only their ratios matter, and only in the first round; with r > 1 they stand
            beside real counts for r - 1 rounds more, so that their size matters too.
    """

    window: int = setting(1, "r, rounds whose counts scale lambda.", at_least=1)
    initial_domain_counts: Optional[tuple[float, ...]] = setting(
        None,
        "N_0, comma-separated; if not given, the counts that a round is expected to have, from the "
        "totals over all training clients.",
    )


@dataclasses.dataclass(frozen=True)
class AgnosticFedAvgOptions(
    LocalTrainingOptions, ServerOptimizerOptions, DomainWeightsOptions, DomainLossOptions
):
    """Settings: of clients' training, of the server's optimizer, of lambda and of its losses."""


class DomainState(NamedTuple):
    """What the server remembers of the domains between rounds.

    Attributes:
        lambda_: Domain weights lambda_t, a point of Lambda by its coordinates, which are lambda_t
            itself but in a hull; float32 [p], in a hull of q mixtures [q].
        window: Examples per domain of the last r rounds, oldest first, float32 [r, p].
        mean_counts: Mean of the window per domain or, for a domain absent from the whole window,
            its last positive mean; always positive, float32 [p].
    """

    lambda_: tf.Tensor
    window: tf.Tensor
    mean_counts: tf.Tensor


class AgnosticFedAvgState(NamedTuple):
    """What the server remembers.

    Attributes:
        weights: w_t.
        optimizer_state: State of the server optimizer.
        domains: lambda_t, the window of counts, and their mean.
    """

    weights: ModelWeights
    optimizer_state: Any
    domains: DomainState


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
    domains_0 = initial_domain_state(options, steps, split.trained_of(problem.expected_counts))

    def initialize() -> AgnosticFedAvgState:
        # w_0, lambda_0, N_0
        return AgnosticFedAvgState(
            *initial_training_state(model, optimizer), domains=as_tensors(domains_0)
        )

    def scale(domains: DomainState) -> tf.Tensor:
        # alpha_t = lambda_{t-1} / (sum_{j=t-r}^{t-1} N_j / r)
        return scaling_vector(steps.mixture(domains.lambda_), domains.mean_counts)

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
        window, mean_counts = append_counts(state.domains.window, state.domains.mean_counts, counts)
        report = training_report(
            model,
            of_domains,
            summed.clients,
            update.update_norm,
            domain_weights={"lambda": steps.mixture(lambda_), "alpha": scale(state.domains)},
        )
        domains = DomainState(lambda_, window, mean_counts)
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


def scaling_vector(lambda_: tf.Tensor, mean_counts: tf.Tensor) -> tf.Tensor:
    """Returns alpha_t = lambda_{t-1} / mean of the window (SERVER line 4)."""
    return lambda_ / mean_counts


def append_counts(
    window: tf.Tensor, mean_counts: tf.Tensor, counts: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Slides N_t into the window and updates the mean counts.

    The paper leaves a domain that is absent from the whole window at 0/0; its last positive mean
    is kept instead. A round without any example leaves everything as it was.
    """
    slid = tf.concat([window[1:], counts[tf.newaxis]], axis=0)
    mean = tf.reduce_mean(slid, axis=0)
    any_examples = tf.reduce_sum(counts) > 0
    new_mean = tf.where(mean > 0, mean, mean_counts)
    return tf.where(any_examples, slid, window), tf.where(any_examples, new_mean, mean_counts)


def initial_domain_state(
    options: DomainWeightsOptions,
    steps: LambdaSteps,
    expected_counts: Optional[Sequence[float]] = None,
) -> DomainState:
    """Returns lambda_0 and a window filled with N_0.

    Args:
        options: The settings.
        steps: What moves lambda.
        expected_counts: N_0 where the settings have none; ones if None.

    Raises:
        UserError: If there are more or fewer initial counts than domains, a count is not positive,
            or the window is too large to be part of every checkpoint.
    """
    p = len(steps.training_mixture)
    most_rounds = _MAX_WINDOW_BYTES // (np.dtype(np.float32).itemsize * p)
    if options.window > most_rounds:
        raise UserError(
            f"--window: expected at most {most_rounds} rounds of {p} domains each, which make "
            f"{_MAX_WINDOW_BYTES // 2**20} MiB, found {options.window}"
        )
    given = options.initial_domain_counts
    counts = per_domain(
        "--initial_domain_counts", expected_counts if given is None else given, p, default=1.0
    )
    if np.any(counts <= 0):
        raise UserError(
            f"--initial_domain_counts: expected positive numbers, found {counts.tolist()}"
        )
    return DomainState(
        lambda_=np.array(steps.initial, np.float32),
        window=np.tile(counts.astype(np.float32), [options.window, 1]),
        mean_counts=counts.astype(np.float32),
    )
