"""Drawings in fewer bytes: the same elements, texts, styles and places."""

import io
import re

import defusedxml.ElementTree
import matplotlib
import numpy as np
from matplotlib.backends.backend_svg import FigureCanvasSVG

from tff_agnostic.reports.figures import draw_grid, new_figure
from tff_agnostic.reports.page import compact_svg

_LABEL = "0.123456; style:  one #s0"
_NUMBER = r"-?\d+\.?\d*(?![\w.])"


def _drawn() -> str:
    figure = new_figure(4, 3)
    axes = figure.subplots()
    axes.bar(range(3), [0.1, 0.2, 0.3], yerr=[0.01, 0.02, 0.03], hatch="//", label=_LABEL)
    axes.plot([0, 1, 2], [0.3, -0.123456, 0.1], "--o", alpha=0.25)
    axes.set_title("a <b> & 'c'\nsecond line")
    draw_grid(axes)
    axes.legend()
    text = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        FigureCanvasSVG(figure).print_svg(text)
    return text.getvalue()


def _elements(svg: str) -> list[tuple[str, str]]:
    elements = defusedxml.ElementTree.fromstring(svg).iter()
    return [(f"{e.tag} {e.attrib}", (e.text or "").strip()) for e in elements]


def test_what_is_drawn_stays_what_it_is():
    before = _drawn()
    after = compact_svg(before)
    assert len(after) < 0.9 * len(before) and after.startswith('<?xml version="1.0"')
    pairs = list(zip(_elements(before), _elements(after)))
    assert len(pairs) == len(_elements(before)) == len(_elements(after))
    assert _LABEL in {text for (_, text), _ in pairs}
    for (drawn, text), (found, found_text) in pairs:
        assert text == found_text
        assert re.sub(_NUMBER, "", drawn) == re.sub(_NUMBER, "", found)
        numbers = [[float(x) for x in re.findall(_NUMBER, part)] for part in (drawn, found)]
        np.testing.assert_allclose(numbers[1], numbers[0], rtol=0, atol=0.0051)
