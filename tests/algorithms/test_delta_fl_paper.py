"""Delta-FL with `--preset=paper` equals a transcription of the paper, even for close losses."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.algorithms.random_rounds import W_0, at_start
from tests.algorithms.references.delta_fl import printed_rounds, quantile
from tests.algorithms.references.local_sgd import LocalSgd
from tests.algorithms.references.softmax import SOFTMAX, Client, mean_loss, size
from tests.support.clients import random_client
from tests.support.comparing import assert_all_close, assert_identical
from tff_agnostic.algorithms import ALGORITHMS, Problem
from tff_agnostic.algorithms.delta_fl import DeltaFlOptions
from tff_agnostic.algorithms.tail_thresholds import RefinedThreshold, SmoothBoundary
from tff_agnostic.base.errors import UserError
from tff_agnostic.base.options import OptionError
from tff_agnostic.computations import Algorithm, PlainSum
from tff_agnostic.computations.round import Round
from tff_agnostic.models import Model, logistic_regression
from tff_agnostic.program.runs.spec import resolve

_SGD = LocalSgd(0.2, epochs=2, batch_size=4)
_THETA = 0.4
_LEVEL = f"conformity_{_THETA:g}"

_MODEL = logistic_regression(4, 3)


def _build(model: Model = _MODEL, **given: Any) -> Algorithm:
    """Returns Delta-FL with the paper's preset and the given flags."""
    flags = {
        "algorithm": "delta_fl",
        "preset": "paper",
        "theta": (_THETA,),
        "client_learning_rate": _SGD.eta,
        "client_epochs": _SGD.epochs,
        "client_batch_size": _SGD.batch_size,
        "client_shuffle": False,
    }
    options = resolve("digits", {**flags, **given}, {}).algorithm
    return ALGORITHMS["delta_fl"].build(Problem(model, tuple("012"), 7), options)


@functools.cache
def _shifted(constant: float) -> Model:
    return dataclasses.replace(_MODEL, loss=lambda y, p: _MODEL.loss(y, p) + constant)


def _close_losses(rng: np.random.Generator, num_clients: int) -> list[Client]:
    """Returns clients whose inputs differ by small factors, so their losses are within 1%."""
    client = random_client(rng, 9, range(3))
    kept = [int(rng.integers(5, 10)) for _ in range(num_clients)]
    # Copies of all examples change a client's size, but not its mean loss.
    clients = []
    for k in range(num_clients):
        factor = np.float32(1 + 0.003 * (k + rng.random() / 2))
        copies = 1 + kept[k] % 3
        clients.append(
            {
                key: np.concatenate([value * factor if key == "x" else value] * copies)
                for key, value in client.items()
            }
        )
    return [clients[k] for k in rng.permutation(num_clients)]


def _cohorts() -> list[list[Client]]:
    rng = np.random.default_rng(12)
    cohorts = []
    for t in range(14):
        if t % 3 == 0:
            cohort = _close_losses(rng, 6)
        else:
            cohort = [random_client(rng, int(n), range(3)) for n in rng.integers(1, 15, 5)]
        if t % 4 == 1:
            cohort = [*cohort, cohort[0], cohort[-1], cohort[0]]
        if t % 7 == 5:
            cohort = cohort[:1]
        if t % 7 == 6:
            cohort = [cohort[0]] * 4
        cohorts.append(cohort)
    return cohorts


_COHORTS = _cohorts()


class _Trained(NamedTuple):
    """The weights and the training fraction after each round, and the last state."""

    iterates: list[Any]
    shares: list[float]
    state: Any


def _trained(training: Any, algorithm: Algorithm, cohorts: Sequence[Any] = _COHORTS) -> _Trained:
    state, iterates, shares = at_start(training, algorithm), [], []
    for cohort in cohorts:
        state, report = training.next(state, cohort)
        algorithm.check_report(report)
        iterates.append(algorithm.main_model(state.algorithm).trainable)
        shares.append(float(report["levels"][_LEVEL]["kept_share"]))
    return _Trained(iterates, shares, state)


def _expected(rounds_per_threshold: int = 1) -> list[Any]:
    w_0 = [v.astype(np.float64) for v in W_0.trainable]
    return printed_rounds(SOFTMAX, w_0, _COHORTS, _THETA, _SGD, rounds_per_threshold)


def test_cohorts_contain_losses_in_one_bin():
    """In several cohorts a client's loss is below the threshold by less than a bin's width."""
    close = 0
    for cohort in _COHORTS:
        losses = np.array([mean_loss(SOFTMAX, W_0.trainable, client) for client in cohort])
        eta = quantile(losses, [size(client) for client in cohort], _THETA)
        close += bool(((losses < eta) & (losses > eta / 1.01)).any())
    assert close >= 3


@pytest.mark.slow
def test_preset_equals_the_papers_algorithm_2(streaming_runtime):
    algorithm = _build()
    training = streaming_runtime.training(algorithm, PlainSum())
    assert_all_close(_trained(training, algorithm).iterates, _expected(), rtol=1e-6, atol=1e-6)


def test_three_rounds_per_threshold_equal_algorithm_1(streaming_runtime):
    algorithm = _build(threshold="refined:rounds=3")
    training = streaming_runtime.training(algorithm, PlainSum())
    trained = _trained(training, algorithm)
    assert_all_close(trained.iterates, _expected(3), rtol=1e-6, atol=1e-6)
    # The server learns the cohort's weight only in rounds that ask clients for their losses.
    assert np.isnan(trained.shares[:6]).tolist() == [False, True, True] * 2
    names = [step.step.name for step in Round(algorithm, PlainSum()).steps]
    assert names == ["survey", "second_survey", "third_survey", "training"]
    # Training can resume after round 7, between two updates of the threshold.
    state = _trained(training, algorithm, _COHORTS[:7]).state
    for cohort in _COHORTS[7:]:
        state, _ = training.next(state, cohort)
    assert_identical(state, trained.state)


@pytest.mark.slow
def test_constant_added_to_losses_keeps_the_selection(streaming_runtime):
    actual = []
    for model in (_MODEL, _shifted(-4.0)):
        algorithm = _build(model)
        training = streaming_runtime.training(algorithm, PlainSum())
        state, reports = at_start(training, algorithm), []
        for cohort in _COHORTS[:7]:
            # Start each round from the same weights, so that rounding errors do not add up.
            after, report = training.next(state, cohort)
            reports.append((after.algorithm.levels[0].weights.trainable, report))
        actual.append(reports)
    for (w, report), (shifted, shifted_report) in zip(*actual):
        assert report["clients"] == shifted_report["clients"]
        one, other = report["levels"][_LEVEL], shifted_report["levels"][_LEVEL]
        assert one["kept_share"] == other["kept_share"]
        assert float(other["threshold"]) == pytest.approx(float(one["threshold"]) - 4, abs=1e-5)
        assert_all_close(shifted, w, rtol=1e-6, atol=1e-6)


def test_rejects_smooth_boundary_with_exact_threshold():
    with pytest.raises(OptionError, match=r"^threshold: expected survey or lagged with a smooth"):
        DeltaFlOptions(threshold=RefinedThreshold(), boundary=SmoothBoundary())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("constant", "settings"),
    [
        (0.0, {"threshold": "survey", "boundary": "smooth:width=0.1"}),
        (2e6, {"threshold": "lagged"}),
        (-20.0, {"threshold": "tracked"}),
    ],
)
def test_rejects_losses_outside_the_histogram(streaming_runtime, constant, settings):
    """The bins' range is 1e-6 to 1e6; outside it, losses would have no order."""
    algorithm = _build(_shifted(constant) if constant else _MODEL, **settings)
    training = streaming_runtime.training(algorithm, PlainSum())

    def run() -> None:
        state = training.initialize()
        for cohort in _COHORTS[:2]:
            state, report = training.next(state, cohort)
            algorithm.check_report(report)

    if not constant:
        run()
        return
    with pytest.raises(UserError, match=r"^threshold: .*: use refined, which orders all losses"):
        run()
