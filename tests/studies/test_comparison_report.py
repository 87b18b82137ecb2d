"""Tables laid out like the paper's."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from tests import golden
from tests.run.harness import AWKWARD_NAMES, is_png, measures
from tff_agnostic.base.report_fields import Unit
from tff_agnostic.metrics.evaluation_report import ClientValues
from tff_agnostic.models import logistic_regression
from tff_agnostic.models.model import Measure, measures_of
from tff_agnostic.program.reports.figures import save
from tff_agnostic.program.studies.comparison import SUMMARIES, Comparison, Trials
from tff_agnostic.program.studies.comparison_report import (
    client_figures,
    figure,
    markdown,
    notes,
    table,
    table_over_clients,
)


def _trials(by_domain: Mapping[str, Sequence[float]], worst: Sequence[float]) -> Trials:
    values: dict[str, Any] = {
        name: {"loss": 2 * np.array(v), "accuracy": np.array(v)} for name, v in by_domain.items()
    }
    for summary in SUMMARIES:
        values[summary] = {"loss": 2 * np.array(worst), "accuracy": np.array(worst)}
    history = {
        "round": np.arange(1.0, 4.0),
        "test/worst loss": np.array([np.nan, 2.0, 1.0]),
        "test/worst accuracy": np.array([np.nan, 0.2, 0.4]),
    }
    return Trials(values, [history] * len(worst))


def _comparison(names: Sequence[str] = ("phone", "tablet")) -> Comparison:
    return Comparison(
        tuple(names),
        measures("loss", "accuracy"),
        {
            "fed_avg": _trials({n: [0.8, 0.9] for n in names}, [0.3, 0.5]),
            "agnostic_fed_avg": _trials({n: [0.6, 0.6] for n in names}, [0.4, 0.8]),
        },
        {"fed_avg": "FedAvg", "agnostic_fed_avg": "AgnosticFedAvg"},
    )


def _cells(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if not set(line) <= set("|-: ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize(
    ("unit", "cell", "title"),
    [
        (Unit.SHARE, "50.0", "Hits in five, percent"),
        (Unit.FACTOR, "0.50", "Hits in five"),
        (Unit.NONE, "0.500", "Hits in five"),
    ],
)
def test_shares_are_in_percent_and_factors_have_two_decimals(unit, cell, title):
    measure = Measure("hits_in_five", unit, True, None)
    values = {name: {"hits_in_five": np.array([0.5])} for name in ("a", *SUMMARIES)}
    trials = {"fed_avg": Trials(values, [{}])}
    comparison = Comparison(("a",), {"hits_in_five": measure}, trials)
    assert _cells(table(comparison, "hits_in_five", "simple"))[1][0].split()[-1] == cell
    assert f"## {title} (higher is better)" in markdown(comparison, "title", "command")


def test_nothing_is_bold_in_the_terminal():
    text = table(_comparison(), "loss", "simple")
    assert "*" not in text
    assert "AgnosticFedAvg" in text


def test_a_single_trial_has_no_standard_deviation():
    one = Comparison(("a",), measures("loss"), {"fed_avg": _trials({"a": [0.25]}, [0.5])})
    assert _cells(table(one, "loss", "github"))[1][1] == "**0.500**"


def test_a_domain_without_test_examples_has_no_best_algorithm():
    comparison = Comparison(
        ("a", "b"),
        measures("loss"),
        {
            name: _trials({"a": [np.nan] * 2, "b": [value] * 2}, [value] * 2)
            for name, value in (("fed_avg", 1.0), ("agnostic_fed_avg", 0.5))
        },
    )
    cells = _cells(table(comparison, "loss", "github"))
    assert [row[1] for row in cells[1:]] == ["-", "-"]
    assert [row[2].startswith("**") for row in cells[1:]] == [False, True]


def test_awkward_names_do_not_break_the_table():
    lines = table(_comparison(AWKWARD_NAMES), "loss", "github").splitlines()
    assert len(lines) == 2 + len(AWKWARD_NAMES) + len(SUMMARIES)
    assert {line.replace(r"\|", "").count("|") for line in lines} == {4}


@pytest.mark.parametrize("names", [("phone", "tablet"), AWKWARD_NAMES])
def test_the_figure_has_a_curve_and_bars_for_each_algorithm(tmp_path, names):
    result = figure(_comparison(names), "loss")
    curves, bars = result.axes
    assert [line.get_label() for line in curves.lines] == ["FedAvg", "AgnosticFedAvg"]
    np.testing.assert_array_equal(curves.lines[0].get_xdata(), [2.0, 3.0])
    assert [len(container) for container in bars.containers if hasattr(container, "patches")] == [
        len(names),
        len(names),
    ]
    assert "test clients" in curves.get_ylabel() and "test clients" in bars.get_xlabel()
    save(result, tmp_path / "compare_loss.png")
    assert is_png((tmp_path / "compare_loss.png").read_bytes())


_STATISTICS = ("mean", "p90", "superquantile")


def _with_clients(trials: Trials, mean: float, tail: Sequence[float]) -> Trials:
    by_name = {"mean": [mean] * 2, "p90": [np.nan] * 2, "superquantile": tail}
    values = ClientValues([0.25, 0.8, 0.9], [1, 2, 1], [4, 64], [3, 1], [mean, tail[0]])
    return dataclasses.replace(
        trials,
        over_clients={
            s: {"loss": np.array(by_name[s]), "accuracy": np.array(by_name[s])} for s in _STATISTICS
        },
        client_values={"accuracy": [values, values]},
    )


def _over_clients() -> Comparison:
    comparison = _comparison()
    rows = comparison.trials
    return dataclasses.replace(
        comparison,
        measures=measures_of(logistic_regression(2, 3)),
        trials={
            "fed_avg": _with_clients(rows["fed_avg"], 0.9, [0.3, 0.5]),
            "agnostic_fed_avg": _with_clients(rows["agnostic_fed_avg"], 0.8, [0.6, 0.6]),
        },
    )


@golden.text
def test_pages():
    """Domains or percentiles are the columns, or the rows where they are many."""
    names = [f"domain {i}" for i in range(8)]
    many = {f"p{k}": {"accuracy": np.array([0.5, 0.5])} for k in range(1, 10)}
    rows = {
        name: dataclasses.replace(trials, over_clients=many)
        for name, trials in _over_clients().trials.items()
    }
    of_many = dataclasses.replace(_over_clients(), trials=rows)
    return "\n\n".join(
        [
            markdown(_comparison(), "Comparison on digits", "./run compare --task=digits"),
            table(_comparison(names), "loss", "github"),
            markdown(_over_clients(), "Over clients", "./run compare"),
            str(table_over_clients(of_many, "accuracy", "github")),
        ]
    )


def test_a_row_without_the_clients_has_dashes_and_without_any_there_is_no_table():
    comparison = _over_clients()
    of_then = _comparison().trials["fed_avg"]
    rows = {"fed_avg": of_then, "agnostic_fed_avg": comparison.trials["agnostic_fed_avg"]}
    mixed = dataclasses.replace(comparison, trials=rows)
    text = table_over_clients(mixed, "accuracy", "simple")
    assert text is not None
    assert _cells(text)[1][0].split()[-2:] == ["-", "-"]
    assert table_over_clients(_comparison(), "accuracy", "simple") is None
    assert "Over the" not in markdown(_comparison(), "title", "command")
    assert list(client_figures(mixed)) == ["accuracy"]
    assert client_figures(_comparison()) == {}


@pytest.mark.slow
def test_the_figure_of_the_clients_has_both_panels_for_each_algorithm(tmp_path):
    (draw,) = client_figures(_over_clients()).values()
    figure_of_clients = draw()
    shares, by_size = figure_of_clients.axes
    assert [text.get_text() for text in figure_of_clients.legends[0].get_texts()] == [
        "FedAvg",
        "AgnosticFedAvg",
    ]
    assert [curve.get_ydata()[-1] for curve in shares.lines] == pytest.approx([100, 100])
    assert "test client" in shares.get_xlabel() and "examples" in by_size.get_xlabel()
    save(figure_of_clients, tmp_path / "clients.png")
    assert is_png((tmp_path / "clients.png").read_bytes())


def test_what_is_not_counted_and_which_split_it_was_are_told():
    trials = dataclasses.replace(_trials({"a": [0.5], "b": [0.1]}, [0.5]), not_counted={"b"})
    histories = [{**h, "heldout/worst loss": h["test/worst loss"]} for h in trials.histories]
    trials = dataclasses.replace(trials, histories=histories)
    comparison = Comparison(
        ("a", "b"), measures("loss"), {"fed_avg": trials}, split="heldout", worst_min_examples=7
    )
    line = (
        "not counted in worst and difference, having less than --worst_min_examples=7 heldout "
        "examples in every trial: b"
    )
    assert notes(comparison) == [line]
    page = markdown(comparison, "title", "command")
    assert f"\nN{line[1:]}.\n" in page
    assert "of 1 trial, on the heldout clients." in page
    curves, bars = figure(comparison, "loss").axes
    assert len(curves.lines[0].get_xdata()) == 2
    assert "heldout" in curves.get_ylabel() and "heldout" in bars.get_xlabel()
    # Of losses the largest is the worst, which is on top.
    assert [tick.get_text() for tick in bars.get_yticklabels()] == ["a", "b (not counted)"]
