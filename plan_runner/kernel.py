"""Builds the kernel of the operation ExternalDataset for TFLite, with this machine's compiler."""

import fcntl
import functools
import hashlib
import importlib.util
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, Optional

from plan_runner.errors import PlanError, reason

# Environment variable with the library's folder, which by default is in the user's cache.
CACHE_VARIABLE = "PLAN_RUNNER_CACHE"

_SOURCE = Path(__file__).with_name("external_dataset.cc")
_COMPILERS = ("g++", "clang++")
_HEADING = b"plan_runner examples:"
_VERSIONS = ("tensorflow/core/public/version.h", "tensorflow/core/public/release_version.h")
_ASK_FOR_FLAGS = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
import tensorflow as tf
print(json.dumps([*tf.sysconfig.get_compile_flags(), *tf.sysconfig.get_link_flags()]))
"""


def dataset_token(examples: Iterable[bytes]) -> bytes:
    """Encodes serialised examples as a dataset token; see external_dataset.cc."""
    framed = (struct.pack("<Q", len(record)) + record for record in examples)
    return b"".join((_HEADING, *framed, b"."))


class Kernel(NamedTuple):
    """The kernel's shared library.

    Attributes:
        library: Path of the library; "" if it cannot be built.
        problem: Reason why the library cannot be built; "" if it can.
    """

    library: str
    problem: str = ""


# Kernel that the parent process has built, because a sandboxed process cannot run a compiler.
_given: Optional[Kernel] = None


def find_kernel() -> Kernel:
    """Finds or builds the library, without importing TensorFlow in this process.

    The first call for a TensorFlow version builds the library, which takes half a minute.
    """
    try:
        return Kernel(str(_built()))
    except PlanError as e:
        return Kernel("", str(e))


def give_kernel(kernel: Kernel) -> None:
    """Sets the library that `kernel_problem` loads."""
    global _given
    _given = kernel


@functools.cache
def kernel_problem() -> str:
    """Loads the library into this process; returns the reason for a failure, or ""."""
    import tensorflow as tf

    kernel = _given or find_kernel()
    if kernel.problem:
        return kernel.problem
    try:
        tf.load_op_library(kernel.library)
    except tf.errors.OpError as e:
        return f"the kernel of ExternalDataset cannot be loaded ({reason(e)})"
    return ""


def _built() -> Path:
    digest = hashlib.sha256(b"\0".join(_sources())).hexdigest()[:16]
    path = _cache() / f"external_dataset_{digest}.so"
    if path.is_file():
        return path
    compiler = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if compiler is None:
        raise PlanError(f"no C++ compiler was found ({' or '.join(_COMPILERS)})")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # Another process may have built the library while this one waited for the lock.
            if not path.is_file():
                _build(compiler, path)
    except OSError as e:
        raise PlanError(f"{path.parent}: cannot write ({e.strerror})") from e
    return path


def _sources() -> Iterator[bytes]:
    """Yields the library's source, and bytes that identify the TensorFlow build."""
    yield _SOURCE.read_bytes()
    package = importlib.util.find_spec("tensorflow")
    if package is None or not package.submodule_search_locations:
        raise PlanError("no TensorFlow was found")
    folder = Path(package.submodule_search_locations[0])
    for header in _VERSIONS:
        path = folder / "include" / header
        yield path.read_bytes() if path.is_file() else b""
    # The sizes of TensorFlow's libraries distinguish two builds of the same version.
    for library in sorted(folder.glob("libtensorflow_framework.so*")):
        yield f"{library.name} {library.stat().st_size}".encode()


def _flags() -> list[str]:
    """Returns the compiler flags that TensorFlow reports in a separate process."""
    done = subprocess.run(
        [sys.executable, "-c", _ASK_FOR_FLAGS, json.dumps(sys.path)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise PlanError(f"TensorFlow cannot be imported ({reason(ValueError(last))})")
    flags: list[str] = json.loads(done.stdout.splitlines()[-1])
    return flags


def _build(compiler: str, path: Path) -> None:
    if sys.stderr.isatty():
        print("building the kernel of ExternalDataset, once: half a minute", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        library = Path(scratch) / path.name
        command = [compiler, "-shared", "-fPIC", "-O1", "-w", str(_SOURCE), "-o", str(library)]
        done = subprocess.run(
            [*command, *_flags()], stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
        if done.returncode:
            error = done.stderr.decode(errors="replace").strip() or f"status {done.returncode}"
            raise PlanError(f"{compiler} cannot build {_SOURCE.name} ({reason(ValueError(error))})")
        os.replace(library, path)


def _cache() -> Path:
    given = os.environ.get(CACHE_VARIABLE)
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "plan_runner"
