"""Folders that are there whole, or not at all."""

import pytest
import tensorflow as tf

from tests.binaries.harness import tree
from tff_agnostic.deployment.graphs import write_checkpoint
from tff_agnostic.errors import UserError
from tff_agnostic.folders import new_folder, tensorflow_writes


@pytest.mark.parametrize("name", ["new", "new/in/new", "empty"])
def test_what_is_written_is_there_at_the_end(tmp_path, name):
    (tmp_path / "empty").mkdir()
    with new_folder(tmp_path / name, "--flag") as path:
        (path / "file").write_text("whole")
        assert not (tmp_path / name / "file").exists()
    assert (tmp_path / name / "file").read_text() == "whole"
    assert not [name for name in tree(tmp_path) if ".tmp" in name]


@pytest.mark.parametrize("name", ["new", "new/in/new", "empty"])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, UserError])
def test_nothing_is_left_of_what_failed(tmp_path, name, error):
    (tmp_path / "empty").mkdir()
    with pytest.raises(error), new_folder(tmp_path / name, "--flag") as path:
        (path / "file").write_text("half")
        raise error("stop")
    assert tree(tmp_path) == {"empty": None}


@pytest.mark.parametrize("name", ["full", "full/file"])
def test_other_content_stays(tmp_path, name):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    message = r"^--flag: expected a new or empty folder, found "
    with pytest.raises(UserError, match=message), new_folder(tmp_path / name, "--flag"):
        raise AssertionError("nothing should be written")
    assert tree(tmp_path) == {"full": None, "full/file": b"mine"}


def test_an_error_of_tensorflow_is_one_of_writing(tmp_path):
    for write in (
        lambda path: write_checkpoint(path, {"a": tf.zeros([])}),
        lambda path: tf.io.TFRecordWriter(str(path)).close(),
    ):
        with (
            pytest.raises(UserError, match=r"/new: cannot write: No such file or directory$"),
            new_folder(tmp_path / "new", "--flag") as path,
            tensorflow_writes(),
        ):
            write(path / "missing" / "file")
    assert tree(tmp_path) == {}
