"""Twelve random rounds of each algorithm equal independent NumPy transcriptions.

The transcriptions in `references` were written from the papers, without reading the package's code.
"""

import dataclasses
from typing import Any, Callable, NamedTuple

import numpy as np
import pytest

from tests.algorithms.random_rounds import COHORTS, W_0, at_start
from tests.algorithms.references.above_mean import above_mean_round
from tests.algorithms.references.fed_prox import fed_prox_round
from tests.algorithms.references.local_sgd import LocalSgd, fed_avg_round
from tests.algorithms.references.q_fed_avg import q_fed_avg_round
from tests.algorithms.references.softmax import SOFTMAX, mean_loss, size
from tests.algorithms.references.term import term_round, tilted_weights
from tests.support.algorithms import build
from tests.support.clients import random_client, single
from tests.support.comparing import assert_all_close, flat
from tests.support.options import make_options
from tests.support.rounds import run_rounds
from tff_agnostic.algorithms.fed_avg import takes_part
from tff_agnostic.base.errors import UserError
from tff_agnostic.computations import PlainSum, SecureSum, SecureSumOptions
from tff_agnostic.computations.clients import client_seeds

_SEED = 7
_SGD = LocalSgd(eta=0.2, epochs=2, batch_size=4, divisor="batch")
_BY_CLIENT = LocalSgd(eta=0.5, epochs=2, batch_size=4, divisor="client")


class _Case(NamedTuple):
    """An algorithm with settings, and its reference's round t: (w, cohort, t) -> w."""

    algorithm: str
    settings: dict[str, Any]
    reference: Callable[[Any, Any, int], Any]
    sgd: LocalSgd = _SGD

    def build(self) -> Any:
        return build(
            self.algorithm,
            client_learning_rate=self.sgd.eta,
            client_epochs=self.sgd.epochs,
            client_batch_size=self.sgd.batch_size,
            client_normalizer=self.sgd.divisor,
            client_shuffle=False,
            seed=_SEED,
            **self.settings,
        )


def _q(q: float, weighting: str = "examples", sgd: LocalSgd = _SGD) -> _Case:
    settings = {"q": q, "client_weighting": weighting}
    return _Case(
        "q_ffl", settings, lambda w, c, t: q_fed_avg_round(SOFTMAX, w, c, q, sgd, weighting), sgd
    )


def _prox(mu: float) -> _Case:
    return _Case("fed_prox", {"mu": mu}, lambda w, c, t: fed_prox_round(SOFTMAX, w, c, _SGD, mu))


def _term(tilt: float, weighting: str = "examples", sgd: LocalSgd = _SGD) -> _Case:
    def reference(w: Any, cohort: Any, t: int) -> Any:
        # The server knows no loss before the first round, so the first round is FedAvg's.
        return term_round(SOFTMAX, w, cohort, tilt if t else 0.0, sgd, weighting)

    return _Case("term", {"tilt": tilt, "client_weighting": weighting}, reference, sgd)


def _sub(share: float) -> _Case:
    """FedAvg-Sub (Laguel et al. 2021): FedAvg on a random subset of the cohort."""

    def reference(w: Any, cohort: Any, t: int) -> Any:
        drawn = [client for client in cohort if takes_part(_seed(client, t), share)]
        return fed_avg_round(SOFTMAX, w, drawn, _SGD)

    return _Case("fed_avg_sub", {"cohort_share": share}, reference)


def _seed(client: dict[str, np.ndarray], t: int) -> Any:
    return client_seeds(np.array([_SEED, t], np.int32), single(client))


def _fed_avg(algorithm: str, **settings: float) -> _Case:
    return _Case(algorithm, settings, lambda w, c, t: fed_avg_round(SOFTMAX, w, c, _SGD))


_CASES = {
    "q=1, equal clients": _q(1.0, "equal"),
    "q=5": _q(5.0),
    "q=2, divided by client": _q(2.0, sgd=_BY_CLIENT),
    "q=0 is FedAvg": _fed_avg("q_ffl", q=0.0),
    "mu=2": _prox(2.0),
    "fed_avg": _fed_avg("fed_avg"),
    "t=5, equal clients": _term(5.0, "equal"),
    "t=-1.5": _term(-1.5),
    "t=0 is FedAvg": _fed_avg("term", tilt=0.0),
    "half of the cohort": _sub(0.5),
    "above_mean": _Case("above_mean", {}, lambda w, c, t: above_mean_round(SOFTMAX, w, c, _SGD).w),
}


# `test_combinations.py` compares other runtimes and secure sums with the streaming runtime.
@pytest.mark.slow_cases("q=0 is FedAvg", "t=0 is FedAvg")
@pytest.mark.parametrize("case", _CASES)
def test_rounds_match_reference(streaming_runtime, case):
    algorithm = _CASES[case].build()
    training = streaming_runtime.training(algorithm, PlainSum())
    state = at_start(training, algorithm)
    w = [v.astype(np.float64) for v in W_0.trainable]
    for t, cohort in enumerate(COHORTS):
        state, _ = run_rounds(training, [cohort], state)
        w = _CASES[case].reference(w, cohort, t)
        assert_all_close(state.algorithm.weights.trainable, w, rtol=1e-5, atol=1e-5)


def test_q_ffl_updates_ignore_the_loss_unit(streaming_runtime):
    training = streaming_runtime.training(_q(5.0).build(), PlainSum())
    state, _ = run_rounds(training, COHORTS[:3])
    algorithm = state.algorithm
    expected, *others = (
        training.next(
            state._replace(algorithm=algorithm._replace(memory=np.float32(memory))), COHORTS[3]
        )[0].algorithm.weights
        for memory in (algorithm.memory * factor for factor in (1.0, 1e-4, 1e3))
    )
    for other in others:
        assert_all_close(other, expected, rtol=1e-5, atol=1e-6)


def test_huge_loss_powers_match_float64_reference(streaming_runtime):
    q = 100.0
    case = _q(q, "equal")
    algorithm = case.build()
    training = streaming_runtime.training(algorithm, PlainSum())
    clients = [{**client, "x": 5 * (1 + k) * client["x"]} for k, client in enumerate(COHORTS[0])]
    assert max(_losses(clients)) ** q > np.finfo(np.float32).max
    state, reports = at_start(training, algorithm), []
    # The server does not know the losses' size in the first round; later rounds are exact.
    for _ in range(3):
        weights = state.algorithm.weights.trainable
        state, report = training.next(state, clients)
        reports.append(report)
        assert report["clients"]["contributed"] == sum(size(client) > 0 for client in clients)
    assert reports[0]["finalizer"]["capped"] > 0
    assert reports[-1]["finalizer"]["capped"] == 0
    expected = case.reference([w.astype(np.float64) for w in weights], clients, 2)
    assert_all_close(state.algorithm.weights.trainable, expected, rtol=1e-5, atol=1e-5)


def test_q_ffl_reports_clients_with_negative_losses(streaming_runtime):
    model = _q(2.0).build().problem.model
    below = dataclasses.replace(model, loss=lambda y, p: model.loss(y, p) - 50.0)
    algorithm = build("q_ffl", model=below, q=2.0)
    training = streaming_runtime.training(algorithm, PlainSum())
    _, report = training.next(training.initialize(), COHORTS[0])
    assert report["finalizer"]["negative"] == sum(size(client) > 0 for client in COHORTS[0])
    with pytest.raises(UserError, match="expected losses of at least 0"):
        algorithm.check_report(report)


def _losses(clients: Any) -> list[float]:
    return [mean_loss(SOFTMAX, W_0.trainable, client) for client in clients]


def _at(training: Any, algorithm: Any, **values: Any) -> Any:
    """Returns a state with the weights `W_0` and the given values in the algorithm's memory."""
    state = at_start(training, algorithm)
    values = {name: np.float32(value) for name, value in values.items()}
    memory = state.algorithm.memory._replace(**values)
    return state._replace(algorithm=state.algorithm._replace(memory=memory))


def _step(state: Any) -> np.ndarray:
    return flat(state.algorithm.weights.trainable) - flat(W_0.trainable)


def test_term_updates_ignore_the_centre_of_exponents(streaming_runtime):
    tilt = -1.5
    algorithm = _term(tilt).build()
    training = streaming_runtime.training(algorithm, PlainSum())
    clients = [COHORTS[0][k] for k in range(2)]
    center = np.mean(_losses(clients))
    expected, *steps = [
        _step(training.next(_at(training, algorithm, tilt=tilt, center=center + c), clients)[0])
        for c in (0.0, -3.0, 0.4, 3.0)
    ]
    for step in steps:
        np.testing.assert_allclose(step, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("tilt", [-1e3, 1e30])
def test_extreme_exponents_keep_rounds_finite_and_weighted(streaming_runtime, tilt):
    algorithm = _term(tilt).build()
    training = streaming_runtime.training(algorithm, PlainSum())
    # Some clients have losses of at least 50.
    loud = [{**client, "x": 100 * client["x"]} for client in COHORTS[0][:2]]
    clients = [*COHORTS[0], *loud]
    losses = _losses(clients)
    for center in (-50.0, 0.0, 50.0, 1e30):
        state, report = training.next(_at(training, algorithm, tilt=tilt, center=center), clients)
        assert report["skipped"] == 0
        assert report["clients"]["contributed"] == sum(size(client) > 0 for client in clients)
        assert np.all(np.isfinite(_step(state)))
        assert np.any(_step(state) != 0)
        # The next round's centre is between the clients' smallest and largest loss.
        assert min(losses) * 0.999 <= state.algorithm.memory.center <= max(losses) * 1.001


def test_large_tilt_trains_client_with_largest_loss(streaming_runtime):
    # The steps are so small that losses hardly change.
    case = _term(300.0, sgd=LocalSgd(1e-4, batch_size=4))
    algorithm = case.build()
    training = streaming_runtime.training(algorithm, PlainSum())
    clients = COHORTS[0]
    state = run_rounds(training, [clients] * 6, at_start(training, algorithm))[0]
    center = float(state.algorithm.memory.center)
    assert center == pytest.approx(max(_losses(clients)), abs=1e-3)
    chosen = clients[int(np.argmax(_losses(clients)))]
    before = state.algorithm.weights.trainable
    moved = training.next(state, clients)[0].algorithm.weights.trainable
    alone = training.next(state, [chosen])[0].algorithm.weights.trainable
    for w, with_all, with_chosen in zip(before, moved, alone):
        np.testing.assert_allclose(with_all - w, with_chosen - w, rtol=0.02, atol=1e-6)


@pytest.mark.slow
def test_secure_term_recovers_from_distant_exponent_centres(streaming_runtime):
    algorithm = _term(5.0).build()
    training = streaming_runtime.training(
        algorithm, SecureSum(make_options(SecureSumOptions, limit_examples=20))
    )
    clients = COHORTS[0]
    expected = tilted_weights(_losses(clients), [size(c) for c in clients], 5.0)
    for far_off in (-20.0, 20.0):
        state = _at(training, algorithm, tilt=5.0, center=far_off)
        for _ in range(4):
            state, report = training.next(state, clients)
            assert report["skipped"] == 0
            state = state._replace(algorithm=algorithm.with_weights(state.algorithm, W_0))
        actual = float(state.algorithm.memory.center)
        assert actual == pytest.approx(expected @ _losses(clients), rel=1e-3)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_clients_take_part_with_given_probability(share):
    seeds = np.random.default_rng(3).integers(-(2**62), 2**62, size=20_000)
    drawn = np.asarray(takes_part(seeds, share))
    assert abs(drawn.mean() - share) < 0.012


def test_each_round_draws_new_clients_and_counts_them(streaming_runtime):
    algorithm = _sub(0.5).build()
    training = streaming_runtime.training(algorithm, PlainSum())
    rng = np.random.default_rng(8)
    cohort = [random_client(rng, 5, range(3)) for _ in range(20)]
    draws = [[bool(takes_part(_seed(client, t), 0.5)) for client in cohort] for t in range(2)]
    _, reports = run_rounds(training, [cohort] * 2)
    for drawn, report in zip(draws, reports):
        assert report["clients"]["contributed"] == sum(drawn)
        assert report["clients"]["zero_weight"] == 20 - sum(drawn)
        assert sum(report["client_work"]["train"]["num_examples"]) == 5 * sum(drawn)
    assert draws[0] != draws[1]
