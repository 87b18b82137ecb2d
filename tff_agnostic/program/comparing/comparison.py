"""Several rows, several seeds: trials, and what is computed from their results."""

import dataclasses
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, Optional

import numpy as np
from tqdm.auto import tqdm

from tff_agnostic.errors import UserError
from tff_agnostic.files import finite_or_none
from tff_agnostic.models.measures import Measure, measures_of
from tff_agnostic.program.comparing.comparison_folder import check_folder, claim, trial_folder
from tff_agnostic.program.comparing.loaded_tasks import LoadedTasks
from tff_agnostic.program.comparing.trial_results import Trials, collect, mean_of, std_of
from tff_agnostic.program.interrupts import StopRequest
from tff_agnostic.program.reporting.bar import is_shown
from tff_agnostic.program.reporting.measured import statistic_names
from tff_agnostic.program.specs.run_spec import RunSpec
from tff_agnostic.program.training import TrainingRun
from tff_agnostic.runtimes.runtime import Runtime
from tff_agnostic.tasks.task import TEST_SPLIT

# Where the distribution over clients stands beside the domains in JSON.
OVER_CLIENTS = "(over clients)"


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Trials of several rows on one task.

    Attributes:
        domain_names: Names of the domains.
        measures: What was measured, by name.
        trials: The trials of each row, by its name.
        labels: What tables and figures call the rows; their names where none is given.
        split: Whose clients were evaluated: "test", or "heldout".
        worst_min_examples: How many of their examples a domain needs to be counted in what is said
            of the worst domain, and of its difference from the best.
    """

    domain_names: tuple[str, ...]
    measures: Mapping[str, Measure]
    trials: Mapping[str, Trials]
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    split: str = TEST_SPLIT
    worst_min_examples: int = 1

    @property
    def not_counted(self) -> tuple[str, ...]:
        """The domains that are not counted in at least one trial."""
        found = {name for trials in self.trials.values() for name in trials.not_counted}
        return tuple(name for name in self.domain_names if name in found)

    def label(self, row: str) -> str:
        """Returns what tables and figures call a row."""
        return self.labels.get(row, row)

    def to_json(self) -> dict[str, Any]:
        """Returns {ROW: {DOMAIN: {MEASURE: {"mean", "std", "trials"}}}}.

        Beside the domains a row has "(over clients)": {STATISTIC: {MEASURE: the same}}.
        """
        return {
            row: {
                **_each_to_json(trials.values),
                **(
                    {OVER_CLIENTS: _each_to_json(trials.over_clients)}
                    if trials.over_clients
                    else {}
                ),
            }
            for row, trials in self.trials.items()
        }


def run_trials(
    specs: Mapping[str, Sequence[RunSpec]],
    folder: Path,
    runtime: Runtime,
    resume: bool,
    stop: StopRequest,
    labels: Optional[Mapping[str, str]] = None,
    other_files: Collection[str] = (),
    after_first: Optional[Callable[[float], None]] = None,
    show_progress: bool = True,
) -> Comparison:
    """Runs every trial of every row, in folder/ROW/trial_K, and collects the results.

    Args:
        specs: The trials of each row, by its name.
        folder: Where the runs go.
        runtime: Executes the rounds; entered by the caller.
        resume: Keep the trials that are complete, and go on with one that is not.
        stop: Says when to stop.
        labels: See `Comparison`.
        other_files: See `check_folder`.
        after_first: Called with the seconds that the first trial took, of those that were not
            complete already, before another one begins; what it raises ends the rest.
        show_progress: Whether to show a bar of trials where somebody sees it.

    Raises:
        UserError: As `check_folder` and `TrainingRun.run` do.
        Interrupted: If a signal asked to stop; what was done is saved.
    """
    check_folder(specs, folder, resume, other_files)
    trials: dict[str, Trials] = {}
    said: set[str] = set()
    has_run = False
    load_task = LoadedTasks()
    comparison = Comparison((), {}, trials, labels or {})
    count, done = sum(map(len, specs.values())), 0
    with tqdm(total=count, disable=not (show_progress and is_shown()), unit="trial") as bar:
        for row, row_specs in specs.items():
            folders, fewest = [], []
            for k, spec in enumerate(row_specs):
                bar.set_postfix_str(f"{row}, trial {k + 1}")
                started = time.monotonic()
                run_folder = trial_folder(folder, row, k)
                run = TrainingRun(spec, run_folder, runtime, resume, load_task)
                # Now that a run can be made: what is refused leaves nothing behind.
                claim(folder, specs, labels or {})
                if k == 0:
                    _say_once((remark.text for remark in run.remarks), said)
                is_complete = resume and run.is_complete()
                if not is_complete:
                    try:
                        run.run(stop, show_progress=False)
                    except UserError as e:
                        raise UserError(f"{row}, trial {k + 1}: {e}") from e
                    _say_once((f"{row}: {line}" for line in run.left_out), said)
                folders.append(run_folder)
                fewest.append(run.spec.config.worst_min_examples)
                comparison = dataclasses.replace(
                    comparison,
                    domain_names=run.task.domain_names,
                    measures=measures_of(run.task.model),
                    split=run.task.test_split,
                    worst_min_examples=max(comparison.worst_min_examples, fewest[-1]),
                )
                bar.update()
                # A bar that is not shown counts nothing.
                done += 1
                if done < count:
                    stop.check(f"trial {k + 1} of {row}")
                if not (is_complete or has_run):
                    has_run = True
                    if after_first is not None:
                        after_first(time.monotonic() - started)
            trials[row] = collect(
                folders,
                comparison.domain_names,
                comparison.measures,
                fewest,
                statistic_names(run.spec.config.client_percentiles),
            )
    return comparison


def _say_once(notes: Iterable[str], said: set[str]) -> None:
    """Prints what is to be known above the bar, and no line twice."""
    for text in dict.fromkeys(notes):
        if text not in said:
            said.add(text)
            tqdm.write(f"note: {text}")


def _each_to_json(by_name: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, Any]:
    return {
        name: {
            measure: {
                "mean": finite_or_none(mean_of(values)),
                "std": finite_or_none(std_of(values)),
                "trials": [finite_or_none(float(v)) for v in values],
            }
            for measure, values in measures.items()
        }
        for name, measures in by_name.items()
    }
