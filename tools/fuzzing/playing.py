"""The sandboxed process that executes each mutant once, while strace traces it."""

import contextlib
import json
import os
import random
import shutil
import socket
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from plan_runner.errors import PlanError
from plan_runner.export import Limits
from plan_runner.isolation import Listener
from plan_runner.kernel import Kernel, give_kernel
from plan_runner.play import Request

# The time limit allows for the start on an idle core, during which TensorFlow is imported.
LIMITS = Limits(max_memory_gb=3.0, max_round_seconds=60.0)
# The process tries to remove the folder MARK/N, so that strace's log contains mutant number N.
MARK = "/fuzz"
# Number of forbidden calls before the first mutant, which check that strace works.
WATCHED = 3
_CHECKS = (
    *("daf.check_graph", "secure.check_graph"),
    *("client.check_graph", "tflite.check_tflite"),
)


def is_checked(number: int) -> bool:
    """Whether a mutant's graphs are checked before they are executed."""
    return number % 2 == 0


def play_mutants(payload: dict[str, Any], listener: Listener, scratch: Path) -> int:
    """Executes the mutants with numbers in a range; reports each one's outcome to the listener."""
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    give_kernel(Kernel(*payload["kernel"]))
    # Verify an export first, so that TensorFlow loads its files before the tracing starts.
    warm = _copied(payload["exports"][0], scratch / "warm")
    if _verified_end(warm, scratch) != "played":
        raise ValueError("expected an export that is verified")
    # Import late, so that TensorFlow is imported only in the sandbox.
    from fuzzing.mutations import Mutation

    listener.line(f"watch {os.getpid()} {scratch}")
    while "TracerPid:\t0" in Path("/proc/self/status").read_text():
        time.sleep(0.01)
    # Forbidden calls that the trace must contain.
    attempts: tuple[Callable[[], Any], ...] = (
        Path(payload["canary"]).touch,
        os.fork,
        socket.socket,
    )
    for attempt in attempts:
        try:
            attempt()
        except PermissionError:
            continue
        raise ValueError("expected a sandbox, found none")
    for number in range(*payload["numbers"]):
        listener.step(f"mutant {number}")
        listener.line(f"mutant {number}")
        with contextlib.suppress(OSError):
            os.rmdir(f"{MARK}/{number}")
        rng = random.Random(f"{payload['seed']} {number}")
        folder = _copied(rng.choice(payload["exports"]), scratch / "mutant")
        Mutation(rng, payload["canary"], is_checked(number)).apply(folder)
        with contextlib.ExitStack() as stack:
            if not is_checked(number):
                for name in _CHECKS:
                    stack.enter_context(mock.patch(f"plan_runner.{name}", lambda *given: None))
            end = _verified_end(folder, scratch)
            listener.line(f"end {end.partition(':')[0]}")
            if ":" in end:
                listener.line(f"note mutant {number}: {end}")
        shutil.rmtree(folder)
    return 0


def _verified_end(folder: Path, scratch: Path) -> str:
    """Verifies an export; returns the outcome, or the description of an unexpected error."""
    from plan_runner.play import play

    try:
        # Results may differ, because the expected results are for more clients.
        play(Request(str(folder), verify=True, limits=LIMITS), _NullListener(), scratch)
        return "played"
    except PlanError as e:
        return "refused" if "is refused" in str(e) or "which is fed" in str(e) else "not played"
    # Report the exception's type, which identifies the fault.
    except Exception as e:
        frame = traceback.extract_tb(e.__traceback__)[-1]
        return f"{type(e).__name__}: {e} ({Path(frame.filename).name}:{frame.lineno})"


class _NullListener:
    def step(self, name: str) -> None:
        """Does nothing."""

    def line(self, text: str) -> None:
        """Does nothing."""

    def results(self, folder: Path) -> None:
        """Does nothing."""


def _copied(export: str, folder: Path) -> Path:
    """Copies an export's files without modes and times, and keeps one round with one client."""
    for path in Path(export).rglob("*"):
        if path.is_file():
            copy = folder / path.relative_to(export)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    conformance = manifest["conformance"]
    kept = {**conformance, "rounds": 1, "clients": conformance["clients"][:1]}
    kept["expected"] = conformance["expected"][:1]
    path.write_text(json.dumps({**manifest, "conformance": kept}))
    return folder
