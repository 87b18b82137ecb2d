"""Helper with which a timed process, a side, communicates with the benchmark; needs only NumPy.

A side prepares, and reports on standard output that it is ready. Then it runs one round per line of
standard input, and prints the round's seconds. Between rounds it blocks, so that other sides can
use the processor.
"""

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from importlib import metadata
from typing import Any, TextIO

from benchmarks.timing.workloads import Workload, make_clients

# The first round of a setting may compile functions, so only the second round counts.
_ROUNDS_PER_SETTING = 2
# Maximum number of settings of a side, which determines the number of warm-up rounds.
MAX_SETTINGS = 2
# Number of rounds after the first one, until every side runs the fastest of its settings.
WARM_UP_ROUNDS = _ROUNDS_PER_SETTING * MAX_SETTINGS - 1


class Side:
    """A side, as seen by the timed process.

    Attributes:
        algorithm: Name of the algorithm, for sides with several algorithms.
        runtime: Name of the runtime, for sides with several runtimes.
        device: Kind of device, for sides with several kinds.
        client_mode: Option `client_mode` of the runtime, for sides of this package.
    """

    def __init__(
        self,
        workload: Workload,
        algorithm: str = "",
        runtime: str = "",
        device: str = "cpu",
        client_mode: str = "auto",
    ) -> None:
        self.workload = workload
        self.algorithm = algorithm
        self.runtime = runtime
        self.device = device
        self.client_mode = client_mode
        self._channel = _take_standard_output()

    @staticmethod
    def from_command_line() -> "Side":
        """Returns the side that this process's command line describes."""
        parser = argparse.ArgumentParser()
        parser.add_argument("--workload", required=True, type=Workload.from_json)
        parser.add_argument("--algorithm", default="")
        parser.add_argument("--runtime", default="")
        parser.add_argument("--device", default="cpu")
        parser.add_argument("--client_mode", default="auto")
        return Side(**vars(parser.parse_args()))

    def clients(self) -> list[dict[str, Any]]:
        """Returns the clients of a round; see `workloads.make_clients`."""
        return make_clients(self.workload)

    def rounds(self, parameters: int, packages: Sequence[str]) -> Iterator[int]:
        """Reports that the side is ready, and yields the number of each requested round.

        The caller must complete a round before it requests the next item, because the time between
        two items is the round's time.

        Args:
            parameters: Number of trainable scalars of the side's model.
            packages: Names of the packages whose versions the side reports.

        Raises:
            SystemExit: `parameters` differs from the workload's number.
        """
        for number, _ in enumerate(self.setting_rounds(parameters, packages, [""])):
            yield number

    def setting_rounds(
        self, parameters: int, packages: Sequence[str], settings: Sequence[str]
    ) -> Iterator[str]:
        """Reports that the side is ready, and yields the setting of each requested round.

        The first rounds try each setting twice, and the second time counts. All later rounds have
        the fastest setting. See `rounds` for the other arguments.

        Args:
            settings: Names of the settings, at most `MAX_SETTINGS`.
        """
        assert len(settings) <= MAX_SETTINGS, settings
        if parameters != self.workload.parameters:
            sys.exit(
                f"expected a model of {self.workload.parameters:,} parameters, "
                f"found one of {parameters:,}"
            )
        self._say({"ready": {name: metadata.version(name) for name in packages}})
        trials = [setting for setting in settings for _ in range(_ROUNDS_PER_SETTING)]
        tried: dict[str, float] = {}
        for number, _ in enumerate(sys.stdin):
            is_trial = number < len(trials)
            setting = trials[number] if is_trial else min(tried, key=tried.__getitem__)
            start = time.perf_counter()
            yield setting
            seconds = time.perf_counter() - start
            if is_trial:
                tried[setting] = seconds
            self._say({"seconds": seconds, "setting": setting})

    def _say(self, message: dict[str, Any]) -> None:
        # The pipe is closed if the benchmark has ended first.
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(message), file=self._channel, flush=True)


def _take_standard_output() -> TextIO:
    """Returns a copy of standard output, and redirects what libraries print to standard error."""
    channel = os.fdopen(os.dup(1), "w")
    sys.stdout.flush()
    os.dup2(2, 1)
    return channel
