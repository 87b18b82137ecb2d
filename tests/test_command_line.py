"""Parsing of command lines: flag files, and flags that occur twice."""

import os

import pytest
from absl import flags

from tests.support import golden
from tff_agnostic.program.options.process import parse, split_flag_files


def test_flag_files_are_read_like_absls(tmp_path):
    inner, outer = tmp_path / "inner.flags", tmp_path / "outer.flags"
    inner.write_text("--q=0.1\n")
    outer.write_text(
        f"# a comment\n// another\n\n  --seed=3  \n--flagfile={inner}\n--name=with # sign\r\n--xla"
    )
    for arguments in (
        [f"-flagfile={outer}", f"--flagfile={inner}", "--rounds=2"],
        ["--flagfile", str(outer), "--resume"],
        ["--resume", "--", f"--flagfile={outer}"],
        [],
    ):
        lines, others = split_flag_files(arguments)
        expected = flags.FlagValues().read_flags_from_files(arguments, force_gnu=False)
        assert [*lines, *others] == expected


def test_rejects_bad_flag_files(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "binary").write_bytes(b"--a=\xff")
    (tmp_path / "one").write_text(f"--flagfile={tmp_path / 'other'}\n")
    (tmp_path / "other").write_text(f"--flagfile={tmp_path / 'one'}\n")
    for argument, problem in (
        ("=", ": expected a path"),
        ("", ": expected a path"),
        ("=/dev/zero", "a device"),
        (f"={tmp_path}/pipe", "a pipe"),
        (f"={tmp_path}/missing", "found none"),
        (f"={tmp_path}/binary", "found byte 0xff at position 4"),
        (f"={tmp_path}/one", ": expected a file that does not name itself"),
    ):
        message = golden.refusal(split_flag_files, [f"--flagfile{argument}"])
        assert message.startswith("--flagfile") and problem in message


@pytest.fixture
def defined() -> flags.FlagValues:
    defined = flags.FlagValues()
    flags.DEFINE_integer("seed", 0, "", flag_values=defined)
    flags.DEFINE_bool("shuffle", True, "", flag_values=defined)
    flags.DEFINE_multi_string("override", [], "", flag_values=defined)
    return defined


def test_command_line_overrides_flag_files(defined):
    parse(["--seed=1", "--seed=2", "--noshuffle", "--override=a"], defined, once=False)
    assert parse(["--seed=3", "digits"], defined) == ["digits"]
    assert (defined.seed, defined.shuffle, defined.override) == (3, False, ["a"])
    assert defined["seed"].present and defined["shuffle"].present


@pytest.mark.parametrize("arguments", [["--seed", "1", "-seed", "2"], ["--shuffle", "--noshuffle"]])
def test_rejects_second_value_of_a_flag(defined, arguments):
    with pytest.raises(flags.IllegalFlagValueError, match="already defined"):
        parse(arguments, defined)
    parse(["--override=a", "--override=b"], defined)
    assert defined.override == ["a", "b"]
