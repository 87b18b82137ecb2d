"""Parsers of the real data sets, written from the import documentation.

They use the standard library only, are slow, and share no code with `importing`.
"""

import csv
import gzip
import hashlib
import html
import io
import math
import re
import struct
import xml.etree.ElementTree as ElementTree
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple


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
_LETTERS = set("abcdefghijklmnopqrstuvwxyz0123456789")
_URL_ENDS = set(" \t\n\r\f\v<>\"')")
_FORMULA = "\x7f"


def paragraphs(body: str) -> Iterator[str]:
    """Yields the text of each HTML paragraph, without code."""
    text, hidden = "", 0
    for part in re.split(r"(<!--.*?-->|</?[a-zA-Z][^>]*>)", body, flags=re.DOTALL):
        tag = re.match(r"<(/?)([a-zA-Z][a-zA-Z0-9]*)", part)
        if part.startswith("<!--"):
            continue
        if not tag:
            text += "" if hidden else html.unescape(part)
            continue
        closes, name = tag[1] == "/", tag[2].lower()
        if name in _PARAGRAPHS:
            yield text
            text = ""
        elif name in _HIDDEN and closes:
            text += " "
        if name in _HIDDEN and not part.endswith("/>"):
            hidden = max(0, hidden + (-1 if closes else 1))
    yield text


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
    words, prose = 0, False
    for run in sentence.split():
        if run.isalnum():
            words, prose = words + 1, True
            continue
        i = 0
        while i < len(run):
            words += 1
            prose = prose or run[i] in _LETTERS or run[i] == _FORMULA
            i = _word_end(run, i)
    if prose:
        yield words


def _word_end(text: str, i: int) -> int:
    for scheme in ("http://", "https://", "ftp://", "www."):
        end = i + len(scheme)
        if text.startswith(scheme, i) and end < len(text) and text[end] not in _URL_ENDS:
            while end < len(text) and text[end] not in _URL_ENDS:
                end += 1
            return end
    if text[i] not in _LETTERS:
        return i + 1
    while i < len(text):
        if text[i] in _LETTERS:
            i += 1
        elif text[i] in "'-" and text[i + 1 : i + 2] in _LETTERS and text[i + 1 : i + 2]:
            i += 2
        else:
            break
    return i


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
    examples: list[Example] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        # A token is a word, with apostrophes and hyphens, or a run of one punctuation mark.
        words, i = 0, 0
        while i < len(line):
            if line[i].isspace():
                i += 1
                continue
            words += 1
            if not line[i].isalnum():
                i += len(line[i:]) - len(line[i:].lstrip(line[i]))
                continue
            while i < len(line) and (
                line[i].isalnum() or (line[i] in "'-" and line[i + 1 : i + 2].isalnum())
            ):
                i += 1
        if words:
            passage = f"{path.stem}#{len(examples) // lines_per_client:04d}"
            examples.append(Example(passage, "plays", "", words, ""))
    return examples


def mnist_by_writer(path: Path) -> list[Example]:
    """Returns the examples of MNIST by writer; parses the .npy files without NumPy."""
    examples = []
    with zipfile.ZipFile(path) as archive:
        for split in ("train", "test"):
            columns = [
                _array(archive.read(f"{name}_{split}.npy")) for name in ("writer", "hsf", "y")
            ]
            examples += [
                Example(str(writer), str(hsf), split, 0, str(label))
                for writer, hsf, label in zip(*columns)
            ]
    return examples


def _array(content: bytes) -> list[int]:
    file = io.BytesIO(content)
    assert file.read(6) == b"\x93NUMPY" and file.read(2)[0] == 1
    (size,) = struct.unpack("<H", file.read(2))
    header = file.read(size).decode()
    code = re.search(r"'descr': '([<|])([iu])(\d)'", header)
    assert code is not None
    width, signed = int(code[3]), code[2] == "i"
    body = file.read()
    return [
        int.from_bytes(body[i : i + width], "little", signed=signed)
        for i in range(0, len(body), width)
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

    Args:
        examples: All examples of the data set.
        by: Unit that stays in one split, "client" or "group".
        group_by_client: Group of each client; None if `by` is "client".
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
