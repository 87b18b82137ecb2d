"""The figures that explain the words of the documentation, and the page that they are for."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from matplotlib import font_manager, ft2font

from tools.draw_concepts import COLOURS, FIGURES, MIDDLE, WIDTH

DOCS = Path(__file__).resolve().parents[2] / "docs"
WORDS = 900
# An image on a phone of 390 pixels, with the margins of a page.
_PHONE = 358
_SIZES = {"code": 12, "small": 12}
_SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_what_the_script_draws(name):
    assert (DOCS / "images" / f"{name}.svg").read_text() == FIGURES[name]().svg()


@pytest.mark.parametrize("name", FIGURES)
def test_text_is_large_enough_and_stays_in_its_shape(name):
    figure = ET.fromstring(FIGURES[name]().svg())
    shapes = [
        tuple(float(shape.get(key)) for key in ("x", "y", "width", "height"))
        for shape in figure.iter(f"{_SVG}rect")
    ]
    texts = list(figure.iter(f"{_SVG}text"))
    assert texts
    for text in texts:
        classes = text.get("class").split()
        size = next((_SIZES[c] for c in classes if c in _SIZES), 13)
        assert size * _PHONE / WIDTH >= 11
        x, y = float(text.get("x")), float(text.get("y"))
        wide = _width(text.text or "", size, classes)
        left = x - wide * (0.5 if "middle" in classes else 1 if "end" in classes else 0)
        around = [s for s in shapes if s[0] <= x <= s[0] + s[2] and s[1] <= y <= s[1] + s[3]]
        # The innermost shape was drawn last.
        low, high = (around[-1][0], around[-1][0] + around[-1][2]) if around else (0, WIDTH)
        assert low + 2 <= left and left + wide <= high - 2, text.text
        assert bool(around) != ("free" in classes), text.text


def _width(text: str, size: int, classes: list[str]) -> float:
    """Of a font that is wider than the usual ones of browsers."""
    family = "DejaVu Sans Mono" if "code" in classes else "DejaVu Sans"
    weight = "bold" if "strong" in classes else "normal"
    properties = font_manager.FontProperties(family=family, weight=weight)
    font = ft2font.FT2Font(font_manager.findfont(properties))
    font.set_size(size, 72)
    font.set_text(text)
    return font.get_width_height()[0] / 64


def test_text_can_be_read_in_the_light_and_in_the_dark():
    for light_and_dark in COLOURS.values():
        for fill, _, text in light_and_dark:
            assert _contrast(fill, text) >= 7
    for page in ("#ffffff", "#0d1117"):
        assert _contrast(page, MIDDLE) >= 4
        assert all(_contrast(page, line) >= 2 for both in COLOURS.values() for _, line, _ in both)


def _contrast(one: str, other: str) -> float:
    """The ratio of WCAG 2, section 1.4.3."""
    low, high = sorted(_luminance(colour) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    parts = (int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear))


def test_the_losses_of_the_figure_are_those_of_its_examples():
    # 19, 4 and 1 of 24 examples, with losses of 0.3, 0.4 and 0.9.
    shown = re.findall(r">(0\.\d\d)</text>", FIGURES["clients_by_domains"]().svg())
    assert shown[3:7] == ["0.79", "0.17", "0.04", f"{(19 * 0.3 + 4 * 0.4 + 0.9) / 24:.2f}"]
    assert shown[-1] == "0.90"


def test_the_page_of_concepts_is_short():
    assert len((DOCS / "concepts.md").read_text().split()) <= WORDS


def test_twenty_questions_of_a_newcomer_have_their_answers():
    table = (DOCS.parent / "tests" / "docs" / "questions.md").read_text()
    questions = re.findall(r"^\| (.*\?) \| ([\w/]+\.md) \| (.*) \|$", table, re.MULTILINE)
    assert len({question for question, _, _ in questions}) == 20
    for question, page, answer in questions:
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", (DOCS.parent / page).read_text())
        assert answer in " ".join(re.sub(r"[*`]", "", text).split()), question
