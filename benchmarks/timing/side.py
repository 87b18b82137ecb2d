"""The protocol of a benchmark, as the timed process sees it. Standard library and NumPy only.

A side prepares, says on standard output that it is ready, and then for each line of standard input
runs one round and prints its seconds. In between it blocks, so that it takes no time from others.
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

# The first round of a setting may compile; the second one counts.
_ROUNDS_OF_A_SETTING = 2
# Warm-up rounds are enough for so many.
MOST_SETTINGS = 2
# Rounds after the first one until every side runs its fastest setting.
WARM_UP_ROUNDS = _ROUNDS_OF_A_SETTING * MOST_SETTINGS - 1


class Side:
    """This process's end of the protocol.

    Attributes:
        workload: What to run.
        algorithm: Which algorithm to run it with, for sides that have several.
        runtime: Where to run it, for sides that have several.
        device: The kind of device, for sides that have several.
        client_mode: Whether clients take steps together, for sides that leave it open.
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
        """Returns the side that the command line describes."""
        parser = argparse.ArgumentParser()
        parser.add_argument("--workload", required=True, type=Workload.from_json)
        parser.add_argument("--algorithm", default="")
        parser.add_argument("--runtime", default="")
        parser.add_argument("--device", default="cpu")
        parser.add_argument("--client_mode", default="auto")
        return Side(**vars(parser.parse_args()))

    def clients(self) -> list[dict[str, Any]]:
        """Returns the cohort; see `workloads.make_clients`."""
        return make_clients(self.workload)

    def rounds(self, parameters: int, packages: Sequence[str]) -> Iterator[int]:
        """Says that the side is ready; yields the number of each round that is asked for.

        The time of a round is that between two items: whatever the caller does with one has to be
        complete when it asks for the next.

        Args:
            parameters: Number of trainable scalars of the side's model.
            packages: What it runs on; their versions are reported.

        Raises:
            SystemExit: If that is not the workload's number.
        """
        for number, _ in enumerate(self.rounds_of(parameters, packages, [""])):
            yield number

    def rounds_of(
        self, parameters: int, packages: Sequence[str], settings: Sequence[str]
    ) -> Iterator[str]:
        """As `rounds`, and yields the setting that the round has to be run with.

        Each setting is tried in two rounds, and the second one counts. From then on it is the
        fastest one.

        Args:
            parameters: As in `rounds`.
            packages: As in `rounds`.
            settings: What a table calls each: at most `MOST_SETTINGS`.

        Raises:
            SystemExit: As in `rounds`.
        """
        assert len(settings) <= MOST_SETTINGS, settings
        if parameters != self.workload.parameters:
            sys.exit(
                f"expected a model of {self.workload.parameters:,} parameters, "
                f"found one of {parameters:,}"
            )
        self._say({"ready": {name: metadata.version(name) for name in packages}})
        trials = [setting for setting in settings for _ in range(_ROUNDS_OF_A_SETTING)]
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
        # Nobody listens any more when the driver has ended first.
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(message), file=self._channel, flush=True)


def _take_standard_output() -> TextIO:
    """Returns standard output, in whose place libraries' prints go to standard error."""
    channel = os.fdopen(os.dup(1), "w")
    sys.stdout.flush()
    os.dup2(2, 1)
    return channel
