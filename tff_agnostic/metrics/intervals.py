"""Confidence intervals of reported values, from sums over clients.

All intervals are two-sided with the level `LEVEL`. They treat clients as a random sample of the
clients that the model serves. Intervals of one evaluation:

- A share of examples: Wilson's interval (1927), which treats examples as independent. The examples
  of a client are mostly similar, and then the interval is too narrow.
- The mean over clients: Student's interval, from the spread of the histogram of the clients'
  values.
- A percentile over clients: between two order statistics, by the binomial distribution of the
  number of clients below the percentile (Conover 1999, section 3.2).
- The superquantile over clients: Student's interval, from the spread of its influence function
  (Trindade et al. 2007), with at least `MIN_TAIL_CLIENTS` clients in the tail.

`combined` returns intervals over other test clients and other seeds, from replicates of sums
(`Resampled`).

**Clients.** In replicate b of B, client c has the weight w_cb, an independent Poisson(1) sample
that depends on a public seed and the client's identity (Hanley and MacGibbon 2006; Chamandy et al.
2012, section 3). A measure has the numerator s_c and the denominator n_c on client c. Only the sums
of w_cb s_c and w_cb n_c over clients are needed. A client has the same weights for every model, so
replicates of two models on the same clients are paired.

Let S and N be the sums without weights, S_b and N_b the sums of replicate b, and R = S / N. The
value of replicate b is R + (S_b - R N_b) / N, the ratio's first-order expansion. Its variance over
Poisson weights is sum_c (s_c - R n_c)^2 / N^2, as for the ratio estimator (Cochran 1977, equation
6.13). Unlike S_b / N_b, the value is defined even if N_b = 0.

**Seeds.** K seeds have the estimates d_k with replicates d_kb; all seeds are evaluated on the same
clients. Clients and seeds are two crossed samples, so the variance of the mean of d_k is (Cameron,
Gelbach and Miller 2011, equation 2.3)

    V = V_clients + V_seeds - V_both,
    V_clients = Var_b(mean_k d_kb) n / (n - 1),  V_seeds = Var_k(d_k) / K,
    V_both = (mean_k Var_b(d_kb) - Var_b(mean_k d_kb)) n / (n - 1) / (K - 1),

but V is at least V_clients, and at least V_seeds. For the worst domain V_both is not subtracted:
the worst domain changes with clients and seeds, and the interval would be too narrow. The interval
is Student's, with the degrees of freedom of Satterthwaite 1946,

    V^2 / (V_clients^2 (1 / (n - 1) + 1 / (B - 1)) + V_seeds^2 / (K - 1)).

n is the effective number of clients, (sum_c n_c)^2 / sum_c n_c^2 = N^2 / Var_b(N_b) (Kish 1965).

`benchmarks/interval_coverage.py` measures the coverage.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Optional, Union

import numpy as np

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import read_npz
from tff_agnostic.base.later import scipy

LEVEL = 0.95
# Minimum number of clients in a tail; with fewer, intervals of skewed tails are far too narrow.
MIN_TAIL_CLIENTS = 10

# Lower and upper end; None if an interval is not defined.
Interval = Optional[tuple[float, float]]
# Minimum effective number of clients; with fewer, an accuracy's interval is wider than [0, 1].
MIN_CLIENTS = 3
# Largest rounding error of an estimate, relative to the values from which it was computed.
_ROUNDING = 1e-9
# Keys in a file with replicates.
_CLIENTS = "clients"
_VALUES = "values of "


def share_interval(share: float, count: float, tests: int = 1) -> Interval:
    """Returns Wilson's interval of a share of `count` examples.

    Args:
        share: The share, in [0, 1].
        count: Number of examples; without examples the interval is not defined.
        tests: Number of simultaneous intervals (Bonferroni).
    """
    if not count > 0 or not 0 <= share <= 1:
        return None
    z = float(scipy.special.ndtri(1 - (1 - LEVEL) / 2 / tests))
    center = share + z**2 / (2 * count)
    half = z * math.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
    scale = 1 + z**2 / count
    return max(0.0, (center - half) / scale), min(1.0, (center + half) / scale)


def mean_interval(values: np.ndarray, clients: np.ndarray, mean: float) -> Interval:
    """Returns Student's interval of the mean over clients.

    None for fewer than two clients, or for clients with equal values.

    Args:
        values: Values of clients, [n].
        clients: Number of clients with each value, [n].
        mean: Mean over the clients, computed from sums, which are more exact than the histogram.
    """
    total = float(np.sum(clients))
    if total < 2 or not np.all(np.isfinite(values)) or not math.isfinite(mean):
        return None
    weights = np.asarray(clients, np.float64) / total
    center = weights @ values
    variance = float(weights @ (values - center) ** 2) * total / (total - 1)
    if variance == 0:
        return None
    half = float(scipy.special.stdtrit(total - 1, (1 + LEVEL) / 2)) * math.sqrt(variance / total)
    return mean - half, mean + half


def quantile_interval(values: np.ndarray, clients: np.ndarray, q: float) -> Interval:
    """Returns the interval of the q-quantile over clients; None for too few clients.

    Args:
        values: Values of clients, ascending, [n].
        clients: Number of clients with each value, [n].
        q: Fraction of the clients below the quantile, in (0, 1).
    """
    ranks = np.cumsum(clients)
    total = int(ranks[-1]) if len(ranks) else 0
    if total < 2:
        return None
    alpha = 1 - LEVEL
    # P(fewer than `below` clients are under the quantile) <= alpha / 2; `above` is its mirror
    # image.
    below = _largest_unlikely(total, q, alpha / 2) + 1
    above = total - _largest_unlikely(total, 1 - q, alpha / 2)
    if below < 1 or above > total:
        return None
    low, high = (float(values[np.searchsorted(ranks, k)]) for k in (below, above))
    return low, high


def superquantile_interval(
    values: np.ndarray, clients: np.ndarray, share: float, worst_is_largest: bool
) -> Interval:
    """Returns Student's interval of the mean of the worst clients.

    None if the worst `share` of the clients has fewer than `MIN_TAIL_CLIENTS` clients.

    Args:
        values: Values of clients, [n].
        clients: Number of clients with each value, [n].
        share: Fraction of the clients, the worst ones, in (0, 1].
        worst_is_largest: Whether larger values are worse.
    """
    total = float(np.sum(clients))
    if share * total < MIN_TAIL_CLIENTS:
        return None
    sign = 1.0 if worst_is_largest else -1.0
    losses = sign * np.asarray(values, np.float64)
    order = np.argsort(-losses, kind="stable")
    reached = np.minimum(np.cumsum(np.asarray(clients, np.float64)[order]), share * total)
    mean = float(np.diff(reached, prepend=0.0) @ losses[order]) / (share * total)
    threshold = losses[order][np.searchsorted(reached, share * total)]
    influence = threshold + np.maximum(losses - threshold, 0.0) / share
    results = mean_interval(influence, clients, mean)
    if results is None:
        return None
    low, high = sorted(sign * end for end in results)
    return low, high


def _largest_unlikely(total: int, q: float, probability: float) -> int:
    """Returns the largest k with P(Binomial(total, q) <= k) <= probability; -1 if there is none."""
    # Solve for a real number k, then search the integers near it.
    guess = scipy.special.bdtrik(probability, total, q)
    k = -1 if math.isnan(guess) else math.floor(guess) + 1
    while k >= 0 and scipy.special.bdtr(min(k, total), total, q) > probability:
        k -= 1
    return k


@dataclasses.dataclass(frozen=True, eq=False)
class Resampled:
    """The values of an evaluation in each replicate.

    Attributes:
        values: Values of each measure, [B, p + 1]: the domains, then all examples together.
        clients: Effective number of clients of each domain, then of all examples, [p + 1].
    """

    values: Mapping[str, np.ndarray]
    clients: np.ndarray

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Returns the arrays to save in a file; see `read_resampled`."""
        arrays = {name: values.astype(np.float32) for name, values in self.values.items()}
        return {_CLIENTS: self.clients, **{f"{_VALUES}{n}": array for n, array in arrays.items()}}


class Needed(NamedTuple):
    """Factors by which clients, seeds or both must grow to show an effect; None if impossible."""

    clients: Optional[float]
    seeds: Optional[float]
    both: Optional[float]


@dataclasses.dataclass(frozen=True)
class Spread:
    """An estimate with its error.

    Attributes:
        mean: Mean of the estimates over the seeds.
        client_variance: Variance over samples of test clients; NaN if clients are not resampled.
        seed_variance: Variance over samples of seeds; NaN for a single seed.
        total: Variance over samples of clients and of seeds.
        freedom: Degrees of freedom of `total`.
    """

    mean: float
    client_variance: float
    seed_variance: float
    total: float
    freedom: float

    def interval(self, tests: int = 1) -> Interval:
        """Returns the interval; None if the variance is 0 or unknown. See `share_interval`."""
        if not (self.total > 0 and self.freedom > 0):
            return None
        half = self._quantile(tests) * math.sqrt(self.total)
        return self.mean - half, self.mean + half

    def _quantile(self, tests: int) -> float:
        return float(scipy.special.stdtrit(self.freedom, 1 - (1 - LEVEL) / 2 / tests))

    def needed(self) -> Needed:
        """Returns the factors by which clients and seeds must grow to show an effect of this size.

        With that many times the clients or seeds, one end of the interval would be 0, if the
        degrees of freedom stayed the same.
        """
        if not (self.total > 0 and self.freedom > 0):
            return Needed(None, None, None)
        allowed = (self.mean / self._quantile(1)) ** 2
        clients = 0.0 if math.isnan(self.client_variance) else self.client_variance
        # More clients reduce only the client variance, more seeds only the rest.
        seeds = max(0.0, self.total - clients)
        return Needed(
            clients / (allowed - seeds) if allowed > seeds and clients else None,
            seeds / (allowed - clients) if allowed > clients and seeds else None,
            self.total / allowed if allowed > 0 else None,
        )


def replicate_ratios(
    numerators: np.ndarray,
    denominators: np.ndarray,
    by_numerators: np.ndarray,
    by_counts: np.ndarray,
) -> np.ndarray:
    """Returns the ratio of each set of examples in each replicate, [B, *sets].

    Args:
        numerators: Sum S of each set, [*sets].
        denominators: Sum N of each set, [*sets]; the ratio of a set without examples is NaN.
        by_numerators: Sums S_b of the replicates, [B, *sets].
        by_counts: Sums N_b of the replicates, [B, *sets].
    """
    total = np.asarray(denominators, np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.asarray(numerators, np.float64) / total
        return ratio + (np.asarray(by_numerators) - ratio * np.asarray(by_counts)) / total


def effective_clients(denominators: np.ndarray, by_denominators: np.ndarray) -> np.ndarray:
    """Returns Kish's effective number of clients of each set, [sets]; 0 without examples.

    Args:
        denominators: Sum N of each set, [sets].
        by_denominators: Sums N_b of the replicates, [B, sets].
    """
    total = np.asarray(denominators, np.float64)
    # Poisson weights have mean 1, so the mean of N_b over replicates is known to be N.
    squares = np.mean((np.asarray(by_denominators, np.float64) - total) ** 2, axis=0)
    return np.where(squares > 0, total**2 / np.where(squares > 0, squares, 1.0), 0.0)


def combined(
    estimates: Union[Sequence[float], np.ndarray],
    replicates: Optional[np.ndarray],
    clients: float,
    is_smooth: bool = True,
    magnitude: float = 0.0,
) -> Spread:
    """Returns the mean over seeds, and its variance over test clients and seeds.

    Args:
        estimates: Estimates d_k, one per seed, [K].
        replicates: Replicates d_kb of the estimates, [K, B]; None if clients are not resampled.
        clients: Effective number of clients, n; for a difference of two models on the same clients,
            n of either model.
        is_smooth: Whether the estimate is a smooth function of sums. The worst domain's value is
            not, as it selects a domain: of several equal domains, the unluckiest looks worst.
        magnitude: Largest absolute value of the numbers from which estimates, such as differences,
            were computed. Standard deviations that are rounding errors of such numbers count as 0.
    """
    changes = np.asarray(estimates, np.float64)
    rounding = (_ROUNDING * max(magnitude, *np.abs(changes))) ** 2

    def variance(values: np.ndarray, axis: int) -> np.ndarray:
        spread = np.var(values, axis=axis, ddof=1)
        return np.where(spread > rounding, spread, 0.0)

    k = len(changes)
    seed_variance = float(variance(changes, 0)) / k if k > 1 else math.nan
    mean = float(np.mean(changes))
    if replicates is None or not np.all(np.isfinite(replicates)):
        return Spread(mean, math.nan, seed_variance, seed_variance, k - 1.0)
    if not clients > 1:
        return Spread(mean, math.nan, seed_variance, math.nan, 0.0)
    scale = clients / (clients - 1)
    b = np.shape(replicates)[1]
    client_variance = scale * float(variance(np.mean(replicates, axis=0), 0))
    each = scale * float(np.mean(variance(replicates, 1)))
    if k == 1:
        total, seeds = client_variance, 0.0
    else:
        both = max(0.0, each - client_variance) / (k - 1) if is_smooth else 0.0
        total = max(client_variance + seed_variance - both, client_variance, seed_variance)
        seeds = seed_variance
    spread = client_variance**2 * (1 / (clients - 1) + 1 / (b - 1)) + seeds**2 / max(1, k - 1)
    freedom = total**2 / spread if spread > 0 else 0.0
    return Spread(mean, client_variance, seed_variance, total, freedom)


def read_resampled(path: Path) -> Optional[Resampled]:
    """Reads the replicates of an evaluation from a file of `Resampled.to_arrays`.

    None if the file does not exist.
    """
    if not path.is_file():
        return None
    arrays = read_npz(path)
    if _CLIENTS not in arrays:
        raise UserError(f"{path}: expected replicates of an evaluation, found incompatible arrays")
    values = {
        name[len(_VALUES) :]: np.asarray(array, np.float64)
        for name, array in arrays.items()
        if name.startswith(_VALUES)
    }
    return Resampled(values, np.asarray(arrays[_CLIENTS], np.float64))


def has_enough(clients: float) -> bool:
    """Whether a set has enough effective clients for an interval."""
    return clients >= MIN_CLIENTS
