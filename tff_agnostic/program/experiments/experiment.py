"""What an experiment of a paper is, and its data."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional, Union

from tff_agnostic.aggregations.aggregation import PlainSum
from tff_agnostic.base.errors import UserError, counted
from tff_agnostic.base.files import make_folder, read_json
from tff_agnostic.data.store import load_store
from tff_agnostic.importing.importer import checked_import
from tff_agnostic.importing.options import ImportOptions
from tff_agnostic.importing.source import ReadLog
from tff_agnostic.program.base_predictors.counting import unigram_predictors
from tff_agnostic.program.base_predictors.files import write_predictors
from tff_agnostic.program.runs.folder import RunFolder
from tff_agnostic.program.runs.spec import RunSettings
from tff_agnostic.program.studies.comparison import DIFFERENCE, OVERALL, WORST, trial_folder
from tff_agnostic.program.studies.methods import Arm
from tff_agnostic.runtimes.runtime import Runtime

# In the folder of an experiment that makes a file of base predictors.
PREDICTORS_NAME = "base_predictors.npz"
# What stands above the columns that are not domains.
SUMMARY_HEADINGS = {DIFFERENCE: "difference", OVERALL: "all", WORST: "worst"}
STORE_NAME = "clients.store"
# What a run does with each part of its data, as result.json has them.
_DOES = types.MappingProxyType({"train": "trains on", "evaluated": "is tested on"})


@dataclasses.dataclass(frozen=True)
class OverClients:
    """A column of a table that is no domain: a statistic of the clients' values.

    Attributes:
        statistic: One of `statistic_names`, such as "p10".
    """

    statistic: str

    @property
    def heading(self) -> str:
        """What stands above the column."""
        return f"{self.statistic} of clients"


# A domain, a summary of the domains, or a statistic over clients.
AnyColumn = Union[str, OverClients]


@dataclasses.dataclass(frozen=True)
class PaperTable:
    """What a paper reports.

    Attributes:
        source: Paper and table.
        cells: {MEASURE: {ARM: {COLUMN: text as printed}}}; columns as in `Experiment.columns`.
    """

    source: str
    cells: Mapping[str, Mapping[str, Mapping[AnyColumn, str]]]

    def cell(self, measure: str, arm: str, column: AnyColumn) -> Optional[str]:
        """Returns what the paper has there; None if it has nothing."""
        return self.cells.get(measure, {}).get(arm, {}).get(column)


@dataclasses.dataclass(frozen=True)
class UnigramPredictors:
    """What arms mix that mix predictors; see `base_predictors.counting`.

    Attributes:
        group_by: Of whom each is.
        smoothing: Share of the uniform distribution.
    """

    group_by: str
    smoothing: float

    @property
    def about(self) -> str:
        """What they are, for the page."""
        return (
            f"a unigram model of each {self.group_by}, smoothed by {self.smoothing:g} of the "
            "uniform distribution; the command makes them"
        )

    def paths(self, folder: Path, trial: int) -> tuple[str, ...]:
        """Returns what the arms of a trial mix: one file for all of them."""
        del trial
        return (str(folder / PREDICTORS_NAME),)


@dataclasses.dataclass(frozen=True)
class ArmsAsPredictors:
    """What arms mix that mix predictors: the models of earlier arms, of the same trial.

    Attributes:
        arms: Their names; they stand before those that mix them.
    """

    arms: tuple[str, ...]

    @property
    def about(self) -> str:
        """What they are, for the page."""
        return f"the models of the rows {', '.join(self.arms)} of the same trial"

    def paths(self, folder: Path, trial: int) -> tuple[str, ...]:
        """Returns what the arms of a trial mix: folders of runs."""
        return tuple(str(trial_folder(folder, arm, trial).path) for arm in self.arms)


@dataclasses.dataclass(frozen=True)
class Experiment:
    """An experiment: a task, what is compared on it, and the paper's numbers.

    Attributes:
        title: Heading of its page.
        summary: One line for help texts.
        task: Name of the task.
        arms: The rows, by the name of their folder.
        paper: The paper's table.
        measures: Metrics to tabulate, in order.
        columns: Domains, summaries and statistics over clients. Domains of the data at hand that
            are not among them come before the others, but for that of all examples.
        curve: The measure whose course over the rounds is drawn for the harder domain.
        harder_domain: The domain whose course is drawn; the worst of the first arm if None.
        trials: As many as in the paper.
        task_options: Options of the task.
        raw_data: How a folder of raw files becomes a client store; None if the task reads the
            folder itself, or none.
        base_predictors: What arms mix that mix predictors; None if none do.
    """

    title: str
    summary: str
    task: str
    arms: Mapping[str, Arm]
    paper: PaperTable
    measures: tuple[str, ...]
    columns: tuple[AnyColumn, ...]
    curve: str
    harder_domain: Optional[str] = None
    trials: int = 3
    task_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    raw_data: Optional[ImportOptions] = None
    base_predictors: Union[UnigramPredictors, ArmsAsPredictors, None] = None

    def import_options(self, data_dir: Path, output: Path) -> ImportOptions:
        """Returns the import that makes the experiment's store of a folder of raw files."""
        assert self.raw_data is not None
        return dataclasses.replace(self.raw_data, input=(str(data_dir),), output=str(output))


def fed_avg_arms(target: str, label: Optional[str] = None) -> dict[str, Arm]:
    """Returns the three arms of every table of Ro et al. 2021.

    Args:
        target: Name of the domain that the second one trains on.
        label: What the table calls it, if not by its name.
    """
    return {
        "fed_avg": Arm("FedAvg", {"algorithm": "fed_avg"}),
        "fed_avg_target_only": Arm(
            f"FedAvg ({label or target})",
            {"algorithm": "fed_avg_target_only", "target_domain": target},
        ),
        # Section 4: "we set L to zero for that round".
        "agnostic_fed_avg": Arm(
            "AgnosticFedAvg", {"algorithm": "agnostic_fed_avg", "lambda_absent": "zero"}
        ),
    }


def store_path(
    experiment: Experiment, data_dir: Optional[Path], data: Optional[Path], folder: Path
) -> Optional[Path]:
    """Returns the store to train on: the one given, or the one to make of raw files in `data_dir`.

    Args:
        data_dir: Folder of raw files, or whatever folder the task reads itself.
        data: A client store.
        folder: Where a store is made.
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
    """Makes the store of the raw files in `data_dir`, if it is to be made and not there yet.

    Args:
        data_dir: Folder of raw files.
        store: What `store_path` returned.
    """
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
    """Makes the file of an experiment's base predictors, if it has one and it is not there yet."""
    recipe, path = experiment.base_predictors, folder / PREDICTORS_NAME
    if not isinstance(recipe, UnigramPredictors) or path.exists():
        return
    (spec, *_) = specs
    # The task's own model: the file that others mix is only being made.
    task = dataclasses.replace(spec, algorithm=None).load_task()
    predictors, _ = unigram_predictors(task, runtime, PlainSum(), recipe.group_by, recipe.smoothing)
    write_predictors(path, predictors)
    print(f"{len(predictors.names)} base predictors by {recipe.group_by}: {path}")


def data_lines(path: Optional[Path], trial: Optional[RunFolder] = None) -> Sequence[str]:
    """Returns a line for each split of a store: clients, and examples by domain.

    Where the task does not take the clients of a whole split, there is a line for what it takes.

    Args:
        path: The store; None if the task reads none.
        trial: A run on it that is complete: the first one.
    """
    if path is None:
        return []
    store = load_store(path)
    lines, sizes = [], set()
    for split in store.splits():
        num_clients, table = len(store.client_ids(split)), store.domain_table(split)
        by_domain = None
        if table is not None:
            by_domain = dict(zip(store.description.domains, table.sum(axis=0).tolist()))
        sizes.add(num_clients)
        lines.append(f"{split}: {_counted(num_clients, by_domain)}")
    about = {} if trial is None else read_json(trial.result).get("about", {})
    for part, taken in about.get("data", {}).items():
        if taken["clients"] not in sizes:
            by_domain = {name: n["examples"] for name, n in (taken["domains"] or {}).items()}
            text = _counted(taken["clients"], by_domain)
            lines.append(f"of these the first trial {_DOES[part]} {text}")
    return lines


def _counted(num_clients: int, by_domain: Optional[Mapping[str, int]]) -> str:
    examples = ", ".join(f"{n} of {domain}" for domain, n in (by_domain or {}).items())
    clients = counted(num_clients, "client")
    return f"{clients}; examples: {examples}." if examples else f"{clients}."
