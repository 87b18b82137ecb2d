"""Endless, deeply nested, compressed or falsely sized inputs raise one-line errors."""

import gzip
import io
import json
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from tests.support import golden
from tests.support.imports import read, refused

_MB = 10**6
_ONE_DOMAIN = {"domain_name": "d"}
_NPZ = {"client_column": "who", **_ONE_DOMAIN}
_TABLE = {**_NPZ, "feature_columns": ("x",), "label_column": "y"}
_TEXT = {**_NPZ, "text_column": "text"}
_POST = '<posts><row Id="1" PostTypeId="1" OwnerUserId="1" Body="'


def _written(path: Path, content: str) -> Path:
    path.write_text(content)
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("format_", "name", "start", "end", "options"),
    [
        ("csv", "a.csv", 'who,text\nu,"', '"\n', _TEXT),
        ("leaf", "a.json", '{"user_data": {"u": {"x": ["', '"], "y": [""]}}}', _ONE_DOMAIN),
        ("stackexchange", "Posts.xml", _POST, '" /></posts>', {}),
    ],
)
def test_long_records_raise(tmp_path, format_, name, start, end, options):
    # The reader may read one megabyte ahead.
    path = _written(tmp_path / name, start + "word " * (4 * _MB // 5) + end)
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
    """The complete file unpacks to at most 8 times its size, its first member to far more."""
    noise = np.random.default_rng(0).bytes(2 * _MB).hex()
    path = tmp_path / "Posts.xml.gz"
    start = b"<posts>" + b" " * (11 * _MB)
    rest = f"<!--{noise}--></posts>".encode()
    path.write_bytes(gzip.compress(start) + gzip.compress(rest, 1))
    assert "(max_unpacked_ratio), found 10 MB in 0.0" in refused("stackexchange", path)
    assert "(max_unpacked_mb), found more" in refused("stackexchange", path, max_unpacked_mb=5)
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


def test_array_bomb_raises(tmp_path):
    path = tmp_path / "a.npz"
    x = np.zeros([12, 250_000], np.float32)
    np.savez_compressed(path, x=x, y=np.zeros(12, int), who=np.arange(12))
    assert "(max_unpacked_ratio), found 12 MB in 0.0" in refused("npz", path, **_NPZ)
    assert "(max_unpacked_mb)" in refused("npz", path, max_unpacked_mb=5, **_NPZ)
    examples, _ = read("npz", path, max_unpacked_ratio=2000, **_NPZ)
    assert len(examples) == 12


def test_highly_compressed_parquet_text_raises(tmp_path):
    """The file contains the shared text once."""
    rows = 40
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), ["x" * _MB])
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"who": ["u"] * rows, "text": texts}), path, store_schema=False)
    assert "(max_unpacked_ratio)" in refused("parquet", path, **_TEXT)


def test_highly_compressed_parquet_list_raises(tmp_path):
    zeros = pa.array([np.zeros(4 * _MB)])
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"who": ["u"], "x": zeros, "y": [0]}), path)
    assert "(max_unpacked_ratio), found 32 MB in " in refused("parquet", path, **_TABLE)


@pytest.mark.parametrize(
    ("format_", "options"),
    [("csv", _TEXT), ("parquet", _TABLE), ("npz", _NPZ), ("text_folders", _ONE_DOMAIN)],
)
def test_pipes_and_devices_raise(tmp_path, format_, options):
    path = tmp_path / "a.txt"
    os.mkfifo(path)
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
    assert refused("text_folders", path, **_ONE_DOMAIN) == expected


@pytest.mark.parametrize("opening", ["[", '{"x":'])
def test_deeply_nested_json_raises(tmp_path, opening):
    path = _written(tmp_path / "a.json", '{"user_data": {"u": {"x": ' + opening * 100_000)
    assert refused("leaf", path, **_ONE_DOMAIN) == (
        f"{path}: expected LEAF's JSON, found lists and objects nested over 32 deep"
    )


@pytest.mark.parametrize("shift", range(4))
def test_brackets_in_json_strings_are_text(tmp_path, shift):
    """A block of the file may end inside a string or an escape sequence."""
    text = " " * shift + 'a [{\\" ' * 40_000
    users = {f"u{k}": {"x": [text], "y": [""]} for k in range(2)}
    path = _written(tmp_path / "a.json", json.dumps({"user_data": users}))
    assert len(read("leaf", path, domain_name="d", tokenizer="spaces")[0]) == 2


def _png_with_size(width: int, height: int) -> bytes:
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    checked = struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
    content = io.BytesIO()
    Image.new("L", (1, 1)).save(content, "PNG")
    return content.getvalue()[:8] + checked + content.getvalue()[33:]


@pytest.mark.parametrize(("size", "result"), [((20, 10), "200"), ((65535, 65535), "more")])
def test_large_images_are_not_decoded(tmp_path, size, result):
    path = tmp_path / "a.parquet"
    content = _png_with_size(*size)
    parquet.write_table(pa.table({"who": ["u"], "img": [content], "y": [0]}), path)
    options = {**_TABLE, "feature_columns": (), "image_columns": ("img",), "max_pixels": 199}
    assert refused("parquet", path, **options) == (
        "a.parquet row 1: expected an image of at most 199 pixels in img (max_pixels), "
        f"found {result}"
    )
    _, log = read("parquet", path, skip_bad=True, **options)
    assert log.skipped == {"image that is too large": 1}


# --- Tests of inputs that fuzzing once found to fail


@golden.values
def test_claimed_idx_sizes_are_checked(tmp_path, case):
    """The bodies of the files have other numbers of bytes than their headers claim."""
    sizes, images, labels = case
    head = bytes([0, 0, 8, 3]) + struct.pack(">3I", *sizes)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(head + bytes(images))
    head = bytes([0, 0, 8, 1]) + struct.pack(">I", sizes[0])
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(head + bytes(labels))
    return refused("idx", tmp_path, num_clients=2)
