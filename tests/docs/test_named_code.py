"""Pages name existing code next to the lines of papers, and existing files."""

import pydoc
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", *DOCS.glob("**/*.md")])
# Packages of the parts on the pages.
_PACKAGES = ("tff_agnostic.computations", "tff_agnostic")
_TABLE = re.compile(r"^\|.*\| in the code \|\n\|[-|]*\n((?:\|.*\n)+)", re.MULTILINE)
_OBJECT = re.compile(r"`(\w+(?:\.\w+)+)`")
# A function within the one that builds an algorithm.
_STEP = re.compile(r"`(\w+)`: `(\w+)`")
_FILE = re.compile(
    r"`((?:benchmarks|binaries|configs|plan_runner|tests|tff_agnostic|tools)/[\w/.]*)`"
)
# A stop of a walk: its file, and a function or class there.
_STOP = re.compile(r"^\| `([\w/]+\.py)` \| `(\w+)` \|", re.MULTILINE)
# Pages of algorithms that have such a table.
_ALGORITHMS = (
    *("agnostic_fed_avg", "cvar", "delta_fl", "fed_avg", "fed_boost", "fed_prox", "q_ffl"),
    *("stochastic_afl", "term"),
)


@pytest.mark.parametrize("page", [f"reference/algorithms/{name}" for name in _ALGORITHMS])
def test_named_code_exists(page: str) -> None:
    (table,) = _TABLE.findall((DOCS / f"{page}.md").read_text())
    for row in table.splitlines():
        objects, steps = _OBJECT.findall(row), _STEP.findall(row)
        assert objects or steps, row
        for name in objects:
            assert any(pydoc.locate(f"{package}.{name}") for package in _PACKAGES), name
        for algorithm, step in steps:
            code = (ROOT / "tff_agnostic" / "algorithms" / f"{algorithm}.py").read_text()
            assert f"    def {step}(" in code, row


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_files_that_pages_name_exist(page: Path) -> None:
    for name in _FILE.findall(page.read_text()):
        assert (ROOT / name).exists(), f"{page.name} names {name}"


def test_walks_stop_at_code_that_is_there() -> None:
    stops = _STOP.findall((DOCS / "explanations" / "architecture.md").read_text())
    assert len(stops) > 30
    for file, name in stops:
        code = (ROOT / file).read_text()
        assert re.search(rf"^ *(def|class) {name}\b", code, re.MULTILINE), f"{file}: {name}"
