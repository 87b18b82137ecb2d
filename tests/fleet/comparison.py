"""Comparison of a demo's final state with the same rounds run on this machine."""

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

from fleet.node_noise.noise import NodeNoise, NoisedGroup, parse_node_noise
from fleet.player import Examples, Player
from fleet.settings import manifest_sha256
from fleet.state_folder import DONE, JOURNAL, sums_file
from plan_runner.errors import PlanError, counted
from plan_runner.export import SERVER_STATE, STATE, SUFFIX, TRAINING, read_arrays, read_manifest

# Tolerance of the noise's moments in standard deviations, exceeded once in a million demos.
_DEVIATIONS = 5.0


class Moments(NamedTuple):
    """Moments of noise, in units of its standard deviation.

    Attributes:
        numbers: Number of noise values.
        mean: Mean of the noise, in standard deviations of the mean.
        variance: Variance of the noise, relative to the plan's variance.
        deviation: Standard deviation of `variance`.
    """

    numbers: int
    mean: float
    variance: float
    deviation: float

    @property
    def fits(self) -> bool:
        """Whether mean and variance agree with the plan."""
        off = (self.variance - 1) / self.deviation
        return abs(self.mean) <= _DEVIATIONS and abs(off) <= _DEVIATIONS


def equals_run_plan(
    export: Path, clients: Path, state: Path, folder: Path, report: Callable[[str], None]
) -> bool:
    """Runs the same cohorts with run_plan on this machine, and compares the states.

    If the nodes add noise, their states differ. Then the plan's result of the unmasked sums is
    compared instead, and the moments of the noise are compared with the plan's.

    Args:
        export: Folder of the export.
        clients: Folder of the clients' files.
        state: Folder of the server's state.
        folder: Folder for run_plan's output.
        report: Called with human-readable lines.
    """
    journal = [json.loads(line) for line in (state / JOURNAL).read_text().splitlines()]
    rounds = [event for event in journal if event["event"] == DONE]
    noise = parse_node_noise(read_manifest(export))
    if noise is not None:
        return _has_nodes_noise(export, clients, state, rounds, noise, report)
    file, output = folder / "cohorts.txt", folder / "run_plan"
    file.write_text("".join(f"{','.join(event['names'])}\n" for event in rounds))
    command = (sys.executable, "-m", "plan_runner", f"--plan={export}", f"--clients={clients}")
    flags = (f"--cohorts={file}", f"--output={output}")
    outcome = subprocess.run([*command, *flags], capture_output=True, text=True)
    if outcome.returncode:
        raise PlanError(f"run_plan: {outcome.stderr.strip()}")
    is_equal = (output / STATE).read_bytes() == (state / STATE).read_bytes()
    verdict = "is" if is_equal else "IS NOT"
    report(f"the state after {counted(len(rounds), 'round')} {verdict} run_plan's, bit for bit")
    return is_equal


def _has_nodes_noise(
    export: Path,
    clients: Path,
    folder: Path,
    rounds: list[dict[str, Any]],
    noise: NodeNoise,
    report: Callable[[str], None],
) -> bool:
    files = {name: clients / f"{name}{SUFFIX}" for event in rounds for name in event["names"]}
    reads = [clients, *(file.resolve() for file in files.values())]
    state, draws = (export / SERVER_STATE).read_bytes(), []
    with contextlib.closing(Player(export, manifest_sha256(export), reads=reads)) as player:
        for event in rounds:
            number, names, down = event["round"], event["names"], player.begin(state)
            path = folder / sums_file(TRAINING, number)
            if noise.takes_part == 1:
                sent = (player.values(name, down, Examples([files[name]])) for name in names)
                plain = sum_by_tensor(sent)
                draws += list(noise_in_units(noise, read_arrays(path), plain, len(names)))
            sizes = (len(names), len(down), event["bytes_up"])
            state = player.end(state, path.read_bytes(), number, *sizes).state
    is_equal = state == (folder / STATE).read_bytes()
    report(f"the state {'is' if is_equal else 'IS NOT'} the plan's result of the unmasked sums")
    if noise.takes_part < 1:
        report("noise is not compared: nodes toss coins whether to take part")
        return is_equal
    moments = noise_moments(draws)
    report(
        f"noise: {moments.numbers} numbers, variance {moments.variance:.4f} times the plan's, "
        f"expected 1 +- {moments.deviation:.4f}"
    )
    return is_equal and moments.fits


def sum_by_tensor(values: Iterator[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Returns the sums of the clients' integers, keyed by tensor."""
    sums: dict[str, np.ndarray] = {}
    for client in values:
        for name, value in client.items():
            sums[name] = sums.get(name, 0) + value.astype(np.int64)
    return sums


def noise_in_units(
    noise: NodeNoise,
    unmasked: Mapping[str, np.ndarray],
    plain: Mapping[str, np.ndarray],
    clients: int,
) -> Iterator[tuple[np.ndarray, float]]:
    """Yields (noise in standard deviations, variance of the noise) for each group of tensors.

    Args:
        noise: Noise of the plan.
        unmasked: The sums with noise, keyed by tensor.
        plain: The sums without noise.
        clients: Number of clients that added noise.

    Raises:
        PlanError: Sums of tensors without noise differ.
    """
    for name in noise.without_noise:
        if (unmasked[name] != plain[name]).any():
            raise PlanError(f"{name}: expected the sum of the clients")
    for group in noise.groups:
        differences = np.concatenate(
            [_centred(group, unmasked[name], plain[name]) for name in group.tensors]
        )
        variance = clients * group.variance
        if variance > 0:
            yield differences / math.sqrt(variance), variance
        elif differences.any():
            raise PlanError(f"{group.name}: expected the sum of the clients")


def _centred(group: NoisedGroup, unmasked: np.ndarray, plain: np.ndarray) -> np.ndarray:
    rest = np.mod(unmasked.astype(np.int64) - plain, group.modulus).ravel()
    return np.where(rest >= group.modulus // 2, rest - group.modulus, rest)


def noise_moments(draws: list[tuple[np.ndarray, float]]) -> Moments:
    """Returns the moments of the noise that `noise_in_units` yields.

    Skellam noise of variance v has the standardised fourth moment 3 + 1 / v.
    """
    values = np.concatenate([units for units, _ in draws])
    squares = sum(units.size * (2 + 1 / variance) for units, variance in draws)
    return Moments(
        values.size,
        float(values.sum() / math.sqrt(values.size)),
        float(np.mean(values**2)),
        math.sqrt(squares) / values.size,
    )
