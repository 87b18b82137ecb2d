"""The page of a comparison: its numbers, and the price of each method."""

import functools
import json
import math
import operator
import shlex
from pathlib import Path

import numpy as np
import pytest

from tests import golden
from tests.reports.made_up import (
    AWKWARD,
    MEASURES,
    PRIVACY,
    Reader,
    numbers_of,
    reads_as,
    result,
    write_run,
)
from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import write_json
from tff_agnostic.program.reports import html as reports_html
from tff_agnostic.program.reports.html import write_page
from tff_agnostic.program.studies.comparison import COMPARISON_FILE, trial_folder
from tff_agnostic.program.studies.comparison_page import comparison_page, majority
from tff_agnostic.program.studies.comparison_record import read_comparison

_COMMAND = ["./run", "compare", "--task=digits"]


@pytest.fixture(autouse=True)
def without_pictures(monkeypatch):
    """Figures of comparisons have separate tests."""
    monkeypatch.setattr(reports_html, "svg", lambda figure: "<svg/>")


def _compared(folder: Path, rows: dict, domains=("a", "b", "c"), trials=2) -> Path:
    """Makes the folder of a comparison; `rows` are changes of each row's results."""
    write_json(folder / COMPARISON_FILE, {"labels": {"fed_avg": "FedAvg"}, "remarks": {}})
    overall: dict = {}
    for i, (row, changes) in enumerate(rows.items()):
        overall[row] = {measure: {"trials": []} for measure in MEASURES}
        for k in range(trials):
            content = result(domains, seed=10 * i + k, algorithm=row, **changes)
            content["seed"] = k
            columns = {f"test/worst {m}": [1.0] * 20 for m in MEASURES}
            write_run(trial_folder(folder, row, k).path, content, columns, algorithm=row)
            for measure in MEASURES:
                overall[row][measure]["trials"].append(content["overall"][measure])
    # As `compare` writes it: what makes it known for one is enough to work out the rest.
    write_json(folder / "compare.json", {row: {"(overall)": of} for row, of in overall.items()})
    record = read_comparison(folder)
    write_json(folder / "compare.json", record.comparison.to_json())
    return folder


def _page(folder: Path) -> Reader:
    page = comparison_page(read_comparison(folder), _COMMAND)
    return Reader(write_page(folder, page).read_text(encoding="utf-8"))


@pytest.mark.slow_cases("rows1-domains1-2")
@pytest.mark.parametrize(
    ("rows", "domains", "trials"),
    [
        ({"fed_avg": {}, "agnostic_fed_avg": {}}, ("a", "b", "c"), 3),
        ({f"row {k}": {"privacy": PRIVACY} for k in range(10)}, AWKWARD, 2),
        ({"fed_avg": {}}, ("one",), 1),
    ],
)
def test_page_has_the_numbers_of_the_comparison(tmp_path, rows, domains, trials):
    folder = _compared(tmp_path, rows, domains, trials)
    page = _page(folder)
    assert all(map(reads_as, page.data))
    found = json.loads((folder / "compare.json").read_text())
    shown = {datum.value for datum in page.data}
    recorded = numbers_of(json.loads((folder / "page.json").read_text()))
    assert shown - {None} <= recorded
    for row in rows:
        for domain in (*domains, "(worst)", "(overall)", "(difference)"):
            numbers = [found[row][domain][m] for m in MEASURES]
            assert {of["mean"] for of in numbers} <= shown
            assert trials == 1 or {of["std"] for of in numbers} <= recorded
    assert len(set(page.ids)) == len(page.ids) and set(page.links) == set(page.ids)
    assert shlex.join(_COMMAND) in page.text
    assert ("the-price" in page.ids) == ("the-verdict" in page.ids) == (len(rows) > 1)
    assert ("There is a single trial of each method" in page.text) == (trials == 1)


def test_price_is_the_mean_difference(tmp_path):
    rows = {"agnostic_fed_avg": {}, "fed_avg": {}, "q_ffl": {}}
    folder = _compared(tmp_path, rows, trials=4)
    _page(folder)
    found = json.loads((folder / "compare.json").read_text())
    shown = numbers_of(json.loads((folder / "page.json").read_text()))
    for row in ("agnostic_fed_avg", "q_ffl"):
        for domain in ("(worst)", "(overall)"):
            for measure, sign in (("accuracy", 1), ("loss", -1)):
                ours, base = (
                    np.array(found[r][domain][measure]["trials"]) for r in (row, "fed_avg")
                )
                differences = sign * (ours - base)
                half = 3.182446305284263 * differences.std(ddof=1) / 2  # t of 3 degrees
                expected = differences.mean(), differences.mean() - half, differences.mean() + half
                if measure == "accuracy":
                    # It cannot gain, or lose, more.
                    expected = tuple(np.clip(expected, -1, 1))
                for value in expected:
                    assert any(math.isclose(value, v, rel_tol=1e-9) for v in shown)


@pytest.mark.parametrize(
    ("examples", "names"),
    [
        ({"a": 10, "b": 90}, ["b"]),
        ({"a": 50, "b": 50}, ["a", "b"]),
        ({"a": 30, "b": 30, "c": 40}, ["c", "a"]),
        ({"a": 0, "b": 0}, []),
    ],
)
def test_majority_is_the_smallest_set(examples, names):
    assert list(majority(examples)) == names


def test_equal_server_facts_appear_once(tmp_path):
    rows = {"fed_avg": {}, "agnostic_fed_avg": {}, "q_ffl": {"privacy": PRIVACY}}
    text = _page(_compared(tmp_path, rows)).text
    assert text.count("No differential privacy") == 1
    assert text.count("Differential privacy of training") == 1


def test_settings_have_no_folders(tmp_path):
    folder = _compared(tmp_path, {"fed_avg": {}, "q_ffl": {}})
    settings_by_row = {
        "fed_avg": {"initial_model": None},
        "q_ffl": {
            "initial_model": "/home/me/secret/model.keras",
            "base_predictors": ["/mnt/a/one", "/mnt/b/two"],
            "client_percentiles": [50.0, 90.0],
            "private_evaluation": "noise:multiplier=4.0,clients_share=0.2,statistics=false",
        },
    }
    for row, settings in settings_by_row.items():
        for k in range(2):
            config = trial_folder(folder, row, k).config
            write_json(config, {**json.loads(config.read_text()), **settings})
    text = _page(folder).text
    assert "--initial_model=not given" in text and "--initial_model=model.keras" in text
    # Settings of one method alone are in one sentence.
    assert (
        "q_ffl alone has --base_predictors=one,two, --client_percentiles=50.0,90.0, "
        "--private_evaluation=noise:multiplier=4.0,clients_share=0.2,statistics=false."
    ) in text
    assert "secret" not in text and "/mnt" not in text and "--format" not in text


@pytest.mark.parametrize("private", [None, "fed_avg", "q_ffl"])
def test_page_mentions_private_methods(tmp_path, private):
    rows = {row: {"privacy": PRIVACY} if row == private else {} for row in ("fed_avg", "q_ffl")}
    text = _page(_compared(tmp_path, rows)).text
    is_private = private is not None
    assert ("give equal numbers, except for the noise and the cohorts" in text) == is_private
    assert ("These counts are exact: no epsilon covers them." in text) == is_private


def test_invalid_comparison_raises_user_error(tmp_path):
    write_json(tmp_path / COMPARISON_FILE, {"labels": {}, "remarks": {}})
    for content in ({}, {"fed_avg": {}}, {"fed_avg": 3}):
        write_json(tmp_path / "compare.json", content)
        with pytest.raises(UserError, match=r"compare.json: expected rows of trials, found"):
            read_comparison(tmp_path)
    one_trial = {measure: {"trials": [0.0]} for measure in MEASURES}
    write_json(tmp_path / "compare.json", {"fed_avg": {"(overall)": one_trial}})
    with pytest.raises(
        UserError, match=r"trial_00/run/result.json: expected the result of a complete"
    ):
        read_comparison(tmp_path)


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("fed_avg", "a", "loss", "mean"), -7.0),
        (("fed_avg", "(overall)", "loss", "std"), -7.0),
        (("fed_avg", "(worst)", "loss", "trials", 1), 1e30),
        (("fed_avg", "(over clients)", "p90", "loss", "mean"), "a lot"),
        (("fed_avg", "(difference)", "accuracy", "mean"), None),
    ],
)
def test_numbers_of_no_trial_raise_user_error(tmp_path, keys, value):
    folder = _compared(tmp_path, {"fed_avg": {}})
    content = json.loads((folder / "compare.json").read_text())
    *above, last = keys
    of = functools.reduce(operator.getitem, above, content)
    expected, of[last] = of[last], value
    write_json(folder / "compare.json", content)
    assert golden.refusal(read_comparison, folder) == (
        f"{folder}/compare.json: {': '.join(map(str, keys))}: expected {expected}, which is worked "
        f"out from the trials that are there, found {value!r}: compare --resume writes the file "
        "again"
    )


def test_unfinished_trials_raise_user_error(tmp_path):
    folder = _compared(tmp_path, {"fed_avg": {}, "q_ffl": {}})
    trial = trial_folder(folder, "q_ffl", 1)
    # Killed in the middle of a longer trial, and after it.
    config = json.loads(trial.config.read_text())
    write_json(trial.config, {**config, "rounds": 30})
    message = r"q_ffl/trial_01/run/result.json: expected .* run of 30 rounds, .* result of 20:"
    with pytest.raises(UserError, match=message):
        read_comparison(folder)
    longer = result(("a", "b", "c"), seed=77, algorithm="q_ffl", rounds=30)
    write_run(trial.path, longer, {f"test/worst {m}": [1.0] * 30 for m in MEASURES})
    with pytest.raises(UserError, match=r"compare.json: expected the results of the trials of q_f"):
        read_comparison(folder)
