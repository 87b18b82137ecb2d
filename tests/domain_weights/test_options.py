"""Options of the set Lambda: the built sets, flags, and errors."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.support import golden
from tests.support.options import make_options
from tff_agnostic.base.errors import UserError
from tff_agnostic.domain_weights import Ball, Box, Hull, Simplex
from tff_agnostic.domain_weights.ascent import LambdaOptions
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


def test_flag_value_gives_set_with_fields(tmp_path):
    def chosen(text):
        return make_options(LambdaOptions, lambda_set=text).lambda_.set

    assert chosen("simplex") == SimplexSet()
    assert chosen("box:lower=0.1/0.2/0.3,upper=0.5") == BoxSet((0.1, 0.2, 0.3), (0.5,))
    assert chosen("ball:radius=0.2") == BallSet(0.2)
    path = tmp_path / "mixtures.json"
    assert chosen(f"hull:file={path}") == HullSet(path)


@golden.values
def test_rejects_invalid_sets(case):
    return golden.refusal(make_options, LambdaOptions, lambda_set=case)


@golden.values
def test_rejects_boxes_that_contain_no_mixture(case):
    return golden.refusal(lambda: BoxSet(**case).build(_NAMES, _TRAINING))


@golden.values
def test_rejects_invalid_mixture_files(mixtures_file, tmp_path, case):
    del tmp_path  # golden.values writes it as DIR.
    return golden.refusal(HullSet(mixtures_file(case)).build, _NAMES, _TRAINING)


def test_lambda_0_outside_box_raises():
    box = BoxSet(upper=(0.5,)).build(_NAMES, _TRAINING)
    with pytest.raises(UserError, match=r"^initial: expected a lambda_0 between"):
        box.start(np.array([0.6, 0.2, 0.2]))
