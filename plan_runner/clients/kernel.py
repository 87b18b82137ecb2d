"""The kernel of ExternalDataset: external_dataset.cc, built with this machine's C++ compiler.

With it, a client's graph runs as it was exported, in a session and in TFLite's interpreter.
"""

import contextlib
import fcntl
import functools
import hashlib
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import tensorflow as tf

from plan_runner.errors import PlanError, reason

# Folder of what was built; by default one of the user's caches.
CACHE_VARIABLE = "PLAN_RUNNER_CACHE"

_SOURCE = Path(__file__).with_name("external_dataset.cc")
_COMPILERS = ("g++", "clang++")
_HEADING = b"plan_runner examples:"


def token_of(examples: Iterable[bytes]) -> bytes:
    """Returns the token that holds these serialised examples; see external_dataset.cc."""
    framed = (struct.pack("<Q", len(record)) + record for record in examples)
    return b"".join((_HEADING, *framed, b"."))


@functools.cache
def kernel_problem() -> str:
    """Loads the kernel, which is built if need be; returns why it cannot be had, or nothing.

    A process has it from then on. To build it takes half a minute, once for each TensorFlow.
    """
    try:
        tf.load_op_library(str(_built()))
    except PlanError as e:
        return str(e)
    except tf.errors.OpError as e:
        return f"the kernel of ExternalDataset cannot be loaded ({reason(e)})"
    return ""


def _built() -> Path:
    """Returns the path of the library.

    Raises:
        PlanError: If there is no compiler, it fails, or the library cannot be written.
    """
    flags = [*tf.sysconfig.get_compile_flags(), *tf.sysconfig.get_link_flags()]
    made_of = [_SOURCE.read_bytes(), tf.__version__.encode(), " ".join(flags).encode()]
    digest = hashlib.sha256(b"\0".join(made_of)).hexdigest()[:16]
    path = _cache() / f"external_dataset_{digest}.so"
    if path.is_file():
        return path
    compiler = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if compiler is None:
        raise PlanError(f"no C++ compiler was found ({' or '.join(_COMPILERS)})")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _alone(path.with_suffix(".lock")):
            # Another process may have built it meanwhile.
            if not path.is_file():
                _build(compiler, flags, path)
    except OSError as e:
        raise PlanError(f"{path.parent}: cannot write ({e.strerror})") from e
    return path


def _build(compiler: str, flags: list[str], path: Path) -> None:
    print("building the kernel of ExternalDataset, once: half a minute", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        library = Path(scratch) / path.name
        command = [compiler, "-shared", "-fPIC", "-O1", "-w", str(_SOURCE), "-o", str(library)]
        done = subprocess.run(
            [*command, *flags], stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip() or f"status {done.returncode}"
            raise PlanError(f"{compiler} cannot build {_SOURCE.name} ({reason(ValueError(said))})")
        os.replace(library, path)


def _cache() -> Path:
    given = os.environ.get(CACHE_VARIABLE)
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "plan_runner"


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
