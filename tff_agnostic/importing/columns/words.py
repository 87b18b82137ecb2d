"""Text in any language to words, for the formats whose text is not English for sure."""

import re
from typing import Callable

from tff_agnostic.importing.records.options import ImportOptions

# A word that stands for something, such as <unk>; one with apostrophes or hyphens inside; a run of
# one sign such as "..."; or a single sign.
_WORD = re.compile(r"</?\w+>|\w+(?:['\u2019-]\w+)*|(\S)\1*")
_LITERAL = re.compile(r"</?\w+>")
_END = re.compile("[.?!\u2026]+")


def _letters(word: str) -> str:
    return "".join(filter(str.isalpha, word))


_CASES: dict[str, Callable[[str], str]] = {"keep": str, "lower": str.lower, "upper": str.upper}
_TOKENIZERS: dict[str, Callable[[str], list[str]]] = {
    "spaces": str.split,
    "words": lambda text: [match.group() for match in _WORD.finditer(text)],
    "letters": lambda text: list(filter(None, map(_letters, text.split()))),
}


def is_sentence_end(word: str) -> bool:
    """Returns whether a word of a tokenised text ends a sentence."""
    return _END.fullmatch(word) is not None


def has_letters(word: str) -> bool:
    """Returns whether a word has a letter or a digit."""
    return any(map(str.isalnum, word))


class Normalizer:
    """Turns words into those of the store: --case and --punctuation.

    Args:
        options: Of the import.
        default_tokenizer: Used if the options name none.
    """

    def __init__(self, options: ImportOptions, default_tokenizer: str) -> None:
        self._case = _CASES[options.case]
        self._drop = options.punctuation == "drop"
        self._tokenize = _TOKENIZERS[options.tokenizer or default_tokenizer]

    def tokenize(self, text: str) -> list[str]:
        """Returns the words of a text as they are."""
        return self._tokenize(text)

    def sentence(self, words: list[str]) -> str:
        """Returns a sentence as stores hold it; empty without letters and digits."""
        if not any(map(has_letters, words)):
            return ""
        kept = list(filter(has_letters, words)) if self._drop else words
        text = " ".join(kept)
        if "<" not in text:
            return self._case(text)
        return " ".join(w if _LITERAL.fullmatch(w) else self._case(w) for w in kept)
