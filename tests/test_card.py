"""Requirements of the project: a round's form in TFF, runtime, devices, binaries and exports."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
import tensorflow_privacy as tfp

from binaries import export, train
from tests.plan_runner.harness import call as run_plan
from tests.support.algorithms import build
from tests.support.clients import make_client
from tests.support.commands import ROOT, TOY, Caller
from tests.support.comparing import flat
from tests.support.on_devices import rounds_on_devices
from tests.support.rounds import communication
from tests.support.stores import image, text_store, write_store
from tff_agnostic import aggregations
from tff_agnostic.algorithms import build_agnostic_fed_avg
from tff_agnostic.computations import PlainSum, SecureSum
from tff_agnostic.metrics.metrics_file import read_history
from tff_agnostic.models import logistic_regression
from tff_agnostic.tasks import emnist

_ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
_ABSENT = [kind for kind in ("gpu", "tpu") if not tf.config.list_logical_devices(kind.upper())]


@pytest.fixture(scope="module")
def call(tff_runtime: Any) -> Caller:
    """A caller of commands in this process, with only TFF as a runtime."""
    return Caller({"tff": tff_runtime})


def _process_output(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *arguments],
        env=_ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# --- TFF's representation of a round


@pytest.mark.parametrize(
    ("aggregation", "uri"),
    [(PlainSum(), "federated_sum"), (SecureSum(), "federated_secure_sum_bitwidth")],
    ids=["plain", "secure"],
)
def test_round_is_one_broadcast_and_one_sum(tff_runtime, aggregation, uri):
    process = build_agnostic_fed_avg(logistic_regression(4, 3), 2, aggregation=aggregation)
    assert isinstance(process, tff.learning.templates.LearningProcess)
    assert communication(process.next) == {"federated_broadcast": 1, uri: 1}


def test_round_maps_state_and_clients_to_output(tff_runtime):
    process = build_agnostic_fed_avg(logistic_regression(4, 3), 2)
    state_type, data_type = process.next.type_signature.parameter
    assert state_type.placement is tff.SERVER
    assert data_type.placement is tff.CLIENTS
    assert not data_type.all_equal
    assert dict(tff.structure.iter_elements(data_type.member)) == {
        "x": tff.TensorType(np.float32, [None, 4]),
        "y": tff.TensorType(np.int32, [None]),
        "domain_id": tff.TensorType(np.int32, [None]),
    }
    result = process.next.type_signature.result
    assert result.state == state_type
    assert result.metrics.placement is tff.SERVER


# --- --runtime=tff


def _writers(path: Path) -> Path:
    domains = (emnist.HIGH_SCHOOL, emnist.CENSUS)
    rows = [
        (split, image(f"{split}_{k}", domain, label))
        for split in ("train", "test")
        for k, domain in enumerate(domains)
        for label in (3, 9)
    ]
    return write_store(path, rows, "features")


_TASKS = {
    "lstm": (
        text_store,
        ("--task=next_word", "--network=lstm:embedding=2,units=3"),
        ("--sequence_length=4",),
    ),
    "cnn": (_writers, ("--task=emnist", "--network=cnn", "--num_classes=10"), ()),
}


@pytest.mark.parametrize("kind", _TASKS)
def test_command_trains_two_rounds_in_tff(call, tmp_path, kind):
    write, *flags = _TASKS[kind]
    run = tmp_path / "run"
    call.ok(
        *(train, "--runtime=tff", f"--data={write(tmp_path / 'store.sqlite')}", *sum(flags, ())),
        *("--clients_per_round=2", "--rounds=2", f"--output_dir={run}"),
    )
    history = read_history(run / "metrics.csv")
    assert list(history["round"]) == [1, 2]
    assert all(np.all(np.isfinite(history[name])) for name in history if "train" in name)
    assert np.all(history["update_norm"] > 0)


# --- Devices and binaries


def test_device_count_keeps_streamed_results_identical():
    """Another process uses three logical devices, and this process uses one."""
    output = _process_output("-m", "tests.support.on_devices", "3", "streamed")
    on_three = json.loads(output.splitlines()[-1])
    assert on_three["devices"] == on_three["used"] == 3
    assert on_three["bits"] == rounds_on_devices("streamed")["bits"]


@pytest.mark.parametrize("kind", _ABSENT)
def test_absent_device_raises_user_error(call, tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    message = call.refused(tmp_path, train, *TOY, f"--device={kind}", "--xla")
    assert message.startswith(
        f"--device: expected a {kind.upper()} that TensorFlow sees, found only CPU: "
    )


def test_trained_export_runs_in_plan_runner(call, tmp_path):
    run, plan = tmp_path / "run", tmp_path / "plan"
    _process_output(str(ROOT / "binaries" / "train.py"), *TOY, "--rounds=1", f"--output_dir={run}")
    call.ok(export, f"--checkpoint={run}", "--profile=secure", f"--output_dir={plan}")
    outcome = run_plan(f"--plan={plan}", "--verify")
    assert outcome.status == 0, outcome
    assert "\nverified" in outcome.out


# --- tensorflow-privacy


def test_tensorflow_privacy_noise_reaches_the_model(tff_runtime):
    """Three clients have equal weights, so the mean's noise is a third of the sum's noise."""
    clip_norm, noise_multiplier, num_clients = 0.01, 1.3, 3
    query = tfp.GaussianSumQuery(clip_norm, noise_multiplier * clip_norm)
    factory = tff.aggregators.UnweightedMeanFactory(
        tff.aggregators.DifferentiallyPrivateFactory(query)
    )
    # With these counts, the clients' weights add up to 1.
    algorithm = build(
        "agnostic_fed_avg", logistic_regression(300, 10), 3, initial_counts=(9.0,) * 3
    )
    aggregation = aggregations.from_tff(factory, mean_weight=1 / num_clients)
    training = tff_runtime.training(algorithm, aggregation)
    client = make_client(np.ones([9, 300]), [0, 1, 2] * 3, [0, 1, 2] * 3)
    state = training.initialize()
    steps = []
    for _ in range(2):
        before = state
        state, report = training.next(before, [client] * num_clients)
        assert report["skipped"] == 0
        after, w = (flat(s.algorithm.weights.trainable) for s in (state, before))
        steps.append(after - w)
    expected = noise_multiplier * clip_norm / num_clients
    for step in steps:
        # With 3,010 values, the standard error is 1.3%. The mean update adds less than 0.1%.
        assert np.std(step) == pytest.approx(expected, rel=0.06)
    assert abs(np.corrcoef(steps)[0, 1]) < 0.1


# --- Files and folders


@pytest.mark.parametrize(
    "path",
    [
        *("BUILD", "WORKSPACE", "binaries", "tests", "tff_agnostic"),
        *("tff_agnostic/computations/BUILD", "tff_agnostic/tasks/BUILD"),
    ],
)
def test_required_path_exists(path):
    assert (ROOT / path).exists()
