"""Stochastic-AFL: its variants equal a transcription, and rounds converge to the saddle point."""

import json
from collections import OrderedDict
from typing import Any, Callable, NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from scipy import optimize

from tests.algorithms.random_rounds import COHORTS, W_0, at_start
from tests.algorithms.references.softmax import SOFTMAX
from tests.algorithms.references.stochastic_afl import Steps, start, stochastic_afl_round
from tests.algorithms.stochastic_afl_cases import COUNTS, build_afl
from tests.support import solvers
from tests.support.clients import make_client, random_client, single
from tests.support.comparing import assert_all_close
from tests.support.rounds import run_rounds
from tff_agnostic.algorithms.saddle_point import draw, drawn_by_lambda, one_drawn_loss
from tff_agnostic.computations import PlainSum, TrainingOutput
from tff_agnostic.computations.local_training import gradient_pass
from tff_agnostic.domain_weights.ascent import chi2
from tff_agnostic.models import logistic_regression

_CENTER = COUNTS / COUNTS.sum()
_ALL = [(0.0, 1.0)] * 3


def _euclidean(bounds: Any = _ALL) -> Callable:
    def ascend(lambda_: np.ndarray, h: np.ndarray, gamma: float) -> np.ndarray:
        return solvers.nearest(lambda_ + gamma * h, bounds, None, lambda_)

    return ascend


def _entropy(lambda_: np.ndarray, h: np.ndarray, gamma: float) -> np.ndarray:
    raised = lambda_ * np.exp(gamma * h)
    return raised / raised.sum()


def _penalised(lambda_: np.ndarray, h: np.ndarray, gamma: float) -> np.ndarray:
    slope = 2 * 0.3 * (lambda_ - _CENTER) / _CENTER
    return _euclidean()(lambda_, h - slope, gamma)


class _Variant(NamedTuple):
    """Settings of the package, and the steps of the reference with these settings."""

    settings: dict[str, Any]
    steps: Steps


def _variant(ascend: Callable, settings: dict[str, Any], **steps: Any) -> _Variant:
    rates = {"server_learning_rate": 0.4, "lambda_learning_rate": 0.02}
    return _Variant({**rates, **settings}, Steps(0.4, 0.02, ascend, **steps))


_VARIANTS = {
    "as printed": _variant(_euclidean(), {}),
    "entropy, 1 / t": _variant(
        _entropy,
        {"lambda_update": "exponentiated_gradient", "decay": tf.math.reciprocal},
        decay=lambda t: 1 / t,
    ),
    "optimistic, ratios": _variant(
        _euclidean(), {"optimistic": True, "loss_estimate": "ratio"}, optimistic=True, ratio=True
    ),
    "in a ball of weights and a box, 1 / sqrt(t)": _variant(
        _euclidean([(0.2, 0.5)] * 3),
        {"weights_radius": 1.2, "lambda_set": "box:lower=0.2,upper=0.5", "decay": tf.math.rsqrt},
        radius=1.2,
        decay=lambda t: t**-0.5,
    ),
    "penalty": _variant(_penalised, {"slope": chi2(0.3)}),
    "one drawn domain": _variant(_euclidean(), {"weights_gradient": drawn_by_lambda}),
}


@pytest.mark.parametrize("name", _VARIANTS)
def test_rounds_match_reference(streaming_runtime, name):
    variant = _VARIANTS[name]
    algorithm = build_afl(**variant.settings)
    training = streaming_runtime.training(algorithm, PlainSum())
    state = at_start(training, algorithm)
    players = start([w.astype(np.float64) for w in W_0.trainable], np.full(3, 1 / 3))
    for cohort in COHORTS:
        state, (report,) = run_rounds(training, [cohort], state)
        # The reference uses the domain that the package drew.
        weights = report["domain_weights"]["alpha"] * COUNTS
        drawn = weights if "weights_gradient" in variant.settings else None
        players = stochastic_afl_round(SOFTMAX, players, cohort, COUNTS, variant.steps, drawn)
        actual = state.algorithm
        assert actual.steps == players.t
        np.testing.assert_allclose(actual.lambda_, players.lambda_, atol=1e-5)
        np.testing.assert_allclose(actual.mean_lambda, players.lambda_mean, atol=1e-5)
        models = algorithm.models(actual)
        assert list(models) == ["model", "last"]
        for model, expected_w in (("last", players.w), ("model", players.w_mean)):
            assert_all_close(models[model].trainable, expected_w, rtol=1e-5, atol=1e-5)


def test_hull_set_updates_its_mixtures_weights(streaming_runtime, tmp_path):
    mixtures = {"x": {"0": 0.5, "1": 0.5}, "y": {"2": 1.0}}
    path = tmp_path / "mixtures.json"
    path.write_text(json.dumps(mixtures))
    algorithm = build_afl(lambda_set=f"hull:file={path}", lambda_learning_rate=0.05)
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


# --- Tests with absent domains, and with domains without measured losses


def _round(algorithm: Any, state: Any, losses: Any, measured: Any, trained: Any = None) -> Any:
    """Returns the server's next state from the clients' sums; the model delta is 0."""
    sums = TrainingOutput(
        [tf.zeros_like(w) for w in state.weights.trainable],
        tf.constant(1.0),
        (),
        tf.constant(losses, tf.float32),
        tf.constant(measured, tf.int64),
        OrderedDict(),
        (),
        () if trained is None else tf.constant(trained, tf.int64),
    )
    return algorithm.finish(state, sums)


@pytest.mark.parametrize("first_round", [1, 2])
def test_optimistic_steps_handle_returning_domains(first_round):
    algorithm = build_afl(
        optimistic=True,
        loss_estimate="ratio",
        lambda_learning_rate=0.1,
        lambda_update="exponentiated_gradient",
    )
    state = algorithm.initialize()
    # The domains' mean losses are 1, 2 and 3; the last domain is present in every second round.
    for round_num in range(1, 10):
        counts = np.array([1.0, 1.0, (round_num - first_round + 1) % 2])
        before = np.asarray(state.lambda_, np.float64)
        state = _round(algorithm, state, [1, 2, 3] * counts, counts)
        expected = before * np.exp(0.1 * np.array([1.0, 2.0, 3.0]))
        if not counts[2]:
            expected = np.append(expected[:2] / expected[:2].sum() * (1 - before[2]), before[2])
        np.testing.assert_allclose(state.lambda_, expected / expected.sum(), rtol=1e-5)


def test_rarely_measured_losses_stay_unbiased():
    """All losses are 1. The second domain always trains, but is measured in 2 of 5 rounds."""
    algorithm = build_afl(2, (100.0, 10.0), measured_share=0.2, lambda_learning_rate=0.01)
    state = algorithm.initialize()
    for measured in ([20, 5], [20, 0], [20, 5], [20, 0], [20, 0]) * 10:
        state = _round(algorithm, state, measured, measured, [80, 10 - measured[1]])
    # 5 measured examples in 2 of 5 rounds are 2 per round, as expected, so lambda returns to 1/2.
    np.testing.assert_allclose(state.lambda_, [0.5, 0.5], atol=1e-5)


# --- Stochastic-AFL's random gradients have the exact gradients as means


def test_sampled_gradients_are_unbiased():
    """One sampled example gives n times its gradient, and all examples are equally probable."""
    rng = np.random.default_rng(5)
    client = make_client(rng.normal(size=[5, 4]), [0, 1, 1, 2, 0], rng.integers(3, size=5))
    alpha = np.array([0.5, 0.2, 0.3], np.float32)

    def values(client: Any, seed: tf.Tensor, sample_size: Any = None) -> Any:
        clients = single(tf.nest.map_structure(tf.constant, client), seed)
        model = logistic_regression(4, 3)
        result = gradient_pass(model, 3, W_0, clients, tf.constant(alpha), sample_size)
        return result.gradient[0], result.sums.losses, result.sums.counts

    @tf.function(autograph=False)
    def samples(seeds: tf.Tensor) -> Any:
        types = (tf.float32, tf.float32, tf.int64)
        return tf.map_fn(lambda seed: values(client, seed, 1), seeds, fn_output_signature=types)

    gradients, losses, counts = samples(tf.range(1000, dtype=tf.int64))
    rows = ({key: column[[j]] for key, column in client.items()} for j in range(5))
    singles = [values(row, tf.constant(0, tf.int64)) for row in rows]
    is_example = np.array(
        [np.isclose(gradients, 5 * g, rtol=1e-5).all(axis=(1, 2)) for g, _, _ in singles]
    )
    np.testing.assert_array_equal(counts, [[2, 2, 1]] * 1000)
    np.testing.assert_array_equal(is_example.sum(axis=0), 1)
    example_losses = np.array([5 * example_loss for _, example_loss, _ in singles])
    np.testing.assert_allclose(losses, example_losses[is_example.argmax(axis=0)], rtol=1e-5)
    # Each example is expected 200 times, with a standard deviation of 12.6.
    assert np.all(np.abs(is_example.sum(axis=1) - 200) < 5 * 12.6)


def test_draws_have_the_given_probabilities():
    probabilities = np.array([0.0, 0.5, 0.0, 0.2, 0.3, 0.0], np.float32)

    @tf.function(autograph=False)
    def draws(seeds: tf.Tensor) -> tf.Tensor:
        return tf.map_fn(
            lambda seed: draw(tf.constant(probabilities), seed), seeds, fn_output_signature=tf.int32
        )

    drawn = draws(tf.stack([tf.range(2000), tf.ones([2000], tf.int32)], axis=1))
    shares = np.bincount(drawn, minlength=6) / 2000
    assert not shares[probabilities == 0].any()
    # The fractions have standard deviations of at most 0.011.
    np.testing.assert_allclose(shares, probabilities, atol=0.055)


@pytest.mark.slow
def test_one_drawn_loss_moves_one_lambda(cohort_runtime):
    """The gradient p L_K e_K moves one entry of lambda, and each entry in 1/3 of the rounds."""
    algorithm = build_afl(lambda_gradient=one_drawn_loss, lambda_learning_rate=1e-3)
    training = cohort_runtime.training(algorithm, PlainSum())
    rng = np.random.default_rng(3)
    cohort = [random_client(rng, n, range(3)) for n in (4, 7, 2, 9)]
    state, moved = training.initialize(), []
    for _ in range(60):
        before = np.asarray(state.algorithm.lambda_)
        state, report = training.next(state, cohort)
        losses = np.asarray(report["client_work"]["train"]["loss"])
        losses = losses * np.asarray(report["client_work"]["train"]["num_examples"]) / COUNTS
        # The projection subtracts the same number from all entries, so compare two entries.
        change = np.asarray(state.algorithm.lambda_) - before
        k = int(np.argmax(change))
        np.testing.assert_allclose(
            change[k] - change[k - 1], 3 * 1e-3 * losses[k], rtol=1e-3, atol=1e-6
        )
        moved.append(k)
    assert np.all(np.bincount(moved, minlength=3) > 8)


# --- Rounds converge to the saddle point in each set Lambda


def _disagreeing(num_domains: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Returns a client whose domains prefer different classes, and the domains' counts."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=[60, 4]).astype(np.float32)
    number = np.arange(60)
    domain = np.where(number % 2 == 0, number // 2 % num_domains, 0).astype(np.int32)
    liked = np.eye(3)[domain] * 2.5
    logits = x @ rng.normal(size=[4, 3]) + liked
    y = np.argmax(logits + rng.gumbel(size=[60, 3]), axis=1)
    return make_client(x, domain, y), np.bincount(domain).astype(float)


_BOX = "box:lower=0.1/0.3/0.1,upper=0.8/0.8/0.4"


@pytest.mark.nightly_cases("simplex")
@pytest.mark.slow
@pytest.mark.parametrize("name", ["simplex", _BOX, "hull"])
def test_rounds_converge_in_each_lambda_set(cohort_runtime, tmp_path, name):
    """The duality gap of (w_A, lambda_A) falls with the number of rounds."""
    if name == "hull":
        name = f"hull:file={tmp_path / 'mixtures.json'}"
        mixtures = {"a": {"0": 0.6, "1": 0.4}, "b": {"0": 0.2, "1": 0.2, "2": 0.6}}
        (tmp_path / "mixtures.json").write_text(json.dumps(mixtures))
    client, counts = _disagreeing(3)
    algorithm = build_afl(
        3,
        counts,
        server_learning_rate=0.5,
        lambda_learning_rate=0.1,
        optimistic=True,
        lambda_set=name,
    )
    training = cohort_runtime.training(algorithm, PlainSum())
    state = training.initialize()
    gaps = []
    for t in range(1, 801):
        state, _ = training.next(state, [client])
        if t in (50, 200, 800):
            gaps.append(_gap(client, state.algorithm, counts, algorithm.lambda_set))
    assert gaps[1] < 0.6 * gaps[0]
    assert gaps[2] < 0.6 * gaps[1]
    assert gaps[2] < 0.01


def _gap(client: Any, state: Any, counts: np.ndarray, lambda_set: Any) -> float:
    """Returns max_lambda L(w_A, lambda) - min_w L(w, lambda_A), with a solver's minimum."""
    scale = (np.asarray(state.mean_lambda, np.float64) / counts)[client["domain_id"]]
    shapes = [np.shape(v) for v in state.mean_weights]

    def weights(flat: np.ndarray) -> list[np.ndarray]:
        return [flat[: np.prod(shapes[0])].reshape(shapes[0]), flat[np.prod(shapes[0]) :]]

    def objective(flat: np.ndarray) -> float:
        return float(scale @ SOFTMAX.losses(weights(flat), client["x"], client["y"]))

    size = sum(int(np.prod(shape)) for shape in shapes)
    least = optimize.minimize(objective, np.zeros(size), method="BFGS", tol=1e-9).fun
    mean_weights = [np.asarray(v, np.float64) for v in state.mean_weights]
    losses = SOFTMAX.losses(mean_weights, client["x"], client["y"])
    losses = np.bincount(client["domain_id"], losses) / counts
    return float(lambda_set.worst(losses) @ losses - least)
