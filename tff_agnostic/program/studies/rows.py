"""Training of the methods of a comparison: each method's trials, and their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tff_agnostic.base.errors import UserError
from tff_agnostic.program.progress import LongWork
from tff_agnostic.program.runs.spec import RunSettings
from tff_agnostic.program.studies.comparison import Comparison, read_trials, trial_name
from tff_agnostic.program.studies.runset import Job, RunSet
from tff_agnostic.program.studies.stages import Stages, stage_jobs, stage_remarks
from tff_agnostic.program.studies.trainer import RunTrainer


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
        trainer: Trains the runs.
        specs: The trials of each method, by its name.
        stages: The stages of methods with two; see `stages.staged`.
        labels: See `Comparison`.
        command: Name of the command, for its progress.

    Raises:
        Interrupted: If a signal asked to stop; finished rounds are saved.
        UserError: If no method has a result.
    """
    load_task = trainer.load_task
    # Data that cannot be read is refused before a run has a folder.
    load_task(next(iter(specs.values()))[0])
    remarks = stage_remarks(specs, stages, load_task)
    jobs = {
        row: stage_jobs(runs.folder, row, stages[row], load_task)
        if row in stages
        else [Job(trial_name(row, k), spec) for k, spec in enumerate(trials)]
        for row, trials in specs.items()
    }
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
