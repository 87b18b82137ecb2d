"""Client stores for users' models: points, people with categories, and labelled texts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.data.stores import write_store
from tff_agnostic.data.store_format import Record


def point(client: str, domain: str, x: Any, label: Any) -> Record:
    return Record(client, domain, {"x": np.array(x, np.float32), "label": label})


def points(path: Path, labels: Sequence[Any] = (0, 2, 1), **more: Any) -> Path:
    rows = [
        (split, point("a", domain, [k, -k], label))
        for split in ("train", "test")
        for k, (label, domain) in enumerate(zip(labels, ["web", "app", "web"]))
    ]
    rows.append(("heldout", point("h", "app", [9, 9], labels[0])))
    return write_store(path, rows, "features", **more)


def people(
    path: Path,
    jobs: Sequence[str] = ("baker", "cook"),
    towns: Sequence[str] = ("Rome",),
    **features: Any,
) -> Path:
    def person(split: str, job: str, town: str, label: int) -> tuple[str, Record]:
        x = {"x": np.array([label, 5], np.float32), **features}
        return split, Record("a", "web", {**x, "job": job, "town": town, "label": label})

    rows = [
        person("train", "cook", "Rome", 1),
        person("train", "", "Rome", 0),
        person("train", "baker", "Oslo", 1),
        person("test", "clerk", "Rome", 0),
    ]
    # The order of the categories, town before job, is not alphabetical.
    return write_store(path, rows, "features", categories={"town": towns, "job": jobs})


def reviews(path: Path, labels: Sequence[Any] = (0, 2, 1), **more: Any) -> Path:
    rows = [
        (split, Record("a", "web", {"tokens": tokens, "label": label}))
        for split in ("train", "test")
        for tokens, label in zip(("the cat", "sat", "dog the the cat sat"), labels)
    ]
    words = {"the": 9, "cat": 5, "sat": 3}
    return write_store(path, rows, "text", vocabulary=words, **more)
