"""FedBoost and AFLBoost equal NumPy references and exact optima, and reject invalid options."""

import functools
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from tests.algorithms.references import fed_boost as reference
from tests.support.algorithms import build, random_ensemble, sampled_mask, unigram_ensemble
from tests.support.clients import NUM_DOMAINS, empty_client, random_client, single, spoiled_client
from tests.support.comparing import assert_all_close
from tests.support.options import make_options
from tests.support.rounds import run_rounds
from tff_agnostic.algorithms import ALGORITHMS, Problem
from tff_agnostic.base.errors import UserError
from tff_agnostic.boosting.alpha import AlphaSteps
from tff_agnostic.boosting.ensemble import EnsembleModel, ensemble
from tff_agnostic.boosting.predictor_store import Architecture, SeveralArchitectures
from tff_agnostic.computations import PlainSum, RoundView
from tff_agnostic.models import logistic_regression
from tff_agnostic.models.keras import fixed_from_keras
from tff_agnostic.models.model import ModelWeights

_ROUNDS = 15
_SEED = 7
_ETA, _ETA_LAMBDA = 0.05, 0.02
# Expected number of examples of each domain in a round, N_k.
_EXPECTED = (9.0, 12.0, 7.5)


class _Case(NamedTuple):
    sampling: str
    estimator: str
    mirror_map: str
    loss: str
    draw: str = "systematic"
    repetitions: int = 1
    algorithm: str = "fed_boost"

    def settings(self) -> dict[str, Any]:
        return {
            "predictor_sampling": self.sampling,
            "budget": None if self.sampling == "none" else 2,
            "gradient_estimator": self.estimator,
            "mirror_map": self.mirror_map,
            "predictor_draw": self.draw,
            "repetitions": self.repetitions,
            "uniform_share": 0.1 if self.sampling == "weighted" else 0.0,
            "alpha_learning_rate": _ETA,
        }


# The cases cover all values of each option except estimators, which tests/boosting covers.
_CASES = {
    "figure 1": _Case("weighted", "masked", "entropy", "log"),
    "all": _Case("none", "divided", "euclidean", "log"),
    "unbiased": _Case("uniform", "unbiased", "euclidean", "squared", "independent"),
    "figure 2": _Case("weighted", "divided", "euclidean", "squared", algorithm="afl_boost"),
    "figure 2 repeated": _Case("uniform", "masked", "entropy", "log", "systematic", 2, "afl_boost"),
}


def _cohorts() -> list[list[dict[str, np.ndarray]]]:
    rng = np.random.default_rng(23)
    cohorts = []
    for k in range(_ROUNDS):
        sizes = rng.integers(1, 15, size=rng.integers(2, 6))
        cohort = [random_client(rng, size, range(NUM_DOMAINS)) for size in sizes]
        if k % 4 == 1:
            cohort.insert(1, empty_client())
        if k % 5 == 2:
            cohort.append(spoiled_client(np.nan))
        cohorts.append(cohort)
    cohorts[7] = [empty_client()]
    return cohorts


_COHORTS = _cohorts()


def _ensemble(loss: str) -> EnsembleModel:
    return random_ensemble(logistic_regression(4, 3), 4, loss)


@functools.cache
def _examples(round_num: int, loss: str) -> list[list[reference.Example]]:
    """Returns the reference's examples of a cohort's clients, without clients with NaN inputs."""
    kernel, bias = _ensemble(loss).initial_weights.non_trainable
    clients = []
    for client in _COHORTS[round_num]:
        if not np.all(np.isfinite(client["x"])):
            continue
        scores = np.einsum("nf,qfc->nqc", client["x"].astype(float), kernel) + bias
        h = np.exp(scores) / np.exp(scores).sum(axis=2, keepdims=True)
        rows = zip(h, client["y"].tolist(), client["domain_id"].tolist())
        clients.append([reference.Example(*row) for row in rows])
    return clients


def _built(case: _Case) -> Any:
    spec = ALGORITHMS[case.algorithm]
    settings = case.settings()
    if case.algorithm == "afl_boost":
        settings["lambda_learning_rate"] = _ETA_LAMBDA
    names = tuple(map(str, range(NUM_DOMAINS)))
    problem = Problem(_ensemble(case.loss), names, _SEED, _EXPECTED)
    return spec.build(problem, make_options(spec.options, **settings))


def _steps(case: _Case) -> AlphaSteps:
    options = make_options(ALGORITHMS["fed_boost"].options, **case.settings())
    return AlphaSteps(_ensemble(case.loss), options, _SEED)


def _assert_follows(training: Any, case: _Case) -> None:
    """Compares each round with the reference, which uses the package's samples of predictors."""
    steps, state = _steps(case), training.initialize()
    alpha, lambda_ = np.full(4, 0.25), np.full(NUM_DOMAINS, 1 / NUM_DOMAINS)
    iterates = []
    for t, cohort in enumerate(_COHORTS):
        before = state
        state, report = training.next(state, cohort)
        examples = _examples(t, case.loss)
        for r in range(case.repetitions):
            if any(examples):
                iterates.append(alpha)
            gamma = reference.gammas(case.sampling, alpha, 2, case.settings()["uniform_share"])
            mask = sampled_mask(steps, alpha, case.repetitions * t + r)
            how = (case.loss, case.estimator, case.mirror_map, _ETA)
            if case.algorithm == "fed_boost":
                alpha = reference.fed_boost_round(alpha, examples, gamma, mask, *how)
            else:
                alpha, lambda_ = reference.afl_boost_round(
                    alpha, lambda_, examples, gamma, mask, *how, _ETA_LAMBDA, np.array(_EXPECTED)
                )
        actual = state.algorithm.weights.trainable[0]
        np.testing.assert_allclose(actual, alpha, rtol=2e-5, atol=1e-5)
        if any(examples):
            np.testing.assert_allclose(
                state.algorithm.mean_alpha, np.mean(iterates, axis=0), rtol=2e-5, atol=1e-5
            )
        if case.algorithm == "afl_boost":
            np.testing.assert_allclose(state.algorithm.lambda_, lambda_, rtol=2e-5, atol=1e-5)
        assert report["predictors"]["sampled"] <= steps.room
        if not report["predictors"]["sampled"]:
            assert_all_close(state.algorithm.weights, before.algorithm.weights, rtol=0, atol=0)
    assert np.ptp(alpha) > 0.05


@pytest.mark.slow_cases("unbiased", "figure 2 repeated")
@pytest.mark.parametrize("case", _CASES)
def test_rounds_match_reference(streaming_runtime, case):
    training = streaming_runtime.training(_built(_CASES[case]), PlainSum())
    _assert_follows(training, _CASES[case])


def _in_two_architectures() -> EnsembleModel:
    """Returns the predictors of `_ensemble`, every second predictor as a Keras model."""
    whole, like = _ensemble("log"), logistic_regression(4, 3)
    weights = [list(arrays) for arrays in zip(*whole.initial_weights.non_trainable)]
    layer = tf.keras.layers.Dense(3, "softmax")
    fixed = fixed_from_keras(tf.keras.Sequential([tf.keras.Input([4]), layer]), like)
    kinds = [Architecture(like, from_scores=True), Architecture(fixed, from_scores=False)]
    predictors = [
        ModelWeights(w, []) if k % 2 else ModelWeights([], w) for k, w in enumerate(weights)
    ]
    return ensemble(
        like, predictors, architectures=[kinds[(k + 1) % 2] for k in range(len(weights))]
    )


@pytest.mark.slow
def test_mixed_architectures_match_reference(streaming_runtime):
    case, rounds = _CASES["figure 1"], 6
    model = _in_two_architectures()
    assert isinstance(model.members.held, SeveralArchitectures)
    spec, settings = ALGORITHMS["fed_boost"], case.settings()
    problem = Problem(model, tuple("012"), _SEED)
    built = spec.build(problem, make_options(spec.options, **settings))
    training = streaming_runtime.training(built, PlainSum())
    state, (*_, report) = run_rounds(training, _COHORTS[:rounds])
    steps, alpha = _steps(case), np.full(4, 0.25)
    for t in range(rounds):
        gamma = reference.gammas(case.sampling, alpha, 2, settings["uniform_share"])
        mask = sampled_mask(steps, alpha, t)
        how = (case.loss, case.estimator, case.mirror_map, _ETA)
        alpha = reference.fed_boost_round(alpha, _examples(t, case.loss), gamma, mask, *how)
    np.testing.assert_allclose(state.algorithm.weights.trainable[0], alpha, rtol=2e-5, atol=1e-5)
    # A message has two predictors, and a scale for each of three domains. Each predictor has 15
    # weights, an architecture, an offset and four numbers.
    assert report["predictors"]["bytes_sent"] == 2 * 4 * (15 + 2 + 4) + 3 * 4


def test_mixture_weights_equal_clients_example_shares(streaming_runtime):
    """Lemma 1: predictors that are the clients' distributions have alpha_k = m_k / m."""
    loss = "log"
    counts = np.array([[7, 3, 1, 9], [2, 30, 4, 4], [1, 1, 5, 3]])
    rows = counts / counts.sum(axis=1, keepdims=True)
    problem = Problem(unigram_ensemble(rows, loss), ("0",), _SEED)
    spec = ALGORITHMS["fed_boost"]
    options = make_options(spec.options, predictor_sampling="none", alpha_learning_rate=4.0)
    training = streaming_runtime.training(spec.build(problem, options), PlainSum())
    words = [np.repeat(np.arange(4), client).astype(np.int32) for client in counts]
    clients = [{"x": x, "y": x, "domain_id": np.zeros(len(x), np.int32)} for x in words]
    state, _ = run_rounds(training, [clients] * 100)
    alpha = state.algorithm.weights.trainable[0]
    best = counts.sum(axis=1) / counts.sum()
    cohort = [
        [reference.Example(rows, k) for k, n in enumerate(client) for _ in range(n)]
        for client in counts
    ]
    excess = reference.mean_loss(loss, alpha, cohort) - reference.mean_loss(loss, best, cohort)
    assert -1e-6 < excess < 1e-4
    np.testing.assert_allclose(alpha, best, atol=0.02)


def test_messages_contain_only_sampled_predictors():
    model = _ensemble("log")
    for q_sent, settings in ((2, {"budget": 2}), (4, {"predictor_sampling": "none"})):
        algorithm = build("fed_boost", **settings)
        state = algorithm.initialize()
        (step,) = algorithm.steps
        message = step.broadcast(state)
        assert [w.shape[0] for w in message.weights.non_trainable] == [q_sent] * 2
        num_bytes = sum(np.asarray(leaf).nbytes for leaf in tf.nest.flatten(message))
        clients = single(tf.nest.map_structure(tf.constant, _COHORTS[0][0]))
        output = algorithm.steps[0].client_work(message, clients)
        sums = tf.nest.map_structure(tf.zeros_like, output)
        after = algorithm.finish(state, sums)
        report = algorithm.report(RoundView(state, (sums,), after))
        assert report["predictors"]["bytes_sent"] == num_bytes
        whole = sum(np.asarray(w).nbytes for w in tf.nest.flatten(model.initial_weights))
        assert report["predictors"]["bytes_of_ensemble"] == whole


def test_budgets_do_not_share_traces():
    """A comparison runs several budgets in one runtime; each budget needs its own traces."""
    works = {build("fed_boost", budget=budget).steps[0].client_work for budget in (1, 2, 3)}
    assert len(works) == 3


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        (
            "fed_boost",
            {"budget": 5},
            "^budget: expected at most 4, the number of base predictors, ",
        ),
        ("fed_boost", {"gradient_estimator": "unbiased"}, "unbiased, which is for the squared"),
        ("afl_boost", {"lambda_update": "cvar"}, "^--lambda_update: expected a step along estim"),
        ("fed_boost", None, "^fed_boost learns how to mix trained predictors: expected"),
        ("afl_boost", None, "^afl_boost learns how to mix trained predictors: expected"),
    ],
)
def test_rejects_invalid_options_and_models(name, settings, message):
    spec = ALGORITHMS[name]
    model = logistic_regression(4, 3) if settings is None else _ensemble("log")
    with pytest.raises(UserError, match=message):
        spec.build(Problem.numbered(model, 3), make_options(spec.options, **(settings or {})))
