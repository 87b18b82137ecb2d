"""The map of moves: where each module, definition, data file and test of a checkout goes."""

import dataclasses
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

if sys.version_info >= (3, 11):
    import tomllib
else:
    # Of pytest and mypy.
    import tomli as tomllib

HERE = Path(__file__).resolve().parent
# What the map is of; tests and other folders are only rewritten.
PACKAGES = ("tff_agnostic", "plan_runner", "binaries")
# What code of the checkout imports by name.
TOPS = (*PACKAGES, "benchmarks", "tests", "tools")


@dataclasses.dataclass(frozen=True)
class Place:
    """A new module.

    Attributes:
        path: Its file.
        sources: The modules of today that it is made of, in this order.
        tells: What it tells, the first line of its docstring; the first source's if "".
    """

    path: str
    sources: tuple[str, ...]
    tells: str = ""


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where everything goes.

    Attributes:
        places: New modules by their files.
        definitions: New module of (module of today, name), where it is not the module's own.
        renames: New name of (module of today, name): only where two meet in one module.
        files: Data files: from, to.
        tests: Test files and folders that move: from, to.
        order: Folders of the package from the lowest up; none imports from a later one.
        stays: Paths that the map may not move.
        without: New modules that are imported without a package, by the package.
        edited: New modules of which an edit takes away what they import of such packages.
    """

    places: Mapping[str, Place]
    definitions: Mapping[tuple[str, str], str]
    renames: Mapping[tuple[str, str], str]
    files: Mapping[str, str]
    tests: Mapping[str, str]
    order: Sequence[Sequence[str]]
    stays: Sequence[str]
    without: Mapping[str, Sequence[str]]
    edited: Sequence[str]

    def place_of(self, module: str) -> str:
        """Returns the new file of a module, of a test, or of what does not move."""
        return self._homes.get(module) or self.moved_test(module) or module

    def home(self, module: str, name: str) -> str:
        """Returns the new file of a definition."""
        return self.definitions.get((module, name)) or self.place_of(module)

    def new_name(self, module: str, name: str) -> str:
        """Returns a definition's new name."""
        return self.renames.get((module, name), name)

    def moved_test(self, path: str) -> Optional[str]:
        """Returns where a test file goes; None if it stays."""
        parts = path.split("/")
        for length in range(len(parts), 0, -1):
            start = "/".join(parts[:length])
            if start in self.tests:
                return "/".join([self.tests[start], *parts[length:]])
        return None

    @property
    def _homes(self) -> Mapping[str, str]:
        homes = self.__dict__.get("homes")
        if homes is None:
            homes = {old: new for new, place in self.places.items() for old in place.sources}
            object.__setattr__(self, "homes", homes)
        return homes


def load(path: Path = HERE / "map.toml") -> Layout:
    """Returns the map that a file has."""
    content: dict[str, Any] = toml(path)
    places = {
        new: Place(new, tuple(entry["from"]), entry.get("tells", ""))
        for new, entry in content["modules"].items()
    }
    tests = dict(content["tests"])
    files = dict(content["files"])
    definitions = {_pair(key): new for key, new in content["definitions"].items()}
    return Layout(
        places=places,
        definitions=definitions,
        renames={_pair(key): new for key, new in content["renames"].items()},
        files=files,
        tests=tests,
        order=content["order"]["folders"],
        stays=content["order"]["stays"],
        without=content.get("without", {}),
        edited=content["order"].get("edited", ()),
    )


def toml(path: Path) -> dict[str, Any]:
    """Returns what a file of this folder holds."""
    return tomllib.loads(path.read_text())


def tracked(root: Path, ending: str = "") -> list[str]:
    """Returns the paths that git knows in a checkout, by the ends of their names."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True
    ).stdout
    return [p for p in listed.split("\0") if p and p.endswith(ending) and (root / p).is_file()]


def dotted(path: str) -> str:
    """Returns a module's name from its file."""
    parts = path.removesuffix(".py").split("/")
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def folder_of(path: str) -> str:
    """Returns the folder of a file."""
    return path.rsplit("/", 1)[0] if "/" in path else ""


def unknown(layout: Layout, paths: Iterable[str]) -> list[str]:
    """Returns the modules of a checkout that the map does not have."""
    known = {old for place in layout.places.values() for old in place.sources}
    return [p for p in paths if p.split("/")[0] in PACKAGES and p not in known]


def _pair(key: str) -> tuple[str, str]:
    module, _, name = key.partition(":")
    return module, name
