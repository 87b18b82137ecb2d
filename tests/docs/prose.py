"""Rules for the prose of the code: docstrings, comments, error messages and names.

`counts` returns the breaches of each rule by folder. `python -m tests.docs.prose` writes the counts
to `prose.toml`: a number there may only fall.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
COUNTS = Path(__file__).with_name("prose.toml")
_FOLDERS = ("tff_agnostic", "plan_runner", "fleet", "binaries", "benchmarks", "tools", "tests")
# The folders in the package have separate counts.
_PACKAGE = "tff_agnostic"
# Files that quote breaches.
_EXAMPLES = ("prose.py", "test_prose.py")
_SECTIONS = re.compile(r"^(Args|Attributes|Returns|Yields|Raises|Example|Examples):$")
_ENTRY = re.compile(r"^    (\*{0,2}\w+): (.*)")
_FIELD = re.compile(r"\{[^{}]*\}")


class Rule(NamedTuple):
    """A rule of prose.

    Attributes:
        kinds: Kinds of prose that it applies to; see `Text`.
        pattern: Regular expression of a breach.
    """

    kinds: frozenset[str]
    pattern: re.Pattern[str]


class Text(NamedTuple):
    """A piece of prose.

    Attributes:
        kind: "doc" (a docstring's paragraphs), "entry" (of Args or Attributes), "comment", "error"
            (a message that is raised), "test" (the name of a test, in words) or "name".
        text: The text.
        line: Line in the file.
    """

    kind: str
    text: str
    line: int


def _rule(kinds: str, pattern: str) -> Rule:
    return Rule(frozenset(kinds.split()), re.compile(pattern))


_PROSE = "doc entry comment error test"
RULES = {
    "told": _rule(_PROSE, r"\b(is|are|was|were|be|been) (\w+ )?told\b(?! apart)"),
    "tell": _rule(_PROSE, r"\b[Tt]ells?\b"),
    "told apart": _rule(_PROSE, r"\btold apart\b"),
    "whoever": _rule(_PROSE, r"\b([Ww]hoever|[Ss]omebody|[Nn]obody|[Ee]verybody|[Aa]nybody)\b"),
    "of which": _rule(_PROSE, r"\b[Oo]f (which|whom)\b"),
    "fragment of": _rule("entry comment doc", r"^Of\b"),
    "fragment by": _rule(
        "entry comment doc", r"^By (the|its|a|an|what|which|so|that|name|domain|measure)\b"
    ),
    "fragment pronoun": _rule(
        "entry comment doc",
        r"^(Those|That of|Others|The same|One (of|that|whose|for|which)|One a)\b"
        r"(?! (is|are|was|were|time|way)\b)",
    ),
    "what": _rule("entry comment doc", r"^What\b"),
    "returns what": _rule("doc entry", r"^(Returns|Yields) (what|how|which|who|whose|where)\b"),
    "beside": _rule(_PROSE, r"\b[Bb]eside\b"),
    "anew, alike": _rule(_PROSE, r"\b([Aa]new|[Aa]like)\b"),
    "go on": _rule(_PROSE, r"\b([Gg]oes|[Gg]o|[Gg]oing|[Ww]ent) on\b"),
    "so many": _rule(_PROSE, r"\bso (many|much)\b"),
    "but for": _rule(_PROSE, r"\b(but for|nothing but|none but)\b"),
    "mend, by chance": _rule(
        _PROSE, r"\bmend(s|ed|ing)?\b|\bby chance\b|\bin (the )?place of\b|\bfor granted\b"
    ),
    "had": _rule(_PROSE, r"\b(be|is|are|was) had\b|\b(is|are) to be (known|said|good|told)\b"),
    "worked out": _rule(_PROSE, r"\bwork(s|ed) out\b(?! (by hand|on paper))"),
    "vague found": _rule(
        "error", r"found (another( one| text| value| message| file)?|others?|something else)\b"
    ),
    "one line": _rule("test", r" (is|are) (told in )?(a|one) line"),
    "test what": _rule("test", r"^what "),
    "long test name": _rule("test", r"^(\w+ ){8,}"),
    "name of": _rule("name", r"^_?(of|OF)_|^_?Of[A-Z]"),
    "name told": _rule(
        "name",
        r"(^|_)(told|tells?|beside|anew|alike|nobody|going_on)(_|$)"
        r"|^(of|found|own|known|there|said|whose|Told|Asked|Begun|Found|Ended|Judged)$",
    ),
    "name most": _rule("name", r"^_?(MOST|LEAST|FEWEST|most|least|fewest)_"),
}


def texts(source: str) -> Iterator[Text]:
    """Yields the prose of a module."""
    for number, row in enumerate(source.splitlines(), 1):
        if row.lstrip().startswith("# ") and not row.rstrip().endswith("---"):
            yield Text("comment", row.strip("# "), number)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            doc = ast.get_docstring(node)
            line = 1 if isinstance(node, ast.Module) else node.lineno
            yield from _docstring(doc or "", line)
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            if node.name.startswith("test_"):
                words = node.name.removeprefix("test_").replace("_", " ")
                yield Text("test", words, node.lineno)
            else:
                yield Text("name", node.name, node.lineno)
        elif isinstance(node, ast.arg):
            yield Text("name", node.arg, node.lineno)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield Text("name", node.id, node.lineno)
        elif isinstance(node, ast.Raise) and node.exc is not None:
            yield Text("error", _message(node.exc), node.lineno)


def _docstring(doc: str, line: int) -> Iterator[Text]:
    """Yields the paragraphs of a docstring, and the entries of its sections."""
    kind, paragraph = "doc", list[str]()
    for row in [*doc.splitlines(), ""]:
        entry = _ENTRY.match(row)
        if not row.strip() or _SECTIONS.match(row) or entry:
            if paragraph:
                yield Text(kind, " ".join(paragraph), line)
            kind, paragraph = ("entry", [entry[2]]) if entry else ("doc", [])
        else:
            paragraph.append(row.strip())


def _message(error: ast.expr) -> str:
    """Returns the constant parts of a message, with a mark in place of each value."""
    parts = [
        node.value
        for node in ast.walk(error)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    return _FIELD.sub("..", " ".join(parts))


def breaches(folder: str) -> Iterator[tuple[str, Path, Text]]:
    """Yields rule, file and text of each breach in a folder."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        if ".venv" in path.as_posix() or path.name in _EXAMPLES or "_pb2" in path.name:
            continue
        for text in texts(path.read_text()):
            for name, rule in RULES.items():
                if text.kind in rule.kinds and rule.pattern.search(text.text):
                    yield name, path, text


def counts() -> dict[str, Counter[str]]:
    """Returns the number of breaches of each rule, by folder."""
    result: dict[str, Counter[str]] = {}
    for folder in _FOLDERS:
        for rule, path, _ in breaches(folder):
            parts = path.relative_to(ROOT).parts
            name = "/".join(parts[:2]) if folder == _PACKAGE and len(parts) > 2 else folder
            result.setdefault(name, Counter())[rule] += 1
    return result


def write_counts() -> None:
    """Writes `prose.toml`."""
    lines = ["# Breaches of the rules in prose.py; python -m tests.docs.prose writes them."]
    for folder, numbers in sorted(counts().items()):
        lines += ["", f'["{folder}"]']
        lines += [f'"{rule}" = {numbers[rule]}' for rule in RULES if numbers[rule]]
    COUNTS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    write_counts()
