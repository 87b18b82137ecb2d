"""The data of an experiment: a client store, made of raw files where there is none yet."""

import dataclasses
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Optional

from tff_agnostic.aggregations.aggregation import PlainSum
from tff_agnostic.data.store import Store
from tff_agnostic.errors import UserError
from tff_agnostic.experiments.experiment import PREDICTORS_NAME, Experiment, UnigramPredictors
from tff_agnostic.files import make_folder, read_json
from tff_agnostic.importing.importer import checked_import
from tff_agnostic.importing.records.reading import ReadLog
from tff_agnostic.program.ensembles.counting import unigram_predictors
from tff_agnostic.program.ensembles.predictor_files import write_predictors
from tff_agnostic.program.specs.run_folder import RunFolder
from tff_agnostic.program.specs.run_spec import RunSpec
from tff_agnostic.runtimes.runtime import Runtime

STORE_NAME = "clients.sqlite"
# What a run does with each part of its data, as result.json has them.
_DOES = types.MappingProxyType({"train": "trains on", "evaluated": "is tested on"})


def store_path(
    experiment: Experiment, data_dir: Optional[Path], data: Optional[Path], folder: Path
) -> Optional[Path]:
    """Returns the store to train on: the one given, or the one to make of raw files in `data_dir`.

    Args:
        experiment: What is reproduced.
        data_dir: Folder of raw files, or whatever folder the task reads itself.
        data: A client store.
        folder: Where a store is made.

    Raises:
        UserError: If both are given or both are missing where raw files are read.
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
        experiment: What is reproduced.
        data_dir: Folder of raw files.
        store: What `store_path` returned.

    Raises:
        UserError: If the raw files are not as they have to be.
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
    experiment: Experiment, specs: Sequence[RunSpec], runtime: Runtime, folder: Path
) -> None:
    """Makes the file of an experiment's base predictors, if it has one and it is not there yet.

    Args:
        experiment: What is reproduced.
        specs: Runs of its task.
        runtime: Where clients count.
        folder: Where it is written.
    """
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
    store = Store(path)
    lines, sizes = [], set()
    for split in store.splits():
        num_clients, counts = len(store.client_ids(split)), store.domain_counts(split)
        by_domain = None
        if counts is not None:
            by_domain = {
                domain: sum(client.get(domain, 0) for client in counts.values())
                for domain in store.description.domains
            }
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
    return (
        f"{num_clients} clients; examples: {examples}." if examples else f"{num_clients} clients."
    )
