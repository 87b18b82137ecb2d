"""The command line: verifies an export, or runs rounds of it on a folder of clients."""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn, Optional

from absl import app, flags, logging

from plan_runner.clients import clients_in
from plan_runner.cohorts import drawn_cohorts, written_cohorts
from plan_runner.errors import PlanError
from plan_runner.export import Export, open_export
from plan_runner.output import METRICS, STATE, metrics_row, results_folder, write_results
from plan_runner.report import print_checks, print_round
from plan_runner.rounds import run_rounds
from plan_runner.verify import ROUNDING, verify

_USAGE_STATUS = 2
_FAILURE_STATUS = 1

# By the flag that they need, or without which they are needed.
_VERIFY_FLAGS = ("tolerance",)
_RUN_FLAGS = (
    "clients",
    "rounds",
    "clients_per_round",
    "seed",
    "cohorts",
    "state",
    "output",
)


def define_flags(values: flags.FlagValues = flags.FLAGS) -> None:
    """Defines the flags."""
    flags.DEFINE_string("plan", None, "Folder of the export.", flag_values=values)
    flags.DEFINE_bool(
        "verify",
        False,
        "Replay the export's conformance rounds and compare every tensor with the one expected.",
        flag_values=values,
    )
    flags.DEFINE_float(
        "tolerance",
        ROUNDING,
        "With --verify: the largest difference of floats that passes, as a share of a tensor's "
        "largest number; 0 is bit for bit. Builds of TensorFlow differ in last bits.",
        lower_bound=0.0,
        flag_values=values,
    )
    flags.DEFINE_string(
        "clients", None, "Folder with a file NAME.tfrecord per client.", flag_values=values
    )
    flags.DEFINE_integer(
        "rounds",
        None,
        "Number of rounds; by default 1, or all lines of --cohorts.",
        lower_bound=1,
        flag_values=values,
    )
    flags.DEFINE_integer(
        "clients_per_round",
        None,
        "Clients drawn for every round, without replacement; all by default.",
        lower_bound=1,
        flag_values=values,
    )
    flags.DEFINE_integer("seed", 0, "Seed of --clients_per_round.", flag_values=values)
    flags.DEFINE_string(
        "cohorts",
        None,
        "Text file with the clients of every round instead: a line per round, names with commas "
        "between them, in the order in which they are summed.",
        flag_values=values,
    )
    flags.DEFINE_string(
        "state",
        None,
        "Checkpoint of the server's state to begin with instead of the export's.",
        flag_values=values,
    )
    flags.DEFINE_string(
        "output", None, f"Folder to write {STATE} and {METRICS} to.", flag_values=values
    )


def main(argv: Sequence[str], values: flags.FlagValues = flags.FLAGS) -> int:
    """Verifies or runs; returns the exit status.

    Raises:
        PlanError: If a flag, the export or a client's data is not what it has to be.
    """
    if len(argv) > 1:
        raise PlanError(f"expected flags only, found {argv[1]!r}")
    _check_flags(values)
    export = open_export(Path(values.plan))
    print(
        f"{values.plan}: the hashes of {len(export.manifest.files)} files are right. "
        "Graphs are code: run only plans that you trust."
    )
    return _verify(export, values) if values.verify else _run(export, values)


def exit_status(argv: Sequence[str], values: flags.FlagValues = flags.FLAGS) -> int:
    """Calls `main`; what is not as it has to be is told in one line, and has status 2."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        # What runs from here on cleans up when it is interrupted.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return main(argv, values)
    except PlanError as e:
        return _failed(e)
    except BrokenPipeError:
        # Whoever read the output has seen enough. Python flushes again at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OSError as e:
        # A file that may not be read, say; without a name it is no file of the user's.
        if e.filename is None:
            raise
        return _failed(PlanError(f"{e.filename}: {e.strerror}"))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    finally:
        signal.signal(signal.SIGINT, before)


def run_app() -> NoReturn:
    """Runs as an absl app, and ends the process with its exit status."""
    before = set(flags.FLAGS)
    define_flags()
    for name in set(flags.FLAGS) - before:
        # Otherwise --help shows only what the main module itself defines.
        flags.FLAGS.register_key_flag_for_module(sys.argv[0], flags.FLAGS[name])
    app.run(lambda argv: sys.exit(exit_status(argv)), flags_parser=parse_flags)
    raise AssertionError("app.run does not return")


def parse_flags(argv: Sequence[str]) -> list[str]:
    """Parses the flags, and returns what is left; ends the process if one is wrong.

    Or if one asks for help, which absl calls a failure.
    """
    logging.use_absl_handler()
    try:
        rest: list[str] = flags.FLAGS(list(argv))
    except flags.Error as e:
        sys.exit(_failed(e))
    except SystemExit:
        sys.exit()
    if not flags.FLAGS["verbosity"].present:
        # TensorFlow's Python side warns of its own deprecations.
        logging.set_verbosity(logging.ERROR)
    return rest


def _failed(error: Exception) -> int:
    text = " ".join(str(error).split())
    # A file may hold what a terminal obeys.
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    print(f"error: {shown}", file=sys.stderr)
    return _USAGE_STATUS


def _check_flags(values: flags.FlagValues) -> None:
    if not values.plan:
        raise PlanError("--plan: expected the folder of an export, found none")
    unheeded = _RUN_FLAGS if values.verify else _VERIFY_FLAGS
    for name in unheeded:
        if values[name].present:
            mode = "with" if values.verify else "without"
            raise PlanError(f"--{name} has no effect {mode} --verify")
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


def _verify(export: Export, values: flags.FlagValues) -> int:
    verified = print_checks(export, verify(export), values.tolerance)
    return 0 if verified else _FAILURE_STATUS


def _run(export: Export, values: flags.FlagValues) -> int:
    clients = clients_in(Path(values.clients), export.manifest.features)
    if values.cohorts is not None:
        cohorts = written_cohorts(Path(values.cohorts), clients)
        if values.rounds is not None and values.rounds > len(cohorts):
            raise PlanError(
                f"--rounds: expected at most {len(cohorts)}, the lines of {values.cohorts}, "
                f"found {values.rounds}"
            )
        cohorts = cohorts[: values.rounds]
    else:
        cohorts = drawn_cohorts(clients, values.rounds or 1, values.clients_per_round, values.seed)
    output = Path(values.output)
    state: Optional[Path] = Path(values.state) if values.state is not None else None
    with results_folder(output):
        rows = []
        for result in run_rounds(export, cohorts, state):
            print_round(result)
            rows.append(metrics_row(result))
            # Every round: whatever stops the next one, this one is not lost.
            write_results(output, rows, result.state)
    return 0
