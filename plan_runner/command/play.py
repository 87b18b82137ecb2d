"""Does what the runner is asked for: reads the export, and verifies it or runs rounds of it.

What can be refused without TensorFlow is, before it is imported.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from plan_runner import plan_pb2
from plan_runner.clients.kernel import Kernel, find_kernel, give_kernel
from plan_runner.command.request import Request
from plan_runner.errors import PlanError
from plan_runner.files import export as exports
from plan_runner.files.archives import read_arrays
from plan_runner.files.export import Export, conformance_client, open_export
from plan_runner.files.frames import check_frames
from plan_runner.files.parsing import parse, parse_plan
from plan_runner.isolation.bounds import Bounds, IsolationError, Listener, Refused
from plan_runner.isolation.sandbox import missing
from plan_runner.isolation.supervisor import run_isolated

_LOADING = "loading the plan"
VERIFIED, DIFFERENT = 0, 1


def play(request: Request, listener: Listener, scratch: Path) -> int:
    """Plays; returns the exit status: 1 if a verification has found a difference.

    Args:
        request: What to do.
        listener: Is told of it.
        scratch: A folder for files that nobody needs afterwards, and for results until the listener
            has taken them.

    Raises:
        PlanError: If the export, a client's data or the request is not what it has to be.
    """
    listener.step("reading the export")
    export = open_export(Path(request.plan), request.limits)
    _check_messages(export)
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
    """Does what `play` does in a process of its own; see `call_isolated`.

    Raises:
        PlanError: As `play` does, or if `call_isolated` does.
    """
    check_sandbox("--plan", request.trust)
    # Beforehand: no process can be started from the sandbox. Not for a path that is mistyped.
    found = find_kernel() if os.path.isdir(request.plan) else Kernel("", "there is no export")
    payload = {"request": request.to_json(), "kernel": found}
    target = f"{__name__}:{_play_payload.__name__}"
    reads = [*request.paths(), found.library]
    return call_isolated(target, payload, request.limits.bounds, listener, reads, request.trust)


def check_sandbox(flag: str, trust: bool) -> None:
    """Checks that this machine has what a sandbox needs, unless none is asked for.

    Args:
        flag: What is to be read in it, for the message.
        trust: Whether the user trusts that.

    Raises:
        PlanError: If it lacks something.
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

    Raises:
        PlanError: As the function does, or if a bound is reached or the process ends by itself.
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


def _check_messages(export: Export) -> None:
    """Parses what is not TensorFlow's of both plans."""
    parse_plan(export.read(exports.PLAN), exports.PLAN)
    name = exports.CLIENT_ONLY_PLAN
    parse(plan_pb2.ClientOnlyPlan, export.read(name), name)


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
    from plan_runner.clients.tflite_beside import tflite_beside
    from plan_runner.command.report import OnDevices, tell_checks
    from plan_runner.playing.verify import verify

    try:
        devices = OnDevices(tflite_beside(export))
    except PlanError as e:
        devices = OnDevices(None, str(e))
    checks = verify(export, listener.step, devices.beside)
    verified = tell_checks(export, checks, request.tolerance, listener.line, devices)
    return VERIFIED if verified else DIFFERENT


def _run(request: Request, export: Export, listener: Listener, scratch: Path) -> int:
    listener.step(_LOADING)
    from plan_runner.clients.client import clients_in
    from plan_runner.command.report import round_line
    from plan_runner.playing.cohorts import drawn_cohorts, written_cohorts
    from plan_runner.playing.results import metrics_row, write_results
    from plan_runner.playing.rounds import run_rounds

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
