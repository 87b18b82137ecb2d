"""Splits typed text into words as the import does, with TensorFlow's string ops."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tff_agnostic.base.later import tf

# Characters that separate words in Python's str.split; RE2's \s covers ASCII only.
_SPACES = r"[\pZ\s\x{1c}-\x{1f}\x{85}\v]+"
# Python's \w in RE2, whose own \w covers ASCII only.
_WORD_CHARACTERS = r"\p{L}\p{N}_"
_LITERAL = rf"</?[{_WORD_CHARACTERS}]+>"
_HAS_LETTER = r"(?s).*[\p{L}\p{N}].*"
_NO_LETTERS = r"[^\p{L}\p{M}]"


def store_words(text: tf.Tensor, rule: Mapping[str, Any]) -> tf.Tensor:
    """Returns texts as the import stores them: words separated by single spaces.

    Texts without a letter or digit become empty. Words that come from a store stay unchanged.

    Args:
        text: Typed texts, strings [n].
        rule: The import's rule; see `StoredColumns.words`.
    """
    text = tf.strings.regex_replace(text, _SPACES, " ")
    if rule["pattern"] is not None:
        text = tf.strings.regex_replace(text, _re2(rule["pattern"]), r" \0 ")
    split = tf.strings.split(text)
    words = split.flat_values
    is_literal = tf.strings.regex_full_match(words, _LITERAL)
    if rule["letters"]:
        words = tf.where(is_literal, words, tf.strings.regex_replace(words, _NO_LETTERS, ""))
    has_letter = tf.strings.regex_full_match(words, _HAS_LETTER)
    case = _CASES[rule["case"]]
    words = tf.where(is_literal, words, case(words))
    is_kept = has_letter if rule["punctuation"] == "drop" else words != ""
    kept = tf.ragged.boolean_mask(split.with_flat_values(words), split.with_flat_values(is_kept))
    has_words = tf.reduce_any(split.with_flat_values(has_letter), axis=1)
    return tf.where(has_words, tf.strings.reduce_join(kept, axis=-1, separator=" "), "")


def _re2(pattern: str) -> str:
    """Translates an import's word pattern, which has no groups, to RE2's syntax."""
    inside = pattern.replace(r"[\w", rf"[{_WORD_CHARACTERS}")
    return inside.replace(r"\w", rf"[{_WORD_CHARACTERS}]")


_CASES = {
    "keep": lambda words: words,
    "lower": lambda words: tf.strings.lower(words, encoding="utf-8"),
    "upper": lambda words: tf.strings.upper(words, encoding="utf-8"),
}
