"""What a round leaves behind: the server's new state, and a row of metrics."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from plan_runner.graphs.checkpoints import write_checkpoint
from plan_runner.playing.output import METRICS, STATE
from plan_runner.playing.rounds import RoundResult

_PREFIX = "metrics/"


def write_results(folder: Path, rows: Sequence[str], state: Mapping[str, np.ndarray]) -> None:
    """Writes the rows of the rounds so far and the state after the last one to a new folder."""
    folder.mkdir(parents=True)
    (folder / METRICS).write_text("".join(f"{row}\n" for row in rows))
    write_checkpoint(folder / STATE, state)


def metrics_row(result: RoundResult) -> str:
    """Returns a round's line of `metrics.jsonl`."""
    return json.dumps(
        {
            "round": result.number,
            "clients": result.clients,
            "metrics": {
                name[len(_PREFIX) :] if name.startswith(_PREFIX) else name: _plain(value.tolist())
                for name, value in sorted({**result.metrics, **result.outputs}.items())
            },
            "bytes_down": result.bytes_down,
            "bytes_up": result.bytes_up,
        },
        allow_nan=False,
    )


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    # JSON has no NaN and no infinities.
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
