"""What the documentation shows, run: every page from top to bottom, commands for two rounds."""

import importlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from binaries import reproduce
from tests.binaries.harness import Caller, Outcome, draw_nothing
from tests.docs.small_data import small_copies
from tests.docs.small_reproduce import small_experiments
from tests.plan_runner.harness import call as run_plan
from tests.plan_runner.harness import isolated_here
from tests.selection import usually
from tff_agnostic.program.reporting import plots

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("**/*.md")])
# What makes a documented command quick. The last value of a flag counts.
_FEW_CLIENTS = ["--clients_per_round=2", "--max_examples=20"]
# To put clients in step takes TensorFlow longer than two such rounds.
_STREAMED = "--client_mode=streamed"
# A binary whose first command is a process, as a reader's is; the notebook is one, too.
_STARTED = {"train"}
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
    "report": [],
    "run_plan": [],
    "save_model": [],
    "tune": ["--rounds=2", "--trials=2", "--repeats=1", _STREAMED],
}
# Run by .ci/run, or by tests/setup; a test that runs all tests would not end.
COVERED_ELSEWHERE = {"test", "lint", "bazel", "build", "lock", "setup", "help"}
# Files of the reader's own that pages speak of.
READERS_FILES = {
    "examples.csv": "user,country,visits,price,age,bought\n"
    + "".join(
        f"user{k % 40},{'pt' if k % 8 == 0 else 'es'},0.{k % 10},0.{k % 7},0.{k % 9},{k % 2}\n"
        for k in range(400)
    )
}
_BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```", re.DOTALL | re.MULTILINE)
# A block that is a file says so in its first line.
_FILE_NAME = re.compile(r"# (\w+\.py)\n")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that has what `../shared` has, in small."""
    folder = tmp_path_factory.mktemp("shared")
    small_copies(ROOT.parent / "shared" / "data", folder / "data")
    return folder


class Commands:
    """Runs the commands of binaries, nearly all in this process: TensorFlow takes seconds to start.

    One is a process, and so is Ray.
    """

    def __init__(self, call: Caller) -> None:
        self._call = call
        self._to_start = set(_STARTED)

    def __call__(self, name: str, *arguments: str) -> Outcome:
        """Runs a command to its end."""
        if name == "run_plan":
            return Outcome(*run_plan(*arguments))
        if name not in self._to_start and "--runtime=ray" not in arguments:
            with (
                mock.patch.object(reproduce, "EXPERIMENTS", small_experiments()),
                isolated_here(),
            ):
                return self._call(importlib.import_module(f"binaries.{name}"), *arguments)
        self._to_start.discard(name)
        finished = subprocess.run(
            [sys.executable, "-m", f"binaries.{name}", *arguments],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        return Outcome(finished.returncode, finished.stdout, finished.stderr)


@pytest.fixture(scope="module")
def commands(cohort_runtime) -> Commands:
    """Commands on the session's runtime."""
    return Commands(Caller({"cohort": cohort_runtime}))


@pytest.fixture
def reader_folder(tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory in which the relative paths of the documentation lead somewhere."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "configs").symlink_to(ROOT / "configs")
    (tmp_path / "shared").symlink_to(shared)
    for name, text in READERS_FILES.items():
        (folder / name).write_text(text)
    monkeypatch.chdir(folder)
    return folder


# Pages of experiments repeat one another's commands, with other settings.
_WITH_COMMANDS = [page for page in PAGES if _BLOCK.search(page.read_text())]
# Commands of experiments, docs/experiments.md's too, are of kinds that other pages have.
_USUAL = [p for p in _WITH_COMMANDS if "experiments" not in (p.parent.name, p.stem)]


@pytest.mark.parametrize("page", usually(_USUAL, _WITH_COMMANDS), ids=lambda p: p.stem)
def test_page_runs_from_top_to_bottom(
    page: Path, reader_folder: Path, commands: Commands, request
) -> None:
    missing = []
    for language, block in _BLOCK.findall(page.read_text()):
        if language == "sh":
            missing += filter(None, [_run(commands, page, line) for line in block.splitlines()])
        elif name := _FILE_NAME.match(block):
            (reader_folder / name[1]).write_text(block)
        else:
            # It may need TFF: its worker must be the one that ends with the tests.
            request.getfixturevalue("tff_runtime")
            with mock.patch.object(plots, "draw_run", draw_nothing):
                exec(compile(block, str(page), "exec"), {"__name__": "__documentation__"})
    if missing:
        pytest.skip(f"all but what needs the data of {', '.join(missing)}")


def _run(commands: Commands, page: Path, line: str) -> str:
    """Runs a command; returns what of the real data it lacks."""
    program, *arguments = shlex.split(line)
    if program.startswith("tools/"):
        subprocess.run([ROOT / program, *arguments], stdin=subprocess.DEVNULL, check=True)
        return ""
    assert program == "./run", f"{page.name}: a block of commands holds {line!r}"
    command, *arguments = arguments
    if command in COVERED_ELSEWHERE:
        return ""
    for value in (argument.partition("=")[2] for argument in arguments):
        if value.startswith("../shared") and not Path(value).exists():
            return value
    shortened = [flag for flag in SHORTENED[command] if flag != _STREAMED or _may_stream(arguments)]
    outcome = commands(command, *arguments, *shortened)
    assert outcome.status == 0, f"{line}\n{outcome.err}"
    return ""


def _may_stream(arguments: list[str]) -> bool:
    """Whether a command leaves the choice of how clients run."""
    return not any(a.startswith(("--runtime=tff", "--client_mode=")) for a in arguments)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_links_lead_to_files(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
