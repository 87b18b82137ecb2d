"""English text to sentences of words, as TFF describes its Stack Overflow data.

Lower case; no symbols beyond ASCII; punctuation apart, except apostrophes and hyphens inside words;
a special word for every URL; one sentence each.
"""

import re

from tff_agnostic.importing.records.markup import CODE_MARK, MATH_MARK, SPECIAL_WORDS

URL = "<url>"

# Signs that have an ASCII twin are not lost with the other symbols.
_TWINS = str.maketrans(
    {"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2013": "-", "\u2014": " - "}
    | {"\u2026": "...", "\u00a0": " "}
)
_END = re.compile(r"[.?!][.?!\"')\]]*(?=\s|$)")
# A full stop after one of these ends no sentence.
_ABBREVIATIONS = frozenset({"cf", "dr", "e.g", "eq", "fig", "i.e", "mr", "mrs", "ms", "vs"})
_TOKEN = re.compile(
    r"(?:https?|ftp)://[^\s<>\"')]+|www\.[^\s<>\"')]+"
    r"|[a-z0-9]+(?:['-][a-z0-9]+)*"
    r"|[^\sa-z0-9]"
)
_HAS_WORD = re.compile(r"[a-z0-9]")


def sentences_of(text: str) -> list[str]:
    """Returns the sentences of a paragraph, words separated by single spaces.

    Sentences without a letter or digit are left out.
    """
    text = text.translate(_TWINS).encode("ascii", "ignore").decode("ascii").lower()
    sentences, start = [], 0
    for end in _END.finditer(text):
        if _is_abbreviation(text, end.start()):
            continue
        sentences.append(_words(text[start : end.end()]))
        start = end.end()
    sentences.append(_words(text[start:]))
    return [sentence for sentence in sentences if _HAS_WORD.search(sentence)]


def _is_abbreviation(text: str, end: int) -> bool:
    return (
        text[end] == "."
        and text[max(0, end - 8) : end].rpartition(" ")[2].lstrip("([\"'") in _ABBREVIATIONS
    )


def _words(text: str) -> str:
    tokens = _TOKEN.findall(text)
    if "://" in text or "www." in text:
        tokens = [_without_url(token) for token in tokens]
    if MATH_MARK in text or CODE_MARK in text:
        tokens = [SPECIAL_WORDS.get(token, token) for token in tokens]
    return " ".join(tokens)


def _without_url(token: str) -> str:
    return URL if "://" in token or token.startswith("www.") else token
