"""AgnosticFedAvg: Algorithm 1 of Ro et al. 2021, "Communication-Efficient Agnostic FedAvg".

Each client sends one weighted model delta together with the loss sum and the example count of every
domain. The server averages the deltas and moves lambda towards the domains with the largest losses.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, Optional, Union

import numpy as np

from tff_agnostic import computations as core
from tff_agnostic.algorithms.saddle_point import running_mean
from tff_agnostic.domain_weights.ascent import (
    ALPHA,
    LAMBDA,
    MEAN_LAMBDA,
    LambdaOptions,
    lambda_ascent,
    per_domain,
)
from tff_agnostic.domain_weights.excess import BaselineOptions, excess_losses
from tff_agnostic.errors import UserError
from tff_agnostic.later import tf
from tff_agnostic.settings import part_of, setting

# beta^k is the client's share of the round, about 1 / c; it is larger where a domain was rarer in
# the window than it is on the client.
_MAX_BETA = 10.0
# The window is part of the server's state, and so of every checkpoint.
_MAX_WINDOW_BYTES = 64 * 2**20


@dataclasses.dataclass(frozen=True)
class WindowOptions(LambdaOptions):
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
    core.LocalTrainingOptions,
    core.ServerOptimizerOptions,
    WindowOptions,
    BaselineOptions,
    core.HoldoutOptions,
):
    """Settings: of clients' training, of the server's optimizer, of lambda and of its losses."""


class MeanLambda(NamedTuple):
    """The mean of lambda over the rounds, which is steadier than its last value.

    Attributes:
        mean: Of lambda_1 to lambda_t; lambda_0 before. float32 [p].
        rounds: t, the rounds with examples, int32.
    """

    mean: tf.Tensor
    rounds: tf.Tensor


class DomainState(NamedTuple):
    """What the server remembers of the domains.

    Attributes:
        lambda_: lambda_t by its coordinates in Lambda, which are lambda_t itself but in a hull;
            float32 [p], in a hull of q mixtures [q].
        window: N_{t-r+1}, ..., N_t, oldest first, float32 [r, p].
        mean_counts: Mean of the window, always positive, float32 [p]; see `slide`.
        mean_lambda: Where lambda follows excess losses; nothing elsewhere.
    """

    lambda_: tf.Tensor
    window: tf.Tensor
    mean_counts: tf.Tensor
    mean_lambda: Union[MeanLambda, tuple[()]] = ()


class AgnosticFedAvgState(NamedTuple):
    """What the server remembers.

    Attributes:
        weights: w_t.
        optimizer_state: State of the server optimizer.
        domains: lambda_t, the window of counts, and their mean.
    """

    weights: core.ModelWeights
    optimizer_state: Any
    domains: DomainState


def client_work(
    broadcast: core.TrainingBroadcast,
    clients: core.Clients,
    *,
    model: core.Model,
    num_domains: int,
    options: core.LocalTrainingOptions,
    holdout: core.Holdout,
) -> core.TrainingOutput:
    """CLIENT of Algorithm 1."""
    weights, alpha = broadcast
    # Lines 2 to 6: L^k and N^k at w, and the examples that are left to train on.
    sums, training = core.measure_domains(model, num_domains, weights, clients, holdout)
    # Line 6: beta^k = sum_i alpha_i N_i^k
    beta = clients.map(lambda n_k: core.client_weight(alpha, n_k), sums.trained_counts)
    # Lines 7 to 12: w^k, from E epochs of SGD on the examples weighted by alpha.
    trained, _ = core.local_sgd(model, options, weights, training, alpha, beta)
    # Line 13: beta^k (w - w^k), beta^k, L^k, N^k; zeros where any of it is not finite.
    return core.training_output(weights, trained, beta, sums, clients)


def agnostic_fed_avg(problem: core.Problem, options: AgnosticFedAvgOptions) -> core.Algorithm:
    """Returns AgnosticFedAvg."""
    model, optimizer = problem.model, options.build_server_optimizer(problem.model)
    holdout = options.holdout(problem.seed)
    steps = lambda_ascent(options, problem.domain_names, problem.expected_counts)
    counts_0 = initial_counts(options, problem, holdout)
    baselines = options.baselines(problem.num_domains)

    def initialize() -> AgnosticFedAvgState:
        # w_0, lambda_0, N_0
        coordinates = np.array(steps.initial, np.float32)
        mean: Any = ()
        if baselines is not None:
            mean = MeanLambda(steps.mixture(coordinates), np.zeros([], np.int32))
        domains = DomainState(
            lambda_=coordinates,
            window=np.tile(counts_0, [options.window, 1]),
            mean_counts=counts_0,
            mean_lambda=mean,
        )
        start = core.initial_model(model, optimizer)
        return AgnosticFedAvgState(*start, domains=core.as_tensors(domains))

    def scale(state: AgnosticFedAvgState) -> tf.Tensor:
        # Line 4: alpha_t = lambda_{t-1} / (sum_{j=t-r}^{t-1} N_j / r)
        return steps.mixture(state.domains.lambda_) / state.domains.mean_counts

    def broadcast(state: AgnosticFedAvgState) -> core.TrainingBroadcast:
        return core.TrainingBroadcast(state.weights, scale(state))

    def finish(state: AgnosticFedAvgState, summed: core.TrainingOutput) -> AgnosticFedAvgState:
        # Line 9: w_t = sum_k beta^k w^k / beta_t
        trained = core.average_and_apply(optimizer, state, summed.weighted_delta, summed.beta)
        # Line 10: N_t = sum_k N^k
        sums = summed.domain_sums
        counts = tf.cast(sums.trained_counts, tf.float32)
        # Line 11: L = sum_k L^k / N_t, of the examples that are measured; less b where there are
        # baselines, see `excess_losses`.
        losses = excess_losses(sums.mean_losses(), baselines, sums.counts > 0)
        # Line 12:
        # lambda_t = lambda_{t-1} exp(gamma_lambda L) / sum_i lambda_{t-1}^i exp(gamma_lambda L_i)
        lambda_ = steps.next(state.domains.lambda_, losses, *sums.trained_and_measured())
        window, mean_counts = slide(state.domains.window, state.domains.mean_counts, counts)
        mean = state.domains.mean_lambda
        if isinstance(mean, MeanLambda):
            has_examples = tf.reduce_sum(counts) > 0
            t = mean.rounds + tf.cast(has_examples, tf.int32)
            mean = MeanLambda(running_mean(mean.mean, steps.mixture(lambda_), t, has_examples), t)
        next_state: AgnosticFedAvgState = trained._replace(
            domains=DomainState(lambda_, window, mean_counts, mean)
        )
        return next_state

    training = core.CommunicationStep(
        name="training",
        broadcast=broadcast,
        client_work=core.HashablePartial(
            client_work,
            model=model,
            num_domains=problem.num_domains,
            options=part_of(options, core.LocalTrainingOptions),
            holdout=holdout,
        ),
        # sum_k beta^k = sum_i alpha_i N_t^i, which is sum_i lambda_i = 1 where a round has the
        # counts that it is expected to have.
        bounds=core.training_bounds(model, _MAX_BETA, expected_weight=1.0, holdout=holdout),
    )
    return core.Algorithm(
        name="agnostic_fed_avg",
        problem=problem,
        initialize=initialize,
        steps=(training,),
        finish=finish,
        columns=core.training_columns(
            model,
            holdout.is_active,
            domain_weights=[
                core.Column(LAMBDA, lambda r: steps.mixture(r.after.domains.lambda_)),
                core.Column(ALPHA, lambda r: scale(r.before)),
                *(
                    []
                    if baselines is None
                    else [core.Column(MEAN_LAMBDA, lambda r: r.after.domains.mean_lambda.mean)]
                ),
            ],
        ),
        lambda_set=steps.lambda_set,
    )


def initial_counts(
    options: AgnosticFedAvgOptions, problem: core.Problem, holdout: core.Holdout
) -> np.ndarray:
    """Returns N_0, float32 [p]."""
    p, given = problem.num_domains, options.initial_domain_counts
    most_rounds = _MAX_WINDOW_BYTES // (np.dtype(np.float32).itemsize * p)
    if options.window > most_rounds:
        raise UserError(
            f"--window: expected at most {most_rounds} rounds of {p} domains each, which make "
            f"{_MAX_WINDOW_BYTES // 2**20} MiB, found {options.window}"
        )
    if given is None and problem.expected_counts is not None:
        given = holdout.trained_part(problem.expected_counts, problem.expected_kept_out)
    counts = per_domain("--initial_domain_counts", given, p, 1.0)
    if np.any(counts <= 0):
        raise UserError(
            f"--initial_domain_counts: expected positive numbers, found {counts.tolist()}"
        )
    return counts.astype(np.float32)


def slide(
    window: tf.Tensor, mean_counts: tf.Tensor, counts: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the window with N_t in the place of its oldest counts, and its mean.

    A domain that is absent from the whole window keeps its last positive mean, where the paper has
    0/0. A round without examples changes nothing.

    Args:
        window: Float32 [r, p].
        mean_counts: Its mean before, float32 [p].
        counts: N_t, float32 [p].
    """
    slid = tf.concat([window[1:], counts[tf.newaxis]], axis=0)
    # (1 / r) sum_{j=t-r+1}^t N_j
    mean = tf.reduce_mean(slid, axis=0)
    mean = tf.where(mean > 0, mean, mean_counts)
    has_examples = tf.reduce_sum(counts) > 0
    return tf.where(has_examples, slid, window), tf.where(has_examples, mean, mean_counts)


ALGORITHM = core.AlgorithmSpec(
    label="AgnosticFedAvg",
    paper="Ro et al. 2021, Algorithm 1",
    build=agnostic_fed_avg,
    options=AgnosticFedAvgOptions,
    traits=frozenset(
        {
            core.Trait.ONE_DOMAIN_IS_FED_AVG,
            core.Trait.PARTITION_BLIND,
            core.Trait.COHORT_TWICE_IS_ONCE,
            core.Trait.LEARNS_FROM_EVERY_DOMAIN,
        }
    ),
    paper_settings={
        **core.AVERAGE,  # line 9
        "batch_normalizer": "client",  # CLIENT line 10
        "domain_loss_share": 0.0,
        "domain_weight_update": "exponentiated_gradient",  # line 12
        "lambda_set": "simplex",
        "absent_domains": "zero",  # section 4: "we set L to zero for that round"
        "chi2_weight": 0.0,
    },
)


def build_agnostic_fed_avg(
    model: core.Model,
    num_domains: int,
    options: AgnosticFedAvgOptions = AgnosticFedAvgOptions(),
    aggregation: core.Aggregation = core.PlainSum(),
    seed: int = 0,
) -> core.LearningProcess:
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
    """
    problem = core.Problem.of_numbered_domains(model, num_domains, seed)
    algorithm = core.with_rate_columns(agnostic_fed_avg(problem, options), options)
    return core.build_learning_process(algorithm, aggregation)
