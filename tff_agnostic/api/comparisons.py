"""Comparing: several rows over several seeds, as `./run compare` does."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

from matplotlib.figure import Figure

from tff_agnostic.api.arguments import (
    PathName,
    known_settings,
    path_of,
    sorted_arguments,
)
from tff_agnostic.errors import UserError
from tff_agnostic.files import write_json, write_text
from tff_agnostic.folders import output_folder
from tff_agnostic.registry import Registry
from tff_agnostic.reports.run_page import with_results_kept
from tff_agnostic.run.arms import Arm, arms_of_algorithms, arms_of_settings
from tff_agnostic.run.process import Interrupted, StopRequest
from tff_agnostic.run.spec import RunSpec
from tff_agnostic.runtimes.options import RuntimeOptions, options_of
from tff_agnostic.runtimes.registry import RUNTIMES
from tff_agnostic.studies import comparison_report
from tff_agnostic.studies.comparison import Comparison, run_trials
from tff_agnostic.studies.comparison_page import write_comparison_report
from tff_agnostic.studies.methods import specs_of_trials

# Where comparisons go that nobody named a folder for.
RUNS = Path("runs")
_ALGORITHMS = ("fed_avg", "agnostic_fed_avg")


@dataclasses.dataclass(frozen=True)
class ComparedRuns:
    """A comparison that is complete.

    Attributes:
        path: Its folder, with those of the trials.
        comparison: The results of the trials.
    """

    path: Path
    comparison: Comparison

    def table(self, measure: Optional[str] = None, table_format: str = "simple") -> str:
        """Returns a measure as a table: a line per row, a column per domain.

        Args:
            measure: Its name, such as "accuracy"; the last one that the task has if not given.
            table_format: A format of tabulate; "github" is Markdown.

        Raises:
            UserError: If there is no such measure.
        """
        return comparison_report.table(self.comparison, self._measure(measure), table_format)

    def figure(self, measure: Optional[str] = None) -> Figure:
        """Returns the worst domain's measure over rounds, and every domain's at the end."""
        return comparison_report.figure(self.comparison, self._measure(measure))

    def _measure(self, name: Optional[str]) -> str:
        names = list(self.comparison.measures)
        return Registry("measure", {n: n for n in names})[names[-1] if name is None else name]


def compare(
    task: str = "digits",
    algorithms: Sequence[str] = _ALGORITHMS,
    *,
    arms: Optional[Mapping[str, Mapping[str, Any]]] = None,
    trials: int = 3,
    data: Optional[PathName] = None,
    data_dir: Optional[PathName] = None,
    output_dir: Optional[PathName] = None,
    resume: bool = False,
    show_progress: bool = True,
    **settings: Any,
) -> ComparedRuns:
    """Compares algorithms on one task over several seeds, as `./run compare` does.

    Every flag of `./run train` is an argument, for all rows alike; see `train`.

    Args:
        task: Name of the task.
        algorithms: What to compare: names, or Python files of yours.
        arms: Instead of `algorithms`: the settings of each row, `algorithm` among them, by what it
            is called: `{"mild": {"algorithm": "q_ffl", "q": 0.1}, ...}`.
        trials: Trials of each row; trial k has the seed `seed` + k.
        data: The client store, for tasks that read one.
        data_dir: The folder of raw files, for tasks that read one.
        output_dir: The folder of all runs, new or empty; a new one in runs/ if not given.
        resume: Keep complete trials in `output_dir` and go on with the others.
        show_progress: Whether to show a bar on a terminal or in a notebook.
        **settings: The flags.

    Raises:
        UserError: As `train` does.
        Interrupted: As `train` does.
    """
    if arms is None:
        rows = arms_of_algorithms([str(name) for name in algorithms])
    elif tuple(algorithms) != _ALGORITHMS:
        raise UserError("arms and algorithms: expected one of them, found both")
    else:
        rows = _arms(arms)
    names = [arm.settings["algorithm"] for arm in rows.values()]
    given = sorted_arguments(task, names, settings)
    specs = specs_of_trials(
        {name: arm.settings for name, arm in rows.items()},
        trials,
        task,
        given.settings,
        given.task_options,
        path_of(data_dir),
        path_of(data),
    )
    options = options_of(_runtime_of(specs), given.runtime)
    with output_folder(path_of(output_dir), RUNS, folder_name(task), resume) as path:
        try:
            compared = run_comparison(specs, rows, path, options, resume, show_progress)
        except Interrupted as e:
            again = f"compare(..., output_dir={str(path)!r}, resume=True)"
            raise e.with_command(again) from None
        write_comparison(compared, task, f"tff_agnostic.api.compare({task!r}, ...)")
        with with_results_kept(path):
            write_comparison_report(path)
    return compared


def folder_name(task: str) -> str:
    """Returns what folders of a comparison are called where nobody names one."""
    return f"compare-{task}"


def run_comparison(
    specs: Mapping[str, Sequence[RunSpec]],
    rows: Mapping[str, Arm],
    path: Path,
    options: RuntimeOptions,
    resume: bool = False,
    show_progress: bool = True,
) -> ComparedRuns:
    """Runs all trials of a comparison in a folder.

    Args:
        specs: The trials of each row, by its name.
        rows: The rows.
        path: Where the runs go.
        options: How rounds are executed.
        resume: Whether to keep the trials that are complete, and go on with the others.
        show_progress: Whether to show a bar where somebody sees it.

    Raises:
        UserError: As `run_trials` does.
        Interrupted: If a signal asked to stop; what was done is saved.
    """
    trials = len(next(iter(specs.values())))
    task = next(iter(specs.values()))[0].task
    with StopRequest() as stop, RUNTIMES[_runtime_of(specs)](options) as runtime:
        print(f"{', '.join(specs)} on {task}, {trials} trials: {path}")
        labels = {name: arm.label for name, arm in rows.items()}
        comparison = run_trials(
            specs, path, runtime, resume, stop, labels=labels, show_progress=show_progress
        )
    return ComparedRuns(path, comparison)


def write_comparison(compared: ComparedRuns, task: str, command: str) -> None:
    """Writes compare.json, compare.md and figures of each measure into a comparison's folder.

    Args:
        compared: The comparison.
        task: Name of its task.
        command: What made it, for whoever reads the page.
    """
    comparison, path = compared.comparison, compared.path
    write_json(path / "compare.json", comparison.to_json())
    write_text(
        path / "compare.md",
        comparison_report.markdown(comparison, f"Comparison on {task}", command),
    )
    comparison_report.draw_comparison(path / "plots", comparison)


def _runtime_of(specs: Mapping[str, Sequence[RunSpec]]) -> str:
    # One for all rows.
    return next(iter(specs.values()))[0].config.runtime


def _arms(by_name: Mapping[str, Mapping[str, Any]]) -> dict[str, Arm]:
    algorithms = [str(s["algorithm"]) for s in by_name.values() if "algorithm" in s]
    known = known_settings(algorithms)
    return arms_of_settings(by_name, lambda flag, value: known[flag].checked(value))
