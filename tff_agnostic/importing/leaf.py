"""Reader of LEAF's JSON, whose `user_data` has the lists `x` and `y` of each user."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Optional

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.options import Verbatim
from tff_agnostic.data.store_format import LABEL, TOKENS, Record, Value
from tff_agnostic.importing import files, source
from tff_agnostic.importing.cells import CellError, Labels, vector_in
from tff_agnostic.importing.options import SPLIT_NAMES, ImportOptions
from tff_agnostic.importing.source import Format, ReadLog, SourceExample
from tff_agnostic.importing.table_options import VECTOR, check_shape
from tff_agnostic.importing.tables import csv_errors
from tff_agnostic.importing.text import Normalizer

# Maximum number of dimensions of an array, which LEAF writes as nested lists.
_MAX_DEPTH = 8
# Maximum nesting of lists and objects; a user's lists begin at the third level.
_MAX_NESTING = 32
# A JSON string, either complete, or cut by the end of the block, possibly within an escape.
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*("|\\?\Z)', re.DOTALL)
_BRACKET = re.compile(rb"[\[\]{}]")


def read(options: ImportOptions, paths: Sequence[Path], log: ReadLog) -> Iterator[SourceExample]:
    """Yields the examples of all users, with one user in memory at a time.

    Examples in a folder named train or test, as written by LEAF's scripts, belong to that split.
    """
    converter = _Converter(options)
    for path in find_inputs(paths):
        split = _file_split(path)
        name = files.input_place(path, paths)
        for user, data in _users(path, options, log):
            yield from converter.examples(user, data, split, name, log)


def find_inputs(paths: Sequence[Path]) -> list[Path]:
    """Returns the given files, and the .json files in the given folders."""
    result = files.expand(paths, (".json",))
    other = next((path for path in result if _file_split(path) is None), None)
    if other is not None and any(map(_file_split, result)):
        raise UserError(
            f"{other}: expected a folder train or test, as for other files: LEAF's scripts also "
            "write the users to all_data and sampled_data; input=FOLDER,... names the folders"
        )
    return result


def _file_split(path: Path) -> Optional[str]:
    return path.parent.name if path.parent.name in SPLIT_NAMES else None


def check(options: ImportOptions) -> None:
    """Raises a `UserError` if options for domains, shapes or texts are invalid."""
    check_shape(options)
    if (options.domains_file is None) == (options.domain_name is None):
        result = Verbatim("neither" if options.domain_name is None else "both")
        raise options.error("domains_file", "this or domain_name", result)
    if options.text_column is not None and not options.text_column.isdecimal():
        raise options.error("text_column", "a position from 0 with format=leaf")


def _users(path: Path, options: ImportOptions, log: ReadLog) -> Iterator[tuple[str, Any]]:
    # Import on demand, like every library for a single format.
    import ijson

    result = False
    with files.open_input(path, options, log) as file:
        try:
            for user, data in ijson.kvitems(_Nested(file, path), "user_data", use_float=True):
                result = True
                file.limits.end_record()
                yield user, data
        except (ijson.JSONError, UnicodeDecodeError) as e:
            raise UserError(f"{path}: expected JSON, found: {' '.join(str(e).split())}") from e
    if not result:
        raise UserError(f"{path}: expected LEAF's JSON with users in user_data, found none")


class _Nested:
    """A JSON file that rejects deep nesting, as a parser's memory grows with the depth.

    Args:
        path: Path of the file, for messages.
    """

    def __init__(self, file: IO[bytes], path: Path) -> None:
        self._file = file
        self._path = path
        self._depth = 0
        # The beginning of a string that continues in the next block.
        self._open = b""

    def read(self, size: int = -1) -> bytes:
        block = self._file.read(size)
        text, self._open = self._open + block, b""
        for bracket in _BRACKET.findall(_STRING.sub(self._cut, text)):
            self._depth += 1 if bracket in b"[{" else -1
            if self._depth > _MAX_NESTING:
                raise UserError(
                    f"{self._path}: expected LEAF's JSON, found lists and objects nested over "
                    f"{_MAX_NESTING} deep"
                )
        return block

    def _cut(self, string: re.Match[bytes]) -> bytes:
        self._open = b"" if string[1] == b'"' else b'"' + string[1]
        return b""


class _Converter:
    def __init__(self, options: ImportOptions) -> None:
        self._options = options
        self._labels = Labels(options)
        self._normalizer = Normalizer(options, default_tokenizer="words")
        self._domains: Optional[Mapping[str, str]] = None
        if options.domains_file is not None:
            self._domains = _read_domains(Path(options.domains_file), options)

    def examples(
        self, user: str, data: Any, split: Optional[str], name: str, log: ReadLog
    ) -> Iterator[SourceExample]:
        place = f"{name} user {user}"
        try:
            pairs = _pairs(data)
            domain = self._domain(user)
        except CellError as e:
            log.num_records += 1
            log.bad(place, e, user)
            return
        if not pairs:
            log.num_records += 1
            log.skip("user without examples", user)
        for i, (x, y) in enumerate(pairs):
            log.num_records += 1
            example_place = f"{place} example {i}"
            try:
                features = self._features(x, y)
            except CellError as e:
                log.bad(example_place, e, user)
                continue
            if features.get(TOKENS) == "":
                log.skip("text without words", user)
                continue
            yield SourceExample(Record(user, domain, features, split), example_place)

    def _domain(self, user: str) -> str:
        if self._domains is None:
            return str(self._options.domain_name)
        if user not in self._domains:
            detail = f"expected a line in {self._options.domains_file}, found none"
            raise CellError("unknown domain", detail)
        return self._domains[user]

    def _features(self, x: Any, y: Any) -> dict[str, Value]:
        if self._options.text_column is not None:
            x = _item(x, int(self._options.text_column))
        if isinstance(x, str):
            tokens = self._normalizer.sentence(self._normalizer.tokenize(x))
            # In LEAF's data for language models, a label is the text that follows x, not a class.
            is_text = isinstance(y, str) and not self._options.class_names
            if is_text and self._options.are_classes:
                return {TOKENS: tokens}
            return {TOKENS: tokens, LABEL: self._labels.parse_number(y)}
        values = _flat(x)
        return {
            self._options.feature_name or VECTOR: vector_in(values, self._options.feature_shape),
            LABEL: self._labels.parse_number(y),
        }


def _pairs(data: Any) -> list[tuple[Any, Any]]:
    x, y = (data.get("x"), data.get("y")) if isinstance(data, dict) else (None, None)
    if not isinstance(x, list) or not isinstance(y, list) or len(x) != len(y):
        detail = f"expected lists x and y of one length, found {data!r:.60}"
        raise CellError("user without x and y", detail)
    return list(zip(x, y))


def _item(x: Any, position: int) -> str:
    if not isinstance(x, list) or position >= len(x) or not isinstance(x[position], str):
        detail = f"expected a list with a text at {position}, found {x!r:.60}"
        raise CellError("invalid text", detail)
    return str(x[position])


def _flat(x: Any) -> list[Any]:
    """Flattens nested lists, which must be equally long at each level."""
    level, depth = [x], 0
    while any(isinstance(part, list) for part in level):
        depth += 1
        lengths = {len(part) if isinstance(part, list) else None for part in level}
        if len(lengths) > 1 or depth > _MAX_DEPTH:
            raise CellError(
                "wrong number of features",
                f"expected at most {_MAX_DEPTH} levels of lists of one length, found {x!r:.60}",
            )
        level = [value for part in level for value in part]
    return level


def _read_domains(path: Path, options: ImportOptions) -> dict[str, str]:
    """Reads the domain of each client from a CSV file with lines CLIENT,DOMAIN."""
    domains: dict[str, str] = {}
    with files.open_input(path, options, ReadLog()) as file:
        lines = csv.reader(files.decoded_lines(file, path), strict=True)
        with csv_errors(path, lines):
            for values in filter(None, lines):
                if len(values) != 2 or not all(values) or values[0] in domains:
                    raise UserError(
                        f"{path}:{lines.line_num}: expected CLIENT,DOMAIN, each client once, found "
                        f"{','.join(values)!r}"
                    )
                domains[values[0]] = values[1]
    return domains


FORMAT = Format(
    read=source.in_rows(read),
    find_inputs=find_inputs,
    check=check,
)
