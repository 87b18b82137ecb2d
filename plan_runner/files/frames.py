"""The frames of a TFRecord file: how long every record says that it is.

TensorFlow takes a length at its word, and ends the process if there is not so much memory.
"""

import os
import struct
from pathlib import Path

from plan_runner.errors import PlanError

# A record's length, the length's checksum, the record, and its checksum.
_LENGTH = struct.Struct("<Q")
_HEADER_BYTES = _LENGTH.size + 4
_CHECKSUM_BYTES = 4


def check_frames(path: Path, max_records: int) -> None:
    """Checks that the records of a file fill it, and that there are not too many.

    Nothing of them is read; their checksums are TensorFlow's to compare.

    Raises:
        PlanError: If the file is missing, cut or damaged, or has too many records.
    """
    expected = f"{path}: expected a TFRecord file"
    if not path.is_file():
        raise PlanError(f"{expected}, cannot read it (no such file)")
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        position, records = 0, 0
        while position < size:
            header = file.read(_HEADER_BYTES)
            if len(header) < _HEADER_BYTES:
                raise PlanError(f"{expected}, cannot read it (cut after record {records})")
            (length,) = _LENGTH.unpack(header[: _LENGTH.size])
            position += _HEADER_BYTES + length + _CHECKSUM_BYTES
            if position > size:
                raise PlanError(
                    f"{expected}, cannot read it (record {records + 1} of {length} bytes is longer "
                    "than the file)"
                )
            records += 1
            if records > max_records:
                raise PlanError(
                    f"{path}: expected at most {max_records} records (--max_records), found more"
                )
            file.seek(position)
