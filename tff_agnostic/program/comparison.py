"""Several algorithms, several seeds: trials, and what is computed from their results."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from tff_agnostic.computations.registry import ALGORITHMS
from tff_agnostic.errors import UserError
from tff_agnostic.files import read_json, write_errors
from tff_agnostic.program.history import read_history
from tff_agnostic.program.interrupts import StopRequest
from tff_agnostic.program.run_folder import RunFolder, is_new_or_empty
from tff_agnostic.program.run_spec import RunSpec
from tff_agnostic.program.training import TrainingRun
from tff_agnostic.runtimes.runtime import Runtime

# Rows of a comparison that are not a domain; parentheses keep them apart from domains' names.
OVERALL = "(overall)"
WORST = "(worst)"
DIFFERENCE = "(difference)"
# What stands in a comparison's folder beside the runs of each algorithm.
_FILES = (
    *("compare.json", "compare.md", "plots"),
    *("clients.sqlite", "page.md", "images", "seconds.json"),
)
SUMMARIES = (WORST, OVERALL, DIFFERENCE)


@dataclasses.dataclass(frozen=True)
class Trials:
    """The results of one algorithm.

    Attributes:
        values: values[DOMAIN][MEASURE] is one number per trial. Beside the domains there are
            "(overall)", "(worst)" (the worst domain of each trial) and "(difference)" (the best
            domain's value against the worst's in each trial).
        histories: The columns of metrics.csv of each trial.
    """

    values: Mapping[str, Mapping[str, np.ndarray]]
    histories: Sequence[Mapping[str, np.ndarray]]

    def mean(self, domain: str, measure: str) -> float:
        """Returns the mean over the trials."""
        return float(np.mean(self.values[domain][measure]))

    def std(self, domain: str, measure: str) -> float:
        """Returns the sample standard deviation over the trials; NaN for a single trial."""
        values = self.values[domain][measure]
        return float(np.std(values, ddof=1)) if len(values) > 1 else math.nan


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Trials of several algorithms on one task.

    Attributes:
        domain_names: Names of the domains.
        higher_is_better: The measures, and which direction is good.
        trials: The trials of each algorithm, by name.
    """

    domain_names: tuple[str, ...]
    higher_is_better: Mapping[str, bool]
    trials: Mapping[str, Trials]

    def to_json(self) -> dict[str, Any]:
        """Returns {ALGORITHM: {DOMAIN: {MEASURE: {"mean", "std", "trials"}}}}."""
        return {
            algorithm: {
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
            for algorithm, trials in self.trials.items()
        }


def check_folder(specs: Mapping[str, Sequence[RunSpec]], folder: Path, resume: bool) -> None:
    """Checks that a comparison may use the folder; writes nothing.

    Raises:
        UserError: If it holds something else, other trials, or trials that are not to be resumed.
    """
    with write_errors(folder):
        if not is_new_or_empty(folder):
            names = [p.name for p in folder.iterdir()] if folder.is_dir() else [folder.name]
            other = sorted({*names} - {*ALGORITHMS, *specs, *_FILES})
            if other:
                raise UserError(
                    "--output_dir: expected a new or empty folder or that of a comparison, found "
                    f"{other[0]} in {folder}"
                )
            if not resume:
                raise UserError(
                    f"--output_dir: {folder} holds a comparison already: add --resume to go on "
                    "with it, or choose another folder"
                )
    for algorithm, algorithm_specs in specs.items():
        for k, spec in enumerate(algorithm_specs):
            _trial_folder(folder, algorithm, k).check(spec, resume)


def _trial_folder(folder: Path, algorithm: str, trial: int) -> RunFolder:
    return RunFolder(folder / algorithm / f"trial_{trial:02d}")


def run_trials(
    specs: Mapping[str, Sequence[RunSpec]],
    folder: Path,
    runtime: Runtime,
    resume: bool,
    stop: StopRequest,
) -> Comparison:
    """Runs every trial of every algorithm, in folder/ALGORITHM/trial_K, and collects the results.

    Args:
        specs: The trials of each algorithm, by its name.
        folder: Where the runs go.
        runtime: Executes the rounds; entered by the caller.
        resume: Keep the trials that are complete, and go on with one that is not.
        stop: Says when to stop.

    Raises:
        UserError: As `check_folder` and `TrainingRun.run` do.
        Interrupted: If a signal asked to stop; what was done is saved.
    """
    check_folder(specs, folder, resume)
    trials: dict[str, Trials] = {}
    domain_names: tuple[str, ...] = ()
    higher_is_better: dict[str, bool] = {}
    with tqdm(total=sum(map(len, specs.values())), disable=None, unit="trial") as bar:
        for algorithm, algorithm_specs in specs.items():
            folders = []
            for k, spec in enumerate(algorithm_specs):
                bar.set_postfix_str(f"{algorithm}, trial {k + 1}")
                run_folder = _trial_folder(folder, algorithm, k)
                run = TrainingRun(spec, run_folder, runtime, resume)
                if not (resume and run.is_complete()):
                    try:
                        run.run(stop, show_progress=False)
                    except UserError as e:
                        raise UserError(f"{algorithm}, trial {k + 1}: {e}") from e
                domain_names = run.task.domain_names
                higher_is_better = {"loss": False}
                higher_is_better.update(
                    (m.name, m.higher_is_better) for m in run.task.model.metrics
                )
                folders.append(run_folder)
                bar.update()
                if bar.n < bar.total:
                    stop.check(f"trial {k + 1} of {algorithm}")
            trials[algorithm] = collect(folders, domain_names, higher_is_better)
    return Comparison(domain_names, higher_is_better, trials)


def collect(
    folders: Sequence[RunFolder], domain_names: Sequence[str], higher_is_better: Mapping[str, bool]
) -> Trials:
    """Returns the trials of one algorithm from the files that its runs left."""
    results = [read_json(folder.result) for folder in folders]
    by_domain = {
        measure: np.array(
            [[_number(r["domains"][d][measure]) for d in domain_names] for r in results]
        )
        for measure in higher_is_better
    }
    values: dict[str, dict[str, np.ndarray]] = {
        domain: {measure: by_domain[measure][:, i] for measure in higher_is_better}
        for i, domain in enumerate(domain_names)
    }
    for summary in SUMMARIES:
        values[summary] = {}
    for measure, higher in higher_is_better.items():
        low, high = np.nanmin(by_domain[measure], axis=1), np.nanmax(by_domain[measure], axis=1)
        values[WORST][measure] = low if higher else high
        values[DIFFERENCE][measure] = high - low
        values[OVERALL][measure] = np.array([_number(r["overall"][measure]) for r in results])
    return Trials(values, [read_history(folder.metrics) for folder in folders])


def _number(value: Any) -> float:
    return math.nan if value is None else value


def _finite_or_none(value: float) -> Any:
    return value if math.isfinite(value) else None
