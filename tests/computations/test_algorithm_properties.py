"""What has to hold for every registered algorithm, in the TFF runtime.

A new algorithm needs no test of its own for these: it is in the registry.
"""

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.computations.harness import (
    EagerTraining,
    assert_all_close,
    assert_identical,
    make_client,
    random_client,
    run_rounds,
)
from tff_agnostic.computations.aggregation import PlainSum
from tff_agnostic.computations.algorithm import AlgorithmParams
from tff_agnostic.computations.domain_weights import DomainWeightsParams
from tff_agnostic.computations.local_training import LocalTrainingParams
from tff_agnostic.computations.registry import ALGORITHMS
from tff_agnostic.models import Model, logistic_regression, model_from_keras

_DOMAINS = 3
# `target_domain` and `domain_weights` are ignored by the algorithms that have no use for them.
_PARAMS = AlgorithmParams(
    local_training=LocalTrainingParams(learning_rate=0.5, epochs=2, batch_size=4),
    domain_weights=DomainWeightsParams(learning_rate=0.1, window_size=2),
    target_domain=1,
    seed=7,
)


@pytest.fixture(scope="module", params=list(ALGORITHMS))
def name(request) -> Iterator[str]:
    yield request.param


def _algorithm(name: str, model: Any = None, num_domains: int = _DOMAINS, params: Any = _PARAMS):
    model = logistic_regression(4, 3) if model is None else model
    return ALGORITHMS[name](model, num_domains, params)


@pytest.fixture(scope="module")
def training(tff_runtime, name):
    return tff_runtime.training(_algorithm(name), PlainSum())


def _cohort(seed: int = 0, sizes: tuple[int, ...] = (9, 4, 1, 13)) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    return [random_client(rng, n, range(_DOMAINS)) for n in sizes]


def _cohorts(num: int) -> list[list[dict[str, np.ndarray]]]:
    return [_cohort(seed) for seed in range(num)]


def _empty_client() -> dict[str, np.ndarray]:
    return make_client(np.zeros([0, 4]), [])


def _spoiled_client(value: float) -> dict[str, np.ndarray]:
    client = random_client(np.random.default_rng(5), 6, range(_DOMAINS))
    client["x"][3, 1] = value
    return client


def _started(training) -> Any:
    """A state some rounds in, where lambda, the window and the weights differ from the start."""
    return run_rounds(training, _cohorts(2))[0]


def _assert_only_the_round_number_moved(state, next_state) -> None:
    assert next_state.round_num == state.round_num + 1
    assert_identical(next_state._replace(round_num=state.round_num), state)


def _assert_finite(structure) -> None:
    for value in tf.nest.flatten(structure):
        assert np.all(np.isfinite(value))


def test_it_learns(training):
    before = training.initialize()
    after, _ = training.next(before, _cohort())
    assert after.round_num == 1
    assert not np.allclose(after.weights.trainable[0], before.weights.trainable[0])


def test_the_name_is_the_one_in_the_registry(name):
    assert _algorithm(name).name == name


def test_the_order_of_the_clients_does_not_matter(training):
    state, cohort = _started(training), _cohort(3)
    forwards, forwards_metrics = training.next(state, cohort)
    backwards, backwards_metrics = training.next(state, cohort[::-1])
    assert_all_close(backwards, forwards)
    assert_all_close(backwards_metrics, forwards_metrics)


def test_with_one_domain_it_is_fed_avg(tff_runtime, name):
    params = AlgorithmParams(
        local_training=_PARAMS.local_training, target_domain=0, seed=_PARAMS.seed
    )
    rng = np.random.default_rng(1)
    cohorts = [[random_client(rng, n, [0]) for n in (7, 3, 10)] for _ in range(4)]
    states = [
        run_rounds(EagerTraining(_algorithm(n, num_domains=1, params=params)), cohorts)[0]
        for n in (name, "fed_avg")
    ]
    assert_all_close(states[0].weights, states[1].weights)


def test_equal_scales_of_all_domains_make_it_fed_avg(name):
    training = EagerTraining(_algorithm(name))
    uniform = EagerTraining(_algorithm("fed_avg"))
    state, cohort = training.initialize(), _cohort()
    client_input = training.prepare(state)._replace(alpha=np.full([_DOMAINS], 0.03, np.float32))
    next_state, _ = training.server_update(state, training.sum_cohort(client_input, cohort))
    expected, _ = uniform.next(uniform.initialize(), cohort)
    assert_all_close(next_state.weights, expected.weights)


@pytest.mark.parametrize("factor", [1e-4, 0.5, 1e4])
def test_a_common_factor_of_alpha_does_not_matter(name, factor):
    training = EagerTraining(_algorithm(name))
    state, cohort = training.initialize(), _cohort()
    client_input = training.prepare(state)
    scaled = client_input._replace(alpha=client_input.alpha * factor)
    next_state, metrics = training.server_update(state, training.sum_cohort(scaled, cohort))
    expected, expected_metrics = training.server_update(
        state, training.sum_cohort(client_input, cohort)
    )
    assert_all_close(next_state, expected)
    assert_all_close(metrics, expected_metrics)


def test_doubling_the_cohort_leaves_the_model_update(training):
    state, cohort = _started(training), _cohort(4)
    once, once_metrics = training.next(state, cohort)
    twice, twice_metrics = training.next(state, [*cohort, *cohort])
    assert_all_close(twice.weights, once.weights)
    np.testing.assert_array_equal(
        twice_metrics["client_work"]["train"]["num_examples"],
        2 * once_metrics["client_work"]["train"]["num_examples"],
    )
    assert_all_close(
        twice_metrics["client_work"]["train"]["loss"],
        once_metrics["client_work"]["train"]["loss"],
    )


def test_an_empty_cohort_changes_nothing(training):
    state = _started(training)
    next_state, metrics = training.next(state, [])
    _assert_only_the_round_number_moved(state, next_state)
    _assert_finite(metrics)
    assert sum(metrics["clients"].values()) == 0


def test_a_client_without_examples_adds_nothing_and_is_counted(training):
    state, cohort = _started(training), _cohort(6)
    expected, _ = training.next(state, cohort)
    next_state, metrics = training.next(state, [cohort[0], _empty_client(), *cohort[1:]])
    assert_all_close(next_state, expected, rtol=1e-6)
    assert metrics["clients"]["empty"] == 1
    assert metrics["clients"]["non_finite"] == 0


def test_a_cohort_without_examples_changes_nothing(training):
    state = _started(training)
    next_state, metrics = training.next(state, [_empty_client(), _empty_client()])
    _assert_only_the_round_number_moved(state, next_state)
    _assert_finite(metrics)
    assert metrics["clients"]["empty"] == 2


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_client_that_is_not_finite_adds_nothing_and_is_counted(training, value):
    state, cohort = _started(training), _cohort(7)
    expected, expected_metrics = training.next(state, cohort)
    next_state, metrics = training.next(state, [*cohort, _spoiled_client(value)])
    assert_all_close(next_state, expected, rtol=1e-6)
    assert_all_close(metrics["client_work"], expected_metrics["client_work"], rtol=1e-6)
    assert metrics["clients"]["non_finite"] == 1
    assert metrics["clients"]["contributed"] == expected_metrics["clients"]["contributed"]


def test_a_cohort_of_clients_that_are_not_finite_changes_nothing(training):
    state = _started(training)
    next_state, metrics = training.next(state, [_spoiled_client(np.nan)] * 3)
    _assert_only_the_round_number_moved(state, next_state)
    _assert_finite(metrics)
    assert metrics["clients"]["non_finite"] == 3


def test_every_client_is_counted_once(training):
    other_domain = random_client(np.random.default_rng(8), 5, [0])
    cohort = [*_cohort(8), other_domain, _empty_client(), _spoiled_client(np.nan)]
    _, metrics = training.next(training.initialize(), cohort)
    assert sum(metrics["clients"].values()) == len(cohort)


def test_domains_absent_for_many_rounds_leave_everything_finite(training):
    rng = np.random.default_rng(9)
    state = training.initialize()
    for _ in range(30):
        state, metrics = training.next(state, [random_client(rng, 6, [1])])
    _assert_finite((state, metrics))
    # All domains again, after the others were absent for fifteen windows.
    state, metrics = training.next(state, _cohort(10))
    _assert_finite((state, metrics))
    np.testing.assert_allclose(metrics["domain_weights"]["lambda"].sum(), 1.0, rtol=1e-5)


def test_a_batch_may_be_larger_than_the_client(tff_runtime, name):
    cohort = _cohort(11)
    states = []
    for batch_size in (13, 10_000):
        params = AlgorithmParams(
            local_training=LocalTrainingParams(batch_size=batch_size), target_domain=1
        )
        training = EagerTraining(_algorithm(name, params=params))
        states.append(run_rounds(training, [cohort] * 2)[0])
    assert_all_close(states[0], states[1])


def test_a_resumed_run_is_the_run_that_was_not_interrupted(tff_runtime, name, training):
    cohorts = _cohorts(6)
    expected, expected_metrics = run_rounds(training, cohorts)

    halfway, _ = run_rounds(training, cohorts[:3])
    resumed = tff_runtime.training(_algorithm(name), PlainSum())
    restored = _through_npz(halfway)
    state, metrics = run_rounds(resumed, cohorts[3:], restored)

    assert_identical(state, expected)
    assert_identical(metrics, expected_metrics[3:])


def _through_npz(state: Any) -> Any:
    buffer = io.BytesIO()
    np.savez(buffer, *tf.nest.flatten(state))
    buffer.seek(0)
    with np.load(buffer) as archive:
        return tf.nest.pack_sequence_as(state, [archive[key] for key in archive.files])


def test_repeated_runs_are_identical_with_shuffling_and_dropout(tff_runtime, name):
    cohorts = _cohorts(3)
    runs = [
        run_rounds(
            tff_runtime.training(_algorithm(name, model=_dropout_model()), PlainSum()), cohorts
        )
        for _ in range(2)
    ]
    assert_identical(runs[0], runs[1])


def test_another_seed_is_another_run(tff_runtime, name, training):
    params = AlgorithmParams(
        local_training=_PARAMS.local_training,
        domain_weights=_PARAMS.domain_weights,
        target_domain=_PARAMS.target_domain,
        seed=8,
    )
    other = EagerTraining(_algorithm(name, params=params))
    state, _ = run_rounds(training, _cohorts(1))
    other_state, _ = run_rounds(other, _cohorts(1))
    assert not np.array_equal(state.weights.trainable[0], other_state.weights.trainable[0])


def test_every_round_has_a_seed_of_its_own(name):
    training = EagerTraining(_algorithm(name))
    state = training.initialize()
    seeds = [tuple(training.prepare(state._replace(round_num=t)).seed.numpy()) for t in range(5)]
    assert len(set(seeds)) == 5


def _dropout_model() -> Model:
    def build() -> tf.keras.Model:
        inputs = tf.keras.Input([4])
        hidden = tf.keras.layers.Dense(8, activation="relu")(inputs)
        hidden = tf.keras.layers.Dropout(0.5)(hidden)
        return tf.keras.Model(inputs, tf.keras.layers.Dense(3)(hidden))

    return model_from_keras(
        build,
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none"),
        example_spec={
            "x": tf.TensorSpec([None, 4], tf.float32),
            "y": tf.TensorSpec([None], tf.int32),
        },
    )
