"""Commands: exit statuses, --help, signals, progress lines and numbered run folders."""

import math
import os
import re
import shlex
import signal
import sys
import threading
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace

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
from tff_agnostic.program.options.defaults import DEFAULTS
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


def _raise(error: BaseException):
    def main(argv: object) -> None:
        raise error

    return main


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (UserError("--rounds: expected 1, found 0"), 2, "error: --rounds: expected 1, found 0\n"),
        (UserError("a name with\na line break"), 2, "error: a name with a line break\n"),
        (
            UserError("a.csv: found \0u\0s\x1b[2J, Grüße, \udcff"),
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
        (Interrupted("stopped and saved", 2), 130, "stopped and saved\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (PermissionError(13, "Permission denied", "a/b"), 2, "error: a/b: Permission denied\n"),
    ],
)
def test_errors_set_exit_status_and_message(capsys, error, status, text):
    assert exit_status(_raise(error), ["train"]) == status
    assert capsys.readouterr() == ("", text)


@pytest.mark.parametrize("error", [ZeroDivisionError(), OSError(9, "Bad file descriptor")])
def test_unexpected_errors_propagate(error):
    with pytest.raises(type(error)):
        exit_status(_raise(error), ["train"])


@pytest.mark.parametrize("argument", ["--no_such_flag=1", "--flagfile=/no/such/file", "--v=high"])
def test_rejects_unparsable_flags(capsys, argument):
    with pytest.raises(SystemExit) as error:
        parse_flags(["train", argument])
    assert error.value.code == 2
    text = capsys.readouterr().err
    assert text.startswith("error: ")
    assert text.count("\n") == 1


@pytest.fixture
def checkout(tmp_path) -> Path:
    """A folder that looks like a checkout."""
    root = tmp_path / "check out"
    (root / "binaries").mkdir(parents=True)
    (root / "run").write_text("")
    return root


def _command(monkeypatch, program: Path, *arguments: str) -> list[str]:
    monkeypatch.setattr(sys, "argv", [str(program), *arguments])
    return shlex.split(resume_command("train", Path("runs/my run")))


_GO_ON = ["--output_dir=runs/my run", "--resume"]


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [
        ([], []),
        (["--rounds=5", "--task", "digits"], ["--rounds=5", "--task", "digits"]),
        (["--output_dir=x", "--rounds=5"], ["--rounds=5"]),
        (["--output_dir", "x", "--rounds=5"], ["--rounds=5"]),
        (["-output_dir", "--resume", "--rounds=5"], ["--rounds=5"]),
        (["--resume", "--rounds=5"], ["--rounds=5"]),
        (["--noresume", "--resume=false"], []),
        (["--target_domain=a b", "--keep="], ["--target_domain=a b", "--keep="]),
    ],
)
def test_resume_command_repeats_the_flags(monkeypatch, checkout, arguments, kept):
    monkeypatch.chdir(checkout)
    actual = _command(monkeypatch, checkout / "binaries" / "train.py", *arguments)
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
    assert "--helpfull" in text
    headings = re.findall(r"^(\S.*)\n  --", text, flags=re.M)
    assert headings and len(set(headings)) == len(headings)
    # No flag is in two groups.
    assert len(re.findall(r"^  --", text, flags=re.M)) == len(_flags(text))


def test_help_hides_flags_of_other_choices(page):
    text = page("train")
    shown = _flags(text)
    assert {"task", "rounds", "keep", "window", "client_learning_rate", "lanes"} <= shown
    assert not shown & {"q", "tilt", "ridge", "secure_bits", "noise_multiplier", "ray_address"}
    assert {"q", "client_weighting"} <= _flags(page("train", "--algorithm=q_ffl"))
    assert "window" not in _flags(page("train", "--algorithm=q_ffl"))
    assert "secure_bits" in _flags(page("train", "--aggregation=secure"))
    assert "noise_multiplier" in _flags(page("train", "--privacy=central"))
    ray = _flags(page("train", "--runtime=ray"))
    assert "ray_address" in ray and "lanes" not in ray
    assert len(text.splitlines()) < 170


@pytest.mark.parametrize("task", ["digits", "adult", "toy_regression"])
def test_help_shows_task_defaults(page, task):
    text = page("train", f"--task={task}")
    assert _default(text, "rounds") == str(DEFAULTS[task].settings.get("rounds", 100))
    options = DEFAULTS[task].settings_by_algorithm.get("stochastic_afl", {})
    expected = {**DEFAULTS[task].settings, **options}.get("server_learning_rate", 1.0)
    text = page("train", f"--task={task}", "--algorithm=stochastic_afl")
    assert float(_default(text, "server_learning_rate")) == float(expected)
    text = page("train", f"--task={task}", "--algorithm=delta_fl", "--preset=paper")
    assert (_default(text, "boundary"), _default(text, "client_normalizer")) == ("paper", "batch")


def test_help_shows_flags_of_all_methods(page):
    both = _flags(page("compare", "--algorithms=q_ffl,term"))
    assert {"q", "tilt"} <= both and "window" not in both
    assert {"q", "tilt"} <= _flags(page("compare", "--arms=a=q_ffl:q=2;term"))


def test_help_shows_options_of_algorithm_files(page, tmp_path):
    path = write_by_size(tmp_path / "by_size.py")
    text = page("train", f"--algorithm={path}")
    assert "--size_power: Power of a client's size that it weighs. [1.0]" in text
    assert "window" not in _flags(text)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--rounds=3"], False),
        (["--help"], True),
        (["--rounds=3", "-help"], True),
        (["--help=true"], True),
        (["--", "--help"], False),
        (["--helpfull"], False),
        (["--nohelp"], False),
    ],
)
def test_help_is_requested_by_its_flags(arguments, expected):
    assert asks_for_help(arguments) == expected


# --- Signals request a stop


@pytest.fixture
def handled(monkeypatch):
    """Signals that reached the handlers which `StopRequest` replaces."""
    seen: list[int] = []
    previous = {
        number: signal.signal(number, lambda n, frame: seen.append(n))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    yield seen
    for number, handler in previous.items():
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


def test_progress_names_the_worst_domain():
    report = make_report(losses=[2.0, 3.0], counts=[5, 4], weights=[0.25, 0.75])
    assert (
        progress_text(QUANTITIES, _NAMES, report) == "worst domain tablet: loss 3.000, pull 0.750"
    )
    quantities = OrderedDict(finalizer=QUANTITIES["finalizer"])
    assert (
        progress_text(quantities, _NAMES, {"finalizer": report["finalizer"]}) == "update_norm 0.5"
    )


@pytest.mark.parametrize(
    ("counts", "line"),
    [
        ([5, 0], "worst domain phone: loss -2.000, pull 0.250"),
        ([0, 4], "worst domain tablet: loss -3.000, pull 0.750"),
        ([0, 0], "no domain with examples"),
    ],
)
def test_domain_without_examples_is_not_the_worst(counts, line):
    report = make_report(losses=[-2.0, -3.0], counts=counts, weights=[0.25, 0.75])
    assert progress_text(QUANTITIES, _NAMES, report) == line


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
    runs = tmp_path / "runs"
    assert _claimed_name(runs) == "digits-001"
    _used(runs, "digits-001", "digits-009", "digits-x", "other-050")
    (runs / "digits-011").write_text("a file")
    assert _claimed_name(runs) == "digits-012"
    assert _claimed_name(runs, "other") == "other-051"
    assert _claimed_name(runs, "digit") == "digit-001"
    _used(runs, "digits-1000")
    assert _claimed_name(runs) == "digits-1001"


def test_resume_takes_the_newest_used_folder(tmp_path):
    runs = tmp_path / "runs"
    assert _claimed_name(runs, resume=True) == "digits-001"
    _used(runs, "digits-001", "digits-009")
    (runs / "digits-010").mkdir()
    assert _claimed_name(runs, resume=True) == "digits-009"
    assert _claimed_name(runs, "other", resume=True) == "other-001"


def test_error_removes_an_empty_run_folder(tmp_path):
    runs = tmp_path / "runs"
    with pytest.raises(UserError), output_folder(None, runs, "digits", resume=False) as path:
        assert path.is_dir()
        raise UserError("refused")
    assert not runs.exists()
    with pytest.raises(UserError), output_folder(None, runs, "digits", resume=False) as path:
        (path / "metrics.csv").write_text("")
        raise UserError("diverged")
    assert [p.name for p in runs.iterdir()] == ["digits-001"]
    assert _claimed_name(runs) == "digits-002"
    assert [p.name for p in runs.iterdir()] == ["digits-001"]


def test_concurrent_commands_get_different_folders(tmp_path):
    runs, together = tmp_path / "runs", threading.Barrier(20)
    actual = []

    def start():
        together.wait()
        actual.append(claimed_folder(runs, "digits"))

    threads = [threading.Thread(target=start) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(actual) == [runs / f"digits-{k:03d}" for k in range(1, 21)]
