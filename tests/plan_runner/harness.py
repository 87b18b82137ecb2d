"""Calls the runner's command line, in this process."""

import contextlib
import io
import tempfile
from pathlib import Path
from typing import NamedTuple

from absl import flags

from plan_runner.command import cli
from plan_runner.command.play import play
from plan_runner.isolation.sandbox import missing

# What commands in processes of their own are given, so that they also run on kernels without one.
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


def call(*arguments) -> Outcome:
    out, err = io.StringIO(), io.StringIO()
    values = flags.FlagValues()
    cli.define_flags(values)
    rest = values(["run_plan", *arguments])
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = cli.exit_status(rest, values, _play_here)
    return Outcome(status, out.getvalue(), err.getvalue())


def _play_here(request, listener) -> int:
    """Plays in this process, which has TensorFlow already; test_isolation has another one."""
    with tempfile.TemporaryDirectory() as scratch:
        return play(request, listener, Path(scratch))
