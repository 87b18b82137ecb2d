"""Inputs that were changed by chance until something other than one line came of them.

Or until records were lost without a word.
"""

import io
import struct
import zipfile
from pathlib import Path
from typing import Optional

import numpy as np
import pytest

from tests.importing.harness import refused


def _idx(folder: Path, sizes: tuple[int, int, int], images: int, labels: int) -> Path:
    """Two IDX files: sizes that are claimed, and bytes that are there."""
    head = bytes([0, 0, 8, 3]) + struct.pack(">3I", *sizes)
    (folder / "train-images-idx3-ubyte").write_bytes(head + bytes(images))
    head = bytes([0, 0, 8, 1]) + struct.pack(">I", sizes[0])
    (folder / "train-labels-idx1-ubyte").write_bytes(head + bytes(labels))
    return folder


@pytest.mark.parametrize(
    ("sizes", "images", "labels", "message"),
    [
        ((2, 2, 2), 12, 2, "images-idx3-ubyte: expected the end after 2 entries, found more bytes"),
        ((2, 2, 2), 8, 3, "labels-idx1-ubyte: expected the end after 2 entries, found more bytes"),
        ((2, 0, 2), 0, 2, "expected images of 1 to 16777216 pixels, found 0 x 2"),
        ((2, 2**31, 2**32 - 1), 8, 2, "pixels, found 2147483648 x 4294967295"),
        ((2**31, 4096, 4096), 8, 2, "expected 16777216 more bytes, found 8: it is truncated"),
    ],
)
def test_sizes_that_idx_files_claim(tmp_path, sizes, images, labels, message):
    assert message in refused("idx", _idx(tmp_path, sizes, images, labels), num_clients=2)


def _npz(path: Path, shape: Optional[tuple[int, ...]] = None) -> Path:
    """Four examples, whose features claim another shape than they have."""
    arrays = {
        "x": np.arange(8, dtype=np.float32).reshape(4, 2),
        "y": np.array([0, 1, 0, 1]),
        "who": np.array(["a", "b", "c", "d"]),
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            content = io.BytesIO()
            claimed = shape if shape is not None and name == "x" else (len(array), *array.shape[1:])
            header = {"descr": array.dtype.str, "fortran_order": False, "shape": claimed}
            np.lib.format.write_array_header_1_0(content, header)
            archive.writestr(f"{name}.npy", content.getvalue() + array.tobytes())
    return path


@pytest.mark.parametrize(
    ("shape", "found"),
    [((4, 1), "x goes on after its 4 rows"), ((4, -2), "x has the shape (4, -2)")],
)
def test_shapes_that_arrays_claim(tmp_path, shape, found):
    message = refused("npz", _npz(tmp_path / "a.npz", shape), client_column="who", domain_name="d")
    assert found in message
