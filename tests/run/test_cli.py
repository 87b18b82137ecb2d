"""Commands: exit statuses, --help, signals, progress lines and numbered run folders."""

import math
import os
import re
import shlex
import signal
import sys
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
from absl.testing import flagsaver

from tests.support.algorithm_files import write_by_size
from tests.support.results import QUANTITIES, make_report
from tff_agnostic.base.errors import ExecutionError, UserError
from tff_agnostic.base.files import claimed_folder, output_folder
from tff_agnostic.base.report_fields import ReportField
from tff_agnostic.computations.algorithm import Algorithm, RunState
from tff_agnostic.program.commands.registry import COMMANDS, command
from tff_agnostic.program.options.process import (
    Interrupted,
    StopRequest,
    asks_for_help,
    exit_status,
    parse_flags,
    resume_command,
)
from tff_agnostic.program.runs.observers import Progress, progress_text
from tff_agnostic.training.loop import FinishedRound


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (
            UserError("a.csv: found\n\0u\0s\x1b[2J, Grüße, \udcff"),
            2,
            "error: a.csv: found \\x00u\\x00s\\x1b[2J, Grüße, \\udcff\n",
        ),
        (
            ExecutionError("TFF's worker has ended"),
            1,
            "error: TFF's worker has ended (nothing that was saved is lost; train and compare go "
            "on with --resume)\n",
        ),
        (Interrupted("stopped and saved", 15), 143, "stopped and saved\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (PermissionError(13, "Permission denied", "a/b"), 2, "error: a/b: Permission denied\n"),
    ],
)
def test_errors_set_exit_status_and_message(capsys, error, status, text):
    assert exit_status(mock.Mock(side_effect=error), ["train"]) == status
    assert capsys.readouterr() == ("", text)


def test_errors_without_a_file_propagate():
    with pytest.raises(OSError, match="Bad file descriptor"):
        exit_status(mock.Mock(side_effect=OSError(9, "Bad file descriptor")), ["train"])


def test_rejects_text_in_a_flag_of_absl(capsys):
    with pytest.raises(SystemExit, match="2"):
        parse_flags(["train", "--v=high"])
    assert capsys.readouterr().err == "error: --verbosity: expected a whole number, found 'high'\n"


def _command(monkeypatch, program: Path, *arguments: str) -> list[str]:
    monkeypatch.setattr(sys, "argv", [str(program), *arguments])
    return shlex.split(resume_command("train", Path("runs/my run")))


_GO_ON = ["--output_dir=runs/my run", "--resume"]


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [
        (["--output_dir=x", "--task", "a b", "--keep="], ["--task", "a b", "--keep="]),
        (["-output_dir", "--resume", "--rounds=5"], ["--rounds=5"]),
        (["--resume", "--rounds=5", "--noresume", "--resume=false"], ["--rounds=5"]),
    ],
)
def test_resume_command_repeats_the_flags(monkeypatch, tmp_path, arguments, kept):
    # The file `run` is in checkouts only.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").touch()
    actual = _command(monkeypatch, tmp_path / "binaries" / "train.py", *arguments)
    assert actual == ["./run", "train", *kept, *_GO_ON]


def test_resume_command_starts_the_installed_program(monkeypatch, tmp_path):
    actual = _command(monkeypatch, Path("/usr/bin/tff-agnostic"))
    assert actual == ["tff-agnostic", "train", *_GO_ON]
    actual = _command(monkeypatch, tmp_path / "tff_agnostic" / "binaries" / "train.py")
    assert actual == [sys.executable, "-m", "tff_agnostic.binaries.train", *_GO_ON]


# --- Commands print pages with --help


@pytest.fixture
def page():
    """A function that returns the --help page of a command with given arguments."""

    def part(name: str, *arguments: str) -> str:
        with flagsaver.flagsaver():
            command(name).define_flags()
            parse_flags([name, *arguments])
            return command(name).help_text("What it does.")

    return part


def _flags(text: str) -> set[str]:
    return set(re.findall(r"^  --(?:\[no\])?(\w+):", text, flags=re.M))


def _default(text: str, flag: str) -> str:
    (entry,) = re.findall(rf"^  --{flag}: (?:.*\n(?:      .*\n)*)", text, flags=re.M)
    return " ".join(entry.split()).rpartition("[")[2].removesuffix("]")


@pytest.mark.parametrize("name", COMMANDS)
def test_help_page_has_groups(page, name):
    text = page(name)
    assert text.startswith("What it does.")
    headings = re.findall(r"^(\S.*)\n  --", text, flags=re.M)
    assert headings and len(set(headings)) == len(headings)
    # No flag is in two groups.
    assert len(re.findall(r"^  --", text, flags=re.M)) == len(_flags(text))


def test_help_hides_flags_of_other_choices(page):
    shown = _flags(page("train"))
    assert {"task", "rounds", "keep", "window", "client_learning_rate", "lanes"} <= shown
    assert not shown & {"q", "tilt", "ridge", "secure_bits", "noise_multiplier", "ray_address"}
    for choice, flag, hidden in (
        ("--algorithm=q_ffl", "q", "window"),
        ("--aggregation=secure", "secure_bits", "q"),
        ("--privacy=central", "noise_multiplier", "q"),
        ("--runtime=ray", "ray_address", "lanes"),
    ):
        flags = _flags(page("train", choice))
        assert flag in flags and hidden not in flags


def test_help_shows_task_defaults(page):
    assert _default(page("train", "--task=adult"), "client_batch_size") == "50"
    assert _default(page("train", "--task=digits"), "client_learning_rate") == "1.0"
    text = page("train", "--task=digits", "--algorithm=fed_avg")
    assert _default(text, "client_learning_rate") == "8.0"
    text = page("train", "--algorithm=delta_fl", "--preset=paper")
    assert (_default(text, "boundary"), _default(text, "client_normalizer")) == ("paper", "batch")


@pytest.mark.parametrize("methods", ["--algorithms=q_ffl,term", "--arms=a=q_ffl:q=2;term"])
def test_help_shows_flags_of_all_methods(page, methods):
    flags = _flags(page("compare", methods))
    assert {"q", "tilt"} <= flags and "window" not in flags


def test_help_shows_options_of_algorithm_files(page, tmp_path):
    path = write_by_size(tmp_path / "by_size.py")
    text = page("train", f"--algorithm={path}")
    assert "--size_power: Power of a client's size that it weighs. [1.0]" in text
    assert "window" not in _flags(text)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--rounds=3", "-help"], True),
        (["--help=true"], True),
        (["--", "--help"], False),
        (["--helpfull"], False),
    ],
)
def test_help_is_requested_by_its_flags(arguments, expected):
    assert asks_for_help(arguments) == expected


# --- Signals request a stop


@pytest.fixture
def handled():
    """Signals that reached the handlers which `StopRequest` replaces."""
    seen: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    previous = [signal.signal(number, lambda n, frame: seen.append(n)) for number in numbers]
    yield seen
    for number, handler in zip(numbers, previous):
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_second_signal_reaches_previous_handler(handled, number):
    with StopRequest(one_request_seconds=0.0) as stop:
        assert stop.signal_number is None
        stop.check("nothing")
        os.kill(os.getpid(), number)
        assert (stop.signal_number, handled) == (number, [])
        os.kill(os.getpid(), number)
        assert handled == [number]


def test_simultaneous_signals_are_one_stop_request(handled):
    """`timeout` signals a process and then its group."""
    with StopRequest(one_request_seconds=math.inf) as stop:
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
            os.kill(os.getpid(), number)
        assert (stop.signal_number, handled) == (signal.SIGTERM, [])
    os.kill(os.getpid(), signal.SIGTERM)
    assert handled == [signal.SIGTERM]


def test_stop_request_interrupts_at_the_next_check(handled):
    with StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Interrupted) as error:
            stop.check("round 3")
    assert str(error.value) == "stopped and saved after round 3"
    assert error.value.signal_number == signal.SIGTERM
    resumed = error.value.with_command("./run train --resume")
    assert str(resumed) == "stopped and saved after round 3; go on with: ./run train --resume"
    assert resumed.signal_number == signal.SIGTERM


# --- Rounds print progress lines


_NAMES = ("phone", "tablet")


@pytest.mark.parametrize(
    ("counts", "line"),
    [
        ([5, 4], "worst domain tablet: loss -2.000, pull 0.750"),
        # A domain without examples is not the worst.
        ([5, 0], "worst domain phone: loss -3.000, pull 0.250"),
        ([0, 0], "no domain with examples"),
    ],
)
def test_progress_names_the_worst_domain(counts, line):
    report = make_report(losses=[-3.0, -2.0], counts=counts, weights=[0.25, 0.75])
    assert progress_text(QUANTITIES, _NAMES, report) == line
    last = "finalizer"
    quantities, report = OrderedDict({last: QUANTITIES[last]}), {last: report[last]}
    assert progress_text(quantities, _NAMES, report) == "update_norm 0.5"


def test_progress_prints_lines_without_a_terminal(capsys):
    assert not sys.stderr.isatty()
    quantities = OrderedDict(
        count=ReportField("clients", "clients"), skipped=ReportField("skipped", "skipped")
    )
    algorithm = Algorithm("none", None, dict, (), lambda state: state)
    events = [[], ["a worker was started again"], [], []]
    runtime = SimpleNamespace(take_events=lambda: events.pop(0))
    progress = Progress(quantities, _NAMES, runtime, "skipped", visible=True)
    progress.begin(None, RunState((), (), np.int32(1)), 40)
    for num in range(2, 6):
        report = OrderedDict(count=10, skipped=num == 5)
        progress.after_round(FinishedRound(algorithm, num, 40, RunState((), (), num), report))
    progress.end(RunState((), (), np.int32(5)), None)
    assert capsys.readouterr().err.splitlines() == [
        "round 2/40, clients 10",
        "round 3: a worker was started again",
        "round 4/40, clients 10",
        "round 5: skipped",
    ]


# --- Run folders are numbered


def _used(runs: Path, *names: str) -> None:
    for name in names:
        (runs / name).mkdir(parents=True)
        (runs / name / "config.json").write_text("{}")


def _claimed_name(runs: Path, name: str = "digits", resume: bool = False) -> str:
    with output_folder(None, runs, name, resume) as path:
        assert path.parent == runs
        return path.name


def test_run_folders_are_numbered_by_name(tmp_path):
    assert _claimed_name(tmp_path, resume=True) == "digits-001"
    _used(tmp_path, "digits-001", "digits-009", "digits-x", "other-050")
    (tmp_path / "digits-010").mkdir()
    (tmp_path / "digits-011").write_text("a file")
    assert _claimed_name(tmp_path) == "digits-012"
    # A resumed run is in the newest folder with files.
    assert _claimed_name(tmp_path, resume=True) == "digits-009"
    assert _claimed_name(tmp_path, "digit", resume=True) == "digit-001"
    _used(tmp_path, "digits-1000")
    assert _claimed_name(tmp_path) == "digits-1001"


def test_run_folder_without_files_is_removed(tmp_path):
    runs = tmp_path / "runs"
    with pytest.raises(UserError), output_folder(None, runs, "digits", resume=False) as path:
        assert path.is_dir()
        raise UserError("refused")
    assert not runs.exists()
    with pytest.raises(UserError), output_folder(None, runs, "digits", resume=False) as path:
        (path / "metrics.csv").write_text("")
        raise UserError("diverged")
    assert _claimed_name(runs) == "digits-002"
    assert [p.name for p in runs.iterdir()] == ["digits-001"]


def test_concurrent_commands_get_different_folders(tmp_path):
    runs, together = tmp_path / "runs", threading.Barrier(20)

    def start(_):
        together.wait()
        return claimed_folder(runs, "digits")

    with ThreadPoolExecutor(20) as threads:
        actual = sorted(threads.map(start, range(20)))
    assert actual == [runs / f"digits-{k:03d}" for k in range(1, 21)]
