"""Archives of arrays (.npz), read without trusting what they say of their sizes."""

import io
import math
import zipfile
from pathlib import Path
from typing import Callable

import numpy as np

from plan_runner.errors import PlanError, reason

_SUFFIX = ".npy"
# By the version of an array's header, all that `np.savez` writes of numbers and strings.
_HEADERS: dict[tuple[int, int], Callable] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def read_arrays(path: Path, max_unpacked_mb: float) -> dict[str, np.ndarray]:
    """Returns the arrays of an .npz file.

    Args:
        path: The file.
        max_unpacked_mb: How much it may hold, in 10^6 bytes.

    Raises:
        PlanError: If it is none, damaged, too large, or holds anything but numbers and strings.
    """
    expected = f"{path}: expected an .npz file"
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            # What is unpacked is never more than this: zipfile stops there.
            size = sum(member.file_size for member in members)
            if size > max_unpacked_mb * 1e6:
                raise PlanError(
                    f"{path}: expected at most {max_unpacked_mb:g} MB when unpacked "
                    f"(--max_unpacked_mb), found {size / 1e6:.1f} MB"
                )
            return {
                member.filename.removesuffix(_SUFFIX): _array(archive.read(member))
                for member in members
            }
    except PlanError:
        raise
    # A damaged archive makes NumPy and zipfile raise many kinds.
    except Exception as e:
        raise PlanError(f"{expected}, cannot read it ({reason(e)})") from e


def _array(content: bytes) -> np.ndarray:
    file = io.BytesIO(content)
    read_header = _HEADERS[np.lib.format.read_magic(file)]
    shape, _, dtype = read_header(file)
    if dtype.hasobject:
        raise ValueError("it holds Python's objects")
    # NumPy would first make room for whatever the header says.
    size, found = math.prod(shape) * dtype.itemsize, len(content) - file.tell()
    if min(shape, default=0) < 0 or size != found:
        raise ValueError(f"an array of {size} bytes in {found} bytes")
    file.seek(0)
    return np.lib.format.read_array(file, allow_pickle=False)
