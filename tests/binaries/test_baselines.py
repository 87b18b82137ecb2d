"""Baselines that commands find: trivial ones in closed form, references, and refusals."""

import json

import numpy as np
import pytest
import tensorflow as tf

from binaries import compare, train
from tests.binaries.harness import Caller
from tff_agnostic.data.clients import ClientsOfDomain, InMemoryClients
from tff_agnostic.models import SentenceLoss, logistic_regression
from tff_agnostic.models.model import Model, ModelWeights
from tff_agnostic.run.baselines import trivial_loss
from tff_agnostic.tasks import toy_regression
from tff_agnostic.tasks.task import TaskContext


def _labels(*labels):
    return [{"x": np.zeros([len(y), 2], np.float32), "y": np.array(y, np.int32)} for y in labels]


def test_of_classes_it_is_the_entropy_of_their_shares():
    model = logistic_regression(2, 3)
    # Shares of 1/2, 1/4, 1/4 over both clients.
    assert trivial_loss(model, _labels([0, 0, 1], [2, 0, 0, 1, 2])) == pytest.approx(
        1.5 * np.log(2), rel=1e-6
    )
    assert trivial_loss(model, _labels([1, 1])) == 0


def test_of_numbers_it_is_the_variance():
    task = toy_regression.load(toy_regression.ToyRegressionOptions(), TaskContext(0))
    clients = [task.train.read(client_id) for client_id in task.train.client_ids]
    expected = np.var(np.concatenate([client["y"] for client in clients]))
    assert trivial_loss(task.model, clients) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("length", [None, 4.0])
def test_of_words_it_is_the_best_unigram(length):
    """No scores that are the same everywhere have a smaller loss."""
    loss = SentenceLoss(length)
    model = Model(
        ModelWeights([np.zeros([4], np.float32)], []),
        {"x": tf.TensorSpec([None, 3], tf.int32), "y": tf.TensorSpec([None, 3], tf.int32)},
        predict=lambda weights, x, training, seed: None,
        loss=loss,
    )
    y = np.array([[1, 2, 0], [3, 0, 0], [1, 1, 3], [1, 0, 0]], np.int32)
    found = trivial_loss(model, [{"x": y, "y": y}])
    scores = tf.Variable(tf.zeros([4]))
    for _ in range(200):
        with tf.GradientTape() as tape:
            everywhere = tf.broadcast_to(scores, [4, 3, 4])
            value = tf.reduce_mean(loss(tf.constant(y), everywhere))
        scores.assign_sub(2.0 * tape.gradient(value, scores))
    assert found == pytest.approx(float(value), abs=5e-3)


def test_a_domain_alone_has_its_examples_of_the_clients_that_have_some():
    clients = InMemoryClients(
        {
            "a": {"y": np.array([1, 2, 3]), "domain_id": np.array([0, 1, 0], np.int32)},
            "b": {"y": np.array([4]), "domain_id": np.array([1], np.int32)},
        }
    )
    of = ClientsOfDomain(clients, 0, 2)
    assert list(of.client_ids) == ["a"]
    np.testing.assert_array_equal(of.read("a")["y"], [1, 3])
    np.testing.assert_array_equal(of.client_domain_counts(), [[2, 0]])


_DIGITS = ("--task=digits", "--rounds=3", "--evaluate_every=3")


def test_references_are_made_once_kept_and_named_in_turn(call: Caller, tmp_path):
    path = tmp_path / "runs"
    arms = "--arms=excess=agnostic_fed_avg:domain_baselines=own;plain=agnostic_fed_avg"
    again = (compare, *_DIGITS, arms, "--trials=1", f"--output_dir={path}")
    outcome = call(*again)
    assert outcome.status == 0, outcome
    file = path / "baselines" / "baselines.json"
    found = json.loads(file.read_text())
    # Each class is a domain of one class: its optimum is 0.
    assert {of["source"] for of in found["domains"].values()} == {"own"}
    assert max(of["training"] for of in found["domains"].values()) < 0.1
    config = json.loads((path / "excess" / "trial_00" / "config.json").read_text())
    assert config["domain_baselines"] == [of["training"] for of in found["domains"].values()]
    assert call(*again, "--resume").status == 0
    outcome = call(train, *_DIGITS, f"--domain_baselines={file}", f"--output_dir={tmp_path / 'r'}")
    assert outcome.status == 0, outcome
    for name in ("lambda/0", "round"):
        assert name in (tmp_path / "r" / "metrics.csv").read_text()


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--domain_baselines=1,2",), "expected 10 numbers, one per domain, found 2"),
        (("--domain_baselines=nowhere",), "expected numbers, own, trivial, a baselines.json or"),
        (("--domain_baselines=nan,1",), "--domain_baselines: expected a finite number, found nan"),
        (("--domain_baselines=1,2", "--baseline_losses=heldout"), "has no effect beside numbers"),
        (
            ("--domain_baselines=own", "--privacy=central", "--noise_multiplier=1"),
            "--domain_baselines: expected numbers with --privacy=central",
        ),
        (
            ("--task=toy_regression", "--domain_baselines=own"),
            "expected a task with held-out clients",
        ),
    ],
)
def test_what_cannot_be_is_told_in_a_line(call: Caller, tmp_path, flags, told):
    outcome = call(train, "--task=digits", *flags, f"--output_dir={tmp_path / 'run'}")
    assert outcome.status != 0
    (line,) = [text for text in outcome.err.splitlines() if "baselin" in text]
    assert told in line
    assert not (tmp_path / "run" / "config.json").exists()


def test_baselines_of_another_task_are_told(call: Caller, tmp_path):
    file = tmp_path / "baselines.json"
    content = {"format": 1, "task": "adult", "domains": {"a": {"training": 1.0, "heldout": 1.0}}}
    file.write_text(json.dumps(content))
    outcome = call(train, "--task=digits", f"--domain_baselines={file}")
    assert outcome.status != 0
    assert "expected baselines of --task=digits, found those of adult" in outcome.err
