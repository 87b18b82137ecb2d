"""The page of a comparison: numbers, settings and warnings, also from page.json."""

import json
import shlex
from pathlib import Path

import pytest

from tests.support import golden
from tests.support.pages import (
    AWKWARD,
    MEASURES,
    PRIVACY,
    Reader,
    all_numbers,
    reads_as,
    result,
    write_run,
)
from tff_agnostic.base.files import write_json
from tff_agnostic.program.reports import html as reports_html
from tff_agnostic.program.reports.html import write_page
from tff_agnostic.program.studies.comparison import (
    Comparison,
    read_trials,
    trial_folder,
    trial_name,
)
from tff_agnostic.program.studies.comparison_page import comparison_page
from tff_agnostic.program.studies.report import write_report_again

_COMMAND = ["./run", "compare", "--task=digits"]


@pytest.fixture(autouse=True)
def without_pictures(monkeypatch):
    """Draws no figures, which have separate tests."""
    monkeypatch.setattr(reports_html, "svg", lambda figure: "<svg/>")


def _compared(folder: Path, rows: dict, domains=("a", "b", "c"), trials=2) -> Comparison:
    """Writes runs and compares them; `rows` has changes of each method's result.json."""
    for i, (row, changes) in enumerate(rows.items()):
        for k in range(trials):
            content = {**result(domains, 10 * i + k, algorithm=row, **changes), "seed": k}
            columns = {f"test/worst {m}": [1.0] * 20 for m in MEASURES}
            write_run(trial_folder(folder, row, k).path, content, columns, algorithm=row)
    names = {row: [trial_name(row, k) for k in range(trials)] for row in rows}
    return read_trials(folder, names, {"fed_avg": "FedAvg"}, {})


def _page(folder: Path, comparison: Comparison) -> Reader:
    page = comparison_page(comparison, _COMMAND, ["q_ffl neglects a"], "Two methods")
    return Reader(write_page(folder, page).read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("rows", "domains", "trials"),
    [({f"row {k}": {} for k in range(4)}, AWKWARD, 2), ({"fed_avg": {}}, ("one",), 1)],
)
def test_page_shows_comparison_numbers(tmp_path, rows, domains, trials):
    comparison = _compared(tmp_path, rows, domains, trials)
    page = _page(tmp_path, comparison)
    assert all(map(reads_as, page.data))
    content = comparison.to_json()
    shown = {datum.value for datum in page.data}
    recorded = all_numbers(json.loads((tmp_path / "page.json").read_text()))
    assert shown - {None} <= recorded
    for row in rows:
        for domain in (*domains, "(worst)", "(overall)", "(difference)"):
            numbers = [content[row][domain][m] for m in MEASURES]
            assert {number["mean"] for number in numbers} <= shown
            assert trials == 1 or {number["std"] for number in numbers} <= recorded
    assert len(set(page.ids)) == len(page.ids) and set(page.links) == set(page.ids)
    assert shlex.join(_COMMAND) in page.text and "q_ffl neglects a." in page.text
    assert ("No domain" in page.text or "domains" in page.text) and "the-verdict" in page.ids
    assert ("There is a single trial of each method" in page.text) == (trials == 1)


def test_page_shows_different_settings_without_folders(tmp_path):
    _compared(tmp_path, {"fed_avg": {}, "q_ffl": {}})
    settings = {"initial_model": "/home/me/secret/model.keras", "q": 3.0}
    for k in range(2):
        config = trial_folder(tmp_path, "q_ffl", k).config
        write_json(config, {**json.loads(config.read_text()), **settings})
    names = {row: [trial_name(row, k) for k in range(2)] for row in ("fed_avg", "q_ffl")}
    text = _page(tmp_path, read_trials(tmp_path, names, {}, {})).text
    assert "--initial_model=model.keras, --q=3.0" in text
    assert "secret" not in text and "--rounds" not in text


@pytest.mark.parametrize("is_private", [False, True])
def test_page_mentions_private_methods(tmp_path, is_private):
    rows = {"fed_avg": {}, "q_ffl": {"privacy": PRIVACY} if is_private else {}}
    text = _page(tmp_path, _compared(tmp_path, rows)).text
    for sentence in (
        "give equal numbers, except for the noise and the cohorts",
        "These counts are exact: no epsilon covers them.",
        "each trial is (2.5, 1e-05)-differentially private",
    ):
        assert (sentence in text) == is_private


def test_report_is_written_again_from_page_json(tmp_path):
    _page(tmp_path, _compared(tmp_path, {"fed_avg": {}, "q_ffl": {}}))
    write_json(tmp_path / "study.json", {})
    before = [(tmp_path / name).read_bytes() for name in ("report.html", "page.json")]
    (tmp_path / "report.html").unlink()
    assert write_report_again(tmp_path) == tmp_path / "report.html"
    assert [(tmp_path / name).read_bytes() for name in ("report.html", "page.json")] == before
    write_report_again(tmp_path, "Digits & <b>")
    assert "<h1>Digits &amp; &lt;b&gt;</h1>" in (tmp_path / "report.html").read_text()
    write_json(tmp_path / "page.json", {"sections": 3})
    message = golden.refusal(write_report_again, tmp_path)
    assert message.startswith(f"{tmp_path}/page.json: expected the page of a study")
