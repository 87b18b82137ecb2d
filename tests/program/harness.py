"""Small reports, tasks and comparisons for tests of what is made of them."""

import contextlib
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from matplotlib import image

from tff_agnostic.data.clients import InMemoryClients
from tff_agnostic.models import logistic_regression
from tff_agnostic.tasks.task import Task

# Commas, quotes, line breaks, slashes, a name that ends like another, names of our own columns.
AWKWARD_NAMES = ("a/b", "b", 'c, "d"', "e\nf", "$\\g", "_h", "loss", "all", "..", "x|y", "a_b")


def make_task(domain_names: Sequence[str], num_features: int = 2, clients: int = 3) -> Task:
    """Returns a logistic regression with random clients; every client has every domain."""
    rng = np.random.default_rng(0)
    size = 2 * len(domain_names)

    def client() -> dict[str, np.ndarray]:
        domain_id = np.arange(size, dtype=np.int32) % len(domain_names)
        y = rng.integers(3, size=size).astype(np.int32)
        x = rng.normal(size=[size, num_features]) + y[:, None]
        return {"x": x.astype(np.float32), "y": y, "domain_id": domain_id}

    dataset = InMemoryClients({f"client_{k}": client() for k in range(clients)})
    return Task(tuple(domain_names), dataset, dataset, logistic_regression(num_features, 3))


def make_columns(task: Task, rounds: int = 3) -> dict[str, np.ndarray]:
    """Returns columns of metrics.csv as a run of `task` has them, the last evaluated round only."""
    columns = {"round": np.arange(1.0, rounds + 1)}
    measures = ["loss", *(metric.name for metric in task.model.metrics)]
    for i, domain in enumerate(task.domain_names):
        columns[f"lambda/{domain}"] = np.full([rounds], 1 / task.num_domains)
        for measure in measures:
            columns[f"train/{measure}/{domain}"] = np.linspace(1, i, rounds)
            test = np.full([rounds], np.nan)
            test[-1] = i
            columns[f"test/{measure}/{domain}"] = test
    return columns


def result_json(domains: Mapping[str, Mapping[str, Any]], overall: Mapping[str, Any]) -> Any:
    """Returns the parts of result.json that a comparison reads."""
    return {"domains": domains, "overall": overall, "rounds": 2}


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """Takes the rights of root away; skips the test where that cannot be done and undone."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user, and root again")
    try:
        os.seteuid(65534)
    except OSError:
        pytest.skip("there is no other user in this sandbox")
    try:
        yield
    finally:
        os.seteuid(0)


def is_png(content: bytes) -> bool:
    """Returns whether bytes are a PNG image with more than one colour in it."""
    if not content.startswith(b"\x89PNG\r\n\x1a\n"):
        return False
    pixels = image.imread(io.BytesIO(content), format="png")
    return pixels.ndim == 3 and len(np.unique(pixels)) > 2
