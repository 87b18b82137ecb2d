"""Measures the duality gap of Stochastic-AFL on Adult, and plots it over the rounds.

    .venv/bin/python -m benchmarks.adult_saddle.measure DATA_DIR IMAGE

The script prints exact solutions, and the duality gap of the package's algorithm after 1, 2, 4 ...
rounds. See README.md in this folder.
"""

import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from benchmarks.adult_saddle.exact import TwoDomains, accuracies
from tff_agnostic.aggregations.aggregation import PlainSum
from tff_agnostic.algorithms import Problem
from tff_agnostic.algorithms.saddle_point import drawn_by_lambda
from tff_agnostic.algorithms.stochastic_afl import StochasticAflOptions, stochastic_afl
from tff_agnostic.base.later import tf
from tff_agnostic.computations.algorithm import Algorithm
from tff_agnostic.data.clients import even_partition
from tff_agnostic.models import logistic_regression
from tff_agnostic.program.options import flags
from tff_agnostic.runtimes.cohort import CohortRuntime
from tff_agnostic.tasks.adult import Table, read_adult

RIDGE = 1e-4


class Run(NamedTuple):
    """A training run, whose duality gap the script measures.

    Attributes:
        label: Label in the figure.
        num_clients: Number of clients among which the examples are split.
        cohort: Number of uniformly sampled clients per round.
        settings: Settings of `StochasticAflOptions`.
        arguments: Additional arguments of `stochastic_afl`.
    """

    label: str
    rounds: int
    num_clients: int
    cohort: int
    settings: dict[str, Any]
    arguments: Mapping[str, Any] = types.MappingProxyType({})


_FAST = {"server_learning_rate": 3.0, "lambda_learning_rate": 1.0}
_DECAYING = {"decay": lambda t: tf.math.rsqrt(t)}
RUNS = (
    Run(
        "all rows, constant steps",
        2048,
        64,
        64,
        {"server_learning_rate": 1.0, "lambda_learning_rate": 0.1},
    ),
    Run(
        "1 row in 100, per-domain gradient, steps / sqrt(t)",
        8192,
        1000,
        10,
        _FAST,
        _DECAYING,
    ),
    Run(
        "1 row in 100, weighted gradient, steps / sqrt(t)",
        8192,
        1000,
        10,
        _FAST,
        {**_DECAYING, "weights_gradient": drawn_by_lambda},
    ),
)


def binary(weights: list[np.ndarray]) -> np.ndarray:
    """Converts softmax weights of two classes to the binary model's weights [d + 1]."""
    kernel, bias = (np.asarray(w, np.float64) for w in weights)
    return np.append(kernel[:, 1] - kernel[:, 0], bias[1] - bias[0])


def dealt(table: Table, num_clients: int) -> list[dict[str, np.ndarray]]:
    """Splits examples at random into clients of equal size."""
    x, y, domain_id = table
    parts = even_partition(len(y), num_clients, np.random.default_rng(0))
    return [{"x": x[rows], "y": y[rows], "domain_id": domain_id[rows]} for rows in parts]


def build(table: Table, share: float, settings: Mapping[str, Any], **arguments: Any) -> Algorithm:
    """Returns Stochastic-AFL for Adult with the ridge, starting from lambda = (1/2, 1/2).

    Args:
        table: The training examples.
        share: Expected fraction of all examples in a round.
        settings: Settings of `StochasticAflOptions`.
        **arguments: Additional arguments of `stochastic_afl`.
    """
    counts = tuple(share * np.bincount(table[2]).astype(float))
    # The ridge of a softmax must be twice the binary model's; see exact.py.
    model = logistic_regression(table[0].shape[1], 2, 2 * RIDGE)
    options = flags.build(StochasticAflOptions, dict(lambda_initial=(0.5, 0.5), **settings))
    problem = Problem(model, ("doctorate", "non-doctorate"), 0, counts)
    return stochastic_afl(problem, options, **arguments)


def gaps(table: Table, game: TwoDomains, run: Run, runtime: CohortRuntime) -> dict[int, float]:
    """Returns the duality gap of the mean iterates, keyed by round: 1, 2, 4 ..."""
    clients = dealt(table, run.num_clients)
    draw = np.random.default_rng(1)
    algorithm = build(table, run.cohort / run.num_clients, run.settings, **run.arguments)
    training = runtime.training(algorithm, PlainSum())
    state = training.initialize()
    result: dict[int, float] = {}
    for t in range(1, run.rounds + 1):
        cohort = draw.choice(run.num_clients, run.cohort, replace=False)
        state, _ = training.next(state, [clients[k] for k in sorted(cohort)])
        if t & (t - 1) == 0:
            averages = state.algorithm
            w, lambda_ = binary(averages.mean_weights), float(averages.mean_lambda[0])
            result[t] = game.gap(w, lambda_)
            losses = game.losses(w)
            print(f"| {t} | {result[t]:.5f} | {losses[0]:.4f}, {losses[1]:.4f} | {lambda_:.3f} |")
    return result


def figure(curves: dict[str, dict[int, float]]) -> Figure:
    """Plots the gaps over the rounds, with logarithmic axes."""
    result = Figure(figsize=(7, 4.5), layout="constrained")
    axes = result.subplots()
    for i, (label, gap) in enumerate(curves.items()):
        axes.loglog(list(gap), list(gap.values()), "o-", ms=3, color=f"C{i}", label=label)
    rounds = np.array([1.0, max(max(gap) for gap in curves.values())])
    axes.loglog(rounds, rounds**-0.5, "k--", label="1 / sqrt(T)")
    axes.set(xlabel="rounds T", ylabel="duality gap of the mean iterates")
    axes.grid(alpha=0.3)
    axes.legend()
    return result


def _print_exact(game: TwoDomains, table: Table, test: Table) -> None:
    share = float(np.mean(table[2] == 0))
    rows = [("non-doctorate only", 0.0), ("training mixture", share), ("half", 0.5)]
    rows.append(("doctorate only", 1.0))
    saddles = [(name, game.least(lambda_)) for name, lambda_ in rows]
    saddle = game.saddle()
    saddles.append(("saddle", saddle))
    print("| lambda | | L doctorate | L non | objective | test: all | doctorate | non |")
    print("|---|---|---|---|---|---|---|---|")
    for name, at in saddles:
        numbers = " | ".join(f"{100 * a:.2f}" for a in accuracies(at.w, *test))
        print(
            f"| {name} | {at.lambda_:.4f} | {at.losses[0]:.4f} | {at.losses[1]:.4f} "
            f"| {at.value:.5f} | {numbers} |"
        )
    print(f"\ngap at the saddle: {game.gap(saddle.w, saddle.lambda_):.1e}")


def main(data_dir: str, image: str) -> None:
    """Prints the tables and writes the figure."""
    table, test = (read_adult(Path(data_dir) / name) for name in ("adult.data", "adult.test"))
    game = TwoDomains(*table, RIDGE)
    _print_exact(game, table, test)
    curves = {}
    with CohortRuntime() as runtime:
        for run in RUNS:
            print(f"\n{run.label}\n\n| T | gap | losses at w_A | lambda_A of doctorates |")
            print("|---|---|---|---|")
            curves[run.label] = gaps(table, game, run, runtime)
    figure(curves).savefig(image, dpi=120)


if __name__ == "__main__":
    main(*sys.argv[1:])
