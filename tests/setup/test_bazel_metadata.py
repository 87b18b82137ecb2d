"""Bazel's BUILD files against the code, so that they stay true without a Bazel at hand."""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).absolute().parents[2]
PACKAGE = ROOT / "tff_agnostic"
RUNNER = ROOT / "plan_runner"
# What lies at the top of a checkout, of what the package imports.
OWN = (PACKAGE.name, "benchmarks", "plan_runner")
# Declares what it imports as the package's folders do.
TIMING = ROOT / "benchmarks" / "timing"


def evaluate(path):
    """The calls of a BUILD file (rule, arguments): its language is a part of Python's."""
    calls = []

    def rule(name):
        return lambda *args, **kwargs: calls.append((name, kwargs))

    rules = (
        "exports_files filegroup load py_library python_binaries python_package pytest_tests "
        "test_suite"
    )
    names = {name: rule(name) for name in rules.split()}
    names["glob"] = lambda *args, **kwargs: []
    exec(compile(path.read_text(), str(path), "exec"), names)
    return calls


def label(folder):
    return "//" + folder.relative_to(ROOT).as_posix()


def code_folders(root=PACKAGE):
    return sorted({path.parent for path in root.rglob("*.py")})


def declared(folder):
    """The folders that a folder's library depends on, as labels."""
    (arguments,) = (
        arguments for name, arguments in evaluate(folder / "BUILD") if name == "python_package"
    )
    assert arguments["name"] == folder.name
    return set(arguments.get("deps", []))


def folder_of(module):
    """The label of the folder that a module of the package lies in."""
    parts = module.split(".")
    path = ROOT.joinpath(*parts)
    return label(path if path.is_dir() else path.parent)


def imported(folder):
    """The labels of the other folders that a folder's modules import from."""
    found = set()
    # __main__.py starts a command, which imports its own folder in turn.
    for path in set(folder.glob("*.py")) - {folder / "__main__.py"}:
        package = ".".join(folder.relative_to(ROOT).parts)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                base = node.module or ""
                if node.level:
                    parents = package.split(".")
                    parents = parents[: len(parents) - node.level + 1]
                    base = ".".join([*parents, *([node.module] if node.module else [])])
                # `from tff_agnostic import models` is a module as well.
                modules = [f"{base}.{alias.name}" for alias in node.names]
                modules = [
                    module if ROOT.joinpath(*module.split(".")).is_dir() else base
                    for module in modules
                ]
            else:
                continue
            found |= {folder_of(name) for name in modules if name.split(".")[0] in OWN}
    return found - {label(folder)}


@pytest.mark.parametrize(
    "folder", [*code_folders(), *code_folders(RUNNER), TIMING], ids=lambda path: label(path)
)
def test_a_folder_declares_exactly_what_it_imports(folder):
    # Importing a module runs the package's own __init__.py, at the least.
    root = RUNNER if RUNNER in [folder, *folder.parents] else PACKAGE
    always = set() if folder == root else {label(root)}
    needed = imported(folder) | always
    assert declared(folder) == needed, f"{folder.name}/BUILD: deps = {sorted(needed)}"


def test_the_library_is_made_of_every_folder():
    (library,) = (
        arguments
        for name, arguments in evaluate(PACKAGE / "BUILD")
        if name == "py_library" and arguments["name"] == "library"
    )
    expected = {label(folder) for folder in code_folders() if folder != PACKAGE}
    assert set(library["deps"]) == expected | {":tff_agnostic"}


def test_the_quick_tests_are_there():
    (suite,) = (
        arguments["tests"]
        for name, arguments in evaluate(ROOT / "tests/BUILD")
        if name == "test_suite" and arguments["name"] == "quick"
    )
    assert len(suite) >= 3
    for name in suite:
        assert (ROOT / "tests" / f"{name.lstrip(':')}.py").is_file(), name


def test_no_two_folders_import_each_other():
    """Neither at once nor by way of others: Bazel builds no cycle, and imports point down."""
    below = {label(folder): imported(folder) for folder in [*code_folders(), *code_folders(RUNNER)]}
    while below:
        lowest = {folder for folder, needed in below.items() if not needed & below.keys()}
        assert lowest, f"these depend on each other: {sorted(below)}"
        below = {folder: needed for folder, needed in below.items() if folder not in lowest}
