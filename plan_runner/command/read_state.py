"""Reads the checkpoint of a stranger's server, in a process of its own."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from plan_runner.command.play import call_isolated, check_sandbox, refusing
from plan_runner.errors import PlanError
from plan_runner.files.archives import read_arrays
from plan_runner.files.limits import Limits
from plan_runner.isolation.bounds import Listener

_RESULTS, _TENSORS = "results", "tensors.npz"


def read_state(path: Path, limits: Limits, trust: bool) -> dict[str, np.ndarray]:
    """Returns the tensors of a checkpoint by name: numbers and strings.

    Args:
        path: The checkpoint; it is TensorFlow's code that reads it, away from this process.
        limits: What reading it may take.
        trust: Do without a sandbox.

    Raises:
        PlanError: If it cannot be read or is none, or this machine has no sandbox.
    """
    check_sandbox("--server_state", trust)
    taker = _Taker(limits)
    payload = {"path": str(path)}
    target = f"{__name__}:{_read_payload.__name__}"
    call_isolated(target, payload, limits.bounds, taker, [str(path)], trust)
    return dict(taker.tensors)


class _Taker:
    """A `bounds.Listener` that takes the tensors."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.tensors: Mapping[str, np.ndarray] = {}

    def step(self, name: str) -> None:
        """Has nothing to do."""

    def line(self, text: str) -> None:
        """Has nothing to do."""

    def results(self, folder: Path) -> None:
        # They were in that process's memory, too.
        self.tensors = read_arrays(folder / _TENSORS, self._limits.max_memory_gb * 1e3)


def _read_payload(payload: dict[str, Any], listener: Listener, scratch: Path) -> int:
    from plan_runner.graphs.checkpoints import read_checkpoint

    with refusing():
        path = Path(payload["path"])
        # A copy: TensorFlow takes the name of a checkpoint for a pattern.
        copy = scratch / "server_state.ckpt"
        try:
            copy.write_bytes(path.read_bytes())
        except OSError as e:
            raise PlanError(f"{path}: expected a checkpoint, cannot read it ({e.strerror})") from e
        tensors = read_checkpoint(copy, str(path))
        (scratch / _RESULTS).mkdir()
        # Strings come out of TensorFlow as objects, which no archive here may hold.
        np.savez(
            scratch / _RESULTS / _TENSORS,
            **{n: v.astype(np.bytes_) if v.dtype.kind == "O" else v for n, v in tensors.items()},
        )
        listener.results(scratch / _RESULTS)
    return 0
