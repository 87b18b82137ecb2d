"""The page of a comparison: its numbers, and what an algorithm gains and costs."""

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
    at,
    reads_as,
    result,
    write_run,
)
from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import write_json
from tff_agnostic.program.reports import page as reports_page
from tff_agnostic.program.reports.page import rendered
from tff_agnostic.program.studies.comparison import COMPARISON_FILE, trial_folder
from tff_agnostic.program.studies.comparison_page import comparison_page
from tff_agnostic.program.studies.comparison_record import majority, read_comparison

_COMMAND = ["./run", "compare", "--task=digits"]


@pytest.fixture(autouse=True)
def without_pictures(monkeypatch):
    """Figures of comparisons have tests of their own."""
    monkeypatch.setattr(reports_page, "image_of", lambda draw: reports_page.Image("data:,", 1))


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
    return Reader(rendered(comparison_page(read_comparison(folder), _COMMAND)))


@pytest.mark.slow_cases("rows1-domains1-2")
@pytest.mark.parametrize(
    ("rows", "domains", "trials"),
    [
        ({"fed_avg": {}, "agnostic_fed_avg": {}}, ("a", "b", "c"), 3),
        ({f"row {k}": {"privacy": PRIVACY} for k in range(10)}, AWKWARD, 2),
        ({"fed_avg": {}}, ("one",), 1),
    ],
)
def test_every_number_is_that_of_the_comparison(tmp_path, rows, domains, trials):
    folder = _compared(tmp_path, rows, domains, trials)
    page = _page(folder)
    for datum in page.data:
        assert reads_as(datum), datum
        if datum.source:
            assert at(datum.source, folder) == datum.value, datum
    # Each mean of each domain and row is there.
    found = json.loads((folder / "compare.json").read_text())
    shown = {datum.value for datum in page.data}
    for row in rows:
        for domain in (*domains, "(worst)", "(overall)", "(difference)"):
            assert {found[row][domain][m]["mean"] for m in MEASURES} <= shown
    assert len(set(page.ids)) == len(page.ids) and set(page.links) <= set(page.ids)
    assert shlex.join(_COMMAND) in page.text
    assert ("price" in page.ids) == ("verdict" in page.ids) == (len(rows) > 1)
    assert ("There is a single trial of each row" in page.text) == (trials == 1)


def test_the_price_is_the_mean_difference_to_fed_avg(tmp_path):
    rows = {"agnostic_fed_avg": {}, "fed_avg": {}, "q_ffl": {}}
    folder = _compared(tmp_path, rows, trials=4)
    page = _page(folder)
    found = json.loads((folder / "compare.json").read_text())
    shown = [datum.value for datum in page.data if not datum.source]
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
                    assert any(math.isclose(value, v, rel_tol=1e-9) for v in shown if v is not None)


@pytest.mark.parametrize(
    ("examples", "names"),
    [
        ({"a": 10, "b": 90}, ["b"]),
        ({"a": 50, "b": 50}, ["a", "b"]),
        ({"a": 30, "b": 30, "c": 40}, ["c", "a"]),
        ({"a": 0, "b": 0}, []),
    ],
)
def test_the_majority_is_the_fewest_domains_with_more_than_half(examples, names):
    assert list(majority(examples)) == names


def test_rows_that_the_server_saw_alike_are_told_once(tmp_path):
    rows = {"fed_avg": {}, "agnostic_fed_avg": {}, "q_ffl": {"privacy": PRIVACY}}
    text = _page(_compared(tmp_path, rows)).text
    assert text.count("No differential privacy") == 1
    assert text.count("Differential privacy of training") == 1


def test_settings_that_not_all_rows_have_are_told_without_folders(tmp_path):
    folder = _compared(tmp_path, {"fed_avg": {}, "q_ffl": {}})
    own = {
        "fed_avg": {"initial_model": None},
        "q_ffl": {
            "initial_model": "/home/me/secret/model.keras",
            "base_predictors": ["/mnt/a/one", "/mnt/b/two"],
            "client_percentiles": [50.0, 90.0],
            "private_evaluation": "noise:multiplier=4.0,clients_share=0.2,statistics=false",
        },
    }
    for row, settings in own.items():
        for k in range(2):
            config = trial_folder(folder, row, k).config
            write_json(config, {**json.loads(config.read_text()), **settings})
    text = _page(folder).text
    assert "--initial_model=not given" in text and "--initial_model=model.keras" in text
    # What one row has and the other has not is told once, below what both have and differ in.
    assert (
        "q_ffl alone has --base_predictors=one,two, --client_percentiles=50.0,90.0, "
        "--private_evaluation=noise:multiplier=4.0,clients_share=0.2,statistics=false."
    ) in text
    assert "secret" not in text and "/mnt" not in text and "--format" not in text


@pytest.mark.parametrize("private", [None, "fed_avg", "q_ffl"])
def test_noise_of_any_row_is_told(tmp_path, private):
    rows = {row: {"privacy": PRIVACY} if row == private else {} for row in ("fed_avg", "q_ffl")}
    text = _page(_compared(tmp_path, rows)).text
    is_private = private is not None
    assert ("give equal numbers, but for the noise and the cohorts" in text) == is_private
    assert ("These counts are exact: no epsilon covers them." in text) == is_private


def test_what_is_no_comparison_is_one_line(tmp_path):
    write_json(tmp_path / COMPARISON_FILE, {"labels": {}, "remarks": {}})
    for content in ({}, {"fed_avg": {}}, {"fed_avg": 3}):
        write_json(tmp_path / "compare.json", content)
        with pytest.raises(UserError, match=r"compare.json: expected rows of trials, found"):
            read_comparison(tmp_path)
    of_one = {measure: {"trials": [0.0]} for measure in MEASURES}
    write_json(tmp_path / "compare.json", {"fed_avg": {"(overall)": of_one}})
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
def test_numbers_that_the_trials_do_not_have_are_one_line(tmp_path, keys, value):
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


def test_a_comparison_whose_trials_go_on_is_one_line(tmp_path):
    folder = _compared(tmp_path, {"fed_avg": {}, "q_ffl": {}})
    trial = trial_folder(folder, "q_ffl", 1)
    # Killed in the middle of a longer trial, and after it.
    config = json.loads(trial.config.read_text())
    write_json(trial.config, {**config, "rounds": 30})
    message = r"q_ffl/trial_01/run/result.json: expected .* run of 30 rounds, .* found that of 20"
    with pytest.raises(UserError, match=message):
        read_comparison(folder)
    longer = result(("a", "b", "c"), seed=77, algorithm="q_ffl", rounds=30)
    write_run(trial.path, longer, {f"test/worst {m}": [1.0] * 30 for m in MEASURES})
    with pytest.raises(UserError, match=r"compare.json: expected the results of the trials of q_f"):
        read_comparison(folder)
