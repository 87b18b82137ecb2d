"""Twenty random rounds of each algorithm against independent NumPy transcriptions, in every way.

The references were written from the papers, without the package's code in sight; see `references`.
"""

from typing import Any, Callable, NamedTuple

import numpy as np
import pytest

from tests.algorithms.cases import build, empty_client, spoiled_client
from tests.algorithms.references.above_mean import above_mean_round
from tests.algorithms.references.fed_prox import fed_prox_round
from tests.algorithms.references.local_sgd import LocalSgd, fed_avg_round
from tests.algorithms.references.q_fed_avg import q_fed_avg_round
from tests.algorithms.references.softmax import SOFTMAX
from tests.computations.harness import random_client, run_rounds
from tff_agnostic.computations import PlainSum, SecureSum, SecureSumOptions
from tff_agnostic.models import logistic_regression
from tff_agnostic.models.functional import ModelWeights
from tff_agnostic.runtimes import CohortRuntime
from tff_agnostic.runtimes.options import RuntimeOptions

_ROUNDS = 20
_SGD = LocalSgd(eta=0.2, epochs=2, batch_size=4, divisor="batch")
_BY_CLIENT = LocalSgd(eta=0.5, epochs=2, batch_size=4, divisor="client")


class _Case(NamedTuple):
    """An algorithm with settings, and one round of its reference: (w, cohort) -> w."""

    algorithm: str
    settings: dict[str, Any]
    reference: Callable[[Any, Any], Any]
    sgd: LocalSgd = _SGD

    def build(self) -> Any:
        return build(
            self.algorithm,
            client_learning_rate=self.sgd.eta,
            client_epochs=self.sgd.epochs,
            batch_size=self.sgd.batch_size,
            batch_normalizer=self.sgd.divisor,
            shuffle=False,
            **self.settings,
        )


def _q(q: float, weighting: str = "examples", sgd: LocalSgd = _SGD) -> _Case:
    def reference(w: Any, cohort: Any) -> Any:
        return q_fed_avg_round(SOFTMAX, w, cohort, q, sgd, weighting)

    return _Case("q_ffl", {"q": q, "client_weighting": weighting}, reference, sgd)


def _prox(mu: float) -> _Case:
    return _Case("fed_prox", {"mu": mu}, lambda w, c: fed_prox_round(SOFTMAX, w, c, _SGD, mu))


def _fed_avg(algorithm: str, weighting: str = "examples", **settings: float) -> _Case:
    def reference(w: Any, cohort: Any) -> Any:
        return fed_avg_round(SOFTMAX, w, cohort, _SGD, weighting)

    return _Case(algorithm, {**settings, "client_weighting": weighting}, reference)


_CASES = {
    "q=0.1": _q(0.1),
    "q=1": _q(1.0),
    "q=1, clients alike": _q(1.0, "equal"),
    "q=5": _q(5.0),
    "q=2, divided by client": _q(2.0, sgd=_BY_CLIENT),
    "q=0 is FedAvg": _fed_avg("q_ffl", q=0.0),
    "mu=2": _prox(2.0),
    "mu=0 is FedAvg": _fed_avg("fed_prox", mu=0.0),
    "fed_avg": _fed_avg("fed_avg"),
    "above_mean": _Case("above_mean", {}, lambda w, c: above_mean_round(SOFTMAX, w, c, _SGD).w),
}
SECURE = SecureSum(SecureSumOptions(max_examples=20, bits=40, min_clients=1))


def _cohorts() -> list[list[dict[str, np.ndarray]]]:
    rng = np.random.default_rng(21)
    cohorts = []
    for k in range(_ROUNDS):
        sizes = rng.integers(1, 15, size=rng.integers(2, 7))
        cohort = [random_client(rng, size, range(3)) for size in sizes]
        # Domains differ, so that losses do.
        for number, client in enumerate(cohort):
            client["x"] *= np.float32(0.5 + 0.4 * number)
        if k % 4 == 1:
            cohort.insert(1, empty_client())
        if k % 5 == 2:
            cohort.append(spoiled_client(np.nan))
        cohorts.append(cohort)
    return cohorts


COHORTS = _cohorts()


# Not zeros, at which all clients have the same loss.
W_0 = ModelWeights(
    [
        np.random.default_rng(4).normal(size=v.shape, scale=0.3).astype(np.float32)
        for v in logistic_regression(4, 3).initial_weights.trainable
    ],
    [],
)


def _expected(case: _Case) -> list[Any]:
    w = [v.astype(np.float64) for v in W_0.trainable]
    weights = []
    for cohort in COHORTS:
        w = case.reference(w, cohort)
        weights.append(w)
    return weights


def _assert_follows(training: Any, algorithm: Any, expected: list[Any]) -> None:
    state = training.initialize()
    state = state._replace(algorithm=algorithm.with_weights(state.algorithm, W_0))
    for cohort, weights in zip(COHORTS, expected):
        state, _ = run_rounds(training, [cohort], state)
        for found, wanted in zip(state.algorithm.weights.trainable, weights):
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module")
def streaming_runtime():
    with CohortRuntime(RuntimeOptions(client_mode="streamed")) as running:
        yield running


@pytest.mark.parametrize("case", list(_CASES))
def test_rounds_are_those_of_the_reference(cohort_runtime, case):
    algorithm = _CASES[case].build()
    training = cohort_runtime.training(algorithm, PlainSum())
    _assert_follows(training, algorithm, _expected(_CASES[case]))


@pytest.mark.parametrize("case", ["q=1", "mu=2", "above_mean"])
def test_rounds_of_streamed_clients_are_those_of_the_reference(streaming_runtime, case):
    algorithm = _CASES[case].build()
    training = streaming_runtime.training(algorithm, PlainSum())
    _assert_follows(training, algorithm, _expected(_CASES[case]))


# TFF compiles what it runs or checks, which takes seconds: secure sums of a ratio that is divided
# on the server, and exchanges that depend on each other.
def test_rounds_of_secure_sums_are_those_of_the_reference(cohort_runtime):
    case = "q=1"
    algorithm = _CASES[case].build()
    training = cohort_runtime.training(algorithm, SECURE)
    _assert_follows(training, algorithm, _expected(_CASES[case]))


@pytest.mark.parametrize("case", ["q=1", "above_mean"])
def test_rounds_in_tff_are_those_of_the_reference(tff_runtime, case):
    algorithm = _CASES[case].build()
    training = tff_runtime.training(algorithm, PlainSum())
    _assert_follows(training, algorithm, _expected(_CASES[case]))


def test_the_update_of_a_client_falls_in_mu(cohort_runtime):
    client = COHORTS[6][0]
    norms = []
    for mu in (0.0, 0.1, 1.0, 3.0):
        case = _prox(mu)
        training = cohort_runtime.training(case.build(), PlainSum())
        _, report = training.next(training.initialize(), [client])
        norms.append(float(report["finalizer"]["update_norm"]))
    assert norms == sorted(norms, reverse=True)
    assert norms[0] > 1.05 * norms[-1]


def test_with_one_local_step_mu_has_no_effect(cohort_runtime):
    models = []
    for mu in (0.0, 5.0):
        algorithm = build("fed_prox", mu=mu, client_epochs=1, batch_size=1000, shuffle=False)
        training = cohort_runtime.training(algorithm, PlainSum())
        models.append(run_rounds(training, COHORTS[:3])[0].algorithm.weights.trainable)
    for one, other in zip(*models):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("factor", [1e-4, 1e3])
def test_the_unit_of_losses_changes_no_update_of_q_ffl(cohort_runtime, factor):
    training = cohort_runtime.training(_q(5.0).build(), PlainSum())
    state, _ = run_rounds(training, COHORTS[:3])
    algorithm = state.algorithm
    scaled = state._replace(
        algorithm=algorithm._replace(unit_loss=np.float32(algorithm.unit_loss * factor))
    )
    one, other = (training.next(s, COHORTS[3])[0].algorithm.weights for s in (state, scaled))
    for found, wanted in zip(other.trainable, one.trainable):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_large_powers_do_not_overflow(cohort_runtime):
    training = cohort_runtime.training(_q(30.0).build(), PlainSum())
    # Three clients whose losses are about 30 times the unit, and one of a usual loss.
    loud = [{**client, "x": 100 * client["x"]} for client in COHORTS[0][:3]]
    state, report = run_rounds(training, [COHORTS[0], [*loud, COHORTS[0][-1]]])
    assert all(np.all(np.isfinite(w)) for w in state.algorithm.weights.trainable)
    assert report[-1]["clients"]["contributed"] >= 3
