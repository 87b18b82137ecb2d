"""Pages name existing code, files and defaults, and answer a newcomer's questions."""

import pydoc
import re
from pathlib import Path

import pytest
from tabulate import tabulate

from tff_agnostic.program.options.defaults import DEFAULTS
from tff_agnostic.program.runs.spec import resolve

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", *DOCS.glob("**/*.md")])
# Packages that contain the names on the pages.
_PACKAGES = ("tff_agnostic.computations", "tff_agnostic")
_TABLE = re.compile(r"^\|.*\| in the code \|\n\|[-|]*\n((?:\|.*\n)+)", re.MULTILINE)
_OBJECT = re.compile(r"`(\w+(?:\.\w+)+)`")
# Matches (an algorithm's file, a function that is nested in the algorithm's builder).
_STEP = re.compile(r"`(\w+)`: `(\w+)`")
_FILE = re.compile(
    r"`((?:benchmarks|binaries|configs|plan_runner|tests|tff_agnostic|tools)/[\w/.]*)`"
)
# Matches (a file, a function or class in it) in a row of a walk through the code.
_STOP = re.compile(r"^\| `([\w/]+\.py)` \| `(\w+)` \|", re.MULTILINE)
# Algorithms whose page has the table `_TABLE`.
_ALGORITHMS = (
    *("agnostic_fed_avg", "cvar", "delta_fl", "fed_avg", "fed_boost", "fed_prox", "q_ffl"),
    *("stochastic_afl", "term"),
)


@pytest.mark.parametrize("page", [f"reference/algorithms/{name}" for name in _ALGORITHMS])
def test_code_in_algorithm_tables_exists(page: str) -> None:
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


def test_architecture_walks_name_existing_code() -> None:
    stops = _STOP.findall((DOCS / "explanations" / "architecture.md").read_text())
    assert len(stops) > 30
    for file, name in stops:
        code = (ROOT / file).read_text()
        assert re.search(rf"^ *(def|class) {name}\b", code, re.MULTILINE), f"{file}: {name}"


# --- Pages have every task and its defaults


PAGE, DEFAULTS_PAGE = (DOCS / "reference" / name for name in ("tasks.md", "task_defaults.md"))
_SETTINGS = {
    "rounds": "rounds",
    "clients": "clients_per_round",
    "batch": "client_batch_size",
    "epochs": "client_epochs",
    "client lr": "client_learning_rate",
    "server": "server_optimizer",
    "server lr": "server_learning_rate",
    "lambda lr": "lambda_learning_rate",
    "window": "window",
    "divided by": "client_normalizer",
}


def _table() -> str:
    rows = []
    for name in DEFAULTS:
        settings = resolve(name, {}, {}).settings()
        values = [settings[setting] for setting in _SETTINGS.values()]
        cells = [f"{v:.4g}" if isinstance(v, float) else str(v) for v in values]
        rows.append([f"`{name}`", *cells])
    return tabulate(rows, headers=["task", *_SETTINGS], tablefmt="github", disable_numparse=True)


def test_page_has_task_defaults():
    assert _table() in DEFAULTS_PAGE.read_text(), f"expected in {DEFAULTS_PAGE.name}:\n{_table()}"


@pytest.mark.slow
def test_page_explains_every_task():
    text = PAGE.read_text()
    for name in DEFAULTS:
        assert f"### `{name}`" in text and f"| [`{name}`](#{name}) |" in text


# --- Pages answer a newcomer's questions


def test_pages_answer_newcomer_questions():
    table = (ROOT / "tests" / "docs" / "questions.md").read_text()
    questions = re.findall(r"^\| (.*\?) \| ([\w/]+\.md) \| (.*) \|$", table, re.MULTILINE)
    assert len({question for question, _, _ in questions}) == 20
    for question, page, answer in questions:
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", (ROOT / page).read_text())
        assert answer in " ".join(re.sub(r"[*`]", "", text).split()), question
