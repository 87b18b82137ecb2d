"""Draws which folder of the package imports which: docs/images/imports.svg.

A row is as high as its longest chain of imports. An arrow that others lead to as well, over a
folder between, is left out: with all of them nobody sees the direction. `--check` writes nothing
and exits with 1 if the picture is out of date.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
_PACKAGE = "tff_agnostic"
_PICTURE = _ROOT / "docs" / "images" / "imports.svg"
# Pixels: a box, and from one box to the next.
_WIDTH, _HEIGHT, _STEP_X, _STEP_Y, _MARGIN = 128, 30, 148, 66, 12
# An arrow that passes a row of boxes.
_PASS = 26
_SWEEPS = 12
# Readable on white and on black; an image in a page knows which one it is on.
_STYLE = """
  rect { fill: #e8f1f8; stroke: #0072b2 }
  text { fill: #16222b; font: 14px sans-serif; text-anchor: middle }
  polyline { fill: none; stroke: #77848d; stroke-width: 1.2 }
  .head { fill: #77848d }
  @media (prefers-color-scheme: dark) {
    rect { fill: #14314a; stroke: #56b4e9 }
    text { fill: #eef3f6 }
  }
"""

Edges = Mapping[str, frozenset[str]]
Point = tuple[float, float]


def imports_of_folders(root: Path) -> dict[str, frozenset[str]]:
    """Returns the folders of the package, binaries and plan_runner, each with those it imports."""
    folders = {p.parent.name: p.parent for p in sorted((root / _PACKAGE).glob("*/__init__.py"))}
    folders |= {name: root / name for name in ("binaries", "plan_runner")}
    return {
        name: frozenset(_folders_named(folder)) & folders.keys() - {name}
        for name, folder in folders.items()
    }


def _folders_named(folder: Path) -> Iterator[str]:
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            modules: list[str] = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                modules = [f"{node.module}.{alias.name}" for alias in node.names]
            for module in modules:
                first, *rest = module.split(".")
                yield rest[0] if first == _PACKAGE and rest else first


def heights(edges: Edges) -> dict[str, int]:
    """Returns the longest chain of imports below each folder.

    Raises:
        RecursionError: If folders import one another in a circle.
    """
    found: dict[str, int] = {}

    def height(name: str) -> int:
        if name not in found:
            found[name] = 1 + max((height(other) for other in edges[name]), default=-1)
        return found[name]

    for name in edges:
        height(name)
    return found


def without_shortcuts(edges: Edges) -> dict[str, frozenset[str]]:
    """Returns the fewest arrows from which the same folders are reached."""

    def below(name: str) -> set[str]:
        return set().union(*({other} | below(other) for other in edges[name]))

    return {
        name: frozenset(o for o in others if not any(o in below(via) for via in others))
        for name, others in edges.items()
    }


def layout(edges: Edges) -> tuple[dict[str, Point], list[list[Point]]]:
    """Returns the middle of each folder's box, and the points of each arrow.

    Rows are heights. An arrow over several rows has a place of its own in those between, so that
    it passes beside their boxes (Sugiyama et al. 1981).
    """
    height = heights(edges)
    rows: list[list[str]] = [[] for _ in range(1 + max(height.values()))]
    for name in sorted(edges):
        rows[height[name]].append(name)
    chains: list[list[str]] = []
    for name, others in sorted(edges.items()):
        for other in sorted(others):
            between = range(height[name] - 1, height[other], -1)
            # A blank in its name keeps it apart from folders.
            chains.append([name, *(f"{name} {other} {k}" for k in between), other])
            for k in between:
                rows[k].append(f"{name} {other} {k}")
    neighbours: dict[str, list[str]] = {name: [] for row in rows for name in row}
    for chain in chains:
        for upper, lower in itertools.pairwise(chain):
            neighbours[upper].append(lower)
            neighbours[lower].append(upper)
    x = _spread(rows)
    best = x
    for _ in range(_SWEEPS):
        for row in rows:
            row.sort(key=lambda n: (sum(x[o] for o in neighbours[n]) / len(neighbours[n]), n))
            x = _spread(rows)
        best = min(best, x, key=lambda at: _length(chains, at))
    top = len(rows) - 1
    at = {
        name: (best[name], _MARGIN + _STEP_Y * (top - k) + _HEIGHT / 2)
        for k, row in enumerate(rows)
        for name in row
    }
    return {name: at[name] for name in edges}, [[at[name] for name in chain] for chain in chains]


def _spread(rows: Sequence[Sequence[str]]) -> dict[str, float]:
    """Returns where the names of each row stand, from left to right around one middle."""
    widths = [[_PASS if " " in name else _STEP_X for name in row] for row in rows]
    widest = max(map(sum, widths))
    found: dict[str, float] = {}
    for row, own in zip(rows, widths):
        left = _MARGIN + (widest - sum(own)) / 2
        for name, width in zip(row, own):
            found[name] = left + width / 2
            left += width
    return found


def _length(chains: Sequence[Sequence[str]], x: Mapping[str, float]) -> float:
    return sum(abs(x[a] - x[b]) for chain in chains for a, b in itertools.pairwise(chain))


def picture(edges: Edges) -> str:
    """Returns the drawing as SVG; equal imports have equal drawings."""
    at, arrows = layout(without_shortcuts(edges))
    width = max(x for arrow in arrows for x, _ in arrow) + _STEP_X / 2 + _MARGIN
    height = max(y for _, y in at.values()) + _HEIGHT / 2 + _MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}">',
        f"<style>{_STYLE}</style>",
        '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8"',
        ' orient="auto"><path class="head" d="M0 0 L8 4 L0 8 z"/></marker>',
    ]
    half = _HEIGHT / 2
    for arrow in arrows:
        (x1, y1), *between, (x2, y2) = arrow
        # Upright beside the boxes that it passes.
        passed = [point for x, y in between for point in ((x, y - half), (x, y + half))]
        points = " ".join(f"{x:g},{y:g}" for x, y in ((x1, y1 + half), *passed, (x2, y2 - half)))
        lines.append(f'<polyline points="{points}" marker-end="url(#head)"/>')
    for name, (x, y) in sorted(at.items()):
        left, upper = x - _WIDTH / 2, y - half
        lines.append(
            f'<rect x="{left:g}" y="{upper:g}" width="{_WIDTH}" height="{_HEIGHT}" rx="5"/>'
        )
        lines.append(f'<text x="{x:g}" y="{y + 5:g}">{name}</text>')
    return "\n".join([*lines, "</svg>", ""])


def main() -> int:
    """Writes the picture, or checks it; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if out of date")
    is_check = parser.parse_args().check
    text = picture(imports_of_folders(_ROOT))
    where = _PICTURE.relative_to(_ROOT)
    if not is_check:
        _PICTURE.write_text(text, encoding="utf-8")
        print(where)
        return 0
    if _PICTURE.read_text(encoding="utf-8") == text:
        return 0
    print(f"{where} is out of date: python tools/draw_imports.py draws it", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
