"""The layers of the package: the library knows no flag, no run folder and no printing.

A folder imports from folders that stand before it in `_ORDER`; the program may import everything.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

_PACKAGE = "tff_agnostic"
_ROOT = Path(__file__).parents[1] / _PACKAGE
# Modules at the root belong to the folder that they will move to.
_BASE = (
    *("base", "errors", "registry", "later", "files", "report_fields", "text_ids"),
    *("stateless_random", "user_code"),
)
_ORDER = (
    *("models", "data", "privacy", "aggregations", "domain_weights", "computations", "boosting"),
    *("algorithms", "metrics", "runtimes", "tasks", "training", "importing", "saving"),
    "deployment",
)
_PROGRAM = (
    *("program", "run", "api", "studies", "reports", "experiments", "commands", "progress"),
    "base_predictors",
)
_RANK = dict.fromkeys(_BASE, 0) | {name: k + 1 for k, name in enumerate(_ORDER)}
_FORBIDDEN_MODULES = {"absl.flags", "absl.app", "argparse", "tqdm", "tensorboard"}
_FLAG = re.compile(r"(^|[\s`(\"'=])--[a-z]")
# Folders and modules that own a file format, or read the JSON in which Keras states a layer.
_READS_JSON = ("files", "data", "saving", "deployment", "importing", "models")

# Faults that later work mends, by folder: each number may only fall.
NOT_YET: dict[str, int] = {
    "data": 8,
    "deployment": 13,
    "importing": 92,
    "saving": 8,
}


def _faults(source: str, folder: str) -> Iterator[str]:
    """Yields what a module of a library folder must not have."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        for name in _imported(node):
            parts = name.split(".")
            if name in _FORBIDDEN_MODULES:
                yield f"line {node.lineno}: imports {name}"
            if parts[0] == "json" and folder not in _READS_JSON:
                yield f"line {node.lineno}: imports json"
            if parts[0] == "binaries":
                yield f"line {node.lineno}: imports {name}"
            other = parts[1] if parts[0] == _PACKAGE and len(parts) > 1 else folder
            if other in _PROGRAM or _RANK.get(other, 0) > _RANK[folder]:
                yield f"line {node.lineno}: {folder} imports {other}"
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print":
            yield f"line {node.lineno}: prints"
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("sys.argv", "sys.exit"):
            yield f"line {node.lineno}: {ast.unparse(node)}"
    for text in _texts(tree):
        if _FLAG.search(text.value):
            yield f"line {text.lineno}: names a flag: {text.value[:60]!r}"


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        names = [f"{node.module}.{alias.name}" for alias in node.names]
        return [node.module, *(name for name in names if name in _FORBIDDEN_MODULES)]
    return []


def _texts(tree: ast.AST) -> Iterator[ast.Constant]:
    """Yields the texts of a module that are no docstrings."""
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


def _library() -> Iterator[tuple[str, Path]]:
    for path in sorted(_ROOT.rglob("*.py")):
        folder = path.relative_to(_ROOT).parts[0].removesuffix(".py")
        if folder in _RANK:
            yield folder, path


def test_every_folder_has_a_layer():
    names = {path.relative_to(_ROOT).parts[0].removesuffix(".py") for path in _ROOT.rglob("*.py")}
    assert names - {"__init__"} == {*_RANK, *_PROGRAM}


def test_library_keeps_to_its_layers():
    found: dict[str, list[str]] = {}
    for folder, path in _library():
        places = [
            f"{path.relative_to(_ROOT)}: {fault}" for fault in _faults(path.read_text(), folder)
        ]
        found.setdefault(folder, []).extend(places)
    counts = Counter({folder: len(faults) for folder, faults in found.items() if faults})
    new = [
        f
        for folder, faults in found.items()
        if counts[folder] > NOT_YET.get(folder, 0)
        for f in faults
    ]
    assert not new, "\n".join(new)
    assert dict(counts) == NOT_YET, "a number of NOT_YET can fall"


@pytest.mark.parametrize(
    "line",
    [
        "from absl import flags",
        "import argparse",
        "from tff_agnostic.program.options.flags import build",
        "from tff_agnostic.run.spec import RunSpec",
        "from tff_agnostic.algorithms import ALGORITHMS",
        "print('hello')",
        "raise ValueError('use --lambda_set')",
        "import json",
        "import sys; sys.exit(1)",
    ],
)
def test_a_planted_line_is_found(line):
    assert list(_faults(line, "computations"))
