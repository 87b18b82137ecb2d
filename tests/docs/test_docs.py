"""What the documentation shows, run: every Python block, and every command for two rounds."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
# What makes a documented command quick. The last value of a flag counts.
SHORTENED = {
    "train": ["--rounds=2", "--output_dir=shortened"],
    "compare": ["--rounds=2", "--trials=1", "--output_dir=shortened"],
    "import_data": ["--max_records=500", "--output=shortened.sqlite"],
}
# Run by .ci/run, or by tests/setup; a test that runs all tests would not end.
COVERED_ELSEWHERE = {"test", "lint", "bazel", "build", "lock", "setup", "help"}


def blocks(page: Path, language: str) -> list[str]:
    """Returns the fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def commands() -> list:
    """Returns every command line of every page, each once, with the page that has it first."""
    found: dict[str, Path] = {}
    for page in PAGES:
        for block in blocks(page, "sh"):
            for line in block.splitlines():
                found.setdefault(line, page)
    return [pytest.param(page, line, id=f"{page.stem}: {line}") for line, page in found.items()]


@pytest.fixture
def reader_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory in which the relative paths of the documentation lead somewhere."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "configs").symlink_to(ROOT / "configs")
    (tmp_path / "shared").symlink_to(ROOT.parent / "shared")
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "python")], ids=lambda p: p.stem)
def test_python_blocks_run(page: Path, reader_folder: Path, tff_runtime: object) -> None:
    for block in blocks(page, "python"):
        exec(compile(block, str(page), "exec"), {"__name__": "__documentation__"})


@pytest.mark.parametrize(("page", "line"), commands())
def test_command_runs(page: Path, line: str, reader_folder: Path) -> None:
    program, command, *arguments = shlex.split(line)
    assert program == "./run", f"{page.name}: a block of commands holds {line!r}"
    if command in COVERED_ELSEWHERE:
        return
    data = [a.partition("=")[2] for a in arguments if a.startswith(("--data_dir=", "--input="))]
    for path in data:
        if path.startswith("../shared") and not Path(path).exists():
            pytest.skip(f"needs the data of {path}")
        if path.startswith("my_"):
            exec(compile(blocks(page, "python")[0], str(page), "exec"), {})

    finished = subprocess.run(
        [sys.executable, "-m", f"binaries.{command}", *arguments, *SHORTENED[command]],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )

    assert finished.returncode == 0, finished.stderr
    made = list(Path("shortened").rglob("result.json"))
    assert made or Path("shortened.sqlite").is_file()


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_links_lead_to_files(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
