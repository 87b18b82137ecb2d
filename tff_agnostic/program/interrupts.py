"""SIGTERM and Ctrl-C as a request to stop after the round, so that it can be saved."""

import signal
import threading
import time
from types import FrameType
from typing import Any, Optional

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


# Who stops all processes of a job at once reaches a command twice: itself, and by its parent, which
# passes on what it is sent. `timeout` signals a process and its group.
_ONE_REQUEST_SECONDS = 0.5


class StopRequest:
    """While entered, notes the first SIGINT or SIGTERM; a later one acts as usual.

    Args:
        one_request_seconds: How soon after the first a signal is taken for the same request.

    Attributes:
        signal_number: The signal that was noted, or None.
    """

    def __init__(self, one_request_seconds: float = _ONE_REQUEST_SECONDS) -> None:
        self.signal_number: Optional[int] = None
        self._one_request_seconds = one_request_seconds
        self._noted_at = 0.0
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "StopRequest":
        """Installs the handlers."""
        # Elsewhere Python takes no handlers, and gets no signals.
        is_main = threading.current_thread() is threading.main_thread()
        for number in _SIGNALS if is_main else ():
            self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Restores the handlers."""
        self._restore()

    def check(self, done: str) -> None:
        """Raises `Interrupted` if a signal was noted; `done` says what was saved."""
        if self.signal_number is not None:
            raise Interrupted(f"stopped and saved after {done}", self.signal_number)

    def _note(self, number: int, frame: Optional[FrameType]) -> None:
        del frame
        now = time.monotonic()
        if self.signal_number is None:
            self.signal_number, self._noted_at = number, now
        elif now - self._noted_at >= self._one_request_seconds:
            self._restore()
            signal.raise_signal(number)

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}


class Interrupted(Exception):
    """A run was stopped by a signal after it had been saved.

    Attributes:
        signal_number: The signal.
    """

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.signal_number = signal_number

    def with_command(self, command: str) -> "Interrupted":
        """Returns the same with the command that goes on."""
        return Interrupted(f"{self}; go on with: {command}", self.signal_number)
