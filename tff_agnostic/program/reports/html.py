"""Writes pages as self-contained HTML files, with figures as embedded SVG."""

from __future__ import annotations

import base64
import dataclasses
import functools
import io
import re
import warnings
from pathlib import Path
from typing import Any, Optional

from tff_agnostic.base.files import read_json, write_json, write_text
from tff_agnostic.base.later import jinja2, matplotlib
from tff_agnostic.base.terminal import printable
from tff_agnostic.program.reports.document import (
    Figure,
    Number,
    Page,
    Sentences,
    Table,
    to_json,
)

REPORT, PAGE = "report.html", "page.json"
_TEMPLATE = "page.html.j2"
# Do not convert text to curves: the reader's browser has letters that matplotlib's font lacks, and
# knows their writing direction. The salt makes equal figures give equal files.
_STYLE = {"svg.fonttype": "none", "svg.hashsalt": "tff_agnostic"}
_NO_DATE = {"Date": None, "Creator": None}
# matplotlib writes millionths of a point; a page of many domains has thousands of coordinates.
_TAG = re.compile(r"<[^?!][^>]*>")
_NUMBER = re.compile(r"(?<![\w#.])-?\d+\.\d+(?![\w.])")
_BETWEEN_TAGS = re.compile(r">\s+<")


def write_page(folder: Path, page: Page, title: Optional[str] = None) -> Path:
    """Writes page.json and report.html into a folder; returns the path of report.html.

    Args:
        title: Heading; by default that of the report to replace, or this page's if there is no such
            report.
    """
    if not title and (folder / PAGE).is_file():
        title = str(read_json(folder / PAGE).get("title") or "")
    page = dataclasses.replace(page, title=title or page.title)
    drawing = functools.cache(svg)
    write_text(folder / REPORT, to_html(page, drawing))
    write_json(folder / PAGE, to_json(page, drawing))
    return folder / REPORT


def to_html(page: Page, drawing: Any = None) -> str:
    """Returns a page as HTML, in which names from users are escaped."""

    def image(figure: Figure) -> str:
        encoded = base64.b64encode((drawing or svg)(figure).encode())
        return f"data:image/svg+xml;base64,{encoded.decode()}"

    text: str = _environment().get_template(_TEMPLATE).render(page=page, image=image)
    return text


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        finalize=_visible,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.tests["number_cell"] = lambda value: isinstance(value, Number)
    environment.tests["table"] = lambda value: isinstance(value, Table)
    environment.tests["sentences"] = lambda value: isinstance(value, Sentences)
    return environment


def _visible(value: Any) -> Any:
    # `Markup` comes from parts of the template; its values have already passed through this
    # function.
    is_plain = isinstance(value, str) and not hasattr(value, "__html__")
    return printable(value) if is_plain else value


def svg(figure: Figure) -> str:
    """Returns a figure as SVG without a background."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    drawn = figure.draw()
    drawn.patch.set_alpha(0.0)
    text = io.StringIO()
    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        FigureCanvasSVG(drawn).print_svg(text, metadata=_NO_DATE)
    return compact_svg(text.getvalue())


def compact_svg(text: str) -> str:
    """Rounds the coordinates of an SVG drawing to hundredths of a point."""
    compact = _TAG.sub(lambda tag: _NUMBER.sub(_rounded, tag[0]), text)
    return _BETWEEN_TAGS.sub("><", compact)


def _rounded(match: re.Match[str]) -> str:
    value = float(match[0])
    # Scales and opacities, which are below 1, need more digits.
    text = f"{value:.2f}" if abs(value) >= 1 else f"{value:.4f}"
    text = text.rstrip("0").rstrip(".")
    return "0" if text == "-0" else text
