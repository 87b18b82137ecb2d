"""AgnosticFedAvg against the NumPy transcription of Algorithm 1, over random rounds."""

from collections.abc import Sequence

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.computations import reference
from tests.computations.harness import EagerTraining, random_client
from tff_agnostic.computations.aggregation import PlainSum
from tff_agnostic.computations.agnostic_fed_avg import agnostic_fed_avg
from tff_agnostic.computations.algorithm import AlgorithmParams, FederatedAlgorithm
from tff_agnostic.computations.domain_weights import DomainWeightsParams
from tff_agnostic.computations.local_training import LocalTrainingParams
from tff_agnostic.models import logistic_regression

_ROUNDS = 24
_DOMAINS = 4
_LAMBDA_0 = (0.4, 0.3, 0.2, 0.1)
_N_0 = (9.0, 3.0, 6.0, 1.5)

# Float32 against float64 over all rounds. A wrong index, divisor or order of lines is off by 1e-2
# or more within three rounds.
_RTOL = 2e-4
_ATOL = 2e-5


def _params(
    *,
    normalizer: str = "client",
    epochs: int = 1,
    window: int = 2,
    update: str = "exponentiated_gradient",
    freeze_absent: bool = False,
    server: str = "sgd",
) -> AlgorithmParams:
    return AlgorithmParams(
        local_training=LocalTrainingParams(
            learning_rate=0.3, epochs=epochs, batch_size=4, normalizer=normalizer, shuffle=False
        ),
        server_optimizer={
            "sgd": tff.learning.optimizers.build_sgdm(0.7),
            "adam": tff.learning.optimizers.build_adam(0.02, 0.8, 0.95, 1e-3),
        }[server],
        domain_weights=DomainWeightsParams(
            update=update,
            learning_rate=0.1,
            window_size=window,
            initial_weights=_LAMBDA_0,
            initial_counts=_N_0,
            freeze_absent=freeze_absent,
        ),
    )


def _reference_server(params: AlgorithmParams, server: str = "sgd") -> reference.Server:
    local, domains = params.local_training, params.domain_weights
    return reference.Server(
        model=reference.SOFTMAX_REGRESSION,
        w=[np.zeros([4, 3]), np.zeros([3])],
        lambda_=np.array(_LAMBDA_0),
        window=[np.array(_N_0)] * domains.window_size,
        gamma_lambda=domains.learning_rate,
        client_params=reference.ClientParams(
            local.learning_rate, local.epochs, local.batch_size, local.normalizer
        ),
        optimizer={
            "sgd": reference.Sgd(0.7),
            "adam": reference.Adam(0.02, 0.8, 0.95, 1e-3),
        }[server],
        lambda_update=domains.update,
        freeze_absent=domains.freeze_absent,
    )


def _random_cohorts(seed: int = 0) -> list[list[dict[str, np.ndarray]]]:
    """Rounds of one to six clients of 0 to 11 examples.

    Domain 3 is absent from rounds 5 to 10, longer than any window, and domain 0 from every fourth.
    Round 12 has clients without examples only.
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


def _reference_cohort(cohort: Sequence[dict[str, np.ndarray]]) -> list[reference.Client]:
    return [reference.Client(c["x"].astype(np.float64), c["y"], c["domain_id"]) for c in cohort]


def _algorithm(params: AlgorithmParams) -> FederatedAlgorithm:
    return agnostic_fed_avg(logistic_regression(4, 3), _DOMAINS, params)


def _assert_follows_reference(training, server: reference.Server, seed: int = 0) -> None:
    state = training.initialize()
    for cohort in _random_cohorts(seed):
        alpha = server.alpha()
        server.round(_reference_cohort(cohort))
        state, metrics = training.next(state, cohort)
        for actual, expected in zip(state.weights.trainable, server.w):
            np.testing.assert_allclose(actual, expected, _RTOL, _ATOL)
        np.testing.assert_allclose(state.domains.lambda_, server.lambda_, _RTOL, _ATOL)
        np.testing.assert_array_equal(state.domains.window, server.window)
        np.testing.assert_allclose(metrics["domain_weights"]["alpha"], alpha, _RTOL, _ATOL)


@pytest.mark.parametrize("window", [1, 2, 3, 4])
@pytest.mark.parametrize("normalizer", ["client", "batch"])
def test_windows_and_normalizers(window, normalizer):
    params = _params(window=window, normalizer=normalizer)
    _assert_follows_reference(EagerTraining(_algorithm(params)), _reference_server(params))


@pytest.mark.parametrize("epochs", [2, 3])
@pytest.mark.parametrize("normalizer", ["client", "batch"])
def test_several_epochs(epochs, normalizer):
    params = _params(epochs=epochs, normalizer=normalizer)
    _assert_follows_reference(EagerTraining(_algorithm(params)), _reference_server(params), seed=1)


@pytest.mark.parametrize("freeze_absent", [False, True])
@pytest.mark.parametrize("update", ["exponentiated_gradient", "projected_gradient", "fixed"])
def test_updates_of_the_domain_weights(update, freeze_absent):
    params = _params(update=update, freeze_absent=freeze_absent)
    _assert_follows_reference(EagerTraining(_algorithm(params)), _reference_server(params), seed=2)


@pytest.mark.parametrize("window", [1, 3])
def test_server_adam(window):
    params = _params(server="adam", window=window, normalizer="batch")
    server = _reference_server(params, server="adam")
    _assert_follows_reference(EagerTraining(_algorithm(params)), server, seed=3)


@pytest.mark.parametrize(
    "options",
    [
        {"window": 3, "epochs": 2, "server": "adam"},
        {"window": 1, "normalizer": "batch", "update": "projected_gradient"},
        {"window": 4, "freeze_absent": True},
    ],
    ids=["adam", "projected", "freeze_absent"],
)
def test_in_the_tff_runtime(tff_runtime, options):
    params = _params(**options)
    training = tff_runtime.training(_algorithm(params), PlainSum())
    server = _reference_server(params, server=options.get("server", "sgd"))
    _assert_follows_reference(training, server, seed=4)
