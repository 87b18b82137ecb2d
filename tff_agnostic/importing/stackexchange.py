"""Reader of Stack Exchange and Stack Overflow dumps (`Posts.xml`).

A client is the owner of posts, and an example is a sentence of a post. The option `domain` selects
the domain of a post.
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import functools
import itertools
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Callable, Optional

import numpy as np
import pyarrow as pa

from tff_agnostic.base.errors import UserError
from tff_agnostic.data.store_format import TOKENS, Record, Value
from tff_agnostic.importing import files
from tff_agnostic.importing.cells import CellError
from tff_agnostic.importing.options import MB, ImportOptions, parse_markup, treat_math
from tff_agnostic.importing.source import (
    Format,
    ReadLog,
    Rows,
    SourceExample,
    in_blocks,
    rows_of,
)
from tff_agnostic.importing.text import html_blocks, split_sentences
from tff_agnostic.importing.workers import in_order, usable_processes

# Maximum characters and posts of a block, which takes a process about a tenth of a second.
_CHARACTERS = 1 << 20
_POSTS = 2000
# Minimum input bytes for which several processes are faster, including their start.
_LARGE = 16 * MB
# Control characters, and XML references to them.
_CONTROLS = re.compile(
    rb"&#(?:0*(?:[0-8]|1[124-9]|2[0-9]|3[01])|[xX]0*(?:[0-8bcefBCEF]|1[0-9a-fA-F]));"
    rb"|[\x00-\x08\x0b\x0c\x0e-\x1f]"
)
_LONGEST = 16
# Number of bytes before an error to keep for its message.
_KEPT = 1 << 15
# Continuation bytes of UTF-8.
_CONTINUATIONS = bytes(range(0x80, 0xC0))
# First bytes of XML in UTF-16, where zero bytes are not control characters.
_WIDE = (b"\xff\xfe", b"\xfe\xff", b"\x00<", b"<\x00")
_EXPECTED = "the Posts.xml of a Stack Exchange dump"
_TYPES = {"1": "question", "2": "answer"}

# Function from the attributes of a question or answer to its domain; None if it has none.
_DomainOf = Callable[[Mapping[str, str]], Optional[str]]


@dataclasses.dataclass(frozen=True)
class _Post(SourceExample):
    """A post, whose sentences become examples; sentence k, from 0, has the location `place#k`.

    Attributes:
        html: Text of the post, with markup.
    """

    html: str = ""


def read(options: ImportOptions, paths: Sequence[Path], log: ReadLog) -> Iterator[Rows]:
    """Yields the sentences of questions and answers; several processes may extract them."""
    processes = options.processes
    if processes is None:
        num_bytes = sum(path.stat().st_size for path in find_inputs(paths))
        processes = usable_processes() if num_bytes >= _LARGE else 1
    blocks = in_blocks(_posts(options, paths, log), _by_size())
    work = in_order(functools.partial(_sentences_in, options), blocks, processes)
    with contextlib.closing(work) as results:
        for posts, sentences in results:
            for post, its_sentences in zip(posts, sentences):
                if not its_sentences:
                    log.skip("post without text", post.record.client)
            if any(sentences):
                yield _sentence_rows(posts, sentences)


def _by_size() -> Callable[[list[_Post], _Post], bool]:
    """Returns a predicate for `in_blocks` that limits the posts and characters of a block."""
    size = 0

    def begins_block(posts: list[_Post], post: _Post) -> bool:
        nonlocal size
        is_complete = len(posts) >= _POSTS or size >= _CHARACTERS
        size = len(post.html) + (0 if is_complete else size)
        return is_complete

    return begins_block


def _sentences_in(options: ImportOptions) -> Callable[[Sequence[_Post]], list[list[str]]]:
    """Returns a function from posts to the sentences of each post."""
    markup = parse_markup(options.markup)

    def sentences(posts: Sequence[_Post]) -> list[list[str]]:
        return [
            [
                sentence
                for block in html_blocks(post.html, markup["code"])
                for sentence in split_sentences(treat_math(block, markup["math"]))
            ]
            for post in posts
        ]

    return sentences


def _sentence_rows(posts: Sequence[_Post], sentences: Sequence[Sequence[str]]) -> Rows:
    counts = list(map(len, sentences))
    rows = rows_of(posts).taken(np.repeat(np.arange(len(posts)), counts))
    tokens = pa.array(itertools.chain(*sentences), pa.string())
    number_in_post = [k for count in counts for k in range(count)]
    return dataclasses.replace(
        rows,
        features={TOKENS: tokens, **rows.features},
        place=lambda k: f"{rows.place(k)}#{number_in_post[k]}",
    )


def _posts(options: ImportOptions, paths: Sequence[Path], log: ReadLog) -> Iterator[_Post]:
    """Yields the questions and answers that have an owner and a domain.

    With several files, a client is SITE/OWNER, where SITE is the name of the file's folder;
    otherwise it is OWNER.
    """
    dumps = find_inputs(paths)
    for path in dumps:
        site = path.resolve().parent.name
        prefix = f"{site}/" if len(dumps) > 1 else ""
        post_domain = _domains(options, site)
        for number, attributes in _rows(path, options, log):
            if log.num_records == options.max_records:
                return
            log.num_records += 1
            yield from _post(attributes, prefix, f"{path} row {number}", options, post_domain, log)


def check(options: ImportOptions) -> None:
    """Raises a `UserError` if --markup is invalid."""
    parse_markup(options.markup)


def find_inputs(paths: Sequence[Path]) -> list[Path]:
    """Returns the dumps: the given files, and every Posts.xml in the given folders."""
    result = files.expand(paths, ("Posts.xml", "Posts.xml.gz"))
    sites: dict[str, Path] = {}
    for path in result:
        site = path.resolve().parent.name
        if site in sites:
            raise UserError(
                f"{path}: expected one folder for each site, found two of {site}, the other is "
                f"{sites[site]}"
            )
        sites[site] = path
    return result


def _rows(
    path: Path, options: ImportOptions, log: ReadLog
) -> Iterator[tuple[int, Mapping[str, str]]]:
    """Yields the number and the attributes of each row."""
    # Import on demand, like every library for a single format, as imports take time.
    from defusedxml import DefusedXmlException
    from defusedxml.ElementTree import iterparse

    number = 0
    with files.open_input(path, options, log) as file:
        text = _WithoutControls(file)
        try:
            # Forbid document types, so that the parser neither expands nor loads entities.
            events = iterparse(text, events=("start", "end"), forbid_dtd=True)
            _, root = next(events)
            if root.tag != "posts":
                raise _unexpected(path, f"<{root.tag}>")
            depth = 0
            for event, element in events:
                if event == "start":
                    depth += 1
                    if depth > 1:
                        raise _unexpected(path, f"<{element.tag}> within <{root[-1].tag}>")
                elif element is not root:
                    depth -= 1
                    number += 1
                    file.limits.end_record()
                    yield number, element.attrib
                    root.clear()
        except DefusedXmlException:
            result = "a document type or entity declaration, which are refused"
            raise _unexpected(path, result) from None
        except SyntaxError as e:
            raise _malformed(path, text, e) from None
        except (LookupError, ValueError) as e:
            # Other errors occur if the file's encoding is unknown or not supported by the parser.
            if isinstance(e, UserError):
                raise
            raise _unexpected(path, f"{e!s:.100}", ": ") from None
    log.controls += text.num_controls


class _WithoutControls:
    """A dump in which spaces replace control characters, as XML does not allow these."""

    def __init__(self, file: IO[bytes]) -> None:
        self.num_controls = 0
        self.tail = b""
        self._file = file
        self._rest = b""

    def read(self, size: int = -1) -> bytes:
        block = self._rest + self._file.read(size)
        # A reference may continue in the next block.
        cut = len(block)
        if self._rest != block:
            at = block.rfind(b"&", max(0, len(block) - _LONGEST))
            cut = at if at >= 0 and b";" not in block[at:] else cut
        self._rest, block = block[cut:], block[:cut]
        if not block.startswith(_WIDE) and not self.tail.startswith(_WIDE):
            block, count = _CONTROLS.subn(b" ", block)
            self.num_controls += count
        self.tail = (self.tail + block)[-_KEPT:]
        return block


def _unexpected(path: Path, result: str, sign: str = " ") -> UserError:
    return UserError(f"{path}: expected {_EXPECTED}, found{sign}{result}")


def _malformed(path: Path, text: _WithoutControls, error: Any) -> UserError:
    line, column = error.position
    result = str(error).partition(":")[0]
    try:
        # Accept an incomplete first or last character: the tail may begin and end within one.
        text.tail.lstrip(_CONTINUATIONS).decode("utf-8")
    except UnicodeDecodeError as e:
        if e.reason != "unexpected end of data" and result.startswith("not well-formed"):
            return files.not_utf8(path, line, column + 1, e.object[e.start])
    return UserError(f"{path}:{line}: expected XML, found {result} (column {column + 1})")


def _domains(options: ImportOptions, site: str) -> _DomainOf:
    """Returns the function that returns a post's domain; call it in the order of the dump."""
    named = frozenset(text.partition(":")[0] for text in options.domain_names)
    question_tags = _QuestionTags()

    def by_tag(attributes: Mapping[str, str]) -> Optional[str]:
        if post_type(attributes) == "answer":
            parent = attributes.get("ParentId", "")
            return question_tags.tag(int(parent)) if _is_id(parent) else None
        tags = post_tags(attributes)
        tag = next((tag for tag in tags if tag in named), tags[0] if tags else None)
        if tag is not None and _is_id(attributes["Id"]):
            question_tags.add(int(attributes["Id"]), tag)
        return tag

    kinds: dict[str, _DomainOf] = {
        "type": post_type,
        "site": lambda attributes: site,
        "tag": by_tag,
    }
    return kinds[options.domain]


def _post(
    attributes: Mapping[str, str],
    prefix: str,
    place: str,
    options: ImportOptions,
    post_domain: _DomainOf,
    log: ReadLog,
) -> Iterator[_Post]:
    """Yields a row's post, or logs why it is skipped."""
    owner = attributes.get("OwnerUserId")
    client = None if owner is None else prefix + owner
    kind = post_type(attributes)
    post = attributes.get("Id", "")
    score = attributes.get("Score", "0")
    if not post or "PostTypeId" not in attributes or "Body" not in attributes:
        detail = f"expected Id, PostTypeId and Body, found {', '.join(attributes) or 'nothing'}"
        log.bad(place, CellError("post without Id, PostTypeId or Body", detail), client)
        return
    if not re.fullmatch(r"\s*[+-]?[0-9]{1,18}\s*", score):
        detail = f"expected a whole number as Score, found {score!r}"
        log.bad(place, CellError("score that is not a whole number", detail), client)
        return
    if kind is None:
        log.skip("neither question nor answer", client)
        return
    # Find the domain even if a question has no owner, as its answers inherit its tags.
    domain = post_domain(attributes)
    if client is None:
        log.skip("post without owner")
        return
    if domain is None:
        log.skip(f"post without {options.domain}", client)
        return
    features: dict[str, Value] = {
        "creation_date": _date(attributes.get("CreationDate", "")),
        "score": int(score),
        "tags": "|".join(post_tags(attributes)),
        "title": attributes.get("Title", ""),
        "type": kind,
    }
    group = prefix + attributes.get("ParentId", post)
    record = Record(client, domain, features)
    yield _Post(record, f"{prefix}{post}", group, attributes["Body"])


def _date(text: str) -> str:
    """Returns a date in the format of TFF's data."""
    return f"{text.replace('T', ' ')} UTC" if text else ""


FORMAT = Format(
    read=read,
    find_inputs=find_inputs,
    check=check,
    has_groups=True,
)


def post_type(attributes: Mapping[str, str]) -> Optional[str]:
    """Returns "question" or "answer"; None for a post that is neither."""
    return _TYPES.get(attributes.get("PostTypeId", ""))


def post_tags(attributes: Mapping[str, str]) -> list[str]:
    """Returns the tags of a question, from <a><b> or, in newer dumps, |a|b|."""
    text = attributes.get("Tags", "").replace("><", "|").strip("<>|")
    return text.split("|") if text else []


class _QuestionTags:
    """A compact map from a site's questions to their tags, which answers inherit."""

    def __init__(self) -> None:
        self._ids = array("q")
        self._tags = array("i")
        self._numbers: dict[str, int] = {}
        self._names: list[str] = []

    def add(self, question: int, tag: str) -> None:
        number = self._numbers.setdefault(tag, len(self._numbers))
        if number == len(self._names):
            self._names.append(tag)
        # Dumps are sorted by id, so this normally appends.
        at = bisect.bisect_left(self._ids, question)
        self._ids.insert(at, question)
        self._tags.insert(at, number)

    def tag(self, question: int) -> Optional[str]:
        """Returns the tag of a question; None for a question that was not added."""
        at = bisect.bisect_left(self._ids, question)
        if at == len(self._ids) or self._ids[at] != question:
            return None
        return self._names[self._tags[at]]


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 19
