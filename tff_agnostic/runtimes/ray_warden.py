"""A script that outlives a process which started Ray, and ends whatever that left behind.

Ray's own processes notice late, or never, that the process which started them was killed. This one
waits for the end of its standard input, whose other end only that process holds. Then it kills
every process whose environment names the folder of that Ray, and removes the folder.

Run as a file, not imported: it starts quickly and needs nothing but the standard library.
"""

import os
import shutil
import signal
import sys
import time
from pathlib import Path

VARIABLE = "TFF_AGNOSTIC_RAY_FOLDER"
"""Environment variable by which the processes of one Ray are known."""

_DEADLINE_SECONDS = 10.0
_POLL_SECONDS = 0.05


def processes_of(folder: str) -> list[int]:
    """Returns the process ids of the Ray whose files are in `folder`."""
    marker = f"{VARIABLE}={folder}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # Empty for a process that has ended and was not collected.
            environment = (entry / "environ").read_bytes()
        except OSError:
            continue  # It has ended, or is another user's.
        if marker in environment.split(b"\0"):
            found.append(int(entry.name))
    return found


def end_processes_of(folder: str) -> None:
    """Kills the processes of a Ray, also those that they start meanwhile."""
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while time.monotonic() < deadline:
        pids = processes_of(folder)
        if not pids:
            return
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(_POLL_SECONDS)


def main(folder: str) -> None:
    """Waits for the end of the process that uses the Ray in `folder`, and cleans up after it."""
    said_goodbye = sys.stdin.buffer.read() != b""
    end_processes_of(folder)
    shutil.rmtree(folder, ignore_errors=True)
    if not said_goodbye:
        # Where Ray's own processes die, Ray ends the one that uses it at once, without a word.
        print(
            "error: the command was killed, or ended by Ray because Ray's own processes were "
            "(nothing that was saved is lost; train and compare go on with --resume)",
            file=sys.stderr,
        )


if __name__ == "__main__":
    main(sys.argv[1])
