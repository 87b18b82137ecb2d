"""Shows progress and remaining time of long work on a terminal, in a notebook or in a file."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Optional

from tff_agnostic.base.later import Later
from tff_agnostic.base.terminal import printable, unescaped

if TYPE_CHECKING:
    from tqdm import auto as tqdm
else:
    tqdm = Later("tqdm.auto")

__all__ = ["LINE_SECONDS", "LongWork", "is_shown", "tqdm"]

# Seconds between progress lines if no bar is shown.
LINE_SECONDS = 30.0
# Seconds between updates of the elapsed time in a bar.
_BAR_SECONDS = 1.0
# `l_bar` has the number of completed parts in the description, because tqdm's own number would have
# fractions.
_BAR_FORMAT = "{l_bar}{bar}| {elapsed} so far, {remaining} left{postfix}"
_MINUTE, _HOUR = 60, 3600


class LongWork:
    """Context manager that shows the progress of long work.

    A terminal or notebook shows a bar. A file or pipe gets a line every 30 seconds, so short work
    prints none. Both keep updating during long parts.

    Args:
        what: Name of the work, such as "import".
        total: Number of parts.
        unit: Name of the parts, such as "trials"; "B" for bytes.
        done: Number of parts that were done before the start.
        visible: Whether to show anything.
    """

    def __init__(
        self,
        what: str,
        total: float,
        unit: str,
        done: float = 0,
        visible: bool = True,
    ) -> None:
        self._what = what
        self._total = total
        self._unit = unit
        self._before = self._whole = self._done = done
        self._step = ""
        self._started = time.monotonic()
        self._has_bar = visible and is_shown()
        self._has_lines = visible and not self._has_bar
        self._seconds = _BAR_SECONDS if self._has_bar else LINE_SECONDS
        self._ended = threading.Event()
        self._thread: Optional[threading.Thread] = None
        self._bar = tqdm.tqdm(
            desc=self._parts(),
            total=total,
            initial=done,
            file=unescaped(sys.stderr),
            bar_format=_BAR_FORMAT,
            smoothing=0,
            disable=not self._has_bar,
        )

    def __enter__(self) -> LongWork:
        if self._has_bar or self._has_lines:
            self._thread = threading.Thread(target=self._refresh, daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        """Closes the bar, which stays visible."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        self._bar.close()

    def update(self, parts: float = 1) -> None:
        """Adds to the number of completed parts."""
        self.reach(self._whole + parts)

    def reach(self, done: float) -> None:
        """Sets the number of completed parts, including those before the start."""
        self._whole = done
        self._show(done)

    def within(self, step: int, steps: int, /) -> None:
        """Shows that the fraction `step / steps` of the current part is done."""
        self._show(self._whole + step / steps)

    def _show(self, done: float) -> None:
        more, self._done = done - self._done, done
        self._bar.set_description(self._parts(), refresh=False)
        self._bar.update(more)

    def say(self, step: str) -> None:
        """Shows the name of the current part."""
        self._step = step
        self._bar.set_postfix_str(printable(step))

    def note(self, line: str) -> None:
        """Prints a line to standard output, above the bar if one is shown."""
        tqdm.tqdm.write(line)

    def _refresh(self) -> None:
        while not self._ended.wait(self._seconds):
            if self._has_bar:
                self._bar.refresh()
            else:
                print(self._line(), file=sys.stderr, flush=True)

    def _parts(self) -> str:
        return f"{self._what}: {_parts(self._done, self._total, self._unit)}"

    def _line(self) -> str:
        seconds = time.monotonic() - self._started
        return progress_line(
            self._what,
            self._done,
            self._total,
            self._unit,
            seconds,
            step=self._step,
            before=self._before,
        )


def progress_line(
    what: str,
    done: float,
    total: float,
    unit: str,
    seconds: float,
    *,
    step: str = "",
    before: float = 0,
) -> str:
    """Returns a line such as "compare: 3 of 12 trials, 2 min so far, about 6 min left".

    Args:
        done: Number of completed parts.
        total: Number of parts.
        unit: Name of the parts.
        seconds: Seconds since the start.
        step: Name of the current part.
        before: Number of parts that were done before the start.
    """
    left = seconds_left(done - before, total - before, seconds)
    texts = [_parts(done, total, unit), f"{duration(seconds)} so far"]
    if done < total:
        texts.append("time left unknown" if left is None else f"about {duration(left)} left")
    return f"{what}: {', '.join(texts)}{f' ({step})' if step else ''}"


def _parts(done: float, total: float, unit: str) -> str:
    """Formats the number of completed parts, without fractions."""
    if unit == "B":
        megabytes = total / 1e6
        size = f"{megabytes:.3g}" if megabytes < 100 else f"{megabytes:,.0f}"
        return f"{done / max(1, total):.0%} of {size} MB"
    return f"{int(done)} of {int(total)} {unit}"


def seconds_left(done: float, total: float, seconds: float) -> Optional[float]:
    """Returns the expected remaining seconds; None before the first part is done."""
    return seconds * (total - done) / done if done > 0 else None


def duration(seconds: float) -> str:
    """Returns a duration as text in one or two units: 45 s, 12 min, 3 h 20 min."""
    if seconds < 2 * _MINUTE:
        return f"{seconds:.0f} s"
    minutes = round(seconds / _MINUTE)
    if minutes < 2 * _HOUR // _MINUTE:
        return f"{minutes} min"
    return f"{minutes // _MINUTE} h {minutes % _MINUTE} min"


def is_shown() -> bool:
    """Returns whether a terminal or a notebook can show a bar."""
    return sys.stderr.isatty() or in_notebook()


def in_notebook() -> bool:
    """Returns whether this process is the kernel of a Jupyter notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and "IPKernelApp" in shell.config
