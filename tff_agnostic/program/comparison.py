"""Several rows, several seeds: trials, and what is computed from their results."""

import dataclasses
import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, Optional

import numpy as np
from tqdm import tqdm

from tff_agnostic.data.remarks import Remark
from tff_agnostic.errors import UserError
from tff_agnostic.files import read_json
from tff_agnostic.models.measures import Measure, measures_of
from tff_agnostic.program.comparison_folder import check_folder, claim, trial_folder
from tff_agnostic.program.data_remarks import data_remarks, share_kept_out
from tff_agnostic.program.interrupts import StopRequest
from tff_agnostic.program.loaded_tasks import LoadedTasks
from tff_agnostic.program.reporting.evaluation_report import domains_below
from tff_agnostic.program.reporting.history import read_history
from tff_agnostic.program.run_folder import RunFolder
from tff_agnostic.program.run_spec import RunSpec
from tff_agnostic.program.training import TrainingRun
from tff_agnostic.runtimes.runtime import Runtime
from tff_agnostic.tasks.task import TEST_SPLIT

# Rows of a comparison that are not a domain; parentheses keep them apart from domains' names.
OVERALL = "(overall)"
WORST = "(worst)"
DIFFERENCE = "(difference)"
SUMMARIES = (WORST, OVERALL, DIFFERENCE)


@dataclasses.dataclass(frozen=True)
class Trials:
    """The results of one row: an algorithm, or one with settings of its own.

    Attributes:
        values: values[DOMAIN][MEASURE] is one number per trial. Beside the domains there are
            "(overall)", "(worst)" (the worst domain of each trial) and "(difference)" (the best
            domain's value against the worst's in each trial).
        histories: The columns of metrics.csv of each trial.
        not_counted: Domains that had too few test examples in a trial to be its worst or best.
    """

    values: Mapping[str, Mapping[str, np.ndarray]]
    histories: Sequence[Mapping[str, np.ndarray]]
    not_counted: Collection[str] = ()

    def mean(self, domain: str, measure: str) -> float:
        """Returns the mean over the trials."""
        return float(np.mean(self.values[domain][measure]))

    def std(self, domain: str, measure: str) -> float:
        """Returns the sample standard deviation over the trials; NaN for a single trial."""
        values = self.values[domain][measure]
        return float(np.std(values, ddof=1)) if len(values) > 1 else math.nan


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
        """Returns {ROW: {DOMAIN: {MEASURE: {"mean", "std", "trials"}}}}."""
        return {
            row: {
                domain: {
                    measure: {
                        "mean": _finite_or_none(trials.mean(domain, measure)),
                        "std": _finite_or_none(trials.std(domain, measure)),
                        "trials": [_finite_or_none(float(v)) for v in values],
                    }
                    for measure, values in measures.items()
                }
                for domain, measures in trials.values.items()
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
    with tqdm(total=sum(map(len, specs.values())), disable=None, unit="trial") as bar:
        for row, row_specs in specs.items():
            folders, fewest = [], []
            for k, spec in enumerate(row_specs):
                bar.set_postfix_str(f"{row}, trial {k + 1}")
                started = time.monotonic()
                run_folder = trial_folder(folder, row, k)
                run = TrainingRun(spec, run_folder, runtime, resume, load_task)
                # Now that a run can be made: what is refused leaves nothing behind.
                claim(folder, specs)
                if k == 0:
                    kept_out = share_kept_out(run.spec.algorithm)
                    _say_once(data_remarks(run.task, run.spec.config, kept_out), said)
                is_complete = resume and run.is_complete()
                if not is_complete:
                    try:
                        run.run(stop, show_progress=False)
                    except UserError as e:
                        raise UserError(f"{row}, trial {k + 1}: {e}") from e
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
                if bar.n < bar.total:
                    stop.check(f"trial {k + 1} of {row}")
                if not (is_complete or has_run):
                    has_run = True
                    if after_first is not None:
                        after_first(time.monotonic() - started)
            trials[row] = collect(folders, comparison.domain_names, comparison.measures, fewest)
    return comparison


def _say_once(remarks: Iterable[Remark], said: set[str]) -> None:
    """Prints what is to be known of the data above the bar, and no line twice."""
    for text in dict.fromkeys(remark.text for remark in remarks):
        if text not in said:
            said.add(text)
            tqdm.write(f"note: {text}")


def collect(
    folders: Sequence[RunFolder],
    domain_names: Sequence[str],
    measures: Mapping[str, Measure],
    worst_min_examples: Sequence[int],
) -> Trials:
    """Returns the trials of one row from the files that its runs left.

    Args:
        folders: The folder of each trial.
        domain_names: Names of the domains.
        measures: What was measured, by name.
        worst_min_examples: Of each trial; see `Comparison`.

    Raises:
        UserError: If a file is damaged, or of another task.
    """
    results = [_read_result(folder.result, domain_names, measures) for folder in folders]
    left_out = [
        domains_below({d: r["domains"][d]["num_examples"] for d in domain_names}, fewest)
        for r, fewest in zip(results, worst_min_examples)
    ]
    is_counted = np.array([[d not in names for d in domain_names] for names in left_out])
    by_domain = {
        name: np.array([[_number(r["domains"][d][name]) for d in domain_names] for r in results])
        for name in measures
    }
    values: dict[str, dict[str, np.ndarray]] = {
        domain: {name: by_domain[name][:, i] for name in measures}
        for i, domain in enumerate(domain_names)
    }
    for summary in SUMMARIES:
        values[summary] = {}
    for name, measure in measures.items():
        known = is_counted & ~np.isnan(by_domain[name])
        low = np.min(by_domain[name], axis=1, where=known, initial=np.inf)
        high = np.max(by_domain[name], axis=1, where=known, initial=-np.inf)
        low[~known.any(axis=1)] = high[~known.any(axis=1)] = np.nan
        values[WORST][name] = low if measure.higher_is_better else high
        values[DIFFERENCE][name] = high - low
        values[OVERALL][name] = np.array([_number(r["overall"][name]) for r in results])
    histories = [read_history(folder.metrics) for folder in folders]
    return Trials(values, histories, {name for names in left_out for name in names})


def _read_result(
    path: Path, domain_names: Sequence[str], measures: Iterable[str]
) -> Mapping[str, Any]:
    found = read_json(path)
    try:
        domains = [found["domains"][name] for name in domain_names]
        values = [part[name] for part in (found["overall"], *domains) for name in measures]
        counts = [domain["num_examples"] for domain in domains]
        is_result = all(isinstance(_number(value), (int, float)) for value in (*values, *counts))
    except (LookupError, TypeError):
        is_result = False
    if not is_result or None in counts:
        raise UserError(
            f"{path}: expected the result of a run with {', '.join(measures)} of "
            f"{', '.join(domain_names)}, found something else"
        )
    return found


def _number(value: Any) -> float:
    return math.nan if value is None else value


def _finite_or_none(value: float) -> Any:
    return value if math.isfinite(value) else None
