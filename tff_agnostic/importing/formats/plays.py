"""Plays as plain text: speeches, a blank line between them, each headed by a line `SPEAKER:`.

A client is a speaker, by the name as it is printed; an example is a speech; the domain is the file,
or the one that is given.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from tff_agnostic.data.records import Record
from tff_agnostic.importing.columns.words import Normalizer
from tff_agnostic.importing.records import input_files
from tff_agnostic.importing.records.format import Format
from tff_agnostic.importing.records.options import ImportOptions
from tff_agnostic.importing.records.reading import ReadLog, RecordError, SourceExample

_SUFFIX = ".txt"
_AFTER_NAME = ":"


def read(options: ImportOptions, paths: Sequence[Path], log: ReadLog) -> Iterator[SourceExample]:
    """Yields the speeches of all files, one in memory at a time.

    Raises:
        UserError: If there are no texts, or a file is not UTF-8.
    """
    normalizer = Normalizer(options, default_tokenizer="words")
    for path in find_inputs(paths):
        domain = options.domain_name or path.stem
        place = input_files.place_of(path, paths)
        for number, speech in _speeches(path, options, log):
            log.num_records += 1
            where = f"{place}:{number}"
            name = speech[0].strip()
            if not name.endswith(_AFTER_NAME) or name == _AFTER_NAME:
                detail = f"expected a speech that begins with a line SPEAKER:, found {name!r:.60}"
                log.bad(RecordError(where, "speech without a speaker", detail))
                continue
            client = name[: -len(_AFTER_NAME)]
            tokens = normalizer.sentence(normalizer.tokenize(" ".join(speech[1:])))
            if not tokens:
                log.skip("speech without words", client)
                continue
            yield SourceExample(Record(client, domain, {"tokens": tokens}), where)


def find_inputs(paths: Sequence[Path]) -> list[Path]:
    """Returns the texts.

    Raises:
        UserError: If there are none.
    """
    return input_files.expand(paths, (_SUFFIX,))


def _speeches(path: Path, options: ImportOptions, log: ReadLog) -> Iterator[tuple[int, list[str]]]:
    """Yields the lines of each speech, and the number of its first one."""
    speech: list[str] = []
    first = 1
    with input_files.open_input(path, options, log) as file:
        for number, line in enumerate(input_files.decoded_lines(file, path), start=1):
            if line.strip():
                first = first if speech else number
                speech.append(line)
            elif speech:
                file.end_record()
                yield first, speech
                speech = []
    if speech:
        yield first, speech


FORMAT = Format(
    summary="plays as .txt files, speeches under lines SPEAKER: with blank lines between; clients "
    "are speakers",
    read=read,
    find_inputs=find_inputs,
)
