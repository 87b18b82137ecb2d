"""What is said of a saved file beside the run's model, also where numbers are not finite."""

import dataclasses
import json
from typing import Any, Callable

import numpy as np
import pytest
import tensorflow as tf

from tff_agnostic.data.clients import InMemoryClients
from tff_agnostic.models import logistic_regression
from tff_agnostic.models.model import ModelWeights
from tff_agnostic.run.results import saved_lines
from tff_agnostic.saving.save import SavedFile
from tff_agnostic.saving.trained_model import FileCheck, TrainedModel, check_file
from tff_agnostic.tasks.task import Task

_NUM_EXAMPLES = 6


def _check(bias: float, change: Callable[[np.ndarray], Any]) -> FileCheck:
    """Checks a file whose scores are changed beside a model whose first class has this bias."""
    examples = {
        "x": np.ones([_NUM_EXAMPLES, 2], np.float32),
        "y": np.array([0, 1, 2] * 2, np.int32),
        "domain_id": np.array([0, 1] * 3, np.int32),
    }
    clients = InMemoryClients({"only": examples})
    model = logistic_regression(2, 3)
    kernel, biases = model.initial_weights.trainable
    weights = ModelWeights([kernel, biases + np.array([bias, 0, 0], np.float32)], [])
    trained = TrainedModel(model, weights)

    def predict(x: Any) -> tf.Tensor:
        scores = np.array(trained.predict(x))
        change(scores)
        return tf.constant(scores)

    return check_file(trained, Task(("a", "b"), clients, clients, model), predict)


def _nothing(scores: np.ndarray) -> None:
    del scores


def _put(value: float, where: Any = (0, 0)) -> Callable[[np.ndarray], None]:
    def change(scores: np.ndarray) -> None:
        scores[where] = value

    return change


def _line(check: FileCheck) -> str:
    (line,) = saved_lines([SavedFile("model", "tflite", "none", "m.tflite", 7, {}, check)])
    return line


@pytest.mark.parametrize("bias", [0.0, -np.inf, np.inf, np.nan])
def test_the_same_numbers_are_the_same_finite_or_not(bias):
    check = _check(bias, _nothing)
    assert check.is_same and check.largest_difference == 0.0
    assert "predicts as the run's model does, by 0 at most on 6 test examples" in _line(check)


@pytest.mark.parametrize(
    ("bias", "found"),
    [(0.0, np.nan), (0.0, np.inf), (np.inf, 0.0), (np.nan, 0.0), (np.inf, -np.inf)],
)
def test_what_is_finite_in_one_alone_differs(bias, found):
    check = _check(bias, _put(found))
    assert not check.is_same and check.largest_difference is None
    assert "its predictions differ, some of them not finite, on" in _line(check)
    json.dumps(dataclasses.asdict(check), allow_nan=False)


def test_finite_differences_are_measured():
    check = _check(0.0, lambda scores: _put(scores[0, 0] + 0.25)(scores))
    assert not check.is_same
    assert check.largest_difference == pytest.approx(0.25, abs=1e-6)
    assert "its predictions differ, by 0.25 at most" in _line(check)


def test_measures_that_are_not_finite_are_null():
    check = _check(0.0, _put(np.nan, np.s_[:]))
    for of_domain in check.domains.values():
        assert of_domain["loss"]["file"] is None and np.isfinite(of_domain["loss"]["run"])
    json.dumps(dataclasses.asdict(check), allow_nan=False)
