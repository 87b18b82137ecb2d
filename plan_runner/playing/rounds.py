"""Rounds one after the other, each from the state that the one before has left."""

import dataclasses
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Callable, Optional

import numpy as np

from plan_runner.clients.client import Client
from plan_runner.clients.tflite_beside import TfLiteBeside
from plan_runner.errors import PlanError
from plan_runner.files import export as exports
from plan_runner.files.export import Export
from plan_runner.files.manifest import Manifest
from plan_runner.graphs.checkpoints import check_tensors, read_checkpoint, write_checkpoint
from plan_runner.graphs.messages import parse_plan
from plan_runner.playing.metric_outputs import other_outputs, with_metrics
from plan_runner.profiles.registry import load_profile


@dataclasses.dataclass(frozen=True)
class RoundResult:
    """What is known after a round.

    Attributes:
        number: Of this run's rounds, from 1.
        clients: How many took part.
        state: The server's tensors, named `server/...`.
        metrics: The round's, named `metrics/...`.
        bytes_down: The size of the checkpoint that every client got.
        bytes_up: The mean size of what a client sent.
        outputs: What the server has handed out besides these metrics, by name.
    """

    number: int
    clients: int
    state: Mapping[str, np.ndarray]
    metrics: Mapping[str, np.ndarray]
    bytes_down: int
    bytes_up: float
    outputs: Mapping[str, np.ndarray]

    @property
    def tensors(self) -> dict[str, np.ndarray]:
        """State and metrics."""
        return {**self.state, **self.metrics}


def run_rounds(
    export: Export,
    cohorts: Iterable[Sequence[Client]],
    state: Optional[Path] = None,
    begins: Callable[[str], None] = lambda step: None,
    beside: Optional[TfLiteBeside] = None,
) -> Iterator[RoundResult]:
    """Plays a round per cohort; yields what each has led to.

    Args:
        export: The export, whose graphs are code.
        cohorts: The clients of every round, in the order in which they are summed.
        state: A checkpoint of the server's state to begin with, instead of the export's own.
        begins: Is told the name of each round when it begins.
        beside: What else runs every client, and compares.

    Raises:
        PlanError: If the plan, the state or a client's data is not what it has to be.
    """
    manifest = export.manifest
    initial = export.read(exports.SERVER_STATE) if state is None else _content(state)
    with tempfile.TemporaryDirectory(prefix="plan_runner_") as scratch:
        # A copy: TensorFlow takes the name of a checkpoint for a pattern.
        current = Path(scratch) / "server_state.ckpt"
        current.write_bytes(initial)
        where = str(state or export.folder / exports.SERVER_STATE)
        check_tensors(read_checkpoint(current, where), manifest.server_state, where)
        plan = parse_plan(export.read(exports.PLAN), exports.PLAN)
        profile = load_profile(manifest.profile, plan)
        profile.client.beside = beside
        try:
            for number, clients in enumerate(cohorts, 1):
                _check_size(len(clients), manifest, number)
                begins(f"round {number}")
                with tempfile.TemporaryDirectory(dir=scratch) as folder:
                    outcome = profile.run_round(current, clients, Path(folder))
                place, metrics = f"round {number}: the new state", manifest.metrics
                tensors = with_metrics(outcome.tensors, outcome.outputs, metrics, place)
                check_tensors(tensors, {**manifest.server_state, **metrics}, place)
                kept = {name: tensors[name] for name in manifest.server_state}
                # What was only measured is no part of the state that a round begins with.
                write_checkpoint(current, kept)
                yield RoundResult(
                    number,
                    len(clients),
                    kept,
                    {name: tensors[name] for name in metrics},
                    outcome.bytes_down,
                    outcome.bytes_up,
                    other_outputs(outcome.outputs, metrics),
                )
        finally:
            profile.close()


def _check_size(clients: int, manifest: Manifest, number: int) -> None:
    if not clients and not manifest.has_noise:
        # With noise a round without clients is as good as any, and nobody may tell them apart.
        raise PlanError(f"round {number}: expected at least 1 client, found 0")
    most = manifest.max_clients
    if most is not None and clients > most:
        raise PlanError(
            f"round {number}: expected at most {most} clients, for whom secure sums have room, "
            f"found {clients}; export with a larger --max_clients_per_round"
        )


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as e:
        raise PlanError(f"{path}: expected a checkpoint, cannot read it ({e.strerror})") from e
