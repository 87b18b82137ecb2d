"""Rules for imports of TensorFlow Federated, and for the imports of algorithm files."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

_ROOT = Path(__file__).absolute().parents[2]
_PACKAGE = "tff_agnostic"

# Files and folders that may import TensorFlow Federated.
_TFF_PLACES = (
    "computations/tff_process.py",
    "computations/verification.py",
    "base/later.py",
    "runtimes/tff.py",
)
_TFF_FOLDERS = ("computations/tff_bridge/", "deployment/")


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: imports by full names only"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _files(folder: str) -> dict[str, Path]:
    root = _ROOT / folder
    return {path.relative_to(root).as_posix(): path for path in sorted(root.rglob("*.py"))}


def _binaries() -> dict[str, Path]:
    return {f"binaries/{name}": path for name, path in _files("binaries").items()}


@pytest.mark.slow
def test_only_listed_files_import_tff():
    using = {
        name
        for name, path in {**_files(_PACKAGE), **_binaries()}.items()
        if any(
            module.split(".")[0] == "tensorflow_federated" or module == f"{_PACKAGE}.later.tff"
            for module in _imports(path)
        )
    }
    assert not {n for n in using if n not in _TFF_PLACES and not n.startswith(_TFF_FOLDERS)}


def test_algorithm_files_import_only_public_computations():
    files = {
        name: path
        for name, path in _files(f"{_PACKAGE}/algorithms").items()
        if re.search(r"^ALGORITHM = ", path.read_text(), re.MULTILINE)
    }
    assert "agnostic_fed_avg.py" in files
    for name, path in files.items():
        modules = [module for module in _imports(path) if module.startswith(f"{_PACKAGE}.comp")]
        assert modules == [f"{_PACKAGE}.computations"], name
