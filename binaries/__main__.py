"""Starts a command by its name: `python -m binaries train --help`.

The command runs in a child process, for which the calling process waits: see `watched`. Ctrl-C
always prints a single line, even in the seconds in which TensorFlow is imported: an exception
during this import would print pages of traceback.
"""

import contextlib
import ctypes
import gc
import importlib
import os
import resource
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn, Optional

from tff_agnostic import python_version_error
from tff_agnostic.base.registry import did_you_mean
from tff_agnostic.base.terminal import escape_output
from tff_agnostic.program.commands.registry import COMMANDS, OTHER_COMMANDS, PROGRAM, command

_HELP = ("--help", "-h", "help")
_QUOTES = '"' * 3
# Importing and tracing create millions of permanent objects. With Python's default thresholds,
# garbage collection takes a fifth of a command's start-up time.
_GC_THRESHOLDS = (50_000, 20, 50)

_FAILURE_STATUS = 1
_USER_ERROR_STATUS = 2
_NOT_DONE = (
    b"error: the command ended before it was done: its process was ended with status 0, as "
    b"os._exit(0) in a Python file of a model or an algorithm does\n"
)
# Signals to forward to the command.
_PASSED_ON = (
    *(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM),
    *(signal.SIGUSR1, signal.SIGUSR2),
)
# From linux/prctl.h.
_PR_SET_PDEATHSIG = 1


def module_command() -> None:
    """Runs the command that the first argument names, as if its module were run."""
    with watched():
        _prepare()
        name = _named(sys.argv.pop(1) if len(sys.argv) > 1 else "")
        sys.argv[0] = os.path.join(os.path.dirname(__file__), f"{name}.py")
        _start(name)


def console_script() -> None:
    """Runs the command that the first argument of the installed program names."""
    with watched():
        _prepare()
        first = sys.argv.pop(1) if len(sys.argv) > 1 else "--help"
        if first in _HELP:
            print(_usage())
            return
        _start(_named(first))


def _named(text: str) -> str:
    name = text.replace("-", "_")
    if name not in (*COMMANDS, *OTHER_COMMANDS):
        names = sorted((*COMMANDS, *OTHER_COMMANDS))
        value = f"{text}: {did_you_mean(name, names)}" if text else "none: "
        print(
            f"error: expected a command, found {value}the commands are {', '.join(names)}",
            file=sys.stderr,
        )
        sys.exit(_USER_ERROR_STATUS)
    return name


def _start(name: str) -> None:
    """Starts a command, whose help begins with its module's docstring."""
    module = importlib.import_module(f"{__package__}.{name}")
    if name in COMMANDS:
        command(name).main(module.__doc__)
    sys.modules["__main__"].__doc__ = module.__doc__
    module.run_app()


def _usage() -> str:
    lines = [f"usage: {PROGRAM} COMMAND [--FLAG=VALUE ...]", ""]
    for name in sorted((*COMMANDS, *OTHER_COMMANDS)):
        with open(os.path.join(os.path.dirname(__file__), f"{name}.py")) as module:
            summary = module.readline().strip().removeprefix(_QUOTES).removesuffix(".")
        lines.append(f"  {name:<16} {summary}")
    return "\n".join([*lines, "", f"{PROGRAM} COMMAND --help lists the flags of a command."])


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Continues in a child process; the calling process exits with the child's status or signal.

    A user's Python file can end its process with status 0 before the command is done: by os._exit,
    by exec, or from C. Code in that process cannot notice this. Therefore the child reports the
    status of the completed command, and a child that exits with 0 without a report has failed.
    """
    # If the parent ignored SIGCHLD, waiting for a child would be impossible.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    waited_for = {signal.SIGCHLD, *_PASSED_ON}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, waited_for)
    reports, report = os.pipe()
    parent, child = os.getpid(), os.fork()
    if child:
        os.close(report)
        _exit_like(child, reports)
    os.close(reports)
    # Let the kernel end the child when its parent dies: users know only the parent's process ID.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(_FAILURE_STATUS)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    watched_process = os.getpid()
    try:
        yield
    except SystemExit as e:
        status = e.code if isinstance(e.code, int) else int(e.code is not None)
        _report(report, status, watched_process)
        raise
    _report(report, 0, watched_process)


def _report(report: int, status: int, watched_process: int) -> None:
    # Processes that are forked from the command also run this code; they must not report.
    if os.getpid() == watched_process:
        os.write(report, b"%d" % status)


def _exit_like(child: int, reports: int) -> NoReturn:
    """Waits until a child ends, and ends this process with the same status or signal."""
    while True:
        sent = signal.sigwaitinfo({signal.SIGCHLD, *_PASSED_ON})
        if sent.si_signo == signal.SIGCHLD:
            ended, how = os.waitpid(child, os.WNOHANG)
            if ended:
                break
        elif sent.si_code <= 0:
            # Forward only signals from other processes: those from a terminal already reach the
            # child.
            os.kill(child, sent.si_signo)
    code = os.waitstatus_to_exitcode(how)
    if code < 0:
        _end_by_signal(-code)
    if code == 0:
        code = _reported(reports)
        if code < 0:
            os.write(2, _NOT_DONE)
            code = _FAILURE_STATUS
    os._exit(code)


def _reported(reports: int) -> int:
    """Returns the status that the child reported; -1 without a report."""
    # Do not wait for the end of the pipe: processes of the child may still hold it open.
    os.set_blocking(reports, False)
    try:
        return int(os.read(reports, 16) or -1)
    except BlockingIOError:
        return -1


def _end_by_signal(number: int) -> None:
    """Ends this process by a signal, given its number."""
    # Write no second core file: the child has already written one.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)


def _prepare() -> None:
    escape_output()
    refusal = python_version_error(sys.version_info[:2])
    if refusal:
        print(f"error: {refusal}", file=sys.stderr)
        sys.exit(_USER_ERROR_STATUS)
    gc.set_threshold(*_GC_THRESHOLDS)
    _end_at_once_on_sigint()


def _end_at_once_on_sigint() -> None:
    # Keep ignoring SIGINT if a shell started this process in the background.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def _end(number: int, frame: Optional[FrameType]) -> NoReturn:
    del frame
    os.write(2, b"interrupted\n")
    os._exit(128 + number)


if __name__ == "__main__":
    module_command()
