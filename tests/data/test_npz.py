"""`read_npz` reads arrays and rejects damaged or hostile files."""

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import golden
from tests.support.comparing import assert_identical
from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import read_npz


def _read_error(path: Path) -> str:
    message = golden.refusal(read_npz, path)
    assert message.startswith(f"{path}: expected an .npz file of plain arrays, ")
    assert "\n" not in message
    return message


def test_reading_npz_files_returns_saved_arrays(tmp_path):
    saved = {"x": np.full([4, 2], 0.1, np.float32), "y": np.array([0, 1, 2, 0], np.int32)}
    np.savez(tmp_path / "a.npz", **saved)
    assert_identical(read_npz(tmp_path / "a.npz"), saved)


@pytest.mark.slow
@pytest.mark.parametrize("compressed", [False, True])
def test_changed_bytes_never_change_arrays(tmp_path, compressed):
    good = {"x": np.arange(6, dtype=np.float32), "y": np.array([7], np.int32)}
    buffer = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(buffer, **good)
    content = buffer.getvalue()
    path = tmp_path / "a.npz"
    num_errors = 0
    for position in range(len(content)):
        changed = bytearray(content)
        changed[position] ^= 1 << (position % 8)
        path.write_bytes(changed)
        try:
            arrays = read_npz(path)
        except UserError:
            num_errors += 1
        else:
            # Some bytes, such as dates, do not matter, and some rename an array.
            assert set(arrays) <= set(good)
            for name, array in arrays.items():
                assert array.dtype == good[name].dtype
                np.testing.assert_array_equal(array, good[name])
    assert num_errors > len(content) / 3


def test_truncated_file_raises(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x=np.zeros(3))
    path.write_bytes(path.read_bytes()[:-5])
    assert "found a damaged or another file" in _read_error(path)


def test_file_with_single_array_raises(tmp_path):
    with open(tmp_path / "a.npz", "wb") as file:
        np.save(file, np.zeros([3]))
    assert "a single array, as in .npy files" in _read_error(tmp_path / "a.npz")


def test_pickled_objects_raise_without_running(tmp_path):
    class Spy:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "was here",))

    np.savez(tmp_path / "a.npz", x=np.array([Spy()], object))
    assert "Object arrays cannot be loaded" in _read_error(tmp_path / "a.npz")
    assert not (tmp_path / "was here").exists()


def test_missing_file_or_folder_raises(tmp_path):
    assert _read_error(tmp_path / "a.npz").endswith("found none")
    assert _read_error(tmp_path).endswith("cannot read it (Is a directory)")


def test_pipes_devices_and_sparse_files_raise(tmp_path):
    os.mkfifo(tmp_path / "a.npz")
    assert "found a pipe, a socket or a device" in _read_error(tmp_path / "a.npz")
    (tmp_path / "b.npz").symlink_to("/dev/zero")
    assert "found a pipe, a socket or a device" in _read_error(tmp_path / "b.npz")
    (tmp_path / "c.npz").touch()
    os.truncate(tmp_path / "c.npz", 1 << 40)
    assert "found a damaged or another file" in _read_error(tmp_path / "c.npz")


@pytest.mark.nightly
def test_compressed_bomb_raises(tmp_path):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=np.zeros(1 << 25, np.float32))
    message = _read_error(path)
    assert f"{path.stat().st_size} bytes that unpack to 1342" in message
    assert "np.savez writes arrays without packing them" in message
    np.savez(path, x=np.zeros(1 << 20, np.float32))
    assert read_npz(path)["x"].shape == (1 << 20,)
