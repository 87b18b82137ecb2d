"""Twenty rounds of each variant of Stochastic-AFL against their transcription."""

import json
from typing import Any, Callable, NamedTuple

import numpy as np
import pytest

from tests.algorithms.random_rounds import COHORTS, SECURE, W_0
from tests.algorithms.references.softmax import SOFTMAX
from tests.algorithms.references.stochastic_afl import Steps, start, stochastic_afl_round
from tests.algorithms.stochastic_afl_cases import COUNTS, build_afl
from tests.computations.harness import run_rounds
from tests.domain_weights import solvers
from tests.selection import usually
from tff_agnostic.computations import PlainSum

_CENTER = COUNTS / COUNTS.sum()
_ALL = [(0.0, 1.0)] * 3


def _euclidean(bounds: Any = _ALL, inside: solvers.Inside = None) -> Callable:
    def ascend(lambda_: np.ndarray, h: np.ndarray, gamma: float) -> np.ndarray:
        return solvers.nearest(lambda_ + gamma * h, bounds, inside, lambda_)

    return ascend


def _entropy(lambda_: np.ndarray, h: np.ndarray, gamma: float) -> np.ndarray:
    raised = lambda_ * np.exp(gamma * h)
    return raised / raised.sum()


def _penalised(lambda_: np.ndarray, h: np.ndarray, gamma: float) -> np.ndarray:
    slope = 2 * 0.3 * (lambda_ - _CENTER) / _CENTER
    return _euclidean()(lambda_, h - slope, gamma)


def _pessimistic(lambda_: np.ndarray, h: np.ndarray, gamma: float) -> np.ndarray:
    slope = 2 * 0.3 * (lambda_ - _CENTER) / _CENTER
    return _euclidean()(lambda_, h + slope, gamma)


class _Variant(NamedTuple):
    """Settings, and how the reference steps with them."""

    settings: dict[str, Any]
    steps: Steps


def _variant(ascend: Callable, settings: dict[str, Any], **steps: Any) -> _Variant:
    rates = {"server_learning_rate": 0.4, "domain_learning_rate": 0.02}
    return _Variant({**rates, **settings}, Steps(0.4, 0.02, ascend, **steps))


_VARIANTS = {
    "as printed": _variant(_euclidean(), {}),
    "entropy": _variant(_entropy, {"domain_weight_update": "exponentiated_gradient"}),
    "optimistic": _variant(_euclidean(), {"optimistic": True}, optimistic=True),
    "ratios": _variant(_euclidean(), {"domain_losses": "ratio"}, ratio=True),
    "1 / sqrt(t)": _variant(_euclidean(), {"step_decay": "inverse_sqrt"}, decay=lambda t: t**-0.5),
    "1 / t": _variant(_euclidean(), {"step_decay": "inverse"}, decay=lambda t: 1 / t),
    "in a ball of weights": _variant(_euclidean(), {"weights_radius": 1.2}, radius=1.2),
    "in a box": _variant(
        _euclidean([(0.2, 0.5)] * 3),
        {"lambda_set": "box", "lambda_lower": (0.2,), "lambda_upper": (0.5,)},
    ),
    "penalty": _variant(_penalised, {"chi2_weight": 0.3}),
    "pessimism": _variant(_pessimistic, {"chi2_weight": 0.3, "chi2_sign": "pessimism"}),
}


def _assert_follows(training: Any, algorithm: Any, steps: Steps, is_weighted: bool = False) -> None:
    state = training.initialize()
    state = state._replace(algorithm=algorithm.with_weights(state.algorithm, W_0))
    players = start([w.astype(np.float64) for w in W_0.trainable], np.full(3, 1 / 3))
    for cohort in COHORTS:
        state, (report,) = run_rounds(training, [cohort], state)
        drawn = report["domain_weights"]["alpha"] * COUNTS if is_weighted else None
        players = stochastic_afl_round(SOFTMAX, players, cohort, COUNTS, steps, drawn)
        found = state.algorithm
        assert found.steps == players.t
        np.testing.assert_allclose(found.lambda_, players.lambda_, atol=1e-5)
        np.testing.assert_allclose(found.mean_lambda, players.lambda_mean, atol=1e-5)
        models = algorithm.models(found)
        assert list(models) == ["model", "last"]
        for name, wanted in (("last", players.w), ("model", players.w_mean)):
            for w, w_wanted in zip(models[name].trainable, wanted):
                np.testing.assert_allclose(w, w_wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "name",
    usually(["as printed", "entropy", "optimistic", "ratios", "in a box", "pessimism"], _VARIANTS),
)
def test_rounds_are_those_of_the_reference(cohort_runtime, name):
    variant = _VARIANTS[name]
    algorithm = build_afl(**variant.settings)
    training = cohort_runtime.training(algorithm, PlainSum())
    _assert_follows(training, algorithm, variant.steps)


def test_rounds_of_one_drawn_domain_are_those_of_the_reference(streaming_runtime):
    variant = _VARIANTS["as printed"]
    algorithm = build_afl(**variant.settings, weights_gradient="weighted")
    training = streaming_runtime.training(algorithm, PlainSum())
    _assert_follows(training, algorithm, variant.steps, is_weighted=True)


# TFF compiles for seconds: the variant with the largest state, and secure sums of what is no ratio.
def test_rounds_in_tff_are_those_of_the_reference(tff_runtime):
    variant = _VARIANTS["optimistic"]
    algorithm = build_afl(**variant.settings)
    _assert_follows(tff_runtime.training(algorithm, PlainSum()), algorithm, variant.steps)


def test_rounds_of_secure_sums_are_those_of_the_reference(streaming_runtime):
    variant = _VARIANTS["as printed"]
    algorithm = build_afl(**variant.settings)
    _assert_follows(streaming_runtime.training(algorithm, SECURE), algorithm, variant.steps)


def test_a_hull_is_climbed_by_the_weights_of_its_mixtures(streaming_runtime, tmp_path):
    mixtures = {"x": {"0": 0.5, "1": 0.5}, "y": {"2": 1.0}}
    path = tmp_path / "mixtures.json"
    path.write_text(json.dumps(mixtures))
    settings = {"lambda_set": "hull", "mixtures": str(path)}
    algorithm = build_afl(**settings, domain_learning_rate=0.05)
    training = streaming_runtime.training(algorithm, PlainSum())
    theta = np.array([0.5, 0.5])
    state = training.initialize()
    for cohort in COHORTS[:4]:
        state, report = training.next(state, cohort)
        train = report["client_work"]["train"]
        losses = np.asarray(train["loss"]) * np.asarray(train["num_examples"]) / COUNTS
        slopes = np.array([losses[:2].mean(), losses[2]])
        theta = solvers.nearest(theta + 0.05 * slopes, [(0, 1)] * 2, None, theta)
        expected = [theta[0] / 2, theta[0] / 2, theta[1]]
        np.testing.assert_allclose(report["domain_weights"]["lambda"], expected, atol=1e-5)
