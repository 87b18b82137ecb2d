"""The runner's tasks: verifies an export, runs its rounds, reads its state.

Checks that do not need TensorFlow come before its import.
"""

import contextlib
import dataclasses
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Optional

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
from plan_runner.isolation import Bounds, IsolationError, Listener, ResultsTaker, run_isolated
from plan_runner.kernel import Kernel, find_kernel, give_kernel
from plan_runner.plan_messages import read_plans
from plan_runner.sandbox import Refused, missing

_LOADING = "loading the plan"
VERIFIED, DIFFERENT = 0, 1
_RESULTS, _TENSORS = "results", "tensors.npz"


@dataclasses.dataclass(frozen=True)
class Request:
    """One run of the runner; paths are text, as all of it may go to another process.

    Attributes:
        plan: Folder of the export.
        verify: Replay its conformance rounds; otherwise play rounds of `clients`.
        tolerance: For `verify`: the largest difference of floats that passes.
        clients: Folder of clients.
        rounds: Number of rounds; None is 1, or all that `cohorts` has.
        clients_per_round: Clients drawn for every round; None is all.
        seed: Seed of the draw.
        cohorts: File with the clients of every round instead.
        state: Checkpoint to begin with instead of the export's.
        limits: Limits of memory, time and sizes.
        trust: Play without a sandbox.
    """

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
        """Yields what has to be read for it: files, and folders with what links in them lead to."""
        for given in (self.plan, self.clients, self.cohorts, self.state):
            if given:
                yield given
        # Clients may lie elsewhere; files of an export may not.
        if self.clients and os.path.isdir(self.clients):
            for entry in os.scandir(self.clients):
                if entry.is_symlink():
                    yield os.path.realpath(entry.path)

    def to_json(self) -> dict[str, Any]:
        """Returns it as what JSON has; see `from_json`."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Request":
        """Returns the request of which this is `to_json`."""
        return cls(**{**value, "limits": Limits(**value["limits"])})


def play(request: Request, listener: Listener, scratch: Path) -> int:
    """Plays; returns the exit status: 1 if a verification has found a difference.

    Args:
        scratch: A folder for temporary files, and for results until the listener
            has taken them.
    """
    listener.step("reading the export")
    export = open_export(Path(request.plan), request.limits)
    # All that is not TensorFlow's is parsed before its import.
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
    """Does what `play` does in a process of its own; see `call_isolated`."""
    check_sandbox("--plan", request.trust)
    # Beforehand: no process can be started from the sandbox. Not for a path that is mistyped.
    found = find_kernel() if os.path.isdir(request.plan) else Kernel("", "there is no export")
    payload = {"request": request.to_json(), "kernel": found}
    target = f"{__name__}:{_play_payload.__name__}"
    reads = [*request.paths(), found.library]
    return call_isolated(target, payload, request.limits.bounds, listener, reads, request.trust)


def check_sandbox(flag: str, trust: bool) -> None:
    """Checks that this machine supports a sandbox, unless none is wanted.

    Args:
        flag: The flag of the file to be read in it, for the message.
        trust: Whether the user trusts that.
    """
    lacks = [] if trust else missing()
    if lacks:
        raise PlanError(
            f"{flag}: expected a sandbox for files of others, this machine has no "
            f"{' and no '.join(lacks)}; --trust goes without one, for files that you trust"
        )


def call_isolated(
    function: str,
    payload: Any,
    bounds: Bounds,
    listener: Listener,
    reads: Iterable[str],
    trust: bool,
) -> int:
    """Calls a function in a process of its own, which is ended at its bounds; returns its status.

    It has a sandbox, in which it can read what is given, and write nothing but files that go with
    it, unless the user trusts what it reads.
    """
    try:
        return run_isolated(function, payload, bounds, listener, None if trust else reads)
    except IsolationError as e:
        raise PlanError(str(e)) from e


@contextlib.contextmanager
def refusing() -> Iterator[None]:
    """Has an isolated function end with the line of whatever is wrong with what it reads."""
    try:
        yield
    except PlanError as e:
        raise Refused(str(e)) from e
    except OSError as e:
        # A file that may not be read, say; without a name it is no file of the user's.
        if e.filename is None:
            raise
        raise Refused(f"{e.filename}: {e.strerror}") from e


def _play_payload(payload: dict[str, Any], listener: Listener, scratch: Path) -> int:
    # The limits are not those of a GPU's memory, and its kernels are not the same everywhere.
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    give_kernel(Kernel(*payload["kernel"]))
    with refusing():
        return play(Request.from_json(payload["request"]), listener, scratch)


def _check_conformance(export: Export) -> None:
    """Checks the sizes that the files of the conformance rounds claim to have."""
    limits, conformance = export.limits, export.manifest.conformance
    for client in conformance.clients:
        check_frames(export.path(conformance_client(client)), limits.max_records)
    for name in conformance.expected:
        read_arrays(export.path(name), limits.max_unpacked_mb)


def _verify(request: Request, export: Export, listener: Listener) -> int:
    listener.step(_LOADING)
    # These bring TensorFlow, which takes seconds.
    from plan_runner.rounds import OnDevices, print_checks, verify
    from plan_runner.tflite import tflite_comparison

    try:
        devices = OnDevices(tflite_comparison(export))
    except PlanError as e:
        devices = OnDevices(None, str(e))
    checks = verify(export, listener.step, devices.beside)
    verified = print_checks(export, checks, request.tolerance, listener.line, devices)
    return VERIFIED if verified else DIFFERENT


def _run(request: Request, export: Export, listener: Listener, scratch: Path) -> int:
    listener.step(_LOADING)
    from plan_runner.client import clients_in
    from plan_runner.rounds import (
        drawn_cohorts,
        metrics_row,
        round_line,
        run_rounds,
        write_results,
        written_cohorts,
    )

    clients = clients_in(Path(request.clients), export.manifest.features, request.limits)
    if request.cohorts is not None:
        cohorts = written_cohorts(Path(request.cohorts), clients)
        if request.rounds is not None and request.rounds > len(cohorts):
            raise PlanError(
                f"--rounds: expected at most {len(cohorts)}, the lines of {request.cohorts}, "
                f"found {request.rounds}"
            )
        cohorts = cohorts[: request.rounds]
    else:
        per_round = request.clients_per_round
        cohorts = drawn_cohorts(clients, request.rounds or 1, per_round, request.seed)
    state = Path(request.state) if request.state is not None else None
    rows = []
    for result in run_rounds(export, cohorts, state, listener.step):
        listener.line(round_line(result))
        rows.append(metrics_row(result))
        # Every round: whatever stops the next one, this one is not lost.
        folder = scratch / f"results_{result.number}"
        write_results(folder, rows, result.state)
        listener.results(folder)
    return VERIFIED


def read_server_state(
    plan: Path, path: Path, max_memory_gb: float = DEFAULT_LIMITS.max_memory_gb, trust: bool = False
) -> dict[str, np.ndarray]:
    """Returns the tensors of a server's state by name, checked against the server's export.

    Args:
        plan: Folder of the export.
        path: The checkpoint; it may also contain the metrics of its last round.
        max_memory_gb: See `Limits`.
        trust: Do without a sandbox.
    """
    # It loads TensorFlow.
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
    """Returns the tensors of a checkpoint by name: numbers and strings.

    Args:
        path: The checkpoint; it is TensorFlow's code that reads it, away from this process.
        trust: Do without a sandbox.
    """
    check_sandbox("--server_state", trust)
    # They were in that process's memory, too.
    taker = ResultsTaker(lambda folder: read_arrays(folder / _TENSORS, limits.max_memory_gb * 1e3))
    payload = {"path": str(path)}
    target = f"{__name__}:{_read_payload.__name__}"
    call_isolated(target, payload, limits.bounds, taker, [str(path)], trust)
    return dict(taker.taken or {})


def _read_payload(payload: dict[str, Any], listener: Listener, scratch: Path) -> int:
    from plan_runner.graph_session import read_checkpoint

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
