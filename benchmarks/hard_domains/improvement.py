"""Compares domain weights that follow the slowest improvement with other weights, on hard digits.

    .venv/bin/python -m benchmarks.hard_domains.improvement

The signal of a domain is L / M - 1 for its loss L in the round and a running mean M of its earlier
losses, M <- 0.9 M + 0.1 L. The domain with the largest signal improves least ("group
distributionally robust optimisation on the rate of improvement", GRAPE, arXiv 2505.20380). The
signal needs no baselines. Otherwise the algorithm is AgnosticFedAvg with absent domains frozen, in
NumPy, with the settings of docs/results/excess_losses.md. The table also has FedAvg, uniform
weights and excess losses. The worst regret is given for the test images, and for test and held-out
images together.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Optional

import numpy as np

from benchmarks.hard_domains.digits import hard_digits

_ROUNDS, _COHORT, _BATCH, _WINDOW, _SEEDS = 200, 10, 20, 10, range(1, 6)
_RATES = (0.1, 0.3, 1.0, 3.0)


class _Client(NamedTuple):
    x: np.ndarray
    y: np.ndarray
    domain: int


# Maps the domains' losses L and running means M to signals, all [3].
_Signal = Callable[[np.ndarray, np.ndarray], np.ndarray]


def _clients() -> tuple[list[str], dict[str, list[_Client]]]:
    parts: dict[str, dict[str, list[list]]] = {}
    for name, domain, split, label, *pixels in hard_digits():
        parts.setdefault(split, {}).setdefault(f"{domain}/{name}", []).append([label, *pixels])
    names = sorted({key.partition("/")[0] for key in parts["train"]})
    by_split = {
        split: [
            _Client(
                np.array(examples)[:, 1:], np.array(examples)[:, 0].astype(int), names.index(domain)
            )
            for key, examples in clients.items()
            for domain in [key.partition("/")[0]]
        ]
        for split, clients in parts.items()
    }
    return names, by_split


def _log_chances(w: np.ndarray, x: np.ndarray) -> np.ndarray:
    scores = x @ w[:-1] + w[-1]
    scores -= scores.max(axis=1, keepdims=True)
    return np.asarray(scores - np.log(np.exp(scores).sum(axis=1, keepdims=True)))


def _loss(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> float:
    return float(-_log_chances(w, x)[np.arange(len(y)), y].mean())


def _by_domain(w: np.ndarray, clients: Sequence[_Client]) -> tuple[np.ndarray, np.ndarray]:
    """Returns each domain's loss, and accuracy in percent."""
    losses, right = np.full(3, np.nan), np.full(3, np.nan)
    for k in {client.domain for client in clients}:
        x, y = (np.concatenate([c[i] for c in clients if c.domain == k]) for i in (0, 1))
        losses[k], right[k] = _loss(w, x, y), 100 * np.mean(_log_chances(w, x).argmax(1) == y)
    return losses, right


def _local(w: np.ndarray, client: _Client, rng: np.random.Generator) -> np.ndarray:
    """Returns the weights after one epoch of SGD with learning rate 1."""
    order = rng.permutation(len(client.y))
    for first in range(0, len(order), _BATCH):
        x, y = client.x[order[first : first + _BATCH]], client.y[order[first : first + _BATCH]]
        errors = (np.exp(_log_chances(w, x)) - np.eye(10)[y]) / len(y)
        w = w - np.vstack([x.T @ errors, errors.sum(axis=0)])
    return w


def _trained(
    clients: Sequence[_Client], seed: int, rounds: int, rate: float, signal: Optional[_Signal]
) -> list[np.ndarray]:
    """Returns the weights after each round.

    Args:
        rate: Learning rate of lambda.
        signal: Signal that lambda follows; None for FedAvg.
    """
    rng, cohort = np.random.default_rng(seed), min(_COHORT, len(clients))
    counts = np.bincount([c.domain for c in clients], [len(c.y) for c in clients], minlength=3)
    w, lambda_, running = np.zeros((65, 10)), np.full(3, 1 / 3), np.full(3, np.nan)
    window, scale = [counts * cohort / len(clients)] * _WINDOW, counts * cohort / len(clients)
    path = []
    for _ in range(rounds):
        step, total, sums, n = np.zeros_like(w), 0.0, np.zeros(3), np.zeros(3)
        for number in rng.choice(len(clients), cohort, replace=False):
            client = clients[number]
            k, size = client.domain, len(client.y)
            sums[k] += size * _loss(w, client.x, client.y)
            n[k] += size
            beta = size if signal is None else size * lambda_[k] / scale[k]
            step += beta * (_local(w, client, rng) - w)
            total += beta
        w = w + step / total
        path.append(w)
        present = n > 0
        losses = np.divide(sums, n, where=present, out=np.full(3, np.nan))
        before = np.where(np.isnan(running), losses, running)
        if signal is not None:
            follows = np.where(present, signal(losses, before), 0.0)
            moved = np.where(present, lambda_ * np.exp(rate * follows), 0.0)
            lambda_ = np.where(present, moved / moved.sum() * lambda_[present].sum(), lambda_)
        running = np.where(present, 0.9 * before + 0.1 * losses, running)
        window = [*window[1:], n]
        mean = np.mean(window, axis=0)
        scale = np.where(mean > 0, mean, scale)
    return path


def main() -> None:
    """Prints each method's accuracy and worst regret, averaged over five seeds."""
    names, parts = _clients()
    both = [*parts["test"], *parts["heldout"]]
    baselines, least = np.zeros(3), {"test": np.zeros(3), "both": np.zeros(3)}
    for k in range(3):
        alone = [client for client in parts["train"] if client.domain == k]
        share = len(alone) / len(parts["train"])
        rounds = math.ceil(_ROUNDS * _COHORT * share / min(_COHORT, len(alone)))
        path = _trained(alone, 1, rounds, 0.0, None)
        best = min(path, key=lambda w: _by_domain(w, parts["heldout"])[0][k])
        baselines[k] = _by_domain(best, parts["train"])[0][k]
        least["test"][k] = _by_domain(best, parts["test"])[0][k]
        least["both"][k] = _by_domain(best, both)[0][k]

    def excess(losses: np.ndarray, before: np.ndarray) -> np.ndarray:
        return np.maximum(losses - baselines, 0.0)

    def improvement(losses: np.ndarray, before: np.ndarray) -> np.ndarray:
        return losses / before - 1.0

    table: list[tuple[str, float, Optional[_Signal]]] = [
        ("FedAvg", 0.0, None),
        ("uniform", 0.0, improvement),
        *(("excess", rate, excess) for rate in (0.1, 0.03)),
        *(("improvement", rate, improvement) for rate in _RATES),
    ]
    print(
        "accuracy on test clients, worst regret there, and with held-out clients:", ", ".join(names)
    )
    for label, rate, signal in table:
        ends = [_trained(parts["train"], seed, _ROUNDS, rate, signal)[-1] for seed in _SEEDS]
        evaluations = [_by_domain(w, parts["test"]) for w in ends]
        accuracies = np.mean([right for _, right in evaluations], axis=0)
        on_test = [(losses - least["test"]).max() for losses, _ in evaluations]
        on_both = [(_by_domain(w, both)[0] - least["both"]).max() for w in ends]
        worst = (f"{np.mean(r):.2f} ({np.std(r, ddof=1):.2f})" for r in (on_test, on_both))
        print(f"{label:12s} {rate:4.2f}  {accuracies.round(1)}  {'  '.join(worst)}")


if __name__ == "__main__":
    main()
