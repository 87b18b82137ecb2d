"""How binaries start and end."""

import shlex
import sys
from pathlib import Path

import pytest
from absl.testing import flagsaver

from tff_agnostic.errors import ExecutionError, UserError
from tff_agnostic.run.process import Interrupted, exit_status, parse_flags, resume_command


def _raise(error: BaseException):
    def main(argv: object) -> None:
        raise error

    return main


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (UserError("--rounds: expected 1, found 0"), 2, "error: --rounds: expected 1, found 0\n"),
        (UserError("a name with\na line break"), 2, "error: a name with a line break\n"),
        (
            UserError("a.csv: found \0u\0s\x1b[2J, Grüße, \udcff"),
            2,
            "error: a.csv: found \\x00u\\x00s\\x1b[2J, Grüße, \\udcff\n",
        ),
        (
            ExecutionError("TFF's worker has ended"),
            1,
            "error: TFF's worker has ended (nothing that was saved is lost; train and compare go "
            "on with --resume)\n",
        ),
        (Interrupted("stopped and saved", 15), 143, "stopped and saved\n"),
        (Interrupted("stopped and saved", 2), 130, "stopped and saved\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (PermissionError(13, "Permission denied", "a/b"), 2, "error: a/b: Permission denied\n"),
    ],
)
def test_what_a_user_can_mend_is_one_line(capsys, error, status, text):
    assert exit_status(_raise(error), ["train"]) == status
    assert capsys.readouterr() == ("", text)


def test_success_is_status_zero(capsys):
    assert exit_status(lambda argv: print("done"), ["train"]) == 0
    assert capsys.readouterr() == ("done\n", "")


@pytest.mark.parametrize("error", [ZeroDivisionError(), OSError(9, "Bad file descriptor")])
def test_a_bug_is_not_hidden(error):
    with pytest.raises(type(error)):
        exit_status(_raise(error), ["train"])


def test_positional_arguments_are_refused(capsys):
    assert exit_status(_raise(AssertionError()), ["train", "digits"]) == 2
    assert capsys.readouterr().err == "error: expected flags only, found 'digits'\n"


@pytest.mark.parametrize("argument", ["--no_such_flag=1", "--flagfile=/no/such/file", "--v=high"])
def test_a_flag_that_cannot_be_parsed_is_one_line(capsys, argument):
    with pytest.raises(SystemExit) as error:
        parse_flags(["train", argument])
    assert error.value.code == 2
    text = capsys.readouterr().err
    assert text.startswith("error: ")
    assert text.count("\n") == 1


def test_parsing_returns_what_is_no_flag():
    with flagsaver.flagsaver():
        assert parse_flags(["train", "--verbosity=-1", "digits"]) == ["train", "digits"]


@pytest.fixture
def checkout(tmp_path) -> Path:
    """A folder that looks like a checkout."""
    root = tmp_path / "check out"
    (root / "binaries").mkdir(parents=True)
    (root / "run").write_text("")
    return root


def _command(monkeypatch, program: Path, *arguments: str) -> list[str]:
    monkeypatch.setattr(sys, "argv", [str(program), *arguments])
    return shlex.split(resume_command("train", Path("runs/my run")))


_GO_ON = ["--output_dir=runs/my run", "--resume"]


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [
        ([], []),
        (["--rounds=5", "--task", "digits"], ["--rounds=5", "--task", "digits"]),
        (["--output_dir=x", "--rounds=5"], ["--rounds=5"]),
        (["--output_dir", "x", "--rounds=5"], ["--rounds=5"]),
        (["-output_dir", "--resume", "--rounds=5"], ["--rounds=5"]),
        (["--resume", "--rounds=5"], ["--rounds=5"]),
        (["--noresume", "--resume=false"], []),
        (["--target_domain=a b", "--digits_keep="], ["--target_domain=a b", "--digits_keep="]),
    ],
)
def test_the_command_to_go_on_repeats_the_flags(monkeypatch, checkout, arguments, kept):
    monkeypatch.chdir(checkout)
    found = _command(monkeypatch, checkout / "binaries" / "train.py", *arguments)
    assert found == ["./run", "train", *kept, *_GO_ON]


def test_the_command_to_go_on_works_in_the_folder_where_it_was_given(
    monkeypatch, checkout, tmp_path
):
    monkeypatch.chdir(tmp_path)
    found = _command(monkeypatch, checkout / "binaries" / "train.py")
    assert found == [str(checkout / "run"), "train", *_GO_ON]


def test_the_command_to_go_on_with_an_installed_package(monkeypatch, tmp_path):
    found = _command(monkeypatch, Path("/usr/bin/tff-agnostic-train"))
    assert found == ["tff-agnostic-train", *_GO_ON]
    found = _command(monkeypatch, tmp_path / "tff_agnostic" / "binaries" / "train.py")
    assert found == [sys.executable, "-m", "tff_agnostic.binaries.train", *_GO_ON]
