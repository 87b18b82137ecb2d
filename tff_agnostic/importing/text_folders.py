"""Readers of folders with texts, and of plays as plain text.

- `text_folders`: a folder for each domain, with UTF-8 files `.txt`; or the files of one domain. An
  example is a sentence. A client is a file, or a passage of some of its sentences. A group is a
  file, or a passage of several clients, which `split_by="group"` keeps in one split.
- `plays`: speeches between blank lines, each headed by a line `SPEAKER:`. An example is a speech. A
  client is a speaker, identified by the printed name. The domain is the name of the file, or the
  option `domain_name`.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Callable, Optional

from tff_agnostic.base.errors import UserError
from tff_agnostic.data.store_format import TOKENS, Record
from tff_agnostic.importing import files, source
from tff_agnostic.importing.cells import CellError
from tff_agnostic.importing.options import ImportOptions
from tff_agnostic.importing.source import Format, ReadLog, SourceExample
from tff_agnostic.importing.text import Normalizer, is_sentence_end

_SUFFIX = ".txt"
_BLOCK = 1 << 16
# Maximum number of words in a sentence, as some texts have no sentence ends.
_MAX_WORDS = 1000
_AFTER_NAME = ":"


def read(options: ImportOptions, paths: Sequence[Path], log: ReadLog) -> Iterator[SourceExample]:
    """Yields the sentences of all files, with one block of a file in memory at a time."""
    normalizer = Normalizer(options, default_tokenizer="spaces")
    sentences = _SENTENCES[options.sentences]
    size, group_size = options.sentences_per_client, options.sentences_per_group
    for document, (path, domain) in _texts_with_domains(options, paths, log).items():
        count = 0
        for words in sentences(_pieces(path, options, log), normalizer):
            log.num_records += 1
            client = f"{document}#{count // size:04d}" if size else document
            group = f"{document}#{count // group_size:04d}" if group_size else document
            tokens = normalizer.sentence(words)
            if not tokens:
                log.skip("sentence without words", client)
                continue
            record = Record(client, domain, {TOKENS: tokens})
            yield SourceExample(record, f"{document}:{count}", group)
            count += 1


def find_inputs(paths: Sequence[Path]) -> list[Path]:
    """Returns all text files, inside and outside of the domains' folders."""
    return [path for path, _ in _texts(paths).values()]


def check(options: ImportOptions) -> None:
    """Raises a `UserError` if `sentences_per_group` has no effect, or would divide a client."""
    size, group_size = options.sentences_per_client, options.sentences_per_group
    if not group_size:
        return
    if options.split_by != "group":
        raise options.error("sentences_per_group", "no value without split_by=group")
    if not size or group_size % size:
        expected = f"a multiple of sentences_per_client, which is {size}"
        raise options.error("sentences_per_group", expected)


def _texts_with_domains(
    options: ImportOptions, paths: Sequence[Path], log: ReadLog
) -> dict[str, tuple[Path, str]]:
    """Returns (path, domain) of each text, by name; logs texts without a domain."""
    result = {}
    for document, (path, folder) in _texts(paths).items():
        domain = options.domain_name or folder
        if domain is None:
            log.num_records += 1
            log.skip("text outside of the domains' folders")
        else:
            result[document] = (path, domain)
    if not result:
        raise UserError(
            f"{', '.join(map(str, paths))}: expected a folder with a folder for each domain, or "
            "domain_name for texts of one domain, found texts outside of folders"
        )
    return result


def _texts(paths: Sequence[Path]) -> Mapping[str, tuple[Path, Optional[str]]]:
    """Returns (path, domain's folder or None) of each text, by name DOMAIN/NAME or NAME."""
    texts: dict[str, tuple[Path, Optional[str]]] = {}

    def add(root: Path, path: Path, folder: Optional[str] = None) -> None:
        document = path.relative_to(root).as_posix()[: -len(_SUFFIX)]
        if document in texts:
            raise UserError(
                f"{path}: expected different names in different inputs, found "
                f"{texts[document][0]} as well"
            )
        texts[document] = (path, folder)

    for root in paths:
        if not root.is_dir():
            if root.suffix.lower() != _SUFFIX:
                raise UserError(f"{root}: expected a folder, or a text {_SUFFIX}, found neither")
            files.check_is_file(root)
            add(root.parent, root)
            continue
        entries = sorted(root.iterdir())
        outside = [path for path in entries if path.suffix.lower() == _SUFFIX and not path.is_dir()]
        folders = [path for path in entries if path.is_dir()]
        if not outside and not folders:
            raise UserError(
                f"{root}: expected a folder with a folder for each domain, or texts {_SUFFIX} of "
                "one domain, found neither"
            )
        for path in files.expand(outside, (_SUFFIX,)):
            add(root, path)
        for folder in folders:
            for path in files.expand([folder], (_SUFFIX,)):
                add(root, path, folder.name)
    return texts


def _by_punctuation(pieces: Iterable[str], normalizer: Normalizer) -> Iterator[list[str]]:
    words: list[str] = []
    ended = False
    for piece in pieces:
        for word in normalizer.tokenize(piece):
            ends = is_sentence_end(word)
            # Several signs such as "... ?" end only one sentence.
            if (ended and not ends) or len(words) == _MAX_WORDS:
                yield words
                words = []
            words.append(word)
            ended = ends
    if words:
        yield words


def _by_lines(pieces: Iterable[str], normalizer: Normalizer) -> Iterator[list[str]]:
    words: list[str] = []
    for piece in pieces:
        *ended, rest = piece.split("\n")
        for line in ended:
            words += normalizer.tokenize(line)
            yield from _at_most(words)
            words = []
        words += normalizer.tokenize(rest)
        # Limit the length of a line: a file without line breaks must not fill the memory.
        while len(words) > _MAX_WORDS:
            yield words[:_MAX_WORDS]
            words = words[_MAX_WORDS:]
    yield from _at_most(words)


def _by_length(pieces: Iterable[str], normalizer: Normalizer) -> Iterator[list[str]]:
    words: list[str] = []
    for piece in pieces:
        words += normalizer.tokenize(piece)
        *whole, words = list(_at_most(words)) or [[]]
        yield from whole
    yield from _at_most(words)


def _at_most(words: list[str]) -> Iterator[list[str]]:
    """Splits words into lists of at most `_MAX_WORDS`, without an empty list."""
    for start in range(0, len(words), _MAX_WORDS):
        yield words[start : start + _MAX_WORDS]


# Functions that get a text in pieces, which end between words, and yield each sentence's words.
_SENTENCES: dict[str, Callable[[Iterable[str], Normalizer], Iterator[list[str]]]] = {
    "punctuation": _by_punctuation,
    "lines": _by_lines,
    "none": _by_length,
}


def _pieces(path: Path, options: ImportOptions, log: ReadLog) -> Iterator[str]:
    """Yields a text in pieces that end between words."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    line, column, rest = 1, 1, ""
    with files.open_input(path, options, log) as file:
        while True:
            block = file.read(_BLOCK)
            try:
                decoded = decoder.decode(block, final=not block)
            except UnicodeDecodeError as e:
                before = e.object[: e.start].decode("utf-8")
                line, column = _moved(line, column, before)
                raise files.not_utf8(path, line, column, e.object[e.start]) from e
            line, column = _moved(line, column, decoded)
            text = rest + decoded
            if "\0" in text:
                # Reject NUL bytes, which are not text: a sparse file may have very many.
                raise UserError(f"{path}: expected text, found a NUL character")
            # End the record at each piece, as `_MAX_WORDS` already limits sentences.
            file.limits.end_record()
            if not block:
                yield text
                return
            cut = max(text.rfind(space) for space in " \n\t")
            # Divide text without spaces anywhere, so that a piece does not grow with the file.
            cut = len(text) - 1 if cut < 0 and len(text) > _BLOCK else cut
            yield text[: cut + 1]
            rest = text[cut + 1 :]


def _moved(line: int, column: int, text: str) -> tuple[int, int]:
    """Returns the line and the column where a text ends that starts at `line` and `column`."""
    *lines, last = text.split("\n")
    return line + len(lines), len(last) + (1 if lines else column)


FORMAT = Format(
    read=source.in_rows(read),
    find_inputs=find_inputs,
    check=check,
    has_groups=True,
)


def read_plays(
    options: ImportOptions, paths: Sequence[Path], log: ReadLog
) -> Iterator[SourceExample]:
    """Yields the speeches of all files, with one speech in memory at a time."""
    normalizer = Normalizer(options, default_tokenizer="words")
    for path in find_plays(paths):
        domain = options.domain_name or path.stem
        place = files.input_place(path, paths)
        for number, speech in _speeches(path, options, log):
            log.num_records += 1
            where = f"{place}:{number}"
            name = speech[0].strip()
            if not name.endswith(_AFTER_NAME) or name == _AFTER_NAME:
                detail = f"expected a speech that begins with a line SPEAKER:, found {name!r:.60}"
                log.bad(where, CellError("speech without a speaker", detail))
                continue
            client = name[: -len(_AFTER_NAME)]
            tokens = normalizer.sentence(normalizer.tokenize(" ".join(speech[1:])))
            if not tokens:
                log.skip("speech without words", client)
                continue
            yield SourceExample(Record(client, domain, {TOKENS: tokens}), where)


def find_plays(paths: Sequence[Path]) -> list[Path]:
    """Returns the text files."""
    return files.expand(paths, (_SUFFIX,))


def _speeches(path: Path, options: ImportOptions, log: ReadLog) -> Iterator[tuple[int, list[str]]]:
    """Yields (number of the first line, lines) of each speech."""
    speech: list[str] = []
    first = 1
    with files.open_input(path, options, log) as file:
        for number, line in enumerate(files.decoded_lines(file, path), start=1):
            if line.strip():
                first = first if speech else number
                speech.append(line)
            elif speech:
                file.limits.end_record()
                yield first, speech
                speech = []
    if speech:
        yield first, speech


PLAYS = Format(
    read=source.in_rows(read_plays),
    find_inputs=find_plays,
)
