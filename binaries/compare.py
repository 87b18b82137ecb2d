"""Compares algorithms on one task over several seeds: tables, JSON and plots.

Example: ./run compare --task=digits --algorithms=fed_avg,agnostic_fed_avg --trials=5
"""

import shlex
import sys
from collections.abc import Sequence

from absl import flags

from tff_agnostic.api.comparisons import (
    RUNS,
    ComparedRuns,
    folder_name,
    run_comparison,
    write_comparison,
)
from tff_agnostic.folders import output_folder
from tff_agnostic.reports.run_page import with_results_kept
from tff_agnostic.run.command_line import (
    define_run_flags,
    define_runtime_flags,
    define_task_flags,
    runtime_options,
)
from tff_agnostic.run.process import Interrupted, resume_command, run_app
from tff_agnostic.settings import path_flag
from tff_agnostic.studies import comparison_report
from tff_agnostic.studies.comparison_page import write_comparison_report
from tff_agnostic.studies.methods import arms_from_flags, define_trial_flags, trial_specs


def define_flags() -> None:
    """Defines the flags of this binary."""
    define_task_flags()
    define_run_flags(without=("algorithm",))
    define_runtime_flags()
    define_trial_flags()
    flags.DEFINE_string(
        "output_dir", None, "Folder of all runs. [runs/compare-TASK-NUMBER, a new one]"
    )
    flags.DEFINE_bool("resume", False, "Keep complete trials and go on with the others.")


def main(argv: Sequence[str]) -> None:
    """Runs all trials; prints and writes the comparison."""
    del argv
    arms = arms_from_flags()
    specs = trial_specs(arms)
    runtime_name = next(iter(specs.values()))[0].config.runtime
    options = runtime_options(runtime_name)
    task = flags.FLAGS.task
    given, resume = path_flag("output_dir"), flags.FLAGS.resume
    with output_folder(given, RUNS, folder_name(task), resume) as path:
        try:
            compared = run_comparison(specs, arms, path, options, resume)
        except Interrupted as e:
            raise e.with_command(resume_command("compare", path)) from None
    write_comparison(compared, task, shlex.join(["./run", "compare", *sys.argv[1:]]))
    report(compared)


def report(compared: ComparedRuns) -> None:
    """Prints the tables of a comparison, and where the rest of it lies."""
    comparison, path = compared.comparison, compared.path
    for measure in comparison.measures:
        print(f"\n{measure} on the {comparison.split} clients")
        print(comparison_report.table(comparison, measure, "simple"))
        of_clients = comparison_report.table_over_clients(comparison, measure, "simple")
        if of_clients is not None:
            print(f"\n{measure}. {comparison_report.over_clients_title(comparison)}\n{of_clients}")
    for line in comparison_report.notes(comparison):
        print(f"\n{line}")
    print(f"\ntables: {path / 'compare.md'}, {path / 'compare.json'}, plots: {path / 'plots'}")
    # Last: a report that cannot be written takes nothing away.
    with with_results_kept(path):
        print(f"report: {write_comparison_report(path)}")


def entry_point() -> None:
    """Runs this binary."""
    run_app(define_flags, main)


if __name__ == "__main__":
    entry_point()
