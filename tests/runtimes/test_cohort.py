"""The cohort runtime: structures of results, memory, devices, and use after close."""

import dataclasses
import gc
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.runtimes.processes import resident_mb
from tests.support import keras_zoo
from tests.support.algorithms import build
from tests.support.clients import random_client
from tests.support.comparing import assert_all_close, assert_identical
from tests.support.marks import usually
from tests.support.on_devices import rounds_on_devices
from tests.support.options import options_in_mode
from tests.support.rounds import EagerTraining, run_rounds
from tff_agnostic.base.errors import ExecutionError
from tff_agnostic.base.later import tff
from tff_agnostic.computations import PlainSum, RunState, SecureSum
from tff_agnostic.computations.evaluation import EvaluationOutput
from tff_agnostic.models import logistic_regression
from tff_agnostic.models.model import ModelWeights
from tff_agnostic.runtimes.cohort import CohortRuntime
from tff_agnostic.runtimes.options import CohortOptions

_ROOT = Path(__file__).parents[2]
_MODES = ["streamed", "vectorised"]


def _algorithm(model: Any = None):
    return build("agnostic_fed_avg", model, client_learning_rate=0.5)


def _cohort(seed: int = 0, num: int = 5) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    return [random_client(rng, int(rng.integers(12)), range(3)) for _ in range(num)]


@pytest.fixture(scope="module", params=_MODES)
def runtime(request):
    with CohortRuntime(options_in_mode(request.param, 2)) as running:
        yield running


@pytest.fixture(scope="module")
def training(runtime):
    return runtime.training(_algorithm(), PlainSum())


@pytest.mark.nightly
def test_rounds_equal_eager_training(training):
    cohorts = [_cohort(seed, num=1 + 7 * seed) for seed in range(6)]
    state, _ = run_rounds(training, cohorts)
    expected, _ = run_rounds(EagerTraining(_algorithm()), cohorts)
    assert_all_close(state, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.nightly
@pytest.mark.parametrize("num_classes, is_kept", [(3, True), (300_000, False)])
def test_small_models_are_traced_once_per_process(num_classes, is_kept):
    model, traced = logistic_regression(4, num_classes), []

    def predict(*arguments):
        traced.append(None)
        return model.predict(*arguments)

    counting = dataclasses.replace(model, predict=predict)
    counts = []
    for _ in range(2):
        with CohortRuntime(CohortOptions(client_mode="streamed")) as runtime:
            run_rounds(runtime.training(_algorithm(counting), PlainSum()), [_cohort(num=1)])
        counts.append(len(traced))
    assert counts[0] > 0
    assert (counts[1] == counts[0]) == is_kept


@pytest.mark.nightly
def test_results_are_numpy_arrays(runtime, training):
    state, metrics = training.next(training.initialize(), _cohort())
    model = logistic_regression(4, 3)
    output = runtime.evaluation(model, 3, PlainSum())(model.initial_weights, [_cohort()]).output
    assert isinstance(state, RunState)
    assert isinstance(state.algorithm.weights, ModelWeights)
    assert isinstance(output, EvaluationOutput)
    leaves = tf.nest.flatten((training.initialize(), state, metrics, output))
    assert all(isinstance(leaf, (np.ndarray, np.generic)) for leaf in leaves)


@pytest.mark.nightly
def test_empty_cohort_sums_to_zeros(runtime):
    """The first cohort is empty, so that no client's work has been traced."""
    training = runtime.training(_algorithm(), PlainSum())
    state = training.initialize()
    after, metrics = training.next(state, [])
    assert_identical(after.algorithm, state.algorithm)
    assert sum(metrics["clients"].values()) == 0
    model = logistic_regression(4, 3)
    output = runtime.evaluation(model, 3, PlainSum())(model.initial_weights, [])
    assert all(np.all(leaf == 0) for leaf in tf.nest.flatten(output.output))


@pytest.mark.nightly
def test_column_order_does_not_matter(training):
    state, cohort = training.initialize(), _cohort()
    reordered = [{key: c[key] for key in ("domain_id", "y", "x")} for c in cohort]
    with_extra = [{**c, "comment": np.array(["of", "any", "type"])} for c in cohort]
    expected = training.next(state, cohort)
    assert_identical(training.next(state, reordered), expected)
    assert_identical(training.next(state, with_extra), expected)


@pytest.mark.nightly
def test_rounds_do_not_change_their_arguments(training):
    state, cohort = training.initialize(), _cohort()
    copies = tf.nest.map_structure(np.copy, (state, cohort))
    training.next(state, cohort)
    assert_identical((state, cohort), copies)


@pytest.mark.nightly
def test_evaluations_between_rounds_keep_results(runtime, training):
    model = logistic_regression(4, 3)
    evaluate = runtime.evaluation(model, 3, PlainSum())
    expected, _ = run_rounds(training, [_cohort(0), _cohort(1)])
    state = training.initialize()
    for seed in range(2):
        evaluate(state.algorithm.weights, [_cohort(7)])
        state, _ = training.next(state, _cohort(seed))
    assert_identical(state, expected)


@pytest.mark.nightly
def test_runtime_can_be_entered_again():
    runtime = CohortRuntime()
    training = runtime.training(_algorithm(), PlainSum())
    results = []
    for _ in range(2):
        with runtime:
            results.append(run_rounds(training, [_cohort()]))
    assert_identical(results[0], results[1])


def test_prepared_rounds_do_not_run_after_close():
    with CohortRuntime() as runtime:
        training = runtime.training(_algorithm(), PlainSum())
        evaluation = runtime.evaluation(logistic_regression(4, 3), 3, PlainSum())
        state = training.initialize()
    for call in (
        lambda: training.next(state, _cohort()),
        lambda: training.next(state, []),
        lambda: evaluation(state.algorithm.weights, [_cohort()]),
    ):
        with pytest.raises(ExecutionError, match=r"^the cohort runtime is not running$"):
            call()


@pytest.mark.nightly
def test_runtime_does_not_change_tffs_context():
    stack = tff.framework.get_context_stack()
    before = stack.current
    with CohortRuntime() as runtime:
        assert stack.current is before
        runtime.training(_algorithm(), SecureSum())
        assert stack.current is before


@pytest.mark.slow
def test_runtime_survives_failing_round(runtime, training):
    state, cohort = training.initialize(), _cohort()
    expected = training.next(state, cohort)
    # Domain 99 is out of range.
    wrong = {**cohort[0], "domain_id": np.full(len(cohort[0]["y"]), 99, np.int32)}
    with pytest.raises(tf.errors.InvalidArgumentError):
        training.next(state, [*cohort, wrong])
    assert_identical(training.next(state, cohort), expected)


@pytest.mark.nightly
@pytest.mark.parametrize("mode", usually(["streamed"], _MODES))
def test_memory_does_not_grow_with_the_rounds(mode):
    """Leaked states would add 12 MB per 30 rounds, and leaked examples 29 MB.

    A leak adds memory in each third of the rounds; an allocator's reserve grows in only one.
    """
    rng = np.random.default_rng(0)
    cohort = [random_client(rng, 60, range(3), num_features=2000, num_classes=50) for _ in range(4)]
    model = logistic_regression(2000, 50)
    with CohortRuntime(options_in_mode(mode, 2)) as runtime:
        training = runtime.training(_algorithm(model), PlainSum())
        evaluate = runtime.evaluation(model, 3, PlainSum())
        state = training.initialize()
        sizes = []
        for k in range(90):
            state, _ = training.next(state, cohort)
            if k % 10 == 0:
                evaluate(state.algorithm.weights, [cohort])
            if k % 30 == 29:
                gc.collect()
                sizes.append(resident_mb(os.getpid()))
        assert min(np.diff(sizes)) < 6


def _normalized_dense() -> tf.keras.Model:
    inputs = tf.keras.Input([5])
    normalized = tf.keras.layers.LayerNormalization()(inputs)
    return tf.keras.Model(inputs, tf.keras.layers.Dense(3)(normalized))


def _normalized_images() -> tf.keras.Model:
    inputs = tf.keras.Input([4, 4, 2])
    normalized = tf.keras.layers.BatchNormalization(trainable=False)(inputs)
    flat = tf.keras.layers.Flatten()(normalized)
    return tf.keras.Model(inputs, tf.keras.layers.Dense(3)(flat))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "shape"), [(_normalized_dense, [5]), (_normalized_images, [4, 4, 2])]
)
def test_models_avoid_fused_normalisation(build, shape):
    """TensorFlow's fused normalisation has a stateful kernel, which crashes with two lanes."""
    kind = keras_zoo.classification(build, shape)
    model = kind.model()
    for training in (True, False):
        traced = tf.function(
            lambda x, t=training: model.predict(model.initial_weights, x, t, [0, 0])
        )
        operations = traced.get_concrete_function(kind.x_spec).graph.get_operations()
        assert not any("FusedBatchNorm" in operation.type for operation in operations)


class _FullLanes:
    """Lanes whose device has no free memory."""

    def map_in_order(self, fn: Any, items: Any) -> Iterator[Any]:
        yield from ()
        message = "OOM when allocating tensor with shape[20,4096]\n\nHint: a long one"
        raise tf.errors.ResourceExhaustedError(None, None, message)


class _FullLanesRuntime(CohortRuntime):
    def running_lanes(self) -> Any:
        return _FullLanes()


def test_error_of_exhausted_memory_names_settings_to_lower():
    training = _FullLanesRuntime().training(_algorithm(), PlainSum())
    with pytest.raises(ExecutionError) as error:
        training.next(training.initialize(), _cohort())
    assert str(error.value) == (
        "out of memory: lower lanes, max_clients_in_step, client_batch_size or "
        "max_examples: OOM when allocating tensor with shape[20,4096]"
    )


@pytest.mark.slow
def test_device_count_keeps_vectorised_results_identical():
    """Another process has four logical devices; `test_card.py` tests streamed clients."""
    output = subprocess.check_output(
        [sys.executable, "-W", "ignore", "-m", "tests.support.on_devices", "4", "vectorised"],
        text=True,
        env={**os.environ, "PYTHONPATH": str(_ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    on_four = json.loads(output.splitlines()[-1])
    assert on_four["devices"] == on_four["used"] == 4
    assert on_four["bits"] == rounds_on_devices("vectorised")["bits"]
