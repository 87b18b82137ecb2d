"""The package's layers: folders import only lower folders, and the library has no flags or prints.

docs/how_to/extend.md lists the folders from top to bottom.
"""

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Callable

import pytest

# Called with a module's syntax tree and folder; yields the module's faults.
Faults = Callable[[ast.AST, str], Iterator[str]]

_PACKAGE = "tff_agnostic"
_CHECKOUT = Path(__file__).parents[1]
_ROOT = _CHECKOUT / _PACKAGE
# The library's highest folder.
_HIGHEST = "deployment"
_FORBIDDEN_MODULES = {"absl.flags", "absl.app", "argparse", "tqdm", "tensorboard"}
_FLAG = re.compile(r"(^|[\s`(\"'=])--[a-z]")
# Folders that may import json, for file formats or Keras configurations.
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
    """Returns a module's folder from the parts of the module's name in the package."""
    if parts[0] == "program":
        return "/".join(parts[:2]) if "/".join(parts[:2]) in _HEIGHTS else "program"
    return parts[0]


def _modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(_ROOT.rglob("*.py")):
        parts = path.relative_to(_ROOT).with_suffix("").parts
        # Skip packages' public names, which are imported at first use.
        if len(parts) > 1 and parts != ("program", "__init__"):
            yield _folder(parts), path
    yield from (("binaries", path) for path in sorted((_CHECKOUT / "binaries").glob("*.py")))


def _imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


# Modules of plan_runner that a folder may import; other folders may import none.
_RUNNER_MODULES = {
    "binaries": ("cli",),
    "deployment": ("plan_pb2",),
    "program/commands": ("errors", "export.DEFAULT_LIMITS", "play.read_server_state"),
}
# Packages that a folder may import, in addition to the standard library.
_ALLOWED = {
    "plan_runner": ("plan_runner", "absl", "flatbuffers", "google", "numpy", "tensorflow"),
    "fleet/secure_aggregation": ("fleet.secure_aggregation", "cryptography", "numpy"),
    "fleet/node_noise": (
        *("fleet.node_noise", "fleet.secure_aggregation", "plan_runner.errors"),
        *("plan_runner.export.NAME", "numpy"),
    ),
    "fleet": (
        *("fleet", "plan_runner", "cryptography", "flwr", "google", "httpx", "numpy"),
        # Only for the process that runs graphs.
        *("starlette", "tensorflow", "uvicorn"),
    ),
}


def _is_within(name: str, modules: Iterable[str]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def _runner_imports(tree: ast.AST, folder: str) -> Iterator[str]:
    """Yields a folder's forbidden imports of plan_runner and fleet."""
    modules = [f"plan_runner.{name}" for name in _RUNNER_MODULES.get(folder, ())]
    for line, name in _imported(tree):
        if name.split(".")[0] in ("fleet", "plan_runner") and not _is_within(name, modules):
            yield f"line {line}: {folder} imports {name}"


def _foreign_imports(tree: ast.AST, folder: str) -> Iterator[str]:
    """Yields the imports that `_ALLOWED` does not list for a folder."""
    for line, name in _imported(tree):
        is_standard = name.split(".")[0] in sys.stdlib_module_names
        if not is_standard and not _is_within(name, _ALLOWED[folder]):
            yield f"line {line}: {folder} imports {name}"


def _upward_imports(tree: ast.AST, folder: str) -> Iterator[str]:
    """Yields a module's imports of folders that are not below its own folder."""
    for line, name in _imported(tree):
        parts = name.split(".")
        other = parts[0]
        if parts[0] == _PACKAGE and len(parts) > 2:
            other = _folder(tuple(parts[1:]))
        if other in _HEIGHTS and other != folder and _HEIGHTS[other] >= _HEIGHTS[folder]:
            yield f"line {line}: {folder} imports {name}"


def _faults(tree: ast.AST, folder: str) -> Iterator[str]:
    """Yields a library module's forbidden imports, prints, exits and flags."""
    for line, name in _imported(tree):
        if _is_within(name, _FORBIDDEN_MODULES):
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


def _assert_no_faults(modules: Iterable[tuple[str, Path]], faults: Faults) -> None:
    wrong = [
        f"{path.relative_to(_CHECKOUT)}: {fault}"
        for folder, path in modules
        for fault in faults(ast.parse(path.read_text()), folder)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("faults", [_upward_imports, _runner_imports])
def test_folders_import_only_what_is_below_them(faults):
    _assert_no_faults(_modules(), faults)


@pytest.mark.parametrize("folder", _ALLOWED)
def test_plan_runner_and_fleet_import_allowed_packages(folder):
    paths = sorted((_CHECKOUT / folder).glob("*.py"))
    assert paths
    _assert_no_faults([(folder, path) for path in paths], _foreign_imports)


def test_library_has_no_flags_and_prints():
    _assert_no_faults(((f, path) for f, path in _modules() if f in _LIBRARY), _faults)


# Beginnings of the modules that may import TensorFlow Federated.
_TFF_USERS = (
    *("computations/tff_bridge/", "computations/tff_process", "computations/verification"),
    *("deployment/", "runtimes/tff"),
)


def test_only_listed_files_import_tff():
    users = {
        path.relative_to(_CHECKOUT).with_suffix("").as_posix().removeprefix(f"{_PACKAGE}/")
        for _, path in _modules()
        for _, name in _imported(ast.parse(path.read_text()))
        if name == f"{_PACKAGE}.base.later.tff"
        or (name.split(".")[0] == "tensorflow_federated" and path.name != "later.py")
    }
    assert "runtimes/tff" in users
    assert not [name for name in users if not name.startswith(_TFF_USERS)]


def test_algorithm_files_import_only_public_computations():
    texts = {path.stem: path.read_text() for path in (_ROOT / "algorithms").glob("*.py")}
    texts = {name: t for name, t in texts.items() if re.search("^ALGORITHM = ", t, re.MULTILINE)}
    assert "agnostic_fed_avg" in texts
    for name, text in texts.items():
        modules = [module for _, module in _imported(ast.parse(text))]
        core = {module for module in modules if module.startswith(f"{_PACKAGE}.computations")}
        assert core == {f"{_PACKAGE}.computations"}, name


# --- The rules find what they forbid


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
def test_forbidden_line_in_library_is_found(line):
    tree = ast.parse(line)
    assert [*_faults(tree, "computations"), *_upward_imports(tree, "computations")]


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
def test_forbidden_import_in_folder_is_found(line, folder):
    assert [*_foreign_imports(ast.parse(line), folder)]


@pytest.mark.parametrize("line", ["from plan_runner import export", "from fleet import keys"])
def test_deployment_imports_plan_messages_only(line):
    assert [*_runner_imports(ast.parse(line), "deployment")]
    assert not [*_runner_imports(ast.parse("from plan_runner import plan_pb2"), "deployment")]
