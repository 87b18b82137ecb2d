"""Names in figures, and bars of domains."""

import math

import numpy as np
import pytest

from tests.run.harness import AWKWARD_NAMES, is_png
from tff_agnostic.metrics.formatting import printable, short_names
from tff_agnostic.report_fields import Unit
from tff_agnostic.reports.distributions import (
    MAX_DOMAINS,
    Estimate,
    Series,
    domain_figure,
    worst_first,
)
from tff_agnostic.reports.figures import save


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("日本語 العربية", "日本語 العربية"),
        ("\u0645\u06cc\u200c\u062e", "\u0645\u06cc\u200c\u062e"),
        ("a\nb\x1b[2J", "a\\nb\\x1b[2J"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("\ud800", "\\ud800"),
    ],
)
def test_what_cannot_be_seen_is_written_out(text, shown):
    assert printable(text) == shown


def test_long_names_stay_different_and_short():
    names = ["x" * 100 + str(k) + "y" * 100 for k in range(12)] + ["short", "two\nlines", "x…y"]
    found = short_names(names, 12)
    assert len(set(found)) == len(names) and max(map(len, found)) == 12
    assert found[12:] == ["short", "two lines", "x…y"]
    assert found[0] == "xxxxxx…yyyyy" and found[1] == "xxxx…yyy (2)"


def _series(values, name="one", spread=0.1):
    estimates = {d: Estimate(v, v - spread, v + spread) for d, v in values.items()}
    return Series(name, estimates, 0.5)


@pytest.mark.parametrize(("higher", "order"), [(True, "bcad"), (False, "acbd")])
def test_the_worst_is_first_and_the_unknown_last(higher, order):
    series = _series({"a": 0.9, "b": 0.1, "c": 0.5, "d": math.nan})
    assert "".join(worst_first([series], higher)) == order


def test_a_bar_for_each_domain_with_its_error_bar():
    values = {"good": 0.9, "bad": 0.25, "none": math.nan}
    figure = domain_figure([_series(values)], "accuracy", Unit.SHARE, True, ["good"])
    (axes,) = figure.axes
    assert [t.get_text() for t in axes.get_yticklabels()] == ["bad", "good (not counted)", "none"]
    bars = next(c for c in axes.containers if hasattr(c, "patches"))
    assert [bar.get_width() for bar in bars] == pytest.approx([25, 90, 0])
    (lines,) = (c.lines[2][0] for c in axes.containers if not hasattr(c, "patches"))
    # Where there is no value there is no error bar either.
    first, second = (s[:, 0] for s in lines.get_segments() if len(s))
    np.testing.assert_allclose([first, second], [[15, 35], [80, 100]])
    assert axes.get_xlabel() == "accuracy, %" and axes.yaxis_inverted()


@pytest.mark.parametrize(("rows", "count"), [(1, 3), (10, 30), (2, MAX_DOMAINS + 5)])
def test_many_domains_and_rows_can_be_told_apart(tmp_path, rows, count):
    rng = np.random.default_rng(0)
    domains = [f"a long name of a domain, such as people give, {k}" for k in range(count)]
    series = [_series(dict(zip(domains, rng.random(count))), f"algorithm {k}") for k in range(rows)]
    figure = domain_figure(series, "loss", Unit.NONE, False)
    save(figure, tmp_path / "figure.png")
    assert is_png((tmp_path / "figure.png").read_bytes())
    (axes,) = figure.axes
    labels = [text.get_text() for text in axes.get_yticklabels()]
    assert len(set(labels)) == len(labels) == min(count, MAX_DOMAINS)
    is_cut = count > MAX_DOMAINS
    assert axes.get_title() == (f"the worst {MAX_DOMAINS}; 5 more are not drawn" if is_cut else "")
    legend = [text.get_text() for of in figure.legends for text in of.get_texts()]
    assert legend == ([f"algorithm {k}" for k in range(rows)] if rows > 1 else [])
    # Labels do not lie over each other.
    boxes = sorted(text.get_window_extent().y0 for text in axes.get_yticklabels())
    height = axes.get_yticklabels()[0].get_window_extent().height
    assert count == 1 or min(np.diff(boxes)) > 0.8 * height


@pytest.mark.parametrize("unit", list(Unit))
def test_awkward_names_and_values_are_drawn(tmp_path, unit):
    values = dict(zip(AWKWARD_NAMES, [math.inf, math.nan, 0.0, -1.0, 1e9, *[0.5] * 6]))
    save(domain_figure([_series(values)], "x", unit, True), tmp_path / "figure.png")
    assert is_png((tmp_path / "figure.png").read_bytes())
