"""Training of the rows of a comparison: each row's trials, and their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Callable, Optional

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import write_json
from tff_agnostic.metrics.evaluation_report import statistic_names
from tff_agnostic.models.model import measures_of
from tff_agnostic.program.progress import LongWork
from tff_agnostic.program.runs.folder import RunFolder
from tff_agnostic.program.runs.spec import RunSettings
from tff_agnostic.program.studies.comparison import (
    COMPARISON_FILE,
    LABELS,
    REMARKS,
    Comparison,
    collect,
    trial_name,
)
from tff_agnostic.program.studies.runset import Job, RunSet
from tff_agnostic.program.studies.stages import Stages, stage_jobs, stage_remarks
from tff_agnostic.tasks.task import Task

Jobs = Mapping[str, Sequence[Job[RunSettings]]]


def train_rows(
    runs: RunSet[RunSettings],
    load_task: Callable[[RunSettings], Task],
    specs: Mapping[str, Sequence[RunSettings]],
    stages: Mapping[str, Stages],
    labels: Mapping[str, str],
    command: str,
    show_progress: bool,
    check_time: Optional[Callable[[float, int], None]] = None,
) -> Comparison:
    """Makes the missing trials, and returns the rows whose trials all have results.

    Args:
        specs: The trials of each row, by its name.
        stages: The stages of rows with two; see `stages.staged`.
        labels: See `Comparison`.
        command: Name of the command, for its progress.
        check_time: Called with the seconds of the first missing trial and the number of the others.

    Raises:
        Interrupted: If a signal asked to stop; finished rounds are saved.
        UserError: If no row has a result.
    """
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
    missing = runs.open(every)
    done = len(every) - len(missing)
    with LongWork(command, len(every), "trials", done, visible=show_progress) as work:
        for row, text in remarks.items():
            work.note(f"note: {row}: {text}")
        if check_time is not None and missing:
            runs.make(missing[:1], work)
            check_time(runs.seconds(missing[0].name), len(missing) - 1)
        runs.make(every, work)
    reasons = {
        row: outcome.reason
        for row, trials in jobs.items()
        for job in trials
        if (outcome := runs.outcome(job)) is not None and outcome.reason is not None
    }
    for row, reason in reasons.items():
        print(f"note: {row} is excluded: {reason}")
    complete = {row: trials for row, trials in jobs.items() if row not in reasons}
    if not complete:
        raise UserError(next(iter(reasons.values())))
    write_json(runs.folder / COMPARISON_FILE, {LABELS: dict(labels), REMARKS: remarks})
    return results(runs, complete, load_task, labels, remarks)


def results(
    runs: RunSet[RunSettings],
    jobs: Jobs,
    load_task: Callable[[RunSettings], Task],
    labels: Mapping[str, str],
    remarks: Mapping[str, str],
) -> Comparison:
    """Returns the results of complete trials.

    Args:
        jobs: The trials of each row, by its name.
        labels: See `Comparison`.
        remarks: See `Comparison`.
    """
    task = load_task(next(iter(jobs.values()))[0].settings)
    measures = measures_of(task.model)
    fewest = {row: [j.settings.config.worst_min_examples for j in of] for row, of in jobs.items()}
    trials = {
        row: collect(
            [RunFolder(Path(runs.run_folder(job))) for job in of],
            task.domain_names,
            measures,
            fewest[row],
            statistic_names(of[0].settings.config.client_percentiles),
        )
        for row, of in jobs.items()
    }
    return Comparison(
        task.domain_names,
        measures,
        trials,
        labels,
        task.test_split,
        max(max(counts) for counts in fewest.values()),
        remarks,
    )
