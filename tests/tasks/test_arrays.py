"""Stores as arrays, and the recipe with scikit-learn."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from tests.data.stores import text_store
from tests.saving import handed_over
from tff_agnostic.api import arrays
from tff_agnostic.base.errors import UserError


def test_arrays_are_what_models_are_given(tmp_path):
    task = handed_over.shoppers(tmp_path)
    found = arrays(tmp_path / "shoppers.sqlite", "test")
    assert found.class_names == ("no", "yes")
    assert found.names[:3] == ("visits a week", "age", "visits a week is missing")
    assert found.names[-1] == "city=Lima"
    assert list(dict.fromkeys(found.clients)) == list(task.test.client_ids)
    for client in task.test.client_ids:
        own, expected = found.clients == client, task.test.read(client)
        np.testing.assert_array_equal(found.x[own], expected["x"])
        assert found.y is not None
        np.testing.assert_array_equal(found.y[own], expected["y"])
        names = [task.domain_names[k] for k in expected["domain_id"]]
        assert found.domains[own].tolist() == names
    with pytest.raises(UserError, match="expected clients in split dev, found the splits heldout"):
        arrays(tmp_path / "shoppers.sqlite", "dev")


def test_arrays_of_texts(tmp_path):
    found = arrays(text_store(tmp_path / "s.sqlite"))
    assert found.y is None and found.names is None
    assert Counter(zip(found.clients, found.domains, found.x)) == Counter(
        [
            ("a", "answer", "cat sat the"),
            ("b", "question", "the cat"),
            ("b", "answer", "sat"),
            ("b", "question", "the the dog"),
        ]
    )


@pytest.mark.nightly
def test_the_recipe_learns_the_shoppers(tmp_path, monkeypatch, capsys):
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    handed_over.shoppers(tmp_path)
    monkeypatch.chdir(tmp_path)
    made: dict[str, Any] = {}
    exec(handed_over.block("LogisticRegression"), made)
    test, right = made["test"], made["right"]
    assert f"{float(right.mean())}" == capsys.readouterr().out.split()[-1]
    # Who buys is a threshold that depends on the city and the device.
    assert right.mean() > max(np.mean(test.y), 1 - np.mean(test.y)) + 0.1
