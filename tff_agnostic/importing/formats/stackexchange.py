"""Dumps of Stack Exchange and Stack Overflow: `Posts.xml`.

A client is the owner of posts, an example one of their sentences, a domain what --domain says.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any
from xml.etree.ElementTree import ParseError

from tff_agnostic.data.records import Record, Value
from tff_agnostic.errors import UserError
from tff_agnostic.importing.formats.html_text import html_blocks
from tff_agnostic.importing.formats.post_domains import PostDomains, tags_of_post, type_of_post
from tff_agnostic.importing.formats.sentences import sentences_of
from tff_agnostic.importing.records import input_files
from tff_agnostic.importing.records.format import Format
from tff_agnostic.importing.records.markup import Markup, parse_markup, treat_math
from tff_agnostic.importing.records.options import ImportOptions
from tff_agnostic.importing.records.reading import ReadLog, RecordError, SourceExample

_BLOCK = 1 << 20
_EXPECTED = "the Posts.xml of a Stack Exchange dump"


def read(options: ImportOptions, paths: Sequence[Path], log: ReadLog) -> Iterator[SourceExample]:
    """Yields the sentences of all posts, one post in memory at a time.

    With several files the clients are SITE/OWNER, otherwise OWNER; the site is the folder's name.

    Raises:
        UserError: If a file is not such a dump, or holds entities or a document type.
    """
    markup = parse_markup(options.markup)
    dumps = list(find_inputs(paths))
    for path in dumps:
        site = path.resolve().parent.name
        prefix = f"{site}/" if len(dumps) > 1 else ""
        domains = PostDomains(options, site)
        for number, attributes in _rows(path, options, log):
            yield from _sentences(attributes, prefix, path, number, markup, domains, log)


def check(options: ImportOptions) -> None:
    """Raises a `UserError` if --markup is not understood."""
    parse_markup(options.markup)


def find_inputs(paths: Sequence[Path]) -> list[Path]:
    """Returns the dumps: files as they are, in a folder every Posts.xml below.

    Raises:
        UserError: If there is none, or two are of sites of one name.
    """
    found = input_files.expand(paths, ("Posts.xml", "Posts.xml.gz"))
    sites: dict[str, Path] = {}
    for path in found:
        site = path.resolve().parent.name
        if site in sites:
            raise UserError(
                f"{path}: expected a folder of its own for each site, found another {site}: "
                f"{sites[site]}"
            )
        sites[site] = path
    return found


def _rows(
    path: Path, options: ImportOptions, log: ReadLog
) -> Iterator[tuple[int, Mapping[str, str]]]:
    """Yields the number and the attributes of each row."""
    # Imported here, like every library of one format: they take time to load.
    from defusedxml import ElementTree
    from defusedxml.common import DefusedXmlException

    with input_files.open_input(path, options, log) as file:
        parser = ElementTree.DefusedXMLParser(forbid_dtd=True)
        try:
            events = ElementTree.iterparse(_Blocks(file), ("start", "end"), parser, forbid_dtd=True)
            _, root = next(events)
            if root.tag != "posts":
                raise UserError(f"{path}: expected {_EXPECTED}, found <{root.tag}>")
            number, row = 0, root
            for event, element in events:
                if event == "start" and row is not root:
                    raise UserError(
                        f"{path}: expected {_EXPECTED}, found <{element.tag}> within <{row.tag}>"
                    )
                row = element
                if event == "end" and element is not root:
                    number += 1
                    file.end_record()
                    yield number, element.attrib
                    # The root would otherwise keep every row of the file.
                    root.clear()
                    row = root
        except ParseError as e:
            raise _malformed(path, e, parser) from e
        except DefusedXmlException as e:
            raise UserError(
                f"{path}: expected {_EXPECTED}, found a document type or entity declaration, "
                f"which are refused ({type(e).__name__})"
            ) from e
        except UserError:
            raise
        except (LookupError, ValueError) as e:
            # The encoding that the file names is not known, or the parser does not take it.
            raise UserError(f"{path}: expected {_EXPECTED}, found: {e!s:.100}") from e


class _Blocks:
    """A file that is read in large blocks: a parser may begin a long value anew with each one.

    Args:
        file: The file.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def read(self, size: int = -1) -> bytes:
        """Reads the next block, however many bytes are asked for."""
        del size
        return self._file.read(_BLOCK)


def _malformed(path: Path, error: ParseError, parser: Any) -> UserError:
    line, column = error.position
    if not path.name.endswith(".gz"):
        with open(path, "rb") as file:
            wrong = _wrong_byte(file, max(0, parser.parser.ErrorByteIndex))
        if wrong is not None:
            return input_files.not_utf8(path, *wrong)
    found = str(error).partition(":")[0]
    return UserError(f"{path}:{line}: expected XML, found {found} (column {column + 1})")


def _wrong_byte(file: IO[bytes], offset: int) -> "tuple[int, int] | None":
    file.seek(offset)
    try:
        # A character has at most four bytes; one that is cut off at the end is no error.
        file.read(4).decode("utf-8")
    except UnicodeDecodeError as e:
        if e.start == 0:
            return offset, e.object[0]
    return None


def _sentences(
    attributes: Mapping[str, str],
    prefix: str,
    path: Path,
    number: int,
    markup: Markup,
    domains: PostDomains,
    log: ReadLog,
) -> Iterator[SourceExample]:
    log.num_records += 1
    owner = attributes.get("OwnerUserId")
    client = None if owner is None else prefix + owner
    kind = type_of_post(attributes)
    post = attributes.get("Id", "")
    try:
        if not post or "PostTypeId" not in attributes or "Body" not in attributes:
            raise RecordError(
                f"{path} row {number}",
                "post without Id, PostTypeId or Body",
                f"expected Id, PostTypeId and Body, found {', '.join(attributes) or 'nothing'}",
            )
        score = _score(attributes.get("Score", "0"), path, number)
    except RecordError as e:
        log.bad(e, client)
        return
    if kind is None:
        log.skip("neither question nor answer", client)
        return
    # Of a question without owner too: its answers have its tags.
    domain = domains.of(attributes)
    if client is None:
        log.skip("post without owner")
        return
    if domain is None:
        log.skip(f"post without {domains.kind}", client)
        return
    shared: dict[str, Value] = {
        "creation_date": _date(attributes.get("CreationDate", "")),
        "score": score,
        "tags": "|".join(tags_of_post(attributes)),
        "title": attributes.get("Title", ""),
        "type": kind,
    }
    group = prefix + attributes.get("ParentId", post)
    any_sentence = False
    for k, tokens in enumerate(
        sentence
        for block in html_blocks(attributes["Body"], markup.code)
        for sentence in sentences_of(treat_math(block, markup.math))
    ):
        any_sentence = True
        record = Record(client, domain, {"tokens": tokens, **shared})
        yield SourceExample(record, f"{prefix}{post}#{k}", group)
    if not any_sentence:
        log.skip("post without text", client)


def _score(text: str, path: Path, number: int) -> int:
    try:
        return int(text)
    except ValueError:
        raise RecordError(
            f"{path} row {number}",
            "score that is no whole number",
            f"expected a whole number as Score, found {text!r}",
        ) from None


def _date(text: str) -> str:
    """Returns a date as TFF's data have it."""
    return f"{text.replace('T', ' ')} UTC" if text else ""


FORMAT = Format(
    summary="Posts.xml of a Stack Exchange or Stack Overflow dump; domains are question and "
    "answer, sites or tags",
    read=read,
    find_inputs=find_inputs,
    check=check,
    has_groups=True,
)
