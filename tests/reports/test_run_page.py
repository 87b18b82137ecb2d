"""The page of a run: its numbers, its warnings, and hostile names."""

import base64
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import defusedxml.ElementTree
import numpy as np
import pytest

from tests.support import golden
from tests.support.pages import (
    AWKWARD,
    MEASURES,
    PRIVACY,
    Reader,
    about,
    all_numbers,
    many_classes,
    one_set,
    page_blocks,
    reads_as,
    result,
    two_classes,
    write_run,
)
from tff_agnostic.base.errors import UserError
from tff_agnostic.program.reports import html as reports_html
from tff_agnostic.program.reports.run_page import write_run_report

# More domains than a figure draws, some with letters that its font lacks.
_LONG = [f"a region with a rather long name, number {k} of many" for k in range(30)]
_THIRTY = (*_LONG[: 30 - len(AWKWARD)], *AWKWARD)


@pytest.fixture
def without_pictures(monkeypatch):
    """Draws no figures, which are slow and have separate tests."""
    monkeypatch.setattr(reports_html, "svg", lambda figure: "<svg/>")


def _cases() -> dict[str, Any]:
    two = ["phone", "tablet"]
    empty = {m: None for m in MEASURES}
    nothing = {**one_set(np.random.default_rng(0), 0), **empty, "intervals": {}}
    missing = result(two)
    missing["domains"]["tablet"] = nothing
    missing["worst"]["loss"] = {"domain": None, "value": None}
    family = {f"conformity_{q}": result(two, q) for q in range(7)}
    return {
        "one domain": result(["all of them"]),
        "a domain without examples": missing,
        "a family": result(two, main_model="conformity_7", models=family),
        "private": result(two, privacy=PRIVACY),
        "two classes": result(AWKWARD, **two_classes(AWKWARD)),
        "thirty classes": result(two, **many_classes(two)),
    }


@pytest.mark.parametrize("name", list(_cases()))
def test_page_shows_result_numbers(tmp_path, without_pictures, name):
    content = _cases()[name]
    folder = write_run(tmp_path, content)
    page = Reader(write_run_report(folder).read_text(encoding="utf-8"))
    assert all(map(reads_as, page.data))
    record = json.loads((folder / "page.json").read_text())
    shown, recorded = {datum.value for datum in page.data}, all_numbers(record)
    assert shown - {None} <= recorded
    for entry in (content["overall"], *content["domains"].values()):
        for value in (entry["num_examples"], *(entry[measure] for measure in MEASURES)):
            assert value is None or {value} <= shown & recorded
    statistics = content["overall"]["over_clients"]["loss"]
    assert {statistics[name] for name in ("mean", "p10", "superquantile")} <= recorded
    assert len(set(page.ids)) == len(page.ids) and set(page.links) == set(page.ids)


def test_class_tables_begin_with_the_worst_domain(tmp_path, without_pictures):
    two = ["phone", "tablet"]
    content = result(two, **two_classes(two))
    content["domains"]["phone"]["accuracy"], content["domains"]["tablet"]["accuracy"] = 0.9, 0.2
    write_run_report(write_run(tmp_path, content))
    (table,) = _tables(tmp_path, "Confusion matrix of each")
    cells = [[cell["value"] for cell in row[1:3]] for row in table["rows"]]
    assert cells == content["confusion"]["tablet"] + content["confusion"]["phone"]
    assert table["rows"][0][0] == "tablet, no"
    (no, wrong), _ = content["confusion"]["tablet"]
    assert table["rows"][0][3]["value"] == pytest.approx(no / (no + wrong))
    many = result(two, **many_classes(two))
    write_run_report(write_run(tmp_path / "many", many))
    (table,) = _tables(tmp_path / "many", "Classes with most wrong answers")
    right = many["answers_by_class"]["phone"]["right_answers"]
    phone_rows = [row for row in table["rows"] if row[0].startswith("phone, ")]
    assert phone_rows and all(row[3]["value"] in right for row in phone_rows)


def _tables(folder: Path, caption: str) -> list[Any]:
    return [b for b in page_blocks(folder) if b.get("table", "").startswith(caption)]


def test_awkward_names_are_escaped(tmp_path, without_pictures):
    folder = write_run(tmp_path, result(AWKWARD))
    html = write_run_report(folder).read_bytes()
    page = Reader(html.decode())
    plain = [name for name in AWKWARD if name.isprintable()]
    assert set(plain) <= set(page.names)
    # Invisible characters are escaped, and do not reverse the text.
    assert {"\\u202eevil", "e\\nf\\tg", "\\x08\\x00", "\\ud800"} <= set(page.names)
    assert "49" not in page.names
    assert {c for c in html.decode() if not c.isprintable()} == {"\n"}


@pytest.mark.slow
def test_thirty_domains_stay_a_small_page(tmp_path):
    write_run(tmp_path, result(_THIRTY))
    first, second = (write_run_report(tmp_path).read_bytes() for _ in range(2))
    assert first == second and len(first) < 1_000_000
    page = Reader(first.decode())
    # Each measure has a figure of domains and a figure of clients; the loss and lambda have curves.
    assert len(page.images) == 2 * len(MEASURES) + 2
    seen = ""
    for address in page.images:
        kind, _, encoded = address.partition(";base64,")
        assert kind == "data:image/svg+xml"
        drawing = defusedxml.ElementTree.fromstring(base64.b64decode(encoded))
        assert "script" not in {element.tag.rpartition("}")[2] for element in drawing.iter()}
        seen += "".join(drawing.itertext())
    assert "the worst 20; 10 more are not drawn" in seen
    assert "العربية" in seen and "日本語" in seen
    # Names with a lone surrogate or a line break have no column in the file.
    assert re.search(r"2\d others", seen)


def _warnings(tmp_path: Path, content: Any, columns: Any = None, **config: Any) -> str:
    html = write_run_report(write_run(tmp_path, content, columns, **config)).read_text()
    _, opening, rest = html.partition('<ul class="warnings"')
    if not opening:
        return ""
    return Reader(f"<!DOCTYPE html>\n<html><ul{rest.partition('</ul>')[0]}</ul></html>").text


def _flawless(**changes: Any) -> dict[str, Any]:
    """Returns a result without warnings, except for changes."""
    content = result(["a", "b"], **changes)
    content["worst"]["accuracy"]["domain"] = "b"
    for name, value in (("a", 0.9), ("b", 0.5)):
        entry = content["domains"][name]
        entry["num_examples"] = 1000
        entry["intervals"]["accuracy"]["value"] = [value - 0.1, value + 0.1]
    return content


@pytest.mark.parametrize("evaluation", [{}, {"evaluation": PRIVACY}])
def test_private_run_has_no_exact_counts(tmp_path, without_pictures, evaluation):
    content = result(["a"], privacy={**PRIVACY, **evaluation})
    content["about"]["data"]["train"]["domains"] = None
    if evaluation:
        content["about"]["data"]["evaluated"]["domains"] = None
    write_run(tmp_path, content)
    write_run_report(tmp_path)
    text = (tmp_path / "report.html").read_text()
    assert "Examples of the training clients are not shown: the run is private." in text
    test_note = "Examples of the test clients are not shown: the run is private."
    assert (test_note in text) == bool(evaluation)
    assert ("These counts are exact: no epsilon covers them." in text) == (not evaluation)
    # A private evaluation has no intervals, because they would not cover its noise.
    (table,) = _tables(tmp_path, "accuracy, % (higher")
    assert any("interval" in row[1] for row in table["rows"]) == (not evaluation)
    assert ("Numbers have no intervals" in text) == bool(evaluation)


def test_few_clients_have_no_interval(tmp_path, without_pictures):
    content = _flawless()
    content["domains"]["b"]["over_clients"]["accuracy"]["num_clients"] = 2
    write_run_report(write_run(tmp_path, content))
    (table,) = _tables(tmp_path, "accuracy, % (higher")
    rows = {row[0]: row[1] for row in table["rows"]}
    assert "interval" in rows["a"] and "interval" not in rows["b"]
    assert "Without an interval: fewer than 3 test clients." in table["notes"]


def test_flawless_run_has_no_warnings(tmp_path, without_pictures):
    assert _warnings(tmp_path, _flawless()) == ""
    page = Reader((tmp_path / "report.html").read_text())
    assert "what-to-know-first" not in page.ids


def test_page_warns_about_each_problem(tmp_path, without_pictures):
    remark = {"kind": "words_cut", "text": "half of the words are cut off"}
    flawed = _flawless(
        split="heldout",
        clients={"non_finite": 2},
        clipped={"sums": 7},
        privacy={**PRIVACY, "epsilon": 11.0},
        about=about(["a", "b"], rounds_skipped=3, remarks=[remark]),
    )
    domain, trained = flawed["domains"]["a"], flawed["about"]["data"]["train"]["domains"]
    domain["num_examples"], domain["over_clients"]["loss"]["num_clients"] = 99, 9
    domain["intervals"]["accuracy"]["value"] = [0.59, 0.9]
    trained |= {"a": {"clients": 5, "examples": 50}, "b": {"clients": 0, "examples": 0}}
    ran = {"lambda/a": [0.5] * 10 + [0.95] * 10, "clipped/sums": [4.0] * 20}
    text = _warnings(tmp_path / "flawed", flawed, ran, noise_seed=3)
    for sentence in (
        "1 of 2 domains has fewer than 100 validation examples: a (99).",
        "1 of 2 domains has fewer than 10 validation clients: a (9).",
        "No training client has an example of b: ",
        "1 of 2 domains has fewer than 100 training examples: a (50). The model",
        "Which domain is the worst in accuracy is not certain: the interval of b",
        "The numbers are of the validation clients (heldout)",
        "lambda: one domain took over. a had 95.0% of the weight",
        "3 of 20 rounds were skipped",
        "Half of the words are cut off",
        "2 validation clients gave numbers that are not",
        "clipped in the evaluation: 7 of sums.",
        "over the rounds: 80 in clipped/",
        "Epsilon is 11: above 10",
        "The noise is that of --noise_seed",
    ):
        assert sentence in text, sentence
    private = _flawless(privacy={**PRIVACY, "epsilon": None})
    text = _warnings(tmp_path / "private", private, {"lambda/a": [0.95] * 20})
    assert "lambda: one domain had nearly all weight from the" in text
    assert "without noise epsilon is infinite" in text


def test_page_says_what_the_server_learns(tmp_path, without_pictures):
    plain, private = result(["a"]), {"privacy": PRIVACY}
    security = {"plain": [], "secure": ["a", "b", "c"]}
    secure = result(["a"], about=about(["a"], security=security))
    values = "3 values of a client reach the server in secure sum"
    noise = ["Epsilon", "1e-05", "one client more or less", "evaluations", "<i>tuning", "exact"]
    cases = [
        (plain, "plain", "none", ["Plain sums: ", "No differential privacy: "]),
        (secure, "secure", "none", [values, "Sums are exact"]),
        (secure | private, "secure", "distributed", [values, "no exact sum", "Sums of evalu"]),
        (plain | private, "plain", "central", noise),
    ]
    for i, (content, aggregation, privacy, sentences) in enumerate(cases):
        config = {"aggregation": aggregation, "privacy": privacy}
        folder = write_run(tmp_path / str(i), content, **config)
        text = Reader(write_run_report(folder).read_text()).text
        for sentence in sentences:
            assert sentence in text


@pytest.mark.parametrize(
    "changes",
    [
        {"privacy": 3},
        {"domains": None},
        {"domains": {"a": {"loss": 1.0}}},
        {"clients": {"evaluated": float("nan")}},
    ],
)
def test_damaged_result_raises_user_error(tmp_path, without_pictures, changes):
    content = result(["a", "b"])
    folder = write_run(tmp_path, content)
    (folder / "result.json").write_text(json.dumps({**content, **changes}))
    message = golden.refusal(write_run_report, folder)
    assert message.startswith(f"{folder / 'result.json'}: expected ")
    assert not (folder / "report.html").exists()


def test_unfinished_run_raises_user_error(tmp_path):
    with pytest.raises(UserError, match=r"result.json: expected the result of a complete run"):
        write_run_report(tmp_path)
    # config.json belongs to a longer run than result.json.
    folder = write_run(tmp_path, result(["a"]), rounds=30)
    with pytest.raises(UserError, match=r"complete run of 30 rounds, .* result of 20: finish"):
        write_run_report(folder)
    assert not (folder / "report.html").exists()


@pytest.mark.slow
def test_pages_need_no_tensorflow():
    code = (
        "import sys, tff_agnostic.program.reports.run_page; "
        "assert not {'tensorflow', 'tensorflow_federated'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
