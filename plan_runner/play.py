"""Verifies an export, runs its rounds, or reads its state, in a sandboxed process."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional, Union

import numpy as np

from plan_runner.errors import PlanError
from plan_runner.export import (
    DEFAULT_LIMITS,
    ROUNDING,
    Export,
    Limits,
    check_frames,
    conformance_client,
    open_export,
    read_arrays,
)
from plan_runner.isolation import Listener, run_isolated
from plan_runner.kernel import Kernel, find_kernel, give_kernel
from plan_runner.plan_messages import read_plans
from plan_runner.sandbox import Refused, missing

_LOADING = "loading the plan"
VERIFIED, DIFFERENT = 0, 1
_RESULTS, _TENSORS = "results", "tensors.npz"


@dataclasses.dataclass(frozen=True)
class Request:
    """JSON-serialisable settings of one run; the flags with the same names document them."""

    plan: str
    verify: bool
    tolerance: float = ROUNDING
    clients: str = ""
    rounds: Optional[int] = None
    clients_per_round: Optional[int] = None
    seed: int = 0
    cohorts: Optional[str] = None
    state: Optional[str] = None
    limits: Limits = DEFAULT_LIMITS
    trust: bool = False

    def paths(self) -> Iterator[str]:
        """Yields the files and folders to read, including the targets of clients' links."""
        yield from filter(None, (self.plan, self.clients, self.cohorts, self.state))
        # Clients' files may be links to other folders; an export's files may not.
        if self.clients and os.path.isdir(self.clients):
            for entry in os.scandir(self.clients):
                if entry.is_symlink():
                    yield os.path.realpath(entry.path)


def play(request: Request, listener: Listener, scratch: Path) -> int:
    """Runs a request, and returns the exit status, which is 1 if a verification fails.

    Args:
        scratch: Folder for temporary files, and for results until the listener copies them.
    """
    listener.step("reading the export")
    export = open_export(Path(request.plan), request.limits)
    # Report errors in the plan before the slow import of TensorFlow.
    read_plans(export)
    if request.verify:
        _check_conformance(export)
    listener.line(
        f"{request.plan}: the hashes of {len(export.manifest.files)} files are right. "
        f"Its graphs run {'without a sandbox (--trust)' if request.trust else 'in a sandbox'}."
    )
    if request.verify:
        return _verify(request, export, listener)
    return _run(request, export, listener, scratch)


def play_isolated(request: Request, listener: Listener) -> int:
    """Calls `play` in a separate process; see `run_isolated`."""
    check_sandbox("--plan", request.trust)
    # Build the kernel here, because the sandbox allows no compiler.
    kernel = find_kernel() if os.path.isdir(request.plan) else Kernel("", "no export")
    payload = {"request": dataclasses.asdict(request), "kernel": kernel}
    target = f"{__name__}:{_play_payload.__name__}"
    reads = [*request.paths(), kernel.library]
    bounds = request.limits.bounds
    return run_isolated(target, payload, bounds, listener, None if request.trust else reads)


def check_sandbox(flag: str, trust: bool) -> None:
    """Checks that this machine supports a sandbox, unless the user trusts the file.

    Args:
        flag: Flag of the file to read in the sandbox, for the error message.
        trust: Whether the user trusts the file.
    """
    lacks = [] if trust else missing()
    if lacks:
        raise PlanError(
            f"{flag}: expected a sandbox for untrusted files, this machine has no "
            f"{' and no '.join(lacks)}; --trust runs without a sandbox, for files that you trust"
        )


@contextlib.contextmanager
def refusing() -> Iterator[None]:
    """Converts errors about the user's files to `Refused`, in an isolated function."""
    try:
        yield
    except PlanError as e:
        raise Refused(str(e)) from e
    except OSError as e:
        # Only errors with a file name are about the user's files.
        if e.filename is None:
            raise
        raise Refused(f"{e.filename}: {e.strerror}") from e


def _play_payload(payload: dict[str, Any], listener: Listener, scratch: Path) -> int:
    # Disable GPUs: limits do not cover their memory, and their kernels differ between machines.
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    give_kernel(Kernel(*payload["kernel"]))
    with refusing():
        request = payload["request"]
        request = Request(**{**request, "limits": Limits(**request["limits"])})
        return play(request, listener, scratch)


def _check_conformance(export: Export) -> None:
    """Checks that the conformance rounds' files have the sizes that they state."""
    limits, conformance = export.limits, export.manifest.conformance
    for client in conformance.clients:
        check_frames(export.path(conformance_client(client)), limits.max_records)
    for name in conformance.expected:
        read_arrays(export.path(name), limits.max_unpacked_mb)


def _verify(request: Request, export: Export, listener: Listener) -> int:
    listener.step(_LOADING)
    # Import late, because these modules import TensorFlow, which takes seconds.
    from plan_runner.rounds import print_checks, verify
    from plan_runner.tflite import TfLiteComparison, tflite_comparison

    comparison: Union[TfLiteComparison, str]
    try:
        comparison = tflite_comparison(export)
    except PlanError as e:
        comparison = str(e)
    checks = verify(export, listener.step, None if isinstance(comparison, str) else comparison)
    verified = print_checks(export, checks, request.tolerance, listener.line, comparison)
    return VERIFIED if verified else DIFFERENT


def _run(request: Request, export: Export, listener: Listener, scratch: Path) -> int:
    listener.step(_LOADING)
    from plan_runner import client, rounds

    clients = client.clients_in(Path(request.clients), export.manifest.features, request.limits)
    if request.cohorts is not None:
        cohorts = rounds.written_cohorts(Path(request.cohorts), clients)
        if request.rounds is not None and request.rounds > len(cohorts):
            raise PlanError(
                f"--rounds: expected at most {len(cohorts)}, the lines of {request.cohorts}, "
                f"found {request.rounds}"
            )
        cohorts = cohorts[: request.rounds]
    else:
        per_round = request.clients_per_round
        cohorts = rounds.drawn_cohorts(clients, request.rounds or 1, per_round, request.seed)
    state = Path(request.state) if request.state is not None else None
    rows = []
    for result in rounds.run_rounds(export, cohorts, state, listener.step):
        listener.line(rounds.round_line(result))
        rows.append(rounds.metrics_row(result))
        # Write results after every round, because the next round may fail.
        folder = scratch / f"results_{result.number}"
        rounds.write_results(folder, rows, result.state)
        listener.results(folder)
    return VERIFIED


def read_server_state(
    plan: Path, path: Path, max_memory_gb: float = DEFAULT_LIMITS.max_memory_gb, trust: bool = False
) -> dict[str, np.ndarray]:
    """Reads the tensors of a server's state, and checks them against an export.

    Args:
        plan: Folder of the export.
        path: Checkpoint of the state; it may also contain the last round's metrics.
        max_memory_gb: See `Limits`.
        trust: Whether to read without a sandbox.
    """
    # Import late, because this module imports TensorFlow.
    from plan_runner.graph_session import check_tensors

    try:
        export = open_export(plan)
    except PlanError as e:
        raise PlanError(f"--plan: {e}") from e
    limits = Limits(max_memory_gb=max_memory_gb)
    limits.check()
    tensors = read_state(path, limits, trust)
    state = {name: value for name, value in tensors.items() if not name.startswith("metrics/")}
    check_tensors(state, export.manifest.server_state, str(path))
    return state


def read_state(path: Path, limits: Limits, trust: bool) -> dict[str, np.ndarray]:
    """Reads the tensors of a checkpoint with TensorFlow in a separate process."""
    check_sandbox("--server_state", trust)
    reader = _TensorsReader(limits.max_memory_gb * 1e3)
    target = f"{__name__}:{_read_payload.__name__}"
    reads = None if trust else [str(path)]
    run_isolated(target, {"path": str(path)}, limits.bounds, reader, reads)
    return reader.tensors


class _TensorsReader(Listener):
    """A listener that loads the arrays in a results folder."""

    def __init__(self, max_mb: float) -> None:
        self._max_mb = max_mb
        self.tensors: dict[str, np.ndarray] = {}

    def results(self, folder: Path) -> None:
        self.tensors = read_arrays(folder / _TENSORS, self._max_mb)


def _read_payload(payload: dict[str, Any], listener: Listener, scratch: Path) -> int:
    from plan_runner.graph_session import checkpoint_content, read_checkpoint

    with refusing():
        path, copy = Path(payload["path"]), scratch / "server_state.ckpt"
        copy.write_bytes(checkpoint_content(path))
        tensors = read_checkpoint(copy, str(path))
        (scratch / _RESULTS).mkdir()
        # TensorFlow returns strings as Python objects, which `read_arrays` rejects.
        np.savez(
            scratch / _RESULTS / _TENSORS,
            **{n: v.astype(np.bytes_) if v.dtype.kind == "O" else v for n, v in tensors.items()},
        )
        listener.results(scratch / _RESULTS)
    return 0
