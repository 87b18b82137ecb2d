"""Options of the set Lambda: the built sets, flags, and errors."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.support import golden
from tff_agnostic.domain_weights import Ball, Box, Hull, Simplex
from tff_agnostic.domain_weights.ball import BallSet
from tff_agnostic.domain_weights.sets import BoxSet, HullSet, SimplexSet

_NAMES = ("a", "b", "c")
_TRAINING = np.array([0.5, 0.3, 0.2])


@pytest.fixture
def mixtures_file(tmp_path):
    def write(content) -> Path:
        path = tmp_path / "mixtures.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write


def test_options_build_each_set(mixtures_file):
    def build(options):
        return options.build(_NAMES, _TRAINING)

    assert build(SimplexSet()) == Simplex()
    assert build(BoxSet(upper=(0.5,))) == Box((0.0,) * 3, (0.5,) * 3)
    assert build(BoxSet(lower=(0.1, 0.2, 0.3))) == Box((0.1, 0.2, 0.3), (1.0,) * 3)
    assert build(BallSet(radius=0.2)) == Ball((0.5, 0.3, 0.2), 0.2)
    path = mixtures_file({"day": {"a": 0.5, "b": 0.5}, "night": {"c": 1}})
    hull = Hull(("day", "night"), ((0.5, 0.5, 0.0), (0.0, 0.0, 1.0)))
    assert build(HullSet(path)) == hull


@golden.values
def test_rejects_boxes_that_contain_no_mixture(case):
    return golden.refusal(lambda: BoxSet(**case).build(_NAMES, _TRAINING))


@golden.values
def test_rejects_invalid_mixture_files(mixtures_file, tmp_path, case):
    del tmp_path  # golden.values writes it as DIR.
    return golden.refusal(HullSet(mixtures_file(case)).build, _NAMES, _TRAINING)
