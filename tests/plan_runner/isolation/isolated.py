"""Functions that tests call in isolated processes, and a listener to their events."""

import mmap
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from plan_runner.isolation import Listener
from plan_runner.sandbox import Refused


class RecordingListener:
    """A listener that records events."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.files: list[str] = []

    def step(self, name: str) -> None:
        """See `Listener`."""

    def line(self, text: str) -> None:
        self.lines.append(text)

    def results(self, folder: Path) -> None:
        self.files.extend(path.read_text() for path in folder.iterdir())


def reports_lines(payload: int, listener: Listener, folder: Path) -> int:
    listener.step("reporting")
    for number in range(payload):
        listener.line(f"line {number} {'x' * 1000}")
    (folder / "results").mkdir()
    (folder / "results" / "file").write_text("here")
    listener.results(folder / "results")
    # Output to stdout is not an event.
    print("[]", flush=True)
    os.write(1, b'["status", 9]\n')
    return 7


def hangs(payload: str, listener: Listener, folder: Path) -> None:
    listener.step("hanging")
    Path(payload).write_text(str(os.getpid()))
    time.sleep(600)


def starts_another(payload: str, listener: Listener, folder: Path) -> None:
    other = subprocess.Popen(["sleep", "600"])
    Path(payload).write_text(str(other.pid))
    listener.step("started")
    time.sleep(600)


def takes_steps(payload: int, listener: Listener, folder: Path) -> int:
    for number in range(payload):
        listener.step(f"step {number}")
        time.sleep(0.8)
    return 0


def allocates(payload: int, listener: Listener, folder: Path) -> int:
    listener.step("allocating")
    return len([bytes(10_000_000) for _ in range(payload)])


def maps(payload: str, listener: Listener, folder: Path) -> None:
    """Maps a file into memory and reads it."""
    listener.step("mapping")
    with open(payload, "r+b") as file:
        memory = mmap.mmap(file.fileno(), 0)
    for start in range(0, len(memory), 4096):
        memory[start]
    time.sleep(600)


def writes(payload: int, listener: Listener, folder: Path) -> None:
    listener.step("writing")
    with open(folder / "large", "wb") as file:
        for _ in range(payload):
            file.write(bytes(10_000_000))


def refuses(payload: str, listener: Listener, folder: Path) -> None:
    raise Refused(payload)


def fails(payload: str, listener: Listener, folder: Path) -> None:
    raise KeyError(payload)


def crashes(payload: str, listener: Listener, folder: Path) -> None:
    listener.step("crashing")
    os.kill(os.getpid(), signal.Signals[payload])
    time.sleep(600)


def exits(payload: str, listener: Listener, folder: Path) -> None:
    listener.step("leaving")
    print("first", file=sys.stderr)
    print(payload, file=sys.stderr, flush=True)
    os._exit(3)


def reports(payload: str, listener: Any, folder: Path) -> None:
    """Writes any text to the pipe for events."""
    listener.step("reporting")
    for name in ("with_a_pipe", "with_a_link"):
        (folder / name).mkdir()
    os.mkfifo(folder / "with_a_pipe" / "file")
    (folder / "with_a_link" / "file").symlink_to("/etc/passwd")
    (folder / "link").symlink_to("/etc")
    os.write(listener._pipe, payload.encode() + b"\n")
    time.sleep(600)


def reports_forever(payload: Any, listener: Listener, folder: Path) -> None:
    listener.step("reporting")
    while True:
        listener.line("still here")


def replaces_its_errors(payload: str, listener: Listener, folder: Path) -> None:
    listener.step("leaving")
    print("last", file=sys.stderr, flush=True)
    (folder / "errors.txt").unlink()
    (folder / "errors.txt").symlink_to(payload)
    os._exit(3)
