"""Settings of Lambda: what they build, and what is refused in one line."""

import json

import numpy as np
import pytest

from tff_agnostic.domain_weights import Ball, Box, Hull, LambdaSetOptions, Simplex
from tff_agnostic.errors import UserError

_NAMES = ("a", "b", "c")
_TRAINING = np.array([0.5, 0.3, 0.2])


def _build(**settings):
    return LambdaSetOptions(**settings).build_lambda_set(_NAMES, _TRAINING)


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


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lambda_lower": (0.4,)}, "--lambda_lower: expected numbers that sum to at most 1"),
        ({"lambda_upper": (0.3,)}, "--lambda_upper: expected numbers that sum to at least 1"),
        ({"lambda_upper": (0.9, 0.9)}, "--lambda_upper: expected one number, or 3, one per domain"),
        ({"lambda_lower": (-0.1,)}, "--lambda_lower: expected numbers from 0 to 1"),
        (
            {"lambda_lower": (0.5, 0.0, 0.0), "lambda_upper": (0.4, 1.0, 1.0)},
            "expected lower <= upper for every domain, found 0.5 > 0.4 for a",
        ),
    ],
)
def test_boxes_that_are_none(settings, message):
    with pytest.raises(UserError) as error:
        _build(lambda_set="box", **settings)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("no JSON", "expected a JSON file"),
        ({}, "expected at least one mixture, found none"),
        ({"x": [0.5, 0.5]}, "x: expected weights by domain"),
        ({"x": {"a": 0.5, "d": 0.5}}, "x: expected domains of a, b, c, found d"),
        ({"x": {"a": 0.5, "b": 0.6}}, "x: expected weights that sum to 1, found 1.1"),
        ({"x": {"a": 0.5, "b": -0.5}}, "x: expected a number from 0 to 1 for b, found -0.5"),
        ({"x": {"a": "all"}}, "x: expected a number from 0 to 1 for a, found 'all'"),
        # Their sum is no float64.
        ({"x": {"a": 1e308, "b": 1e308}}, "x: expected a number from 0 to 1 for a, found 1e+308"),
        (
            {"x": {"a": 0.5, "b": 0.5}, "y": {"b": 1}, "z": {"b": 0.5, "a": 0.5}},
            "expected different mixtures, found 'x' and 'z' of the same weights",
        ),
        ('{"x": {"a": 1}, "x": {"b": 1}}', "expected each name once in an object, found 'x' twice"),
        ('{"x": {"a": 0, "a": 1}}', "expected each name once in an object, found 'a' twice"),
    ],
)
def test_files_that_hold_no_mixtures(mixtures_file, content, message):
    with pytest.raises(UserError) as error:
        _build(lambda_set="hull", mixtures=mixtures_file(content))
    assert message in str(error.value)
    assert "mixtures.json" in str(error.value)


def test_a_hull_needs_a_file():
    with pytest.raises(UserError, match="--mixtures: expected a JSON file of named mixtures"):
        _build(lambda_set="hull")
