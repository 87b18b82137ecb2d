"""Starts a side's process, and requests rounds from it."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

from benchmarks.timing import guard
from benchmarks.timing.process_tree import hold, release

_GRACE_SECONDS = 20.0
_KILL_SECONDS = 60.0


class SideError(Exception):
    """A side failed, and was ended; the one-line message contains the side's last output."""


class SideProcess:
    """A running side; leaving the context ends all of its processes.

    The context must be entered in the main thread, because the kernel ends the side when the thread
    that started it exits.

    Args:
        command: Command line of the side.
        environment: Environment variables of the side.
        log: File for the side's standard error.
        round_limit: Maximum seconds per round; the first round includes the start.

    Attributes:
        setting: Setting of the last round; "" if the side has only one setting.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        round_limit: float,
    ) -> None:
        self._command = list(command)
        self._environment = dict(environment)
        self._log = log
        self._round_limit = round_limit
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._unread = b""
        self._started = 0.0
        self._deadline: Optional[float] = None
        self.setting = ""

    def __enter__(self) -> "SideProcess":
        with open(self._log, "wb") as log:
            self._started = time.perf_counter()
            self._deadline = time.monotonic() + self._round_limit
            self._process = subprocess.Popen(
                [sys.executable, "-ESs", guard.__file__, str(os.getpid()), *self._command],
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                # Ctrl-C must reach only this process, which then ends the sides.
                start_new_session=True,
            )
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Ends the side and its descendants, at once if there was an exception."""
        process = self._running
        self.close()
        if exc_info[0] is not None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
            process.wait(_KILL_SECONDS)
        assert process.stdout is not None
        process.stdout.close()

    @property
    def pid(self) -> int:
        """Process id of the side's guard, which is the ancestor of the side's other processes."""
        return self._running.pid

    @property
    def age(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self._started

    @contextlib.contextmanager
    def released(self) -> Iterator[None]:
        """Resumes a stopped side for a with block, and stops the side afterwards.

        Sides are stopped between rounds, because a waiting side that polls uses processor time, as
        Ray and Flower do.
        """
        release(self.pid)
        try:
            yield
        finally:
            hold(self.pid)

    def close(self) -> None:
        """Closes the side's input, so that the side ends; does not wait for the end."""
        release(self.pid)
        stdin = self._running.stdin
        assert stdin is not None
        # The side may have exited already.
        with contextlib.suppress(BrokenPipeError):
            stdin.close()

    def ready(self) -> dict[str, str]:
        """Waits until the side is ready, and returns the versions of the side's packages.

        Raises:
            SideError: The side exits first, or takes too long.
        """
        return dict(self._answer("ready")["ready"])

    def round(self) -> float:
        """Runs one round, and returns its seconds.

        Raises:
            SideError: The side exits first, or takes too long.
        """
        stdin = self._running.stdin
        assert stdin is not None
        with contextlib.suppress(BrokenPipeError):
            stdin.write(b"round\n")
            stdin.flush()
        # The side may have been stopped since the last round, so start the time limit now.
        if self._deadline is None:
            self._deadline = time.monotonic() + self._round_limit
        answer = self._answer("seconds")
        self._deadline = None
        self.setting = str(answer["setting"])
        return float(answer["seconds"])

    @property
    def _running(self) -> "subprocess.Popen[bytes]":
        assert self._process is not None, "the side was not started"
        return self._process

    def _answer(self, key: str) -> dict[str, Any]:
        while True:
            line = self._line()
            # Ignore other lines, which the side's libraries print.
            with contextlib.suppress(ValueError):
                message = json.loads(line)
                if isinstance(message, dict) and key in message:
                    return message

    def _line(self) -> bytes:
        stdout, deadline = self._running.stdout, self._deadline
        assert stdout is not None
        assert deadline is not None
        while b"\n" not in self._unread:
            seconds = max(0.0, deadline - time.monotonic())
            if not select.select([stdout], [], [], seconds)[0]:
                self._running.send_signal(signal.SIGTERM)
                raise SideError(f"no round within {self._round_limit:g} s: {self._last_output()}")
            chunk = os.read(stdout.fileno(), 1 << 16)
            if not chunk:
                raise SideError(f"{self._how_it_ended()}: {self._last_output()}")
            self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _how_it_ended(self) -> str:
        try:
            code = self._running.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._running.send_signal(signal.SIGTERM)
            return "closed its output"
        killed = code - 128
        if killed in {int(s) for s in signal.Signals}:
            return f"was ended by {signal.Signals(killed).name}"
        return f"ended with status {code}"

    def _last_output(self) -> str:
        return last_line(self._log.read_bytes())


def last_line(output: bytes) -> str:
    """Returns the last non-empty line of a program's output."""
    lines = [line.strip() for line in output.decode(errors="replace").splitlines()]
    return next((line for line in reversed(lines) if line), "it printed nothing")
