"""Measures by group, against fairlearn's definitions written out."""

import math

import numpy as np

from tests.run.harness import measures
from tff_agnostic.metrics.by_group import by_group_of
from tff_agnostic.models.model import Measure
from tff_agnostic.report_fields import Unit
from tff_agnostic.studies.comparison import SUMMARIES, Comparison, Trials

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
