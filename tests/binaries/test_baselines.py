"""Baselines of excess losses: trivial ones in closed form, reference runs, and given files."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from scipy import optimize

from benchmarks.hard_domains.digits import DIGITS_MODEL
from binaries import compare, train
from tests.support.commands import Caller, compared_specs, tree
from tests.support.models import squared_differences
from tests.support.stores import write_store
from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import read_json
from tff_agnostic.data.clients import InMemoryClients
from tff_agnostic.data.store_format import Record
from tff_agnostic.metrics.metrics_file import read_history
from tff_agnostic.models import SentenceLoss, logistic_regression
from tff_agnostic.models.model import Model, ModelWeights
from tff_agnostic.program.options.process import StopRequest
from tff_agnostic.program.runs import baselines
from tff_agnostic.program.runs.baseline_files import read_baselines
from tff_agnostic.program.runs.baselines import trivial_loss
from tff_agnostic.program.runs.build import build_algorithm
from tff_agnostic.program.runs.spec import RunSettings, resolve
from tff_agnostic.tasks import toy_regression
from tff_agnostic.tasks.task import Task, TaskContext


def _labels(*labels):
    return [{"x": np.zeros([len(y), 2], np.float32), "y": np.array(y, np.int32)} for y in labels]


def _smoothed(y, p):
    return tf.nn.softmax_cross_entropy_with_logits(0.8 * tf.one_hot(y, 3) + 0.2 / 3, p)


def _brier(y, p):
    return tf.reduce_sum(tf.square(tf.one_hot(y, 3) - p), axis=-1)


def _squared(y, p):
    return tf.square(tf.cast(y, tf.float32) - p[:, 0])


def _absolute(y, p):
    return tf.abs(tf.cast(y, tf.float32) - p[:, 0])


# The classes have fractions of 1/2, 1/4 and 1/4 over both clients.
_CLASSES = _labels([0, 0, 1], [2, 0, 0, 1, 2])
_SMOOTHED = 0.8 * np.array([0.5, 0.25, 0.25]) + 0.2 / 3


@pytest.mark.parametrize(
    ("loss", "outputs", "clients", "expected"),
    [
        # The trivial losses are entropies of the labels.
        (None, 3, _CLASSES, 1.5 * np.log(2)),
        (None, 3, _labels([1, 1]), 0),
        (_smoothed, 3, _CLASSES, -np.sum(_SMOOTHED * np.log(_SMOOTHED))),
        # This loss takes probabilities, so the constant outputs must be probabilities.
        (_brier, 3, _CLASSES, 1.0 - np.sum(np.square([0.5, 0.25, 0.25]))),
        # The trivial losses are variances of labels: first 36% ones, then other integers.
        (_squared, 1, _labels([1] * 9 + [0] * 16), 0.36 * 0.64),
        (_squared, 1, _labels([3, 5], [9, 11]), 10.0),
        # The trivial loss is the mean distance from the median.
        (_absolute, 1, _labels([0, 1, 1, 100, 5]), 104 / 5),
    ],
)
def test_trivial_loss_has_closed_form(loss, outputs, clients, expected):
    model = logistic_regression(2, outputs)
    if loss is not None:
        model = dataclasses.replace(model, loss=loss)
    if loss is _brier:
        logits = model.predict
        model = dataclasses.replace(model, predict=lambda *inputs: tf.nn.softmax(logits(*inputs)))
    rel = 1e-6 if loss is None else 1e-3 if loss is _absolute else 1e-4
    assert trivial_loss(model, clients) == pytest.approx(expected, rel=rel)


def test_trivial_number_loss_is_variance():
    task = toy_regression.load(toy_regression.ToyRegressionOptions(), TaskContext(0))
    clients = [task.train.read(client_id) for client_id in task.train.client_ids]
    expected = np.var(np.concatenate([client["y"] for client in clients]))
    assert trivial_loss(task.model, clients) == pytest.approx(expected, rel=1e-5)


@pytest.mark.nightly
@pytest.mark.parametrize("length", [None, 4.0])
def test_trivial_word_loss_is_unigram(length):
    """The trivial loss is the smallest that constant scores can have."""
    loss = SentenceLoss(length)
    model = Model(
        ModelWeights([np.zeros([4], np.float32)], []),
        {"x": tf.TensorSpec([None, 3], tf.int32), "y": tf.TensorSpec([None, 3], tf.int32)},
        predict=lambda weights, x, training, seed: None,
        loss=loss,
    )
    y = np.array([[1, 2, 0], [3, 0, 0], [1, 1, 3], [1, 0, 0]], np.int32)
    actual = trivial_loss(model, [{"x": y, "y": y}])
    scores = tf.Variable(tf.zeros([4]))
    for _ in range(200):
        with tf.GradientTape() as tape:
            everywhere = tf.broadcast_to(scores, [4, 3, 4])
            value = tf.reduce_mean(loss(tf.constant(y), everywhere))
        scores.assign_sub(2.0 * tape.gradient(value, scores))
    assert actual == pytest.approx(float(value), abs=5e-3)


# --- Each reference run trains on one domain


def _task(**num_clients: int) -> Task:
    """Returns a task of clients with 20 examples of one domain each.

    The held-out examples of a domain are its training examples.
    """
    rng = np.random.default_rng(3)
    train, held = {}, {}
    for domain, name in enumerate(num_clients):
        solution, noise = rng.normal(size=2), 0.3 * (1 + domain)
        for k in range(num_clients[name]):
            x = rng.normal(size=[20, 2])
            y = x @ solution + noise * rng.normal(size=20)
            train[f"{name} {k}"] = {
                "x": x.astype(np.float32),
                "y": y.astype(np.float32),
                "domain_id": np.full(20, domain, np.int32),
            }
        in_domain = [entry for client, entry in train.items() if client.startswith(name)]
        held[name] = {c: np.concatenate([entry[c] for entry in in_domain]) for c in in_domain[0]}
    return Task(
        tuple(num_clients),
        InMemoryClients(train),
        InMemoryClients(held),
        squared_differences(),
        test_split="heldout",
    )


def _reference(monkeypatch, task: Task, **settings) -> RunSettings:
    monkeypatch.setattr(RunSettings, "load_task", lambda _: task)
    given = {"algorithm": "fed_avg", "client_batch_size": 60, "client_learning_rate": 0.3}
    return resolve("toy_regression", {**given, **settings}, {})


@pytest.mark.slow
def test_reference_runs_reach_domain_optima(cohort_runtime, monkeypatch, tmp_path, capsys):
    task = _task(usual=3, noisy=3, single=1)
    reference = _reference(monkeypatch, task, rounds=40, clients_per_round=7)
    actual = baselines._own(reference, task, tmp_path, cohort_runtime, StopRequest(), False)
    for name in task.domain_names:
        clients = [task.train.read(c) for c in task.train.client_ids if c.startswith(name)]
        x, y = (np.concatenate([c[column] for c in clients]) for column in ("x", "y"))
        if name == "single":
            assert actual[name]["source"] == "trivial"
            assert actual[name]["training"] == pytest.approx(np.var(y), rel=1e-5)
            continue
        optimum = np.mean(optimize.lsq_linear(x, y).fun ** 2)
        assert actual[name]["source"] == "own"
        for losses in ("training", "heldout"):
            assert actual[name][losses] == pytest.approx(optimum, abs=1e-4)
        # The loss of zero weights is far from the optimum.
        assert np.mean(y**2) > optimum + 0.1
        # These are as many passes as in 40 shared rounds with all 7 clients.
        assert actual[name]["rounds"] == 40
    out = capsys.readouterr().out
    assert "note: single is too small for a reference run (1 training clients, 20 held-out" in out
    assert "its baseline is the loss of the best constant answer (trivial)" in out

    # Restore the files after a kill at round 20 of the second reference run.
    killed = tmp_path / "domain_1"
    (killed / "result.json").unlink()
    for checkpoint in (killed / "checkpoints").glob("round_*.npz"):
        if int(checkpoint.stem.removeprefix("round_")) > 20:
            checkpoint.unlink()
    again = baselines._own(reference, task, tmp_path, cohort_runtime, StopRequest(), False)
    assert again == actual


@pytest.mark.parametrize("made", ["own", "trivial"])
def test_rejects_domain_without_data(cohort_runtime, monkeypatch, tmp_path, made):
    task = dataclasses.replace(_task(usual=2), domain_names=("usual", "absent"))
    reference = _reference(monkeypatch, task, rounds=2, clients_per_round=2)
    with pytest.raises(UserError, match="expected training examples of every domain, found none"):
        if made == "own":
            baselines._own(reference, task, tmp_path, cohort_runtime, StopRequest(), False)
        else:
            baselines._trivial(task, range(2))
    assert not list(tmp_path.iterdir())


@pytest.fixture
def store(tmp_path) -> Path:
    """A store of two domains with opposite labels, next to the model file linear.py."""
    rng = np.random.default_rng(0)
    records = []
    for split, count in (("train", 2), ("heldout", 2), ("test", 1)):
        for domain, sign in (("light", 1), ("dark", -1)):
            for k in range(count * 8):
                label = int(rng.integers(2))
                x = np.array([sign * (2 * label - 1), rng.normal()], np.float32)
                client = f"{domain}_{split}_{k % count}"
                records.append((split, Record(client, domain, {"x": x, "label": label})))
    (tmp_path / "linear.py").write_text(DIGITS_MODEL)
    return write_store(tmp_path / "sites.sqlite", records, "features", class_names=("no", "yes"))


def test_trivial_baselines_are_domain_entropies(store, tmp_path, capsys):
    options = {"model": str(tmp_path / "linear.py")}
    spec = resolve("custom", {"lambda_baselines": "trivial"}, options, data=store)
    path = tmp_path / "run"
    trials = [spec, dataclasses.replace(spec, config=dataclasses.replace(spec.config, seed=1))]
    actual, other = baselines.with_baselines(trials, path, None, StopRequest())
    assert other.algorithm == actual.algorithm
    # Trials that share the baselines print them once.
    assert capsys.readouterr().out.count("baselines (trivial, training; ") == 1
    train_clients, expected = spec.load_task().train, []
    for domain in ("dark", "light"):
        ids = [name for name in train_clients.client_ids if name.startswith(domain)]
        ones = np.concatenate([train_clients.read(name)["y"] for name in ids]).mean()
        expected.append(-(ones * np.log(ones) + (1 - ones) * np.log(1 - ones)))
    assert actual.algorithm.lambda_.baselines == pytest.approx(expected)
    assert read_json(path / "baselines" / "baselines.json")["task"] == "custom"


@pytest.mark.nightly
def test_resume_keeps_reference_runs(call: Caller, store, tmp_path):
    path = tmp_path / "runs"
    data = ("--task=custom", f"--data={store}", f"--model={tmp_path / 'linear.py'}")
    short = (*data, "--clients_per_round=2", "--rounds=3", "--evaluate_every=3")
    arms = "--arms=excess=excess_own;plain=agnostic_fed_avg"
    again = (compare, *short, arms, "--trials=1", f"--output_dir={path}")
    call.ok(*again)
    file = path / "baselines" / "baselines.json"
    actual = read_json(file)["domains"]
    assert {entry["source"] for entry in actual.values()} == {"own"}
    config = read_json(path / "runs/excess/trial_00/run/config.json")
    assert config["lambda_baselines"] == [entry["training"] for entry in actual.values()]
    before = tree(path / "baselines")
    call.ok(*again, "--resume")
    assert tree(path / "baselines") == before

    # --lambda_baselines may name the file or a run; baselines of other domains are rejected.
    run = path / "runs/plain/trial_00/run"
    for name in (file, run):
        (spec,) = compared_specs(
            *short, "--arms=agnostic_fed_avg", f"--lambda_baselines={name}", "--trials=1"
        )["agnostic_fed_avg"]
        assert len(spec.algorithm.lambda_.baselines) == 2
        build_algorithm(spec, spec.load_task())
    renamed = {name.upper(): entry for name, entry in actual.items()}
    file.write_text(json.dumps({**read_json(file), "domains": renamed}))
    output = f"--output_dir={tmp_path / 'run'}"
    message = call.refused(tmp_path, train, *short, f"--lambda_baselines={file}", output)
    assert message.endswith("of the domains dark, light, found baselines of DARK, LIGHT")
    message = call(train, "--task=digits", f"--lambda_baselines={run}").error
    assert message.endswith("expected baselines of --task=digits, found baselines of custom")


@pytest.mark.slow_cases("--algorithm=q_ffl --measured_share=0.5-kept_out")
@pytest.mark.parametrize(
    ("algorithm", "part"),
    [
        ("--algorithm=fed_avg", "first_epoch"),
        ("--algorithm=q_ffl --measured_share=0.5", "kept_out"),
    ],
)
def test_run_of_any_algorithm_serves_as_baseline(call: Caller, store, tmp_path, algorithm, part):
    data = ("--task=custom", f"--data={store}", f"--model={tmp_path / 'linear.py'}")
    run = tmp_path / "run"
    call.ok(
        *(train, *data, "--rounds=2", "--clients_per_round=4", f"--output_dir={run}"),
        *algorithm.split(),
    )
    columns = read_history(run / "metrics.csv")
    assert read_baselines(run, "custom", "training") == {
        name: pytest.approx(columns[f"{part}/loss/{name}"][-1]) for name in ("dark", "light")
    }
