"""What names in a module mean: its definitions, its imports, and every use of them."""

import ast
import bisect
import dataclasses
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Optional, Union

from tools.moves.layout import TOPS, dotted

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclasses.dataclass(frozen=True)
class Target:
    """What a name stands for.

    Attributes:
        module: The file of the module, if it is of this checkout; otherwise the statement that
            imports it, without "as".
        name: The name in it; "" if it is the module itself.
        own: Whether it is of this checkout.
    """

    module: str
    name: str = ""
    own: bool = True


@dataclasses.dataclass(frozen=True)
class Chunk:
    """A statement at the top of a module, with the comments before it."""

    module: str
    names: tuple[str, ...]
    start: int
    end: int
    node: ast.stmt


@dataclasses.dataclass(frozen=True)
class Use:
    """A use of a name of the module.

    Attributes:
        name: The name.
        start: Where it begins in the module's bytes, and where it ends.
        end: See `start`.
        attribute: What of it is used, as in name.attribute, and where that ends; "" if nothing.
        attribute_end: See `attribute`.
        patched: An attribute that is named by a text beside it, as in setattr(name, "attribute").
        patched_span: Where that text is.
        hidden: Names that functions around the use have of their own.
        eager: Whether it is used while the module is imported.
        called: Whether it is called then.
        in_string: The f-string or the quoted annotation that it is in; None if it is in none.
        quoted: Whether that is an annotation, which needs nothing before it is asked for.
    """

    name: str
    start: int
    end: int
    attribute: str
    attribute_end: int
    patched: str
    patched_span: tuple[int, int]
    hidden: frozenset[str]
    eager: bool
    called: bool
    in_string: Optional[tuple[int, int]]
    quoted: bool = False


class Module:
    """A module of a checkout, parsed."""

    def __init__(self, path: str, source: str) -> None:
        self.path, self.source = path, source
        self.bytes = source.encode()
        self.tree = ast.parse(source)
        self.is_package = path.endswith("__init__.py")
        self._starts = [0]
        for line in self.bytes.split(b"\n"):
            self._starts.append(self._starts[-1] + len(line) + 1)
        self.imports: list[Union[ast.Import, ast.ImportFrom]] = []
        self.chunks: list[Chunk] = []
        # Comments above imports, by the position of the import; and those at a module's end.
        self.import_comments: dict[int, list[str]] = {}
        self.last_comments: list[str] = []
        self._split()
        self.definitions = {name: chunk for chunk in self.chunks for name in chunk.names}

    @property
    def docstring(self) -> str:
        """The docstring as written, without its quotes; "" if there is none."""
        return ast.get_docstring(self.tree, clean=False) or ""

    def position(self, line: int, column: int) -> int:
        """Returns a place in the module's bytes."""
        return self._starts[line - 1] + column

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Returns where a node is in the module's bytes."""
        places = [getattr(node, name) for name in ("lineno", "col_offset")]
        ends = [getattr(node, name) for name in ("end_lineno", "end_col_offset")]
        return self.position(*places), self.position(*ends)

    def line_start(self, line: int) -> int:
        """Returns where a line begins in the module's bytes."""
        return self._starts[line - 1]

    def _split(self) -> None:
        lines = self.source.split("\n")
        body = list(self.tree.body)
        last = 0
        if body and ast.get_docstring(self.tree, clean=False) is not None:
            last = body.pop(0).end_lineno or 0
        for node in body:
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
            start = last + 1
            while start < first and not lines[start - 1].strip():
                start += 1
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                self.imports.append(node)
                comments = [c for c in lines[start - 1 : first - 1] if c.strip()]
                if comments:
                    self.import_comments[node.lineno] = comments
            else:
                names = tuple(_bound_at_top(node))
                self.chunks.append(Chunk(self.path, names, start, node.end_lineno or 0, node))
            last = node.end_lineno or 0
        if self.chunks and any(line.strip() for line in lines[last:]):
            # Kept where the module stays whole; a joined one would lose them.
            self.last_comments += [line for line in lines[last:] if line.strip()]

    @functools.cached_property
    def uses(self) -> list[Use]:
        """Every use of a name that no function has of its own, in order."""
        return sorted(_Uses(self).found, key=lambda use: use.start)

    @functools.cached_property
    def _use_starts(self) -> list[int]:
        return [use.start for use in self.uses]

    def uses_in(self, chunk: Chunk) -> list[Use]:
        """Returns the uses of a chunk."""
        start, end = self.line_start(chunk.start), self.line_start(chunk.end + 1)
        starts = self._use_starts
        return self.uses[bisect.bisect_left(starts, start) : bisect.bisect_left(starts, end)]

    @functools.cached_property
    def all_local_names(self) -> frozenset[str]:
        """Every name that any function has of its own."""
        found: set[str] = set()
        for node in ast.walk(self.tree):
            if isinstance(node, (*_FUNCTIONS, *_COMPREHENSIONS)):
                found |= _names_of_scope(node)
        return frozenset(found)


class Tree:
    """The modules of a checkout, by their files."""

    def __init__(self, root: Path, paths: Iterable[str]) -> None:
        self.root = root
        self.modules = {path: Module(path, (root / path).read_text()) for path in paths}
        self._by_name = {dotted(path): path for path in self.modules}
        for path in self.modules:
            parts = path.split("/")[:-1]
            while parts:
                # Folders without a package file are packages as well.
                self._by_name.setdefault(".".join(parts), "/".join([*parts, "__init__.py"]))
                parts.pop()

    def file_of(self, name: str) -> Optional[str]:
        """Returns the file of a module by its dotted name; None if there is none."""
        return self._by_name.get(name)

    def resolve(self, module: str, name: str) -> Optional[Target]:
        """Returns what `from module import name` gives; None if it is not of this checkout."""
        path = self.file_of(module)
        if path is None or module.split(".")[0] not in TOPS:
            return None
        bound = self.bindings(path)
        if name in bound:
            target = bound[name]
            # A package's own names are there to be imported from it; others' are found at home.
            if target.own and not path.endswith("__init__.py"):
                return target
            return Target(path, name)
        inside = self.file_of(f"{module}.{name}")
        return Target(inside) if inside else Target(path, name)

    def bindings(self, path: str) -> Mapping[str, Target]:
        """Returns what the names at the top of a module stand for."""
        if path not in self._bindings:
            self._bindings[path] = {}
            if path in self.modules:
                module = self.modules[path]
                found = {}
                for statement in module.imports:
                    found.update(self.imported(module, statement))
                found.update({name: Target(path, name) for name in module.definitions})
                self._bindings[path] = found
        return self._bindings[path]

    def forget(self, path: str) -> None:
        """Forgets what the names of a module that is not of the checkout stand for."""
        self._bindings.pop(path, None)

    @functools.cached_property
    def _bindings(self) -> dict[str, dict[str, Target]]:
        return {}

    def imported(
        self, module: Module, statement: Union[ast.Import, ast.ImportFrom]
    ) -> dict[str, Target]:
        """Returns what an import binds."""
        found = {}
        for alias in statement.names:
            if isinstance(statement, ast.Import):
                text = f"import {alias.name}"
                bound = alias.asname or alias.name.split(".")[0]
                own = self.file_of(alias.name) if alias.asname else None
                found[bound] = Target(own) if own else Target(text, own=False)
                continue
            base = statement.module or ""
            if statement.level:
                raise ValueError(f"{module.path}:{statement.lineno}: a relative import")
            target = self.resolve(base, alias.name)
            text = f"from {base} import {alias.name}"
            found[alias.asname or alias.name] = target or Target(text, own=False)
        return found


def _bound_at_top(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, (ast.Assign, ast.AnnAssign)):
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            yield from (n.id for n in ast.walk(target) if isinstance(n, ast.Name) and _stores(n))
    elif isinstance(node, (ast.If, ast.For, ast.Try, ast.With)):
        yield from dict.fromkeys(n for part in ast.iter_child_nodes(node) for n in _bound_by(part))


def _stores(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store)


def _bound_by(node: ast.AST) -> Iterator[str]:
    """Yields the names that a node binds in the scope that it is in."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del)):
        yield node.id
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name
        return
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        for alias in node.names:
            yield alias.asname or alias.name.split(".")[0]
    elif isinstance(node, ast.ExceptHandler) and node.name:
        yield node.name
    elif isinstance(node, (ast.Lambda, *_COMPREHENSIONS)):
        for inner in ast.walk(node):
            if isinstance(inner, ast.NamedExpr):
                yield inner.target.id
        return
    for child in ast.iter_child_nodes(node):
        yield from _bound_by(child)


def _names_of_scope(node: ast.AST) -> set[str]:
    found: set[str] = set()
    if isinstance(node, _FUNCTIONS):
        every = node.args
        arguments = [*every.posonlyargs, *every.args, *every.kwonlyargs, every.vararg, every.kwarg]
        found |= {argument.arg for argument in arguments if argument}
        if not isinstance(node, ast.Lambda):
            for statement in node.body:
                found |= set(_bound_by(statement))
            for inner in ast.walk(node):
                if isinstance(inner, (ast.Global, ast.Nonlocal)):
                    found -= set(inner.names)
    elif isinstance(node, _COMPREHENSIONS):
        for generator in node.generators:
            found |= set(_bound_by(generator.target))
    elif isinstance(node, ast.ClassDef):
        for statement in node.body:
            found |= set(_bound_by(statement))
    return found


class _Uses(ast.NodeVisitor):
    """Finds the uses of a module's names."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._scopes: list[tuple[bool, frozenset[str]]] = []
        self._parents: dict[ast.AST, ast.AST] = {}
        self._in_string: Optional[tuple[int, int]] = None
        self._quoted = 0
        self._lazy = 0
        self.found: list[Use] = []
        for node in ast.walk(module.tree):
            for child in ast.iter_child_nodes(node):
                self._parents[child] = node
        self.visit(module.tree)

    def _hidden(self) -> frozenset[str]:
        sets = [names for is_class, names in self._scopes if not is_class]
        if self._scopes and self._scopes[-1][0]:
            sets.append(self._scopes[-1][1])
        return frozenset().union(*sets)

    def _within(self, node: ast.AST, parts: Iterable[ast.AST], is_class: bool = False) -> None:
        self._scopes.append((is_class, frozenset(_names_of_scope(node))))
        for part in parts:
            self.visit(part)
        self._scopes.pop()

    def visit_FunctionDef(self, node: Union[ast.FunctionDef, ast.AsyncFunctionDef]) -> None:
        for part in [*node.decorator_list, *node.args.defaults, *node.args.kw_defaults]:
            if part:
                self.visit(part)
        every = node.args
        arguments = [*every.posonlyargs, *every.args, *every.kwonlyargs, every.vararg, every.kwarg]
        for annotation in [*(a.annotation for a in arguments if a), node.returns]:
            if annotation:
                self._annotation(annotation)
        self._lazy += 1
        self._within(node, node.body)
        self._lazy -= 1

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        for part in [*node.args.defaults, *node.args.kw_defaults]:
            if part:
                self.visit(part)
        self._lazy += 1
        self._within(node, [node.body])
        self._lazy -= 1

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for part in [*node.decorator_list, *node.bases, *node.keywords]:
            self.visit(part)
        self._within(node, node.body, is_class=True)

    def _comprehension(self, node: ast.AST) -> None:
        generators = node.generators  # type: ignore[attr-defined]
        self.visit(generators[0].iter)
        rest = [generators[0].target, *generators[0].ifs, *generators[1:]]
        parts = [getattr(node, field) for field in ("elt", "key", "value") if hasattr(node, field)]
        self._within(node, [*rest, *parts])

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.visit(node.target)
        self._annotation(node.annotation)
        if node.value:
            self.visit(node.value)

    def _annotation(self, node: ast.AST) -> None:
        self._quoted += 1
        self.visit(node)
        self._quoted -= 1

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self.visit(node.value)
        # Types in quotes, as in Sequence["Model"]; keys of dictionaries are none of ours' names.
        typed = isinstance(node.value, ast.Name) and node.value.id[:1].isupper()
        self._quoted += typed
        self.visit(node.slice)
        self._quoted -= typed

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        outer, self._in_string = self._in_string, self._in_string or self._module.span(node)
        quoted, self._quoted = self._quoted, 0
        self.generic_visit(node)
        self._in_string, self._quoted = outer, quoted

    def visit_Constant(self, node: ast.Constant) -> None:
        if not self._quoted or not isinstance(node.value, str):
            return
        try:
            inner = ast.parse(node.value, mode="eval")
        except SyntaxError:
            return
        hidden = self._hidden()
        for name in ast.walk(inner):
            if isinstance(name, ast.Name) and name.id not in hidden:
                span = self._module.span(node)
                self.found.append(
                    Use(name.id, *span, "", 0, "", (0, 0), hidden, False, False, span, quoted=True)
                )

    def visit_Name(self, node: ast.Name) -> None:
        hidden = self._hidden()
        if node.id in hidden:
            return
        # Within f-strings Python before 3.12 gives places that are none.
        start, end = self._in_string or self._module.span(node)
        parent = self._parents.get(node)
        attribute, attribute_end, patched, patched_span = "", 0, "", (0, 0)
        whole: ast.AST = node
        if isinstance(parent, ast.Attribute):
            attribute, whole = parent.attr, parent
            attribute_end = self._module.span(parent)[1]
        call = self._parents.get(whole)
        called = isinstance(call, ast.Call) and call.func is whole
        called = called or whole in getattr(call, "decorator_list", [])
        if isinstance(parent, ast.Call) and parent.args[:1] == [node] and len(parent.args) > 1:
            second = parent.args[1]
            if isinstance(second, ast.Constant) and isinstance(second.value, str):
                patched, patched_span = second.value, self._module.span(second)
        self.found.append(
            Use(
                name=node.id,
                start=start,
                end=end,
                attribute=attribute,
                attribute_end=attribute_end,
                patched=patched,
                patched_span=patched_span,
                hidden=hidden,
                eager=not self._lazy,
                called=called,
                in_string=self._in_string,
            )
        )


def replaced_in_string(text: str, old: str, new: str) -> str:
    """Returns the text of an f-string or a quoted annotation with a name replaced.

    Only where it is within braces, if the string is an f-string.
    """
    pattern = re.compile(rf"(?<![\w.]){re.escape(old)}(?!\w)")
    if not re.match(r"[rR]?[fF]|[fF][rR]?", text):
        return pattern.sub(new, text)
    return re.sub(r"\{[^{}]*\}", lambda part: pattern.sub(new, part.group()), text)
