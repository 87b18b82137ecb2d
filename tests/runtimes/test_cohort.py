"""The cohort runtime: TFF's context, kernels that crash in threads, memory, and devices."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest
import tensorflow as tf

from tests.support import keras_zoo
from tests.support.algorithms import build
from tests.support.clients import cohort
from tests.support.commands import ROOT
from tests.support.on_devices import rounds_on_devices
from tff_agnostic.base.errors import ExecutionError
from tff_agnostic.base.later import tff
from tff_agnostic.computations import PlainSum, SecureSum
from tff_agnostic.runtimes import cohort as cohort_runtimes
from tff_agnostic.runtimes.cohort import CohortRuntime


@pytest.mark.nightly
def test_runtime_does_not_change_tffs_context():
    stack = tff.framework.get_context_stack()
    before = stack.current
    with CohortRuntime() as runtime:
        assert stack.current is before
        runtime.training(build("agnostic_fed_avg"), SecureSum())
        assert stack.current is before


def _normalized() -> tf.keras.Model:
    inputs = tf.keras.Input([4, 4, 2])
    outputs = tf.keras.layers.LayerNormalization()(inputs)
    outputs = tf.keras.layers.BatchNormalization(trainable=False)(outputs)
    outputs = tf.keras.layers.Flatten()(outputs)
    return tf.keras.Model(inputs, tf.keras.layers.Dense(3)(outputs))


@pytest.mark.slow
@pytest.mark.parametrize("training", [True, False])
def test_models_avoid_fused_normalisation(training):
    """TensorFlow's fused normalisation has a stateful kernel, which crashes with two lanes."""
    kind = keras_zoo.classification(_normalized, [4, 4, 2])
    model = kind.model()
    traced = tf.function(lambda x: model.predict(model.initial_weights, x, training, [0, 0]))
    operations = traced.get_concrete_function(kind.x_spec).graph.get_operations()
    assert not any("FusedBatchNorm" in operation.type for operation in operations)


def test_error_of_exhausted_memory_names_settings_to_lower(monkeypatch, streaming_runtime):
    def exhausted(_: Any) -> None:
        message = "OOM when allocating tensor with shape[20,4096]\n\nHint: a long one"
        raise tf.errors.ResourceExhaustedError(None, None, message)

    training = streaming_runtime.training(build("agnostic_fed_avg"), PlainSum())
    monkeypatch.setattr(cohort_runtimes, "summed_in_order", exhausted)
    with pytest.raises(ExecutionError) as error:
        training.next(training.initialize(), cohort())
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
        env={**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    on_four = json.loads(output.splitlines()[-1])
    assert on_four["devices"] == on_four["used"] == 4
    assert on_four["bits"] == rounds_on_devices("vectorised")["bits"]
