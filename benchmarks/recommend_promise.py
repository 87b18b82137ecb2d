"""What `./run recommend` promises, on problems whose fresh clients are there to be asked.

    .venv/bin/python -m benchmarks.recommend_promise --problems=200 --output=promise.jsonl

Each problem is a store of three domains with a linear model for two classes, drawn from its number:

- rare: one domain has other weights, and few clients;
- hard: one domain has other weights, and a smaller margin;
- noisy: in one domain, labels are wrong in four of ten examples, and nothing helps it;
- both: one domain is rare, another one noisy;
- nothing: all domains are alike.

The command chooses on validation clients. Then every row trains at its best setting, and is asked
for the worst domain on fresh clients, as many as make their number nearly exact: by what the choice
is better or worse than FedAvg there, and what the portfolio's best row gains. Problems that are in
the file already are not played again.
"""

import argparse
import contextlib
import io
import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tabulate import tabulate

from benchmarks.hard_domains.digits import MODEL
from tff_agnostic import api
from tff_agnostic.data.store_format import Record
from tff_agnostic.data.store_writer import StoreWriter
from tff_agnostic.studies.comparison import WORST
from tff_agnostic.studies.gains import gain

KINDS = ("rare", "hard", "noisy", "both", "nothing")
_DOMAINS = ("a", "b", "c")
_FEATURES = 8
_EXAMPLES = 20
_ROUNDS, _RATE = 40, 0.3
_FRESH = 60
_TRIALS = 3


class Domain(NamedTuple):
    """A domain of a problem.

    Attributes:
        weights: Of the true scores, [features].
        margin: By what they are multiplied: with a small one labels are less sure.
        noise: The share of labels that are wrong.
        clients: Training clients; a third as many validate, five or more.
    """

    weights: np.ndarray
    margin: float
    noise: float
    clients: int


def problem(kind: str, rng: np.random.Generator) -> list[Domain]:
    """Returns the domains of a problem of a kind."""
    shared = rng.normal(size=_FEATURES)
    shared /= np.linalg.norm(shared)
    other = rng.normal(size=_FEATURES)
    other -= shared * (other @ shared)
    # At an angle: one model serves both, and neither as well as its own would.
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


def records(domains: Sequence[Domain], rng: np.random.Generator) -> Iterator[tuple[str, Record]]:
    """Yields the examples of all clients with their splits."""
    for name, of in zip(_DOMAINS, domains):
        counts = {"train": of.clients, "heldout": max(5, of.clients // 3), "test": _FRESH}
        for split, count in counts.items():
            for k in range(count):
                own = of.weights + rng.normal(scale=0.1, size=_FEATURES)
                for _ in range(_EXAMPLES):
                    x = rng.normal(size=_FEATURES)
                    label = rng.random() < 1 / (1 + np.exp(-of.margin * x @ own))
                    label ^= rng.random() < of.noise
                    features: dict[str, Any] = {"x": x.astype(np.float32), "label": int(label)}
                    yield split, Record(f"{name}_{split}_{k:03d}", name, features)


def play(number: int, kind: str, folder: Path) -> dict[str, Any]:
    """Returns what the choice, and each row, gains over FedAvg on a problem's fresh clients."""
    rng = np.random.default_rng([number, KINDS.index(kind)])
    data, model = folder / "clients.sqlite", folder / "model.py"
    model.write_text(MODEL)
    with StoreWriter(data) as writer:
        for split, record in records(problem(kind, rng), rng):
            writer.add(split, record)
        writer.finish("features", class_names=("no", "yes"))
    shared: dict[str, Any] = {
        "data": data,
        "model": model,
        "rounds": _ROUNDS,
        "clients_per_round": 10,
        "evaluate_every": _ROUNDS,
        "client_learning_rate": _RATE,
        "show_progress": False,
    }
    started = time.monotonic()
    with contextlib.redirect_stdout(io.StringIO()):
        found = api.recommend("custom", output_dir=folder / "runs", **shared)
        seconds = time.monotonic() - started
        content = json.loads((found.path / "recommendation.json").read_text())
        arms = {row: _arm(row, of["setting"]) for row, of in content["rows"].items()}
        compared = api.compare(
            "custom", arms=arms, trials=_TRIALS, output_dir=folder / "all", **_without_rate(shared)
        )
    measure = compared.comparison.measures["accuracy"]
    gains = {
        row: gain(compared.comparison, row, "fed_avg", WORST, measure)
        for row in arms
        if row != "fed_avg"
    }
    chosen = gains.get(found.choice)
    return {
        "number": number,
        "kind": kind,
        "choice": found.choice,
        "gains": {row: of.mean for row, of in gains.items()},
        "interval": None if chosen is None else chosen.interval(),
        "seconds": seconds,
    }


def _arm(row: str, setting: Mapping[str, Any]) -> dict[str, Any]:
    made = {name: tuple(v) if isinstance(v, list) else v for name, v in setting.items()}
    # Whose baselines are numbers by now.
    algorithm = "agnostic_fed_avg" if "domain_baselines" in made else row
    return {"client_learning_rate": _RATE, **made, "algorithm": algorithm}


def _without_rate(shared: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in shared.items() if name != "client_learning_rate"}


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """Returns a row for each kind, and for always taking one row."""
    rows = []
    for kind in (*KINDS, None):
        of = [r for r in results if kind in (None, r["kind"])]
        if not of:
            continue
        ours = np.array([r["gains"].get(r["choice"], 0.0) for r in of])
        best = np.array([max(0.0, *r["gains"].values()) for r in of])
        worse = np.mean([r["interval"] is not None and r["interval"][1] < 0 for r in of])
        always = [
            100 * np.mean([r["gains"].get(row, 0.0) for r in of]) for row in ("uniform", "frozen")
        ]
        rows.append(
            [
                kind or "all",
                len(of),
                np.mean([r["choice"] == "fed_avg" for r in of]),
                100 * ours.mean(),
                100 * best.mean(),
                *always,
                100 * ours.min(),
                worse,
            ]
        )
    headings = [
        *("kind", "problems", "FedAvg chosen", "gain", "best row's gain", "always uniform"),
        *("always agnostic", "largest loss", "worse than FedAvg"),
    ]
    return tabulate(rows, headings, "github", floatfmt=".2f")


def main() -> None:
    """Plays problems, each once, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", type=int, default=200)
    parser.add_argument("--output", type=Path, default=Path("promise.jsonl"))
    given = parser.parse_args()
    lines = given.output.read_text().splitlines() if given.output.exists() else []
    results = [json.loads(line) for line in lines]
    done = {(r["number"], r["kind"]) for r in results}
    for k in range(given.problems):
        number, kind = k // len(KINDS), KINDS[k % len(KINDS)]
        if (number, kind) in done:
            continue
        with tempfile.TemporaryDirectory() as folder:
            result = play(number, kind, Path(folder))
        results.append(result)
        with given.output.open("a") as file:
            file.write(f"{json.dumps(result)}\n")
        print(f"{kind} {number}: {result['choice']}, {result['seconds']:.0f} s", flush=True)
    print(table(results))


if __name__ == "__main__":
    main()
