"""Phrases that made the documentation hard to read may not come back.

They stood in pages, help texts or reports. Each is a detour (a pronoun in place of its noun, the
subject last, a negation in place of what is), a private word, or the author's calendar.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]
PAGES += sorted((ROOT / "docs").glob("**/*.md"))
# What to write, and what not: words in a row, whatever stands between them.
PHRASES = {
    "repeat the noun, or whose": ["of which"],
    "anyone who, the server, you": ["whoever", "who has fetched them can"],
    "the command rejects": ["refused are", "refused is"],
    "is printed, raises, gets": ["is told", "are told", "tells what"],
    "in place of": ["in the place of"],
    "possible, can be gained": ["to be had"],
    "name the thing": ["what of it", "what is for what", "as ever", "in what the fleets differ"],
    "accepted": ["understood wherever"],
    "say what it is": ["none the worse", "none of the known", "are no classes", "are no shares"],
    "unknown, undefined": ["that nobody has", "nobody has read", "nothing to mend"],
    "for each, per": ["file a client", "one an example", "one row an example"],
    "memorises": ["by heart"],
    "a second line of defence": ["second door"],
    "slightly, helps little": ["teach little", "teaches little", "by little", "is worth little"],
    "has the same goal": ["goes for the same"],
    "tracks": ["comes to lie"],
    "differ": ["ours and the paper's part", "come apart from"],
    "other clients' words": ["words of others"],
    "you decide": ["is yours to say"],
    "that this project does not have": ["at hand"],
    "older, earlier": ["of before"],
}
# Of pages only: names in the code have some of them.
_OF_PAGES = {"compared with, next to, in addition to": ["beside"]}

_WORD = re.compile(r"[\w']+")
# From one part of a text of Python to the next.
_JOINT = re.compile(r"""["']\s+f?["']""")


def _found(where: str, text: str, every: Mapping[str, Sequence[str]] = PHRASES) -> list[str]:
    words = f" {' '.join(_WORD.findall(text.lower()))} "
    return [
        f"{where}: {phrase!r}: {better}"
        for better, phrases in every.items()
        for phrase in phrases
        if f" {phrase} " in words
    ]


def _texts(source: str) -> Iterator[tuple[int, str]]:
    """Help texts, reports and remarks, with their lines: all but docstrings and errors."""
    tree = ast.parse(source)
    raised = [node for node in ast.walk(tree) if isinstance(node, ast.Raise)]
    left_out = {id(node) for raising in raised for node in ast.walk(raising)}
    left_out |= {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if id(node) in left_out:
            continue
        if isinstance(node, ast.JoinedStr):
            left_out |= {id(part) for part in node.values}
            yield node.lineno, "".join(str(getattr(part, "value", "")) for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


@pytest.mark.slow
def test_no_phrase_came_back_to_a_page():
    every = {**PHRASES, **_OF_PAGES}
    texts = {str(page.relative_to(ROOT)): page.read_text() for page in PAGES}
    found = [line for name, text in texts.items() for line in _found(name, text, every)]
    assert not found, "\n".join(found)


@pytest.mark.slow
def test_no_phrase_came_back_to_help_and_reports():
    found = []
    for folder in ("tff_agnostic", "binaries"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            source = path.read_text()
            # To parse all files would take seconds.
            if _found("", _JOINT.sub("", source)):
                for line, text in _texts(source):
                    found += _found(f"{path.relative_to(ROOT)}:{line}", text)
    assert not found, "\n".join(found)


def test_phrases_are_found_in_every_kind_of_text():
    source = '''
"""A docstring, of which nothing is said."""
HELP = f"A thing {1} of "  "which one counts"
def f():
    raise ValueError("an error of which")
'''
    assert [line for k, text in _texts(source) for line in _found(str(k), text)] == [
        "3: 'of which': repeat the noun, or whose"
    ]
    assert _found("page", "A fleet, of\nwhich") and not _found("page", "offwhich, of whichever")
