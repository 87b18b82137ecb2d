"""Compares the public API with that of the last release: what breaks its users is decided.

`tools/docs/public_api.toml` names the commit of the release, and has a reason for each change that
is decided and in the changelog. Any other change that breaks callers is an error. griffe finds
them, by syntax, in the declarations that the reference is made of.
"""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

import griffe

from tools.docs.api import (
    OF_RESULTS,
    PACKAGE,
    PUBLIC,
    Definition,
    Sources,
    declarations,
    documented,
    file_of,
    without_constructor,
)

ROOT = Path(__file__).resolve().parents[2]
LIST = Path("tools") / "docs" / "public_api.toml"


class ApiError(Exception):
    """Why the API is not as it should be, or cannot be compared: a line for each reason."""


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> list[tuple[str, str]]:
    """Returns each change that breaks callers, as its name and what it is.

    Args:
        before: Declarations, by the path of their file.
        now: The same of today.
    """
    with tempfile.TemporaryDirectory() as folder:
        loaded = [_loaded(Path(folder) / name, files) for name, files in _both(before, now)]
        found = [
            (_name(breakage), _words(breakage))
            for breakage in griffe.find_breaking_changes(*loaded)
        ]
    return list(dict.fromkeys(found))


def _both(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    yield "before", before
    yield "now", now


def _loaded(folder: Path, files: Mapping[str, str]) -> Any:
    for path, text in {f"{PACKAGE}/__init__.py": "", **files}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    # Otherwise it would take the folder of this name that it is called in.
    return griffe.load(
        PACKAGE, search_paths=[folder], try_relative_path=False, allow_inspection=False
    )


def _name(breakage: griffe.Breakage) -> str:
    parameter = getattr(breakage.old_value, "name", None)
    kinds = (griffe.ParameterMovedBreakage, griffe.ParameterRemovedBreakage)
    of_parameter = f"({parameter})" if isinstance(breakage, kinds) and parameter else ""
    return f"{breakage.obj.path}{of_parameter}"


def _words(breakage: griffe.Breakage) -> str:
    shown = [str(value) for value in (breakage.old_value, breakage.new_value) if value is not None]
    return f"{breakage.kind.value}: {' -> '.join(' '.join(text.split())[:80] for text in shown)}"


def public(root: Path) -> dict[str, str]:
    """Returns the declarations of the public modules of a checkout, by the path of their file."""
    sources = Sources(root)
    files = {}
    for module in PUBLIC:
        if sources.path(module).is_file():
            constants = [
                one
                for name in sources.public_names(module)
                if not (one := sources.definition(module, name)).directive
            ]
            every = [*documented(sources, module), *constants]
            if module == OF_RESULTS:
                every = [Definition(one.module, without_constructor(one.node)) for one in every]
            files[file_of(module)] = declarations(sources, every, with_fields=True)
    return files


def release_tree(commit: str, folder: Path) -> None:
    """Writes the package of a commit into a folder.

    Raises:
        ApiError: If git does not have the commit.
    """
    if _git("cat-file", "-e", f"{commit}^{{commit}}") is None:
        # A shallow clone has the newest commits only.
        _git("fetch", "--quiet", "--depth=1", "origin", commit)
    packed = _git("archive", commit, PACKAGE)
    if packed is None:
        raise ApiError(
            f"{LIST}: commit {commit:.12} of the release is not in this clone, and its origin does "
            "not give it: get it with git fetch --unshallow"
        )
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")


def _git(*arguments: str) -> Optional[bytes]:
    # The checkout may belong to another user.
    command = ["git", "-c", "safe.directory=*", "-C", str(ROOT), *arguments]
    done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, check=False)
    return done.stdout if done.returncode == 0 else None


def check(root: Path) -> str:
    """Compares the API with the release; returns a line that says so.

    Raises:
        ApiError: If something is broken that is not decided, or was decided and is not broken.
    """
    listed = tomllib.loads((root / LIST).read_text(encoding="utf-8"))
    decided = {entry["name"]: entry["reason"] for entry in listed.get("broken", ())}
    with tempfile.TemporaryDirectory() as folder:
        release_tree(listed["commit"], Path(folder))
        before = public(Path(folder))
    now = public(root)
    found = changes(before, now)
    problems = [
        f"{name}: {words}. Keep it, or put it into CHANGELOG and {LIST}"
        for name, words in found
        if name not in decided
    ]
    names = {name for name, _ in found}
    problems += [
        f"{LIST}: {name} is not broken: take it out" for name in decided if name not in names
    ]
    problems += [f"{LIST}: expected a reason for {name}" for name in decided if not decided[name]]
    # A comparison that finds nothing must be able to find something.
    planted = {
        path: text.replace("def train(task", "def train(the_task") for path, text in now.items()
    }
    if not changes(now, planted):
        problems.append("a parameter that was renamed on purpose was not found")
    if problems:
        raise ApiError("\n".join(problems))
    count = sum(len(Sources(root).public_names(module)) for module in PUBLIC)
    broken = (
        f"each of {len(found)} broken ones has a reason in {LIST}" if found else "none is broken"
    )
    return f"api: {count} public names compared with release {listed['release']}; {broken}"


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Prints what was compared; returns the exit status."""
    argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0]).parse_args(arguments)
    try:
        print(check(ROOT))
    except ApiError as e:
        print(e, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
