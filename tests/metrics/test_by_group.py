"""Measures by group, compared with fairlearn's definitions in pandas."""

import math

import numpy as np
import pytest

from tff_agnostic.base.report_fields import Unit
from tff_agnostic.metrics.by_group import measures_by_group
from tff_agnostic.models.model import Measure

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


def test_run_has_numbers_by_group():
    measured = measures_by_group(_RESULT, _MEASURES)
    assert measured.overall == {"loss": 0.4, "accuracy": 0.8}
    assert measured.by_group["accuracy"]["few"] == 0.0 and math.isnan(
        measured.by_group["loss"]["none"]
    )
    assert measured.group_min() == {"loss": 0.2, "accuracy": 0.6}
    assert measured.group_max() == {"loss": 0.8, "accuracy": 0.9}
    np.testing.assert_allclose(list(measured.difference().values()), [0.6, 0.3])
    np.testing.assert_allclose(list(measured.ratio().values()), [0.25, 2 / 3])
    assert measured.worst() == {"loss": "b", "accuracy": "b"}


def test_measures_by_group_become_a_data_frame():
    pandas = pytest.importorskip("pandas")
    measured = measures_by_group(_RESULT, _MEASURES)
    frame = pandas.DataFrame(measured.by_group)
    assert list(frame.index) == [*_RESULT["domains"]] and list(frame.columns) == [*_MEASURES]
    assert frame.loc["b", "accuracy"] == 0.6 and frame["loss"].isna()["none"]
    # Compute fairlearn's definitions for the counted domains.
    counted = frame.drop(index=list(measured.not_counted))
    assert (counted.max() - counted.min()).to_dict() == pytest.approx(measured.difference())
    assert (counted.min() / counted.max()).to_dict() == pytest.approx(measured.ratio())
    rows = {"FedAvg": measured, "AgnosticFedAvg": measured}
    both = pandas.concat({row: pandas.DataFrame(values.by_group) for row, values in rows.items()})
    assert both.loc[("FedAvg", "a"), "loss"] == 0.2 and len(both) == 2 * len(frame)


def test_uncounted_domains_have_no_worst():
    measured = measures_by_group({**_RESULT, "not_counted": list(_RESULT["domains"])}, _MEASURES)
    assert measured.worst() == {"loss": None, "accuracy": None}
    assert all(
        math.isnan(v)
        for values in (measured.difference(), measured.ratio())
        for v in values.values()
    )
