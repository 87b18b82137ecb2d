"""Warnings about neglected domains and implausible losses."""

import dataclasses
import math

import numpy as np
import pytest

from tests.options import make_options
from tests.run.harness import make_evaluation, make_task
from tff_agnostic.algorithms import AgnosticFedAvgOptions, FedAvgOptions
from tff_agnostic.base.report_fields import ReportField, Role
from tff_agnostic.data.data_warnings import ABSURD, GIVEN_UP, UNMOVED
from tff_agnostic.metrics.metrics_file import Column
from tff_agnostic.models import logistic_regression
from tff_agnostic.program.runs import harm

_NAMES = ("a", "b", "c")
_SETTINGS = {"initial_model": None, "client_learning_rate": 0.1, "seed": 0}


_LOSS = ReportField("before/loss", "loss", per_domain=True, role=Role.DOMAIN_LOSS)
_COLUMNS = [Column(_LOSS, name) for name in _NAMES]


def _values(*by_round, losses=(1.1, math.nan, 1.1)):
    lambda_ = {f"lambda/{n}": np.array(v) for n, v in zip(_NAMES, zip(*by_round))}
    first_losses = {c.name: np.array([v, 9.0]) for c, v in zip(_COLUMNS, losses)}
    return {**lambda_, **first_losses}


def _remarks(
    lambda_=(0.9, 0.09, 0.01),
    end=(1.0, 1.0, 2.0),
    start=(1.1, 1.1, 1.1),
    losses=(1.1, math.nan, 1.1),
    model=None,
    algorithm=None,
    non_finite=0,
    **settings,
):
    actual = harm.remarks_at_end(
        model or make_task(_NAMES).model,
        algorithm or AgnosticFedAvgOptions(),
        {**_SETTINGS, **settings},
        _COLUMNS,
        _values(lambda_, losses=losses),
        dataclasses.replace(
            make_evaluation(dict(zip(_NAMES, end))),
            clients={"evaluated": 2, "empty": 0, "non_finite": non_finite},
        ),
        lambda: None if start is None else make_evaluation(dict(zip(_NAMES, start))),
    )
    return [(remark.kind, remark.text) for remark in actual]


def test_neglected_domain_is_reported_with_a_flag():
    ((kind, text),) = _remarks(algorithm=make_options(AgnosticFedAvgOptions, lambda_absent="zero"))
    assert kind == GIVEN_UP
    assert text.startswith(
        "training neglects c (loss 1.1 before the first round, 2 at the end, lambda 0.01): "
    )
    assert "--lambda_absent=freeze keeps it" in text
    ((_, text),) = _remarks(algorithm=AgnosticFedAvgOptions())
    assert "--lambda_absent" not in text
    assert "--lambda_update=fixed" in text


def test_advice_under_cvar_names_its_rate():
    options = make_options(AgnosticFedAvgOptions, lambda_update="cvar:rate=0.3")
    advice = harm.lambda_advice(options)
    assert "a rate of --lambda_update=cvar below 0.3 moves it less" in advice
    assert "--lambda_learning_rate" not in advice


def test_domain_without_finite_loss_is_reported():
    ((kind, text),) = [
        (r.kind, r.text)
        for r in harm.unknown_losses(
            {"a": 1.0, "b": math.nan}, 3, ["--client_learning_rate", "--server_learning_rate"]
        )
    ]
    assert kind == ABSURD
    assert text == (
        "no loss is known of b, as the numbers of 3 test clients are not finite: scale the "
        "features or lower --client_learning_rate or --server_learning_rate."
    )
    # Domain b has no test clients.
    assert harm.unknown_losses({"a": 1.0, "b": math.nan}, 0, []) == []


@pytest.mark.parametrize(
    "healthy",
    [
        {"lambda_": (0.4, 0.3, 0.3)},
        {"end": (1.0, 1.0, 1.05)},
        {"algorithm": FedAvgOptions()},
        {"algorithm": make_options(AgnosticFedAvgOptions, lambda_update="fixed")},
        {"algorithm": make_options(AgnosticFedAvgOptions, lambda_initial=(0.9, 0.1, 0.0))},
        {"end": (1.0, 1.0, math.nan)},
        # Private evaluations do not evaluate the initial model.
        {"start": None},
        # Counts of clients in private evaluations are noisy.
        {
            "end": (1.0, 1.0, math.nan),
            "non_finite": 1,
            "private_evaluation": "noise:multiplier=1.0",
        },
    ],
)
def test_healthy_runs_have_no_warning(healthy):
    assert _remarks(**healthy) == []


def test_unmoved_lambda_is_reported():
    """The largest loss of each domain over the rounds is 9."""
    same = {"lambda_": (0.4, 0.3, 0.3)}
    for baselines in ((9.0, 9.0, 9.0), (20.0, 10.0, 9.5)):
        ((kind, text),) = _remarks(
            algorithm=make_options(AgnosticFedAvgOptions, lambda_baselines=baselines), **same
        )
        assert kind == UNMOVED
    assert "a 20 (largest loss 9), b 10 (largest loss 9), c 9.5 (largest loss 9)" in text
    assert text.endswith("Lower --lambda_baselines.")
    for baselines in ((20.0, 8.9, 20.0), (0.0, 0.0, 0.0), None):
        algorithm = make_options(AgnosticFedAvgOptions, lambda_baselines=baselines)
        assert _remarks(algorithm=algorithm, **same) == []


def test_lambda_is_averaged_over_last_rounds():
    columns = _values(*[(0.8, 0.1, 0.1)] * 18, (0.4, 0.2, 0.4), (0.6, 0.2, 0.2))
    np.testing.assert_allclose(harm.last_lambda(columns, _NAMES), [0.5, 0.2, 0.3])
    assert harm.last_lambda({}, _NAMES) is None


def test_implausible_classifier_losses_are_reported():
    ((kind, text),) = _remarks(lambda_=(0.4, 0.3, 0.3), end=(0.3, 332_757.0, 12.0))
    assert kind == ABSURD
    # make_task has three classes.
    assert (
        "b 332,757, c 12, where one that gives all 3 classes the same probability has 1.1." in text
    )
    assert text.endswith(": scale the features or lower --client_learning_rate.")


def test_implausible_other_losses_exceed_first_round():
    model = dataclasses.replace(
        logistic_regression(2, 3), loss=lambda y, scores: (scores[:, 0] - 1.0) ** 2
    )
    same = {"lambda_": (0.4, 0.3, 0.3), "model": model}
    assert _remarks(end=(1.0, 1.0, 10.0), **same) == []
    ((kind, text),) = _remarks(end=(1.0, 1.0, 30.0), **same)
    assert kind == ABSURD
    assert "c 30, where the first round, before any training, has 1.1." in text
    assert _remarks(end=(1.0, 1.0, 30.0), initial_model="file", **same) == []
    assert _remarks(end=(1.0, 1.0, 30.0), losses=(math.nan,) * 3, **same) == []


def test_untrained_model_is_evaluated_on_demand():
    def never():
        raise AssertionError

    model, report = make_task(_NAMES).model, make_evaluation(dict.fromkeys(_NAMES, 1.0))
    values = _values((0.4, 0.3, 0.3))
    options = AgnosticFedAvgOptions()
    assert harm.remarks_at_end(model, options, _SETTINGS, _COLUMNS, values, report, never) == []
