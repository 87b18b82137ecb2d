"""Runs the code and the commands of every page from top to bottom, commands for two rounds."""

import dataclasses
import importlib
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Optional
from unittest import mock

import pytest

from tests.docs.newcomer import ROOT, Session, environment
from tests.docs.printed import (
    FORM,
    WHOLE,
    Block,
    blocks,
    has_blocks,
    is_shown,
    is_shown_in_form,
)
from tests.docs.small_data import small_copies
from tests.plan_runner.harness import call as run_plan
from tests.plan_runner.harness import isolated_here
from tests.support.commands import Caller, Outcome
from tests.support.marks import usually
from tff_agnostic.base.registry import Registry
from tff_agnostic.program.experiments import EXPERIMENTS, reproduce

DOCS = ROOT / "docs"
PAGES = sorted(
    [
        *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY")),
        *DOCS.glob("**/*.md"),
    ]
)


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT).with_suffix(""))


# README must be short enough to read in two minutes.
README_WORDS = 700
_FEW_CLIENTS = ["--clients_per_round=2", "--max_examples=20"]
# Clients are streamed, as TensorFlow takes longer to vectorise clients than to run two short
# rounds.
_STREAMED = "--client_mode=streamed"
# The first use of each of these commands runs in a newcomer's environment.
_STARTED = {"train"}
# Flags that shorten documented commands; they replace the documented values.
SHORTENED = {
    "train": ["--rounds=2", _STREAMED],
    "compare": ["--rounds=2", "--trials=1", _STREAMED],
    "reproduce": ["--rounds=2", "--trials=1", *_FEW_CLIENTS, _STREAMED],
    "frontier": ["--rounds=2", "--trials=1", "--grid_points=2", _STREAMED],
    "import_data": ["--max_records=3000"],
    "base_predictors": [],
    "evaluate": [],
    "export": [],
    "import_state": [],
    "privacy": [],
    "recommend": ["--rounds=2", "--trials=1", "--tries=1", "--portfolio=fed_avg", _STREAMED],
    "report": [],
    "run_plan": [],
    "save_model": [],
    "tune": ["--rounds=2", "--trials=2", "--repeats=1", _STREAMED],
}
# These commands are not run here, because .ci/run or tests/setup cover them.
COVERED_ELSEWHERE = {"test", "lint", "bazel", "build", "lock", "setup", "help", "notebook"}
# Matches the first line of a block that shows a file.
_FILE_NAME = re.compile(r"# (\w+\.py)\n")
# The tutorial's files, which README uses; shop.csv is shorter than in the tutorial.
READERS_FILES = {
    "shop.csv": "user,country,visits,price,age,bought\n"
    + "".join(
        f"user{k % 40},{'pt' if k % 8 == 0 else 'es'},0.{k % 10},0.{k % 7},0.{k % 9},{k % 2}\n"
        for k in range(400)
    ),
    **{
        name[1]: block.text
        for block in blocks((DOCS / "tutorials" / "own_data.md").read_text())
        if (name := _FILE_NAME.match(block.text))
    },
}


# Small models of experiments.
_SMALL: Mapping[str, Mapping[str, Any]] = {
    "stackoverflow": {"network": "lstm:embedding=4,units=4", "sequence_length": 5},
    "spanish_keyboard": {"network": "cifg:embedding=4,units=4", "sequence_length": 5},
}
_EXPERIMENTS = Registry(
    "experiment",
    {
        name: dataclasses.replace(one, task_options={**one.task_options, **_SMALL.get(name, {})})
        for name, one in EXPERIMENTS.items()
    },
)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder `shared`, with small copies of the data in `../shared`."""
    folder = tmp_path_factory.mktemp("shared")
    small_copies(ROOT.parent / "shared" / "data", folder / "data")
    return folder


class Commands:
    """Runs documented commands, most of them in this process, because starting one is slow.

    A newcomer's first commands and commands on Ray run in separate processes.

    Args:
        call: Calls commands in this process.
        home: The newcomer's home folder.
    """

    def __init__(self, call: Caller, home: Path) -> None:
        self._call = call
        self._home = home
        self._to_start = set(_STARTED)

    def __call__(self, name: str, *arguments: str) -> Outcome:
        if name == "run_plan":
            return Outcome(*run_plan(*arguments))
        if name not in self._to_start and "--runtime=ray" not in arguments:
            with mock.patch.object(reproduce, "EXPERIMENTS", _EXPERIMENTS), isolated_here():
                return self._call(importlib.import_module(f"binaries.{name}"), *arguments)
        finished = subprocess.run(
            [ROOT / "run", name, *arguments],
            env=environment(self._home) if name in self._to_start else None,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        self._to_start.discard(name)
        return Outcome(finished.returncode, finished.stdout, finished.stderr)


@pytest.fixture(scope="module")
def commands(cohort_runtime, tmp_path_factory: pytest.TempPathFactory) -> Commands:
    return Commands(Caller({"cohort": cohort_runtime}), tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """The interpreter that runs the Python code of pages."""
    with Session(tmp_path_factory.mktemp("home")) as session:
        yield session


@pytest.fixture
def reader_folder(tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory in which the documentation's relative paths exist."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "configs").symlink_to(ROOT / "configs")
    (tmp_path / "shared").symlink_to(shared)
    for name, text in READERS_FILES.items():
        (folder / name).write_text(text)
    monkeypatch.chdir(folder)
    return folder


_WITH_COMMANDS = [page for page in PAGES if has_blocks(page.read_text())]
# These pages run nightly: they take 10 to 60 seconds, and their commands have separate tests.
_NIGHTLY = (
    *("explanations/privacy/accounting", "explanations/privacy/noise_from_clients"),
    *("how_to/frontier", "how_to/import_arrays", "how_to/run_a_tff_program"),
    *("how_to/run_on_many_machines", "how_to/train_ensembles", "how_to/train_for_the_tail"),
    *("how_to/tune", "how_to/use_elsewhere", "how_to/use_tff_aggregators", "how_to/use_with_tff"),
    *("reference/algorithms/cvar", "reference/algorithms/kept_out_examples"),
)
# Pages of results run nightly, because they repeat one another's commands with other settings.
_USUAL = [
    page
    for page in _WITH_COMMANDS
    if page.parent.name != "results" and not _name(page).endswith(_NIGHTLY)
]


@pytest.mark.slow
@pytest.mark.parametrize("page", usually(_USUAL, _WITH_COMMANDS), ids=_name)
def test_page_runs_from_top_to_bottom(
    page: Path, reader_folder: Path, commands: Commands, python: Session
) -> None:
    missing: list[str] = []
    printed: Optional[str] = None
    page_blocks = blocks(page.read_text())
    for block, after in zip(page_blocks, [*page_blocks[1:], Block("", "", "")]):
        if block.language == "text":
            _compare(page, printed, block)
        elif block.language == "sh":
            is_whole = (after.language, after.kind) == ("text", WHOLE)
            outs = [_run(commands, page, li, missing, is_whole) for li in block.text.splitlines()]
            printed = None if None in outs else "".join(filter(None, outs))
        elif name := _FILE_NAME.match(block.text):
            (reader_folder / name[1]).write_text(block.text)
        else:
            script = reader_folder / "script.py"
            script.write_text(block.text)
            printed = python.run(script)
    if missing:
        pytest.skip(f"all but what needs {', '.join(dict.fromkeys(missing))}")


def _compare(page: Path, printed: Optional[str], block: Block) -> None:
    """Compares an output with the block on the page, if the command was run."""
    compare = {FORM: is_shown_in_form, WHOLE: is_shown, "": is_shown}.get(block.kind)
    if compare is not None and printed is not None:
        assert compare(printed, block.text), f"{page.name}: {printed}"


def _run(
    commands: Commands, page: Path, line: str, missing: list[str], is_whole: bool
) -> Optional[str]:
    """Runs a command, possibly shortened; returns its output, or None for a skipped command.

    Skips a command that needs missing data or a skipped command's output, and adds the missing
    files and the command's own outputs to `missing`.
    """
    program, *arguments = shlex.split(line)
    assert program == "./run", f"{page.name}: a block of commands holds {line!r}"
    command, *arguments = arguments
    if command in COVERED_ELSEWHERE:
        return None
    values = {flag: value for flag, _, value in (a.partition("=") for a in arguments)}
    lacking = [
        name
        for value in values.values()
        for name in value.split(",")
        if name in missing or (name.startswith("../shared") and not Path(name).exists())
    ]
    if lacking:
        missing += [*lacking, *(values[f] for f in ("--output", "--output_dir") if f in values)]
        return None
    shortened = [flag for flag in SHORTENED[command] if flag != _STREAMED or _may_stream(arguments)]
    if is_whole:
        shortened = []
    # Commands reject repeated flags.
    replaced = {flag.partition("=")[0] for flag in shortened}
    kept = [argument for argument in arguments if argument.partition("=")[0] not in replaced]
    outcome = commands(command, *kept, *shortened)
    assert outcome.status == 0, f"{line}\n{outcome.err}"
    return outcome.out


def _may_stream(arguments: list[str]) -> bool:
    """Whether --client_mode=streamed can be added to a command."""
    return not any(a.startswith(("--runtime=tff", "--client_mode=")) for a in arguments)


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_lead_to_existing_files_and_headings(page: Path) -> None:
    for name, heading in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", page.read_text()):
        target = page.parent / name if name else page
        assert target.exists(), f"{page.name} links to {name}"
        assert not heading or heading in _headings(target), f"{page.name}: {name}#{heading}"


def _headings(page: Path) -> set[str]:
    """Returns the fragments with which links name a page's headings."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_readme_is_short() -> None:
    # Comments do not count, because readers do not see them.
    words = re.sub(r"<!--.*?-->", "", (ROOT / "README.md").read_text()).split()
    assert len(words) <= README_WORDS, f"README.md has {len(words)} words"


@pytest.mark.slow
@pytest.mark.parametrize("folder", sorted({page.parent for page in DOCS.glob("**/index.md")}))
def test_index_links_to_every_page(folder: Path) -> None:
    linked = re.findall(r"\]\(([^)#:]*)", (folder / "index.md").read_text())
    pages = {page.name for page in folder.glob("*") if page.is_file()} - {"index.md"}
    assert pages <= set(linked)
