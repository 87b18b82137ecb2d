"""Blocks of a page, and a page as one HTML file."""

from __future__ import annotations

import base64
import dataclasses
import functools
import html
import io
import re
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Optional, Union
from urllib.parse import quote

from tff_agnostic.base.later import jinja2, matplotlib
from tff_agnostic.base.report_fields import Unit
from tff_agnostic.base.terminal import printable
from tff_agnostic.metrics.formatting import UNDEFINED, cell

# Digits after the point of a plain number.
DECIMALS = 4
_TEMPLATE = "page.html.j2"
_TITLE = re.compile("<title>(.*?)</title>", re.DOTALL)
# Text stays text: the reader's browser has letters that matplotlib's font lacks, and knows which
# way they are written. Equal figures have equal files.
_STYLE = {"svg.fonttype": "none", "svg.hashsalt": "tff_agnostic"}
_NO_DATE = {"Date": None, "Creator": None}
# A drawing of more, as that of a thousand curves, may be smaller as a picture of its pixels.
_MAX_SVG = 200_000
_DPI = 150
# Pixels of a page in an inch.
_CSS_DPI = 96
# matplotlib writes millionths of a point, and a page of many domains has thousands of them.
_TAG = re.compile(r"<[^?!][^>]*>")
_NUMBER = re.compile(r"(?<![\w#.])-?\d+\.\d+(?![\w.])")
_BETWEEN_TAGS = re.compile(r">\s+<")


@dataclasses.dataclass(frozen=True)
class Number:
    """A number on a page.

    Attributes:
        text: What is read.
        value: What it is; None if it is undefined.
        source: Where it stands, as FILE#JSON-POINTER (RFC 6901, section 6); "" for one that was
            worked out from several.
    """

    text: str
    value: Optional[float]
    source: str = ""


@dataclasses.dataclass(frozen=True)
class Name:
    """A name that a user chose; it may be in any script and direction."""

    text: str


@dataclasses.dataclass(frozen=True)
class Link:
    """A link to a page beside this one.

    Attributes:
        text: What is read.
        path: Where it is, from this page's folder.
    """

    text: str
    path: str


# A line of text, with numbers, names and links in it.
Part = Union[str, Number, Name, Link]

Line = Union[Part, Sequence[Part]]


@dataclasses.dataclass(frozen=True)
class Paragraph:
    """A paragraph."""

    kind: ClassVar[str] = "paragraph"
    line: Line


@dataclasses.dataclass(frozen=True)
class Bullets:
    """A list."""

    kind: ClassVar[str] = "bullets"
    lines: Sequence[Line]


@dataclasses.dataclass(frozen=True)
class Warnings:
    """A list that nobody is to overlook."""

    kind: ClassVar[str] = "warnings"
    lines: Sequence[Line]


@dataclasses.dataclass(frozen=True)
class Facts:
    """Terms and what is said of them."""

    kind: ClassVar[str] = "facts"
    rows: Sequence[tuple[str, Line]]


@dataclasses.dataclass(frozen=True)
class Table:
    """A table; the first column says what a row is about.

    Attributes:
        caption: What it is.
        headings: One a column.
        rows: Cells.
        notes: What stands below it.
    """

    kind: ClassVar[str] = "table"
    caption: Line
    headings: Sequence[Line]
    rows: Sequence[Sequence[Line]]
    notes: Sequence[Line] = ()


@dataclasses.dataclass(frozen=True)
class Fold:
    """A list that is read by those who open it."""

    kind: ClassVar[str] = "fold"
    title: str
    lines: Sequence[Line]


@dataclasses.dataclass(frozen=True)
class Picture:
    """A figure.

    Attributes:
        draw: Draws it.
        caption: What it shows, also for those who cannot see it.
    """

    kind: ClassVar[str] = "picture"
    draw: Callable[[], matplotlib.figure.Figure]
    caption: str


class Image(NamedTuple):
    """A figure on a page.

    Attributes:
        address: Its data.
        width: Pixels of the page, at which its smallest text is 11 of them high.
    """

    address: str
    width: int


@dataclasses.dataclass(frozen=True)
class Command:
    """A command line."""

    kind: ClassVar[str] = "command"
    text: str


@dataclasses.dataclass(frozen=True)
class Blanks:
    """Lines to be filled in by hand."""

    kind: ClassVar[str] = "blanks"
    labels: Sequence[str]


Block = Union[Paragraph, Bullets, Warnings, Facts, Table, Fold, Picture, Command, Blanks]


@dataclasses.dataclass(frozen=True)
class Section:
    """A section of a page.

    Attributes:
        anchor: By which links find it.
        title: Its heading.
        blocks: What it holds.
    """

    anchor: str
    title: str
    blocks: Sequence[Block]


@dataclasses.dataclass(frozen=True)
class Page:
    """A page.

    Attributes:
        title: Its heading.
        subtitle: A line below it.
        sections: What it holds; those without blocks are left out.
    """

    title: str
    subtitle: Line
    sections: Sequence[Section]


class Source:
    """A JSON file whose numbers are shown.

    Args:
        content: What is in it.
        path: Keys below which it is looked at.
    """

    def __init__(self, file: str, content: Any, path: Sequence[Any] = ()) -> None:
        self._file = file
        self._content = content
        self._path = tuple(path)

    def below(self, *keys: Any) -> Source:
        """Returns the same file, looked at below these keys."""
        return Source(self._file, self._content, (*self._path, *keys))

    def get(self, *keys: Any) -> Any:
        """Returns what lies at a path of keys and positions; None if nothing does."""
        found = self._content
        for key in (*self._path, *keys):
            try:
                found = found[key]
            except (LookupError, TypeError):
                return None
        return found

    def number(self, *keys: Any, unit: Unit = Unit.NONE, decimals: int = DECIMALS) -> Number:
        """Returns the number at a path: "-" where there is none, or null."""
        value = self.get(*keys)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return Number(UNDEFINED, None)
        pointer = "".join(f"/{_escaped(str(key))}" for key in (*self._path, *keys))
        text = str(value) if isinstance(value, int) else cell(value, unit, decimals)
        return Number(text, value, f"{self._file}#{pointer}")

    def mean(self, *keys: Any, unit: Unit) -> list[Part]:
        """Returns the mean at a path and, in parentheses, the standard deviation, if there is."""
        mean, std = (self.number(*keys, of, unit=unit) for of in ("mean", "std"))
        return [mean] if std.value is None else [mean, " (", std, ")"]

    def interval(self, *keys: Any, unit: Unit = Unit.NONE) -> tuple[Part, ...]:
        """Returns the two numbers at a path as "[low, high]"; nothing where there are none."""
        if not self.get(*keys):
            return ()
        low, high = (self.number(*keys, end, unit=unit) for end in (0, 1))
        return "[", low, ", ", high, "]"


def in_line(names: Sequence[str]) -> list[Part]:
    """Returns names as parts of a line, with commas between them."""
    parts: list[Part] = []
    for name in names:
        parts += [", ", Name(name)] if parts else [Name(name)]
    return parts


def _escaped(token: str) -> str:
    # Only what pages write otherwise: long names stand beside many numbers. One may hold half of a
    # surrogate pair, which has no UTF-8.
    text = token.replace("~", "~0").replace("/", "~1")
    return "".join(
        c if c.isprintable() and c not in "%#" else quote(c, safe="", errors="surrogatepass")
        for c in text
    )


def title_of(path: Path, given: Optional[str], usual: str) -> str:
    """Returns the title of a page: the given one, that of the page that it replaces, or the usual.

    Args:
        path: Where the page is written.
        given: --title, if it was given.
        usual: What it is called otherwise.
    """
    if given:
        return given
    if not path.is_file():
        return usual
    found = _TITLE.search(path.read_text(encoding="utf-8", errors="replace"))
    return usual if found is None else html.unescape(found[1])


def rendered(page: Page) -> str:
    """Returns a page as HTML; whatever came from a user is escaped."""
    sections = [section for section in page.sections if section.blocks]
    text: str = _environment().get_template(_TEMPLATE).render(page=page, sections=sections)
    return text


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        finalize=_shown,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["parts"] = parts_of
    environment.filters["image"] = lambda picture: image_of(picture.draw)
    environment.filters["quoted"] = quote
    environment.tests["link"] = lambda part: isinstance(part, Link)
    environment.tests["name"] = lambda part: isinstance(part, Name)
    environment.tests["a_number"] = lambda part: isinstance(part, Number)
    return environment


def parts_of(line: Line) -> tuple[Part, ...]:
    """Returns what a line is made of."""
    return (line,) if isinstance(line, (str, Number, Name, Link)) else tuple(line)


def _shown(value: Any) -> Any:
    # What is markup already has passed through here.
    is_plain = isinstance(value, str) and not hasattr(value, "__html__")
    return printable(value) if is_plain else value


def image_of(draw: Callable[[], matplotlib.figure.Figure]) -> Image:
    """Returns the figure that is drawn, as an image that needs no file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    figure = draw()
    width = round(_CSS_DPI * figure.get_figwidth())
    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        text = io.StringIO()
        FigureCanvasSVG(figure).print_svg(text, metadata=_NO_DATE)
        svg = _address("image/svg+xml", compact_svg(text.getvalue()).encode())
        if len(svg) <= _MAX_SVG:
            return Image(svg, width)
        pixels = io.BytesIO()
        figure.set_dpi(_DPI)
        FigureCanvasAgg(figure).print_png(pixels, metadata={"Software": None})
        return Image(min(svg, _address("image/png", pixels.getvalue()), key=len), width)


def _address(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def compact_svg(svg: str) -> str:
    """Returns the drawing with coordinates in hundredths of a point; its texts are the same."""
    compact = _TAG.sub(lambda tag: _NUMBER.sub(_rounded, tag[0]), svg)
    return _BETWEEN_TAGS.sub("><", compact)


def _rounded(match: re.Match[str]) -> str:
    value = float(match[0])
    # Scales and opacities are below 1.
    text = f"{value:.2f}" if abs(value) >= 1 else f"{value:.4f}"
    text = text.rstrip("0").rstrip(".")
    return "0" if text == "-0" else text
