"""AgnosticFedAvg equals the NumPy transcription of Algorithm 1 over random rounds."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from tests.algorithms.references.delta_fl import cvar_lambda
from tests.computations import reference
from tests.support.clients import random_client
from tests.support.comparing import assert_all_close
from tests.support.options import make_options
from tests.support.rounds import EagerTraining
from tff_agnostic.algorithms import AgnosticFedAvgOptions, Problem
from tff_agnostic.algorithms.agnostic_fed_avg import agnostic_fed_avg
from tff_agnostic.computations import Algorithm, PlainSum, ServerUpdate
from tff_agnostic.computations.server import Adam
from tff_agnostic.models import logistic_regression
from tff_agnostic.program.options.flags import option_values

_ROUNDS = 14
_DOMAINS = 4
_LAMBDA_0 = (0.4, 0.3, 0.2, 0.1)
_N_0 = (9.0, 3.0, 6.0, 1.5)

# Tolerances of float32 against float64. A wrong index, divisor or order of lines gives a difference
# of 1e-2 or more within three rounds.
_RTOL = 2e-4
_ATOL = 2e-5


_SERVERS = {
    "sgd": (ServerUpdate(learning_rate=0.7), lambda: reference.Sgd(0.7)),
    # No option changes Adam's beta_2 of 0.999.
    "adam": (ServerUpdate(Adam(0.8, 1e-3), 0.02), lambda: reference.Adam(0.02, 0.8, 0.999, 1e-3)),
}


def _options(server: str = "sgd", **settings: Any) -> AgnosticFedAvgOptions:
    chosen = {
        "client_learning_rate": 0.3,
        "client_batch_size": 4,
        "client_shuffle": False,
        "lambda_learning_rate": 0.1,
        "window": 2,
        "lambda_initial": _LAMBDA_0,
        "lambda_absent": "zero",
    }
    options: AgnosticFedAvgOptions = make_options(AgnosticFedAvgOptions, **{**chosen, **settings})
    return dataclasses.replace(options, server=_SERVERS[server][0])


def _reference_server(options: AgnosticFedAvgOptions) -> reference.Server:
    client, player = options.client, options.lambda_
    return reference.Server(
        model=reference.SOFTMAX_REGRESSION,
        w=[np.zeros([4, 3]), np.zeros([3])],
        lambda_=np.array(_LAMBDA_0),
        window=[np.array(_N_0)] * options.window,
        gamma_lambda=player.learning_rate,
        client_params=reference.ClientParams(
            client.learning_rate, client.epochs, client.batch_size, client.normalizer
        ),
        optimizer=next(build() for ours, build in _SERVERS.values() if ours == options.server),
        lambda_update=option_values(options)["lambda_update"].partition(":")[0],
        freeze_absent=player.absent == "freeze",
        baselines=None if player.baselines is None else np.array(player.baselines),
    )


def _random_cohorts(seed: int) -> list[list[dict[str, np.ndarray]]]:
    """Returns cohorts of one to six clients with 0 to 11 examples.

    Domain 3 is absent from rounds 5 to 10, longer than any window. Domain 0 is absent from every
    fourth round. In round 12, no client has examples.
    """
    rng = np.random.default_rng(seed)
    cohorts = []
    for t in range(_ROUNDS):
        domains = [0, 1, 2] if 5 <= t <= 10 else [0, 1, 2, 3]
        if t % 4 == 3:
            domains = domains[1:]
        sizes = [0, 0] if t == 12 else [1 + int(rng.integers(11)), *rng.integers(12, size=t % 6)]
        cohorts.append(
            [random_client(rng, int(n), rng.permutation(domains)[: 1 + t % 4]) for n in sizes]
        )
    return cohorts


def _algorithm(options: AgnosticFedAvgOptions) -> Algorithm:
    problem = Problem.numbered(logistic_regression(4, 3), _DOMAINS)
    return agnostic_fed_avg(problem, options, initial_counts=_N_0)


def _assert_follows_reference(training, server: reference.Server, seed: int = 0) -> None:
    state = training.initialize()
    for cohort in _random_cohorts(seed):
        alpha = server.alpha()
        server.round(
            [reference.Client(c["x"].astype(np.float64), c["y"], c["domain_id"]) for c in cohort]
        )
        state, metrics = training.next(state, cohort)
        weights, _, domains = state.algorithm
        assert_all_close(weights.trainable, server.w, _RTOL, _ATOL)
        np.testing.assert_allclose(domains.lambda_, server.lambda_, _RTOL, _ATOL)
        np.testing.assert_array_equal(domains.window, server.window)
        np.testing.assert_allclose(metrics["domain_weights"]["alpha"], alpha, _RTOL, _ATOL)


# Some baselines are below the losses of about 1.1, others above.
_BASELINES = (0.9, 1.15, 2.0, 0.0)
_CASES: dict[str, dict[str, Any]] = {
    "as printed": {"window": 1},
    "window 4, mean of batches, 3 epochs": {
        "window": 4,
        "client_normalizer": "batch",
        "client_epochs": 3,
    },
    "freeze, 2 epochs": {"lambda_absent": "freeze", "client_epochs": 2},
    "projected": {"lambda_update": "projected_gradient"},
    "fixed": {"lambda_update": "fixed", "lambda_absent": "freeze"},
    "adam": {"server": "adam", "window": 3, "client_normalizer": "batch"},
    "excess": {"lambda_baselines": _BASELINES},
}


# A case's index is the seed of its random cohorts, so each case has different cohorts.
@pytest.mark.parametrize("case", _CASES)
def test_pure_functions_match_reference(case):
    options = _options(**_CASES[case])
    training = EagerTraining(_algorithm(options))
    _assert_follows_reference(training, _reference_server(options), seed=list(_CASES).index(case))


@pytest.mark.slow_cases("0.1")
@pytest.mark.parametrize("theta", [0.1, 0.4])
def test_cvar_over_domains_matches_solver(theta, monkeypatch):
    # The problem has no counts, so all domains have the same training weight.
    monkeypatch.setitem(
        reference.LAMBDA_UPDATES,
        "cvar",
        lambda lambda_, L, gamma: cvar_lambda(np.float32(L), np.ones(_DOMAINS), theta),
    )
    options = _options(lambda_update=f"cvar:level={theta},rate=1")
    _assert_follows_reference(EagerTraining(_algorithm(options)), _reference_server(options))


_EXCESS = {
    "window": 3,
    "client_epochs": 2,
    "server": "adam",
    "lambda_absent": "freeze",
    "lambda_baselines": _BASELINES,
}
_PROJECTED = {
    "window": 1,
    "client_normalizer": "batch",
    "lambda_update": "projected_gradient",
    "lambda_absent": "freeze",
    "lambda_baselines": _BASELINES,
}


@pytest.mark.parametrize(
    ("runtime", "settings"), [("tff_runtime", _EXCESS), ("streaming_runtime", _PROJECTED)]
)
def test_runtimes_match_reference(request, runtime, settings):
    options = _options(**settings)
    training = request.getfixturevalue(runtime).training(_algorithm(options), PlainSum())
    _assert_follows_reference(training, _reference_server(options), seed=4)
