"""Plants faults in a checkout, one after another, and looks which tests find them.

    python tools/plant_faults.py draw 200
    python tools/plant_faults.py run --checkout=COPY --measured=FOLDER [--faults=FILE]

`draw` chooses places at random, as many in each folder as it has lines, and writes them to
tests/faults.json. `run` plants each in COPY, a clean checkout of the same commit with an
environment of its own, runs the tests that reach its line, the quick ring's first and of these the
cheapest first, until one fails, and writes down which did. It goes on where it was ended. FOLDER is
what `tools.measure_tests` left. A place is known by its function and its text: what has moved is
found, what has changed is said and left out.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

_ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(_ROOT))

from tests.selection import EXHAUSTIVE, is_left_out, rest  # noqa: E402
from tools import measure_tests  # noqa: E402

_FAULTS = _ROOT / "tests" / "faults.json"
_SEED = 20261125
# Processor seconds of tests for a fault in each ring, by what they took when they were measured.
_MOST_SECONDS = 150.0
_MOST_TESTS = 400
# A fault may turn an end into none.
_LIMIT = 900.0
_QUICK, _REST, _EXHAUSTIVE, _NOBODY = "quick", "rest", "exhaustive", "nobody"


@dataclasses.dataclass(frozen=True)
class Fault:
    """A place, and what becomes of it.

    Attributes:
        file: Its name, from the checkout's root.
        function: The function around it, with its class.
        kind: A name of `_KINDS`.
        nth: Its number among the places of that kind and text in the function.
        text: What is there.
        line: Its first line.
        end: Its last line.
        start: Where it begins in the file, in characters.
        planted: What takes its place.
    """

    file: str
    function: str
    kind: str
    nth: int
    text: str
    line: int
    end: int
    start: int
    planted: str

    @property
    def name(self) -> str:
        """What a place keeps when others move."""
        return f"{self.file}:{self.function}:{self.kind}:{self.nth}:{self.text}"

    def planted_in(self, source: str) -> str:
        """Returns the file with the fault."""
        return source[: self.start] + self.planted + source[self.start + len(self.text) :]


_OPPOSITES: Mapping[type, type] = {
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}


def _comparison(node: ast.AST) -> Optional[ast.AST]:
    """A comparison turned round."""
    if not isinstance(node, ast.Compare) or len(node.ops) != 1:
        return None
    return ast.Compare(node.left, [_OPPOSITES[type(node.ops[0])]()], node.comparators)


def _number(node: ast.AST) -> Optional[ast.AST]:
    """A number one larger."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return ast.Constant(node.value + 1)
    return None


def _term(node: ast.AST) -> Optional[ast.AST]:
    """A term or factor dropped."""
    arithmetic = (ast.Add, ast.Sub, ast.Mult, ast.Div)
    if isinstance(node, ast.BinOp) and isinstance(node.op, arithmetic):
        return None if isinstance(node.right, (ast.Constant, ast.JoinedStr)) else node.left
    return None


def _arguments(node: ast.AST) -> Optional[ast.AST]:
    """The first two arguments of a call exchanged."""
    if not isinstance(node, ast.Call) or len(node.args) < 2:
        return None
    first, second, *others = node.args
    if isinstance(first, ast.Starred) or isinstance(second, ast.Starred):
        return None
    return ast.Call(node.func, [second, first, *others], node.keywords)


def _truth(node: ast.AST) -> Optional[ast.AST]:
    """True for False, `and` for `or`."""
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        return ast.Constant(not node.value)
    if isinstance(node, ast.BoolOp):
        return ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    return None


def _condition(node: ast.AST) -> Optional[ast.AST]:
    """A branch never taken: an early return or a refusal that does not happen."""
    return ast.Constant(False) if isinstance(node, ast.If) else None


def _call(node: ast.AST) -> Optional[ast.AST]:
    """A statement left out, such as a write."""
    is_call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    return ast.Constant(None) if is_call else None


_NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_KINDS: Mapping[str, Callable[[ast.AST], Optional[ast.AST]]] = {
    "comparison": _comparison,
    "number": _number,
    "term": _term,
    "arguments": _arguments,
    "truth": _truth,
    "condition": _condition,
    "call": _call,
}


def places(root: Path, file: str) -> list[Fault]:
    """Returns every fault that may be planted in a file, in its order."""
    source = (root / file).read_text(encoding="utf-8")
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found: list[Fault] = []
    counts: dict[tuple[str, str, str], int] = {}
    for function, node in _nodes(ast.parse(source), ()):
        for kind, change in _KINDS.items():
            changed = change(node)
            place = node.test if isinstance(node, ast.If) and kind == "condition" else node
            text = ast.get_source_segment(source, place) if changed is not None else None
            # Columns count bytes; a line of others than ASCII would be cut in the wrong place.
            if not text or changed is None or not text.isascii():
                continue
            assert isinstance(place, (ast.expr, ast.stmt)), "others have no place in the source"
            begin = starts[place.lineno - 1] + place.col_offset
            if not source[:begin].endswith(("\n", *"\t ([{,=:-+*/%<>~!|&")) and kind != "term":
                continue
            planted = f"({ast.unparse(ast.fix_missing_locations(changed))})"
            key = (function, kind, text)
            nth = counts[key] = counts.get(key, -1) + 1
            first, last = place.lineno, place.end_lineno or place.lineno
            one = Fault(file, function, kind, nth, text, first, last, begin, planted)
            if source[begin : begin + len(text)] == text:
                found.append(one)
    return found


def _nodes(
    node: ast.AST, around: tuple[str, ...], is_function: bool = False
) -> Iterator[tuple[str, ast.AST]]:
    """Yields what stands in functions: lines of classes and modules belong to no test."""
    body = getattr(node, "body", None) if isinstance(node, _NAMED) else None
    for child in ast.iter_child_nodes(node) if body is None else body:
        named = isinstance(child, _NAMED)
        inside = (*around, child.name) if named else around
        # Words of messages and annotations are no faults.
        if isinstance(child, (ast.JoinedStr, ast.Raise)):
            continue
        if isinstance(child, ast.AnnAssign):
            child = child.value or ast.Pass()
        if is_function and not named:
            yield ".".join(inside), child
        in_function = is_function if not named else not isinstance(child, ast.ClassDef)
        yield from _nodes(child, inside, in_function)


def draw(number: int) -> list[dict[str, Any]]:
    """Returns so many places, as many in each folder as it has lines, at random."""
    listed = subprocess.run(
        ["git", "ls-files", *(f"{name}/*.py" for name in measure_tests.MEASURED)],
        cwd=_ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    files = [name for name in listed if not name.endswith("_pb2.py")]
    folders: dict[str, list[str]] = {}
    for name in files:
        folders.setdefault("/".join(name.split("/")[:2][: name.count("/")]), []).append(name)
    lines = {
        folder: sum(len((_ROOT / name).read_text().splitlines()) for name in of)
        for folder, of in folders.items()
    }
    rng = random.Random(_SEED)
    chosen: list[Fault] = []
    for folder, of in sorted(folders.items()):
        share = max(1, round(number * lines[folder] / sum(lines.values())))
        by_kind: dict[str, list[Fault]] = {}
        for fault in (fault for name in of for fault in places(_ROOT, name)):
            by_kind.setdefault(fault.kind, []).append(fault)
        for _ in range(share):
            # Kinds are equally likely: calls and numbers would crowd out the rest.
            kind = rng.choice(sorted(by_kind))
            chosen.append(by_kind[kind].pop(rng.randrange(len(by_kind[kind]))))
            if not by_kind[kind]:
                del by_kind[kind]
    return [
        {key: getattr(fault, key) for key in ("file", "function", "kind", "nth", "text")}
        for fault in chosen
    ]


def _located(root: Path, entry: Mapping[str, Any]) -> Optional[Fault]:
    for fault in places(root, entry["file"]) if (root / entry["file"]).exists() else []:
        if all(getattr(fault, key) == entry[key] for key in ("function", "kind", "nth", "text")):
            return fault
    return None


def _run(checkout: Path, tests: Sequence[str], seconds: Mapping[str, float]) -> Optional[str]:
    """Returns the first of the tests that fails; the cheapest go first."""
    kept: list[str] = []
    total = 0.0
    for test in sorted(tests, key=lambda name: (seconds.get(name, 0.0), name))[:_MOST_TESTS]:
        total += seconds.get(test, 0.0)
        if total > _MOST_SECONDS and kept:
            break
        kept.append(test)
    if not kept:
        return None
    # As in tools/run_tests.
    threads = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")
    one_thread = dict.fromkeys(threads, "1")
    command = [".venv/bin/python", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *kept]
    try:
        done = subprocess.run(
            [*command, "-rfE", "--tb=no"],
            cwd=checkout,
            env={**os.environ, **one_thread},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "(no end)"
    if done.returncode == 0:
        return None
    if gone := [test for test in kept if f"/{test.partition('[')[0]}\n" in done.stderr]:
        # It was measured, and is no more; pytest names the function only, and so all its cases go.
        return _run(checkout, [test for test in tests if test not in gone], seconds)
    lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return lines[0].split(" ", 1)[1].split(" - ")[0] if lines else f"(exit {done.returncode})"


def run(checkout: Path, measured: Sequence[Path], path: Path) -> None:
    """Plants what has no result yet, and writes down what found it."""
    entries: list[dict[str, Any]] = json.loads(path.read_text())
    seconds = {k: v for folder in measured for k, v in measure_tests.costs(folder).tests.items()}
    left_out, unusual = rest(), rest(EXHAUSTIVE)
    for number, entry in enumerate(entries):
        if "found" in entry:
            continue
        fault = _located(checkout, entry)
        if fault is None:
            print(f"{number}: gone: {entry['file']}: {entry['text']}", flush=True)
            continue
        lines = {fault.file: set(range(fault.line, fault.end + 1))}
        tests = set().union(*(measure_tests.reached(m, lines)[fault.file] for m in measured))
        tests.discard("")
        rings: dict[str, list[str]] = {_QUICK: [], _REST: [], _EXHAUSTIVE: []}
        for test in sorted(tests):
            is_usual, is_quick = not is_left_out(test, unusual), not is_left_out(test, left_out)
            rings[_EXHAUSTIVE if not is_usual else _QUICK if is_quick else _REST].append(test)
        target = checkout / fault.file
        source = target.read_text(encoding="utf-8")
        begin = time.monotonic()
        try:
            target.write_text(fault.planted_in(source), encoding="utf-8")
            found = ((ring, _run(checkout, of, seconds)) for ring, of in rings.items())
            ring, finder = next(((r, by) for r, by in found if by is not None), (_NOBODY, None))
        finally:
            target.write_text(source, encoding="utf-8")
        entry["found"] = ring
        entry["by"] = finder
        path.write_text(json.dumps(entries, indent=1, ensure_ascii=False) + "\n")
        took = time.monotonic() - begin
        print(f"{number}: {entry['found']} ({took:.0f} s): {fault.name} -> {finder}", flush=True)
    _summary(entries)


def _summary(entries: Sequence[Mapping[str, Any]]) -> None:
    counts = {ring: sum(e.get("found") == ring for e in entries) for ring in (_QUICK, _REST)}
    known = sum("found" in entry for entry in entries)
    every = sum(counts.values())
    share = f", {100 * counts[_QUICK] / every:.1f}%" if every else ""
    print(
        f"{known} faults planted: the usual tests find {every}, "
        f"the quick ring {counts[_QUICK]} of them{share}; others the exhaustive tests find: "
        f"{sum(e.get('found') == _EXHAUSTIVE for e in entries)}"
    )


def main() -> None:
    """Draws places, or plants what was drawn."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    drawing = commands.add_parser("draw")
    drawing.add_argument("number", type=int)
    running = commands.add_parser("run")
    running.add_argument("--checkout", type=Path, required=True)
    running.add_argument("--measured", type=Path, nargs="+", required=True)
    running.add_argument("--faults", type=Path, default=_FAULTS)
    commands.add_parser("summary")
    given = parser.parse_args()
    if given.command == "draw":
        text = json.dumps(draw(given.number), indent=1, ensure_ascii=False)
        _FAULTS.write_text(text + "\n")
    elif given.command == "run":
        run(given.checkout.resolve(), given.measured, given.faults)
    else:
        _summary(json.loads(_FAULTS.read_text()))


if __name__ == "__main__":
    main()
