"""Comparison of a demo's last state with the same rounds run on this machine."""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fleet.node_noise.noise import NodeNoise, NoisedGroup, noise_of_export
from fleet.player import Examples, Player
from fleet.settings import manifest_sha256
from fleet.state_folder import DONE, JOURNAL, sums_file
from plan_runner.errors import PlanError, counted
from plan_runner.export import SERVER_STATE, STATE, SUFFIX, TRAINING, read_arrays

# How many standard deviations the noise's moments may be off: once in a million demos by chance.
_DEVIATIONS = 5.0


class Moments(NamedTuple):
    """Of noise, in its own standard deviations.

    Attributes:
        numbers: How many there are.
        mean: Of them, in standard deviations of the mean.
        variance: Of them, over that which is promised.
        deviation: Standard deviation of `variance`.
    """

    numbers: int
    mean: float
    variance: float
    deviation: float

    @property
    def fits(self) -> bool:
        """Whether it is the noise that was promised."""
        off = (self.variance - 1) / self.deviation
        return abs(self.mean) <= _DEVIATIONS and abs(off) <= _DEVIATIONS


def equals_run_plan(
    export: Path, clients: Path, state: Path, folder: Path, tell: Callable[[str], None]
) -> bool:
    """Runs the same cohorts with run_plan in this environment, and compares the states.

    Where nodes have added noise, run_plan's states differ. The opened sums are then run again, and
    compared with the sums of the same clients without noise.

    Args:
        state: The server's folder.
        folder: Folder for run_plan's output.
    """
    journal = [json.loads(line) for line in (state / JOURNAL).read_text().splitlines()]
    rounds = [event for event in journal if event["event"] == DONE]
    noise = noise_of_export(export, manifest_sha256(export))
    if noise is not None:
        return _has_nodes_noise(export, clients, state, rounds, noise, tell)
    file, output = folder / "cohorts.txt", folder / "run_plan"
    file.write_text("".join(f"{','.join(event['names'])}\n" for event in rounds))
    played = subprocess.run(
        [
            *(sys.executable, "-m", "plan_runner", f"--plan={export}", f"--clients={clients}"),
            *(f"--cohorts={file}", f"--output={output}"),
        ],
        capture_output=True,
        text=True,
    )
    if played.returncode:
        raise PlanError(f"run_plan: {played.stderr.strip()}")
    same = (output / STATE).read_bytes() == (state / STATE).read_bytes()
    verdict = "is" if same else "IS NOT"
    tell(f"the state after {counted(len(rounds), 'round')} {verdict} that of run_plan, bit for bit")
    return same


def _has_nodes_noise(
    export: Path,
    clients: Path,
    folder: Path,
    rounds: list[dict[str, Any]],
    noise: NodeNoise,
    tell: Callable[[str], None],
) -> bool:
    files = {name: clients / f"{name}{SUFFIX}" for event in rounds for name in event["names"]}
    reads = [clients, *(file.resolve() for file in files.values())]
    state, found = (export / SERVER_STATE).read_bytes(), []
    with contextlib.closing(Player(export, manifest_sha256(export), reads=reads)) as player:
        for event in rounds:
            number, names, down = event["round"], event["names"], player.begin(state)
            path = folder / sums_file(TRAINING, number)
            opened = read_arrays(path)
            if noise.takes_part == 1:
                sent = (player.values(name, down, Examples([files[name]])) for name in names)
                found += list(noise_in_units(noise, opened, added(sent), len(names)))
            ended = player.end(
                state, path.read_bytes(), number, len(names), len(down), event["bytes_up"]
            )
            state = ended.state
    same = state == (folder / STATE).read_bytes()
    verdict = "is" if same else "IS NOT"
    tell(
        f"the state after {counted(len(rounds), 'round')} {verdict} what the plan makes of the "
        "opened sums, bit for bit"
    )
    if noise.takes_part < 1:
        tell("nodes have tossed coins whether to take part: the noise cannot be told from that")
        return same
    moments = moments_of(found)
    fits = "is" if moments.fits else "IS NOT"
    tell(
        f"the sums less those without noise: {moments.numbers} numbers, of a variance "
        f"{moments.variance:.4f} times the plan's (expected 1 +- {moments.deviation:.4f}), which "
        f"{fits} the noise of its nodes"
    )
    return same and moments.fits


def added(values: Iterator[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Returns the sums of clients' integers, by tensor."""
    sums: dict[str, np.ndarray] = {}
    for client in values:
        for name, value in client.items():
            sums[name] = sums.get(name, 0) + value.astype(np.int64)
    return sums


def noise_in_units(
    noise: NodeNoise,
    opened: Mapping[str, np.ndarray],
    plain: Mapping[str, np.ndarray],
    clients: int,
) -> Iterator[tuple[np.ndarray, float]]:
    """Yields the noise of a sum in its standard deviations, and its variance, by group.

    Args:
        opened: The sums with noise, by tensor.
        plain: Those without.
        clients: How many have added noise.

    Raises:
        PlanError: If sums differ that have no noise.
    """
    for name in noise.without_noise:
        if (opened[name] != plain[name]).any():
            raise PlanError(f"{name}: expected the sum of the clients, found another one")
    for group in noise.groups:
        differences = np.concatenate(
            [_centred(group, opened[name], plain[name]) for name in group.tensors]
        )
        variance = clients * group.variance
        if variance > 0:
            yield differences / math.sqrt(variance), variance
        elif differences.any():
            raise PlanError(f"{group.name}: expected the sum of the clients, found another one")


def _centred(group: NoisedGroup, opened: np.ndarray, plain: np.ndarray) -> np.ndarray:
    found = np.mod(opened.astype(np.int64) - plain, group.modulus).ravel()
    return np.where(found >= group.modulus // 2, found - group.modulus, found)


def moments_of(found: list[tuple[np.ndarray, float]]) -> Moments:
    """Returns what is to be compared with 0 and 1.

    The fourth moment of Skellam noise of variance v, in its own deviations, is 3 + 1 / v.

    Args:
        found: Of `noise_in_units`.
    """
    values = np.concatenate([units for units, _ in found])
    of_squares = sum(units.size * (2 + 1 / variance) for units, variance in found)
    return Moments(
        values.size,
        float(values.sum() / math.sqrt(values.size)),
        float(np.mean(values**2)),
        math.sqrt(of_squares) / values.size,
    )
