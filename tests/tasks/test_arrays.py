"""Stores as NumPy arrays, and the documented recipe with scikit-learn."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from tests.saving import handed_over
from tests.support.stores import text_store
from tff_agnostic.base.errors import UserError
from tff_agnostic.data.store import load_store
from tff_agnostic.tasks.stored_inputs import split_arrays


def test_arrays_of_a_split_equal_the_tasks_examples(tmp_path):
    task = handed_over.shoppers(tmp_path)
    read = split_arrays(load_store(tmp_path / "shoppers.sqlite"), "test")
    assert read.class_names == ("no", "yes")
    assert read.names[:3] == ("visits a week", "age", "visits a week is missing")
    assert read.names[-1] == "city=Lima"
    assert list(dict.fromkeys(read.clients)) == list(task.test.client_ids)
    for client in task.test.client_ids:
        actual, expected = read.clients == client, task.test.read(client)
        np.testing.assert_array_equal(read.x[actual], expected["x"])
        assert read.y is not None
        np.testing.assert_array_equal(read.y[actual], expected["y"])
        names = [task.domain_names[k] for k in expected["domain_id"]]
        assert read.domains[actual].tolist() == names
    with pytest.raises(UserError, match="expected clients in split dev, found the splits heldout"):
        split_arrays(load_store(tmp_path / "shoppers.sqlite"), "dev")


def test_split_arrays_return_texts(tmp_path):
    read = split_arrays(load_store(text_store(tmp_path / "s.sqlite")), "train")
    assert read.y is None and read.names is None
    assert Counter(zip(read.clients, read.domains, read.x)) == Counter(
        [
            ("a", "answer", "cat sat the"),
            ("b", "question", "the cat"),
            ("b", "answer", "sat"),
            ("b", "question", "the the dog"),
        ]
    )


@pytest.mark.nightly
def test_scikit_learn_recipe_beats_constant_predictor(tmp_path, monkeypatch, capsys):
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    handed_over.shoppers(tmp_path)
    monkeypatch.chdir(tmp_path)
    made: dict[str, Any] = {}
    exec(handed_over.block("LogisticRegression"), made)
    test, right = made["test"], made["right"]
    assert f"{float(right.mean())}" == capsys.readouterr().out.split()[-1]
    # The labels follow a threshold that depends on city and device.
    assert right.mean() > max(np.mean(test.y), 1 - np.mean(test.y)) + 0.1
