"""Parsers of the real data sets, written from the import documentation.

They use the standard library and NumPy only, are slow, and share no code with `importing`.
"""

import csv
import gzip
import hashlib
import math
import re
import struct
import xml.etree.ElementTree as ElementTree
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np


class Example(NamedTuple):
    """An example; `words` is 0 if it has no text, and `label` is "" if it has no label."""

    client: str
    domain: str
    split: str
    words: int
    label: str


_PARAGRAPHS = {"blockquote", "br", "dd", "div", "dl", "dt", "h1", "h2", "h3", "h4", "h5", "h6"}
_PARAGRAPHS |= {"hr", "li", "ol", "p", "pre", "table", "td", "th", "tr", "ul"}
_HIDDEN = {"code", "pre", "script", "style"}
_ABBREVIATIONS = {"cf", "dr", "e.g", "eq", "fig", "i.e", "mr", "mrs", "ms", "vs"}
_QUOTES = {0x2018: "'", 0x2019: "'", 0x201C: '"', 0x201D: '"', 0x2013: "-", 0x2014: " - "}
_QUOTES |= {0x2026: "...", 0xA0: " "}
_FORMULA = "\x7f"
# A URL, a word of lower-case ASCII, or a sign.
WORD = re.compile(r"(?:https?://|ftp://|www\.)[^\s<>\"')]+|[a-z0-9]+(?:['-][a-z0-9]+)*|[^\sa-z0-9]")


class HtmlParagraphs(HTMLParser):
    """Collects the text of each HTML paragraph, without hidden elements.

    Args:
        hidden: Elements whose text is left out.
        code: Text that replaces each hidden `<code>`; a space replaces other hidden elements.
    """

    def __init__(self, hidden: Collection[str] = _HIDDEN, code: str = " ") -> None:
        super().__init__()
        self.texts, self._depth, self._hidden, self._code = [""], 0, hidden, code

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.handle_startendtag(tag, attrs)
        self._depth += tag in self._hidden

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        if tag in _PARAGRAPHS:
            self.texts.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in _PARAGRAPHS:
            self.texts.append("")
        elif tag in self._hidden:
            self.texts[-1] += self._code if tag == "code" and self._depth == 1 else " "
        self._depth -= tag in self._hidden and self._depth > 0

    def handle_data(self, data: str) -> None:
        self.texts[-1] += "" if self._depth else data

    def parse_html_declaration(self, i: int) -> int:
        return self.parse_bogus_comment(i)


def paragraphs(body: str, *settings: Any) -> list[str]:
    """Returns the texts of `HtmlParagraphs` that are not blank."""
    parser = HtmlParagraphs(*settings)
    parser.feed(body)
    parser.close()
    return [text for text in parser.texts if text.strip()]


def without_formulas(text: str) -> str:
    """Returns `text` after replacing each TeX formula by `_FORMULA`."""
    result, i = "", 0
    while "$" in text[i:] or "\\" in text[i:]:
        end = _formula_end(text, i)
        result += f" {_FORMULA} " if end else text[i]
        i = end or i + 1
    return result + text[i:]


def _formula_end(text: str, i: int) -> int:
    for opening, closing in (("$$", "$$"), ("\\[", "\\]"), ("\\(", "\\)")):
        if text.startswith(opening, i):
            end = text.find(closing, i + 3)
            if end > 0:
                return end + 2
    if text.startswith("\\begin{", i):
        name = text[i + 7 : text.find("}", i)]
        closing = f"\\end{{{name}}}"
        end = text.find(closing, i + len(name) + 9)
        if name.rstrip("*").isalnum() and end > 0:
            return end + len(closing)
    if text[i] != "$" or text[i - 1 : i] in ("\\", "$"):
        return 0
    last = text.find("$", i + 1)
    if last < i + 2 or text[i + 1].isspace():
        return 0
    if text[last - 1].isspace() or text[last - 1] == "\\" or text[last + 1 : last + 2].isdigit():
        return 0
    return last + 1


def english_sentences(paragraph: str) -> Iterator[int]:
    """Yields the word count of each sentence that has a letter or digit."""
    text = paragraph.translate(_QUOTES).lower()
    if not text.isascii():
        text = "".join(c for c in text if c.isascii())
    start = done = 0
    for i in [i for i, c in enumerate(text) if c in ".?!"]:
        if i < done:
            continue
        end = i + 1
        while end < len(text) and text[end] in ".?!\"')]":
            end += 1
        if end < len(text) and not text[end].isspace():
            continue
        done = end
        before = text[max(0, i - 8) : i].split(" ")[-1].lstrip("([\"'")
        if text[i] != "." or before not in _ABBREVIATIONS:
            yield from _count(text[start:end])
            start = end
    yield from _count(text[start:])


def _count(sentence: str) -> Iterator[int]:
    words = WORD.findall(sentence)
    if any(word[0].isalnum() or word == _FORMULA for word in words):
        yield len(words)


def stackexchange(folder: Path) -> tuple[Counter[str], list[Example]]:
    """Returns counts of kept and skipped posts, and the sentences of kept posts."""
    posts: Counter[str] = Counter()
    examples = []
    for path in sorted(folder.glob("*/Posts.xml")):
        for row in ElementTree.parse(path).getroot():
            kind = {"1": "question", "2": "answer"}.get(row.attrib["PostTypeId"])
            owner = row.attrib.get("OwnerUserId")
            posts["kept" if kind and owner else "skipped"] += 1
            if kind and owner:
                examples += [
                    Example(f"{path.parent.name}/{owner}", kind, "", words, "")
                    for text in paragraphs(row.attrib["Body"])
                    for words in english_sentences(without_formulas(text))
                ]
    return posts, examples


def tokenised_texts(folder: Path) -> tuple[Counter[str], list[Example]]:
    """Returns counts of kept and skipped sentences in DOMAIN/NAME.txt, and the kept sentences."""
    sentences: Counter[str] = Counter()
    examples = []
    for path in sorted(folder.glob("*/*.txt")):
        name = f"{path.parent.name}/{path.stem}"
        for sentence in _sentences(path.read_text(encoding="utf-8").split()):
            kept = any(c.isalnum() for word in sentence for c in word)
            sentences["kept" if kept else "skipped"] += 1
            if kept:
                examples.append(Example(name, path.parent.name, "", len(sentence), ""))
    return sentences, examples


def _sentences(words: list[str]) -> Iterator[list[str]]:
    sentence: list[str] = []
    for word, following in zip(words, [*words[1:], ""]):
        sentence.append(word)
        ends = not word.strip(".?!\u2026")
        if (ends and following.strip(".?!\u2026")) or not following or len(sentence) == 1000:
            yield sentence
            sentence = []


def play_lines(path: Path, lines_per_client: int) -> list[Example]:
    """Returns the lines with words; each passage of `lines_per_client` such lines is a client."""
    # A token is a word, with apostrophes and hyphens, or a run of one punctuation mark.
    token = re.compile(r"[^\W_]+(?:['-][^\W_]+)*|([^\w\s])\1*")
    examples: list[Example] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        words = len(token.findall(line))
        if words:
            passage = f"{path.stem}#{len(examples) // lines_per_client:04d}"
            examples.append(Example(passage, "plays", "", words, ""))
    return examples


def mnist_by_writer(path: Path) -> list[Example]:
    """Returns the examples of MNIST by writer."""
    arrays, names = np.load(path), ("writer", "hsf", "y")
    return [
        Example(str(writer), str(hsf), split, 0, str(label))
        for split in ("train", "test")
        for writer, hsf, label in zip(*(arrays[f"{name}_{split}"] for name in names))
    ]


def idx_labels(path: Path) -> list[int]:
    """Returns the labels in an IDX file."""
    content = gzip.decompress(path.read_bytes())
    assert content[:4] == bytes([0, 0, 8, 1])
    (count,) = struct.unpack(">I", content[4:8])
    assert len(content) == 8 + count
    return list(content[8:])


def adult(path: Path) -> list[Example]:
    """Returns the examples in a file of UCI Adult."""
    with open(path, newline="") as file:
        rows = [row for row in csv.reader(file, skipinitialspace=True) if len(row) == 15]
    return [
        Example("", "doctorate" if row[3] == "Doctorate" else "others", "", 0, row[14].rstrip("."))
        for row in rows
    ]


def split_by_rank(
    examples: Iterable[Example], by: str, group_by_client: "dict[str, str] | None" = None
) -> dict[str, str]:
    """Returns each client's split for seed 0 and shares 0.8 (train), 0.1 (heldout) and 0.1 (test).

    The unit `by`, "client" or "group", stays in one split.
    """
    domains: defaultdict[str, Counter[str]] = defaultdict(Counter)
    clients: defaultdict[str, set[str]] = defaultdict(set)
    for example in examples:
        key = group_by_client[example.client] if group_by_client else example.client
        domains[key][example.domain] += 1
        clients[key].add(example.client)
    strata: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
    for key, counts in domains.items():
        home = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[0][0]
        digest = hashlib.blake2b(f"0 {by} {key}".encode(), digest_size=8).digest()
        strata[home].append((int.from_bytes(digest, "little"), key))
    result = {}
    for keys in strata.values():
        n = len(keys)
        test = min(max(1, math.floor(n / 10 + 0.5)), n - 1)
        heldout = min(max(1, math.floor(n / 10 + 0.5)), n - 1 - test)
        names = ["train"] * (n - test - heldout) + ["heldout"] * heldout + ["test"] * test
        for (_, key), name in zip(sorted(keys), names):
            result.update(dict.fromkeys(clients[key], name))
    return result
