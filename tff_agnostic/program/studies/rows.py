"""Trains the methods of a comparison, some of them in two stages.

The first stage is FedAvg; the second stage retrains its last layer with equal domain weights: Kang
et al. 2020, "Decoupling Representation and Classifier for Long-Tailed Recognition", section 4
(cRT), and Kirichenko et al. 2023, "Last Layer Re-Training is Sufficient for Robustness to Spurious
Correlations". The stages divide the method's rounds, so that all methods have equal budgets.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable

from tff_agnostic.base.errors import UserError, counted
from tff_agnostic.models.keras import LastLayer, last_layer
from tff_agnostic.program.commands.command_line import RunArguments
from tff_agnostic.program.progress import LongWork
from tff_agnostic.program.runs.options import resolve_initial_model
from tff_agnostic.program.runs.spec import RunSettings
from tff_agnostic.program.studies.comparison import (
    BASELINE,
    FIRST_STAGES,
    Comparison,
    read_trials,
    trial_folder,
    trial_name,
)
from tff_agnostic.program.studies.methods import LAST_LAYER, Arm
from tff_agnostic.program.studies.runset import Job, RunSet
from tff_agnostic.program.studies.trainer import RunTrainer
from tff_agnostic.tasks.task import Task

_MIN_ROUNDS = 2
_POOLED = (
    "no federated training: minibatch SGD on the examples of all clients in one place, with as "
    "many in a round as a round of the other rows has on average"
)
# Settings of both stages of each trial. The second stage does not name the first one's model yet.
Stages = Sequence[tuple[RunSettings, RunSettings]]


def train_rows(
    runs: RunSet[RunSettings],
    trainer: RunTrainer,
    specs: Mapping[str, Sequence[RunSettings]],
    stages: Mapping[str, Stages],
    labels: Mapping[str, str],
    command: str,
    show_progress: bool,
) -> Comparison:
    """Makes the missing trials, and returns the methods whose trials all have results.

    Args:
        stages: Settings of both stages of each two-stage method; see `staged`.
        command: Name of the command, for its progress.

    Raises:
        Interrupted: If a signal asked to stop; finished rounds are saved.
        UserError: If no method has a result.
    """
    load_task = trainer.load_task
    # Reject unreadable data before a run has a folder.
    load_task(next(iter(specs.values()))[0])
    remarks = {row: _POOLED for row, (run, *_) in specs.items() if run.config.pooled}
    jobs = {
        row: [Job(trial_name(row, k), spec) for k, spec in enumerate(trials)]
        for row, trials in specs.items()
    }
    for row, pairs in stages.items():
        _check_same_rounds(runs.folder, row, pairs)
        jobs[row] = [stage_job(trial_name(row, k), *p, load_task) for k, p in enumerate(pairs)]
        remarks[row] = _remark(*pairs[0], last_layer(load_task(pairs[0][0]).model))
    every = [job for trials in jobs.values() for job in trials]
    done = len(every) - len(runs.open(every))
    with LongWork(command, len(every), "trials", done, visible=show_progress) as work:
        for row, text in remarks.items():
            work.note(f"note: {row}: {text}")
        runs.make(every, work)
    reasons = {
        row: outcome.reason
        for row, trials in jobs.items()
        for job in trials
        if (outcome := runs.outcome(job)) is not None and outcome.reason is not None
    }
    for row, reason in reasons.items():
        print(f"note: {row} is excluded: {reason}")
    names = {r: [job.name for job in trials] for r, trials in jobs.items() if r not in reasons}
    if not names:
        raise UserError(next(iter(reasons.values())))
    return read_trials(runs.folder, names, labels, remarks)


def staged(
    given: RunArguments, arms: Mapping[str, Arm], specs: Mapping[str, Sequence[RunSettings]]
) -> dict[str, Stages]:
    """Returns the settings of both stages of each two-stage method.

    The first stage has the settings of the first method that is FedAvg, or otherwise the settings
    that all methods share.
    """
    plain = next((specs[row] for row, arm in arms.items() if _is_plain(arm)), None)
    stages: dict[str, Stages] = {}
    for row in (row for row, arm in arms.items() if arm.word == LAST_LAYER):
        first = plain or [
            given.resolved_spec({"algorithm": BASELINE, "seed": spec.config.seed})
            for spec in specs[row]
        ]
        stages[row] = [split_into_stages(*pair) for pair in zip(first, specs[row])]
    return stages


def _is_plain(arm: Arm) -> bool:
    is_federated = not arm.settings.get("pooled")
    return not arm.word and arm.settings["algorithm"] == BASELINE and is_federated


def split_into_stages(first: RunSettings, whole: RunSettings) -> tuple[RunSettings, RunSettings]:
    """Divides the rounds of a run between two stages; an odd round belongs to the first stage.

    Args:
        first: Settings of the first stage, with any number of rounds.
        whole: Settings of the second stage, with the number of rounds of both stages together.
    """
    rounds = whole.config.rounds
    if rounds < _MIN_ROUNDS:
        raise UserError(
            f"--rounds: expected at least {_MIN_ROUNDS} for {LAST_LAYER}, which has two stages, "
            f"found {rounds}"
        )
    if whole.config.privacy != "none":
        raise UserError(
            f"--arms: expected rows with one stage with --privacy={whole.config.privacy}, as the "
            f"privacy account covers one run, found {LAST_LAYER}"
        )
    second = rounds // 2
    return _with(first, rounds=rounds - second), _with(whole, rounds=second)


def _with(spec: RunSettings, **changes: Any) -> RunSettings:
    return dataclasses.replace(spec, config=dataclasses.replace(spec.config, **changes))


def _check_same_rounds(folder: Path, row: str, pairs: Stages) -> None:
    """Checks that both stages have as many rounds as in the runs that exist already."""
    for k, (first, second) in enumerate(pairs):
        for spec, name in ((first, f"{FIRST_STAGES}/{row}"), (second, row)):
            run_folder = trial_folder(folder, name, k)
            saved = run_folder.read()
            if saved is not None and saved.flags["rounds"] != spec.config.rounds:
                raise UserError(
                    f"--rounds: expected as many as before for {row}, whose second stage starts "
                    f"from the first, found {first.config.rounds} and {second.config.rounds} for "
                    f"its stages, and {saved.flags['rounds']} in {run_folder.path}"
                )


def stage_job(
    name: str, first: RunSettings, second: RunSettings, load_task: Callable[[RunSettings], Task]
) -> Job[RunSettings]:
    """Returns the job of the second stage, which runs after the job of the first stage."""

    def with_first_model(spec: RunSettings, path: Path) -> RunSettings:
        frozen = (*spec.config.frozen_layers, *last_layer(load_task(first).model).others)
        return _with(spec, initial_model=resolve_initial_model(path), frozen_layers=frozen)

    return Job(name, second, Job(f"{FIRST_STAGES}/{name}", first), with_first_model)


def _remark(first: RunSettings, second: RunSettings, layer: LastLayer) -> str:
    what = f"the layer {layer.name} alone" if layer.others else f"{layer.name}, the only layer"
    return (
        f"{counted(first.config.rounds, 'round')} of FedAvg, and from its model "
        f"{counted(second.config.rounds, 'round')} of {what}, in which all domains weigh alike"
    )
