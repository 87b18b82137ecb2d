"""Fixtures of the tests of training runs."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tests.run.training.harness import train
from tff_agnostic.program.runs import results
from tff_agnostic.runtimes.cohort import CohortRuntime


def _shown(axes: Axes) -> list[Any]:
    """Returns the points of lines, and the corners of bars, in the axes' own numbers."""
    corners = (
        patch.get_patch_transform().transform(patch.get_path().vertices) for patch in axes.patches
    )
    return [
        *(np.asarray(line.get_xydata()).tolist() for line in axes.lines),
        *(c.tolist() for c in corners),
    ]


@pytest.fixture(scope="package", autouse=True)
def _figures_as_text() -> Iterator[None]:
    """Saves the numbers of figures instead of pixels, which take longer than the rounds."""

    def save(figure: Figure, path: Path) -> None:
        path.write_text(json.dumps([_shown(axes) for axes in figure.axes]))

    with mock.patch.object(results, "save", save):
        yield


@pytest.fixture(scope="package")
def whole(cohort_runtime: CohortRuntime, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run."""
    path = tmp_path_factory.mktemp("whole") / "run"
    train(cohort_runtime, path)
    return path
