"""Calls commands as a shell would, in this process or in a separate one."""

import contextlib
import dataclasses
import functools
import io
import itertools
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, Optional
from unittest import mock

import numpy as np
import pytest
from absl import flags, logging
from absl.testing import flagsaver

from binaries import compare
from tests.support.platform import names_tff
from tests.support.processes import child_processes, default_signals, wait_until
from tests.support.stores import LOGISTIC_REGRESSION, points_store, sentence, write_store
from tff_agnostic.base.options import Options
from tff_agnostic.program.commands.registry import command
from tff_agnostic.program.options.process import StopRequest, define, exit_status, parse_flags
from tff_agnostic.program.reports import html
from tff_agnostic.program.runs import train_run
from tff_agnostic.program.runs.spec import RunSettings
from tff_agnostic.program.studies.methods import given_arms, trial_specs
from tff_agnostic.runtimes.registry import RUNTIMES, RuntimeSpec
from tff_agnostic.saving.checkpoints import newest_checkpoint

ROOT = Path(__file__).parents[2]
# Flags of the smallest task.
TOY = ("--task=toy_regression", "--num_clients=8", "--clients_per_round=3")

# A row of UCI Adult's files.
ADULT_ROW = (
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, "
    "Male, 2174, 0, 40, United-States, <=50K\n"
)
# A user's model file for a store of `write_texts`.
WORD_MODEL = """
import tensorflow as tf
from tff_agnostic.models import SentenceLoss

def build_model(data):
    x = tf.keras.Input(data.x_shape, dtype=data.x_dtype)
    scores = tf.keras.layers.Embedding(data.num_ids, data.num_ids)(x)
    return tf.keras.Model(x, scores), SentenceLoss()
"""

_TIMEOUT_SECONDS = 300.0
# Beginnings of the lines of progress and notes, which may precede an error.
_PROGRESS = re.compile(r"round |note: |[\w ]+: \d+ of \d+ [\w ]+, ")


class Outcome(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The failed command's message: one line, or the joined traceback of user code."""
        assert self.status == 2, self
        assert "Traceback" not in self.err
        lines = [line for line in self.err.splitlines() if not _PROGRESS.match(line)]
        assert lines[0].startswith("error: ")
        assert len(lines) == 1 or lines[0].endswith(" fails:"), self.err
        return " ".join(lines).removeprefix("error: ")


class Caller:
    """Calls binaries in this process.

    Args:
        running: Started runtimes by name, for calls with the default options of a runtime. If None,
            a command that asks for a runtime fails the test.
        draws: Whether figures are drawn, which takes longer than rounds of small models.
    """

    def __init__(self, running: Optional[Mapping[str, Any]], draws: bool = False) -> None:
        self._running = running
        self._svg = html.svg if draws else _no_svg

    def __call__(self, binary: ModuleType, *arguments: str) -> Outcome:
        out, err = io.StringIO(), io.StringIO()
        program = ROOT / "binaries" / f"{binary.__name__.rpartition('.')[2]}.py"
        argv = [str(program), *later_values(arguments)]
        with (
            # Remove the flags that the command defines.
            flagsaver.flagsaver(),
            mock.patch.object(sys, "argv", argv),
            mock.patch.object(train_run, "RUNTIMES", self._runtimes()),
            mock.patch.object(html, "svg", self._svg),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            _absl_log(err),
        ):
            try:
                is_ours = binary.__name__.startswith("binaries.")
                one = started_command(binary) if is_ours else binary
                define(one.define_flags)
                main = one.start if is_ours else binary.main
                status = exit_status(main, parse_flags(argv))
            except SystemExit as e:
                status = int(e.code or 0)
        if names_tff(err.getvalue()):
            pytest.skip("the command needs TensorFlow Federated")
        return Outcome(status, out.getvalue(), err.getvalue())

    def ok(self, binary: ModuleType, *arguments: str) -> Outcome:
        """Runs a command that must exit with status 0."""
        outcome = self(binary, *arguments)
        assert outcome.status == 0, outcome
        return outcome

    def refused(self, folder: Path, binary: ModuleType, *arguments: str) -> str:
        """Returns the error message of a command, which must leave `folder` unchanged."""
        before = tree(folder)
        message = self(binary, *arguments).error
        assert tree(folder) == before
        return message

    def _runtimes(self) -> dict[str, RuntimeSpec]:
        return {
            name: dataclasses.replace(spec, build=functools.partial(self._runtime, name))
            for name, spec in RUNTIMES.items()
        }

    def _runtime(self, name: str, options: Options) -> Any:
        assert self._running is not None, "nothing should run"
        spec = RUNTIMES[name]
        if name in self._running and options == spec.options():
            return contextlib.nullcontext(self._running[name])
        return spec.build(options)


@contextlib.contextmanager
def stopped(questions: int = 0) -> Iterator[None]:
    """Runs commands as if SIGTERM arrived after this many checks for a signal."""
    asked = itertools.count()
    number = property(
        lambda _: signal.SIGTERM if next(asked) >= questions else None, lambda _, value: None
    )
    with mock.patch.object(StopRequest, "signal_number", number, create=True):
        yield


def started_command(binary: ModuleType) -> Any:
    return command(binary.__name__.rpartition(".")[2])


def given(binary: ModuleType, *arguments: str) -> Any:
    one = started_command(binary)
    with flagsaver.flagsaver():
        define(one.define_flags)
        assert parse_flags([one.name, *later_values(arguments)]) == [one.name]
        return one.given()


def compared_specs(*arguments: str) -> dict[str, list[RunSettings]]:
    """Returns, for each method, the runs that `compare` would train."""
    actual = given(compare, *arguments)
    return trial_specs(actual, given_arms(actual))


def assert_same_numbers(run: Path, expected: Path) -> None:
    """Asserts that two run folders have equal metrics.csv and result.json."""
    for name in ("metrics.csv", "result.json"):
        assert (run / name).read_bytes() == (expected / name).read_bytes(), name


def model_weights(run: Path) -> list[np.ndarray]:
    return list(newest_checkpoint(run / "checkpoints").model_arrays["model"])


def write_texts(path: Path, words: Mapping[str, int]) -> None:
    """Writes a store of two clients and two domains, with a vocabulary of the words a, b and c."""
    rows = [
        (split, sentence(client, domain, "a b c"))
        for split in ("train", "test")
        for client in ("x", "y")
        for domain in ("answer", "question")
    ]
    path.unlink(missing_ok=True)
    write_store(path, rows, "text", vocabulary=words)


def write_points(path: Path, domains: Sequence[str], held_out: Sequence[str] = ()) -> None:
    """Writes a store of points with these domains, and the file model.py next to the store.

    Args:
        path: File of the store.
        domains: Domains of the training and the test clients.
        held_out: Domains of the points of one held-out client.
    """
    rng = np.random.default_rng(0)
    cycle = [domains[i % len(domains)] for i in range(24)]
    clients = [
        (split, f"client_{k}", cycle[8 * k : 8 * k + 8])
        for split in ("train", "test")
        for k in range(3)
    ]
    clients += [("heldout", "client_3", list(held_out))] if held_out else []
    points_store(
        path,
        [
            (split, client, rng.normal(size=[len(names), 3]), np.arange(len(names)) % 2, names)
            for split, client, names in clients
        ],
    )
    path.with_name("model.py").write_text(LOGISTIC_REGRESSION)


def _no_svg(figure: Any) -> str:
    del figure
    return "<svg/>"


@contextlib.contextmanager
def _absl_log(stream: io.StringIO) -> Iterator[None]:
    handler = logging.get_absl_handler().python_handler
    verbosity = logging.get_verbosity()
    before = handler.setStream(stream)
    try:
        yield
    finally:
        handler.setStream(before)
        logging.set_verbosity(verbosity)


def tree(folder: Path) -> dict[str, Optional[bytes]]:
    """Returns every file and folder below `folder`, with the files' content."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def defined_flags(binary: ModuleType) -> set[str]:
    with flagsaver.flagsaver():
        before = set(flags.FLAGS)
        started_command(binary).define_flags()
        return set(flags.FLAGS) - before


class Process:
    """A command in a separate process, which the context manager kills at its end.

    Args:
        command: The command line.
        folder: Working directory, where the files `out` and `err` receive the output.
    """

    def __init__(self, command: list[str], folder: Path) -> None:
        self._command = command
        self._folder = folder
        self._process: Any = None

    def __enter__(self) -> "Process":
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYTHONWARNINGS": "ignore",
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }
        # Files receive the output, as pipes would stay open as long as any child of the process
        # lives.
        with (
            default_signals(),
            open(self._folder / "out", "w") as out,
            open(self._folder / "err", "w") as err,
        ):
            self._process = subprocess.Popen(
                self._command,
                cwd=self._folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._process.kill()
        self._process.wait()

    @property
    def started(self) -> int:
        """Id of the started process, which waits for the command's process."""
        pid: int = self._process.pid
        return pid

    @property
    def pid(self) -> int:
        """Process id of the command, which is a child of the started process."""
        wait_until(lambda: child_processes(self.started))
        (pid,) = child_processes(self.started)
        return pid

    def children(self) -> list[int]:
        return child_processes(self.pid)

    def wait_for_rows(self, metrics: Path, count: int) -> None:
        """Waits until the CSV file `metrics` has `count` complete rows."""

        def has_rows() -> bool:
            assert self._process.poll() is None, (self._folder / "err").read_text()
            return metrics.exists() and metrics.read_bytes().count(b"\n") > count

        wait_until(has_rows)

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait_for_import(self, library: str) -> None:
        """Waits until the process has loaded a file whose name contains `library`."""
        wait_until(lambda: library in Path(f"/proc/{self.pid}/maps").read_text())

    def outcome(self) -> Outcome:
        """Waits for the end; a process killed by signal n has the status -n."""
        status = self._process.wait(_TIMEOUT_SECONDS)
        out, err = ((self._folder / name).read_text() for name in ("out", "err"))
        return Outcome(status, out, err)


def python_module(binary: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "binaries", binary, *later_values(arguments)]


def later_values(arguments: Sequence[str]) -> list[str]:
    """Returns the arguments without those flags that a later argument repeats.

    Commands reject repeated flags other than --override, but tests append to shared arguments.
    """
    names = [argument.partition("=")[0] for argument in arguments]
    return [
        argument
        for k, argument in enumerate(arguments)
        if "=" not in argument or names[k] == "--override" or names[k] not in names[k + 1 :]
    ]
