"""How settings are drawn, and which trials are ended early: by name, made of a seed."""

import hashlib
import warnings
from typing import Callable

from optuna.exceptions import ExperimentalWarning
from optuna.pruners import BasePruner, MedianPruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import BaseSampler, RandomSampler, TPESampler

from tff_agnostic.registry import Registry

# So many trials are drawn at random, or run whole, before others are judged by them.
NUM_AT_FIRST = 5
_BITS = 32


def _tpe(seed: int) -> BaseSampler:
    with warnings.catch_warnings():
        # Of the two arguments that are newer than the sampler.
        warnings.simplefilter("ignore", ExperimentalWarning)
        return TPESampler(
            seed=seed,
            n_startup_trials=NUM_AT_FIRST,
            multivariate=True,
            # Keeps away from what other processes are trying now.
            constant_liar=True,
        )


# seed -> a sampler.
SAMPLERS: Registry[Callable[[int], BaseSampler]] = Registry(
    "sampler", {"tpe": _tpe, "random": lambda seed: RandomSampler(seed)}
)

# (round from which on trials may end) -> a pruner.
NO_PRUNER = "none"
PRUNERS: Registry[Callable[[int], BasePruner]] = Registry(
    "pruner",
    {
        "median": lambda warm_up: MedianPruner(
            n_startup_trials=NUM_AT_FIRST, n_warmup_steps=warm_up
        ),
        "halving": lambda warm_up: SuccessiveHalvingPruner(min_resource=max(1, warm_up)),
        NO_PRUNER: lambda warm_up: NopPruner(),
    },
)


def sampler_seed(seed: int, trial: int) -> int:
    """Returns the seed of the sampler that draws a trial's settings.

    Each trial has a sampler of its own: what it draws depends on the results so far, and not on how
    often the search was interrupted.

    Args:
        seed: Of the search.
        trial: Number of the trial, from 0.
    """
    text = f"{seed}/{trial}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[: _BITS // 8], "big")
