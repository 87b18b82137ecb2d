"""Mutation testing: plants faults one at a time and records which tests detect them.

    python tools/plant_faults.py CHECKOUT RESULTS [--only=NAME ...]

CHECKOUT is a clean checkout with its own `.venv`. For each fault in `planted_faults.toml`, the
script changes the checkout, and then runs test files until a test fails: first their quick tests,
then their slow tests. It runs those test files whose imports are nearest to the changed module.
RESULTS is a JSON file. A second call continues with the faults that are not in RESULTS.
"""

from __future__ import annotations

import argparse
import ast
import functools
import json
import os
import re
import resource
import subprocess
import time
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_FAULTS = Path(__file__).with_name("planted_faults.toml")
_PACKAGES = ("binaries", "fleet", "plan_runner", "tests", "tff_agnostic")
_SELECTIONS = ("-m=not slow and not nightly", "-m=slow")
# Maximum number of test files, and of processor seconds, for one fault and one selection of tests.
_MAX_FILES = 24
_MAX_SECONDS = 100
# Seconds after which tests count as hanging; the time allows for a busy machine.
_MAX_WALL_SECONDS = 1800
# pytest's status if no test was selected.
_NO_TESTS = 5


def planted(source: str, edits: list[list[str]]) -> str:
    """Applies edits, which are pairs of old and new text, to source code.

    Raises:
        ValueError: An old text does not occur exactly once.
    """
    for before, after in edits:
        if source.count(before) != 1:
            raise ValueError(f"expected 1 occurrence, found {source.count(before)}: {before}")
        source = source.replace(before, after)
    return source


class Imports:
    """The imports between the modules of a checkout."""

    def __init__(self, checkout: Path) -> None:
        self._root = checkout

    def nearest_tests(self, file: str) -> list[str]:
        """Returns the test files that import a module, nearest first, each folder's together."""
        words = set(re.split(r"[/_.]", file))

        def rank(test: str) -> tuple[float, int]:
            shared = len(words & set(re.split(r"[/_.]", test)) - {"py", "tff", "agnostic"})
            return self._distance(test, file) - shared, (self._root / test).stat().st_size

        tests = [path.relative_to(self._root).as_posix() for path in self._test_files()]
        nearest = sorted((t for t in tests if self._distance(t, file) < 99), key=rank)[:_MAX_FILES]
        # pytest loses the fixtures of a folder that it enters twice.
        folders = list(dict.fromkeys(test.split("/")[1] for test in nearest))
        return sorted(nearest, key=lambda test: folders.index(test.split("/")[1]))

    def _test_files(self) -> Iterator[Path]:
        return (self._root / "tests").rglob("test_*.py")

    @functools.cache  # noqa: B019 - the script has one instance
    def _distances(self, test: str) -> Mapping[str, int]:
        distances, front = {test: 0}, [test]
        while front:
            reached = [(file, distances[f] + 1) for f in front for file in self._imported(f)]
            front = [file for file, _ in reached if file not in distances]
            distances = {**dict(reached), **distances}
        return distances

    def _distance(self, test: str, file: str) -> int:
        return self._distances(test).get(file, 99)

    @functools.cache  # noqa: B019
    def _imported(self, file: str) -> frozenset[str]:
        names: set[str] = set()
        for node in ast.walk(ast.parse((self._root / file).read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                names.update((node.module, *(f"{node.module}.{a.name}" for a in node.names)))
            # Treat strings as names of modules, because commands are imported by name.
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                names.add(node.value)
        paths = (name.replace(".", "/") for name in names if name.startswith(_PACKAGES))
        files = (f"{path}{end}" for path in paths for end in (".py", "/__init__.py"))
        return frozenset(
            name for name in files if len(name) < 200 and (self._root / name).is_file()
        )


def first_failure(checkout: Path, selection: str, tests: list[str]) -> str | None:
    """Runs tests, and returns the name of the first failing test; None if all pass."""
    threads = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")
    command = [".venv/bin/python", "-m", "pytest", "-x", "-q", "-rfE", "--tb=no"]
    limits = (_MAX_SECONDS, _MAX_SECONDS)
    try:
        done = subprocess.run(
            [*command, "-p", "no:cacheprovider", selection, *tests],
            cwd=checkout,
            env={**os.environ, **dict.fromkeys(threads, "1")},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_MAX_WALL_SECONDS,
            check=False,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, limits),
        )
    except subprocess.TimeoutExpired:
        return "(hangs)"
    if done.returncode < 0:
        print(f"  {_MAX_SECONDS} s are over: {done.stdout[-300:]}", flush=True)
    if done.returncode <= 0 or done.returncode == _NO_TESTS:
        return None
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return failed.group(1) if failed else f"(exit {done.returncode}) {done.stderr[-300:]}"


def run(checkout: Path, results: Path, only: list[str], selections: list[str]) -> None:
    """Plants each fault, and records the first failing test of each selection."""
    entries: dict[str, Any] = json.loads(results.read_text()) if results.exists() else {}
    imports = Imports(checkout)
    for fault in tomllib.loads(_FAULTS.read_text(encoding="utf-8"))["fault"]:
        name, target = fault["name"], checkout / fault["file"]
        if name in entries or (only and name not in only):
            continue
        source, begin = target.read_text(encoding="utf-8"), time.monotonic()
        tests, entry = imports.nearest_tests(fault["file"]), dict.fromkeys(selections)
        try:
            target.write_text(planted(source, fault["edits"]), encoding="utf-8")
            for selection in selections:
                entry[selection] = first_failure(checkout, selection, tests)
                if entry[selection] is not None:
                    break
        finally:
            target.write_text(source, encoding="utf-8")
        entries[name] = entry
        results.write_text(json.dumps(entries, indent=1) + "\n")
        print(f"{name} ({time.monotonic() - begin:.0f} s): {entry}", flush=True)


def main() -> None:
    """Reads the command line, and plants the faults."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--only", nargs="+", default=[], help="names of faults [all]")
    parser.add_argument("--selection", action="append", help="argument of pytest; may be repeated")
    given = parser.parse_args()
    selections = given.selection or list(_SELECTIONS)
    run(given.checkout.resolve(), given.results.resolve(), given.only, selections)


if __name__ == "__main__":
    main()
