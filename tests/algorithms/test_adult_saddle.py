"""Stochastic-AFL on all of UCI Adult converges to the exact saddle point that SciPy finds."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.adult_saddle.exact import TwoDomains, accuracies
from benchmarks.adult_saddle.measure import RIDGE, binary, build, dealt
from tff_agnostic.computations import PlainSum
from tff_agnostic.tasks.adult import Table, read_adult

_REAL = Path(__file__).parents[2].parent / "shared" / "data" / "adult"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (_REAL / "adult.data").is_file(), reason=f"UCI's Adult files are not in {_REAL}"
    ),
]
_ROUNDS = 500


@pytest.fixture(scope="module")
def table() -> Table:
    return read_adult(_REAL / "adult.data")


@pytest.fixture(scope="module")
def game(table: Table) -> TwoDomains:
    return TwoDomains(*table, RIDGE)


@pytest.mark.nightly
def test_stochastic_afl_reaches_the_exact_saddle(table, game, cohort_runtime):
    saddle = game.saddle()
    assert saddle.lambda_ == pytest.approx(0.9314, abs=1e-4)
    assert saddle.losses == pytest.approx([0.4410, 0.4410], abs=1e-4)
    assert saddle.value == pytest.approx(0.44541, abs=1e-5)
    assert game.gap(saddle.w, saddle.lambda_) < 1e-7
    # Newton's method finds weights with the same accuracies on the test rows.
    percent = 100 * accuracies(saddle.w, *read_adult(_REAL / "adult.test"))
    assert percent == pytest.approx([80.24, 67.40, 80.39], abs=0.01)

    settings = {"server_optimizer": "nesterov", "server_learning_rate": 0.8}
    algorithm = build(table, 1.0, {**settings, "lambda_learning_rate": 0.3})
    training = cohort_runtime.training(algorithm, PlainSum())
    state, clients = training.initialize(), dealt(table, 64)
    for _ in range(_ROUNDS):
        state, _ = training.next(state, clients)
    models = algorithm.models(state.algorithm)
    last = binary(models["last"].trainable)
    np.testing.assert_allclose(game.losses(last), saddle.losses, atol=1e-3)
    assert game.worst(last) - saddle.value < 1e-3
    assert state.algorithm.lambda_[0] == pytest.approx(saddle.lambda_, abs=5e-3)
    # The mean iterate includes the first rounds, so its distance falls only as 1 / T.
    mean = binary(models["model"].trainable)
    assert game.worst(mean) - saddle.value < 2.5e-3


def test_solver_minimises_for_fixed_lambda(game):
    """Losses equal those of Newton's method, and nearby weights are worse."""
    for lambda_, losses in ((413 / 32561, [0.5292, 0.3559]), (0.5, [0.4625, 0.3712])):
        least = game.least(lambda_)
        assert least.losses == pytest.approx(losses, abs=1e-4)
        steps = 1e-3 * np.random.default_rng(0).normal(size=[20, len(least.w)])
        assert all(game.value(least.w + step, lambda_) > least.value for step in steps)
