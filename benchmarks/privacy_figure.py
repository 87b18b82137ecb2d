"""Plots accuracy against epsilon, from the table in docs/results/privacy.md.

.venv/bin/python -m benchmarks.privacy_figure docs/results/privacy.md FIGURE
"""

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Optional

from tff_agnostic.program.reports import figures

_NO_NOISE = "no noise"
_ROW = re.compile(r"\| (?P<name>\w*) +\| (?P<epsilon>no noise|\d+) \|(?P<cells>.*)\|")
_CELL = re.compile(r"(?P<mean>[\d.]+) \((?P<deviation>[\d.]+)\)")
# Kinds of noise in the order of columns. Each kind has columns for z and two accuracies.
_KINDS = ("central", "distributed", "tree")
_STYLES = dict(zip(_KINDS, ("o-", "s-.", "D--")))
_COLOURS = {"FedAvg": "#0072b2", "AgnosticFedAvg": "#d55e00"}
_TITLES = ("high-school writers, the worst domain", "all writers")


class Point(NamedTuple):
    """Results over seeds for one method, one kind of noise and one epsilon.

    Attributes:
        method: Name of the algorithm.
        kind: Kind of noise.
        epsilon: Epsilon as in the table, or "no noise".
        accuracies: Mean and standard deviation of the accuracy in percent, first for the worst
            domain and then for all domains.
    """

    method: str
    kind: str
    epsilon: str
    accuracies: tuple[tuple[float, float], ...]


def read_points(page: str) -> list[Point]:
    """Reads the points of a page's table. A row without a name has the previous row's name."""
    points, method = [], ""
    for row in filter(None, map(_ROW.fullmatch, map(str.strip, page.splitlines()))):
        method = row["name"] or method
        cells = [cell.strip() for cell in row["cells"].split("|")]
        for k, kind in enumerate(_KINDS):
            matches = list(map(_CELL.fullmatch, cells[3 * k + 1 : 3 * k + 3]))
            if all(matches):
                accuracies = tuple((float(m["mean"]), float(m["deviation"])) for m in matches if m)
                points.append(Point(method, kind, row["epsilon"], accuracies))
    return points


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Reads the page, and writes the figure."""
    page, path = map(Path, sys.argv[1:] if argv is None else argv)
    points = read_points(page.read_text(encoding="utf-8"))
    numbers = sorted({int(p.epsilon) for p in points if p.epsilon != _NO_NOISE})
    ticks = [*map(str, numbers), _NO_NOISE]
    figure = figures.new_figure(11.0, 4.4)
    for k, (axes, title) in enumerate(zip(figure.subplots(1, 2), _TITLES)):
        for shift, (method, colour) in enumerate(_COLOURS.items()):
            for j, kind in enumerate(_KINDS):
                line = [p for p in points if (p.method, p.kind) == (method, kind)]
                line.sort(key=lambda point: ticks.index(point.epsilon))
                # Shift points with equal epsilon, so that they do not overlap.
                x = [ticks.index(p.epsilon) + 0.05 * (2 * j + shift - 2.5) for p in line]
                means, deviations = zip(*(p.accuracies[k] for p in line))
                label = f"{method}, {kind}"
                axes.errorbar(
                    x, means, deviations, fmt=_STYLES[kind], color=colour, capsize=2, label=label
                )
        axes.set_title(title)
        axes.set_xticks(range(len(ticks)), ticks)
        axes.set_xlabel("epsilon")
        axes.set_ylabel("test accuracy, %")
        axes.grid(alpha=0.3)
    figure.axes[0].legend(fontsize="small")
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
