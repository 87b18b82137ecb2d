"""Applies the map to a checkout: code, tests, pages, Bazel's files and settings of tools."""

import ast
import json
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Collection, Iterable
from pathlib import Path

from tools.moves.code import MoveError, Mover
from tools.moves.layout import HERE, PACKAGES, Layout, folder_of, toml, tracked
from tools.moves.names import Module, Tree

# Other texts than Python's that name modules or files.
_TEXTS = (
    ".md",
    ".toml",
    ".sh",
    ".cff",
    ".bzl",
    ".flags",
    ".awk",
    ".ipynb",
    ".cc",
    ".proto",
    ".cfg",
)
# What tells of the past stays as it was told.
_LEFT_ALONE = ("CHANGELOG.md", "requirements.lock", "tests/releases/0.1.0/")
_DEPS = re.compile(r"deps = \[.*?\]", re.DOTALL)


def apply(root: Path, tree: Tree, layout: Layout, mover: Mover) -> None:
    """Applies the map.

    Args:
        root: The checkout, without changes that git does not know.
        tree: Its modules.
        layout: The map.
        mover: What makes the code.

    Raises:
        MoveError: If the checkout has changes, or an edit of edits.toml finds nothing.
    """
    status = subprocess.run(
        ["git", "status", "--porcelain"], cwd=root, capture_output=True, text=True, check=True
    ).stdout
    changed = [line for line in status.splitlines() if not line[3:].startswith("tools/moves/")]
    if changed:
        raise MoveError(f"expected a checkout without changes, found {len(changed)}")
    texts = {
        path: (root / path).read_text()
        for path in tracked(root)
        if _is_text(root, path) and not path.startswith(_LEFT_ALONE)
    }
    new = _code(tree, layout, mover)
    for path, text in texts.items():
        new[layout.files.get(path) or layout.moved_test(path) or path] = _text(path, text, mover)
    for path in set(tree.modules) - set(new):
        (root / path).unlink()
    for path in texts:
        if path not in new:
            (root / path).unlink()
    for old, to in _other_moves(root, layout, new):
        (root / to).parent.mkdir(parents=True, exist_ok=True)
        shutil.move(root / old, root / to)
    for path, text in new.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        if not (root / path).exists() or (root / path).read_text() != text:
            (root / path).write_text(text)
    _packages(root, layout)
    lost = _edit(root)
    _remove_empty(root)
    ruff = [sys.executable, "-m", "ruff"]
    fix = [*ruff, "check", "--select=I,F401", "--fix", "--quiet", *_ruff_folders(root)]
    subprocess.run(fix, cwd=root, check=False)
    # Pages as well: it formats the Python on them.
    subprocess.run([*ruff, "format", "--quiet", "."], cwd=root, check=False)
    _bazel(root)
    _algorithm_files(root)
    if lost:
        # All else is done, so that what is wrong can be looked at.
        raise MoveError("\n".join(lost))


def _algorithm_files(root: Path) -> None:
    """Puts what tools/algorithm_files prints into the page that shows it."""
    printed = subprocess.run(
        [str(root / "tools" / "algorithm_files")], capture_output=True, text=True, check=True
    ).stdout
    page = root / "docs" / "extending.md"
    text = page.read_text()
    for block in re.findall(r"^\w+: \d+ lines in .*\n(?: +\w+/.*\n)+", printed, re.MULTILINE):
        name = block.partition(":")[0]
        shown = rf"^    {name}: \d+ lines in .*\n(?:      \w+/.*\n)+"
        text = re.sub(shown, textwrap.indent(block, "    "), text, flags=re.MULTILINE)
    page.write_text(text)


def _code(tree: Tree, layout: Layout, mover: Mover) -> dict[str, str]:
    new = {}
    for place in layout.places.values():
        if mover.is_as_before(place):
            (source,) = place.sources
            new[place.path] = mover.rewritten(tree.modules[source])
        else:
            new[place.path] = mover.joined_module(place)
    for path, module in tree.modules.items():
        if path.split("/")[0] not in PACKAGES:
            new[layout.place_of(path)] = mover.rewritten(module)
    return new


def _is_text(root: Path, path: str) -> bool:
    if path.startswith("tools/moves/") or path.endswith(".py") or (root / path).is_symlink():
        return False
    if path.endswith(_TEXTS):
        return True
    # Scripts without an ending, as tools/ and run are.
    name = path.rsplit("/", 1)[-1]
    return "." not in name and name not in ("LICENSE", "WORKSPACE") and not name.startswith("BUILD")


def _text(path: str, text: str, mover: Mover) -> str:
    def code(block: str) -> str:
        try:
            module = Module(path, block + "\n")
        except SyntaxError:
            return mover.texts.rewritten(block, path)
        return mover.rewritten_block(module).removesuffix("\n")

    if path.endswith(".md"):
        return mover.texts.page(text, path, code)
    if path.endswith(".ipynb"):
        content = json.loads(text)
        before = json.dumps(content)
        for cell in content["cells"]:
            source = "".join(cell["source"])
            new = (
                code(source)
                if cell["cell_type"] == "code"
                else mover.texts.page(source, path, code)
            )
            if new != source:
                cell["source"] = new.splitlines(keepends=True)
        if json.dumps(content) == before:
            return text
        return json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    return mover.texts.rewritten(text, path)


def _other_moves(root: Path, layout: Layout, texts: Collection[str]) -> Iterable[tuple[str, str]]:
    """Yields data files and what of moving test folders is no text: from, to."""
    for old, new in layout.files.items():
        if (root / old).exists():
            yield old, new
        elif new not in texts:
            raise MoveError(f"{old}: in the map's files, and not there")
    for path in tracked(root):
        to = layout.moved_test(path)
        if to and (root / path).exists():
            yield path, to


def _packages(root: Path, layout: Layout) -> None:
    """Writes the list of packages in pyproject.toml."""
    folders = {folder_of(new) for new in layout.places if not new.startswith("binaries/")}
    names = {folder.replace("/", ".") for folder in folders}
    names |= {"tff_agnostic.binaries", "tff_agnostic.configs"}
    listed = "".join(f'  "{name}",\n' for name in sorted(names))
    path = root / "pyproject.toml"
    text = re.sub(r"(?<=\npackages = \[\n).*?(?=^\])", listed, path.read_text(), flags=re.S | re.M)
    path.write_text(text)


def _edit(root: Path) -> list[str]:
    """Makes the edits that no rule makes; returns those that find nothing."""
    lost = []
    for edit in toml(HERE / "edits.toml")["edits"]:
        path = root / edit["file"]
        text = path.read_text() if path.exists() else ""
        if edit["old"] in text:
            path.write_text(text.replace(edit["old"], edit["new"]))
        else:
            lost.append(f"{edit['file']}: an edit finds no {edit['old'].strip()[:60]!r}")
    return lost


def _remove_empty(root: Path) -> None:
    for top in (*PACKAGES, "tests"):
        folders = sorted((root / top).rglob("*"), key=lambda path: -len(path.parts))
        for folder in folders:
            if folder.is_dir() and folder.name != "__pycache__":
                left = [p for p in folder.iterdir() if p.name not in ("__pycache__", "BUILD")]
                if not left:
                    shutil.rmtree(folder)


def _ruff_folders(root: Path) -> list[str]:
    return [top for top in (*PACKAGES, "benchmarks", "tests", "tools") if (root / top).exists()]


def _bazel(root: Path) -> None:
    """Writes what Bazel's files declare: of each folder of modules, the folders it imports."""
    folders = {folder_of(p.relative_to(root).as_posix()) for p in _modules(root)}
    beside = {p.parent.relative_to(root).as_posix() for p in root.glob("benchmarks/*/BUILD")}
    for folder in sorted(folders | beside):
        path = root / folder / "BUILD"
        if not path.exists():
            path.write_text(
                'load("//tools:python.bzl", "python_package")\n\n'
                f'python_package(name = "{folder.rsplit("/", 1)[1]}", deps = [])\n'
            )
        needed = _imported(root, folder, folders)
        top = folder.split("/")[0]
        # Importing a module runs the package's own __init__.py, at the least.
        if folder == "benchmarks/timing":
            needed.add("tff_agnostic")
        elif folder not in (top, *beside):
            needed.add(top)
        text = path.read_text()
        deps = "".join(f'        "//{name}",\n' for name in sorted(needed - {folder}))
        start = text.index("python_package(", text.index("\n"))
        end = text.index(")", start)
        call = text[start:end]
        if deps:
            new = (
                f'python_package(\n    name = "{folder.rsplit("/", 1)[-1]}",\n'
                f"    deps = [\n{deps}    ],\n"
            )
        else:
            new = f'python_package(name = "{folder.rsplit("/", 1)[-1]}"'
        path.write_text(text.replace(call, new))
    library = root / "tff_agnostic" / "BUILD"
    inside = sorted(f for f in folders if f.startswith("tff_agnostic/"))
    listed = "".join(f'        "//{name}",\n' for name in inside)
    text = library.read_text()
    start = text.index('name = "library"')
    library.write_text(
        text[:start]
        + _DEPS.sub(f'deps = [\n        ":tff_agnostic",\n{listed}    ]', text[start:], count=1)
    )
    for name in tracked(root, "BUILD"):
        if name.startswith(("tests/", "tools/", "binaries/", "benchmarks/")):
            path = root / name
            text = path.read_text()
            path.write_text(_DEPS.sub(lambda deps: _known(deps.group(), folders), text))


def _known(deps: str, folders: set[str]) -> str:
    """Returns dependencies with the folder above in the place of one that is gone."""
    lines = []
    for line in deps.split("\n"):
        match = re.fullmatch(r'( *"//)((?:plan_runner|tff_agnostic)(?:/\w+)*)(",)', line)
        if match:
            folder = match[2]
            while folder not in folders:
                folder = folder_of(folder)
            line = f"{match[1]}{folder}{match[3]}"
        if line not in lines:
            lines.append(line)
    return "\n".join(lines)


def _modules(root: Path) -> Iterable[Path]:
    for top in ("tff_agnostic", "plan_runner"):
        yield from (root / top).rglob("*.py")


def _imported(root: Path, folder: str, folders: set[str]) -> set[str]:
    found = set()
    for path in (root / folder).glob("*.py"):
        if path.name == "__main__.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                continue
            for name in names:
                parts = name.split(".")
                if parts[0] not in ("tff_agnostic", "plan_runner", "benchmarks"):
                    continue
                while not (root / "/".join(parts)).is_dir():
                    parts.pop()
                found.add("/".join(parts))
    return found - {folder}
