"""Descendants of this process and their memory, from /proc."""

import os
import time
from pathlib import Path
from typing import Callable, Optional


def descendants(process: Optional[int] = None) -> list[int]:
    """Returns the ids of all descendants of a process, by default this one."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    result = []
    waiting = [os.getpid() if process is None else process]
    while waiting:
        below = children.get(waiting.pop(), [])
        result += below
        waiting += below
    return result


def title(pid: int) -> str:
    """Returns a process's command line; an empty string if the process has exited."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return ""


def resident_mb(pid: int) -> float:
    """Returns a process's resident memory in MiB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def wait_for(condition: Callable[[], object], seconds: float = 300.0) -> bool:
    """Waits until a condition holds; returns False after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
