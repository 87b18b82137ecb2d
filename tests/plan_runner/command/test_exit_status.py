"""Exit statuses of commands: one-line errors, and signals."""

import errno
import os
import signal

import pytest

from plan_runner.errors import PlanError
from plan_runner.exit_status import Terminated, ended_by_signals, run_command


@pytest.fixture
def hang_up():
    """Yields SIGHUP, and restores its handler after the test."""
    before = signal.getsignal(signal.SIGHUP)
    yield signal.SIGHUP
    signal.signal(signal.SIGHUP, before)


def raising(error):
    def run():
        raise error

    return run


def test_ignored_hang_up_signal_stays_ignored(hang_up):
    signal.signal(hang_up, signal.SIG_IGN)
    with ended_by_signals():
        os.kill(os.getpid(), hang_up)
    assert signal.getsignal(hang_up) is signal.SIG_IGN


def test_signal_ends_command_and_restores_handler(hang_up, capsys):
    signal.signal(hang_up, signal.SIG_DFL)
    assert run_command(lambda: os.kill(os.getpid(), hang_up)) == 129
    assert capsys.readouterr() == ("", "interrupted\n")
    assert signal.getsignal(hang_up) is signal.SIG_DFL
    with pytest.raises(Terminated), ended_by_signals():
        os.kill(os.getpid(), hang_up)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (PlanError("here: expected a,\nfound b\x1b"), "here: expected a, found b\\x1b"),
        (OSError(errno.ENOSPC, "No space left"), "cannot read or write (No space left)"),
        (OSError(errno.EACCES, "Denied", "file"), "file: cannot read or write (Denied)"),
    ],
)
def test_expected_errors_print_one_line(error, line, capsys):
    assert run_command(raising(error)) == 2
    assert capsys.readouterr() == ("", f"error: {line}\n")


def test_unexpected_errors_propagate():
    for error in (OSError(errno.EBADF, "no file of the user's"), KeyError("a")):
        with pytest.raises(type(error)):
            run_command(raising(error))
    assert run_command(lambda: 3) == 3
    assert run_command(lambda: None) == 0
