"""Tasks on a store of Arrow files equal tasks on TFF's SQLite file of the same examples."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.comparing import assert_identical
from tests.support.stores import (
    LOGISTIC_REGRESSION,
    image,
    people,
    reviews,
    text_store,
    write_store,
)
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


@pytest.mark.parametrize(
    ("task", "write", "options"),
    [
        ("custom", people, {"model": "model.py"}),
        ("custom", people, {"model": "model.py", "domain_feature": "town"}),
        ("text_classifier", reviews, {}),
        ("next_word", text_store, {}),
        ("stackoverflow", text_store, {}),
        ("unigram", text_store, {}),
        ("fashion_mnist", _images, {}),
    ],
)
def test_both_store_forms_give_equal_tasks(
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
    for arrow_clients, tff_clients in ((arrow.train, tff.train), (arrow.test, tff.test)):
        assert list(arrow_clients.client_ids) == list(tff_clients.client_ids)
        num_domains = len(arrow.domain_names)
        np.testing.assert_array_equal(
            client_domain_counts(arrow_clients, num_domains),
            client_domain_counts(tff_clients, num_domains),
        )
        for client in arrow_clients.client_ids:
            assert_identical(arrow_clients.read(client), tff_clients.read(client))
