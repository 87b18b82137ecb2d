"""Flag files in place of their names, and flags with one value each."""

import os
from pathlib import Path

import pytest
from absl import flags

from tests import golden
from tff_agnostic.program.options.process import check_given_once, with_flag_files


def _texts(*arguments: str) -> list[str]:
    return [argument.text for argument in with_flag_files(arguments)]


def _of_absl(*arguments: str) -> list[str]:
    """What absl itself makes of flag files: the reference."""
    found: list[str] = flags.FlagValues().read_flags_from_files(list(arguments), force_gnu=False)
    return found


def test_flag_files_stand_where_they_are_named(tmp_path):
    inner, outer = tmp_path / "inner.flags", tmp_path / "outer.flags"
    inner.write_text("--q=0.1\n")
    outer.write_text(
        f"# a comment\n// another\n\n  --seed=3  \n--flagfile={inner}\n--name=with # sign\r\n--xla"
    )
    for arguments in (
        ["--rounds=2", f"--flagfile={outer}", "--seed=4"],
        [f"-flagfile={outer}", f"--flagfile={inner}"],
        ["--flagfile", str(outer), "--resume"],
        ["--resume", "--", f"--flagfile={outer}"],
        [],
    ):
        assert _texts(*arguments) == _of_absl(*arguments)
    assert _texts(f"--flagfile={outer}", "--seed=4") == [
        *("--seed=3", "--q=0.1", "--name=with # sign", "--xla", "--seed=4")
    ]


def test_flag_files_that_are_none(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "binary").write_bytes(b"--a=\xff")
    (tmp_path / "one").write_text(f"--flagfile={tmp_path / 'other'}\n")
    (tmp_path / "other").write_text(f"--flagfile={tmp_path / 'one'}\n")
    no_file = "found a pipe, a socket or a device"
    for argument, found in (
        ("=", ": expected a path, found an empty one"),
        ("", ": expected a path, found none"),
        ("=/dev/zero", f"=/dev/zero: expected a flag file, {no_file}"),
        (f"={tmp_path}/pipe", f"={tmp_path}/pipe: expected a flag file, {no_file}"),
        (f"={tmp_path}/missing", f"={tmp_path}/missing: expected a flag file, found none"),
        (
            f"={tmp_path}/binary",
            f"={tmp_path}/binary: expected a flag file in UTF-8, found byte 0xff at position 4",
        ),
        (
            f"={tmp_path}/one",
            f": expected a file that does not name itself, found {tmp_path}/one",
        ),
    ):
        assert golden.refusal(with_flag_files, [f"--flagfile{argument}"]) == f"--flagfile{found}"


@pytest.fixture
def known() -> flags.FlagValues:
    known = flags.FlagValues()
    flags.DEFINE_integer("seed", 0, "", flag_values=known)
    flags.DEFINE_bool("client_shuffle", True, "", flag_values=known)
    flags.DEFINE_multi_string("override", [], "", flag_values=known)
    return known


@pytest.fixture
def flag_file(tmp_path) -> Path:
    path = tmp_path / "a.flags"
    path.write_text("--seed=1\n--noclient_shuffle\n")
    return path


@pytest.mark.parametrize(
    "arguments",
    [
        ["--seed=1", "--seed=1", "--seed", "1"],
        ["--client_shuffle", "--client_shuffle=true"],
        ["--override=a:q=1", "--override=b:q=2"],
        ["--flagfile=FILE", "--seed=2", "--client_shuffle"],
        ["--flagfile=FILE", "--flagfile=FILE"],
        ["--seed=1", "--flagfile=FILE", "--noclient_shuffle"],
        # Not known, or no flags: absl's own errors.
        ["--sed=1", "--sed=2"],
        ["--seed=1", "digits", "--seed=2"],
        ["--seed=1", "--", "--seed=2"],
    ],
)
def test_flags_of_one_value(known, flag_file, arguments):
    given = [argument.replace("FILE", str(flag_file)) for argument in arguments]
    check_given_once(with_flag_files(given), known)


@golden.arguments
def test_flags_of_two_values(known, flag_file, arguments):
    given = [argument.replace("FILE", str(flag_file)) for argument in arguments]
    return golden.refusal(check_given_once, with_flag_files(given), known).replace(
        str(flag_file), "FILE"
    )
