"""Folders of texts: a folder for each domain, with UTF-8 files `.txt`.

A client is a file, or a passage of some of its sentences; an example is a sentence; a group is a
file, so that --split_by=group keeps the passages of one together.
"""

import codecs
from collections.abc import Iterator, Sequence
from pathlib import Path

from tff_agnostic.data.records import Record
from tff_agnostic.errors import UserError
from tff_agnostic.importing import input_files
from tff_agnostic.importing.formats import Format
from tff_agnostic.importing.options import ImportOptions
from tff_agnostic.importing.reading import ReadLog, SourceExample
from tff_agnostic.importing.words import Normalizer, is_sentence_end

_SUFFIX = ".txt"
_BLOCK = 1 << 16
# Where a text has no ends of sentences at all, this is where they are cut.
_MAX_WORDS = 1000


def read(options: ImportOptions, paths: Sequence[Path], log: ReadLog) -> Iterator[SourceExample]:
    """Yields the sentences of all files, a block of a file in memory at a time.

    Raises:
        UserError: If a folder has no texts, or a file is not UTF-8.
    """
    normalizer = Normalizer(options, default_tokenizer="spaces")
    size = options.sentences_per_client
    for document, path in _texts(paths).items():
        domain = document.partition("/")[0]
        count = 0
        for words in _sentences(path, normalizer, log):
            log.num_records += 1
            client = f"{document}#{count // size:04d}" if size else document
            tokens = normalizer.sentence(words)
            if not tokens:
                log.skip("sentence without words", client)
                continue
            record = Record(client, domain, {"tokens": tokens})
            yield SourceExample(record, f"{document}:{count}", document)
            count += 1


def find_inputs(paths: Sequence[Path]) -> list[Path]:
    """Returns the texts below the domains' folders.

    Raises:
        UserError: If there are none.
    """
    return list(_texts(paths).values())


def _texts(paths: Sequence[Path]) -> dict[str, Path]:
    """Returns the files by DOMAIN/NAME."""
    texts: dict[str, Path] = {}
    for root in paths:
        folders = sorted(path for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
        if not folders:
            raise UserError(f"{root}: expected a folder with a folder for each domain, found none")
        for folder in folders:
            for path in input_files.expand([folder], (_SUFFIX,)):
                document = path.relative_to(root).as_posix()[: -len(_SUFFIX)]
                if document in texts:
                    raise UserError(
                        f"{path}: expected different names in different inputs, found "
                        f"{texts[document]} as well"
                    )
                texts[document] = path
    return texts


def _sentences(path: Path, normalizer: Normalizer, log: ReadLog) -> Iterator[list[str]]:
    words: list[str] = []
    ended = False
    for piece in _pieces(path, log):
        for word in normalizer.tokenize(piece):
            ends = is_sentence_end(word)
            # "... ?" ends one sentence, not two.
            if (ended and not ends) or len(words) == _MAX_WORDS:
                yield words
                words = []
            words.append(word)
            ended = ends
    if words:
        yield words


def _pieces(path: Path, log: ReadLog) -> Iterator[str]:
    """Yields a text in pieces that end between words."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    offset, rest = 0, ""
    with input_files.open_input(path, log) as file:
        while True:
            block = file.read(_BLOCK)
            pending = len(decoder.getstate()[0])
            try:
                text = rest + decoder.decode(block, final=not block)
            except UnicodeDecodeError as e:
                raise input_files.not_utf8(
                    path, offset - pending + e.start, e.object[e.start]
                ) from e
            offset += len(block)
            if not block:
                yield text
                return
            cut = max(text.rfind(space) for space in " \n\t")
            # A piece without spaces is no text of words; it must not grow with the file.
            cut = len(text) - 1 if cut < 0 and len(text) > _BLOCK else cut
            yield text[: cut + 1]
            rest = text[cut + 1 :]


FORMAT = Format(
    summary="a folder for each domain, with texts as .txt files; clients are files or passages",
    read=read,
    find_inputs=find_inputs,
    has_groups=True,
)
