"""Command line that verifies an export, or runs its rounds on a folder of clients."""

import dataclasses
import functools
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Callable, NoReturn, Optional

from absl import app, flags, logging

from plan_runner.errors import PlanError
from plan_runner.exit_status import print_error, run_command
from plan_runner.export import (
    DEFAULT_LIMITS,
    METRICS,
    ROUNDING,
    STATE,
    Limits,
    publish,
    results_folder,
)
from plan_runner.isolation import Listener
from plan_runner.play import Request, play_isolated
from plan_runner.terminal import escape_output, printable

# Called with a request and a listener for reports; returns the exit status.
Player = Callable[[Request, Listener], int]

_WHOLE = functools.partial(flags.DEFINE_integer, lower_bound=1)
_FLAGS: tuple[tuple[Callable[..., object], str, object, str], ...] = (
    (flags.DEFINE_string, "plan", None, "Folder of the export."),
    (
        flags.DEFINE_bool,
        "verify",
        False,
        "Replay the export's conformance rounds and compare every tensor with the expected one.",
    ),
    (
        functools.partial(flags.DEFINE_float, lower_bound=0.0),
        "tolerance",
        ROUNDING,
        "With --verify: the largest difference of floats that passes, relative to a tensor's "
        "largest number; 0 is bit for bit. Builds of TensorFlow differ in last bits.",
    ),
    (flags.DEFINE_string, "clients", None, "Folder with a file NAME.tfrecord per client."),
    (_WHOLE, "rounds", None, "Number of rounds; by default 1, or all lines of --cohorts."),
    (
        _WHOLE,
        "clients_per_round",
        None,
        "Clients drawn for every round, without replacement; all by default.",
    ),
    (flags.DEFINE_integer, "seed", 0, "Seed of --clients_per_round."),
    (
        flags.DEFINE_string,
        "cohorts",
        None,
        "Text file with the clients of every round instead: a line per round, names with commas "
        "between them, in the order of their sum.",
    ),
    (
        flags.DEFINE_string,
        "state",
        None,
        "Checkpoint of the server's state to begin with instead of the export's.",
    ),
    (flags.DEFINE_string, "output", None, f"Folder to write {STATE} and {METRICS} to."),
    (
        flags.DEFINE_bool,
        "trust",
        False,
        "Run the graphs without a sandbox: only for a plan that you trust, where the kernel has no "
        "Landlock or no seccomp.",
    ),
)
_LIMITS = {
    "max_memory_gb": "Maximum memory of the process that reads the export and runs its graphs, in "
    "10^9 bytes. TensorFlow alone takes about 0.5.",
    "max_round_seconds": "Maximum seconds for each step: reading the export, loading the plan, a "
    "round.",
    "max_records": "Maximum number of examples of a client.",
    "max_unpacked_mb": "Maximum size of an unpacked archive of the export, in 10^6 bytes.",
}
# Flags that have no effect if --verify is set.
_RUN_FLAGS = ("clients", "rounds", "clients_per_round", "seed", "cohorts", "state", "output")


def define_flags(values: flags.FlagValues = flags.FLAGS) -> None:
    """Defines the flags."""
    for define, name, default, text in _FLAGS:
        define(name, default, text, flag_values=values)
    for name, text in _LIMITS.items():
        limit = getattr(DEFAULT_LIMITS, name)
        define = flags.DEFINE_integer if isinstance(limit, int) else flags.DEFINE_float
        define(name, limit, text, flag_values=values)


def main(
    argv: Sequence[str], values: flags.FlagValues = flags.FLAGS, player: Player = play_isolated
) -> int:
    """Verifies or runs an export; returns the exit status."""
    if len(argv) > 1:
        raise PlanError(f"expected flags only, found {argv[1]!r}")
    _check_flags(values)
    request = _request(values)
    if values.verify:
        return player(request, _Printer())
    output = Path(values.output)
    with results_folder(output):
        return player(request, _Printer(output))


def exit_status(
    argv: Sequence[str], values: flags.FlagValues = flags.FLAGS, player: Player = play_isolated
) -> int:
    """Calls `main`, and prints an error as one line with exit status 2."""
    return run_command(lambda: main(argv, values, player))


def run_app() -> NoReturn:
    """Runs `main` as an absl app, and exits with its status."""
    escape_output()
    before = set(flags.FLAGS)
    define_flags()
    for name in set(flags.FLAGS) - before:
        # Without this, --help would show only the main module's flags.
        flags.FLAGS.register_key_flag_for_module(sys.argv[0], flags.FLAGS[name])
    app.run(lambda argv: sys.exit(exit_status(argv)), flags_parser=parse_flags)
    raise AssertionError("app.run does not return")


def parse_flags(argv: Sequence[str]) -> list[str]:
    """Parses the flags, and returns the remaining arguments; exits after an error or --help."""
    logging.use_absl_handler()
    try:
        rest: list[str] = flags.FLAGS(list(argv))
    except flags.Error as e:
        # absl adds this prefix to some messages.
        sys.exit(print_error(str(e).removeprefix("ERROR:: ")))
    except SystemExit:
        sys.exit()
    if not flags.FLAGS["verbosity"].present:
        # Hide the warnings about deprecations within TensorFlow.
        logging.set_verbosity(logging.ERROR)
    return rest


class _Printer(Listener):
    def __init__(self, output: Optional[Path] = None) -> None:
        self._output = output

    def line(self, text: str) -> None:
        print(printable(text), flush=True)

    def results(self, folder: Path) -> None:
        assert self._output is not None, "a verification has no results"
        publish(folder, self._output)
        shutil.rmtree(folder)


def _check_flags(values: flags.FlagValues) -> None:
    if not values.plan:
        raise PlanError("--plan: expected the folder of an export, found none")
    for name in _RUN_FLAGS if values.verify else ("tolerance",):
        if values[name].present:
            mode = "with" if values.verify else "without"
            raise PlanError(f"--{name} has no effect {mode} --verify")
    _limits(values).check()
    if values.verify:
        return
    if not values.clients:
        raise PlanError("--clients: expected a folder of clients (or --verify), found none")
    if not values.output:
        raise PlanError("--output: expected a folder for the results, found none")
    if values.cohorts is not None and values.clients_per_round is not None:
        raise PlanError("--clients_per_round has no effect with --cohorts")
    if values["seed"].present and values.clients_per_round is None:
        raise PlanError("--seed has no effect without --clients_per_round")


def _request(values: flags.FlagValues) -> Request:
    names = {field.name for field in dataclasses.fields(Request)} & set(values)
    given = {name: getattr(values, name) for name in names}
    return Request(**{**given, "clients": values.clients or "", "limits": _limits(values)})


def _limits(values: flags.FlagValues) -> Limits:
    return Limits(**{f.name: getattr(values, f.name) for f in dataclasses.fields(Limits)})
