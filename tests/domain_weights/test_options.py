"""Settings of Lambda: what they build, and what is refused in one line."""

import json

import numpy as np
import pytest

from tests import golden
from tests.options import make_options
from tff_agnostic.domain_weights import Ball, Box, Hull, LambdaSetOptions, Simplex
from tff_agnostic.errors import UserError

_NAMES = ("a", "b", "c")
_TRAINING = np.array([0.5, 0.3, 0.2])


def _build(**settings):
    return make_options(LambdaSetOptions, **settings).build_lambda_set(_NAMES, _TRAINING)


@pytest.fixture
def mixtures_file(tmp_path):
    def write(content) -> str:
        path = tmp_path / "mixtures.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return str(path)

    return write


def test_sets_by_their_settings(mixtures_file):
    assert _build() == Simplex()
    assert _build(lambda_set="box", lambda_upper=(0.5,)) == Box((0.0,) * 3, (0.5,) * 3)
    box = _build(lambda_set="box", lambda_lower=(0.1, 0.2, 0.3))
    assert box == Box((0.1, 0.2, 0.3), (1.0,) * 3)
    assert _build(lambda_set="ball", lambda_radius=0.2) == Ball((0.5, 0.3, 0.2), 0.2)
    path = mixtures_file({"day": {"a": 0.5, "b": 0.5}, "night": {"c": 1}})
    hull = _build(lambda_set="hull", mixtures=path)
    assert hull == Hull(("day", "night"), ((0.5, 0.5, 0.0), (0.0, 0.0, 1.0)))


@golden.values
def test_boxes_that_are_none(case):
    return golden.refusal(_build, lambda_set="box", **case)


@golden.values
def test_files_that_hold_no_mixtures(mixtures_file, tmp_path, case):
    del tmp_path  # the table calls it DIR
    return golden.refusal(_build, lambda_set="hull", mixtures=mixtures_file(case))


def test_a_hull_needs_a_file():
    with pytest.raises(UserError, match="--mixtures: expected a JSON file of named mixtures"):
        _build(lambda_set="hull")
