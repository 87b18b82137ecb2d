"""The columns of metrics.csv."""

import math
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest

from tests.program.harness import AWKWARD_NAMES, make_task
from tff_agnostic.computations.algorithm import ServerState
from tff_agnostic.models.functional import ModelWeights
from tff_agnostic.program import round_row
from tff_agnostic.program.evaluation_report import EvaluationReport, Measure, SetReport

_NAMES = ("phone", "tablet")


def _metrics() -> Any:
    return OrderedDict(
        client_work=OrderedDict(
            train=OrderedDict(
                loss=np.array([2.0, 0.0], np.float32),
                num_examples=np.array([5, 0]),
                accuracy=np.array([0.25, 0.0], np.float32),
            )
        ),
        clients=OrderedDict(contributed=3, zero_weight=0, empty=1, non_finite=0),
        domain_weights=OrderedDict(
            [("lambda", np.array([0.4, 0.6])), ("alpha", np.array([4.0, 6.0]))]
        ),
        finalizer=OrderedDict(update_norm=0.5),
        aggregator=OrderedDict(clipped=OrderedDict(delta=2)),
    )


def _state() -> ServerState:
    return ServerState(ModelWeights([np.array([[1.0, 2.0]]), np.array(7.0)], []), (), (), 3)


def _report(*losses: float) -> EvaluationReport:
    def one(value: float) -> SetReport:
        m = Measure(value, 2, value, value, value, value)
        return SetReport(0 if math.isnan(value) else 4, {"loss": m, "accuracy": m})

    return EvaluationReport(
        domains={name: one(value) for name, value in zip(_NAMES, losses)},
        overall=one(float(np.nanmean(losses))),
        higher_is_better={"loss": False, "accuracy": True},
        clients={"evaluated": 2, "empty": 0, "non_finite": 0},
    )


def test_what_a_round_of_training_reports():
    task = make_task(_NAMES)
    task.tracked_weights.update({"second weight": (0, 1)})
    assert round_row.train_values(task, _metrics(), _state()) == {
        "train/loss/phone": 2.0,
        # A domain without examples in the round has no loss; the algorithm's 0 would mislead.
        "train/loss/tablet": None,
        "train/num_examples/phone": 5,
        "train/num_examples/tablet": 0,
        "train/accuracy/phone": 0.25,
        "train/accuracy/tablet": None,
        "lambda/phone": 0.4,
        "lambda/tablet": 0.6,
        "alpha/phone": 4.0,
        "alpha/tablet": 6.0,
        "clients/contributed": 3,
        "clients/zero_weight": 0,
        "clients/empty": 1,
        "clients/non_finite": 0,
        "update_norm": 0.5,
        "clipped/delta": 2,
        "second weight": 2.0,
    }


def test_what_an_evaluation_reports():
    assert round_row.test_values(make_task(_NAMES), _report(1.0, 3.0)) == {
        "test/loss/phone": 1.0,
        "test/loss/tablet": 3.0,
        "test/loss": 2.0,
        "test/worst loss": 3.0,
        "test/accuracy/phone": 1.0,
        "test/accuracy/tablet": 3.0,
        "test/accuracy": 2.0,
        "test/worst accuracy": 1.0,
    }


def test_a_domain_without_test_examples_has_empty_cells():
    values = round_row.test_values(make_task(_NAMES), _report(1.0, math.nan))
    assert values["test/loss/tablet"] is None
    assert values["test/worst loss"] == 1.0


def test_a_round_without_evaluation_has_the_same_columns():
    task = make_task(_NAMES)
    without = round_row.test_values(task, None)
    assert list(without) == list(round_row.test_values(task, _report(1.0, 3.0)))
    assert set(without.values()) == {None}


def test_an_evaluation_can_be_taken_out_of_a_row():
    row = {"round": "3", "train/loss/a": "1.0", "test/loss/a": "2.0", "test/loss": "2.0"}
    assert round_row.without_evaluation(row) == {
        "round": "3",
        "train/loss/a": "1.0",
        "test/loss/a": "",
        "test/loss": "",
    }


@pytest.mark.parametrize("domain", AWKWARD_NAMES)
@pytest.mark.parametrize("measure", ["train/loss", "test/accuracy", "lambda", "alpha"])
def test_columns_of_domains_are_told_apart(measure, domain):
    assert round_row.split_column(f"{measure}/{domain}") == (measure, domain)


@pytest.mark.parametrize(
    "column", ["test/loss", "test/worst loss", "clients/empty", "update_norm", "learned value"]
)
def test_columns_of_no_domain(column):
    assert round_row.split_column(column) == (column, None)


def test_the_worst_domain_of_a_round():
    assert round_row.worst_in_round(make_task(_NAMES), _metrics()) == ("phone", 2.0, 0.4)
