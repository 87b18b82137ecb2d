"""report.html of a recommendation, from recommendation.json alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tff_agnostic.report_fields import Unit
from tff_agnostic.reports.page import Bullets, Line, Name, Page, Paragraph, Section, Source, Table
from tff_agnostic.reports.run_page import REPORT, command_blocks, typed_blocks

FILE = "recommendation.json"
# The folder of what is trained at the end.
FINAL = "final"


def usual_title(content: Mapping[str, Any]) -> str:
    """Returns the heading of the page where none was given."""
    return f"Recommendation for {content['task']}"


def recommendation_page(content: Mapping[str, Any], title: str) -> Page:
    """Returns the page.

    Args:
        content: recommendation.json.
    """
    source = Source(FILE, content)
    unit = Unit[content["unit"]]
    rows: list[Sequence[Line]] = []
    for row, of in content["rows"].items():
        at = source.below("rows", row)
        status = "" if of["objective"] is not None else "one trial: others looked better"
        if of["given_up"]:
            status = f"given up: {of['given_up']}"
        rows.append(
            [
                Name(of["label"]),
                of["setting_text"],
                at.number("objective", unit=unit),
                at.number("gain", unit=unit),
                [*at.interval("interval", unit=unit)] or "-",
                at.number("average_loses", unit=Unit.SHARE),
                status,
            ]
        )
    headings = [
        *("", "best setting", content["objective"], "gain over FedAvg", "95% interval"),
        *("average loses, %", ""),
    ]
    tried: list[Sequence[Line]] = [
        [Name(name), source.number("tried", name, unit=unit)] for name in content["tried"]
    ]
    left_out = [f"{row} was left out: {why}" for row, why in content["left_out"].items()]
    return Page(
        title,
        content["judges"],
        [
            Section("recommendation", "The recommendation", [Bullets(content["sentences"])]),
            Section(
                "verdict",
                "What the test clients say",
                [
                    Bullets(content["verdict"]),
                    Paragraph(
                        "The test clients were looked at once, after the choice. More of these "
                        f"runs: {FINAL}/{REPORT}."
                    ),
                ],
            ),
            Section(
                "rows",
                "What was compared",
                [Table(f"On the {content['split']} clients that judge", headings, rows, left_out)],
            ),
            Section(
                "tried",
                "What was tried",
                [Table("One trial of each setting", ["row-setting", content["objective"]], tried)],
            ),
            Section("again", "How to train it again", command_blocks(content["command"], False)),
            Section("search", "How to choose again", typed_blocks(content["called"])),
        ],
    )
