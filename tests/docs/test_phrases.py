"""Phrases that make pages hard to read."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]
PAGES += sorted((ROOT / "docs").glob("**/*.md"))
# Keys are better words; values are phrases of banned words, with any characters between the words.
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
    "compared with, next to, in addition to": ["beside"],
}
_WORD = re.compile(r"[\w']+")


def _breaches(where: str, text: str) -> list[str]:
    words = f" {' '.join(_WORD.findall(text.lower()))} "
    return [
        f"{where}: {phrase!r}: {better}"
        for better, phrases in PHRASES.items()
        for phrase in phrases
        if f" {phrase} " in words
    ]


@pytest.mark.slow
def test_pages_have_no_banned_phrase():
    texts = {str(page.relative_to(ROOT)): page.read_text() for page in PAGES}
    lines = [line for name, text in texts.items() for line in _breaches(name, text)]
    assert not lines, "\n".join(lines)


def test_phrases_match_whole_words():
    assert _breaches("page", "A fleet, of\nwhich") and not _breaches(
        "page", "offwhich, of whichever"
    )
