"""The page of an experiment, from made-up results."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from tests.support.pages import result, write_run
from tests.support.results import MEASURES
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

_TAIL = f"p10{OVER_CLIENTS}"
_EXPERIMENT = Experiment(
    title="Toys",
    task="toy_regression",
    arms={
        "fed_avg": Arm("FedAvg", {"algorithm": "fed_avg"}),
        "agnostic_fed_avg": Arm("Agnostic", {"algorithm": "agnostic_fed_avg"}),
    },
    paper=PaperTable(
        source="Author 2020, table 7",
        cells={"accuracy": {"fed_avg": {"phone": "61.5 (0.2)", DIFFERENCE: "8.5", _TAIL: "12.3"}}},
    ),
    measures=("accuracy", "perplexity"),
    columns=(_TAIL, OVERALL, "phone", "watch", DIFFERENCE),
    curve="accuracy",
    harder_domain="phone",
)


def _trials(phone: list[float], tablet: list[float], over_clients: Any) -> Trials:
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
    return Trials(values, [history] * len(phone), over_clients=over_clients)


@pytest.fixture
def comparison(tmp_path) -> Comparison:
    p10 = {"p10": dict.fromkeys(MEASURES, np.array([0.25, 0.35]))}
    return Comparison(
        ("phone", "tablet"),
        MEASURES,
        {
            "fed_avg": _trials([0.5, 0.6], [0.9, 0.9], p10),
            # These trials do not report the statistic over clients.
            "agnostic_fed_avg": _trials([0.7], [0.8], {}),
        },
        records={"fed_avg": [read_run(write_run(tmp_path / "run", result(("phone", "tablet"))))]},
    )


def test_table_compares_our_numbers_with_the_paper(comparison):
    # The columns show all examples, the experiment's domains, the data's other domain, and then
    # other summaries.
    table = pages.table(_EXPERIMENT, comparison, "accuracy")
    names = [name for name in table.columns[1:] if name != "paper"]
    assert names == ["all", "phone", "watch", "tablet", "p10 of clients", "difference"]
    fed_avg, agnostic = ([cell_text(cell) for cell in row] for row in table.rows)
    assert fed_avg[:5] == ["FedAvg", "72.5 (3.5)", "-", "55.0 (7.1)", "61.5 (0.2)"]
    assert fed_avg[5:] == ["-", "-", "90.0 (0.0)", "-", "30.0 (7.1)", "12.3", "35.0 (7.1)", "8.5"]
    assert agnostic[9:11] == ["-", "-"]
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
    assert "61.5 (0.2)" in to_terminal(page)


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


def test_figure_has_a_curve_of_the_harder_domain(comparison):
    (axes,) = pages.curve(_EXPERIMENT, comparison).axes
    assert [line.get_label() for line in axes.lines] == ["FedAvg", "Agnostic"]
    # Rounds without an evaluation are skipped.
    np.testing.assert_array_equal(axes.lines[0].get_xdata(), [1, 3])
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [0.1, 0.5])
    assert axes.get_ylabel() == "accuracy of phone"
    # By default, the worst domain is the harder one.
    for measure, expected in (("accuracy", "phone"), ("perplexity", "tablet")):
        experiment = dataclasses.replace(_EXPERIMENT, harder_domain=None, measures=(measure,))
        assert pages.harder_domain(experiment, comparison) == expected
