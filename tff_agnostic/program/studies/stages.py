"""Two-stage training: FedAvg, then its last layer retrained with equal domain weights.

Kang et al. 2020, "Decoupling Representation and Classifier for Long-Tailed Recognition", section 4
(cRT), and Kirichenko et al. 2023, "Last Layer Re-Training is Sufficient for Robustness to Spurious
Correlations". The stages share the rounds of the row, whose budget is that of the other rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, NamedTuple

from tff_agnostic.base.errors import UserError, counted
from tff_agnostic.models.keras import LastLayer, last_layer
from tff_agnostic.program.commands.command_line import RunArguments
from tff_agnostic.program.runs.options import resolve_initial_model
from tff_agnostic.program.runs.spec import RunSettings
from tff_agnostic.program.studies.comparison import (
    BASELINE,
    FIRST_STAGES,
    trial_folder,
    trial_name,
)
from tff_agnostic.program.studies.methods import LAST_LAYER, Arm
from tff_agnostic.program.studies.runset import Job
from tff_agnostic.tasks.task import Task

_MIN_ROUNDS = 2
_POOLED = (
    "no federated training: minibatch SGD on the examples of all clients in one place, with as "
    "many in a round as a round of the other rows has on average"
)


class Stages(NamedTuple):
    """The two stages of a row.

    Attributes:
        first: FedAvg, one run per trial.
        second: The runs that start from FedAvg's models, without these models.
    """

    first: Sequence[RunSettings]
    second: Sequence[RunSettings]


def staged(
    given: RunArguments, arms: Mapping[str, Arm], specs: Mapping[str, Sequence[RunSettings]]
) -> dict[str, Stages]:
    """Returns the stages of the rows with two; each stage has half of the rounds.

    The first stage is the first row of FedAvg, or FedAvg with the settings of all rows.

    Args:
        arms: The rows, by their names.
        specs: The runs of each row, with all its rounds.
    """
    rows = [row for row, arm in arms.items() if arm.word == LAST_LAYER]
    plain = next((specs[row] for row, arm in arms.items() if _is_plain(arm)), None)
    stages = {}
    for row in rows:
        first = plain or [
            given.spec_of({"algorithm": BASELINE, "seed": spec.config.seed}) for spec in specs[row]
        ]
        stages[row] = Stages(
            *zip(*(split_into_stages(one, whole) for one, whole in zip(first, specs[row])))
        )
    return stages


def _is_plain(arm: Arm) -> bool:
    is_federated = not arm.settings.get("pooled")
    return not arm.word and arm.settings["algorithm"] == BASELINE and is_federated


def split_into_stages(first: RunSettings, whole: RunSettings) -> tuple[RunSettings, RunSettings]:
    """Returns the two stages of a run, which share its rounds; the first one takes an odd round.

    Args:
        first: The first stage, with any number of rounds.
        whole: The run, with all its rounds.
    """
    rounds = whole.config.rounds
    if rounds < _MIN_ROUNDS:
        raise UserError(
            f"--rounds: expected at least {_MIN_ROUNDS} for {LAST_LAYER}, which has two stages, "
            f"found {rounds}"
        )
    if whole.config.privacy != "none":
        raise UserError(
            f"--arms: expected rows of one stage with --privacy={whole.config.privacy}, whose "
            f"account has the rounds of one run, found {LAST_LAYER}"
        )
    second = rounds // 2
    return _with(first, rounds=rounds - second), _with(whole, rounds=second)


def _with(spec: RunSettings, **changes: Any) -> RunSettings:
    return dataclasses.replace(spec, config=dataclasses.replace(spec.config, **changes))


def stage_jobs(
    folder: Path, row: str, stages: Stages, load_task: Callable[[RunSettings], Task]
) -> list[Job[RunSettings]]:
    """Returns the trials of a method with two stages.

    Args:
        folder: Folder of the study.
    """
    for k, (first, second) in enumerate(zip(stages.first, stages.second)):
        _check_same_rounds(folder, row, k, first, second)
    return [
        stage_job(trial_name(row, k), f"{FIRST_STAGES}/{trial_name(row, k)}", *pair, load_task)
        for k, pair in enumerate(zip(stages.first, stages.second))
    ]


def _check_same_rounds(
    folder: Path, row: str, trial: int, first: RunSettings, second: RunSettings
) -> None:
    """Checks that no stage is longer than before, as the second one starts from the first."""
    for spec, name in ((first, f"{FIRST_STAGES}/{row}"), (second, row)):
        run_folder = trial_folder(folder, name, trial)
        saved = run_folder.read()
        if saved is not None and saved.flags["rounds"] != spec.config.rounds:
            raise UserError(
                f"--rounds: expected the same as before for {row}, whose second stage starts from "
                f"the first, found {first.config.rounds} and {second.config.rounds} for its "
                f"stages, and {saved.flags['rounds']} in {run_folder.path}"
            )


def stage_job(
    name: str,
    first_name: str,
    first: RunSettings,
    second: RunSettings,
    load_task: Callable[[RunSettings], Task],
) -> Job[RunSettings]:
    """Returns a run of two stages.

    Args:
        name: Name of the second stage.
        first_name: Name of the first stage.
    """
    return Job(
        name,
        second,
        Job(first_name, first),
        lambda spec, path: second_stage_settings(spec, path, last_layer(load_task(first).model)),
    )


def stage_remarks(
    specs: Mapping[str, Sequence[RunSettings]],
    stages: Mapping[str, Stages],
    load_task: Callable[[RunSettings], Task],
) -> dict[str, str]:
    """Returns explanations of pooled rows and of rows with two stages, by their names."""
    remarks = {row: _POOLED for row, (run, *_) in specs.items() if run.config.pooled}
    for row, ((first, *_), (second, *_)) in stages.items():
        remarks[row] = _remark(first, second, last_layer(load_task(first).model))
    return remarks


def second_stage_settings(second: RunSettings, first: Path, layer: LastLayer) -> RunSettings:
    """Returns the second stage of a run with its initial model and its frozen layers.

    Args:
        first: Folder of the first stage, which is complete.
    """
    return _with(
        second,
        initial_model=resolve_initial_model(first),
        frozen_layers=(*second.config.frozen_layers, *layer.others),
    )


def _remark(first: RunSettings, second: RunSettings, layer: LastLayer) -> str:
    what = f"the layer {layer.name} alone" if layer.others else f"{layer.name}, the only layer"
    return (
        f"{counted(first.config.rounds, 'round')} of FedAvg, and from its model "
        f"{counted(second.config.rounds, 'round')} of {what}, in which all domains weigh alike"
    )
