"""Class counts of clients that pass by, and what a constant answer attains."""

import types

import numpy as np
import pytest
import tensorflow as tf

from tests.computations.harness import make_client
from tff_agnostic.metrics.class_counts import (
    ClassCounter,
    constant_accuracies,
    constant_line,
    not_above_constant,
)
from tff_agnostic.models import logistic_regression


def _client(labels, domains):
    client = make_client(np.zeros([len(labels), 4]), domains)
    return {**client, "y": np.array(labels, np.int32)}


def test_clients_pass_by_and_are_counted():
    counter = ClassCounter(logistic_regression(4, 3), 2)
    clients = [_client([0, 1], [0, 1]), _client([], []), _client([2, 2, 0], [1, 1, 1])]
    assert list(counter.counting(clients)) == clients
    assert counter.counts(("a", "b")) == {"a": [1, 0, 0], "b": [1, 1, 2]}


def test_numbers_and_too_many_classes_are_not_counted():
    wide = ClassCounter(logistic_regression(4, 3), 2)
    list(wide.counting([_client([5000], [0])]))
    assert wide.counts(("a", "b")) == {}
    spec = {"y": tf.TensorSpec([None], tf.float32)}
    numbers = ClassCounter(types.SimpleNamespace(example_spec=spec, metrics=()), 1)
    list(numbers.counting([{"y": np.array([0.5]), "domain_id": np.array([0])}]))
    assert numbers.counts(("a",)) == {}


def test_a_constant_answer_is_as_good_as_the_share_of_the_largest_class():
    counts = {"en": [945, 55], "es": [61, 39], "none": [0, 0], "one class": [7, 0]}
    assert constant_accuracies(counts) == pytest.approx({"en": 0.945, "es": 0.61})
    found = not_above_constant(counts, {"en": 0.942, "es": 0.9, "none": None, "one class": 0.5})
    assert found == {"en": (0.942, 0.945)}
    assert constant_line(found, 4) == (
        "no better than always answering the most frequent class in 1 of 4 domains "
        "(en 94.2%, 94.5%)"
    )
