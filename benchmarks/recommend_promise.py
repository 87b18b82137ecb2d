"""Measures the gains of methods that `./run recommend` chooses, on synthetic problems.

    .venv/bin/python -m benchmarks.recommend_promise --problems=200

Each problem is a store with three domains for a linear model of two classes. The problem's number
and kind are the seed. The kinds are:

- rare: one domain has different true weights, and few clients;
- hard: one domain has different true weights, and a smaller margin;
- noisy: in one domain, four of ten labels are wrong, which no method can fix;
- both: one domain is rare, and another domain is noisy;
- nothing: all domains have the same distribution.

The command's search chooses a method on 80 validation clients per domain. NumPy code then evaluates
each method's best setting on 400 fresh clients per domain. The results are the gains over FedAvg in
the worst domain, for the chosen method and for the portfolio's best method. The gains on validation
clients are also saved. Problems that are already in the output file are skipped.
"""

import argparse
import contextlib
import dataclasses
import io
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from tabulate import tabulate

from benchmarks.hard_domains.digits import DIGITS_MODEL
from benchmarks.scoreboard import recommend_arguments
from tff_agnostic.base.files import finite_or_none
from tff_agnostic.base.later import tf
from tff_agnostic.data.store_writer import StoreWriter
from tff_agnostic.program.commands.command_line import RunArguments
from tff_agnostic.program.options.process import StopRequest
from tff_agnostic.program.runs.train_run import started
from tff_agnostic.program.studies.choice import attained, chosen
from tff_agnostic.program.studies.comparison import BASELINE
from tff_agnostic.program.studies.gains import Gain
from tff_agnostic.program.studies.portfolio import SearchResults
from tff_agnostic.program.studies.recommend import RecommendRequest, parse_request
from tff_agnostic.program.studies.runset import RunSet

KINDS = ("rare", "hard", "noisy", "both", "nothing")
DOMAINS = ("a", "b", "c")
_FEATURES = 8
_EXAMPLES = 20
ROUNDS, _RATE = 60, 1.0
_TRIES, _TRIALS = 2, 5
# Numbers of clients per domain: validation clients, test clients of the command, and fresh clients
# on which gains are measured.
HELDOUT, TEST, FRESH = 80, 3, 400
_REPLICATES = 1000


class Domain(NamedTuple):
    """A domain of a problem.

    Attributes:
        weights: Weights of the true scores, [features].
        margin: Factor of the true scores. With a small margin, labels are less certain.
        noise: Fraction of wrong labels.
        clients: Number of training clients.
    """

    weights: np.ndarray
    margin: float
    noise: float
    clients: int


def problem(kind: str, rng: np.random.Generator) -> list[Domain]:
    """Returns the domains of a random problem of this kind."""
    shared = rng.normal(size=_FEATURES)
    shared /= np.linalg.norm(shared)
    other = rng.normal(size=_FEATURES)
    other -= shared * (other @ shared)
    # With weights at an angle, one model fits both domains, but neither as well as its own model.
    turned = shared * rng.uniform(-0.3, 0.5) + other / np.linalg.norm(other)
    margin, many = rng.uniform(3, 6), int(rng.integers(30, 60))
    few = int(rng.integers(4, 9))
    usual = Domain(shared, margin, 0.0, many)
    apart = usual._replace(weights=turned / np.linalg.norm(turned))
    noisy = usual._replace(noise=0.4)
    last = {
        "rare": [usual, apart._replace(clients=few)],
        "hard": [usual, apart._replace(margin=margin / 3, clients=many // 3)],
        "noisy": [usual, noisy],
        "both": [noisy, apart._replace(clients=few)],
        "nothing": [usual, usual],
    }
    return [usual, *last[kind]]


class Drawn(NamedTuple):
    """Examples of several clients.

    Attributes:
        x: Features, [clients, examples, features].
        labels: Labels, 0 or 1, [clients, examples].
    """

    x: np.ndarray
    labels: np.ndarray


def drawn(domain: Domain, clients: int, rng: np.random.Generator) -> Drawn:
    """Draws clients of a domain, whose true weights are close to the domain's weights."""
    x = rng.normal(size=(clients, _EXAMPLES, _FEATURES))
    client_weights = domain.weights + rng.normal(scale=0.1, size=(clients, 1, _FEATURES))
    scores = domain.margin * np.sum(x * client_weights, axis=-1)
    labels = rng.random(scores.shape) < 1 / (1 + np.exp(-scores))
    labels ^= rng.random(scores.shape) < domain.noise
    return Drawn(x.astype(np.float32), labels.astype(np.int64))


def add_clients(writer: StoreWriter, domains: Sequence[Domain], rng: np.random.Generator) -> None:
    """Draws all clients of a problem, and adds their examples to a store."""
    for name, domain in zip(DOMAINS, domains):
        counts = {"train": domain.clients, "heldout": HELDOUT, "test": TEST}
        for split, count in counts.items():
            clients = drawn(domain, count, rng)
            names = np.repeat([f"{name}_{split}_{k:03d}" for k in range(count)], _EXAMPLES)
            features = {
                "x": clients.x.reshape(-1, _FEATURES),
                "label": clients.labels.reshape(-1),
                "domain": pa.array([name] * len(names)),
            }
            writer.add(pa.array([split] * len(names)), pa.array(names), features)


def accuracies(kernel: np.ndarray, bias: np.ndarray, fresh: Sequence[Drawn]) -> np.ndarray:
    """Returns a linear model's accuracy on each client, [domains, clients]."""
    return np.array(
        [np.mean(np.argmax(domain.x @ kernel + bias, -1) == domain.labels, -1) for domain in fresh]
    )


def worst_gain(
    ours: np.ndarray, theirs: np.ndarray, rng: np.random.Generator
) -> tuple[float, tuple[float, float]]:
    """Returns a method's gain over a baseline in the worst domain, with its 95% interval.

    The interval is a bootstrap over fresh clients, for fixed models.

    Args:
        ours: Accuracies of the method, [trials, domains, clients].
        theirs: Accuracies of the baseline, from trials with the same seeds.
    """

    def gain(weights: np.ndarray) -> np.ndarray:
        worst = [np.einsum("tdc,rdc->rtd", side, weights).min(-1) for side in (ours, theirs)]
        return np.mean(worst[0] - worst[1], axis=-1)

    _, domains, clients = ours.shape
    even = np.full(clients, 1 / clients)
    weights = rng.multinomial(clients, even, size=(_REPLICATES, domains)) / clients
    low, high = np.quantile(gain(weights), [0.025, 0.975])
    return float(gain(np.broadcast_to(even, (1, domains, clients)))[0]), (float(low), float(high))


def run_problem(number: int, kind: str, folder: Path) -> dict[str, Any]:
    """Runs the search on a problem, and returns its choice and each method's gain over FedAvg."""
    rng = np.random.default_rng([number, KINDS.index(kind)])
    data, model = folder / "clients.store", folder / "model.py"
    model.write_text(DIGITS_MODEL)
    domains = problem(kind, rng)
    with StoreWriter(data) as writer:
        add_clients(writer, domains, rng)
        writer.finish("features", class_names=("no", "yes"))
    began, used = time.monotonic(), time.process_time()
    settings = {
        "task": "custom",
        "data": data,
        "model": model,
        "rounds": ROUNDS,
        "clients_per_round": 30,
        "evaluate_every": ROUNDS,
        "client_learning_rate": _RATE,
        "tries": _TRIES,
        "trials": _TRIALS,
    }
    runs = folder / "runs"
    with contextlib.redirect_stdout(io.StringIO()):
        asked, search = _searched(recommend_arguments(settings), runs)
    choice = chosen(search.judged) or BASELINE
    seconds, processor_seconds = time.monotonic() - began, time.process_time() - used
    fresh = [drawn(domain, FRESH, rng) for domain in domains]
    tried = {
        name: float(attained(search.tried, name, asked.objective).values[0])
        for name in search.tried.trials
    }
    by_row = {row: _fresh_accuracies(runs, row, tried, fresh) for row in search.changes}
    gains = {}
    for row in sorted(by_row.keys() - {BASELINE}):
        both = min(len(by_row[row]), len(by_row[BASELINE]))
        gains[row] = worst_gain(by_row[row][:both], by_row[BASELINE][:both], rng)
    chosen_gain = gains.get(choice)
    return {
        "number": number,
        "kind": kind,
        "choice": choice,
        "gains": {row: gain for row, (gain, _) in gains.items()},
        "interval": None if chosen_gain is None else chosen_gain[1],
        "judged": {row: validated(judged.gain) for row, judged in search.judged.items()},
        "tried": tried,
        "seconds": seconds,
        "processor_seconds": processor_seconds,
    }


def validated(gain: Gain) -> dict[str, Any]:
    """Returns a gain on validation clients as JSON values, from which other rules could choose."""
    spread = {} if gain.spread is None else dataclasses.asdict(gain.spread)
    return {name: finite_or_none(value) for name, value in {"mean": gain.mean, **spread}.items()}


def _searched(given: RunArguments, folder: Path) -> tuple[RecommendRequest, SearchResults]:
    """Runs the search of `recommend`, without the final runs on test clients.

    The final runs would give the same models, as they have the search's seeds and training clients.
    """
    request = parse_request(given)
    name = request.first.config.runtime
    with StopRequest() as stop, started(name, given.runtime_options(name)) as runtime:
        trainer = request.trainer(runtime, stop)
        with RunSet(folder, request.identity, trainer, True, stop) as runs:
            return request, request.search(runs, trainer).run()


def _fresh_accuracies(
    folder: Path, row: str, tried: Mapping[str, float], fresh: Sequence[Drawn]
) -> np.ndarray:
    """Returns the accuracies of a method's best setting, [trials, domains, clients]."""
    settings = {name: value for name, value in tried.items() if name.rpartition("-")[0] == row}
    best = max(settings, key=lambda name: settings[name])
    paths = sorted((folder / "runs" / "search" / best).glob("trial_*/run/model/model.keras"))
    models = [tf.keras.models.load_model(path) for path in paths]
    weights = [model.get_weights() for model in models]
    return np.array([accuracies(kernel, bias, fresh) for kernel, bias in weights])


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """Returns a table with a row per kind of problem."""
    rows = []
    for kind in (*KINDS, None):
        selected = [r for r in results if kind in (None, r["kind"])]
        if not selected:
            continue
        ours = np.array([r["gains"].get(r["choice"], 0.0) for r in selected])
        best = np.array([max(0.0, *r["gains"].values()) for r in selected])
        worse = np.mean([r["interval"] is not None and r["interval"][1] < 0 for r in selected])
        always = [
            100 * np.mean([r["gains"].get(row, 0.0) for r in selected])
            for row in ("uniform", "frozen")
        ]
        rows.append(
            [
                kind or "all",
                len(selected),
                np.mean([r["choice"] == "fed_avg" for r in selected]),
                100 * ours.mean(),
                100 * best.mean(),
                *always,
                100 * max(0.0, -ours.min()),
                worse,
            ]
        )
    headings = [
        *("kind", "problems", "FedAvg chosen", "gain", "best row's gain", "always uniform"),
        *("always agnostic", "largest loss", "worse than FedAvg"),
    ]
    return tabulate(rows, headings, "github", floatfmt=".2f")


def main() -> None:
    """Runs the missing problems, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", type=int, default=200)
    parser.add_argument("--output", type=Path, default=Path(__file__).with_suffix(".jsonl"))
    given = parser.parse_args()
    lines = given.output.read_text().splitlines() if given.output.exists() else []
    results = [json.loads(line) for line in lines]
    done = {(r["number"], r["kind"]) for r in results}
    for k in range(given.problems):
        number, kind = k // len(KINDS), KINDS[k % len(KINDS)]
        if (number, kind) in done:
            continue
        with tempfile.TemporaryDirectory() as folder:
            result = run_problem(number, kind, Path(folder))
        results.append(result)
        with given.output.open("a") as file:
            file.write(f"{json.dumps(result)}\n")
        ours, best = (result["gains"].get(result["choice"], 0.0), max(result["gains"].values()))
        print(
            f"{kind} {number}: {result['choice']}, gain {ours:.3f}, best row {best:.3f}, "
            f"{result['seconds']:.0f} s",
            flush=True,
        )
    print(table(results))


if __name__ == "__main__":
    main()
