"""Output files of a completed run: result.json, models, model card."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

import numpy as np
from tabulate import tabulate

from tff_agnostic import checkout_commit, versions
from tff_agnostic.base.errors import agreeing, counted
from tff_agnostic.base.files import make_folder, read_json, write_json, write_npz, write_text
from tff_agnostic.base.later import tf
from tff_agnostic.base.report_fields import ReportField
from tff_agnostic.boosting.ensemble import EnsembleModel
from tff_agnostic.computations.verification import SecurityReport
from tff_agnostic.data.data_warnings import Remark
from tff_agnostic.data.inputs import TABLE, inputs_json
from tff_agnostic.metrics.columns import RunRows
from tff_agnostic.metrics.formatting import csv_text
from tff_agnostic.metrics.metrics_file import Column
from tff_agnostic.models.model import ModelWeights, model_measures
from tff_agnostic.program.options.defaults import DEFAULTS
from tff_agnostic.program.options.user_algorithm import algorithm_label, algorithm_named
from tff_agnostic.program.runs.build import evaluation_counts, training_counts
from tff_agnostic.program.runs.evaluation import Reports
from tff_agnostic.program.runs.folder import RunFolder
from tff_agnostic.program.runs.spec import RunSettings, flags_without_folders
from tff_agnostic.saving.save import SavedFile, save_for_keras
from tff_agnostic.saving.trained_model import MADE_UP, FileCheck
from tff_agnostic.tasks.task import Task

CARD = "model_card.json"
_SHOWN = 10


def write_results(
    folder: RunFolder,
    spec: RunSettings,
    task: Task,
    rows: RunRows,
    models: Mapping[str, ModelWeights],
    reports: Reports,
    *,
    privacy: Optional[Mapping[str, Any]],
    remarks: Iterable[Remark],
    security: Optional[SecurityReport],
) -> list[str]:
    """Writes a completed run's files; result.json, which marks the run as complete, is last.

    Args:
        models: The weights of each model after the last round, the main one first.
        privacy: Privacy that the run spent; None without differential privacy.
        remarks: Warnings about the run and its data.
        security: Sums and values that reached the server; None without secure sums.

    Returns:
        One line per model that could not be saved as a Keras file.
    """
    config, values = spec.config, rows.history.values()
    num_skipped = int(np.nansum(values["skipped"]))
    if num_skipped:
        print(
            f"{num_skipped} of {counted(config.rounds, 'round')} "
            f"{agreeing(num_skipped, 'was', 'were')} {skipped_rounds(spec.settings())}"
        )
    if isinstance(task.model, EnsembleModel):
        by_model = alphas(models)
        write_alphas(folder.path, task.model, by_model)
        print(alpha_table(task.model, by_model))
    (main, report), *further = reports.items()
    family = {"main_model": main, "models": {n: r.to_json() for n, r in further}}
    weights = rows.domain_weights()
    result = {
        "task": spec.task,
        "algorithm": config.algorithm,
        "runtime": config.runtime,
        "seed": config.seed,
        "rounds": config.rounds,
        # Marks a result without federated training.
        **({"pooled": True} if config.pooled else {}),
        **report.to_json(),
        **({"domain_weights": weights} if weights else {}),
        **({"privacy": privacy} if privacy is not None else {}),
        **(family if further else {}),
    }
    left_out = write_models(folder, spec, task, models, result)
    if report.resampled is not None:
        write_npz(folder.resampled, report.resampled.to_arrays())
    # Write result.json last, as it marks the run as complete.
    about = run_facts(spec, task, rows.columns, remarks, security, num_skipped, privacy)
    write_json(folder.result, {**result, "about": about})
    return left_out


def skipped_rounds(settings: Iterable[str]) -> str:
    """Returns a text about rounds whose sums or next state were not finite.

    Args:
        settings: Names of the run's settings, among them its learning rates.
    """
    rates = [f"--{name}" for name in settings if name.endswith("learning_rate")]
    advice = f"; lower {' or '.join(rates)}" if rates else ""
    return (
        "skipped, as if no client had taken part: the numbers of each client were finite, but "
        f"their sum or the server's update was not{advice}"
    )


def write_models(
    folder: RunFolder,
    spec: RunSettings,
    task: Task,
    models: Mapping[str, ModelWeights],
    result: Mapping[str, Any],
) -> list[str]:
    """Writes a .keras file of each model after the last round, and model_card.json.

    Returns:
        One line per model that could not be saved as a Keras file.
    """
    make_folder(folder.model)
    files = save_for_keras(folder.model, task, models)
    card = model_card(folder, spec, task, spec.config.rounds, result, files.saved)
    write_json(folder.model / CARD, {**card, "left_out": files.left_out})
    return [
        f"{folder.model.name}/ has no {name}.keras: {reason}"
        for name, reason in files.left_out.items()
    ]


def run_facts(
    spec: RunSettings,
    task: Task,
    columns: Iterable[Column],
    remarks: Iterable[Remark],
    security: Optional[SecurityReport],
    rounds_skipped: int,
    privacy: Optional[Mapping[str, Any]],
) -> dict[str, Any]:
    """Returns the entry "about" of result.json.

    Args:
        remarks: Warnings about the run and its data.
        security: Sums and values that reach the server; None without secure sums.
        rounds_skipped: Number of rounds without effect, as if no client had participated.
        privacy: Guarantee of a private run, whose examples are not counted; None for other runs.
    """
    algorithm = algorithm_named(spec.config.algorithm)
    quantities = dict.fromkeys(column.quantity for column in columns)
    train, evaluated = training_counts(task), evaluation_counts(task)
    if privacy is not None:
        train = dataclasses.replace(train, counts=None)
        if "evaluation" in privacy:
            evaluated = dataclasses.replace(evaluated, counts=None)
    return {
        "task": {"summary": DEFAULTS[spec.task].summary},
        "algorithm": {
            "label": f"{algorithm.label}, pooled" if spec.config.pooled else algorithm.label,
            "paper": algorithm.paper,
        },
        "model": {
            "parameters": task.model.num_parameters,
            "inputs": input_shapes(task),
            "classes": None if task.class_names is None else list(task.class_names),
        },
        "measures": measures_json(task),
        "quantities": list(map(_quantity_json, quantities)),
        "data": {
            "train": train.to_json(task.domain_names),
            "evaluated": evaluated.to_json(task.domain_names),
        },
        "remarks": [remark.to_json() for remark in remarks],
        "security": None
        if security is None
        else {"plain": list(security.plain), "secure": list(security.secure)},
        "rounds_skipped": rounds_skipped,
        "versions": {**versions(), **checkout_commit()},
    }


def input_shapes(task: Task) -> Any:
    """Returns type and shape of the inputs, such as "float32[None, 64]", by name."""
    return tf.nest.map_structure(
        lambda s: f"{s.dtype.name}{s.shape.as_list()}", task.model.example_spec["x"]
    )


def measures_json(task: Task) -> dict[str, Any]:
    """Returns unit and direction of each measure of a task's model, by name."""
    return {
        name: {"unit": measure.unit.name.lower(), "higher_is_better": measure.higher_is_better}
        for name, measure in model_measures(task.model).items()
    }


def _quantity_json(quantity: ReportField) -> dict[str, Any]:
    return {
        "name": quantity.name,
        "label": quantity.label,
        "per_domain": quantity.per_domain,
        "unit": quantity.unit.name.lower(),
        "higher_is_better": quantity.higher_is_better,
        "role": quantity.role.name.lower(),
        "is_drawn": quantity.is_drawn,
    }


def model_card(
    folder: RunFolder,
    spec: RunSettings,
    task: Task,
    round_num: int,
    result: Optional[Mapping[str, Any]],
    saved: Sequence[SavedFile],
) -> dict[str, Any]:
    """Returns the content of model_card.json.

    Args:
        result: Result of the run after round `round_num`, as in result.json; None if unknown.
    """
    return {
        "task": spec.task,
        "algorithm": algorithm_label(spec.config.algorithm),
        "round": round_num,
        "domains": list(task.domain_names),
        "classes": None if task.class_names is None else list(task.class_names),
        "inputs": input_shapes(task),
        TABLE: inputs_json(task.inputs, task.class_names, task.words),
        "parameters": task.model.num_parameters,
        "settings": flags_without_folders(spec),
        # Digests of the vocabulary, the code and, in runs without privacy, the data.
        "trained_with": read_json(folder.fingerprint) if folder.fingerprint.exists() else {},
        "result": result,
        "files": [{**dataclasses.asdict(file), "about": dict(file.about)} for file in saved],
        "versions": versions(),
    }


def saved_line(file: SavedFile) -> str:
    """Returns a line about a saved model: file size, and difference from the run's predictions."""
    check = file.check
    if check is None:
        return f"{file.path}: {file.num_bytes:,} bytes"
    same = "predicts as the run's model does" if check.is_same else "its predictions differ"
    largest = check.largest_difference
    how_far = "some of them not finite," if largest is None else f"by {largest:.2g} at most"
    line = (
        f"{file.path}: {file.num_bytes:,} bytes; {same}, {how_far} on {check.num_examples} "
        f"{check.source} examples"
    )
    return line if check.is_same or check.source == MADE_UP else f"{line}; {_cost(check)}"


def _cost(check: FileCheck) -> str:
    """Returns a text about the domain whose metrics change most."""
    losses = [
        (abs(values["file"] - values["run"]), domain, measure, values)
        for domain, measures in check.domains.items()
        for measure, values in measures.items()
        if measure not in ("examples", "loss") and None not in values.values()
    ]
    if not losses:
        return "there is no metric"
    most, domain, measure, values = max(losses, key=lambda loss: loss[0])
    if most == 0:
        return "no domain's metrics change"
    return f"{measure} of {domain} changes most, {values['run']:.4g} to {values['file']:.4g}"


def result_after(folder: RunFolder, round_num: int) -> Optional[dict[str, Any]]:
    """Returns the content of result.json; None if it is of another round than `round_num`."""
    if not folder.result.exists():
        return None
    result = read_json(folder.result)
    return result if result.get("rounds") == round_num else None


def alphas(models: Mapping[str, ModelWeights]) -> dict[str, np.ndarray]:
    """Returns the mixture weights alpha of each of a run's models, float32 [q], by name."""
    return {name: np.asarray(weights.trainable[0]) for name, weights in models.items()}


def write_alphas(folder: Path, model: EnsembleModel, by_model: Mapping[str, np.ndarray]) -> None:
    """Writes alpha.csv, a row per predictor."""
    rows = [["predictor", *(f"alpha ({name})" for name in by_model)]]
    for k, name in enumerate(model.names):
        rows.append([name, *(f"{alpha[k]:.9g}" for alpha in by_model.values())])
    write_text(folder / "alpha.csv", csv_text(rows))


def alpha_table(model: EnsembleModel, by_model: Mapping[str, np.ndarray]) -> str:
    """Returns a table of the predictors with the largest alpha in the main model."""
    order = _by_weight(by_model)
    rows = [[model.names[k], *(alpha[k] for alpha in by_model.values())] for k in order[:_SHOWN]]
    left = order[_SHOWN:]
    if len(left):
        sums = [alpha[left].sum() for alpha in by_model.values()]
        rows.append([f"{len(left)} others", *sums])
    headers = ["base predictor", *(f"alpha ({name})" for name in by_model)]
    table: str = tabulate(rows, headers=headers, floatfmt=".4f")
    return table


def _by_weight(by_model: Mapping[str, np.ndarray]) -> np.ndarray:
    return np.argsort(-next(iter(by_model.values())), kind="stable")
