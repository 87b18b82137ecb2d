"""Warnings about neglected domains and implausible losses."""

import dataclasses
import math

import numpy as np
import pytest

from tests.support import golden
from tests.support.options import make_options
from tests.support.results import make_evaluation, make_task
from tff_agnostic.algorithms import AgnosticFedAvgOptions, FedAvgOptions
from tff_agnostic.base.report_fields import ReportField, Role
from tff_agnostic.data.data_warnings import ABSURD
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


_EVEN = {"lambda_": (0.4, 0.3, 0.3)}
_SQUARED = dataclasses.replace(
    logistic_regression(2, 3), loss=lambda y, scores: (scores[:, 0] - 1.0) ** 2
)


def _options(**given):
    return make_options(AgnosticFedAvgOptions, **given)


# The largest loss of each domain over the rounds is 9.
_HARMFUL = {
    "a neglected domain, and --lambda_absent=zero": {"algorithm": _options(lambda_absent="zero")},
    "baselines at or above the largest losses": {
        "algorithm": _options(lambda_baselines=(20.0, 10.0, 9.0)),
        **_EVEN,
    },
    "implausible losses of a classifier": {"end": (0.3, 332_757.0, 12.0), **_EVEN},
    "losses far above the first round": {"end": (1.0, 1.0, 30.0), "model": _SQUARED, **_EVEN},
}


@golden.text
def test_harm_has_known_remarks():
    texts = []
    for name, harmful in _HARMFUL.items():
        ((kind, text),) = _remarks(**harmful)
        texts.append(f"# {name}\n{kind}: {text}")
    return "\n\n".join(texts)


def test_advice_names_effective_flags_only():
    advice = harm.lambda_advice(_options(lambda_update="cvar:rate=0.3", lambda_absent="freeze"))
    assert "a rate of --lambda_update=cvar below 0.3 moves it less" in advice
    assert "--lambda_learning_rate" not in advice and "--lambda_absent" not in advice


def test_domain_without_finite_loss_is_reported():
    rates = ["--client_learning_rate", "--server_learning_rate"]
    (remark,) = harm.unknown_losses({"a": 1.0, "b": math.nan}, 3, rates)
    assert remark.kind == ABSURD
    assert remark.text.startswith("no loss is known of b, as the numbers of 3 test clients are ")
    assert remark.text.endswith(" or lower --client_learning_rate or --server_learning_rate.")
    # Domain b has no test clients.
    assert harm.unknown_losses({"a": 1.0, "b": math.nan}, 0, []) == []


@pytest.mark.parametrize(
    "healthy",
    [
        # The initial model is evaluated on demand; strings are no losses.
        {"start": "abc", **_EVEN},
        {"end": (1.0, 1.0, 1.05)},
        {"algorithm": FedAvgOptions()},
        {"algorithm": _options(lambda_update="fixed")},
        {"algorithm": _options(lambda_initial=(0.9, 0.1, 0.0))},
        {"algorithm": _options(lambda_baselines=(20.0, 8.9, 20.0)), **_EVEN},
        {"end": (1.0, 1.0, 10.0), "model": _SQUARED, **_EVEN},
        {"end": (1.0, 1.0, 30.0), "model": _SQUARED, "initial_model": "file", **_EVEN},
        {"end": (1.0, 1.0, 30.0), "model": _SQUARED, "losses": (math.nan,) * 3, **_EVEN},
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


def test_lambda_is_averaged_over_last_rounds():
    columns = _values(*[(0.8, 0.1, 0.1)] * 18, (0.4, 0.2, 0.4), (0.6, 0.2, 0.2))
    np.testing.assert_allclose(harm.last_lambda(columns, _NAMES), [0.5, 0.2, 0.3])
    assert harm.last_lambda({}, _NAMES) is None
