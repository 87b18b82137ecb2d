"""NumPy files: arrays of features, labels, clients and domains, a row for each example.

Names may end in _train, _heldout and _test; then the file itself says what is for what.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

import numpy as np

from tff_agnostic.data.records import Record
from tff_agnostic.errors import UserError
from tff_agnostic.importing.columns.columns import require_client_and_domain
from tff_agnostic.importing.columns.labels import Labels
from tff_agnostic.importing.columns.vectors import (
    PIXELS,
    VECTOR,
    check_finite,
    is_images,
    to_float32,
    unit_interval,
)
from tff_agnostic.importing.formats.npz_columns import NpzColumns
from tff_agnostic.importing.records import input_files
from tff_agnostic.importing.records.format import Format
from tff_agnostic.importing.records.options import SPLIT_NAMES, ImportOptions
from tff_agnostic.importing.records.reading import ReadLog, RecordError, SourceExample

_BLOCK_ROWS = 1024


def read(options: ImportOptions, paths: Sequence[Path], log: ReadLog) -> Iterator[SourceExample]:
    """Yields the rows of all files, a block of rows in memory at a time.

    Raises:
        UserError: If a file is damaged, an array is missing or of a wrong type.
    """
    columns = _columns(options)
    labels = Labels(options)
    for path in find_inputs(paths):
        with NpzColumns(path, options) as archive:
            for split, suffix in _parts(archive.names, columns, path):
                names = {role: name + suffix for role, name in columns.items()}
                part = input_files.place_of(path, paths) + suffix
                for start, rows in _rows(archive, names, log):
                    yield from _examples(rows, start, part, split, options, labels, log)


def find_inputs(paths: Sequence[Path]) -> list[Path]:
    """Returns the .npz files."""
    return input_files.expand(paths, (".npz",))


def check(options: ImportOptions) -> None:
    """Raises a `UserError` if columns are missing or superfluous."""
    if len(options.feature_columns) > 1:
        raise UserError(
            f"--feature_columns: expected the name of one array with --format=npz, found "
            f"{','.join(options.feature_columns)}"
        )
    require_client_and_domain(options)


def _columns(options: ImportOptions) -> dict[str, str]:
    """Returns the name of the array for each role."""
    columns = {
        "features": options.feature_columns[0] if options.feature_columns else "x",
        "label": options.label_column or "y",
        "client": options.client_column or "",
    }
    if options.domain_column is not None:
        columns["domain"] = options.domain_column
    return columns


def _parts(
    found: Sequence[str], columns: Mapping[str, str], path: Path
) -> list[tuple[Optional[str], str]]:
    """Returns the split and the suffix of the names of each part of a file."""
    suffixes = [("" if split is None else f"_{split}", split) for split in (*SPLIT_NAMES, None)]
    parts = [(split, suffix) for suffix, split in suffixes if columns["features"] + suffix in found]
    wanted = [name + suffix for _, suffix in parts for name in columns.values()]
    missing = [name for name in wanted or columns.values() if name not in found]
    if missing:
        raise UserError(
            f"{path}: expected an array {missing[0]} (or with _train and _test), found "
            f"{', '.join(found) or 'none'}"
        )
    return parts


def _rows(
    archive: NpzColumns, names: Mapping[str, str], log: ReadLog
) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    start = before = 0
    for size, arrays in archive.blocks(list(dict.fromkeys(names.values())), _BLOCK_ROWS):
        yield start, {role: arrays[name] for role, name in names.items()}
        start += len(arrays[names["features"]])
        log.advance(size - before)
        before = size


def _examples(
    rows: Mapping[str, np.ndarray],
    start: int,
    part: str,
    split: Optional[str],
    options: ImportOptions,
    labels: Labels,
    log: ReadLog,
) -> Iterator[SourceExample]:
    features = rows["features"]
    images = is_images(features.dtype, features.shape[1:])
    if features.dtype.kind not in "iufb":
        raise UserError(f"{part}: expected numbers as features, found {features.dtype}")
    for role in ("label", "client", "domain"):
        if role in rows and rows[role].ndim != 1:
            shape = list(rows[role].shape[1:])
            raise UserError(f"{part}: expected one {role} in a row, found an array {shape}")
        if role in rows:
            _check_characters(rows[role], f"{part}: {role}", start)
    name = options.feature_name or (PIXELS if images else VECTOR)
    values = unit_interval(features) if images else to_float32(features)
    for i in range(len(values)):
        log.num_records += 1
        place = f"{part} row {start + i}"
        client = None
        try:
            client = _text(rows["client"][i], place)
            domain = str(options.domain_name)
            if "domain" in rows:
                domain = _text(rows["domain"][i], place)
            label = labels.number_of(_plain(rows["label"][i], place), place)
            record = Record(
                client, domain, {name: check_finite(values[i], place), "label": label}, split
            )
        except RecordError as e:
            log.bad(e, client)
            continue
        yield SourceExample(record, place)


def _check_characters(texts: np.ndarray, what: str, start: int) -> None:
    """Checks that texts hold characters: NumPy takes any 32 bits for one."""
    if texts.dtype.kind != "U":
        return
    codes = texts.view(np.dtype(np.uint32).newbyteorder(texts.dtype.byteorder))
    is_none = (codes > sys.maxunicode) | ((codes >= 0xD800) & (codes < 0xE000))
    if is_none.any():
        at = int(np.argmax(is_none))
        row = start + at // (codes.size // len(texts))
        raise UserError(f"{what}: expected text, found the character {codes[at]:#x} in row {row}")


def _plain(value: Any, place: str) -> Any:
    value = value.item() if isinstance(value, np.generic) else value
    try:
        return value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError as e:
        raise RecordError(
            place, "text that is not UTF-8", f"expected UTF-8, found byte 0x{value[e.start]:02x}"
        ) from None


def _text(value: Any, place: str) -> str:
    return str(_plain(value, place))


FORMAT = Format(
    summary="NumPy .npz with arrays of features, labels, clients and domains",
    read=read,
    find_inputs=find_inputs,
    check=check,
)
