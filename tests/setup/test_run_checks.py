"""The checks of the project itself: Bazel and CI."""

import shutil

import pytest

from tests.setup.checkout import FAKE_BAZEL, ROOT, one_line


@pytest.mark.parametrize(("fails", "code"), [(None, 0), ("build", 1), ("test", 1)])
def test_bazel_is_shut_down_whatever_happens(bazel, fails, code):
    if fails:
        (bazel.state / f"{fails}_fails").touch()
    scratch = bazel.folder / "scratch"
    scratch.mkdir()
    result = bazel.run("bazel", environment={"TMPDIR": str(scratch)})
    assert result.returncode == code, result.stderr
    calls = (bazel.state / "bazel_calls").read_text().splitlines()
    assert calls[-1].endswith(" shutdown")
    assert sum(" build " in call and call.endswith(" //...") for call in calls) == 1
    assert sum(call.endswith(" //tests:quick") for call in calls) == (fails != "build")
    assert list(scratch.iterdir()) == []


def test_bazel_tests_the_targets_named(bazel):
    assert bazel.run("bazel", "//tests:a", "//tests:b").returncode == 0
    calls = (bazel.state / "bazel_calls").read_text().splitlines()
    assert any(call.endswith(" //tests:a //tests:b") for call in calls)
    assert not any("quick" in call for call in calls)


def test_a_missing_bazel_is_one_line(bazel):
    (bazel.bin / "bazel").unlink()
    result = bazel.run("bazel")
    assert result.returncode == 2
    assert "bazel-bootstrap" in one_line(result)


def test_a_path_that_bazel_cannot_work_in_is_one_line(ready):
    ready.add_script("bazel", FAKE_BAZEL)
    result = ready.run("bazel")
    assert result.returncode == 2
    assert "Bazel does not work in a path with spaces" in one_line(result)


@pytest.mark.parametrize("fails", [None, "lint", "bazel", "docs", "test", "today's platform"])
def test_ci_runs_every_part_and_fails_if_one_does(bazel, fails):
    shutil.copytree(ROOT / ".ci", bazel.root / ".ci")
    # Otherwise a compiler would be installed.
    bazel.add_script("g++", "")
    (bazel.root / "run").write_text(f'#!/usr/bin/env bash\necho "part $*"\n[[ $1 != "{fails}" ]]\n')
    today = f'#!/usr/bin/env bash\necho "part today"\n[[ "{fails}" != today* ]]\n'
    (bazel.root / "tools" / "try_today").write_text(today)
    (bazel.root / "tools" / "try_today").chmod(0o755)
    result = bazel.run(command=bazel.root / ".ci" / "run")
    parts = sorted(line for line in result.stdout.splitlines() if line.startswith("part "))
    tests = ["part test", "part test --exhaustive-share --rest-share"]
    assert parts == [
        *("part bazel", "part docs --check", "part lint", "part setup"),
        *tests,
        "part today",
    ]
    assert (result.returncode != 0) == (fails is not None)
    failed = [line.strip() for line in result.stderr.splitlines()[1:]]
    every = ["tests", "rest and exhaustive tests"]
    assert failed == {None: [], "test": every}.get(fails, [fails])


@pytest.fixture
def parted(ready):
    """A checkout whose tests are asked for in parts of this checkout's files."""
    calls = ready.state / "parts"
    python = ready.root / ".venv" / "bin" / "python"
    python.unlink()
    ready.add_script("pytest_of_a_part", f'echo "$*" >>"{calls}"; [[ $* != *$FAILING* ]]')
    python.symlink_to(ready.bin / "pytest_of_a_part")
    for folder in ("tests", "tests/binaries"):
        (ready.root / folder).mkdir()
    for file in (ROOT / "tests" / "binaries").glob("test_*.py"):
        (ready.root / "tests" / "binaries" / file.name).touch()
    return ready, calls


@pytest.mark.parametrize(
    ("given", "passed_on"),
    [
        ((), "--ring=quick"),
        (("--rest",), "--ring=rest"),
        (("--all",), "--ring=all"),
        (("--exhaustive",), "--exhaustive"),
        # No checkout of git.
        (("--exhaustive-share",), "--exhaustive-share=none"),
        (("--rest-share",), "--costly-share=none"),
    ],
)
def test_every_test_file_is_in_one_part(parted, given, passed_on):
    checkout, calls = parted
    result = checkout.run("test", *given, environment={"FAILING": "none of them"})
    assert result.returncode == 0, result.stderr
    parts = [line.partition("-m pytest")[2].split() for line in calls.read_text().splitlines()]
    assert all(part.pop() == passed_on for part in parts)
    if given == ("--rest-share",):
        assert all(part.pop() == "--ring=rest" for part in parts)
    rest = [part for part in parts if all(word.startswith("--ignore=") for word in part)]
    others = [path for part in parts if part not in rest for path in part]
    assert len(rest) == 1
    first = result.stdout.splitlines()[0]
    assert f": {len(parts)} parts, " in first
    if not given:
        assert f"\n{first.partition(' parts, ')[0]} parts, " in (ROOT / "README.md").read_text()
    left_out = [ROOT / word.removeprefix("--ignore=") for word in rest[0]]
    files = [file for path in others for file in _test_files(ROOT / path)]
    assert len(set(files)) == len(files)
    assert set(files) == {file for folder in left_out for file in folder.rglob("test_*.py")}


def test_a_part_that_fails_is_named(parted):
    checkout, _ = parted
    result = checkout.run("test", "--all", environment={"FAILING": "tests/models tests/saving"})
    assert result.returncode == 1
    assert result.stderr.splitlines()[-2:] == [
        "tests failed in:",
        "  ./run test tests/models tests/saving --ring=all",
    ]


def test_the_rest_and_a_share_of_the_exhaustive_tests_run_together(parted):
    checkout, calls = parted
    shares = ("--exhaustive-share", "--rest-share")
    result = checkout.run("test", *shares, environment={"FAILING": "none of them"})
    assert result.returncode == 0, result.stderr
    rings = [line.rpartition(" ")[2] for line in calls.read_text().splitlines()]
    assert set(rings) == {"--exhaustive-share=none", "--costly-share=none"}
    first = result.stdout.splitlines()[0]
    assert "commit none, and tests that the quick ring leaves out, with a quarter " in first
    assert f": {len(rings)} parts, " in first


def _test_files(path):
    assert path.exists(), path
    return [path] if path.is_file() else path.rglob("test_*.py")
