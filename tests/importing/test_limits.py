"""Endless, deeply nested, compressed or falsely sized inputs raise one-line errors."""

import gzip
import io
import json
import os
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from tests.support import golden
from tests.support.imports import read, refused

_MB = 10**6
_TABLE = {
    "client_column": "who",
    "domain_name": "d",
    "feature_columns": ("x",),
    "label_column": "y",
}
_TEXT = {"client_column": "who", "domain_name": "d", "text_column": "text"}
_NPZ = {"client_column": "who", "domain_name": "d"}
_POSTS = '<posts><row Id="1" PostTypeId="1" OwnerUserId="1" Body="{}" /></posts>'


def _written(path: Path, content: str) -> Path:
    path.write_text(content)
    return path


# format -> (file name, content with {} for a long record, options)
_LONG: dict[str, tuple[str, str, dict[str, Any]]] = {
    "csv": ("a.csv", 'who,text\nu,"{}"\n', _TEXT),
    "jsonl": ("a.jsonl", '{{"who": "u", "text": "{}"}}\n', _TEXT),
    "leaf": (
        "a.json",
        '{{"user_data": {{"u": {{"x": ["{}"], "y": ["b"]}}}}}}',
        {"domain_name": "d"},
    ),
    "plays": ("a.txt", "HE:\n{}\n", {}),
    "stackexchange": ("Posts.xml", _POSTS, {}),
}


@pytest.mark.slow
@pytest.mark.parametrize("format_", list(_LONG))
def test_long_records_raise(tmp_path, format_):
    name, content, options = _LONG[format_]
    # The reader may read one megabyte ahead.
    path = _written(tmp_path / name, content.format("word " * (4 * _MB // 5)))
    assert refused(format_, path, max_record_mb=1, **options) == (
        f"{path}: expected records of at most 1 MB (max_record_mb), found a larger one"
    )
    examples, _ = read(format_, path, max_record_mb=5, **options)
    assert examples


@pytest.mark.nightly
def test_record_with_many_lines_raises(tmp_path):
    path = _written(tmp_path / "a.csv", "who,text\n" + '"\n",' * _MB)
    assert "(max_record_mb)" in refused("csv", path, max_record_mb=1, **_TEXT)


@pytest.mark.slow
def test_gzip_bomb_raises(tmp_path):
    path = tmp_path / "Posts.xml.gz"
    path.write_bytes(gzip.compress(b"<posts>" + b" " * (12 * _MB) + b"</posts>"))
    size = path.stat().st_size
    message = refused("stackexchange", path)
    assert message.startswith(
        f"{path}: expected at most 200 times its size when unpacked (max_unpacked_ratio), found "
    )
    assert message.endswith(f" MB in {size / _MB:.3g} MB")
    assert refused("stackexchange", path, max_unpacked_mb=5) == (
        f"{path}: expected at most 5 MB when unpacked (max_unpacked_mb), found more"
    )
    assert read("stackexchange", path, max_unpacked_ratio=2000)[0] == []


@pytest.mark.slow
def test_gzip_bomb_at_the_start_raises(tmp_path):
    """The complete file unpacks to at most 8 times its size, its first member to far more."""
    noise = np.random.default_rng(0).bytes(2 * _MB).hex()
    path = tmp_path / "Posts.xml.gz"
    start = b"<posts>" + b" " * (11 * _MB)
    rest = f"<!--{noise}--></posts>".encode()
    path.write_bytes(gzip.compress(start) + gzip.compress(rest, 1))
    assert "(max_unpacked_ratio), found 10 MB in 0.0" in refused("stackexchange", path)
    assert read("stackexchange", path, max_unpacked_ratio=2000)[0] == []


def test_image_bomb_raises_before_unpacking(tmp_path):
    """The files end after their headers: unpacking would report truncated files."""
    images = tmp_path / "train-images-idx3-ubyte.gz"
    images.write_bytes(gzip.compress(struct.pack(">BBBBIII", 0, 0, 8, 3, 20_000, 28, 28)))
    labels = tmp_path / "train-labels-idx1-ubyte.gz"
    labels.write_bytes(gzip.compress(struct.pack(">BBBBI", 0, 0, 8, 1, 20_000)))
    message = f"{images}: expected at most 200 times its size when unpacked (max_unpacked_ratio)"
    assert refused("idx", tmp_path).startswith(message)
    assert "it is truncated" in refused("idx", tmp_path, max_unpacked_ratio=10**6)


def _npz(path: Path, rows: int, columns: int) -> Path:
    np.savez_compressed(
        path, x=np.zeros([rows, columns], np.float32), y=np.zeros(rows, int), who=np.arange(rows)
    )
    return path


def test_array_bomb_raises(tmp_path):
    path = _npz(tmp_path / "a.npz", 12, 250_000)
    assert "(max_unpacked_ratio), found 12 MB in 0.0" in refused("npz", path, **_NPZ)
    assert "(max_unpacked_mb)" in refused("npz", path, max_unpacked_mb=5, **_NPZ)
    examples, _ = read("npz", path, max_unpacked_ratio=2000, **_NPZ)
    assert [len(e.record.features["x"]) for e in examples] == [250_000] * 12


def test_highly_compressed_parquet_text_raises(tmp_path):
    """The file contains the shared text once."""
    rows = 40
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), ["x" * _MB])
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"who": ["u"] * rows, "text": texts}), path, store_schema=False)
    assert "(max_unpacked_ratio)" in refused("parquet", path, **_TEXT)


def test_highly_compressed_parquet_list_raises(tmp_path):
    zeros = pa.ListArray.from_arrays(
        pa.array([0, 4 * _MB], pa.int32()), pa.array(np.zeros(4 * _MB))
    )
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"who": ["u"], "x": zeros, "y": [0]}), path)
    assert "(max_unpacked_ratio), found 32 MB in " in refused("parquet", path, **_TABLE)


@pytest.mark.parametrize(
    ("format_", "name", "options"),
    [
        *((format_, name, options) for format_, (name, _, options) in _LONG.items()),
        ("parquet", "a.parquet", _TABLE),
        ("npz", "a.npz", _NPZ),
        ("idx", "train-images-idx3-ubyte", {}),
        ("text_folders", "a.txt", {"domain_name": "d"}),
    ],
)
def test_pipes_and_devices_raise(tmp_path, format_, name, options):
    path = tmp_path / name
    os.mkfifo(path)
    (tmp_path / name.replace("images", "labels").replace("idx3", "idx1")).touch()
    expected = f"{path}: expected a file, found a pipe, a socket or a device"
    assert refused(format_, path, **options) == expected
    path.unlink()
    path.symlink_to("/dev/zero")
    assert refused(format_, path, **options) == expected


def test_symbolic_links_in_folders_are_checked(tmp_path):
    folder = tmp_path / "texts" / "d"
    folder.mkdir(parents=True)
    _written(folder / "a.txt", "some words .")
    (folder / "up").symlink_to("..")
    assert len(read("text_folders", folder.parent)[0]) == 1
    (folder / "b.txt").symlink_to("/dev/zero")
    message = f"{folder / 'b.txt'}: expected a file, found a pipe, a socket or a device"
    assert refused("text_folders", folder.parent) == message
    (folder / "b.txt").unlink()
    (folder / "b.txt").symlink_to("b.txt")
    assert "b.txt: expected a file, cannot read it (Too many" in refused(
        "text_folders", folder.parent
    )


def test_sparse_text_file_raises(tmp_path):
    path = _written(tmp_path / "a.txt", "some words .\n")
    os.truncate(path, 1 << 40)
    expected = f"{path}: expected text, found a NUL character"
    assert refused("text_folders", path, domain_name="d") == expected


@pytest.mark.parametrize("opening", ["[", '{"x":'])
def test_deeply_nested_json_raises(tmp_path, opening):
    path = _written(tmp_path / "a.json", '{"user_data": {"u": {"x": ' + opening * 100_000)
    assert refused("leaf", path, domain_name="d") == (
        f"{path}: expected LEAF's JSON, found lists and objects nested over 32 deep"
    )


@pytest.mark.parametrize("shift", range(4))
def test_brackets_in_json_strings_are_text(tmp_path, shift):
    """A block of the file may end inside a string or an escape sequence."""
    text = " " * shift + 'a [{\\" ' * 40_000
    users = {f"u{k}": {"x": [text], "y": [""]} for k in range(2)}
    path = _written(tmp_path / "a.json", json.dumps({"user_data": users}))
    assert len(read("leaf", path, domain_name="d", tokenizer="spaces")[0]) == 2


def test_nested_xml_rows_raise(tmp_path):
    path = _written(tmp_path / "Posts.xml", "<posts><row><a/></row></posts>")
    assert refused("stackexchange", path) == (
        f"{path}: expected the Posts.xml of a Stack Exchange dump, found <a> within <row>"
    )


def _image(format_: str, width: int, height: int) -> bytes:
    content = io.BytesIO()
    Image.new("L", (width, height)).save(content, format_)
    return content.getvalue()


def _png_with_size(width: int, height: int) -> bytes:
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    checked = struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
    return b"\x89PNG\r\n\x1a\n" + checked + _image("PNG", 1, 1)[33:]


@pytest.mark.parametrize(
    ("content", "result"),
    [
        *((_image(format_, 20, 10), "200") for format_ in ("PNG", "JPEG", "GIF", "BMP")),
        (_png_with_size(5000, 5000), "25000000"),
        (_png_with_size(65535, 65535), "more"),
    ],
)
def test_large_images_are_not_decoded(tmp_path, content, result):
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"who": ["u"], "img": [content], "y": [0]}), path)
    options = {**_TABLE, "feature_columns": (), "image_columns": ("img",), "max_pixels": 199}
    assert refused("parquet", path, **options) == (
        "a.parquet row 1: expected an image of at most 199 pixels in img (max_pixels), "
        f"found {result}"
    )
    _, log = read("parquet", path, skip_bad=True, **options)
    assert log.skipped == {"image that is too large": 1}


# --- Tests of inputs that fuzzing once found to fail


def _idx(folder: Path, sizes: tuple[int, int, int], images: int, labels: int) -> Path:
    """Writes two IDX files whose headers claim `sizes`; the bodies have other numbers of bytes."""
    head = bytes([0, 0, 8, 3]) + struct.pack(">3I", *sizes)
    (folder / "train-images-idx3-ubyte").write_bytes(head + bytes(images))
    head = bytes([0, 0, 8, 1]) + struct.pack(">I", sizes[0])
    (folder / "train-labels-idx1-ubyte").write_bytes(head + bytes(labels))
    return folder


@golden.values
def test_claimed_idx_sizes_are_checked(tmp_path, case):
    sizes, images, labels = case
    return refused("idx", _idx(tmp_path, sizes, images, labels), num_clients=2)


@pytest.mark.parametrize("encoding", ["nothing", "utf-7", "idna"])
def test_unknown_dump_encodings_raise(tmp_path, encoding):
    (tmp_path / "Posts.xml").write_text(f"<?xml version='1.0' encoding='{encoding}'?><posts/>")
    message = refused("stackexchange", tmp_path)
    assert message.startswith(f"{tmp_path / 'Posts.xml'}: expected the Posts.xml of a Stack Exch")


def _fuzzed_npz(path: Path, shape: tuple[int, ...] = (4, 2), client: bytes = b"d\0\0\0") -> Path:
    """Writes four examples; the header of array x claims `shape`."""
    arrays = {
        "x": np.arange(8, dtype=np.float32).reshape(4, 2),
        "y": np.array([0, 1, 0, 1]),
        "who": np.array(["a", "b", "c", "d"]),
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            content = io.BytesIO()
            claimed = shape if name == "x" else array.shape
            header = {"descr": array.dtype.str, "fortran_order": False, "shape": claimed}
            np.lib.format.write_array_header_1_0(content, header)
            changed = array.tobytes().replace(b"d\0\0\0", client)
            archive.writestr(f"{name}.npy", content.getvalue() + changed)
    return path


def _later_version(path: Path) -> None:
    content = path.read_bytes()
    # The central directory's field "version needed to extract" of the first member.
    at = content.index(b"PK\x01\x02") + 6
    path.write_bytes(content[:at] + bytes([230]) + content[at + 1 :])


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"shape": (4, -2)}, "expected an .npz file of plain arrays, found a damaged"),
        ({"shape": (2, 2**50)}, "expected an .npz file of plain arrays, found a damaged"),
        ({"client": b"d\0\0\xff"}, "expected "),
        ({"client": b"\0\xd8\0\0"}, "expected "),
        ({}, "found a damaged or another file (zip file version 23.0)"),
    ],
)
def test_invalid_npz_members_raise(tmp_path, changed, expected):
    path = _fuzzed_npz(tmp_path / "a.npz", **changed)
    if not changed:
        _later_version(path)
    assert expected in refused("npz", path, **_NPZ)


@pytest.mark.parametrize("depth", [9, 25])
def test_deep_lists_raise(tmp_path, depth):
    x = "[" * depth + "1" + "]" * depth
    path = _written(tmp_path / "a.json", f'{{"user_data": {{"u": {{"x": [{x}], "y": [0]}}}}}}')
    start = "a.json user u example 0: expected at most 8 levels of lists of one length, found [["
    assert refused("leaf", path, domain_name="d").startswith(start)
