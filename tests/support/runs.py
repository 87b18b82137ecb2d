"""Trains runs of a few rounds, and compares run folders."""

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

import pytest

from tff_agnostic.metrics.evaluation_report import EvaluationReport
from tff_agnostic.program.options.process import Interrupted, StopRequest
from tff_agnostic.program.runs.folder import RunFolder
from tff_agnostic.program.runs.spec import RunSettings, resolve
from tff_agnostic.program.runs.training import TrainingRun
from tff_agnostic.saving.checkpoints import newest_checkpoint

ROUNDS = 7
# Checkpoints of these settings hold Adam's moments, the window and lambda.
SETTINGS = {
    "rounds": ROUNDS,
    "clients_per_round": 3,
    "client_epochs": 2,
    "server_optimizer": "adam",
    "server_learning_rate": 0.1,
    "lambda_learning_rate": 0.5,
    "window": 3,
    "evaluate_every": 2,
    # The number of rounds is not a multiple of this period.
    "checkpoint_every": 3,
    "keep_checkpoints": 3,
}


class StopAfter(StopRequest):
    """A stop request that arrives in round `k`."""

    def __init__(self, k: int) -> None:
        super().__init__()
        self._left = k

    @property
    def signal_number(self) -> Optional[int]:
        """SIGTERM from round `k`, before that None; a run reads this once per round."""
        self._left -= 1
        return signal.SIGTERM if self._left <= 0 else None

    @signal_number.setter
    def signal_number(self, value: Optional[int]) -> None:
        pass


def make_spec(**changed: Any) -> RunSettings:
    return resolve("toy_regression", {**SETTINGS, **changed}, {"num_clients": 8})


def train(
    runtime: Any, path: Path, resume: bool = False, stop_after: int = 0, **changed: Any
) -> EvaluationReport:
    stop = StopAfter(stop_after) if stop_after else StopRequest()
    run = TrainingRun(make_spec(**changed), RunFolder(path), runtime, resume)
    return run.run(stop, show_progress=False)


def stopped(runtime: Any, path: Path, stop_after: int, **changed: Any) -> None:
    with pytest.raises(Interrupted, match=f"stopped and saved after round {stop_after}"):
        train(runtime, path, stop_after=stop_after, **changed)
    assert newest_checkpoint(path / "checkpoints").round_num == stop_after


def assert_same_run(actual: Path, expected: Path) -> None:
    for name in ("metrics.csv", "result.json", "config.json"):
        assert (actual / name).read_bytes() == (expected / name).read_bytes(), name
    first, second = (newest_checkpoint(p / "checkpoints") for p in (actual, expected))
    assert first.round_num == second.round_num
    assert [a.tobytes() for a in first.leaves] == [a.tobytes() for a in second.leaves]
    models, others = (
        {file.name: file.read_bytes() for file in (path / "model").iterdir()}
        for path in (actual, expected)
    )
    assert models == others


def round_numbers(names: Sequence[Path]) -> list[int]:
    return sorted(int(path.stem.removeprefix("round_")) for path in names)
