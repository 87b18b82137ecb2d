"""Descriptions of the papers' experiments, and the preparation of their data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional, Union

from tff_agnostic.aggregations.aggregation import PlainSum
from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import make_folder
from tff_agnostic.importing.importer import checked_import
from tff_agnostic.importing.options import ImportOptions
from tff_agnostic.importing.source import ReadLog
from tff_agnostic.program.base_predictors.counting import unigram_predictors
from tff_agnostic.program.base_predictors.files import write_predictors
from tff_agnostic.program.runs.spec import RunSettings
from tff_agnostic.program.studies.comparison import DIFFERENCE, OVERALL, WORST, trial_folder
from tff_agnostic.program.studies.methods import Arm
from tff_agnostic.runtimes.runtime import Runtime

# File of base predictors in the folder of an experiment.
PREDICTORS_NAME = "base_predictors.npz"
# Headings of the columns with a summary of all domains.
SUMMARY_HEADINGS = {DIFFERENCE: "difference", OVERALL: "all", WORST: "worst"}
# Suffix of columns with a statistic over clients, as in "p10 of clients".
OVER_CLIENTS = " of clients"
STORE_NAME = "clients.store"


@dataclasses.dataclass(frozen=True)
class PaperTable:
    """A table of a paper.

    Attributes:
        cells: Printed cells, {MEASURE: {METHOD: {COLUMN: TEXT}}}; columns as in
            `Experiment.columns`.
    """

    source: str
    cells: Mapping[str, Mapping[str, Mapping[str, str]]]

    def cell(self, measure: str, arm: str, column: str) -> Optional[str]:
        """Returns the paper's text in a cell; None if it has none."""
        return self.cells.get(measure, {}).get(arm, {}).get(column)


def printed(columns: Sequence[str], rows: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Returns the cells of a printed table by method and column.

    Args:
        rows: Cells of each method in the order of the columns, separated by vertical bars.
    """
    return {row: dict(zip(columns, map(str.strip, text.split("|")))) for row, text in rows.items()}


@dataclasses.dataclass(frozen=True)
class UnigramPredictors:
    """Unigram models as base predictors; see `base_predictors.counting`."""

    group_by: str
    smoothing: float

    @property
    def about(self) -> str:
        """Description of the predictors, for the experiment's page."""
        return (
            f"a unigram model of each {self.group_by}, smoothed by {self.smoothing:g} of the "
            "uniform distribution; the command makes them"
        )

    def paths(self, folder: Path, trial: int) -> tuple[str, ...]:
        """Returns the paths of a trial's base predictors: one file, which all trials share."""
        del trial
        return (str(folder / PREDICTORS_NAME),)


@dataclasses.dataclass(frozen=True)
class ArmsAsPredictors:
    """The models of earlier methods in the same trial, as base predictors.

    Attributes:
        arms: Names of the methods with these models; methods that mix the models come after them.
    """

    arms: tuple[str, ...]

    @property
    def about(self) -> str:
        """Description of the predictors, for the experiment's page."""
        return f"the models of the rows {', '.join(self.arms)} of the same trial"

    def paths(self, folder: Path, trial: int) -> tuple[str, ...]:
        """Returns the paths of a trial's base predictors: the folders of runs."""
        return tuple(str(trial_folder(folder, arm, trial).path) for arm in self.arms)


@dataclasses.dataclass(frozen=True)
class Experiment:
    """An experiment: a task, methods on it, and the paper's numbers.

    Attributes:
        arms: The methods, by the names of their folders.
        measures: Metrics to tabulate, in order.
        columns: Columns of the table: domains, summaries, and statistics over clients. Domains of
            the data that are not listed are added.
        curve: Measure to plot over the rounds, in the harder domain.
        harder_domain: Domain to plot; FedAvg's worst domain if None.
        trials: Number of trials per method, as in the paper.
        raw_data: Import options for raw files; None if the task reads raw files itself, or needs
            no files.
        base_predictors: Predictors that methods mix; None if no method mixes predictors.
    """

    title: str
    task: str
    arms: Mapping[str, Arm]
    paper: PaperTable
    measures: tuple[str, ...]
    columns: tuple[str, ...]
    curve: str
    harder_domain: Optional[str] = None
    trials: int = 3
    task_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    raw_data: Optional[ImportOptions] = None
    base_predictors: Union[UnigramPredictors, ArmsAsPredictors, None] = None

    def import_options(self, data_dir: Path, output: Path) -> ImportOptions:
        """Returns the options of the import that creates the experiment's store from raw files."""
        assert self.raw_data is not None
        return dataclasses.replace(self.raw_data, input=(str(data_dir),), output=str(output))


def arm(label: str, algorithm: str, **settings: Any) -> Arm:
    """Returns a method with its algorithm and further settings."""
    return Arm(label, {"algorithm": algorithm, **settings})


def fed_avg_arms(target: str, label: Optional[str] = None) -> dict[str, Arm]:
    """Returns the three methods of every table of Ro et al. 2021.

    Args:
        label: Label of the target domain in the table; None for its name.
    """
    return {
        "fed_avg": arm("FedAvg", "fed_avg"),
        "fed_avg_target_only": arm(
            f"FedAvg ({label or target})", "fed_avg_target_only", target_domain=target
        ),
        # Ro et al. 2021, section 4, on domains that are absent in a round: "we set L to zero for
        # that round".
        "agnostic_fed_avg": arm("AgnosticFedAvg", "agnostic_fed_avg", lambda_absent="zero"),
    }


def store_path(
    experiment: Experiment, data_dir: Optional[Path], data: Optional[Path], folder: Path
) -> Optional[Path]:
    """Returns the path of the given store, or of the store for the raw files in `data_dir`.

    Args:
        data_dir: Folder of raw files, or the folder that the task reads itself.
        folder: Parent folder of a new store.
    """
    if data is not None and data_dir is not None:
        raise UserError("--data and --data_dir: expected one of them, found both")
    if experiment.raw_data is None or data is not None:
        return data
    if data_dir is None:
        raise UserError(
            "--data_dir: expected the folder of the raw files, or a client store in --data, found "
            "neither"
        )
    return folder / STORE_NAME


def prepare(experiment: Experiment, data_dir: Optional[Path], store: Optional[Path]) -> None:
    """Imports the raw files in `data_dir` into the store, if the store is missing."""
    if experiment.raw_data is None or data_dir is None or store is None or store.exists():
        return
    if not data_dir.is_dir():
        raise UserError(f"--data_dir: expected a folder, found none at {data_dir}")
    make_folder(store.parent)
    print(f"importing {data_dir} into {store}")
    options = experiment.import_options(data_dir, store)
    print(checked_import(options, given=()).run(ReadLog()).text())


def prepare_predictors(
    experiment: Experiment, specs: Sequence[RunSettings], runtime: Runtime, folder: Path
) -> None:
    """Writes an experiment's file of base predictors, if it needs one that is missing."""
    recipe, path = experiment.base_predictors, folder / PREDICTORS_NAME
    if not isinstance(recipe, UnigramPredictors) or path.exists():
        return
    (spec, *_) = specs
    # Load the task's own model, as the file of predictors does not exist yet.
    task = dataclasses.replace(spec, algorithm=None).load_task()
    predictors, _ = unigram_predictors(task, runtime, PlainSum(), recipe.group_by, recipe.smoothing)
    write_predictors(path, predictors)
    print(f"{len(predictors.names)} base predictors by {recipe.group_by}: {path}")
