"""The card of saved models: what they were trained for and with, and how good they are for whom."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from tff_agnostic.algorithms.user_algorithm import algorithm_label
from tff_agnostic.deployment.manifest import versions
from tff_agnostic.files import read_json
from tff_agnostic.program.run_facts import input_shapes
from tff_agnostic.program.specs.run_command import flags_without_folders
from tff_agnostic.program.specs.run_folder import RunFolder
from tff_agnostic.program.specs.run_spec import RunSpec
from tff_agnostic.saving.check import FileCheck
from tff_agnostic.saving.save import SavedFile
from tff_agnostic.tasks.task import Task

CARD = "model_card.json"


def model_card(
    folder: RunFolder,
    spec: RunSpec,
    task: Task,
    round_num: int,
    result: Optional[Mapping[str, Any]],
    saved: Sequence[SavedFile],
) -> dict[str, Any]:
    """Returns what model_card.json holds.

    Args:
        folder: The run.
        spec: Its settings.
        task: Its task.
        round_num: After which round the models are those.
        result: What the run found after that round, as result.json has it.
        saved: The files.
    """
    return {
        "task": spec.task,
        "algorithm": algorithm_label(spec.config.algorithm),
        "round": round_num,
        "domains": list(task.domain_names),
        "classes": None if task.class_names is None else list(task.class_names),
        "inputs": input_shapes(task),
        "parameters": task.model.num_parameters,
        "settings": flags_without_folders(spec),
        "trained_with": _trained_with(folder),
        "result": result,
        "files": [{**dataclasses.asdict(file), "about": dict(file.about)} for file in saved],
        "versions": versions(),
    }


def saved_lines(saved: Sequence[SavedFile]) -> list[str]:
    """Returns a line for each file: its size, and how its predictions differ from the run's."""
    return [_line(file) for file in saved]


def _line(file: SavedFile) -> str:
    check = file.check
    if check is None:
        return f"{file.path}: {file.num_bytes:,} bytes"
    same = "predicts as the run's model does" if check.is_same else "its predictions differ"
    largest = check.largest_difference
    how_far = "some of them not finite,"
    if largest is not None:
        how_far = f"by {largest:.2g} at most"
    line = (
        f"{file.path}: {file.num_bytes:,} bytes; {same}, {how_far} on {check.num_examples} test "
        "examples"
    )
    return f"{line}; {_cost(check)}" if not check.is_same else line


def _cost(check: FileCheck) -> str:
    """Returns what the domain that loses most loses."""
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
    """Returns what result.json of a run holds, None if it is that of another round."""
    if not folder.result.exists():
        return None
    result = read_json(folder.result)
    return result if result.get("rounds") == round_num else None


def _trained_with(folder: RunFolder) -> dict[str, Any]:
    """Returns the digests of the data, the vocabulary and the code that the run was made of."""
    return read_json(folder.fingerprint) if folder.fingerprint.exists() else {}
