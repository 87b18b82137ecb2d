"""Figures inside a page, in the address of an image: nothing in them can act on the page."""

import base64
import io
import warnings
from collections.abc import Callable

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from tff_agnostic.program.pages.compact_svg import compact_svg

# Text stays text: the reader's browser has letters that matplotlib's font lacks, and knows which
# way they are written. Equal figures have equal files.
_STYLE = {"svg.fonttype": "none", "svg.hashsalt": "tff_agnostic"}
_NO_DATE = {"Date": None, "Creator": None}


# A drawing of more, as that of a thousand curves, may be smaller as a picture of its pixels.
_MAX_SVG = 200_000
_DPI = 150


def image_address(draw: Callable[[], Figure]) -> str:
    """Returns the figure that is drawn, as the address of an image that needs no file."""
    figure = draw()
    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        text = io.StringIO()
        FigureCanvasSVG(figure).print_svg(text, metadata=_NO_DATE)
        svg = _address("image/svg+xml", compact_svg(text.getvalue()).encode())
        if len(svg) <= _MAX_SVG:
            return svg
        pixels = io.BytesIO()
        figure.set_dpi(_DPI)
        FigureCanvasAgg(figure).print_png(pixels, metadata={"Software": None})
        return min(svg, _address("image/png", pixels.getvalue()), key=len)


def _address(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
