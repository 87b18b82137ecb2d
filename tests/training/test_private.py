"""Private training in the library: reported epsilon, noise, cohorts and invalid options."""

import math

import numpy as np
import pytest
import tensorflow as tf

from tests.privacy.closed_forms import gaussian_epsilon
from tests.support.options import make_options
from tff_agnostic import regression, train
from tff_agnostic.aggregations.private_sum import ServerNoiseOptions
from tff_agnostic.algorithms.fed_avg import FedAvgOptions, fed_avg
from tff_agnostic.base.options import OptionError
from tff_agnostic.computations import PlainSum
from tff_agnostic.training.private import PrivacyAccount, PrivateTraining
from tff_agnostic.training.private_cohorts import CohortPlan

_CLIENTS, _ROUNDS, _Z, _DELTA = 6, 4, 2.0, 1e-3


def _line() -> tf.keras.Model:
    zeros = tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    return tf.keras.Sequential([tf.keras.Input([2]), zeros])


@pytest.fixture(scope="module")
def parts():
    rng = np.random.default_rng(0)
    arrays = {}
    for k in range(_CLIENTS):
        x = rng.normal(size=(5, 2))
        arrays[f"c{k}"] = {"x": x, "y": x @ [1.0, -2.0], "domain_id": np.full(5, k % 2)}
    problem, clients = regression(_line, arrays, ["even", "odd"], clients_per_round=_CLIENTS)
    return fed_avg(problem, make_options(FedAvgOptions, client_learning_rate=0.1)), clients


def _private(parts, clients_per_round=_CLIENTS, sampling="poisson", rounds=_ROUNDS, **options):
    algorithm, clients = parts
    plan = CohortPlan(clients, 2, rounds, clients_per_round, sampling)
    values = {"noise_multiplier": _Z, "delta": _DELTA, "limit_loss": 10.0, **options}
    noise = make_options(ServerNoiseOptions, **values)
    return PrivateTraining("central", noise, PlainSum(), algorithm, plan)


def _train(parts, runtime, private, rounds=_ROUNDS, account=None, **settings):
    algorithm, clients = parts
    return train(
        algorithm,
        clients,
        rounds,
        aggregation=private.aggregation(),
        cohorts=private.cohorts,
        runtime=runtime,
        observers=[PrivacyAccount(account or private)],
        **settings,
    )


def _composed_epsilon(rounds: int) -> float:
    """Returns the epsilon of rounds in which every client takes part."""
    return gaussian_epsilon(math.sqrt(rounds) / _Z, _DELTA)


def test_reported_epsilon_equals_a_gaussian_mechanisms_epsilon(parts, streaming_runtime):
    private = _private(parts)
    trained = _train(parts, streaming_runtime, private)
    spent = [float(report["privacy"]["epsilon"]) for report in trained.reports]
    expected = [_composed_epsilon(t) for t in range(1, _ROUNDS + 1)]
    assert spent == pytest.approx(expected, rel=2e-3)
    assert private.statement(_ROUNDS).to_dict()["epsilon"] == spent[-1]


@pytest.mark.slow
def test_resumed_run_repeats_noise_and_cohorts(parts, streaming_runtime):
    whole = _train(parts, streaming_runtime, _private(parts, clients_per_round=2))
    first = _train(parts, streaming_runtime, _private(parts, clients_per_round=2), rounds=2)
    ends = []
    for _ in range(2):
        # A new process draws a new noise key, but `resume_from` restores the state's key.
        private = _private(parts, clients_per_round=2)
        private.resume_from(first.state)
        ends.append(_train(parts, streaming_runtime, private, state=first.state))
    weights = [end.models["model"].trainable[0].tobytes() for end in (*ends, whole)]
    assert weights[0] == weights[1] != weights[2]
    assert ends[0].reports[-1]["privacy"] == whole.reports[-1]["privacy"]


def test_rejects_account_for_another_noise_multiplier(parts, streaming_runtime):
    private, other = _private(parts), _private(parts, noise_multiplier=3.0)
    with pytest.raises(OptionError, match=r"^observers: .*, found 'PrivacyAccount'"):
        _train(parts, streaming_runtime, private, account=other)


def test_target_epsilon_gives_minimum_noise(parts):
    private = _private(parts, noise_multiplier=None, target_epsilon=_composed_epsilon(_ROUNDS))
    assert private.noise_multiplier == pytest.approx(_Z, rel=5e-3)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"noise_multiplier": None}, r"noise_multiplier: expected a number, or a target_epsilon"),
        ({"target_epsilon": 1.0}, r"noise_multiplier: expected a number, or .*, found both"),
        ({"sampling": "turns"}, r"cohort_sampling: expected poisson, uniform or stratified with"),
        ({"delta": 0.5}, r"delta: expected more than 0 and less than"),
    ],
)
def test_rejects_invalid_noise_options(parts, changed, message):
    with pytest.raises(OptionError, match=f"^{message}"):
        _private(parts, **changed)
