"""Helpers of files: atomic writes, folders, readers, and digests."""

import errno
import math
import os
import stat
from pathlib import Path

import pytest

from tests.support import golden
from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import (
    append_line,
    atomic_file,
    check_can_be_made,
    digest,
    file_digest,
    finite_or_none,
    folder_to_write_in,
    is_temporary,
    make_folder,
    named_path,
    read_file,
    read_json,
    read_text,
    temporary_path,
    write_text,
)


def _fail_with(code: int):
    def fail(*args: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


def test_file_is_replaced_when_complete(tmp_path):
    path = tmp_path / "a.txt"
    write_text(path, "old, with ümlaut")
    with atomic_file(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_text(encoding="utf-8") == "old, with ümlaut"
        (other,) = set(tmp_path.iterdir()) - {path}
        assert is_temporary(other)
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_secret_files_have_owner_only_mode(tmp_path):
    path = tmp_path / "a.txt"
    write_text(path, "old")
    # A killed process with the same id can leave a temporary file.
    temporary_path(path).touch(mode=0o666)
    before = os.umask(0)
    try:
        with atomic_file(path, owner_only=True) as file:
            assert _mode(Path(file.name)) == 0o600
            file.write(b"new")
        append_line(tmp_path / "lines", "first")
    finally:
        os.umask(before)
    assert (_mode(path), path.read_text()) == (0o600, "new")
    append_line(tmp_path / "lines", "second")
    assert (tmp_path / "lines").read_text() == "first\nsecond\n"
    assert _mode(tmp_path / "lines") == 0o600


def test_exception_keeps_the_old_content(tmp_path):
    path = tmp_path / "a.txt"
    write_text(path, "old")
    with pytest.raises(KeyError), atomic_file(path) as file:
        file.write(b"half")
        raise KeyError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_full_disk_keeps_the_old_content(tmp_path, monkeypatch, call):
    path = tmp_path / "a.txt"
    write_text(path, "old")
    monkeypatch.setattr(os, call, _fail_with(errno.ENOSPC))
    assert (
        golden.refusal(write_text, path, "new") == f"{path}: cannot write: No space left on device"
    )
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", [".", "/", "folder"])
def test_writing_to_a_folder_raises_user_error(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    message = f"^{name}: cannot write: expected the name of a file, found a folder$"
    with pytest.raises(UserError, match=message):
        write_text(Path(name), "text")
    assert [path.name for path in tmp_path.rglob("*")] == ["folder"]


def test_make_folder_creates_parents(tmp_path):
    make_folder(tmp_path / "a" / "b")
    make_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file: cannot write: File exists$"):
        make_folder(tmp_path / "file")


def test_folder_is_removed_if_nothing_was_written(tmp_path):
    for path in (tmp_path / "a" / "b", tmp_path):
        with pytest.raises(KeyboardInterrupt), folder_to_write_in(path):
            assert path.is_dir()
            raise KeyboardInterrupt
        assert list(tmp_path.iterdir()) == []
    with folder_to_write_in(tmp_path / "a" / "b"):
        (tmp_path / "a" / "file").write_text("")
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["file"]
    check_can_be_made(tmp_path / "a" / "b" / "c", "output")
    with pytest.raises(UserError, match=r"--output: expected a folder at .*/file, found a file$"):
        check_can_be_made(tmp_path / "a" / "file" / "c", "output")


def test_non_finite_numbers_are_null_in_json():
    assert [finite_or_none(v) for v in (0.5, math.nan, math.inf, -math.inf)] == [0.5, *[None] * 3]


@golden.values
def test_rejects_invalid_json(tmp_path, case):
    path = tmp_path / "a.json"
    path.write_bytes(case)
    return golden.refusal(read_json, path)


def test_read_text_rejects_everything_except_files(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    no_file = "a text, found a pipe, a socket or a device"
    for path, actual in (
        (tmp_path / "missing", "a text, found none"),
        (tmp_path, "a text, cannot read it (Is a directory)"),
        (tmp_path / ("x" * 300), "a text, cannot read it (File name too long)"),
        (tmp_path / "pipe", no_file),
        (Path("/dev/zero"), no_file),
        (Path("/dev/null"), no_file),
    ):
        assert golden.refusal(read_text, path, "a text") == f"{path}: expected {actual}"


def test_large_file_is_rejected(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"four")
    assert read_file(path, "a text", most=4) == b"four"
    with pytest.raises(UserError, match="expected a text of at most 3 bytes, found more"):
        read_file(path, "a text", most=3)


@pytest.mark.parametrize(
    ("name", "actual"),
    [
        ("", "a path, found an empty one"),
        ("run\0a", r"a path, found one with a NUL character: 'run\x00a'"),
        ("run\udcff", r"a path in UTF-8, found b'run\xff'"),
    ],
)
def test_rejects_invalid_file_names(name, actual):
    assert golden.refusal(named_path, "--output_dir", name) == f"--output_dir: expected {actual}"


def test_rejects_json_other_than_objects(tmp_path):
    (tmp_path / "a.json").write_text("[]")
    with pytest.raises(UserError, match=r"a.json: expected a JSON object, found list$"):
        read_json(tmp_path / "a.json")


def test_only_own_temporary_names_are_temporary():
    assert is_temporary(Path("x/.metrics.csv.123.tmp"))
    assert is_temporary(temporary_path(Path("x/metrics.csv")))
    for name in ("metrics.csv", ".hidden", "a.tmp", ".a.tmp", "a.1.tmp"):
        assert not is_temporary(Path(name))


def test_equal_contents_have_equal_digests(tmp_path):
    # The content needs several reads.
    content = bytes(range(256)) * 5000
    for name, changed in (("a", content), ("b", content), ("c", content[:-1] + b"x")):
        (tmp_path / name).write_bytes(changed)
    actual = {name: file_digest(tmp_path / name) for name in "abc"}
    assert actual["a"] == actual["b"] == digest(content) != actual["c"]
    assert len(actual["a"]) == 16
