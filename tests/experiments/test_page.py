"""The page of an experiment, from made-up results."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from tests.support.pages import result, write_run
from tests.support.results import MEASURES
from tff_agnostic.program.experiments import EXPERIMENTS
from tff_agnostic.program.experiments import page as pages
from tff_agnostic.program.experiments.experiment import (
    OVER_CLIENTS,
    ArmsAsPredictors,
    Experiment,
    PaperTable,
    UnigramPredictors,
)
from tff_agnostic.program.reports.document import Sentences, cell_text, to_terminal
from tff_agnostic.program.reports.run_record import read_run
from tff_agnostic.program.runs.spec import resolve
from tff_agnostic.program.studies.comparison import DIFFERENCE, OVERALL, Comparison, Trials
from tff_agnostic.program.studies.methods import Arm

_EXPERIMENT = Experiment(
    title="Toys",
    task="toy_regression",
    arms={
        "fed_avg": Arm("FedAvg", {"algorithm": "fed_avg"}),
        "agnostic_fed_avg": Arm("Agnostic", {"algorithm": "agnostic_fed_avg"}),
    },
    paper=PaperTable(
        source="Author 2020, table 7",
        cells={"accuracy": {"fed_avg": {"phone": "61.5 (0.2)", DIFFERENCE: "8.5"}}},
    ),
    measures=("accuracy", "perplexity"),
    columns=(OVERALL, "phone", "watch", DIFFERENCE),
    curve="accuracy",
    harder_domain="phone",
)


def _trials(phone: list[float], tablet: list[float]) -> Trials:
    values = {
        "phone": {"accuracy": np.array(phone), "perplexity": 100 * np.array(phone)},
        "tablet": {"accuracy": np.array(tablet), "perplexity": 100 * np.array(tablet)},
    }
    for summary, summarize in ((OVERALL, np.mean), (DIFFERENCE, np.ptp), ("(worst)", np.min)):
        values[summary] = {
            measure: summarize([values[d][measure] for d in ("phone", "tablet")], axis=0)
            for measure in ("accuracy", "perplexity")
        }
    history = {
        "round": np.array([1.0, 2.0, 3.0]),
        "test/accuracy/phone": np.array([0.1, np.nan, phone[0]]),
        "test/accuracy/tablet": np.array([0.2, np.nan, tablet[0]]),
    }
    return Trials(values, [history] * len(phone))


@pytest.fixture
def comparison(tmp_path) -> Comparison:
    return Comparison(
        ("phone", "tablet"),
        MEASURES,
        {"fed_avg": _trials([0.5, 0.6], [0.9, 0.9]), "agnostic_fed_avg": _trials([0.7], [0.8])},
        records={"fed_avg": [read_run(write_run(tmp_path / "run", result(("phone", "tablet"))))]},
    )


def test_table_compares_our_numbers_with_the_paper(comparison):
    # The columns show all examples, the experiment's domains, the data's other domain and the
    # difference.
    table = pages.table(_EXPERIMENT, comparison, "accuracy")
    names = [name for name in table.columns[1:] if name != "paper"]
    assert names == ["all", "phone", "watch", "tablet", "difference"]
    fed_avg = [cell_text(cell) for cell in table.rows[0]]
    assert fed_avg[:5] == ["FedAvg", "72.5 (3.5)", "-", "55.0 (7.1)", "61.5 (0.2)"]
    assert fed_avg[5:] == ["-", "-", "90.0 (0.0)", "-", "35.0 (7.1)", "8.5"]
    perplexity = pages.table(_EXPERIMENT, comparison, "perplexity")
    assert cell_text(perplexity.rows[1][1]) == "75.00"


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        (UnigramPredictors("client", 0.01), "a unigram model of each client, smoothed by 0.01 of"),
        (ArmsAsPredictors(("a", "b")), "the models of the rows a, b of the same trial."),
    ],
)
def test_page_has_the_command_and_the_base_predictors(comparison, recipe, expected):
    experiment = dataclasses.replace(_EXPERIMENT, base_predictors=recipe)
    page = pages.page(experiment, comparison, "./run reproduce", ["Shortened."])
    blocks = [block for section in page.sections for block in section.blocks]
    lines = [line for block in blocks if isinstance(block, Sentences) for line in block.lines]
    assert {"Shortened.", "./run reproduce"} <= {*lines}
    assert any(f"Base predictors: {expected}" in line for line in lines)
    terminal = to_terminal(page)
    assert "accuracy, % (higher is better)" in terminal and "61.5 (0.2)" in terminal
    assert "./run reproduce" not in terminal


def test_client_statistics_may_be_columns(comparison):
    tail = f"p10{OVER_CLIENTS}"
    experiment = dataclasses.replace(
        _EXPERIMENT,
        columns=(tail, "phone"),
        paper=PaperTable("Author 2020", {"accuracy": {"fed_avg": {tail: "12.3 (0.1)"}}}),
    )
    over_clients = {"p10": {"accuracy": np.array([0.25, 0.35])}}
    trials = dataclasses.replace(comparison.trials["fed_avg"], over_clients=over_clients)
    comparison = dataclasses.replace(comparison, trials={**comparison.trials, "fed_avg": trials})
    table = pages.table(experiment, comparison, "accuracy")
    first, second = ([cell_text(cell) for cell in row] for row in table.rows)
    assert table.columns[-2:] == ["p10 of clients", "paper"]
    assert first[-2:] == ["30.0 (7.1)", "12.3 (0.1)"]
    # The second method's trials do not report the statistic.
    assert second[-2:] == ["-", "-"]


def test_changed_settings_are_listed_once():
    def specs(**given: Any) -> dict[str, Any]:
        return {
            arm: resolve("toy_regression", {**row.settings, **given}, {})
            for arm, row in _EXPERIMENT.arms.items()
        }

    # These settings do not change the last evaluation.
    looks = {"seed": 7, "evaluate_every": 3, "evaluation_clients": 2, "checkpoint_every": 1}
    assert pages.settings_that_differ(specs(**looks), _EXPERIMENT) == []
    default = specs()["fed_avg"].settings()
    ours = {**specs(rounds=3), "fed_avg": specs(rounds=3, client_learning_rate=0.123456)["fed_avg"]}
    assert pages.settings_that_differ(ours, _EXPERIMENT) == [
        f"--rounds is 3; the task's default is {default['rounds']}.",
        "--client_learning_rate is 0.1235 for FedAvg; the task's default is "
        f"{default['client_learning_rate']:.4g}.",
    ]


def test_figure_has_a_curve_for_each_method(comparison):
    (axes,) = pages.curve(_EXPERIMENT, comparison).axes
    assert [line.get_label() for line in axes.lines] == ["FedAvg", "Agnostic"]
    # Rounds without an evaluation are skipped.
    np.testing.assert_array_equal(axes.lines[0].get_xdata(), [1, 3])
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [0.1, 0.5])
    assert axes.get_ylabel() == "accuracy of phone"


def test_experiment_without_a_harder_domain_uses_the_worst(comparison):
    for measure, expected in (("accuracy", "phone"), ("perplexity", "tablet")):
        experiment = dataclasses.replace(_EXPERIMENT, harder_domain=None, measures=(measure,))
        assert pages.harder_domain(experiment, comparison) == expected
    assert pages.harder_domain(_EXPERIMENT, comparison) == "phone"


def test_experiments_have_different_titles():
    titles = [experiment.title for experiment in EXPERIMENTS.values()]
    assert len(set(titles)) == len(titles)
