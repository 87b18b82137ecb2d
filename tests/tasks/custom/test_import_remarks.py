"""Warnings of an import that a training run repeats."""

import dataclasses
from typing import Any

import numpy as np

from tests.support.results import make_task
from tff_agnostic.data.store import ArrowStore
from tff_agnostic.data.store_format import StoreContent
from tff_agnostic.program.runs.build import data_remarks
from tff_agnostic.program.runs.spec import resolve
from tff_agnostic.tasks.stored import import_remarks

_SHARES = "1 of 2 classes has other shares: over 50k (22% of train, 11% of test)"
_NOTES = [
    {"kind": "class_shares", "text": _SHARES, "classes": {"over 50k": [0.22, 0.11]}},
    {"kind": "large_clients", "text": "counted by runs", "domains": {}},
    {"kind": "copies_in_train", "text": "5 copies", "split": "test", "copies": 5},
]


class _Store(ArrowStore):
    """A store without files that has only the notes of its import."""

    def __init__(self, notes: dict[str, Any]) -> None:
        self.content = StoreContent("digest", (), (), notes)


def test_run_repeats_import_warnings():
    remarks = import_remarks(_Store({"class_shares": None, "remarks": _NOTES}))
    assert [remark.to_json() for remark in remarks] == [_NOTES[0], _NOTES[2]]
    assert import_remarks(_Store({})) == []
    task = dataclasses.replace(make_task(("a", "b")), remarks=lambda: remarks)
    texts = [remark.text for remark in data_remarks(task, resolve("digits", {}, {}).config)]
    assert _SHARES in texts


def test_run_warns_about_large_client():
    task = make_task(("a", "b"), clients=6)
    arrays = {name: task.train.read(name) for name in task.train.client_ids}
    arrays["client_0"] = {k: np.concatenate([v] * 9) for k, v in arrays["client_0"].items()}
    task = dataclasses.replace(task, train=type(task.train)(arrays))
    texts = [remark.text for remark in data_remarks(task, resolve("digits", {}, {}).config)]
    assert any(
        "have a client with a large share of their train examples: a (64%" in t for t in texts
    )
