"""Measures by group, against fairlearn's definitions written out."""

import math

import numpy as np
import pytest

from tests.run.harness import measures
from tff_agnostic.base.report_fields import Unit
from tff_agnostic.metrics.by_group import by_group_of
from tff_agnostic.models.model import Measure
from tff_agnostic.program.studies.comparison import SUMMARIES, Comparison, Trials

_RESULT = {
    "overall": {"loss": 0.4, "accuracy": 0.8},
    "domains": {
        "a": {"loss": 0.2, "accuracy": 0.9},
        "b": {"loss": 0.8, "accuracy": 0.6},
        "few": {"loss": 9.0, "accuracy": 0.0},
        "none": {"loss": None, "accuracy": None},
    },
    "not_counted": ["few", "none"],
}
_MEASURES = {
    "loss": Measure("loss", Unit.NONE, False),
    "accuracy": Measure("accuracy", Unit.SHARE, True),
}


def test_the_numbers_of_a_run():
    found = by_group_of(_RESULT, _MEASURES)
    assert found.overall == {"loss": 0.4, "accuracy": 0.8}
    assert found.by_group["accuracy"]["few"] == 0.0 and math.isnan(found.by_group["loss"]["none"])
    assert found.group_min() == {"loss": 0.2, "accuracy": 0.6}
    assert found.group_max() == {"loss": 0.8, "accuracy": 0.9}
    np.testing.assert_allclose(list(found.difference().values()), [0.6, 0.3])
    np.testing.assert_allclose(list(found.ratio().values()), [0.25, 2 / 3])
    assert found.worst() == {"loss": "b", "accuracy": "b"}


def test_a_line_makes_a_data_frame_of_it_where_pandas_is():
    pandas = pytest.importorskip("pandas")
    found = by_group_of(_RESULT, _MEASURES)
    frame = pandas.DataFrame(found.by_group)
    assert list(frame.index) == [*_RESULT["domains"]] and list(frame.columns) == [*_MEASURES]
    assert frame.loc["b", "accuracy"] == 0.6 and frame["loss"].isna()["none"]
    # fairlearn's numbers are these of the domains that count.
    counted = frame.drop(index=list(found.not_counted))
    assert (counted.max() - counted.min()).to_dict() == pytest.approx(found.difference())
    assert (counted.min() / counted.max()).to_dict() == pytest.approx(found.ratio())
    rows = {"FedAvg": found, "AgnosticFedAvg": found}
    both = pandas.concat({row: pandas.DataFrame(of.by_group) for row, of in rows.items()})
    assert both.loc[("FedAvg", "a"), "loss"] == 0.2 and len(both) == 2 * len(frame)


def test_no_domain_that_counts_is_no_worst_one():
    found = by_group_of({**_RESULT, "not_counted": list(_RESULT["domains"])}, _MEASURES)
    assert found.worst() == {"loss": None, "accuracy": None}
    assert all(math.isnan(v) for of in (found.difference(), found.ratio()) for v in of.values())


def test_rows_of_a_comparison_have_means_over_the_trials():
    values = {n: {"loss": np.array([1.0, 3.0])} for n in ("a", *SUMMARIES)}
    values["b"] = {"loss": np.array([1.0, 2.0])}
    comparison = Comparison(
        ("a", "b"), measures("loss"), {"fed_avg": Trials(values, [{}] * 2)}, {"fed_avg": "FedAvg"}
    )
    found = comparison.by_group()["FedAvg"]
    assert found.by_group == {"loss": {"a": 2.0, "b": 1.5}}
    assert found.overall == {"loss": 2.0} and found.worst() == {"loss": "a"}
