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


def _elements(svg: str):
    """Yields what is drawn: tag, text, style, and other attributes; names where they are used."""
    root = defusedxml.ElementTree.fromstring(svg)
    (sheet,) = (e.text for e in root.iter() if e.tag.endswith("}style"))
    rules = dict(re.findall(r"\.(\w+)\{([^}]*)\}", sheet))
    for element in root.iter():
        tag = element.tag.rpartition("}")[2]
        if tag in ("g", "style"):
            continue
        attributes = dict(element.attrib)
        style = attributes.pop("style", None) or rules.get(attributes.pop("class", ""), "")
        if f"#{attributes.get('id')}" not in svg:
            attributes.pop("id", None)
        declared = dict(
            [part.strip() for part in item.split(":", 1)] for item in style.split(";") if item
        )
        declared.pop("font-family", None)
        yield tag, element.text, declared, attributes


def test_what_is_drawn_stays_what_it_is():
    before = _drawn()
    after = compact_svg(before)
    assert len(after) < 0.8 * len(before)
    pairs = list(zip(_elements(before), _elements(after)))
    assert len(pairs) == len(list(_elements(before))) == len(list(_elements(after)))
    assert _LABEL in {text for (_, text, *_), _ in pairs}
    for (tag, text, style, attributes), found in pairs:
        assert (tag, (text or "").strip()) == (found[0], (found[1] or "").strip())
        assert style.keys() == found[2].keys() and attributes.keys() == found[3].keys()
        _assert_near(style, found[2])
        _assert_near(attributes, found[3])


def _assert_near(before, after):
    number = r"-?\d+\.?\d*(?![\w.])"
    for name, value in before.items():
        assert re.sub(number, "", value).split() == re.sub(number, "", after[name]).split()
        numbers = [[float(x) for x in re.findall(number, v)] for v in (value, after[name])]
        np.testing.assert_allclose(numbers[1], numbers[0], rtol=0, atol=0.0051)
