"""Splits HTML, English sentences, and texts of any language into words.

English sentences are normalised like TFF's Stack Overflow data: lower case, only ASCII symbols,
punctuation as separate words except for apostrophes and hyphens inside words, and the special word
<url> for every URL.
"""

from __future__ import annotations

import functools
import itertools
import re
import unicodedata
from html import unescape
from html.parser import HTMLParser
from typing import Callable, Optional

from tff_agnostic.importing.options import CODE_MARK, MATH_MARK, SPECIAL_WORDS, ImportOptions

# Code points to search for combining marks: scripts and variation selectors.
_WITH_MARKS = (range(0x20000), range(0xE0100, 0xE01F0))
# Joiners between letters of a Persian or Hindi word.
_JOINERS = "\u200c\u200d"
# Apostrophes and the hyphen, which may occur inside a word.
_IN_WORDS = "'\u2019-"
# Characters whose repetitions form one word.
_REPEATED_SIGNS = (
    "!\"#$%&'()*+,-./:;<=>?@[\\]^`{|}~\u00a1\u00a7\u00ab\u00b0\u00b7\u00bb\u00bf"
    "\u2010\u2013\u2014\u2018\u2019\u201a\u201c\u201d\u201e\u2022\u2026\u2039\u203a\u3001\u3002\u30fb"
    "\uff01\uff0c\uff0e\uff1a\uff1b\uff1f\uff5e"
)
_LITERAL = re.compile(r"</?\w+>")
_END = re.compile("[.?!\u2026]+")
_CASES: dict[str, Callable[[str], str]] = {"keep": str, "lower": str.lower, "upper": str.upper}
_TOKENIZERS: dict[str, Callable[[str], list[str]]] = {
    "spaces": str.split,
    "words": lambda text: _by_pattern(text),
    "letters": lambda text: list(filter(None, map(_letters, text.split()))),
}
URL = "<url>"
# Replacements of characters that have an ASCII equivalent. Others outside ASCII are dropped.
_TWINS = str.maketrans(
    {"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2013": "-", "\u2014": " - "}
    | {"\u2026": "...", "\u00a0": " "}
)
_SENTENCE_END = re.compile(r"[.?!][.?!\"')\]]*(?=\s|$)")
# A full stop after one of these does not end a sentence.
_ABBREVIATIONS = frozenset({"cf", "dr", "e.g", "eq", "fig", "i.e", "mr", "mrs", "ms", "vs"})
# Pattern of a word in a text with URLs. In other texts the same words are found faster: every sign
# is padded with spaces, and the text is split at spaces.
_TOKEN = re.compile(
    r"(?:https?|ftp)://[^\s<>\"')]+|www\.[^\s<>\"')]+"
    r"|[a-z0-9]+(?:['-][a-z0-9]+)*"
    r"|[^\sa-z0-9]"
)
_SIGN = re.compile(r"([^\sa-z0-9'-]|['-](?![a-z0-9])|(?<![a-z0-9])['-])")
_HAS_WORD = re.compile(r"[a-z0-9]")
# Elements without prose.
_CODE = {"code", "pre"}
_SCRIPTS = {"script", "style"}
_DROPPED_BY_TREATMENT = {"drop": _CODE | _SCRIPTS, "word": _CODE | _SCRIPTS, "keep": _SCRIPTS}
# Elements that end a sentence.
_BLOCKS = {
    "blockquote", "br", "dd", "div", "dl", "dt", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li",
    "ol", "p", "pre", "table", "td", "th", "tr", "ul",
}  # fmt: skip
# Maximum length of an unfinished tag for the parser, which is slow on longer ones.
_MAX_UNFINISHED = 4096
_TAG = re.compile("<[^<>]*>")
# Markup that needs no parser: tags without attributes, or with quoted attributes.
_TAGS = re.compile("(<[^<>]*>)")
_PLAIN_TAG = re.compile(
    r"<(/?)([A-Za-z][A-Za-z0-9]*)"
    r"(?:[ \t\n]+[A-Za-z][A-Za-z-]*=(?:\"[^\"<>]*\"|'[^'<>]*'))*[ \t\n]*(/?)>"
)
# Elements whose content is not parsed as markup by some version of Python's parser.
_RAW = _SCRIPTS | {
    "iframe", "noembed", "noframes", "noscript", "plaintext", "textarea", "title", "xmp",
}  # fmt: skip


@functools.cache
def _word() -> re.Pattern[str]:
    """Returns the pattern of a word for the tokenizer "words".

    A word is a placeholder such as <unk>; letters and digits, possibly with inner apostrophes or
    hyphens; a run of a repeated sign such as "..."; or a single sign. Letters include combining
    marks, which Python excludes from word characters. Without these, words of Hindi, Thai or
    vocalised Arabic would break apart.

    Model cards contain the pattern for `re.findall`, so it has neither groups nor back-references.
    """
    characters = map(chr, itertools.chain(*_WITH_MARKS))
    marks = [c for c in characters if unicodedata.category(c).startswith("M")]
    ranges: list[list[str]] = []
    for mark in marks:
        if ranges and ord(mark) == ord(ranges[-1][1]) + 1:
            ranges[-1][1] = mark
        else:
            ranges.append([mark, mark])
    inside = rf"[\w{_JOINERS}{''.join(f'{first}-{last}' for first, last in ranges)}]"
    runs = "|".join(f"{re.escape(sign)}+" for sign in _REPEATED_SIGNS)
    return re.compile(rf"</?\w+>|\w{inside}*(?:[{_IN_WORDS}]\w{inside}*)*|{runs}|\S")


def _by_pattern(text: str) -> list[str]:
    return [match.group() for match in _word().finditer(text)]


def _letters(word: str) -> str:
    if _LITERAL.fullmatch(word):
        return word
    return "".join(c for c in word if c.isalpha() or unicodedata.category(c).startswith("M"))


def is_sentence_end(word: str) -> bool:
    """Whether a word of a tokenised text ends a sentence."""
    return _END.fullmatch(word) is not None


def has_letters(word: str) -> bool:
    """Whether a word has a letter or a digit."""
    return any(map(str.isalnum, word))


class Normalizer:
    """A tokenizer with the rules of --tokenizer, --case and --punctuation.

    Args:
        default_tokenizer: Name of the tokenizer if the options name none.

    Attributes:
        tokenize: Called with a text; returns its words, not yet normalised.
        rule: Rules of the tokenizer in the form of `StoredColumns.words`.
    """

    def __init__(self, options: ImportOptions, default_tokenizer: str) -> None:
        self._case = _CASES[options.case]
        self._drop = options.punctuation == "drop"
        tokenizer = options.tokenizer or default_tokenizer
        self.tokenize = _TOKENIZERS[tokenizer]
        self.rule = {
            "pattern": _word().pattern if tokenizer == "words" else None,
            "letters": tokenizer == "letters",
            "case": options.case,
            "punctuation": options.punctuation,
        }

    def sentence(self, words: list[str]) -> str:
        """Joins words to a normalised sentence, which is empty if no word has a letter or digit."""
        if not any(map(has_letters, words)):
            return ""
        kept = list(filter(has_letters, words)) if self._drop else words
        text = " ".join(kept)
        if "<" not in text:
            return self._case(text)
        return " ".join(w if _LITERAL.fullmatch(w) else self._case(w) for w in kept)


def split_sentences(text: str) -> list[str]:
    """Splits a paragraph into normalised English sentences, with single spaces between words.

    Sentences without a letter or digit are omitted.
    """
    if not text.isascii():
        text = text.translate(_TWINS).encode("ascii", "ignore").decode("ascii")
    text = text.lower()
    sentences, start = [], 0
    for end in _SENTENCE_END.finditer(text):
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
    if "://" in text or "www." in text:
        tokens = [_without_url(token) for token in _TOKEN.findall(text)]
    else:
        tokens = " ".join(_SIGN.split(text)).split()
    if MATH_MARK in text or CODE_MARK in text:
        tokens = [SPECIAL_WORDS.get(token, token) for token in tokens]
    return " ".join(tokens)


def _without_url(token: str) -> str:
    return URL if "://" in token or token.startswith("www.") else token


class _HtmlText(HTMLParser):
    """A parser of any HTML, as tolerant as a browser; `_plain_blocks` is faster for plain HTML."""

    def __init__(self, code: str) -> None:
        super().__init__(convert_charrefs=True)
        self.blocks: list[list[str]] = [[]]
        self._depth = 0
        self._dropped = _DROPPED_BY_TREATMENT[code]
        # The text that replaces code inside a sentence: a placeholder or a space.
        self._code = f" {CODE_MARK} " if code == "word" else " "

    def updatepos(self, i: int, j: int) -> int:
        # Do not count lines at each tag, as the parser does, because no line number is needed.
        return j

    def parse_html_declaration(self, i: int) -> int:
        try:
            return super().parse_html_declaration(i)
        except (AssertionError, NotImplementedError):
            # The parser only supports CDATA after <![; browsers treat other content as a comment.
            return self.parse_bogus_comment(i)

    def close(self) -> None:
        # The remaining data begins with an unfinished tag or comment. The parser would search for
        # the end of the tag again at each later "<".
        if len(self.rawdata) > _MAX_UNFINISHED:
            self.handle_data(unescape(_TAG.sub(" ", self.rawdata)))
            self.rawdata = ""
        super().close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, Optional[str]]]) -> None:
        if tag in _BLOCKS:
            self.blocks.append([])
        if tag in self._dropped:
            self._depth += 1

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, Optional[str]]]) -> None:
        if tag in _BLOCKS:
            self.blocks.append([])

    def handle_endtag(self, tag: str) -> None:
        if tag in _BLOCKS:
            self.blocks.append([])
        else:
            # Separate the words before and after code, so that they do not become one word.
            self.blocks[-1].append(self._replacement(tag))
        if tag in self._dropped and self._depth:
            self._depth -= 1

    def _replacement(self, tag: str) -> str:
        if tag == "code" and self._depth == 1:
            return self._code
        return " " if tag in self._dropped else ""

    def handle_data(self, data: str) -> None:
        if not self._depth:
            self.blocks[-1].append(data)


@functools.lru_cache(maxsize=1 << 12)
def _plain_tag(tag: str) -> tuple[str, bool, bool]:
    """Returns the name of a plain tag, and whether it begins and ends its element.

    The name is empty if the tag is not plain.
    """
    match = _PLAIN_TAG.fullmatch(tag)
    name = match[2].lower() if match else ""
    if match is None or name in _RAW or (match[1] and len(tag) > len(name) + len("</>")):
        return "", False, False
    return name, not match[1], bool(match[1] or match[3])


def _plain_blocks(html: str, code: str) -> Optional[list[list[str]]]:
    """Returns the same blocks as `_HtmlText`; None if any markup is not plain."""
    parts = _TAGS.split(html)
    if html.count("<") != len(parts) // 2:
        return None
    dropped = _DROPPED_BY_TREATMENT[code]
    code_placeholder = f" {CODE_MARK} " if code == "word" else " "
    depth = 0
    block: list[str] = []
    blocks = [block]
    for k, part in enumerate(parts):
        if k % 2 == 0:
            if part and not depth:
                block.append(unescape(part))
            continue
        name, begins, ends = _plain_tag(part)
        if not name:
            return None
        if name in _BLOCKS:
            block = []
            blocks.append(block)
        elif not begins and name in dropped:
            block.append(code_placeholder if name == "code" and depth == 1 else " ")
        if name in dropped and begins != ends:
            depth = depth + 1 if begins else max(0, depth - 1)
    return blocks


def html_blocks(html: str, code: str = "drop") -> list[str]:
    """Returns the text of each paragraph, heading, list item and so on.

    Tags are dropped, and entities become their characters. Malformed markup is treated as in
    browsers, so this never fails.

    Args:
        code: Treatment of code, a name of `options.TREATMENTS`. A word never replaces blocks of
            code (`pre`), as they are not part of a sentence.
    """
    blocks = _plain_blocks(html, code)
    if blocks is None:
        parser = _HtmlText(code)
        parser.feed(html)
        parser.close()
        blocks = parser.blocks
    texts = ("".join(parts) for parts in blocks)
    return [text for text in texts if text and not text.isspace()]
