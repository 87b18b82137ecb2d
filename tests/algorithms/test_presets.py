"""Algorithms with `--preset=paper` equal those of their papers, from the flag to the model.

The references are transcriptions in NumPy and float64. They use the package's random samples of
clients and predictors.
"""

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tests.algorithms.references import fed_boost
from tests.algorithms.references.delta_fl import printed_rounds
from tests.algorithms.references.fed_prox import fed_prox_round
from tests.algorithms.references.local_sgd import LocalSgd, average, fed_avg_round, train
from tests.algorithms.references.q_fed_avg import q_fed_avg_round
from tests.algorithms.references.softmax import SOFTMAX, Client, Weights
from tests.algorithms.references.stochastic_afl import Steps, start, stochastic_afl_round
from tests.algorithms.references.term import term_round
from tests.computations import reference
from tests.support.algorithms import random_ensemble, sampled_mask
from tests.support.clients import NUM_DOMAINS, random_client, single
from tests.support.comparing import assert_all_close
from tests.support.options import make_options
from tests.support.rounds import run_rounds
from tff_agnostic.algorithms import ALGORITHMS, Problem
from tff_agnostic.algorithms.fed_avg import takes_part
from tff_agnostic.algorithms.tail_thresholds import ExactBoundary, LaggedThreshold, PaperBoundary
from tff_agnostic.base.errors import UserError
from tff_agnostic.boosting.alpha import AlphaSteps
from tff_agnostic.computations import PlainSum
from tff_agnostic.computations.clients import client_seeds
from tff_agnostic.models import logistic_regression
from tff_agnostic.models.model import ModelWeights
from tff_agnostic.program.options.flags import option_flags
from tff_agnostic.program.runs.build import build_algorithm
from tff_agnostic.program.runs.spec import from_flags, resolve

_SEED, _ROUNDS = 7, 5
_SGD = LocalSgd(0.2, epochs=2, batch_size=4)
_GAMMA_LAMBDA = 0.05
_N_0 = np.array([9.0, 12.0, 7.5])
_TRAINING = {
    "client_learning_rate": _SGD.eta,
    "client_epochs": _SGD.epochs,
    "client_batch_size": _SGD.batch_size,
    "client_shuffle": False,
}


def _cohorts() -> list[list[Client]]:
    rng = np.random.default_rng(31)
    cohorts = []
    for t in range(_ROUNDS):
        # Domain 2 is absent from the second round.
        domains = range(NUM_DOMAINS if t != 1 else 2)
        cohort = [random_client(rng, size, domains) for size in (5, 11, 2, 8)]
        for k, client in enumerate(cohort):
            # Losses must differ clearly, as Delta-FL treats losses within 2.7% as equal.
            client["x"] *= np.float32(0.3 + 0.9 * k)
        cohorts.append(cohort)
    return cohorts


_COHORTS = _cohorts()
_W_0 = [np.random.default_rng(4).normal(size=s, scale=0.3) for s in ((4, 3), (3,))]


def _by_round(round_: Callable[[Weights, Sequence[Client], int], Weights]) -> Weights:
    w = _W_0
    for t, cohort in enumerate(_COHORTS):
        w = round_(w, cohort, t)
    return w


def _fed_avg_sub(w: Weights, cohort: Sequence[Client], t: int) -> Weights:
    seeds = [client_seeds(np.array([_SEED, t], np.int32), single(client)) for client in cohort]
    drawn = [client for client, seed in zip(cohort, seeds) if takes_part(seed, 0.5)]
    return fed_avg_round(SOFTMAX, w, drawn, _SGD)


def _target_only(w: Weights, cohort: Sequence[Client], t: int) -> Weights:
    """FedAvg on the examples of domain "1", with one batch per client."""
    del t
    kept = [{key: v[client["domain_id"] == 1] for key, v in client.items()} for client in cohort]
    sgd = LocalSgd(_SGD.eta, _SGD.epochs)
    return average(w, [(len(k["y"]), train(SOFTMAX, w, k, sgd)) for k in kept])


def _agnostic_fed_avg() -> Weights:
    """Ro et al. 2021, Algorithm 1, r = 1."""
    server = reference.Server(
        model=reference.SOFTMAX_REGRESSION,
        w=_W_0,
        lambda_=np.full(NUM_DOMAINS, 1 / NUM_DOMAINS),
        window=[_N_0],
        gamma_lambda=_GAMMA_LAMBDA,
        client_params=reference.ClientParams(_SGD.eta, _SGD.epochs, _SGD.batch_size),
        optimizer=reference.Sgd(),
    )
    for cohort in _COHORTS:
        server.round([reference.Client(k["x"], k["y"], k["domain_id"]) for k in cohort])
    return server.w


def _delta_fl() -> Weights:
    """Laguel et al. 2021, Algorithm 2, with its sequence of learning rates gamma_t."""
    w = _W_0
    for factor, cohort in zip((1, 1, 0.5, 0.5, 0.25), _COHORTS):
        sgd = dataclasses.replace(_SGD, eta=_SGD.eta * factor)
        (w,) = printed_rounds(SOFTMAX, w, [cohort], 0.5, sgd)
    return w


def _stochastic_afl() -> Weights:
    """Mohri et al. 2019, figure 3; returns w_A."""
    players = start(_W_0, np.full(NUM_DOMAINS, 1 / NUM_DOMAINS))
    steps = Steps(0.3, _GAMMA_LAMBDA, reference.projected_gradient)
    for cohort in _COHORTS:
        players = stochastic_afl_round(SOFTMAX, players, cohort, _N_0, steps)
    return players.w_mean


_TRAINED: dict[str, tuple[Callable[[], Weights], dict[str, Any]]] = {
    "agnostic_fed_avg": (_agnostic_fed_avg, {"lambda_learning_rate": _GAMMA_LAMBDA, "window": 1}),
    "delta_fl": (_delta_fl, {"client_schedule": "piecewise:rounds=2/4,factors=0.5/0.25"}),
    "fed_avg": (
        lambda: _by_round(lambda w, cohort, t: fed_avg_round(SOFTMAX, w, cohort, _SGD)),
        {},
    ),
    "fed_avg_sub": (lambda: _by_round(_fed_avg_sub), {}),
    "fed_avg_target_only": (
        lambda: _by_round(_target_only),
        {"target_domain": "1", "client_batch_size": 100},
    ),
    "fed_prox": (
        lambda: _by_round(lambda w, cohort, t: fed_prox_round(SOFTMAX, w, cohort, _SGD, 0.7)),
        {"mu": 0.7},
    ),
    "q_ffl": (
        lambda: _by_round(lambda w, cohort, t: q_fed_avg_round(SOFTMAX, w, cohort, 1.5, _SGD)),
        {"q": 1.5},
    ),
    "stochastic_afl": (
        _stochastic_afl,
        {"lambda_learning_rate": _GAMMA_LAMBDA, "server_learning_rate": 0.3},
    ),
    # The server knows no loss before the first round, so its tilt is 0.
    "term": (
        lambda: _by_round(
            lambda w, cohort, t: term_round(SOFTMAX, w, cohort, 1.5 if t else 0.0, _SGD)
        ),
        {"tilt": 1.5},
    ),
}


def _options(algorithm: str, **given: Any) -> Any:
    """Returns an algorithm's options from flags, the paper's preset and the task digits."""
    names = {flag.name for flag in option_flags(ALGORITHMS[algorithm].options)}
    training = {flag: value for flag, value in _TRAINING.items() if flag in names}
    flags = {"algorithm": algorithm, "preset": "paper", **training, **given}
    return resolve("digits", flags, {}).algorithm


@pytest.mark.nightly_cases(but=["q_ffl"])
@pytest.mark.slow
@pytest.mark.parametrize("name", _TRAINED)
def test_trained_model_equals_the_papers(streaming_runtime, name):
    transcription, given = _TRAINED[name]
    problem = Problem(logistic_regression(4, 3), tuple("012"), _SEED, tuple(_N_0))
    algorithm = ALGORITHMS[name].build(problem, _options(name, **given))
    training = streaming_runtime.training(algorithm, PlainSum())
    state = training.initialize()
    w_0 = ModelWeights([w.astype(np.float32) for w in _W_0], [])
    state = state._replace(algorithm=algorithm.with_weights(state.algorithm, w_0))
    state, _ = run_rounds(training, _COHORTS, state)
    weights = algorithm.main_model(state.algorithm).trainable
    assert_all_close(weights, list(transcription()), rtol=2e-5, atol=2e-6)
    assert np.abs(weights[0] - _W_0[0]).max() > 0.05


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fed_boost", "afl_boost"])
def test_trained_ensemble_equals_the_papers(streaming_runtime, name):
    """Hamer et al. 2020, figures 1 and 2, with F the entropy, the log loss, C = 2 and q = 4."""
    eta, q, budget = 0.05, 4, 2
    model = random_ensemble(logistic_regression(4, 3), q, "log")
    given = {"alpha_learning_rate": eta, "budget": budget}
    if name == "afl_boost":
        given["lambda_learning_rate"] = _GAMMA_LAMBDA
    options = _options(name, **given)
    spec, problem = ALGORITHMS[name], Problem(model, tuple("012"), _SEED, tuple(_N_0))
    algorithm = spec.build(problem, options, **spec.paper_arguments)
    state, _ = run_rounds(streaming_runtime.training(algorithm, PlainSum()), _COHORTS)
    steps = AlphaSteps(model, options, _SEED)
    kernel, bias = (np.asarray(v, float) for v in model.initial_weights.non_trainable)
    alpha, lambda_, iterates = np.full(q, 1 / q), np.full(NUM_DOMAINS, 1 / NUM_DOMAINS), []
    for t, cohort in enumerate(_COHORTS):
        iterates.append(alpha)
        mask = sampled_mask(steps, alpha, t)
        examples = []
        for client in cohort:
            h = np.exp(np.einsum("nf,qfc->nqc", client["x"], kernel) + bias)
            rows = zip(h / h.sum(2, keepdims=True), client["y"], client["domain_id"])
            examples.append([fed_boost.Example(*row) for row in rows])
        gamma = fed_boost.gammas("weighted", alpha, budget)
        how = (examples, gamma, mask, "log", "masked", "entropy", eta)
        if name == "fed_boost":
            alpha = fed_boost.fed_boost_round(alpha, *how)
        else:
            # The printed figure 2 divides by m, whereas objective (11) divides by N_k.
            m = np.full(NUM_DOMAINS, float(sum(map(len, examples))))
            alpha, lambda_ = fed_boost.afl_boost_round(alpha, lambda_, *how, _GAMMA_LAMBDA, m)
    main = algorithm.main_model(state.algorithm).trainable[0]
    np.testing.assert_allclose(main, np.mean(iterates, axis=0), rtol=2e-5)  # alpha^A
    last = algorithm.models(state.algorithm)["last"].trainable[0]
    np.testing.assert_allclose(last, alpha, rtol=2e-5)
    assert np.ptp(alpha) > 0.005


@pytest.mark.parametrize(
    ("preset", "names"), [("none", ["model", "mean"]), ("paper", ["model", "last"])]
)
def test_paper_preset_returns_mean_alpha_first(preset, names):
    run = resolve("digits", {"algorithm": "afl_boost", "preset": preset}, {})
    task = run.load_task()
    task = dataclasses.replace(task, model=random_ensemble(task.model))
    algorithm = build_algorithm(run, task)
    assert list(algorithm.models(algorithm.initialize())) == names


def test_afl_boost_preset_rejects_ratios():
    spec = ALGORITHMS["afl_boost"]
    problem = Problem.numbered(random_ensemble(logistic_regression(4, 3)), NUM_DOMAINS)
    with pytest.raises(UserError, match=r"^loss_estimate: expected unbiased where examples weigh"):
        spec.build(
            problem, make_options(spec.options, loss_estimate="ratio"), **spec.paper_arguments
        )


def test_every_preset_sets_its_algorithms_flags():
    assert set(ALGORITHMS) == {*_TRAINED, "fed_boost", "afl_boost"}
    for name, spec in ALGORITHMS.items():
        names = {flag.name for flag in option_flags(spec.options)}
        assert spec.paper_settings and set(spec.paper_settings) <= names, name
        assert set(spec.paper_arguments) <= set(inspect.signature(spec.build).parameters), name


def test_given_flags_override_the_presets_settings():
    given = {"algorithm": "delta_fl", "preset": "paper", "threshold": "lagged"}
    run = resolve("digits", given, {})
    assert run.algorithm.threshold == LaggedThreshold()
    assert run.algorithm.boundary == PaperBoundary()
    assert from_flags(run.flags()) == run
    assert resolve("digits", {"algorithm": "delta_fl"}, {}).algorithm.boundary == ExactBoundary()
    # A resumed run has the settings of its first start, not those of the current preset.
    assert resolve("digits", {}, {}, inherited=run.settings()) == run


def test_preset_rejects_algorithm_without_paper(tmp_path):
    path = tmp_path / "plain.py"
    path.write_text(
        "from tff_agnostic.algorithms import ALGORITHMS\n"
        "import dataclasses\n"
        "ALGORITHM = dataclasses.replace(ALGORITHMS['fed_avg'], paper_settings={})\n"
    )
    with pytest.raises(UserError, match="expected an algorithm with paper_settings"):
        resolve("digits", {"algorithm": str(path), "preset": "paper"}, {})
