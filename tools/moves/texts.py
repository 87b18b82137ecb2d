"""Names of modules and files in texts: strings, comments, pages, notebooks, settings of tools."""

import functools
import io
import re
import tokenize
from collections.abc import Callable, Mapping

from tools.moves.layout import PACKAGES, TOPS, Layout, dotted, folder_of
from tools.moves.names import Module, Target, Tree

_TOP = "|".join(TOPS)
_NAMES = r"\([^()]*\)|\w+(?: as \w+)?(?:, \w+(?: as \w+)?)*"
_IMPORT = rf"(?P<indent>[ \t]*)from (?P<module>(?:{_TOP})(?:\.\w+)*) import (?P<names>{_NAMES})"
# Imports that follow each other, a line or more each.
_BLOCK = re.compile(rf"(?:^[ \t]*from (?:{_TOP})[\w.]* import (?:{_NAMES})\n)+", re.MULTILINE)
_ONE = re.compile(rf"(?P<indent>[ \t]*)from (?P<module>[\w.]+) import (?P<names>{_NAMES})\n")
_WIDTH = 100
_DOTTED = rf"(?<![\w./-])(?P<dotted>(?:{_TOP})(?:\.\w+)+)(?!\w|/|\()"
_CALLED = rf"(?<![\w./-])(?P<called>(?:{_TOP})(?:\.\w+)+)(?=\()"
_FILE = r"(?<![\w.])(?P<file>(?:[\w-]+/)*\w+\.(?:py|cc|css|html\.j2))(?![\w.]*\w)"
_FOLDER = r"(?<![\w./-])(?P<folder>(?:\w+/)+)(?![\w.*{\[<])"
_EVERY = re.compile("|".join([_IMPORT, _DOTTED, _CALLED, _FILE, _FOLDER]))
# A module without its folder, and what it has: `module.name`.
_SHORT = re.compile(r"`((?:\w+\.)*)(\w+)\.(\w+)(?=[`.(])")
_OBJECT = re.compile(r"`(\w+(?:\.\w+)+)(?=[`(])")
# What paths in comments and pages are relative to.
_BASES = ("", "tff_agnostic/", "plan_runner/", "tff_agnostic/computations/", "tests/")


class Texts:
    """Rewrites texts."""

    def __init__(self, tree: Tree, layout: Layout) -> None:
        self._tree, self._layout = tree, layout
        self._edits: dict[Module, list[tuple[int, int, str]]] = {}

    def rewritten(self, text: str, path: str) -> str:
        """Returns a text of a file with all names as they are after the moves."""
        new = _EVERY.sub(functools.partial(self._replaced, path=path), text)
        new = _SHORT.sub(functools.partial(self._short, path=path), new)
        return new if new == text else _BLOCK.sub(_sorted_block, new)

    def page(self, text: str, path: str, code: Callable[[str], str]) -> str:
        """Returns a Markdown page, whose blocks of Python `code` rewrites."""
        parts = re.split(r"(^ *```python\n.*?^ *```$)", text, flags=re.MULTILINE | re.DOTALL)
        for i, part in enumerate(parts):
            if i % 2:
                first, _, rest = part.partition("\n")
                body, _, last = rest.rpartition("\n")
                new = code(body)
                new = new if new == body else _BLOCK.sub(_sorted_block, new + "\n")[:-1]
                parts[i] = "\n".join([first, new, last])
            else:
                parts[i] = _OBJECT.sub(self._object, self.rewritten(part, path))
        return "".join(parts)

    def edits(self, module: Module) -> list[tuple[int, int, str]]:
        """Returns the edits of a module's strings and comments."""
        if module not in self._edits:
            self._edits[module] = self._found_edits(module)
        return self._edits[module]

    def _found_edits(self, module: Module) -> list[tuple[int, int, str]]:
        found = []
        texts = module.source.split("\n")
        for token in tokenize.generate_tokens(io.StringIO(module.source).readline):
            if token.type in (tokenize.STRING, tokenize.COMMENT):
                new = self.rewritten(token.string, module.path)
                if new != token.string:
                    (row, column), (end_row, end_column) = token.start, token.end
                    start = module.position(row, len(texts[row - 1][:column].encode()))
                    end = module.position(end_row, len(texts[end_row - 1][:end_column].encode()))
                    found.append((start, end, new))
        return found

    def name(self, full: str) -> str:
        """Returns a dotted name as it is after the moves."""
        parts = full.split(".")
        for length in range(len(parts), 0, -1):
            path = self._tree.file_of(".".join(parts[:length]))
            if path is None:
                continue
            rest = parts[length:]
            if not rest:
                return dotted(self._layout.place_of(path))
            home, new = self.home(path, rest[0])
            return ".".join([dotted(home), new, *rest[1:]])
        return full

    def home(self, path: str, name: str) -> tuple[str, str]:
        """Returns the new file and name of what a module's name stands for."""
        bound = self._tree.bindings(path)
        target = bound.get(name)
        if target is None or target == Target(path, name):
            return self._layout.home(path, name), self._layout.new_name(path, name)
        place = self._layout.place_of(path)
        is_a_name = target.own and target.name
        if is_a_name and self._layout.home(target.module, target.name) == place:
            return place, self._layout.new_name(target.module, target.name)
        return place, name

    def folders(self) -> Mapping[str, str]:
        """Returns new folders of those that move as a whole."""
        return self._folders

    @functools.cached_property
    def _folders(self) -> Mapping[str, str]:
        to: dict[str, set[str]] = {}
        for path in self._tree.modules:
            moves = path.split("/")[0] in PACKAGES or self._layout.moved_test(path)
            if moves and not path.endswith("__init__.py"):
                to.setdefault(folder_of(path), set()).add(folder_of(self._layout.place_of(path)))
        return {old: new for old, (new, *others) in _items(to) if not others and new != old}

    def _replaced(self, match: re.Match[str], path: str) -> str:
        if match["module"]:
            return self._import(match)
        if match["dotted"] or match["called"]:
            return self.name(match["dotted"] or match["called"])
        if match["file"]:
            return self._file(match["file"], path)
        return self._folder(match["folder"])

    def _import(self, match: re.Match[str]) -> str:
        names = [n.strip() for n in match["names"].strip("()").split(",") if n.strip()]
        lines: dict[str, list[str]] = {}
        for name in names:
            original, _, alias = name.partition(" as ")
            target = self._tree.resolve(match["module"], original)
            if target is None:
                lines.setdefault(match["module"], []).append(name)
            elif not target.name:
                place = dotted(self._layout.place_of(target.module))
                parent, _, last = place.rpartition(".")
                bound = alias or original
                lines.setdefault(parent, []).append(last if last == bound else f"{last} as {bound}")
            else:
                home, new = self.home(target.module, target.name)
                bound = alias or original
                text = new if new == bound else f"{new} as {bound}"
                lines.setdefault(dotted(home), []).append(text)
        if list(lines) == [match["module"]] and lines[match["module"]] == names:
            return match.group()
        separator = "\n" if match["indent"] or "\n" in match.string else "; "
        return separator.join(
            f"{match['indent']}from {module} import {', '.join(sorted(imported))}"
            for module, imported in sorted(lines.items())
        )

    def _file(self, name: str, path: str) -> str:
        for base in (*_BASES, folder_of(path) + "/"):
            old = base + name
            if old in self._layout.files:
                if "/" not in name:
                    return name
                return _relative(self._layout.files[old], base)
            # Pages name the package's own modules without their folder.
            bare = path.endswith(".md") and "/" not in name and base == "tff_agnostic/"
            if bare and self._layout.place_of(old) != old:
                return self._layout.place_of(old)
            if old in self._tree.modules and ("/" in name or base == folder_of(path) + "/"):
                new = self._layout.place_of(old)
                if new == old:
                    return name
                if "/" not in name:
                    same = folder_of(new) == folder_of(self._layout.place_of(path))
                    return new.rsplit("/", 1)[1] if same else new
                return _relative(new, base)
        return name

    def _folder(self, name: str) -> str:
        for base in _BASES:
            new = self._folders.get(base + name.rstrip("/"))
            # A folder whose modules lie at the top now is none.
            if new and new not in TOPS:
                return _relative(new, base) + "/"
        return name

    def _short(self, match: re.Match[str], path: str) -> str:
        prefix, stem, name = match.groups()
        end = f"/{prefix.replace('.', '/')}{stem}.py"
        # The nearest folder's is meant.
        found = sorted(
            (
                # What it imports is another's: `manifest.json` is a file.
                p
                for p, module in self._tree.modules.items()
                if p.endswith(end) and name in module.definitions
            ),
            key=lambda p: (folder_of(p) != folder_of(path), p),
        )
        found = [p for p in found if p.split("/")[0] in PACKAGES]
        if not found or path.endswith(".md") or (len(found) > 1 and not _beside(found[0], path)):
            return match.group()
        home, new = self.home(found[0], name)
        if home == self._layout.place_of(path):
            return f"`{new}"
        place = dotted(home).split(".")
        return "`" + ".".join([*place[-1 - prefix.count(".") :], new])

    def _object(self, match: re.Match[str]) -> str:
        name = match[1]
        bases = ("tff_agnostic.computations.", "tff_agnostic.")
        for base in bases:
            if not self._is_there(base + name):
                continue
            new = self.name(base + name)
            if new == base + name:
                return match.group()
            for start in (base, *bases):
                if new.startswith(start):
                    return "`" + new.removeprefix(start)
        return match.group()

    def _is_there(self, full: str) -> bool:
        """Returns whether a dotted name leads to something that a module has at its top."""
        parts = full.split(".")
        for length in range(len(parts) - 1, 0, -1):
            file = self._tree.file_of(".".join(parts[:length]))
            if file is not None:
                return parts[length] in self._tree.bindings(file)
        return False


def _beside(one: str, other: str) -> bool:
    return folder_of(one) == folder_of(other)


def _relative(new: str, base: str) -> str:
    """Returns a path as it was given: from a folder, if something of the folder is left."""
    start = base.split("/")[0] + "/"
    short = new.removeprefix(start) if base else new
    return short if "/" in short else new


def _sorted_block(match: re.Match[str]) -> str:
    """Returns imports that follow each other as the linter wants them."""
    found: dict[str, set[str]] = {}
    indent = ""
    for one in _ONE.finditer(match.group()):
        indent = one["indent"]
        names = one["names"].strip("()").split(",")
        found.setdefault(one["module"], set()).update(n.strip() for n in names if n.strip())
    lines = []
    for module, imported in sorted(found.items()):
        # Constants come before classes, and those before functions.
        names = sorted(imported, key=lambda n: (not n.isupper(), not n[0].isupper(), n))
        line = f"{indent}from {module} import {', '.join(names)}"
        if len(line) > _WIDTH:
            inner = "".join(f"{indent}    {name},\n" for name in names)
            line = f"{indent}from {module} import (\n{inner}{indent})"
        lines.append(line + "\n")
    return "".join(lines)


def _items(sets: Mapping[str, set[str]]) -> list[tuple[str, list[str]]]:
    return [(key, sorted(values)) for key, values in sets.items()]
