"""What is to be good, from evaluations made by hand."""

import dataclasses
import math

import numpy as np
import pytest

from tests import golden
from tests.run.harness import make_evaluation, measures
from tff_agnostic.errors import UserError
from tff_agnostic.metrics.evaluation_report import DEFAULT_PERCENTILES, Measured
from tff_agnostic.studies.search_space import parse_objective

_MEASURES = measures("loss", "accuracy")
_ODD = "1*a+b): c"


@pytest.fixture
def report():
    """Values of three domains, and of all clients others for each statistic."""
    found = make_evaluation({"often": 0.9, "rare": 0.6, _ODD: 0.7})
    whole = {
        name: Measured(0.8, 2, 0.75, dict.fromkeys(DEFAULT_PERCENTILES, 0.7), 0.5)
        for name in ("loss", "accuracy")
    }
    return dataclasses.replace(
        found, overall=dataclasses.replace(found.overall, measures=whole), worst_min_examples=1
    )


@pytest.mark.parametrize(
    ("text", "value", "higher"),
    [
        # The smallest accuracy is the worst one, and the largest loss.
        ("worst", 0.6, True),
        ("worst:loss", 0.9, False),
        ("overall", 0.8, True),
        ("superquantile:accuracy", 0.5, True),
        ("client_mean", 0.75, True),
        ("0.7*worst+0.3*overall", 0.7 * 0.6 + 0.3 * 0.8, True),
        ("2*worst + 1*overall + superquantile", (2 * 0.6 + 0.8 + 0.5) / 4, True),
        ("worst:loss+superquantile:loss", 0.7, False),
        ("domain(often)", 0.9, True),
        ("domain(rare):loss", 0.6, False),
        (f"domain({_ODD})+3*domain(often):accuracy", (0.7 + 3 * 0.9) / 4, True),
    ],
)
def test_the_number_of_a_name(report, text, value, higher):
    objective = parse_objective(text, _MEASURES, list(report.domains))
    np.testing.assert_allclose(objective(report), value, rtol=1e-12)
    assert objective.higher_is_better is higher
    # Its own name is the same objective.
    assert parse_objective(objective.name, _MEASURES, list(report.domains)) == objective


def test_without_a_metric_it_is_the_loss(report):
    assert parse_objective("worst", measures("loss")).name == "worst:loss"


def test_a_domain_with_few_examples_is_not_the_worst(report):
    objective = parse_objective("worst", _MEASURES)
    few = dataclasses.replace(report.domains["rare"], num_examples=3)
    domains = {**report.domains, "rare": few}
    assert objective(dataclasses.replace(report, domains=domains, worst_min_examples=4)) == 0.7
    assert math.isnan(objective(dataclasses.replace(report, worst_min_examples=5)))


def test_shares_are_read_in_percent():
    assert parse_objective("worst", _MEASURES).text(0.84213) == "84.21%"
    assert parse_objective("worst:loss", _MEASURES).text(0.84213) == "0.8421"


@golden.values
def test_another_objective_is_refused(case):
    with pytest.raises(UserError, match=r"^--objective: ") as e:
        parse_objective(case, _MEASURES, ("often", "rare"))
    return str(e.value)
