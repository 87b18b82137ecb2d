"""Code after the moves: modules joined of several, and modules whose imports alone change."""

import ast
import dataclasses
import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import Optional, Union

from tools.moves.layout import Layout, Place, dotted
from tools.moves.names import Chunk, Module, Target, Tree, Use, replaced_in_string
from tools.moves.texts import Texts

_CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]*$|__version__$")

Edit = tuple[int, int, str]


class MoveError(Exception):
    """The map does not fit the code."""


@dataclasses.dataclass(frozen=True)
class Symbol:
    """What a use is of after the moves.

    Attributes:
        home: The new file of the module; the import statement of what is not of this checkout.
        name: The name in it; "" if it is the module.
        through: Whether the use is of an attribute of the module.
        bound: What the use calls it today.
        plain: Whether it is called so for no reason but its own name.
        own: Whether it is of this checkout.
    """

    home: str
    name: str
    through: bool
    bound: str
    plain: bool
    own: bool


class Mover:
    """Makes the code of after the moves."""

    def __init__(self, tree: Tree, layout: Layout) -> None:
        self._tree, self._layout = tree, layout
        self.texts = Texts(tree, layout)
        self.joined: list[str] = []
        self.problems: list[str] = []

    def chunks_of(self, place: Place) -> list[Chunk]:
        """Returns the statements that a new module is made of, in an order that can be imported."""
        moved = [
            self._tree.modules[module].definitions[name]
            for (module, name), new in self._layout.definitions.items()
            if new == place.path and module in self._tree.modules and self._is_there(module, name)
        ]
        # Together they may be in other modules' order.
        moved = list(dict.fromkeys(moved))
        found = moved + [
            chunk
            for source in place.sources
            for chunk in self._tree.modules[source].chunks
            if all(self._layout.home(source, n) == place.path for n in chunk.names)
        ]
        for chunk in found:
            if len({self._layout.home(chunk.module, n) for n in chunk.names}) > 1:
                self.problems.append(f"{chunk.module}:{chunk.start}: names that part")
        return self._in_order(place.path, list(dict.fromkeys(found)))

    def _is_there(self, module: str, name: str) -> bool:
        if name in self._tree.modules[module].definitions:
            return True
        self.problems.append(f"the map moves {name} of {module}, which does not define it")
        return False

    def is_as_before(self, place: Place) -> bool:
        """Returns whether a module is of one source whose definitions all stay and keep names."""
        if len(place.sources) != 1 or place.tells:
            return False
        (source,) = place.sources
        if source not in self._tree.modules:
            return True
        changed = {*self._layout.definitions, *self._layout.renames}
        return not any(module == source for module, _ in changed) and not any(
            new == place.path for new in self._layout.definitions.values()
        )

    def symbol(self, module: Module, use: Use) -> Optional[Symbol]:
        """Returns what a use is of; None for what Python has of its own."""
        target = self._tree.bindings(module.path).get(use.name)
        if target is None:
            return None
        renamed = self._layout.renames.get((module.path, use.name))
        if not target.own:
            bound = renamed or use.name
            original = target.module.split(" import ")[-1].removeprefix("import ").split(".")[0]
            return Symbol(target.module, "", False, bound, bound == original, own=False)
        if target.name:
            home, new = self.texts.home(target.module, target.name)
            plain = use.name == target.name and (not renamed or target.module == module.path)
            return Symbol(home, new, False, renamed or use.name, plain, own=True)
        attribute = use.attribute or use.patched
        plain = use.name == dotted(target.module).rpartition(".")[2]
        if not attribute or (use.patched and attribute not in self._tree.bindings(target.module)):
            home = self._layout.place_of(target.module)
            return Symbol(home, "", False, use.name, plain, own=True)
        home, new = self.texts.home(target.module, attribute)
        kept = home == self._layout.place_of(target.module) and not plain
        return Symbol(home, new, True, use.name, not kept, own=True)

    # -- modules that are joined ------------------------------------------------------------------

    def joined_module(self, place: Place) -> str:
        """Returns the text of a module that is made of several."""
        chunks = self.chunks_of(place)
        modules = {chunk.module: self._tree.modules[chunk.module] for chunk in chunks}
        defined: dict[str, Chunk] = {}
        left_out = set()
        for chunk in chunks:
            for name in chunk.names:
                new = self._layout.new_name(chunk.module, name)
                if new not in defined:
                    defined[new] = chunk
                elif self._is_same(defined[new], chunk):
                    left_out.add(chunk)
                    self.joined.append(f"{place.path}: {new} of {chunk.module}")
                else:
                    self.problems.append(
                        f"{place.path}: {new} is in {defined[new].module} and in {chunk.module}"
                    )
        uses: list[tuple[Module, Chunk, Use, Symbol]] = []
        for chunk in chunks:
            if chunk in left_out:
                continue
            module = modules[chunk.module]
            for use in [*module.uses_in(chunk), *_exported(module, chunk)]:
                symbol = self.symbol(module, use)
                if symbol:
                    uses.append((module, chunk, use, symbol))
        names = _Names(place.path, set(defined))
        for module, _, use, symbol in uses:
            names.add(symbol, use, module)
        self.problems += names.settle()
        pieces = []
        kept = [chunk for chunk in chunks if chunk not in left_out]
        after: list[Optional[Chunk]] = [*kept[1:], None]
        for chunk, following in zip(kept, after):
            piece = self._piece(modules[chunk.module], chunk, uses, names, place.path)
            together = following and _is_constant(chunk) and _is_constant(following)
            pieces.append(piece.rstrip("\n") if together else piece)
        docstring = self._docstring(place)
        comments: dict[str, list[str]] = {}
        for source in place.sources:
            module = self._tree.modules[source]
            for node in module.imports:
                if node.lineno in module.import_comments:
                    (first, *_) = self._tree.imported(module, node).values()
                    home = first.module if not first.own else self._layout.place_of(first.module)
                    comments[home] = module.import_comments[node.lineno]
            if module.last_comments:
                self.problems.append(f"{place.path}: lost comments at the end of {source}")
        imports = []
        for statement, home in sorted(names.statements()):
            imports += [*comments.pop(home, []), statement]
        lost = [f"{place.path}: lost comment of an import: {c}" for c in comments.values()]
        self.problems += lost
        return "\n".join([docstring, *imports, "", *pieces]) + "\n"

    def _is_same(self, one: Chunk, other: Chunk) -> bool:
        """Returns whether two statements are equal, and mean the same."""
        if ast.dump(one.node) != ast.dump(other.node):
            return False
        meanings = []
        for chunk in (one, other):
            module = self._tree.modules[chunk.module]
            symbols = [self.symbol(module, use) for use in module.uses_in(chunk)]
            meanings.append([(s.home, s.name) for s in symbols if s])
        return meanings[0] == meanings[1]

    def _piece(
        self,
        module: Module,
        chunk: Chunk,
        uses: Iterable[tuple[Module, Chunk, Use, Symbol]],
        names: "_Names",
        place: str,
    ) -> str:
        edits: list[Edit] = []
        start, end = module.line_start(chunk.start), module.line_start(chunk.end + 1) - 1
        for _, used_in, use, symbol in uses:
            if used_in is chunk:
                whole = symbol.through and bool(use.attribute)
                edits += _edits_of(module, use, whole, names.text(symbol, whole), edits)
        edits += self._name_edits(module, chunk)
        for node in ast.walk(chunk.node):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                edits += self._inner_import(module, node, place)
        edits += self._text_edits(module, edits, start, end)
        return _applied(module.bytes, start, end, edits) + "\n"

    def _name_edits(self, module: Module, chunk: Chunk) -> list[Edit]:
        node = chunk.node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            return []
        new = self._layout.new_name(chunk.module, node.name)
        if new == node.name:
            return []
        start, end = module.span(node)
        match = re.compile(rb"\b(?:def|class)\s+(\w+)").search(module.bytes, start, end)
        assert match
        return [(match.start(1), match.end(1), new)]

    def _inner_import(
        self, module: Module, node: Union[ast.Import, ast.ImportFrom], place: Optional[str]
    ) -> list[Edit]:
        """Returns the edit of an import within a function."""
        statements = self._import_statements(module, node, place, {})
        start, end = module.span(node)
        if statements is None:
            return []
        indent = " " * node.col_offset
        if not statements:
            return [(module.line_start(node.lineno), module.line_start(node.lineno + 1), "")]
        return [(start, end, f"\n{indent}".join(statements))]

    def _import_statements(
        self,
        module: Module,
        node: Union[ast.Import, ast.ImportFrom],
        place: Optional[str],
        homes: dict[str, dict[str, str]],
    ) -> Optional[list[str]]:
        """Returns an import as it is after the moves; None if nothing of it is of this checkout.

        Args:
            module: The module.
            node: The import.
            place: The new module whose own names need no import; None for all others.
            homes: For a module that is imported: what it is called, by its new files.
        """
        targets = self._tree.imported(module, node)
        if not any(target.own for target in targets.values()):
            return None
        found: dict[str, list[str]] = {}
        for bound, target in targets.items():
            if not target.own:
                start, _, name = target.module.rpartition(" ")
                text = name if name == bound or start == "import" else f"{name} as {bound}"
                found.setdefault(start, []).append(text)
            elif target.name:
                home, new = self.texts.home(target.module, target.name)
                if home == place:
                    if new != bound:
                        self.problems.append(f"{module.path}: {bound} within a function is renamed")
                    continue
                text = new if new == bound else f"{new} as {bound}"
                found.setdefault(f"from {dotted(home)} import", []).append(text)
            else:
                into = homes.get(bound) or {self._layout.place_of(target.module): bound}
                for home, name in into.items():
                    start, _, text = _import_of_module(home, name).partition("import ")
                    found.setdefault(f"{start}import", []).append(text)
        return [f"{start} {', '.join(names)}" for start, names in found.items()]

    def _docstring(self, place: Place) -> str:
        sources = place.sources
        if place.path.endswith("__init__.py"):
            # What else a package file said was of a folder that is gone.
            sources = sources[:1] if not place.tells else ()
        texts = [self._tree.modules[source].docstring for source in sources]
        own = [self.texts.rewritten(_dedented(text), place.path) for text in texts if text]
        first = place.tells or (own[0].split("\n")[0] if own else "")
        bodies = []
        for text in own:
            summary, _, body = text.partition("\n")
            if body.strip():
                # A summary of more lines than one, or one that the body needs.
                bodies.append(body.strip() if summary == first else text.strip())
        text = "\n\n".join([first, *bodies])
        prefix = "r" if "\\" in text else ""
        return f'{prefix}"""{text}' + ("\n" if bodies else "") + '"""\n'

    def _in_order(self, path: str, chunks: list[Chunk]) -> list[Chunk]:
        """Returns statements with constants first, and whatever is needed at import before it."""
        by_name = {
            self._layout.new_name(chunk.module, name): chunk
            for chunk in reversed(chunks)
            for name in chunk.names
        }
        needed: dict[Chunk, list[tuple[Chunk, bool]]] = {}
        inside: dict[Chunk, list[Chunk]] = {}
        for chunk in chunks:
            module = self._tree.modules[chunk.module]
            needed[chunk], inside[chunk] = [], []
            for use in module.uses_in(chunk):
                symbol = self.symbol(module, use)
                if symbol and symbol.own and symbol.home == path and symbol.name in by_name:
                    other = by_name[symbol.name]
                    if not use.quoted:
                        inside[chunk].append(other)
                    if use.eager and other is not chunk:
                        needed[chunk].append((other, use.called))
        ordered: dict[Chunk, None] = {}
        active: set[Chunk] = set()

        def emit(chunk: Chunk, whole: bool) -> None:
            if chunk in active:
                return
            active.add(chunk)
            for other, called in needed[chunk]:
                emit(other, called)
            if whole:
                for other in inside[chunk]:
                    emit(other, whole)
            active.discard(chunk)
            ordered.setdefault(chunk)

        def is_constant(chunk: Chunk) -> bool:
            return _is_constant(chunk) and all(is_constant(other) for other, _ in needed[chunk])

        for chunk in chunks:
            if len({c.module for c in chunks}) > 1 and is_constant(chunk):
                emit(chunk, False)
        for chunk in chunks:
            emit(chunk, False)
        last = [c for c in ordered if "__all__" in c.names or not c.names]
        return [c for c in ordered if c not in last] + last

    # -- modules that stay as they are but for names ----------------------------------------------

    def rewritten(self, module: Module) -> str:
        """Returns a module's text with what moved under its new names."""
        edits: list[Edit] = []
        homes: dict[str, dict[str, str]] = {}
        bindings = self._tree.bindings(module.path)
        taken = (set(bindings) | module.all_local_names) - {
            name for name, target in bindings.items() if target.own and not target.name
        }
        for name, imported in bindings.items():
            if imported.own and not imported.name:
                homes[name] = self._called(module, name, imported, taken)
        for use in module.uses:
            target = bindings.get(use.name)
            if target is None or not target.own or target.name:
                continue
            symbol = self.symbol(module, use)
            assert symbol
            called = homes[use.name][symbol.home]
            whole = symbol.through and bool(use.attribute)
            text = f"{called}.{symbol.name}" if whole else called
            edits += _edits_of(module, use, whole, text, edits)
            if use.patched and symbol.name and symbol.name != use.patched:
                edits.append((*use.patched_span, f'"{symbol.name}"'))
        for node in ast.walk(module.tree):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                statements = self._import_statements(module, node, None, homes)
                if statements is not None and statements != [ast.unparse(node)]:
                    start, end = module.span(node)
                    # Whatever keeps the linter quiet is of each of them.
                    rest = module.bytes[
                        end : module.line_start((node.end_lineno or 0) + 1)
                    ].decode()
                    comment = rest.rstrip() if "noqa" in rest else ""
                    new = f"{comment}\n{' ' * node.col_offset}".join(statements)
                    edits.append((start, end, new))
        edits += self._text_edits(module, edits, 0, len(module.bytes))
        return _applied(module.bytes, 0, len(module.bytes), edits)

    def rewritten_block(self, module: Module) -> str:
        """Returns a block of Python on a page with what moved under its new names."""
        path, self._tree.modules[module.path] = module.path, module
        self._tree.forget(path)
        text = self.rewritten(module)
        del self._tree.modules[path]
        self._tree.forget(path)
        return text

    def _text_edits(
        self, module: Module, edits: Sequence[Edit], start: int, end: int
    ) -> list[Edit]:
        """Returns the edits of strings and comments in a part that no other edit touches."""
        return [
            edit
            for edit in self.texts.edits(module)
            if start <= edit[0] < end and not any(e[0] < edit[1] and edit[0] < e[1] for e in edits)
        ]

    def _called(self, module: Module, name: str, target: Target, taken: set[str]) -> dict[str, str]:
        """Returns what the new modules that an imported module's names are in are called."""
        found: dict[str, str] = {}
        symbols = [self.symbol(module, use) for use in module.uses if use.name == name]
        homes = {s.home: s for s in symbols if s}
        place = self._layout.place_of(target.module)
        for home in homes or [place]:
            plain = name == dotted(target.module).rpartition(".")[2]
            last = dotted(home).rpartition(".")[2]
            called = name if home == place and not plain else last
            if called in taken:
                called = _longer(home)
            found[home] = called
        return found


def _is_constant(chunk: Chunk) -> bool:
    is_value = isinstance(chunk.node, (ast.Assign, ast.AnnAssign))
    return is_value and all(map(_CONSTANT.match, chunk.names))


class _Names:
    """What a new module calls what it imports."""

    def __init__(self, path: str, defined: set[str]) -> None:
        self._path, self._defined = path, defined
        self._hidden: dict[tuple[str, str], set[str]] = {}
        self._wanted: dict[tuple[str, str], list[str]] = {}
        self._used_in: dict[tuple[str, str], str] = {}
        self._own_hidden: dict[str, set[str]] = {}
        self._called: dict[tuple[str, str], str] = {}

    @staticmethod
    def _key(symbol: Symbol) -> tuple[str, str]:
        return symbol.home, "" if symbol.through else symbol.name

    def add(self, symbol: Symbol, use: Use, module: Module) -> None:
        """Adds a use."""
        if symbol.own and symbol.home == self._path:
            self._own_hidden.setdefault(symbol.name, set()).update(use.hidden)
            return
        key = self._key(symbol)
        self._hidden.setdefault(key, set()).update(use.hidden)
        self._used_in.setdefault(key, module.path)
        if not symbol.own:
            wanted = symbol.bound
        elif not key[1]:
            wanted = dotted(symbol.home).rpartition(".")[2] if symbol.plain else symbol.bound
        else:
            wanted = symbol.name if symbol.plain else symbol.bound
        names = self._wanted.setdefault(key, [])
        if wanted not in names:
            names.append(wanted)

    def settle(self) -> list[str]:
        """Chooses names, and returns what cannot be chosen."""
        problems = []
        taken: dict[str, tuple[str, str]] = {}
        for name, hidden in self._own_hidden.items():
            if name in hidden:
                problems.append(f"{self._path}: {name} is a function's own name where it is used")
        for key, wanted in self._wanted.items():
            choices = [
                *wanted,
                *([_longer(key[0])] if key[0].endswith(".py") and not key[1] else []),
            ]
            for name in choices:
                free = name not in self._defined and taken.get(name, key) == key
                if free and name not in self._hidden[key]:
                    taken[name] = key
                    self._called[key] = name
                    break
            else:
                self._called[key] = wanted[0]
                other = taken.get(wanted[0]) or "a name of the module or a function"
                problems.append(
                    f"{self._path}: {wanted[0]}, imported by {self._used_in[key]} from {key}, "
                    f"meets {other}"
                )
        return problems

    def text(self, symbol: Symbol, whole: bool) -> str:
        """Returns what stands for a use, with its attribute if that is meant."""
        if symbol.own and symbol.home == self._path:
            return symbol.name
        called = self._called[self._key(symbol)]
        return f"{called}.{symbol.name}" if whole else called

    def statements(self) -> list[tuple[str, str]]:
        """Returns the imports, a line each, and what each is of."""
        found = []
        for (home, name), called in self._called.items():
            if not home.endswith(".py"):
                original = home.split(" ")[-1]
                # `import a.b` binds a.
                same = called == (
                    original.split(".")[0] if home.startswith("import ") else original
                )
                found.append((home if same else f"{home} as {called}", home))
            elif name:
                text = name if name == called else f"{name} as {called}"
                found.append((f"from {dotted(home)} import {text}", home))
            else:
                found.append((_import_of_module(home, called), home))
        return found


def _import_of_module(home: str, called: str) -> str:
    parent, _, last = dotted(home).rpartition(".")
    if not parent:
        return f"import {last}" if last == called else f"import {last} as {called}"
    return f"from {parent} import {last if last == called else f'{last} as {called}'}"


def _longer(home: str) -> str:
    return "_".join(dotted(home).split(".")[-2:])


def _exported(module: Module, chunk: Chunk) -> list[Use]:
    """Returns what __all__ names as uses."""
    if chunk.names != ("__all__",):
        return []
    node = chunk.node
    assert isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value
    names = [n.value for n in ast.walk(node.value) if isinstance(n, ast.Constant)]
    at = module.span(node)[0]
    none = frozenset[str]()
    return [Use(n, at, at, "", 0, "", (0, 0), none, False, False, (at, at)) for n in names]


def _edits_of(module: Module, use: Use, whole: bool, text: str, edits: list[Edit]) -> list[Edit]:
    """Returns the edit that puts a text in a use's place.

    Args:
        module: The module of the use.
        use: The use.
        whole: Whether the text stands for the attribute as well.
        text: The text.
        edits: Earlier edits, of which one of the same string is taken out.
    """
    old = f"{use.name}.{use.attribute}" if whole else use.name
    if text == old:
        return []
    if not use.in_string:
        return [(use.start, use.attribute_end if whole else use.end, text)]
    start, end = use.in_string
    if start == end:
        return []
    before = next((e for e in edits if e[:2] == (start, end)), None)
    if before:
        edits.remove(before)
    current = before[2] if before else module.bytes[start:end].decode()
    return [(start, end, replaced_in_string(current, old, text))]


def _applied(content: bytes, start: int, end: int, edits: Iterable[Edit]) -> str:
    text = content[start:end]
    for first, last, new in sorted(set(edits), reverse=True):
        text = text[: first - start] + new.encode() + text[last - start :]
    return text.decode()


def _dedented(text: str) -> str:
    first, newline, rest = text.partition("\n")
    return first + newline + textwrap.dedent(rest)
