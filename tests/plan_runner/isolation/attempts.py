"""Attempts of an attacker-controlled process to escape the sandbox."""

import contextlib
import ctypes
import errno
import fcntl
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Callable
from unittest import mock

from plan_runner.isolation import Listener
from plan_runner.sandbox import Refused

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG, _TIOCSTI = 1, 0x5412


def _call(number: int, *arguments: Any) -> None:
    """Makes a system call by its number on x86-64."""
    if _LIBC.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _started(code: Callable[[], object]) -> None:
    thread = threading.Thread(target=code)
    thread.start()
    thread.join()


def _check_access(path: Path) -> None:
    if not os.access(path, os.R_OK):
        raise OSError(errno.EACCES, path)


def attempts(outside: Path, readable: Path, scratch: Path) -> dict[str, Callable[[], object]]:
    """Returns attempts by name; the sandbox may only read `readable`."""
    return {
        # Files
        "writes a file": lambda: (outside.parent / "new").write_text("x"),
        "changes a file": lambda: outside.write_text("x"),
        "reads a file": lambda: outside.read_text(),
        "lists a folder": lambda: os.listdir(outside.parent),
        "changes a file that it may read": lambda: readable.write_text("x"),
        "cuts a file by opening it": lambda: os.open(readable, os.O_RDONLY | os.O_TRUNC),
        "cuts a file by an access mode": lambda: os.open(outside, os.O_ACCMODE | os.O_TRUNC),
        "cuts a file by its name": lambda: os.truncate(outside, 0),
        "makes a folder": lambda: (outside.parent / "folder").mkdir(),
        "removes a file": lambda: outside.unlink(),
        "renames a file": lambda: outside.rename(outside.with_name("other")),
        "moves a file in": lambda: outside.rename(scratch / "moved"),
        "links to a file": lambda: os.link(readable, scratch / "linked"),
        "links by name": lambda: (scratch / "link").symlink_to(outside),
        "makes a pipe": lambda: os.mkfifo(scratch / "pipe"),
        "changes a mode": lambda: outside.chmod(0o777),
        "changes an owner": lambda: os.chown(outside, os.getuid(), os.getgid()),
        "changes a time": lambda: os.utime(outside),
        "sets an attribute": lambda: os.setxattr(outside, "user.x", b"x"),
        "locks a file": lambda: fcntl.flock(os.open(readable, os.O_RDONLY), fcntl.LOCK_EX),
        "reads its parent's variables": lambda: Path(f"/proc/{os.getppid()}/environ").read_bytes(),
        # Processes
        "starts a program": lambda: subprocess.run(["true"], check=True),
        "becomes a program": lambda: os.execv(sys.executable, [sys.executable, "-c", ""]),
        "becomes an open program": lambda: _call(322, -100, b"/bin/true", 0, 0, 0),
        "forks": lambda: os.fork() or os._exit(0),
        "clones": lambda: _call(56, signal.SIGCHLD, 0, 0, 0, 0),
        "clones into namespaces": lambda: _call(56, 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0),
        "clones in the new way": lambda: _call(435, 0, 0),
        "signals its parent": lambda: os.kill(os.getppid(), 0),
        "signals its parent's thread": lambda: _call(234, os.getppid(), os.getppid(), 0),
        "signals all": lambda: os.kill(-1, 0),
        "has others signalled": lambda: fcntl.fcntl(0, fcntl.F_SETOWN, os.getppid()),
        "traces its parent": lambda: _call(101, 16, os.getppid(), 0, 0),
        "reads its parent's memory": lambda: _call(310, os.getppid(), 0, 0, 0, 0, 0),
        "leaves its session": lambda: os.setsid(),
        "outlives its parent": lambda: _call(157, _PR_SET_PDEATHSIG, 0, 0, 0, 0),
        "raises its limits": lambda: resource.setrlimit(resource.RLIMIT_CORE, (1, 1)),
        # These attempts open sockets or make other system calls.
        "opens a socket": lambda: socket.socket(),
        "opens a local socket": lambda: socket.socket(socket.AF_UNIX),
        "opens two sockets": lambda: socket.socketpair(),
        "asks io_uring": lambda: _call(425, 1, 0),
        "keeps memory as a file": lambda: os.memfd_create("x"),
        "shares memory": lambda: _call(29, 0, 4096, 0o600),
        "leaves its namespaces": lambda: _call(272, 0x10000000),
        "mounts": lambda: _call(165, b"none", b"/tmp", b"tmpfs", 0, 0),
        "loads a program into the kernel": lambda: _call(321, 0, 0, 0),
        "reads keys": lambda: _call(250, 0, -3, 0),
        "handles faults": lambda: _call(323, 0),
        "measures the machine": lambda: _call(298, 0, 0, -1, -1, 0),
        "types into a terminal": lambda: fcntl.ioctl(0, _TIOCSTI, b"x"),
        "calls by the numbers of x32": lambda: _call(0x40000000 | 39),
        # These attempts are allowed. Neither Landlock nor the filter of calls restricts the first
        # two.
        "may see the size of a file": lambda: os.stat(outside),
        "may ask for rights to a file": lambda: _check_access(outside),
        "may write its own files": lambda: (scratch / "file").write_text("x"),
        "may rename its own files": lambda: (scratch / "file").rename(scratch / "renamed"),
        "may read": lambda: readable.read_text(),
        "may start threads": lambda: _started(lambda: None),
        "may end itself": lambda: os.kill(os.getpid(), 0),
        "may make temporary files": lambda: tempfile.TemporaryDirectory().cleanup(),
        "may write to nowhere": lambda: Path(os.devnull).write_text("x"),
        "may read of its processors": lambda: Path("/proc/cpuinfo").read_text(),
    }


def tries(payload: Mapping[str, Any], listener: Listener, folder: Path) -> int:
    """Runs the attempts; reports the error number of each, or 0."""
    listener.step("trying")
    outside, readable = map(Path, payload["files"])
    for name, attempt in attempts(outside, readable, folder).items():
        if name not in payload["names"]:
            continue
        try:
            attempt()
        except (OSError, ValueError) as e:
            # Python raises ValueError, without an error number, for `setrlimit`.
            listener.line(f"{name}: {getattr(e, 'errno', 1)}")
        else:
            listener.line(f"{name}: 0")
    listener.line(f"variables: {sorted({'HOME', 'A_SECRET'} & set(os.environ))}")
    listener.line(f"home: {os.environ['HOME'] == str(folder)}")
    return 0


def runs_unchecked(payload: Mapping[str, Any], listener: Listener, folder: Path) -> int:
    """Runs an export and a TFLite graph without checking their graphs."""
    from plan_runner.play import _play_payload

    with unchecked():
        try:
            _play_payload(payload["play"], listener, folder)
        except Refused as e:
            listener.line(f"plan: {e}")
        listener.line(f"TFLite: {invoke(Path(payload['tflite']), folder)}")
    return 0


@contextlib.contextmanager
def unchecked() -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for module in ("daf", "secure", "client"):
            name = f"plan_runner.{module}.check_graph"
            stack.enter_context(mock.patch(name, lambda *arguments: None))
        yield


def invoke(flatbuffer: Path, folder: Path) -> str:
    """Runs a graph with the paths "in:0" and "out:0" like `TfLiteClient`; returns its error."""
    import numpy as np
    import tensorflow as tf

    from plan_runner.graph_session import write_checkpoint

    write_checkpoint(folder / "in", {"a": np.ones(2, np.float32)})
    interpreter = tf.lite.Interpreter(model_content=flatbuffer.read_bytes())
    interpreter.allocate_tensors()
    for detail in interpreter.get_input_details():
        path = str(folder / detail["name"].partition(":")[0]).encode()
        interpreter.set_tensor(detail["index"], np.array(path, np.bytes_))
    try:
        interpreter.invoke()
    except RuntimeError as e:
        return str(e)
    return ""
