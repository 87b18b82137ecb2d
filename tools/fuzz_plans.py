"""Runs mutated exports in run_plan's sandbox, and reports attempts to escape.

    .venv/bin/python tools/fuzz_plans.py --plan EXPORT [EXPORT ...] --minutes=30

A mutant is an export with random changes in graphs, messages, checkpoints, examples or the TFLite
graph, and with matching hashes. Every second mutant runs without the check of graphs, so that its
calls reach the sandbox. strace records the process's system calls. A find is a call that would
write outside the process's folder, start a process or open a socket. If graphs are checked, a find
counts even if the sandbox rejects the call; if not, it counts only if the call succeeds. A find
names its mutant, which --only runs again.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from fuzzing.playing import LIMITS, WATCHED, is_checked  # noqa: E402
from fuzzing.watcher import Find, Tally, Watcher, judged  # noqa: E402

from plan_runner.isolation import Bounds, IsolationError, run_isolated  # noqa: E402
from plan_runner.kernel import find_kernel  # noqa: E402

# Mutants per process, limited because TensorFlow keeps memory of every graph.
_BATCH = 100
_MAX_FAILED_STARTS = 10


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Fuzzes for the given time, and returns 1 if there are finds."""
    parser = argparse.ArgumentParser(prog="fuzz_plans", description=__doc__)
    parser.add_argument("--plan", type=Path, nargs="+", required=True, help="exports to begin with")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="number of a single mutant to run")
    parsed = parser.parse_args(arguments)
    if shutil.which("strace") is None:
        parser.error("expected the program strace, found none (Debian's package strace)")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    end, tally = time.monotonic() + 60 * parsed.minutes, Tally()
    number = 0 if parsed.only is None else parsed.only
    last = sys.maxsize if parsed.only is None else number + 1
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fuzz_canary_") as canary:
        while number < last and time.monotonic() < end:
            played = _play_batch(parsed, number, min(last, number + _BATCH), Path(canary), tally)
            number = played
            print(f"{(time.monotonic() - began) / 60:5.1f} min: {tally}", flush=True)
    for find in tally.finds:
        print(f"FOUND: mutant {find.mutant}: {'done' if find.done else 'tried'}: {find.call}")
    print(f"{number if parsed.only is None else 1} mutants, {len(tally.finds)} finds: {tally}")
    return 1 if tally.finds else 0


def _play_batch(asked: Any, first: int, last: int, canary: Path, tally: Tally) -> int:
    """Runs mutants `first` to `last` - 1 in a process; returns the number of the next mutant.

    The next mutant is before `last` if the process ended early.
    """
    exports = [str(path.resolve()) for path in asked.plan]
    kernel = find_kernel()
    payload = {
        "exports": exports,
        "numbers": [first, last],
        "seed": asked.seed,
        "canary": str(canary / "written"),
        "kernel": kernel,
    }
    reads = [str(ROOT), *exports, kernel.library]
    with tempfile.TemporaryDirectory(prefix="fuzz_log_") as folder:
        log = Path(folder) / "log"
        watcher = Watcher(log, tally)
        try:
            run_isolated("fuzzing.playing:play_mutants", payload, _bounds(), watcher, reads)
        except IsolationError as e:
            if watcher.number < first:
                print(f"start of a process: {e}", flush=True)
                tally.ends["starts that failed"] += 1
                if tally.ends["starts that failed"] > _MAX_FAILED_STARTS:
                    raise
                return first
            # After a crash or an exceeded limit, print the mutant's number for examination.
            kind = "ended at a limit" if "--max_" in str(e) and "SIG" not in str(e) else "crashes"
            tally.ends[kind] += 1
            print(f"mutant {watcher.number}: {e}", flush=True)
        finally:
            watcher.close()
        seen = list(judged(log, watcher.scratch))
        if len(seen) < WATCHED or any(find.mutant >= 0 for find in seen[:WATCHED]):
            raise RuntimeError("expected strace to show the first forbidden calls, found none")
        for find in seen[WATCHED:]:
            if find.done or is_checked(find.mutant):
                tally.finds.append(find)
            else:
                tally.ends["attempts of unchecked mutants that the sandbox rejected"] += 1
    for path in canary.rglob("*"):
        tally.finds.append(Find(watcher.number, f"a file at {path}", True))
        path.unlink()
    return watcher.number + 1


def _bounds() -> Bounds:
    """Returns the limits of a process; on a busy machine, the time limit is longer."""
    load = os.getloadavg()[0] / len(os.sched_getaffinity(0))
    return Bounds(LIMITS.max_memory_gb, LIMITS.max_round_seconds * max(1.0, load))


if __name__ == "__main__":
    sys.exit(main())
