"""The timed process's end of the protocol of benchmarks. Standard library and NumPy only.

A side prepares, reports on standard output that it is ready, and then runs one round per line of
standard input, printing the round's seconds. In between it blocks, so that others can use the CPU.
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

# The first round of a setting may compile; only the second one counts.
_ROUNDS_PER_SETTING = 2
# The number of warm-up rounds depends on this limit.
MAX_SETTINGS = 2
# Number of rounds after the first one until every side runs its fastest setting.
WARM_UP_ROUNDS = _ROUNDS_PER_SETTING * MAX_SETTINGS - 1


class Side:
    """The timed process's end of the protocol.

    Attributes:
        workload: The workload.
        algorithm: Name of the algorithm, for sides with several.
        runtime: Name of the runtime, for sides with several.
        device: Kind of device, for sides with several.
        client_mode: Whether clients take steps together, for sides with both modes.
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
        """Reports that the side is ready; yields the number of each requested round.

        A round's time is the time between two items: the caller completes a round before it
        requests the next item.

        Args:
            parameters: Number of trainable scalars of the side's model.
            packages: Packages of the side, for the report of their versions.

        Raises:
            SystemExit: If `parameters` is not the workload's number.
        """
        for number, _ in enumerate(self.setting_rounds(parameters, packages, [""])):
            yield number

    def setting_rounds(
        self, parameters: int, packages: Sequence[str], settings: Sequence[str]
    ) -> Iterator[str]:
        """Like `rounds`, but yields the setting of the round.

        Each setting is tried in two rounds, and the second one counts. All later rounds have the
        fastest setting.

        Args:
            parameters: As in `rounds`.
            packages: As in `rounds`.
            settings: Names of the settings, at most `MAX_SETTINGS`.

        Raises:
            SystemExit: As in `rounds`.
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
        # The pipe is closed if the driver has ended first.
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(message), file=self._channel, flush=True)


def _take_standard_output() -> TextIO:
    """Returns standard output, and redirects later prints of libraries to standard error."""
    channel = os.fdopen(os.dup(1), "w")
    sys.stdout.flush()
    os.dup2(2, 1)
    return channel
