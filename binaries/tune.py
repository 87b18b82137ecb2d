"""Searches for settings by the held-out split, with the same budget for every algorithm.

Example: ./run tune --task=digits --search="client_learning_rate=log:0.1..16" --trials=20
"""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from tff_agnostic.folders import output_folder
from tff_agnostic.models.model import measures_of
from tff_agnostic.run.command_line import (
    data,
    define_run_flags,
    define_runtime_flags,
    define_task_flags,
    runtime_options,
)
from tff_agnostic.run.process import Interrupted, StopRequest, resume_command, run_app
from tff_agnostic.runtimes.registry import RUNTIMES
from tff_agnostic.settings import path_flag
from tff_agnostic.studies import search_flags as tuning_flags
from tff_agnostic.studies.comparison import LoadedTasks
from tff_agnostic.studies.optuna_studies import Studies
from tff_agnostic.studies.search import Search, TrialRunner
from tff_agnostic.studies.search_space import parse_objective
from tff_agnostic.studies.searched_method import check_folder, claim_folder, identity
from tff_agnostic.studies.tuning_report import report
from tff_agnostic.tasks.registry import check_heldout, check_store

_RUNS = Path("runs")


def define_flags() -> None:
    """Defines the flags of this binary."""
    define_task_flags()
    define_run_flags(without=("algorithm",))
    define_runtime_flags()
    tuning_flags.define_search_flags()
    flags.DEFINE_string(
        "output_dir", None, "Folder of the search. [runs/tune-TASK-NUMBER, a new one]"
    )
    flags.DEFINE_bool(
        "resume",
        False,
        "Go on with the search in --output_dir, or join other processes that run its trials.",
    )


def main(argv: Sequence[str]) -> None:
    """Runs trials until the budget is used; prints and writes what was found."""
    del argv
    arms, seeds, budget = tuning_flags.searched_arms(), tuning_flags.seeds(), tuning_flags.budget()
    first = next(iter(arms.values()))
    check_store(data())
    load_task = LoadedTasks()
    task = load_task(first.spec({}, seeds[0]))
    check_heldout(task, first.task)
    objective = parse_objective(flags.FLAGS.objective, measures_of(task.model), task.domain_names)
    method = tuning_flags.method(arms, objective.higher_is_better)
    for arm in arms.values():
        arm.check(seeds[0], task)
    wanted = identity(arms, method, objective.name, seeds, task)
    runtime_name = first.spec({}, seeds[0]).config.runtime
    options = runtime_options(runtime_name)
    given, resume = path_flag("output_dir"), flags.FLAGS.resume
    with (
        output_folder(given, _RUNS, f"tune-{first.task}", resume) as path,
        StopRequest() as stop,
    ):
        check_folder(path, wanted, resume)
        with RUNTIMES[runtime_name](options) as runtime:
            claim_folder(path, wanted, resume)
            print(
                f"{', '.join(arms)} on {first.task}, by {objective.name} on the "
                f"{task.test_split} clients: {path}"
            )
            search = Search(
                arms,
                Studies(path, method),
                TrialRunner(objective, seeds, runtime, load_task),
                budget,
                path,
            )
            search.begin(seeds[0])
            if first.spec({}, seeds[0]).config.privacy != "none":
                print("note: epsilon is that of one run; the choice among several is not covered")
            try:
                search.run(stop)
            except Interrupted as e:
                raise e.with_command(resume_command("tune", path)) from None
    report(search, task.test_split, shlex.join(["./run", "tune", *sys.argv[1:]]))


def entry_point() -> None:
    """Runs this binary."""
    run_app(define_flags, main)


if __name__ == "__main__":
    entry_point()
