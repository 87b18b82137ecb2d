"""Simulated coverage of confidence intervals over test clients and seeds.

    .venv/bin/python -m benchmarks.interval_coverage

Each repetition draws test clients of five domains, and models of two algorithms for each seed. The
number of examples per client is skewed. The probability that a model is right on an example is the
model's accuracy in the domain plus three random effects of the client: on its accuracy, on its
gain, and on its accuracy with this seed. A seed's gain is the true gain plus an effect of the seed.
Test clients have Poisson weights, as in an evaluation. The script counts how often the true gain is
in each of these intervals:

- the interval of `tff_agnostic.metrics.intervals`, for one domain, for all examples, and for each
  model's worst domain;
- Student's interval over the seeds, on the same clients.

With `--case=skewed`, errors are rare, 3 in 100, and a few clients have most of the examples. With
`--case=kinds`, one client in ten loses 20 points, and small samples may have no such client.
"""

import argparse
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from tabulate import tabulate

from tff_agnostic.metrics.intervals import (
    combined,
    effective_clients,
    mean_interval,
    replicate_ratios,
)

DOMAINS = 5
REPLICATES = 200
_KIND_FRACTION = 0.1
_WHAT = ("a domain", "all examples", "the worst domain")


class Case(NamedTuple):
    """The distribution of clients and seeds.

    Attributes:
        accuracies: Accuracy of the first algorithm in each domain, lowest in the first domain.
        gains: Gain of the second algorithm in each domain, largest in the first domain.
        client_sd: Standard deviation of the accuracy over clients.
        gain_sd: Standard deviation of the gain over clients.
        both_sd: Standard deviation of the accuracy over pairs of client and seed.
        seed_sd: Standard deviation of a domain's accuracy over seeds.
        size_sd: Standard deviation of the logarithm of a client's number of examples.
        kind: Additional gain of one client in ten.
    """

    accuracies: Sequence[float]
    gains: Sequence[float]
    client_sd: float
    gain_sd: float
    both_sd: float
    seed_sd: float
    size_sd: float
    kind: float = 0.0


_USUAL = Case(
    (0.70, 0.80, 0.82, 0.85, 0.90), (0.04, 0.01, 0, 0, -0.01), 0.10, 0.05, 0.04, 0.015, 0.7
)
CASES = {
    "usual": _USUAL,
    "skewed": Case(
        (0.97, 0.98, 0.98, 0.98, 0.99), (0.01, 0, 0, 0, 0), 0.02, 0.01, 0.01, 0.003, 1.2
    ),
    "kinds": _USUAL._replace(kind=-0.20),
}


class Coverage(NamedTuple):
    """Coverage of intervals: the fraction of repetitions in which they contain the true gain.

    Attributes:
        clients: Number of test clients per domain.
        seeds: Number of trials per algorithm.
        what: Name of the gain, one of `_WHAT`.
        both: Coverage of the interval over clients and seeds.
        width: Mean width of the interval over clients and seeds.
        seeds_only: Coverage of Student's interval over the seeds.
        effective: Mean effective number of clients.
    """

    clients: int
    seeds: int
    what: str
    both: float
    width: float
    seeds_only: float
    effective: float


def _sums(
    rng: np.random.Generator, case: Case, clients: int, seeds: int
) -> tuple[np.ndarray, np.ndarray]:
    """Simulates an evaluation.

    Returns:
        Numbers of correct predictions, [seeds, 2, domains, clients], and numbers of examples,
        [domains, clients].
    """
    shape = (DOMAINS, clients)
    sizes = 5 + np.round(rng.lognormal(3.0, case.size_sd, shape)).astype(int)
    offset, gain = rng.normal(0, case.client_sd, shape), rng.normal(0, case.gain_sd, shape)
    gain += case.kind * (rng.random(shape) < _KIND_FRACTION)
    both = rng.normal(0, case.both_sd, (seeds, 2, *shape))
    seed_effects = rng.normal(0, case.seed_sd, (seeds, 2, DOMAINS, 1))
    base = (np.asarray(case.accuracies)[:, np.newaxis] + offset)[np.newaxis, np.newaxis]
    added = np.stack([np.zeros(shape), np.asarray(case.gains)[:, np.newaxis] + gain])[np.newaxis]
    chances = np.clip(base + added + both + seed_effects, 0.001, 0.999)
    return rng.binomial(sizes, chances), sizes


def _gains(right: np.ndarray) -> np.ndarray:
    """Returns the gains that `_WHAT` lists, [..., 3], from accuracies [..., 2, domains + 1]."""
    gain = right[..., 1, :] - right[..., 0, :]
    worst = right[..., 1, :-1].min(axis=-1) - right[..., 0, :-1].min(axis=-1)
    return np.stack([gain[..., 0], gain[..., -1], worst], axis=-1)


def coverage(case: Case, clients: int, seeds: int, repetitions: int) -> Sequence[Coverage]:
    """Returns the coverage of the intervals for each gain that `_WHAT` lists.

    Args:
        case: Distribution of clients and seeds.
        clients: Number of test clients per domain.
        seeds: Number of trials per algorithm.
        repetitions: Number of simulated evaluations.
    """
    rng = np.random.default_rng([0, clients, seeds])
    truth = _truth(np.random.default_rng(0), case)
    held = np.zeros((2, len(_WHAT)))
    width, effective = np.zeros(len(_WHAT)), np.zeros(len(_WHAT))
    for _ in range(repetitions):
        right, sizes = _sums(rng, case, clients, seeds)
        weights = rng.poisson(1.0, (REPLICATES, *sizes.shape))
        total = _with_all(sizes.sum(axis=-1))
        by_total = _with_all((weights * sizes).sum(axis=-1))
        sums = _with_all(right.sum(axis=-1))
        by = _with_all(np.einsum("rdc,kadc->kard", weights, right))
        drawn = np.array(
            [
                [replicate_ratios(sums[k, a], total, by[k, a], by_total) for a in range(2)]
                for k in range(seeds)
            ]
        )
        estimates, replicates = _gains(sums / total), _gains(np.moveaxis(drawn, 1, 2))
        effective_counts = effective_clients(total, by_total)
        for j, among in enumerate((effective_counts[0], effective_counts[-1], effective_counts[0])):
            spread = combined(estimates[:, j], replicates[..., j], among, j < 2)
            plain = mean_interval(estimates[:, j], np.ones(seeds), spread.mean)
            for i, interval in enumerate((spread.interval(), plain)):
                if interval is not None:
                    held[i, j] += interval[0] <= truth[j] <= interval[1]
            effective[j] += among
            both = spread.interval()
            width[j] += 0.0 if both is None else both[1] - both[0]
    means = np.stack([held[0], width, held[1], effective]) / repetitions
    return [
        Coverage(clients, seeds, what, *map(float, means[:, j])) for j, what in enumerate(_WHAT)
    ]


def _truth(rng: np.random.Generator, case: Case) -> np.ndarray:
    """Returns the true gains, approximated with thousands of clients and many seeds."""
    estimates = []
    for _ in range(40):
        right, sizes = _sums(rng, case, 4000, 25)
        total = _with_all(sizes.sum(axis=-1))
        estimates.append(_gains(_with_all(right.sum(axis=-1)) / total))
    return np.concatenate(estimates).mean(axis=0)


def _with_all(sums: np.ndarray) -> np.ndarray:
    return np.concatenate([sums, sums.sum(axis=-1, keepdims=True)], axis=-1)


def table(coverages: Sequence[Coverage]) -> str:
    """Returns the coverages as a Markdown table."""
    rows = [
        [
            f"{c.clients} ({c.effective:.0f})",
            c.seeds,
            c.what,
            f"{100 * c.both:.0f}",
            f"{100 * c.width:.1f}",
            f"{100 * c.seeds_only:.0f}",
        ]
        for c in coverages
    ]
    headers = [
        "test clients (effective)",
        "seeds",
        "gain of",
        "clients and seeds, %",
        "width, points",
        "seeds only, %",
    ]
    text: str = tabulate(rows, headers, tablefmt="github")
    return text


def main() -> None:
    """Simulates all settings, and prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--case", choices=list(CASES), default="usual")
    parser.add_argument("--repetitions", type=int, default=2000)
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 30, 300])
    parser.add_argument("--seeds", type=int, nargs="+", default=[3, 10])
    given = parser.parse_args()
    case = CASES[given.case]
    print(
        table(
            [
                c
                for clients in given.clients
                for seeds in given.seeds
                for c in coverage(case, clients, seeds, given.repetitions)
            ]
        )
    )


if __name__ == "__main__":
    main()
