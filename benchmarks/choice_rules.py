"""Compares rules by which `./run recommend` could choose a method, on synthetic problems.

    .venv/bin/python -m benchmarks.choice_rules --problems=120

The problems are from `benchmarks.recommend_promise`. On each problem, NumPy code trains FedAvg,
uniform domain weights, and AgnosticFedAvg with absent domains frozen, at two learning rates and
with several seeds. A rule is a confidence level, together with numbers of validation clients,
examples and seeds. For each rule, the table has two percentages: how much of the best method's gain
the chosen method attains, and how often it is significantly worse than FedAvg on fresh clients.
"""

import argparse
from collections.abc import Mapping
from typing import NamedTuple, Optional

import numpy as np
from tabulate import tabulate

from benchmarks.recommend_promise import (
    DOMAINS,
    FRESH,
    HELDOUT,
    KINDS,
    ROUNDS,
    TEST,
    Drawn,
    drawn,
    problem,
    worst_gain,
)
from tff_agnostic.base.later import scipy
from tff_agnostic.metrics.intervals import Spread, combined
from tff_agnostic.program.studies.comparison import BASELINE

_ROWS = (BASELINE, "uniform", "frozen")
_RATES = (1.0, 2.0)
_SEEDS = 5
_COHORT, _STEPS, _DOMAIN_RATE = 30, 2, 0.1
_REPLICATES = 1000


class Judges(NamedTuple):
    """Validation data of a rule: clients per domain, examples per client, and seeds."""

    clients: int
    examples: int
    seeds: int


# 40 clients per domain are as many as in the problems of `recommend_promise`; 12 and 24 are as many
# as in `hard_domains`.
JUDGES = (Judges(40, 20, 5), Judges(12, 5, 3), Judges(12, 5, 5), Judges(24, 5, 3))
# Confidence levels for a gain above 0: 95% two-sided, 95% one-sided, and 90% one-sided.
LEVELS = (0.975, 0.95, 0.9)


def trained(row: str, clients: Drawn, domains: np.ndarray, rate: float, seed: int) -> np.ndarray:
    """Trains logistic regression with a method, and returns the weights [features].

    Args:
        row: Name of the method, from `_ROWS`.
        clients: Training clients. In a round, a client takes one step on each half of its examples.
        domains: Domain of each client, [clients].
        rate: Learning rate of the clients.
        seed: Seed of the cohorts.
    """
    rng = np.random.default_rng(seed)
    weights = np.zeros(clients.x.shape[-1])
    share = np.bincount(domains) / len(domains)
    lambdas = np.full(len(share), 1 / len(share)) if row == "uniform" else share
    for _ in range(ROUNDS):
        cohort = rng.choice(len(domains), min(_COHORT, len(domains)), replace=False)
        x, labels, ids = clients.x[cohort], clients.labels[cohort], domains[cohort]
        local = np.broadcast_to(weights, (len(cohort), len(weights)))
        losses = np.mean(np.logaddexp(0, np.where(labels, -1, 1) * (x @ weights)), axis=-1)
        for xs, ys in zip(np.split(x, _STEPS, axis=1), np.split(labels, _STEPS, axis=1)):
            p = scipy.special.expit(np.einsum("cef,cf->ce", xs, local))
            local = local - rate * np.einsum("ce,cef->cf", p - ys, xs) / ys.shape[1]
        counts = np.bincount(ids, minlength=len(share))
        scales = np.full(len(share), 1 / len(cohort))
        if row != BASELINE:
            scales = lambdas / np.maximum(counts, 1)
        weights = weights + scales[ids] @ (local - weights)
        if row == "frozen":
            lambdas = _moved(lambdas, np.bincount(ids, losses, len(share)), counts)
    return weights


def _moved(lambdas: np.ndarray, sums: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Returns lambda after an exponentiated-gradient step; absent domains keep their lambda.

    Args:
        sums: Sums of the clients' mean losses, [domains].
        counts: Numbers of clients, [domains].
    """
    present = counts > 0
    moved = np.where(present, lambdas * np.exp(_DOMAIN_RATE * sums / np.maximum(counts, 1)), 0.0)
    return np.where(present, moved * lambdas[present].sum() / moved.sum(), lambdas)


def right(weights: np.ndarray, clients: Drawn) -> np.ndarray:
    """Returns a mask of the correctly classified examples, [clients, examples]."""
    return (clients.x @ weights > 0) == clients.labels.astype(bool)


def worst_domain_gain(ours: np.ndarray, theirs: np.ndarray, draws: np.ndarray) -> Spread:
    """Returns a method's gain in the worst domain, with its variance over clients and seeds.

    Args:
        ours: Accuracies of the method, [seeds, domains, clients].
        theirs: Accuracies of the baseline, in the same shape.
        draws: Bootstrap weights of the clients, [replicates, domains, clients].
    """
    values, replicates = [], []
    for accuracy in (ours, theirs):
        mean = accuracy.mean(axis=-1)
        moved = np.einsum("sdc,rdc->srd", accuracy - mean[..., None], draws) / accuracy.shape[-1]
        values.append(mean.min(axis=-1))
        replicates.append((mean[:, None] + moved).min(axis=-1))
    num_clients = ours.shape[-1]
    changes = values[0] - values[1]
    return combined(changes, replicates[0] - replicates[1], num_clients, is_smooth=False)


def surest(rows: Mapping[str, Spread], level: float) -> Optional[str]:
    """Returns the method with the highest lower bound; None if no bound is above 0."""
    lows = {
        row: spread.mean - scipy.special.stdtrit(spread.freedom, level) * spread.total**0.5
        for row, spread in rows.items()
        if spread.total > 0 and spread.freedom > 0
    }
    best = max(lows, key=lambda row: lows[row], default=None)
    return best if best is not None and lows[best] > 0 else None


class Outcome(NamedTuple):
    """Gains of the chosen and the best method, and whether the chosen one is worse than FedAvg."""

    gain: float
    best: float
    is_worse: bool


def rule_outcomes(number: int, kind: str) -> dict[tuple[Judges, float], Outcome]:
    """Returns each rule's outcome on the problem with this number and kind."""
    rng = np.random.default_rng([number, KINDS.index(kind)])
    made = problem(kind, rng)
    splits: dict[str, list[Drawn]] = {"train": [], "heldout": [], "test": []}
    for domain in made:
        counts = {"train": domain.clients, "heldout": HELDOUT, "test": TEST}
        for split, count in counts.items():
            splits[split].append(_with_bias(drawn(domain, count, rng)))
    fresh = [_with_bias(drawn(domain, FRESH, rng)) for domain in made]
    train = Drawn(*(np.concatenate(parts) for parts in zip(*splits["train"])))
    domains = np.repeat(np.arange(len(made)), [domain.clients for domain in made])
    models = {
        (row, rate): [trained(row, train, domains, rate, seed) for seed in range(_SEEDS)]
        for row in _ROWS
        for rate in _RATES
    }
    judged, asked = (
        {key: np.array([[right(w, d) for d in split] for w in ws]) for key, ws in models.items()}
        for split in (splits["heldout"], fresh)
    )
    draws = rng.poisson(1, (_REPLICATES, len(DOMAINS), HELDOUT))
    outcomes = {}
    for who in JUDGES:
        seen = {
            key: all_right[: who.seeds, :, : who.clients, : who.examples].mean(axis=-1)
            for key, all_right in judged.items()
        }
        best = {
            row: max(_RATES, key=lambda rate: seen[row, rate][0].mean(axis=-1).min())
            for row in _ROWS
        }
        best_accuracies = {row: seen[row, best[row]] for row in _ROWS}
        true = {row: asked[row, best[row]][: who.seeds].mean(axis=-1) for row in _ROWS}
        spreads = {
            row: worst_domain_gain(
                best_accuracies[row], best_accuracies[BASELINE], draws[..., : who.clients]
            )
            for row in _ROWS[1:]
        }
        gains = {row: worst_gain(true[row], true[BASELINE], rng) for row in _ROWS[1:]}
        for level in LEVELS:
            choice = surest(spreads, level)
            gain, interval = gains[choice] if choice else (0.0, (0.0, 0.0))
            most = max(0.0, *(mean for mean, _ in gains.values()))
            outcomes[who, level] = Outcome(gain, most, interval[1] < 0)
    return outcomes


def _with_bias(clients: Drawn) -> Drawn:
    return Drawn(
        np.concatenate([clients.x, np.ones_like(clients.x[..., :1])], axis=-1), clients.labels
    )


def main() -> None:
    """Runs all problems, and prints a table with a line per rule."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", type=int, default=120)
    given = parser.parse_args()
    played = [
        (KINDS[k % len(KINDS)], rule_outcomes(k // len(KINDS), KINDS[k % len(KINDS)]))
        for k in range(given.problems)
    ]
    rows = []
    for rule in ((who, level) for who in JUDGES for level in LEVELS):
        who, level = rule
        by_kind = {kind: [outcomes[rule] for k, outcomes in played if k == kind] for kind in KINDS}
        shares = [
            100 * sum(o.gain for o in by_kind[kind]) / sum(o.best for o in by_kind[kind])
            for kind in ("rare", "hard", "both")
        ]
        worse = 100 * np.mean([outcomes[rule].is_worse for _, outcomes in played])
        rows.append([*who, level, *shares, worse])
    headings = ["clients", "examples", "seeds", "sure", *("rare", "hard", "both"), "worse"]
    print(tabulate(rows, headings, "github", floatfmt=("d", "d", "d", "g", *[".0f"] * 3, ".1f")))


if __name__ == "__main__":
    main()
