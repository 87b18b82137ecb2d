"""AgnosticFedAvg: Algorithm 1 of Ro et al. 2021, "Communication-Efficient Agnostic FedAvg".

Each client sends one weighted model delta together with the loss sum and the example count of every
domain. The server averages the deltas and moves lambda towards the domains with the largest losses.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any, Callable, NamedTuple, Optional

import numpy as np

from tff_agnostic import computations as core
from tff_agnostic.algorithms import fed_avg
from tff_agnostic.algorithms.saddle_point import running_mean
from tff_agnostic.base.errors import UserError
from tff_agnostic.base.later import tf
from tff_agnostic.base.options import OptionError, Within
from tff_agnostic.domain_weights.ascent import (
    ALPHA,
    LAMBDA,
    MEAN_LAMBDA,
    LambdaOptions,
    Slope,
    lambda_ascent,
)
from tff_agnostic.domain_weights.excess import excess_losses

# Maximum size of the window of example counts, which every checkpoint contains.
_MAX_WINDOW_BYTES = 64 * 2**20


@dataclasses.dataclass(frozen=True)
class AgnosticFedAvgOptions(core.AveragingOptions, LambdaOptions, core.LossOptions):
    """Options of AgnosticFedAvg.

    Attributes:
        window: Number r of recent rounds whose mean example counts divide lambda.

    Source:
        Ro et al. 2021, Algorithm 1.

    Example:
        >>> options = AgnosticFedAvgOptions(client=ClientTraining(epochs=2), window=5)
        >>> options.client.epochs, options.lambda_.learning_rate
        (2, 0.01)
    """

    window: Annotated[int, Within(least=1)] = 1


class MeanLambda(NamedTuple):
    """The mean of lambda over the rounds, which is steadier than its last value.

    Attributes:
        mean: Mean of lambda_1 to lambda_t, float32 [p]; lambda_0 before the first round.
        rounds: Number t of rounds with examples, int32.
    """

    mean: tf.Tensor
    rounds: tf.Tensor


class Domains(NamedTuple):
    """The server's memory of the domains.

    Attributes:
        lambda_: Coordinates of lambda_t in the set Lambda, float32 [p]; [q] if Lambda is the convex
            hull of q mixtures.
        window: Example counts N_{t-r+1}, ..., N_t, oldest first, float32 [r, p].
        mean_counts: Mean of the window, always positive, float32 [p]; see `slide`.
        mean_lambda: `MeanLambda` if lambda follows excess losses; () otherwise.
    """

    lambda_: tf.Tensor
    window: tf.Tensor
    mean_counts: tf.Tensor
    mean_lambda: Any = ()


def client_work(
    broadcast: core.Broadcast,
    clients: core.Clients,
    *,
    model: core.Model,
    num_domains: int,
    training: core.ClientTraining,
    holdout: core.Holdout,
) -> core.TrainingOutput:
    """Runs procedure CLIENT of Algorithm 1."""
    weights, alpha = broadcast
    # Lines 2 to 6: L^k and N^k at w, and the examples to train on.
    sums, trained_on = core.measure_domains(model, num_domains, weights, clients, holdout)
    # Line 6: beta^k = sum_i alpha_i N_i^k
    beta = clients.map(lambda n_k: core.client_weight(alpha, n_k), sums.trained_counts)
    # Lines 7 to 12: w^k, from E epochs of SGD on the examples weighted by alpha.
    trained, _ = core.local_sgd(model, training, weights, trained_on, alpha, beta)
    # Line 13: beta^k (w - w^k), beta^k, L^k, N^k; zeros if any value is not finite.
    return core.training_output(weights, trained, beta, sums, clients)


def agnostic_fed_avg(
    problem: core.Problem,
    options: AgnosticFedAvgOptions,
    *,
    slope: Optional[Slope] = None,
    initial_counts: Optional[Sequence[float]] = None,
) -> core.Algorithm:
    """Returns AgnosticFedAvg; `core.averaging` computes line 9, w_t = sum_k beta^k w^k / beta_t.

    Args:
        slope: Slope of an additional term of lambda's objective; see `lambda_ascent`.
        initial_counts: N_0, p positive numbers that fill the window before the first round; if
            None, the expected counts per round. With r = 1 only their ratios matter. With r > 1
            their size matters too, because they are averaged with real counts for r - 1 rounds.

    Source:
        Ro et al. 2021, Algorithm 1.

    Example:
        >>> problem, clients = classification(network, arrays, ["common", "rare"])
        >>> algorithm = agnostic_fed_avg(problem, AgnosticFedAvgOptions())
        >>> algorithm.initialize().memory.lambda_.numpy()  # [p]
        array([0.5, 0.5], dtype=float32)
    """
    holdout = options.holdout(problem.seed)
    ascent = lambda_ascent(options.lambda_, problem.domain_names, problem.expected_counts, slope)
    if initial_counts is None and problem.expected_counts is not None:
        initial_counts = holdout.trained_part(problem.expected_counts, problem.expected_kept_out)
    counts_0 = first_counts(options.window, initial_counts, problem.num_domains)
    baselines = options.lambda_.known_baselines(problem.num_domains)

    def memory() -> Domains:
        # Line 2: lambda_0, N_0
        lambda_ = np.array(ascent.initial, np.float32)
        mean = MeanLambda(ascent.mixture(lambda_), np.zeros([], np.int32))
        window = np.tile(counts_0, [options.window, 1])
        return Domains(lambda_, window, counts_0, () if baselines is None else mean)

    def scale(domains: Domains) -> tf.Tensor:
        # Line 4: alpha_t = lambda_{t-1} / (sum_{j=t-r}^{t-1} N_j / r)
        return ascent.mixture(domains.lambda_) / domains.mean_counts

    def remember(domains: Domains, summed: core.TrainingOutput) -> Domains:
        # Line 10: N_t = sum_k N^k
        sums = summed.domain_sums
        counts = tf.cast(sums.trained_counts, tf.float32)
        # Line 11: L = sum_k L^k / N_t over the measured examples, minus the baselines b, if any.
        losses = excess_losses(sums.mean_losses(), baselines, sums.counts > 0)
        # Line 12:
        # lambda_t = lambda_{t-1} exp(gamma_lambda L) / sum_i lambda_{t-1}^i exp(gamma_lambda L_i)
        lambda_ = ascent.next(domains.lambda_, losses, *sums.trained_and_measured())
        window, mean_counts = slide(domains.window, domains.mean_counts, counts)
        mean = domains.mean_lambda
        if baselines is not None:
            has_examples = tf.reduce_sum(counts) > 0
            t = mean.rounds + tf.cast(has_examples, tf.int32)
            mean = MeanLambda(running_mean(mean.mean, ascent.mixture(lambda_), t, has_examples), t)
        return Domains(lambda_, window, mean_counts, mean)

    domain_columns = [
        core.Column(LAMBDA, lambda r: ascent.mixture(r.after.memory.lambda_)),
        core.Column(ALPHA, lambda r: scale(r.before.memory)),
    ]
    if baselines is not None:
        mean = core.Column(MEAN_LAMBDA, lambda r: r.after.memory.mean_lambda.mean)
        domain_columns.append(mean)
    # If clients measure losses in the first epoch, they run FedAvg's work with this alpha.
    is_one_pass = options.is_measured_while_training
    work: Callable[..., Any] = client_work
    if is_one_pass:
        work = fed_avg.client_work
    return core.averaging(
        "agnostic_fed_avg",
        problem,
        options,
        work,
        static={"proximal": 0.0} if is_one_pass else {"holdout": holdout},
        memory=memory,
        send=scale,
        remember=remember,
        # sum_k beta^k = sum_i alpha_i N_t^i; with the expected counts this is sum_i lambda_i = 1.
        bounds=core.training_bounds(
            problem.model, core.MAX_ROUND_SHARE, expected_weight=1.0, holdout=holdout
        ),
        domain_columns=domain_columns,
        is_held_out=holdout.is_active,
        while_training=is_one_pass,
        lambda_set=ascent.lambda_set,
    )


def first_counts(window: int, counts: Optional[Sequence[float]], p: int) -> np.ndarray:
    """Returns N_0, float32 [p]; 1 for each domain if no counts are known."""
    max_rounds = _MAX_WINDOW_BYTES // (np.dtype(np.float32).itemsize * p)
    if window > max_rounds:
        expected = f"at most {max_rounds} rounds of {p} domains each, which make "
        raise OptionError("window", f"{expected}{_MAX_WINDOW_BYTES // 2**20} MiB", window)
    counts_0 = np.ones([p]) if counts is None else np.asarray(counts, np.float64)
    if counts_0.shape != (p,) or not np.all((counts_0 > 0) & np.isfinite(counts_0)):
        raise UserError(
            f"initial_counts: expected {p} positive finite numbers, one per domain, found "
            f"{counts_0.tolist()}"
        )
    return counts_0.astype(np.float32)


def slide(
    window: tf.Tensor, mean_counts: tf.Tensor, counts: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the window after N_t has replaced its oldest counts, and the window's mean.

    A domain without examples in the entire window keeps its last positive mean; in the paper its
    mean is 0, and alpha is undefined. A round without examples changes nothing.
    """
    slid = tf.concat([window[1:], counts[tf.newaxis]], axis=0)
    # The mean over the window is (1 / r) sum_{j=t-r+1}^t N_j.
    mean = tf.reduce_mean(slid, axis=0)
    mean = tf.where(mean > 0, mean, mean_counts)
    has_examples = tf.reduce_sum(counts) > 0
    return tf.where(has_examples, slid, window), tf.where(has_examples, mean, mean_counts)


ALGORITHM = core.AlgorithmSpec(
    label="AgnosticFedAvg",
    paper="Ro et al. 2021, Algorithm 1",
    build=agnostic_fed_avg,
    options=AgnosticFedAvgOptions,
    traits=frozenset(core.Trait) - {core.Trait.DOMAIN_BLIND},
    paper_settings={
        **core.AVERAGE,  # line 9
        "client_normalizer": "client",  # CLIENT line 10
        "measured_share": 0.0,
        "measure_losses": "before_training",  # CLIENT lines 2 to 6
        "lambda_update": "exponentiated_gradient",  # line 12
        "lambda_set": "simplex",
        "lambda_absent": "zero",  # section 4: "we set L to zero for that round"
    },
)


def build_agnostic_fed_avg(
    model: core.Model,
    num_domains: int,
    options: AgnosticFedAvgOptions = AgnosticFedAvgOptions(),
    aggregation: core.Aggregation = core.PlainSum(),
    seed: int = 0,
) -> core.LearningProcess:
    """Returns AgnosticFedAvg as a TFF learning process with one broadcast and one aggregation.

    Its `next` takes the state and, for each client of the cohort, a mapping of "x", "y" and
    "domain_id" (int32 in [0, p)) with equal first dimensions.

    Args:
        model: The model to train; see `models.model_from_keras`.
        num_domains: Number of domains p.
        options: Options of the algorithm.
        aggregation: The aggregation of client outputs.
        seed: Seed of local shuffling and dropout.
    """
    problem = core.Problem.numbered(model, num_domains, seed)
    algorithm = core.with_rate_columns(agnostic_fed_avg(problem, options), options)
    return core.build_learning_process(algorithm, aggregation)
