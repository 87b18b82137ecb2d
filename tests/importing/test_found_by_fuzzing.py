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

from tests import golden
from tests.importing.harness import refused


def _idx(folder: Path, sizes: tuple[int, int, int], images: int, labels: int) -> Path:
    """Two IDX files: sizes that are claimed, and bytes that are there."""
    head = bytes([0, 0, 8, 3]) + struct.pack(">3I", *sizes)
    (folder / "train-images-idx3-ubyte").write_bytes(head + bytes(images))
    head = bytes([0, 0, 8, 1]) + struct.pack(">I", sizes[0])
    (folder / "train-labels-idx1-ubyte").write_bytes(head + bytes(labels))
    return folder


@golden.values
def test_sizes_that_idx_files_claim(tmp_path, case):
    sizes, images, labels = case
    return refused("idx", _idx(tmp_path, sizes, images, labels), num_clients=2)


@pytest.mark.parametrize(
    ("encoding", "found"),
    [
        ("nothing", "unknown encoding: nothing"),
        ("utf-7", "multi-byte encodings are not supported"),
        ("idna", "decoding with 'idna' codec failed"),
    ],
)
def test_encodings_that_dumps_name(tmp_path, encoding, found):
    (tmp_path / "Posts.xml").write_text(f"<?xml version='1.0' encoding='{encoding}'?><posts/>")
    message = refused("stackexchange", tmp_path)
    assert message.startswith(f"{tmp_path / 'Posts.xml'}: expected the Posts.xml of a Stack Exch")
    assert found in message


def _npz(path: Path, shape: Optional[tuple[int, ...]] = None, client: bytes = b"d\0\0\0") -> Path:
    """Four examples, whose features may claim another shape than they have."""
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
            changed = array.tobytes().replace(b"d\0\0\0", client)
            archive.writestr(f"{name}.npy", content.getvalue() + changed)
    return path


@pytest.mark.parametrize(
    ("shape", "found"),
    [((4, 1), "x goes on after its 4 rows"), ((4, -2), "x has the shape (4, -2)")],
)
def test_shapes_that_arrays_claim(tmp_path, shape, found):
    message = refused("npz", _npz(tmp_path / "a.npz", shape), client_column="who", domain_name="d")
    assert found in message


def test_an_archive_of_a_later_version(tmp_path):
    path = _npz(tmp_path / "a.npz")
    content = path.read_bytes()
    # Of the central directory: the version that is needed to read the first member.
    at = content.index(b"PK\x01\x02") + 6
    path.write_bytes(content[:at] + bytes([230]) + content[at + 1 :])
    message = refused("npz", path, client_column="who", domain_name="d")
    assert message.endswith("found a damaged or another file (zip file version 23.0)")


@pytest.mark.parametrize(
    ("client", "found"), [(b"d\0\0\xff", "0xff000064"), (b"\0\xd8\0\0", "0xd800")]
)
def test_texts_of_arrays_that_are_no_characters(tmp_path, client, found):
    path = _npz(tmp_path / "a.npz", client=client)
    message = refused("npz", path, client_column="who", domain_name="d")
    assert message == f"a.npz: client: expected text, found the character {found} in row 3"


@pytest.mark.parametrize("depth", [9, 25])
def test_lists_in_lists_in_lists(tmp_path, depth):
    path = tmp_path / "users.json"
    x = "[" * depth + "1" + "]" * depth
    path.write_text(f'{{"user_data": {{"u": {{"x": [{x}], "y": [0]}}}}}}')
    message = refused("leaf", path, domain_name="d")
    place = "users.json user u example 0"
    assert message == f"{place}: expected at most 8 levels of lists of one length, found others"
