"""Generates the reference of the Python API from the source code, without importing it.

For each public module, sphinx-autoapi reads a generated file with the signatures and docstrings of
all public names, including names that other modules define.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

PACKAGE = "tff_agnostic"
FOLDER = "reference/api"
# Public modules, mapped to the file name, heading and introduction of the module's page.
PUBLIC = {
    "tff_agnostic": (
        "library",
        "Train in memory",
        "The package has the names with which Python trains an algorithm on a problem and "
        "evaluates the model, without a folder and without flags.",
    ),
    "tff_agnostic.program": (
        "run_folders",
        "Train and compare in run folders",
        "`tff_agnostic.program` makes the folders of `./run train` and `./run compare`, with "
        "settings as options.",
    ),
    "tff_agnostic.computations": (
        "computations",
        "What an algorithm is written with",
        "An algorithm file of yours imports these names: "
        "`from tff_agnostic import computations as core`.",
    ),
    "tff_agnostic.algorithms": (
        "algorithms",
        "Algorithms",
        "The registry has every algorithm by name. An algorithm file of yours may build on one.",
    ),
    "tff_agnostic.models": (
        "models",
        "Models",
        "Models are pure functions of their weights. `build_model` of a model file of yours may "
        "return a Keras model or one of these.",
    ),
}


@dataclasses.dataclass(frozen=True)
class Definition:
    """The statement that defines a public name.

    Attributes:
        module: Module that contains the statement.
        node: A class, a function, or another statement that binds the name.
    """

    module: str
    node: ast.stmt

    @property
    def name(self) -> str:
        """Name of the class or function; "" for other statements."""
        return str(getattr(self.node, "name", ""))

    @property
    def directive(self) -> str:
        """Name of sphinx-autoapi's directive; "" for constants and types."""
        kinds = {ast.ClassDef: "autoapiclass", ast.FunctionDef: "autoapifunction"}
        return kinds.get(type(self.node), "")


class Sources:
    """The syntax trees of a checkout's modules, each parsed once.

    Args:
        root: Folder of the checkout.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._parsed: dict[str, list[ast.stmt]] = {}

    def path(self, module: str) -> Path:
        """Returns the path of a module's file."""
        at = self._root.joinpath(*module.split("."))
        return at / "__init__.py" if at.is_dir() else at.with_suffix(".py")

    def body(self, module: str) -> list[ast.stmt]:
        """Returns the statements of a module, including statements within if blocks."""
        if module not in self._parsed:
            statements = ast.parse(self.path(module).read_text(encoding="utf-8")).body
            guarded = [s for node in statements if isinstance(node, ast.If) for s in node.body]
            self._parsed[module] = [*statements, *guarded]
        return self._parsed[module]

    def public_names(self, module: str) -> list[str]:
        """Returns the names in a module's `__all__`."""
        for node in self.body(module):
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
                return list(ast.literal_eval(node.value))
        raise ValueError(f"{module}: expected __all__, found none")

    def definition(self, module: str, name: str) -> Definition:
        """Returns the definition of a module's name, which may be imported from another module.

        Raises:
            ValueError: The package does not define the name.
        """
        for node in self.body(module):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        return self.definition(node.module or "", alias.name)
            if name in _bound_names(node):
                return Definition(module, node)
        raise ValueError(f"{module}: expected a definition of {name}, found none")


def _bound_names(node: ast.stmt) -> list[str]:
    if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    return []


def results(sources: Sources, definition: Definition) -> Iterator[Definition]:
    """Yields the package's classes that a function or a class's public methods return."""
    node = definition.node
    methods = node.body if isinstance(node, ast.ClassDef) else [node]
    for method in methods:
        if not isinstance(method, ast.FunctionDef) or method.returns is None:
            continue
        if method is not node and method.name.startswith("_"):
            continue
        for part in ast.walk(method.returns):
            if isinstance(part, ast.Name):
                try:
                    returned = sources.definition(definition.module, part.id)
                except ValueError:
                    continue  # Python or another package defines it.
                if isinstance(returned.node, ast.ClassDef):
                    yield returned


def documented(sources: Sources, module: str) -> list[Definition]:
    """Returns the definitions to document for a module: public names, and returned classes."""
    by_name: dict[tuple[str, str], Definition] = {}
    waiting = [sources.definition(module, name) for name in sources.public_names(module)]
    while waiting:
        one = waiting.pop(0)
        if one.directive and (one.module, one.name) not in by_name:
            by_name[one.module, one.name] = one
            waiting += results(sources, one)
    return sorted(by_name.values(), key=lambda one: one.name)


def pages(root: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Returns the pages, and the files that sphinx-autoapi reads, both keyed by path.

    Args:
        root: Folder of the checkout.
    """
    sources = Sources(root)
    texts, files = {}, {f"{PACKAGE}/__init__.py": ""}
    page_by_name: dict[tuple[str, str], str] = {}
    for module, (page, title, intro) in PUBLIC.items():
        every = documented(sources, module)
        # Document a definition only once, even if several modules export it.
        entries = [one for one in every if (one.module, one.name) not in page_by_name]
        others = [
            f"[`{one.name}`]({page_by_name[one.module, one.name]}.md)"
            for one in every
            if one not in entries
        ]
        page_by_name |= {(one.module, one.name): page for one in entries}
        path = f"{module.replace('.', '/')}{'/__init__' if module == PACKAGE else ''}.py"
        files[path] = declarations(sources, entries)
        parts = [f"# {title}", intro]
        if others:
            parts.append(f"It also has {', '.join(others)}.")
        for heading, kind in (("Functions", ast.FunctionDef), ("Classes", ast.ClassDef)):
            shown = [one for one in entries if isinstance(one.node, kind)]
            if shown:
                parts += [f"## {heading}", *(_directive(module, one) for one in shown)]
        texts[f"{FOLDER}/{page}.md"] = "\n\n".join(parts) + "\n"
    lines = [
        f"| [`{module}`]({page}.md) | {title} |" for module, (page, title, _) in PUBLIC.items()
    ]
    texts[f"{FOLDER}/index.md"] = "\n".join(
        [
            "# Python API",
            "",
            "These modules are public: a change that breaks their users is in the changelog. All "
            "other modules may change with every release.",
            "",
            "| module | what it has |",
            "|---|---|",
            *lines,
            "",
        ]
    )
    return texts, files


def declarations(sources: Sources, definitions: Iterable[Definition]) -> str:
    """Returns Python code with the signatures and docstrings of functions and classes.

    Args:
        sources: Modules that contain the definitions.
    """
    lines = ["from __future__ import annotations"]
    for one in definitions:
        made = _declared(one.node)
        lines.append(ast.unparse(_WithValues(sources, one.module).visit(made)))
    return "\n\n\n".join(lines) + "\n"


def _declared(node: ast.stmt) -> ast.stmt:
    if isinstance(node, ast.FunctionDef):
        kept = [d for d in node.decorator_list if getattr(d, "id", "") in _DECORATORS]
        return _with(node, body=_docstring(node), decorator_list=kept)
    if isinstance(node, ast.ClassDef):
        methods = [n for n in node.body if isinstance(n, ast.FunctionDef) and n.name[0] != "_"]
        body = [*_docstring(node), *map(_declared, methods)]
        return _with(node, body=body, decorator_list=[])
    return node


class _WithValues(ast.NodeTransformer):
    """Replaces private constants, such as default arguments, by their values."""

    def __init__(self, sources: Sources, module: str) -> None:
        self._constants = {
            name: node.value
            for node in sources.body(module)
            if isinstance(node, ast.Assign) and _is_literal(node.value)
            for name in _bound_names(node)
        }

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Returns the value of a private constant, and other names unchanged."""
        return self._constants.get(node.id, node) if node.id.startswith("_") else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """Replaces `core.Model` by `Model`, for which the reference has a link."""
        if isinstance(node.value, ast.Name) and node.value.id == "core":
            return ast.Name(node.attr)
        self.generic_visit(node)
        return node


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except ValueError:
        return False
    return True


_DECORATORS = ("property", "classmethod", "staticmethod")


def _with(node: Any, **fields: Any) -> Any:
    made = type(node)(**{**dict(ast.iter_fields(node)), **fields})
    return ast.copy_location(made, node)


def _docstring(node: Any) -> list[ast.stmt]:
    text = ast.get_docstring(node)
    return [ast.Expr(ast.Constant(text if text is not None else ...))]


def _directive(module: str, one: Definition) -> str:
    members = "\n   :members:" if isinstance(one.node, ast.ClassDef) else ""
    return f"```{{eval-rst}}\n.. {one.directive}:: {module}.{one.name}{members}\n```"
