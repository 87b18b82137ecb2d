"""The scoreboard: comparisons of made-up trials, and its data sets."""

import numpy as np
import pytest

from benchmarks.scoreboard import DATA_SETS, Board, DataSet
from tff_agnostic.base.report_fields import Unit
from tff_agnostic.metrics.intervals import Resampled
from tff_agnostic.models.model import Measure
from tff_agnostic.program.options.tasks import check_task_options
from tff_agnostic.program.runs.spec import resolve
from tff_agnostic.program.studies.comparison import OVERALL, WORST, Comparison, Trials
from tff_agnostic.program.studies.methods import WORDS
from tff_agnostic.program.studies.portfolio import IF_NAMED, PORTFOLIO

_NAMES = ("a", "b", "c")
_ACCURACY = Measure("accuracy", Unit.SHARE, True)
_LOSS = Measure("loss", Unit.NONE, False)
_PERPLEXITY = Measure("perplexity", Unit.FACTOR, False)
_SHIFTS = np.array([-0.004, 0.0, 0.004])


def _values(means) -> np.ndarray:
    """Returns almost equal values of three seeds in each domain."""
    rng = np.random.default_rng([round(1000 * mean) for mean in means])
    jitter = rng.uniform(-0.001, 0.001, size=[3, len(_NAMES)])
    return np.array(means) + _SHIFTS[:, None] + jitter - jitter.mean(axis=0)


def _trials(means, measure, noise) -> Trials:
    rng = np.random.default_rng([round(1000 * mean) for mean in means])
    values = _values(means)
    by_name = {name: {measure.name: values[:, i]} for i, name in enumerate(_NAMES)}
    by_name[OVERALL] = {measure.name: values.mean(axis=1)}
    pick = np.min if measure.higher_is_better else np.max
    by_name[WORST] = {measure.name: pick(values, axis=1)}
    four = np.column_stack([values, values.mean(axis=1)])
    drawn = [
        Resampled({measure.name: row + noise * rng.normal(size=[40, 4])}, np.full([4], 30.0))
        for row in four
    ]
    return Trials(by_name, [], resampled=drawn, seeds=[0, 1, 2])


def _comparison(rows, measure, noise=0.002) -> Comparison:
    trials = {row: _trials(means, measure, noise) for row, means in rows.items()}
    loss = {} if measure is _LOSS else {"loss": _LOSS}
    return Comparison(_NAMES, {**loss, measure.name: measure}, trials, {"fed_avg": "FedAvg"})


def _board(rows, measure, choice, noise=0.002) -> Board:
    return Board(DataSet("toys", "digits"), _comparison(rows, measure, noise), choice, {})


def test_payers_are_domains_that_are_significantly_worse():
    rows = {"fed_avg": (0.9, 0.8, 0.5), "uniform": (0.84, 0.799, 0.62)}
    assert _board(rows, _ACCURACY, "uniform").payers("uniform") == ["a"]
    assert _board(rows, _ACCURACY, "uniform", noise=0.2).payers("uniform") == []


@pytest.mark.parametrize(
    ("measure", "worsts", "noise", "expected"),
    [
        # The worst values are those of FedAvg, the choice and another method; the expected values
        # are (is_worse, best, is_near).
        (_ACCURACY, (0.5, 0.6, 0.615), 0.002, (False, "other", True)),
        (_ACCURACY, (0.5, 0.6, 0.65), 0.002, (False, "other", False)),
        (_ACCURACY, (0.5, 0.6, 0.65), 0.2, (False, "other", True)),
        (_ACCURACY, (0.6, 0.5, 0.55), 0.002, (True, "fed_avg", False)),
        (_ACCURACY, (0.5, 0.6, 0.6), 0.002, (False, "choice", True)),
        (_LOSS, (1.5, 1.2, 1.16), 0.002, (False, "other", True)),
        (_PERPLEXITY, (150.0, 110.0, 100.0), 0.1, (False, "other", False)),
    ],
)
def test_choice_is_compared_with_best_method(measure, worsts, noise, expected):
    good = 0.9 if measure.higher_is_better else 0.1
    rows = {row: (good, good, worst) for row, worst in zip(("fed_avg", "choice", "other"), worsts)}
    board = _board(rows, measure, "choice", noise)
    assert (board.is_worse, board.best, board.is_near) == expected


def test_every_method_resolves_on_each_data_set():
    for name, data in DATA_SETS.items():
        check_task_options(data.task, data.task_options)
        for row in (row for row in PORTFOLIO if row not in IF_NAMED):
            arm = dict(WORDS[row].settings) if row in WORDS else {"algorithm": row}
            arm.pop("lambda_baselines", None)
            spec = resolve(data.task, arm, data.task_options, shared=dict(data.settings))
            assert spec.config.rounds == data.settings.get("rounds", spec.config.rounds), name
