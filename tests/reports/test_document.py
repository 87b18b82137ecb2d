"""Pages as text, HTML and JSON."""

import dataclasses
import json
import math

import pytest

from tests.support.pages import Reader
from tff_agnostic.base.report_fields import Unit
from tff_agnostic.program.reports import html
from tff_agnostic.program.reports.document import (
    Figure,
    Number,
    Page,
    Section,
    Sentences,
    Table,
    to_json,
    to_terminal,
)

_TABLE = Table(
    "accuracy, %",
    ["domain", "a|b"],
    [
        ["x", Number(0.8131, Unit.SHARE, 3, 0.005, (0.8, 0.83), "best")],
        ["y", Number(0.8, Unit.SHARE, 3, mark="tied")],
        ["z", Number(None, Unit.SHARE)],
    ],
    ["A note."],
    max_rows=2,
)
_PAGE = Page(
    "Title",
    "Subtitle.",
    [
        Section("Verdict", [Sentences(["One.", "Two."])], in_terminal=True),
        Section("Numbers", [_TABLE, Figure("a figure", lambda: None)], in_terminal=True),
        Section("Warnings", [Sentences(["Careful."], "warning")], in_terminal=True),
        Section("Folded", [Table("", (), [("Meant for", "")])], is_folded=True),
        Section("Empty", []),
    ],
)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (Number(0.8131, Unit.SHARE, 3, math.nan, mark="tied"), "81.3 ~"),
        (
            Number(0.02, Unit.SHARE, interval=(-0.01, 0.05), is_difference=True),
            "+2.00 [-1.00, +5.00]",
        ),
        (Number(12.345, Unit.FACTOR), "12.35"),
        (Number(7), "7"),
    ],
)
def test_number_has_rounded_text(number, text):
    assert number.text == text


def test_terminal_text_omits_unmarked_sections():
    text = to_terminal(_PAGE)
    assert text.startswith("One.\n\nTwo.\n\naccuracy, %\ndomain    a|b\n")
    assert "81.3 (0.5) [80.0, 83.0]\ny         80.0 ~\nA note.\n1 more row is in page.json." in text
    assert text.endswith("note: Careful.")
    assert "Meant for" not in text and "figure" not in text


def test_record_has_all_rows_and_exact_numbers():
    record = json.loads(json.dumps(to_json(_PAGE, lambda figure: "<svg/>"), allow_nan=False))
    assert [s["title"] for s in record["sections"]] == [
        *("Verdict", "Numbers", "Warnings", "Folded"),
    ]
    table, figure = record["sections"][1]["blocks"]
    assert len(table["rows"]) == 3 and figure == {"figure": "a figure", "svg": "<svg/>"}
    assert table["rows"][0][1] == {
        "value": 0.8131,
        "text": "81.3 (0.5) [80.0, 83.0]",
        "unit": "share",
        "spread": 0.005,
        "interval": [0.8, 0.83],
        "mark": "best",
    }


def test_written_page_keeps_its_title(tmp_path, monkeypatch):
    monkeypatch.setattr(html, "svg", lambda figure: "<svg/>")
    page = Reader(html.write_page(tmp_path, _PAGE).read_text())
    assert page.links == ["verdict", "numbers", "warnings", "folded"] == page.ids
    assert "details" in page.elements
    assert "1 more row is in page.json." in page.text and "80.0 ~" in page.text
    again = dataclasses.replace(_PAGE, title="default")
    for given, expected in ((None, "Title"), ("given", "given"), (None, "given")):
        assert f"<h1>{expected}</h1>" in html.write_page(tmp_path, again, given).read_text()
