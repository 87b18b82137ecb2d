"""Rows of two stages: FedAvg, and from its model the last layer, where all domains weigh alike.

Kang et al. 2020, "Decoupling Representation and Classifier for Long-Tailed Recognition", section 4
(cRT), and Kirichenko et al. 2023, "Last Layer Re-Training is Sufficient for Robustness to Spurious
Correlations": what FedAvg learns to see is kept, and what follows from it is learned anew. The
stages share the rounds that a row has: its budget is that of the others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tff_agnostic.base.errors import UserError, counted
from tff_agnostic.models.keras import LastLayer, last_layer
from tff_agnostic.program.commands.command_line import GivenRun
from tff_agnostic.program.options.process import StopRequest
from tff_agnostic.program.progress import LongWork
from tff_agnostic.program.runs.folder import RunFolder
from tff_agnostic.program.runs.observers import RoundCount
from tff_agnostic.program.runs.options import initial_file
from tff_agnostic.program.runs.spec import RunSpec
from tff_agnostic.program.runs.training import TrainingRun
from tff_agnostic.program.studies.comparison import (
    FIRST_STAGES,
    LoadedTasks,
    count_open,
    trial_folder,
)
from tff_agnostic.program.studies.methods import BASELINE, LAST_LAYER, Arm
from tff_agnostic.runtimes.runtime import Runtime

_MIN_ROUNDS = 2
_POOLED = (
    "no federated training: minibatch SGD on the examples of all clients in one place, with as "
    "many in a round as a round of the other rows has on average"
)


class Stages(NamedTuple):
    """The two stages of a row.

    Attributes:
        first: FedAvg, the run of each trial.
        second: What goes on from it; what it starts from, and what it freezes, is not known yet.
    """

    first: Sequence[RunSpec]
    second: Sequence[RunSpec]


class Begun(NamedTuple):
    """Rows whose first stages are complete.

    Attributes:
        specs: The runs of each row; of a row of two stages the second one.
        remarks: What is to be known of such rows, and of pooled ones, by their names.
    """

    specs: dict[str, list[RunSpec]]
    remarks: dict[str, str]


def staged(
    given: GivenRun, arms: Mapping[str, Arm], specs: Mapping[str, Sequence[RunSpec]]
) -> dict[str, Stages]:
    """Returns the stages of the rows that have two; each has half of the rounds.

    The first one is that of the first row of FedAvg, or FedAvg with what was given for all rows.

    Args:
        arms: The rows, by their names.
        specs: The runs of each row, with all its rounds.
    """
    rows = [row for row, arm in arms.items() if arm.word == LAST_LAYER]
    plain = next((specs[row] for row, arm in arms.items() if _is_plain(arm)), None)
    found = {}
    for row in rows:
        first = plain or [
            given.spec_of({"algorithm": BASELINE, "seed": spec.config.seed}) for spec in specs[row]
        ]
        found[row] = Stages(*zip(*(halves(one, whole) for one, whole in zip(first, specs[row]))))
    return found


def _is_plain(arm: Arm) -> bool:
    is_federated = not arm.settings.get("pooled")
    return not arm.word and arm.settings["algorithm"] == BASELINE and is_federated


def halves(first: RunSpec, whole: RunSpec) -> tuple[RunSpec, RunSpec]:
    """Returns the two stages of a run, which share its rounds; an odd one is the first stage's.

    Args:
        first: What the first stage is, but for its rounds.
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


def joined(first: RunSpec, second: RunSpec) -> RunSpec:
    """Returns the run whose stages these are: the inverse of `halves` and of `going_on`."""
    return _with(
        second,
        rounds=first.config.rounds + second.config.rounds,
        initial_model=first.config.initial_model,
        frozen_layers=first.config.frozen_layers,
    )


def _with(spec: RunSpec, **changes: Any) -> RunSpec:
    return dataclasses.replace(spec, config=dataclasses.replace(spec.config, **changes))


def begun(
    specs: Mapping[str, Sequence[RunSpec]],
    stages: Mapping[str, Stages],
    folder: Path,
    runtime: Runtime,
    stop: StopRequest,
    show_progress: bool,
) -> Begun:
    """Trains the first stages, or goes on with them, in the folder `FIRST_STAGES`.

    Args:
        specs: The runs of each row.
        stages: Of the rows that have two, by their names.
        folder: That of the comparison.
    """
    found = {row: list(of_row) for row, of_row in specs.items()}
    remarks = {row: _POOLED for row, (run, *_) in specs.items() if run.config.pooled}
    load_task = LoadedTasks()
    for row, of_row in stages.items():
        _check_same_rounds(folder, row, of_row)
    firsts = {row: of_row.first for row, of_row in stages.items()}
    count, left = sum(map(len, firsts.values())), count_open(firsts, folder / FIRST_STAGES)
    with LongWork("first stages", count, "runs", count - left, visible=show_progress) as work:
        for row, of_row in stages.items():
            found[row] = []
            for k, (first, second) in enumerate(zip(of_row.first, of_row.second)):
                path = trial_folder(folder / FIRST_STAGES, row, k)
                run = TrainingRun(first, path, runtime, resume=True, load_task=load_task)
                if k == 0:
                    remarks[row] = _remark(first, second, last_layer(run.parts.task.model))
                    work.note(f"{row}: {remarks[row]}")
                if not run.is_complete():
                    run.run(stop, show_progress=False, observers=[RoundCount(work.within)])
                    work.update()
                found[row].append(going_on(second, path, last_layer(run.parts.task.model)))
    return Begun(found, remarks)


def going_on(second: RunSpec, first: RunFolder, layer: LastLayer) -> RunSpec:
    """Returns the second stage of a run, with what it starts from and what it freezes.

    Args:
        first: The folder of the first stage, which is complete.
    """
    return _with(
        second,
        initial_model=initial_file(first.path),
        frozen_layers=(*second.config.frozen_layers, *layer.others),
    )


def _check_same_rounds(folder: Path, row: str, stages: Stages) -> None:
    paths = (folder / FIRST_STAGES, folder)
    for of_stage, path in zip(stages, paths):
        for k, spec in enumerate(of_stage):
            saved = trial_folder(path, row, k).read()
            if saved is not None and saved.flags["rounds"] != spec.config.rounds:
                first, second = (runs[0].config.rounds for runs in stages)
                raise UserError(
                    f"--rounds: expected the same as before for {row}, whose second stage starts "
                    f"from the first, found {first} and {second} for its stages, and "
                    f"{saved.flags['rounds']} in {saved.folder.path}"
                )


def _remark(first: RunSpec, second: RunSpec, layer: LastLayer) -> str:
    what = f"the layer {layer.name} alone" if layer.others else f"{layer.name}, the only layer"
    return (
        f"{counted(first.config.rounds, 'round')} of FedAvg, and from its model "
        f"{counted(second.config.rounds, 'round')} of {what}, in which all domains weigh alike"
    )
