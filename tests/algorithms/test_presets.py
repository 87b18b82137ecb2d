"""`--preset=paper`: each algorithm is what its paper prints, from the flag to the model it returns.

The transcriptions are in NumPy and float64, in the papers' order and symbols. A model is w, a
matrix [features + 1, classes] of softmax regression. What a paper leaves to chance, the draws of
clients and predictors, is asked of the package.
"""

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Optional

import numpy as np
import pytest
import tensorflow as tf

from tests.algorithms.cases import NUM_DOMAINS, random_ensemble
from tests.computations.harness import random_client, run_rounds, single
from tests.options import make_options
from tff_agnostic.algorithms import ALGORITHMS, Problem
from tff_agnostic.algorithms.fed_avg import takes_part
from tff_agnostic.algorithms.tail_thresholds import (
    ExactBoundary,
    LaggedThreshold,
    PaperBoundary,
)
from tff_agnostic.base.errors import UserError
from tff_agnostic.boosting.alpha import AlphaSteps
from tff_agnostic.computations import PlainSum
from tff_agnostic.computations.clients import client_seeds
from tff_agnostic.models import logistic_regression
from tff_agnostic.models.model import ModelWeights
from tff_agnostic.program.options.flags import flags_of
from tff_agnostic.program.runs.build import build_algorithm
from tff_agnostic.program.runs.spec import from_flags, resolve

_SEED, _T = 7, 5
_ETA, _E, _B = 0.2, 2, 4
_GAMMA_LAMBDA = 0.05
_N_0 = np.array([9.0, 12.0, 7.5])
# Halved every two rounds.
_GAMMAS = (_ETA, _ETA, _ETA / 2, _ETA / 2, _ETA / 4)
_TRAINING = {
    "client_learning_rate": _ETA,
    "client_epochs": _E,
    "client_batch_size": _B,
    "client_shuffle": False,
}

Client = dict[str, np.ndarray]


def _cohorts() -> list[list[Client]]:
    rng = np.random.default_rng(31)
    cohorts = []
    for t in range(_T):
        # Domain 2 is absent from the second round.
        domains = range(NUM_DOMAINS if t != 1 else 2)
        cohort = [random_client(rng, size, domains) for size in (5, 11, 2, 8)]
        for k, client in enumerate(cohort):
            # Losses far apart: the survey of Delta-FL takes those within 2.7% for equal.
            client["x"] *= np.float32(0.3 + 0.9 * k)
        cohorts.append(cohort)
    return cohorts


_COHORTS = _cohorts()
_W_0 = np.random.default_rng(4).normal(size=(5, 3), scale=0.3)


def _scores(w: np.ndarray, x: np.ndarray) -> np.ndarray:
    return np.c_[x, np.ones(len(x))] @ w


def _losses(w: np.ndarray, client: Client) -> np.ndarray:
    z = _scores(w, client["x"])
    return np.log(np.exp(z).sum(1)) - z[np.arange(len(z)), client["y"]]


def _gradient(w: np.ndarray, client: Client, scale: Any = 1.0) -> np.ndarray:
    """sum_j scale_j grad l_j(w)."""
    z = np.exp(_scores(w, client["x"]))
    error = z / z.sum(1, keepdims=True) - np.eye(z.shape[1])[client["y"]]
    x = np.c_[client["x"], np.ones(len(z))]
    return x.T @ (error * np.broadcast_to(scale, len(z))[:, None])


def _batches(client: Client) -> Iterator[Client]:
    for _ in range(_E):
        for start in range(0, len(client["y"]), _B):
            yield {key: value[start : start + _B] for key, value in client.items()}


def _client_update(
    w: np.ndarray, client: Client, mu: float = 0.0, of: Optional[int] = None, eta: float = _ETA
) -> np.ndarray:
    """McMahan et al. 2017, ClientUpdate; with mu FedProx's gamma-inexact solution by SGD."""
    w_t = w
    for b in _batches(client):
        scale = np.ones(len(b["y"])) if of is None else b["domain_id"] == of
        if scale.any():
            w = w - eta * (_gradient(w, b, scale) / scale.sum() + mu * (w - w_t))
    return w


def _n(cohort: Sequence[Client]) -> np.ndarray:
    return np.array([float(len(client["y"])) for client in cohort])


def _mean(weights: Any, models: Sequence[np.ndarray]) -> np.ndarray:
    c = np.asarray(weights, float)
    return np.tensordot(c / c.sum(), np.array(models), 1)


def _f(w: np.ndarray, cohort: Sequence[Client]) -> np.ndarray:
    return np.array([_losses(w, client).mean() for client in cohort])


def _fed_avg(w: np.ndarray) -> np.ndarray:
    """McMahan et al. 2017, Algorithm 1."""
    for S_t in _COHORTS:
        w = _mean(_n(S_t), [_client_update(w, k) for k in S_t])
    return w


def _target_only(w: np.ndarray) -> np.ndarray:
    """FedAvg on the examples of domain "1" in each batch, clients by their number of these."""
    for S_t in _COHORTS:
        n = [np.sum(k["domain_id"] == 1) for k in S_t]
        w = _mean(n, [_client_update(w, k, of=1) if n_k else w for k, n_k in zip(S_t, n)])
    return w


def _fed_prox(w: np.ndarray) -> np.ndarray:
    """Li et al. 2020, Algorithm 2, with devices averaged by n_k as they are drawn uniformly."""
    for S_t in _COHORTS:
        w = _mean(_n(S_t), [_client_update(w, k, mu=0.7) for k in S_t])
    return w


def _fed_avg_sub(w: np.ndarray) -> np.ndarray:
    """Laguel et al. 2021: FedAvg on those that are drawn."""
    for t, S_t in enumerate(_COHORTS):
        seeds = [client_seeds(np.array([_SEED, t], np.int32), single(k)) for k in S_t]
        drawn = [k for k, seed in zip(S_t, seeds) if bool(takes_part(seed, 0.5))]
        if drawn:
            w = _mean(_n(drawn), [_client_update(w, k) for k in drawn])
    return w


def _q_fed_avg(w: np.ndarray, q: float = 1.5) -> np.ndarray:
    """Li et al. 2020, "Fair Resource Allocation", Algorithm 2, L = 1 / eta; devices count alike."""
    L = 1 / _ETA
    for S_t in _COHORTS:
        F = _f(w, S_t)
        dw = [L * (w - _client_update(w, k)) for k in S_t]
        delta = [F_k**q * dw_k for F_k, dw_k in zip(F, dw)]
        h = [q * F_k ** (q - 1) * np.sum(dw_k**2) + L * F_k**q for F_k, dw_k in zip(F, dw)]
        w = w - np.sum(delta, axis=0) / np.sum(h)
    return w


def _term(w: np.ndarray, tilt: float = 1.5) -> np.ndarray:
    """Li et al. 2021: weights p_k exp(t F_k); a first round of FedAvg, as no loss is known yet."""
    for t, S_t in enumerate(_COHORTS):
        c = _n(S_t) * np.exp((tilt if t else 0.0) * _f(w, S_t))
        w = _mean(c, [_client_update(w, k) for k in S_t])
    return w


def _delta_fl(w: np.ndarray, theta: float = 0.5, gamma: Sequence[float] = _GAMMAS) -> np.ndarray:
    """Laguel et al. 2021, Algorithm 2, with its learning rate sequence (gamma_t)."""
    for S_t, gamma_t in zip(_COHORTS, gamma):
        F, alpha = _f(w, S_t), _n(S_t)  # line 4
        order = np.argsort(F)
        below = np.cumsum(alpha[order]) / alpha.sum()
        eta_t = F[order][np.argmax(below >= 1 - theta - 1e-12)]  # line 5: Quantile(1 - theta)
        S_filtered = [k for k, F_k in zip(S_t, F) if F_k >= eta_t]  # line 6
        local = [_client_update(w, k, eta=gamma_t) for k in S_filtered]  # lines 7 and 8
        w = _mean(_n(S_filtered), local)  # line 9
    return w


def _agnostic_fed_avg(w: np.ndarray) -> np.ndarray:
    """Ro et al. 2021, Algorithm 1, r = 1."""
    p = NUM_DOMAINS
    lambda_, N = np.full(p, 1 / p), _N_0
    for S_t in _COHORTS:
        # SERVER 4: alpha = lambda / N; of a domain absent from the window its last positive count
        alpha = lambda_ / N
        models, betas = [], []
        L, N_t = np.zeros(p), np.zeros(p)
        for k in S_t:
            for i in range(p):  # CLIENT 2 to 5
                L[i] += _losses(w, k)[k["domain_id"] == i].sum()
                N_t[i] += np.sum(k["domain_id"] == i)
            beta_k = alpha[k["domain_id"]].sum()  # CLIENT 6
            w_k = w
            for b in _batches(k):  # CLIENT 10: over the beta of the whole client
                w_k = w_k - _ETA * _gradient(w_k, b, alpha[b["domain_id"]]) / beta_k
            models.append(w_k)
            betas.append(beta_k)
        w = _mean(betas, models)  # SERVER 9
        mean_L = np.divide(L, N_t, out=np.zeros(p), where=N_t > 0)  # section 4: absent is 0
        lambda_ = lambda_ * np.exp(_GAMMA_LAMBDA * mean_L)  # SERVER 12
        lambda_ /= lambda_.sum()
        N = np.where(N_t > 0, N_t, N)
    return w


def _project(v: np.ndarray) -> np.ndarray:
    """The nearest point of the simplex (Wang and Carreira-Perpinan 2013)."""
    u = np.sort(v)[::-1]
    shift = (1 - np.cumsum(u)) / np.arange(1, len(v) + 1)
    return np.maximum(v + shift[np.nonzero(u + shift > 0)[0][-1]], 0)


def _stochastic_afl(w: np.ndarray) -> np.ndarray:
    """Mohri et al. 2019, figure 3, with a cohort in the place of a sample; returns w_A.

    gamma_w falls as the root of the rounds, as theorem 2's does with T; gamma_lambda stays.
    """
    p = NUM_DOMAINS
    lambda_, iterates = np.full(p, 1 / p), []
    for t, S_t in enumerate(_COHORTS):
        delta_w = sum(_gradient(w, k, (lambda_ / _N_0)[k["domain_id"]]) for k in S_t)
        delta_lambda = sum(
            np.bincount(k["domain_id"], _losses(w, k), minlength=p) / _N_0 for k in S_t
        )
        w = w - 0.3 / np.sqrt(1 + t) * delta_w
        lambda_ = _project(lambda_ + _GAMMA_LAMBDA * delta_lambda)
        iterates.append(w)
    return np.mean(iterates, axis=0)


_TRAINED: dict[str, tuple[Callable[[np.ndarray], np.ndarray], dict[str, Any]]] = {
    "agnostic_fed_avg": (
        _agnostic_fed_avg,
        {
            "lambda_learning_rate": _GAMMA_LAMBDA,
            "window": 1,
        },
    ),
    "delta_fl": (
        _delta_fl,
        {
            "client_schedule": "piecewise:rounds=2/4,factors=0.5/0.25",
        },
    ),
    "fed_avg": (_fed_avg, {}),
    "fed_avg_sub": (_fed_avg_sub, {}),
    "fed_avg_target_only": (_target_only, {"target_domain": "1"}),
    "fed_prox": (_fed_prox, {"mu": 0.7}),
    "q_ffl": (_q_fed_avg, {"q": 1.5}),
    "stochastic_afl": (
        _stochastic_afl,
        {
            "lambda_learning_rate": _GAMMA_LAMBDA,
            "server_learning_rate": 0.3,
            "server_schedule": "inverse_sqrt:rounds=1",
        },
    ),
    "term": (_term, {"tilt": 1.5}),
}


def _options(algorithm: str, **given: Any) -> Any:
    """Returns the options that these flags give; `digits` has tuned defaults."""
    names = {flag.name for flag in flags_of(ALGORITHMS[algorithm].options)}
    training = {flag: value for flag, value in _TRAINING.items() if flag in names}
    flags = {"algorithm": algorithm, "preset": "paper", **training, **given}
    return resolve("digits", flags, {}).algorithm


@pytest.mark.nightly_cases(but=["q_ffl"])
@pytest.mark.slow
@pytest.mark.parametrize("name", _TRAINED)
def test_the_model_is_the_papers(streaming_runtime, name):
    transcription, given = _TRAINED[name]
    problem = Problem(logistic_regression(4, 3), tuple("012"), _SEED, tuple(_N_0))
    algorithm = ALGORITHMS[name].build(problem, _options(name, **given))
    training = streaming_runtime.training(algorithm, PlainSum())
    state = training.initialize()
    w_0 = ModelWeights([_W_0[:4].astype(np.float32), _W_0[4].astype(np.float32)], [])
    state = state._replace(algorithm=algorithm.with_weights(state.algorithm, w_0))
    state, _ = run_rounds(training, _COHORTS, state)
    found = np.vstack(algorithm.main_model(state.algorithm).trainable)
    np.testing.assert_allclose(found, transcription(_W_0), rtol=2e-5, atol=2e-6)
    assert np.abs(found - _W_0).max() > 0.05


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fed_boost", "afl_boost"])
def test_the_ensemble_is_the_papers(streaming_runtime, name):
    """Hamer et al. 2020, figures 1 and 2, F the entropy, the log loss, C = 2 of q = 4."""
    eta, q, p, C = 0.05, 4, NUM_DOMAINS, 2
    model = random_ensemble(logistic_regression(4, 3), q, "log")
    given = {"alpha_learning_rate": eta, "budget": C}
    if name == "afl_boost":
        given["lambda_learning_rate"] = _GAMMA_LAMBDA
    options = _options(name, **given)
    spec, problem = ALGORITHMS[name], Problem(model, tuple("012"), _SEED, tuple(_N_0))
    algorithm = spec.build(problem, options, **spec.paper_arguments)
    state, _ = run_rounds(streaming_runtime.training(algorithm, PlainSum()), _COHORTS)
    steps = AlphaSteps(model, options, _SEED)
    kernel, bias = (np.asarray(v, float) for v in model.initial_weights.non_trainable)
    alpha, lambda_, iterates = np.full(q, 1 / q), np.full(p, 1 / p), []
    for t, S_t in enumerate(_COHORTS):
        iterates.append(alpha)
        drawn = steps.drawn(tf.constant(alpha, tf.float32), tf.constant(t))  # line 2
        H_t = np.zeros(q)
        H_t[np.asarray(drawn.indices)] = np.asarray(drawn.is_sampled)
        mixed = alpha / np.minimum(1, alpha * C) * H_t  # alpha~ = alpha / gamma, (8)
        m = _n(S_t).sum()
        delta, delta_lambda = np.zeros(q), np.zeros(p)
        for client in S_t:
            scores = np.exp(np.einsum("nf,qfc->nqc", client["x"], kernel) + bias)
            h = scores / scores.sum(2, keepdims=True)
            of_y = h[np.arange(len(h)), :, client["y"]]
            if not H_t.any():  # No step; nothing of it enters.
                continue
            weight = lambda_[client["domain_id"]] if name == "afl_boost" else np.ones(len(h))
            # What is not in H_t was not sent, and has no gradient.
            delta += (-of_y / (of_y @ mixed)[:, None] * H_t * weight[:, None]).sum(0) / m
            delta_lambda += np.bincount(client["domain_id"], -np.log(of_y @ mixed), minlength=p) / m
        if H_t.any():
            alpha = alpha * np.exp(-eta * delta)
            alpha /= alpha.sum()
            lambda_ = lambda_ * np.exp(_GAMMA_LAMBDA * delta_lambda)
            lambda_ /= lambda_.sum()
    main = algorithm.main_model(state.algorithm).trainable[0]
    np.testing.assert_allclose(main, np.mean(iterates, axis=0), rtol=2e-5)  # alpha^A
    last = algorithm.models(state.algorithm)["last"].trainable[0]
    np.testing.assert_allclose(last, alpha, rtol=2e-5)
    assert np.ptp(alpha) > 0.005


@pytest.mark.parametrize(
    ("preset", "names"), [("none", ["model", "mean"]), ("paper", ["model", "last"])]
)
def test_the_preset_puts_the_mean_of_alpha_first(preset, names):
    run = resolve("digits", {"algorithm": "afl_boost", "preset": preset}, {})
    task = run.load_task()
    task = dataclasses.replace(task, model=random_ensemble(task.model))
    algorithm = build_algorithm(run, task)
    assert list(algorithm.models(algorithm.initialize())) == names


def test_the_preset_of_afl_boost_refuses_losses_that_are_ratios():
    spec = ALGORITHMS["afl_boost"]
    problem = Problem.numbered(random_ensemble(logistic_regression(4, 3)), NUM_DOMAINS)
    with pytest.raises(UserError, match=r"^loss_estimate: expected unbiased where examples weigh"):
        spec.build(
            problem, make_options(spec.options, loss_estimate="ratio"), **spec.paper_arguments
        )


def test_every_preset_has_flags_of_its_algorithm():
    assert set(ALGORITHMS) == {*_TRAINED, "fed_boost", "afl_boost"}
    for name, spec in ALGORITHMS.items():
        names = {flag.name for flag in flags_of(spec.options)}
        assert spec.paper_settings and set(spec.paper_settings) <= names, name
        assert set(spec.paper_arguments) <= set(inspect.signature(spec.build).parameters), name


def test_what_is_given_comes_before_the_preset_and_both_are_kept():
    given = {"algorithm": "delta_fl", "preset": "paper", "threshold": "lagged"}
    run = resolve("digits", given, {})
    assert run.algorithm.threshold == LaggedThreshold()
    assert run.algorithm.boundary == PaperBoundary()
    assert from_flags(run.flags()) == run
    assert resolve("digits", {"algorithm": "delta_fl"}, {}).algorithm.boundary == ExactBoundary()
    # Resumed: what was resolved then, whatever presets say now.
    assert resolve("digits", {}, {}, inherited=run.settings()) == run


def test_an_algorithm_without_a_paper_is_refused(tmp_path):
    own = tmp_path / "own.py"
    own.write_text(
        "from tff_agnostic.algorithms import ALGORITHMS\n"
        "import dataclasses\n"
        "ALGORITHM = dataclasses.replace(ALGORITHMS['fed_avg'], paper_settings={})\n"
    )
    with pytest.raises(UserError, match=r"--preset=paper: expected an algorithm that says"):
        resolve("digits", {"algorithm": str(own), "preset": "paper"}, {})
