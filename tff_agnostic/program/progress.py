"""What a person sees of a run while it goes on."""

import sys

from tqdm import tqdm

from tff_agnostic.computations.algorithm import Metrics
from tff_agnostic.program.round_row import worst_in_round
from tff_agnostic.tasks.task import Task

# Lines of a whole run where there is no terminal to draw a bar on, such as a log file.
_NUM_LINES = 20


class Progress:
    """A bar with round, worst domain, its loss and lambda; lines where there is no terminal.

    Args:
        task: The task.
        completed: Rounds completed before.
        total: Rounds of the whole run.
        visible: Whether to show anything.
    """

    def __init__(self, task: Task, completed: int, total: int, visible: bool) -> None:
        self._task = task
        self._total = total
        self._visible = visible
        self._lines = visible and not sys.stderr.isatty()
        self._bar = tqdm(
            total=total, initial=completed, unit="round", disable=self._lines or not visible
        )

    def __enter__(self) -> "Progress":
        """Starts."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Leaves the bar as it is."""
        self._bar.close()

    def show(self, round_num: int, metrics: Metrics) -> None:
        """Shows a completed round."""
        domain, loss, weight = worst_in_round(self._task, metrics)
        text = f"worst domain {domain}: loss {loss:.3f}, lambda {weight:.3f}"
        self._bar.set_postfix_str(text, refresh=False)
        self._bar.update()
        if self._lines and round_num % max(1, self._total // _NUM_LINES) == 0:
            print(f"round {round_num}/{self._total}, {text}", file=sys.stderr, flush=True)

    def note(self, line: str) -> None:
        """Shows a line of its own, above the bar."""
        if self._visible:
            tqdm.write(line, file=sys.stderr)
