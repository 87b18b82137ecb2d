"""Corrects epsilons of earlier releases that were too small.

Before config.json had format 7, runs with the clients' own noise and Poisson cohorts treated the
number of clients of a round as secret. Everybody learns it there: see `CountedCohorts`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

from tff_agnostic.privacy.accountant import PrivacyAccountant
from tff_agnostic.privacy.distributed import DistributedNoise, IntegerGroup
from tff_agnostic.privacy.sampling import PoissonCohorts, noise_of_clients

# The first format whose runs account for the public number of clients.
_RIGHT_FORMAT = 7


def is_too_small(config: Mapping[str, Any]) -> bool:
    """Returns whether the epsilon in a run's files is too small.

    Args:
        config: config.json.
    """
    is_counted = config.get("cohort_sampling") == "poisson"
    of_clients = config.get("privacy") == "distributed"
    return of_clients and is_counted and config.get("format", 1) < _RIGHT_FORMAT


def warning(config: Mapping[str, Any], result: Mapping[str, Any]) -> Optional[str]:
    """Returns a warning about the epsilon of a complete run; None if it is right.

    Args:
        config: config.json.
        result: result.json.
    """
    if not is_too_small(config):
        return None
    private = right_result(config, result)["privacy"]
    return (
        f"epsilon is {private['epsilon']:.4g} and not {result['privacy']['epsilon']:.4g}, as an "
        "earlier release wrote: it took the number of clients of a round for secret, which "
        "everybody learns where clients add the noise"
    )


def right_result(config: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
    """Returns result.json with a corrected epsilon, if its own is too small.

    Every group is treated as large as the model, which changes epsilon in its fourth digit.

    Args:
        config: config.json.
        result: result.json.
    """
    if not is_too_small(config):
        return dict(result)
    private, about = result["privacy"], result["about"]
    whose = noise_of_clients(
        PoissonCohorts(about["data"]["train"]["clients"], config["clients_per_round"]),
        secret_participation=False,
        answering_clients=None,
        min_clients=config["privacy_min_clients"],
        needed=config["secure_min_clients"],
    )
    largest = 2 ** int(about["model"]["parameters"]).bit_length()
    groups = [IntegerGroup(z, config["integer_clip"], largest) for z in private["split"].values()]
    mechanism = DistributedNoise(tuple(groups), "skellam", *whose)
    epsilon = PrivacyAccountant([mechanism], private["delta"]).epsilon(private["rounds"])
    right = {
        "epsilon": epsilon,
        "adjacency": mechanism.adjacency,
        "sampling": mechanism.assumption,
    }
    return {**result, "privacy": {**private, **right}}
