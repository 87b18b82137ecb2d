"""Tasks on a store of Arrow files and on TFF's file of the same examples."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.computations.harness import assert_identical
from tests.data.stores import LOGISTIC_REGRESSION, image, sentence, write_store
from tests.tasks.custom.stores import people, reviews
from tff_agnostic.data.clients import client_domain_counts
from tff_agnostic.tasks.registry import load_task
from tff_agnostic.tasks.task import Task, TaskContext


def _images(path: Path) -> Path:
    rows = [
        (split, image(f"{split}{k}", f"d{k % 2}", (0, 2, 6)[k % 3], k / 9))
        for split in ("train", "test")
        for k in range(9)
    ]
    return write_store(path, rows, "features")


def _texts(path: Path) -> Path:
    rows = [
        (split, sentence(f"c{k % 2}", ("answer", "question")[k % 2], "the cat sat " * k + "a"))
        for split in ("train", "test")
        for k in range(5)
    ]
    return write_store(path, rows, "text", vocabulary={"the": 9, "cat": 5, "sat": 3})


@pytest.mark.parametrize(
    ("task", "write", "options"),
    [
        ("custom", people, {"model": "model.py"}),
        ("custom", people, {"model": "model.py", "domain_feature": "town"}),
        ("text_classifier", reviews, {}),
        ("next_word", _texts, {}),
        ("stackoverflow", _texts, {}),
        ("unigram", _texts, {}),
        ("fashion_mnist", _images, {}),
    ],
)
def test_both_store_forms_give_one_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str, write: Any, options: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(LOGISTIC_REGRESSION)

    def load(name: str) -> Task:
        context = TaskContext(0, data=write(tmp_path / name))
        values: dict[str, Any] = {k: Path(v) if k == "model" else v for k, v in options.items()}
        return load_task(task, values, context)

    arrow, tff = load("s.store"), load("s.sqlite")
    assert arrow.domain_names == tff.domain_names
    assert arrow.fingerprint.keys() == tff.fingerprint.keys()
    for ours, theirs in ((arrow.train, tff.train), (arrow.test, tff.test)):
        assert list(ours.client_ids) == list(theirs.client_ids)
        num_domains = len(arrow.domain_names)
        np.testing.assert_array_equal(
            client_domain_counts(ours, num_domains), client_domain_counts(theirs, num_domains)
        )
        for client in ours.client_ids:
            assert_identical(ours.read(client), theirs.read(client))
