"""The columns of metrics.csv, and the rows of rounds."""

import math
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest

from tests.support.results import AWKWARD_NAMES, QUANTITIES, make_evaluation, make_report, measures
from tff_agnostic.base.errors import UserError
from tff_agnostic.base.report_fields import ReportField, Unit
from tff_agnostic.metrics.columns import EvaluationColumns, TrainingColumns, distinct
from tff_agnostic.metrics.formatting import short_names, signed
from tff_agnostic.metrics.metrics_file import Column
from tff_agnostic.models.model import ModelWeights

_NAMES = ("phone", "tablet")
_WEIGHTS = ModelWeights([np.array([[1.0, 2.0]]), np.array(7.0)], [])
_REPORT = make_report(losses=[2.0, 0.0], counts=[5, 0], weights=[0.25, 0.75])


def _over_clients(name: str, value: float) -> dict[str, float]:
    statistics = ("mean", "p10", "p50", "p90", "p95", "superquantile")
    return {f"{name} over clients/{statistic}": value for statistic in statistics}


def _names(columns: Any) -> list[str]:
    return [column.name for column in columns]


def test_training_columns_have_values_of_a_round():
    columns = TrainingColumns(QUANTITIES, {"second weight": (0, 1)}, _NAMES)
    values = columns.values(_REPORT, _WEIGHTS)
    assert values == {
        "before/loss/phone": 2.0,
        # A domain without examples in the round has no loss; the algorithm's 0 would mislead.
        "before/loss/tablet": None,
        "before/num_examples/phone": 5,
        "before/num_examples/tablet": 0,
        "pull/phone": 0.25,
        "pull/tablet": 0.75,
        "update_norm": 0.5,
        "second weight": 2.0,
    }
    assert list(values) == _names(columns.columns)


def test_quantity_that_needs_examples_needs_counts():
    present = ReportField("x", "x", per_domain=True, needs_examples=True)
    with pytest.raises(UserError, match=r"quantity .x.: expected another quantity per"):
        TrainingColumns(OrderedDict(x=present), {}, _NAMES)


@pytest.mark.parametrize("clipped", [{}, {"sums": 3, "clients": 0}])
def test_evaluation_columns_have_values(clipped):
    described = {field: ReportField(field, field, unit=Unit.VALUES) for field in clipped}
    columns = EvaluationColumns(("model",), measures("loss", "accuracy"), described, _NAMES)
    values = columns.values({"model": make_evaluation({"phone": 1.0, "tablet": 3.0}, clipped)})
    assert values == {
        "test/loss/phone": 1.0,
        "test/loss/tablet": 3.0,
        "test/loss": 2.0,
        "test/worst loss": 3.0,
        **_over_clients("test/loss", 2.0),
        "test/accuracy/phone": 1.0,
        "test/accuracy/tablet": 3.0,
        "test/accuracy": 2.0,
        "test/worst accuracy": 1.0,
        **_over_clients("test/accuracy", 2.0),
        **{f"test/clipped {field}": count for field, count in clipped.items()},
    }
    assert list(values) == _names(columns.columns)
    uneven = columns.values({"model": make_evaluation({"phone": 1.0, "tablet": math.nan}, clipped)})
    assert (uneven["test/loss/tablet"], uneven["test/worst loss"]) == (None, 1.0)
    nothing = columns.values(None)
    assert list(nothing) == list(values) and set(nothing.values()) == {None}


def test_percentiles_choose_columns():
    columns = EvaluationColumns(
        ("model",), measures("loss"), {}, _NAMES, percentiles=(99.5, 50.0)
    ).columns
    assert _names(columns)[4:] == [
        "test/loss over clients/mean",
        "test/loss over clients/p50",
        "test/loss over clients/p99.5",
        "test/loss over clients/superquantile",
    ]
    assert {column.domain for column in columns[4:]} == {None}


def test_columns_are_named_by_split_and_model():
    report = make_evaluation({"phone": 1.0}, {"sums": 2}, split="heldout")
    clipped = {"sums": ReportField("sums", "values of sums")}
    columns = EvaluationColumns(
        ("main", "average"), measures("loss"), clipped, ["phone"], "heldout"
    )
    other = make_evaluation({"phone": 0.25}, {"sums": 1}, split="heldout")
    values = columns.values({"main": report, "average": other})
    assert (values["heldout/loss/phone"], values["heldout[average]/loss/phone"]) == (1.0, 0.25)
    assert list(values) == [
        *("heldout/loss/phone", "heldout/loss", "heldout/worst loss"),
        *_over_clients("heldout/loss", 1.0),
        "heldout/clipped sums",
        *("heldout[average]/loss/phone", "heldout[average]/loss", "heldout[average]/worst loss"),
        *_over_clients("heldout[average]/loss", 1.0),
        "heldout[average]/clipped sums",
    ]
    labels = [column.quantity.label for column in columns.columns if "average" not in column.name]
    assert [label for label in labels if "test" in label] == []
    assert labels[0] == "loss on the heldout clients"
    assert "loss of average on the heldout clients" in {c.quantity.label for c in columns.columns}


def test_awkward_domain_names_stay_distinct():
    training = TrainingColumns(QUANTITIES, {}, AWKWARD_NAMES).columns
    evaluation = EvaluationColumns(("model",), measures("loss"), {}, AWKWARD_NAMES).columns
    columns = distinct((*training, *evaluation))
    assert len(columns) == len(set(_names(columns)))
    losses = [c for c in columns if c.quantity.name == "test/loss"]
    assert [c.domain for c in losses] == [*AWKWARD_NAMES, None]


def test_equal_column_names_raise_user_error():
    columns = TrainingColumns(QUANTITIES, {}, _NAMES).columns
    with pytest.raises(UserError, match="found two called 'pull/phone'"):
        distinct((*columns, Column(ReportField("pull/phone", "pull"))))


def test_short_names_stay_distinct():
    names = ["x" * 100 + str(k) + "y" * 100 for k in range(12)] + ["short", "two\nlines", "x…y"]
    result = short_names(names, 12)
    assert len(set(result)) == len(names) and max(map(len, result)) == 12
    assert result[12:] == ["short", "two lines", "x…y"]
    assert result[0] == "xxxxxx…yyyyy" and result[1] == "xxxx…yyy (2)"


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0123, Unit.SHARE, "+1.2"),
        (-0.0123, Unit.SHARE, "-1.2"),
        (-0.0004, Unit.SHARE, "0.0"),
        (0.0004, Unit.NONE, "0.000"),
        (math.nan, Unit.SHARE, "-"),
    ],
)
def test_rounded_zero_has_no_sign(value, unit, text):
    assert signed(value, unit, 3) == text
