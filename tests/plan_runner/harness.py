"""Calls the runner's command line in this process."""

import contextlib
import importlib
import io
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable, NamedTuple
from unittest import mock

from absl import flags

from plan_runner import cli
from plan_runner.isolation import IsolationError, Listener
from plan_runner.play import play
from plan_runner.sandbox import Refused, missing

# Flags that commands in separate processes need on kernels without a sandbox.
TRUST_WITHOUT_SANDBOX = ("--trust",) if missing() else ()


class Outcome(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def error(self) -> str:
        assert self.status == 2, self
        assert self.err.startswith("error: ")
        assert self.err.count("\n") == 1
        return self.err[len("error: ") : -1]


def call(*arguments: str) -> Outcome:
    out, err = io.StringIO(), io.StringIO()
    values = flags.FlagValues()
    cli.define_flags(values)
    rest = values(["run_plan", *arguments])
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = cli.exit_status(rest, values, _run_here)
    return Outcome(status, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def isolated_here() -> Iterator[None]:
    """Replaces `run_isolated` by a call in this process."""

    def run(function: str, payload: Any, bounds: Any, listener: Listener, reads: Any = None) -> int:
        module, _, name = function.partition(":")
        with tempfile.TemporaryDirectory() as folder:
            try:
                called: Callable[..., int] = getattr(importlib.import_module(module), name)
                return called(payload, listener, Path(folder))
            except Refused as e:
                raise IsolationError(str(e)) from e

    with (
        mock.patch("plan_runner.play.run_isolated", run),
        mock.patch("plan_runner.play.missing", list),
    ):
        yield


def _run_here(request: Any, listener: Listener) -> int:
    """Runs rounds in this process, which has already imported TensorFlow."""
    with tempfile.TemporaryDirectory() as scratch:
        return play(request, listener, Path(scratch))
