"""Writes tables and figures of a report's page.json to the blocks of a Markdown page.

Example: python -m tools.docs.report_blocks docs/results/adult.md runs/adult/page.json

A block names the beginning of a caption, and is replaced by the table or figure with this caption:

    <!-- report: accuracy, % -->
    ...
    <!-- report ends -->

A figure is an SVG file in images/ next to the page, named after the page and the caption.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

_BLOCK = re.compile(r"(<!-- report: (.+?) -->\n)(.*?)(<!-- report ends -->)", re.DOTALL)
_IMAGES = "images"


class BlockError(ValueError):
    """A page has no blocks, or the report lacks a caption; the message is one line."""


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Writes the page and its figures, and returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Raw)
    parser.add_argument("page", type=Path, help="Markdown page with markers")
    parser.add_argument("report", type=Path, help="page.json of a run or a study")
    given = parser.parse_args(arguments)
    try:
        report = json.loads(given.report.read_text(encoding="utf-8"))
        text, drawings = filled(given.page.read_text(encoding="utf-8"), report, given.page.stem)
    except (BlockError, OSError, json.JSONDecodeError) as e:
        print(f"{given.page}: {e}", file=sys.stderr)
        return 2
    for name, drawing in drawings.items():
        path = given.page.parent / _IMAGES / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(drawing, encoding="utf-8")
    given.page.write_text(text, encoding="utf-8")
    return 0


class _Raw(argparse.RawDescriptionHelpFormatter):
    pass


def filled(text: str, report: Mapping[str, Any], stem: str) -> tuple[str, dict[str, str]]:
    """Returns a page with filled blocks, and the contents of SVG files, keyed by file name.

    Args:
        text: Text of the page.
        report: Content of page.json.
        stem: Beginning of the SVG files' names.
    """
    blocks = [block for section in report["sections"] for block in section["blocks"]]
    drawings: dict[str, str] = {}

    def replaced(match: re.Match[str]) -> str:
        start, caption, _, end = match.groups()
        block = _with_caption(blocks, caption)
        if "table" in block:
            return f"{start}\n{table(block)}\n\n{end}"
        name = f"{stem}_{'_'.join(re.findall(r'[a-z0-9]+', caption.lower()))}.svg"
        drawings[name] = block["svg"].replace("<svg ", '<svg style="background:#fff" ', 1)
        return f"{start}\n![{block['figure']}]({_IMAGES}/{name})\n\n{end}"

    page, count = _BLOCK.subn(replaced, text)
    if not count:
        raise BlockError("expected a marker <!-- report: CAPTION -->, found none")
    return page, drawings


def table(block: Mapping[str, Any]) -> str:
    """Converts a table of page.json, including notes, to Markdown."""
    rows = [list(map(_text, row)) for row in block["rows"]]
    heads = list(map(_text, block["columns"])) or ["", ""]
    widths = [max(3, *map(len, column)) for column in zip(heads, *rows)]
    lines = [_line(heads, widths), f"|{'|'.join('-' * (w + 2) for w in widths)}|"]
    lines += [_line(row, widths) for row in rows]
    return "\n".join([*lines, *(f"\n{note}" for note in block["notes"])])


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return f"| {' | '.join(cell.ljust(width) for cell, width in zip(cells, widths))} |"


def _text(cell: Any) -> str:
    """Converts a cell to Markdown, with a row's best number in bold."""
    if isinstance(cell, str):
        return " ".join(cell.split()).replace("|", r"\|")
    if "path" in cell:
        return str(cell["text"])
    return f"**{cell['text']}**" if cell.get("mark") == "best" else str(cell["text"])


def _with_caption(blocks: Sequence[Mapping[str, Any]], caption: str) -> Mapping[str, Any]:
    captions = {
        str(title): block
        for block in blocks
        if (title := block.get("table") or block.get("figure")) is not None
    }
    fitting = [title for title in captions if title.startswith(caption)]
    if not fitting:
        listed = "; ".join(filter(None, captions))
        raise BlockError(f"expected a table or figure {caption!r} in the report, found {listed}")
    return captions[fitting[0]]


if __name__ == "__main__":
    sys.exit(main())
