"""The layers of the package: imports point down, and the library knows no flag and no run folder.

docs/how_to/extend.md lists the folders; a folder imports from folders below it.
"""

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

_PACKAGE = "tff_agnostic"
_CHECKOUT = Path(__file__).parents[1]
_ROOT = _CHECKOUT / _PACKAGE
# The highest folder of the library.
_HIGHEST = "deployment"
_FORBIDDEN_MODULES = {"absl.flags", "absl.app", "argparse", "tqdm", "tensorboard"}
_FLAG = re.compile(r"(^|[\s`(\"'=])--[a-z]")
# Folders with a file format, or with the JSON in which Keras states a layer.
_READS_JSON = ("base", "data", "saving", "deployment", "importing", "models")


def _heights() -> dict[str, int]:
    """Returns the height of each folder in the list of docs/how_to/extend.md."""
    text = " ".join((_CHECKOUT / "docs" / "how_to" / "extend.md").read_text().split())
    (line,) = re.findall(r"Imports point down this list only: (.*?)\.", text)
    levels = [re.findall(r"`([\w/]+)`", level) for level in reversed(line.split("→"))]
    return {folder: height for height, level in enumerate(levels) for folder in level}


_HEIGHTS = _heights()
_LIBRARY = {name for name, height in _HEIGHTS.items() if height <= _HEIGHTS[_HIGHEST]}


def _folder(parts: tuple[str, ...]) -> str:
    """Returns the folder of a module from the parts of its name in the package."""
    if parts[0] == "program":
        return "/".join(parts[:2]) if "/".join(parts[:2]) in _HEIGHTS else "program"
    return parts[0]


def _modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(_ROOT.rglob("*.py")):
        parts = path.relative_to(_ROOT).with_suffix("").parts
        # The names of packages for Python users are imported on first use.
        if len(parts) > 1 and parts != ("program", "__init__"):
            yield _folder(parts), path
    yield from (("binaries", path) for path in sorted((_CHECKOUT / "binaries").glob("*.py")))


def _imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yields line and name of each import of a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


# Modules of plan_runner that a folder may import; folders without an entry import none.
_RUNNER_MODULES = {
    "binaries": ("cli",),
    "deployment": ("plan_pb2",),
    "program/commands": ("errors", "export.DEFAULT_LIMITS", "play.read_server_state"),
}
# Packages that the modules of a folder may import, next to the standard library.
_ALLOWED = {
    "plan_runner": ("plan_runner", "absl", "flatbuffers", "google", "numpy", "tensorflow"),
    "fleet/secure_aggregation": ("fleet.secure_aggregation", "cryptography", "numpy"),
    "fleet/node_noise": (
        *("fleet.node_noise", "fleet.secure_aggregation", "plan_runner.errors"),
        *("plan_runner.export.NAME", "numpy"),
    ),
    "fleet": (
        *("fleet", "plan_runner", "cryptography", "flwr", "google", "httpx", "numpy"),
        # In the process that runs graphs.
        *("starlette", "tensorflow", "uvicorn"),
    ),
}


def _is_within(name: str, modules: Iterable[str]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def _runner_imports(tree: ast.AST, folder: str) -> Iterator[str]:
    """Yields the imports of plan_runner and fleet that a folder of the project may not have."""
    modules = [f"plan_runner.{name}" for name in _RUNNER_MODULES.get(folder, ())]
    for line, name in _imported(tree):
        if name.split(".")[0] in ("fleet", "plan_runner") and not _is_within(name, modules):
            yield f"line {line}: {folder} imports {name}"


def _foreign_imports(tree: ast.AST, folder: str) -> Iterator[str]:
    """Yields the imports of a folder outside of the project that `_ALLOWED` does not have."""
    for line, name in _imported(tree):
        is_standard = name.split(".")[0] in sys.stdlib_module_names
        if not is_standard and not _is_within(name, _ALLOWED[folder]):
            yield f"line {line}: {folder} imports {name}"


def _upward_imports(tree: ast.AST, folder: str) -> Iterator[str]:
    """Yields the imports of a module that do not point down."""
    for line, name in _imported(tree):
        parts = name.split(".")
        other = parts[0]
        if parts[0] == _PACKAGE and len(parts) > 2:
            other = _folder(tuple(parts[1:]))
        if other in _HEIGHTS and other != folder and _HEIGHTS[other] >= _HEIGHTS[folder]:
            yield f"line {line}: {folder} imports {name}"


def _faults(tree: ast.AST, folder: str) -> Iterator[str]:
    """Yields the faults of a module of the library."""
    for line, name in _imported(tree):
        if any(name == module or name.startswith(f"{module}.") for module in _FORBIDDEN_MODULES):
            yield f"line {line}: imports {name}"
        if name.split(".")[0] == "json" and folder not in _READS_JSON:
            yield f"line {line}: imports json"
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print":
            yield f"line {node.lineno}: prints"
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("sys.argv", "sys.exit"):
            yield f"line {node.lineno}: {ast.unparse(node)}"
    for text in _texts(tree):
        if _FLAG.search(text.value):
            yield f"line {text.lineno}: names a flag: {text.value[:60]!r}"


def _texts(tree: ast.AST) -> Iterator[ast.Constant]:
    """Yields the strings of a module that are not docstrings."""
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    for constant in constants:
        if isinstance(constant.value, str) and id(constant) not in docstrings:
            yield constant


def test_every_folder_has_a_height():
    folders = {folder for folder, _ in _modules()}
    assert folders == {*_HEIGHTS}


def test_imports_point_down_only():
    wrong = [
        f"{path.relative_to(_CHECKOUT)}: {fault}"
        for folder, path in _modules()
        for fault in _upward_imports(ast.parse(path.read_text()), folder)
    ]
    assert not wrong, "\n".join(wrong)


def test_project_imports_few_plan_runner_modules():
    wrong = [
        f"{path.relative_to(_CHECKOUT)}: {fault}"
        for folder, path in _modules()
        for fault in _runner_imports(ast.parse(path.read_text()), folder)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("folder", _ALLOWED)
def test_plan_runner_and_fleet_keep_their_borders(folder):
    paths = sorted((_CHECKOUT / folder).glob("*.py"))
    wrong = [
        f"{path.relative_to(_CHECKOUT)}: {fault}"
        for path in paths
        for fault in _foreign_imports(ast.parse(path.read_text()), folder)
    ]
    assert paths and not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("line", "folder"),
    [
        ("from tff_agnostic.base.errors import UserError", "plan_runner"),
        ("import fleet.keys", "plan_runner"),
        ("from tff_agnostic.base.errors import UserError", "fleet"),
        ("import tensorflow as tf", "fleet/secure_aggregation"),
        ("from flwr.app import Message", "fleet/node_noise"),
        ("from plan_runner.errors import PlanError", "fleet/secure_aggregation"),
    ],
)
def test_an_import_across_a_border_is_found(line, folder):
    assert [*_foreign_imports(ast.parse(line), folder)]


@pytest.mark.parametrize("line", ["from plan_runner import export", "from fleet import keys"])
def test_deployment_imports_plan_messages_only(line):
    assert [*_runner_imports(ast.parse(line), "deployment")]
    assert not [*_runner_imports(ast.parse("from plan_runner import plan_pb2"), "deployment")]


def test_the_library_knows_no_flag_and_no_printing():
    faults = [
        f"{path.relative_to(_ROOT)}: {place}"
        for folder, path in _modules()
        if folder in _LIBRARY
        for place in _faults(ast.parse(path.read_text()), folder)
    ]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    "line",
    [
        "from absl import flags",
        "import argparse",
        "from tff_agnostic.program.options.flags import build",
        "from tff_agnostic.program.runs.spec import RunSettings",
        "from tff_agnostic.algorithms import ALGORITHMS",
        "from binaries import train",
        "print('hello')",
        "raise ValueError('use --lambda_set')",
        "import json",
        "import sys; sys.exit(1)",
    ],
)
def test_a_planted_line_is_found(line):
    tree = ast.parse(line)
    assert [*_faults(tree, "computations"), *_upward_imports(tree, "computations")]
