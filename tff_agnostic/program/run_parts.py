"""What a run is made of: data, algorithm, sums, noise, rounds and evaluations, checked together."""

import dataclasses
from collections.abc import Sequence
from typing import Callable, Optional

from tff_agnostic.aggregations.aggregation import Aggregation
from tff_agnostic.computations.evaluation import evaluation_bounds
from tff_agnostic.computations.exchange import Algorithm, RunState
from tff_agnostic.data.remarks import Remark
from tff_agnostic.data.sampling import check_cohort_size
from tff_agnostic.program.data_remarks import data_remarks, share_kept_out
from tff_agnostic.program.evaluation.evaluator import (
    Evaluator,
    RunEvaluations,
    check_readable,
    prepared_evaluation,
)
from tff_agnostic.program.evaluation.ledger import ReleaseLedger
from tff_agnostic.program.private.run_privacy import RunPrivacy, run_privacy
from tff_agnostic.program.reporting.run_rows import RunRows
from tff_agnostic.program.specs.enough_clients import check_sizes_by_chance, check_test_clients
from tff_agnostic.program.specs.run_algorithm import MAX_READS, build_algorithm
from tff_agnostic.program.specs.run_folder import RunFolder
from tff_agnostic.program.specs.run_spec import RunSpec
from tff_agnostic.quantities import Quantities
from tff_agnostic.runtimes.runtime import Runtime, Training
from tff_agnostic.tasks.task import Task


@dataclasses.dataclass(frozen=True)
class RunParts:
    """What a run is made of.

    Attributes:
        task: The task, loaded.
        remarks: What is to be known of its data before the first round.
        algorithm: The algorithm.
        fingerprint: Of data, model and imports.
        privacy: Noise and account of a private run; None of others.
        summed: How clients' answers are summed, with noise if there is any.
        training: The rounds.
        initial: The state before the first one.
        quantities: Describes what rounds report, with what was spent on privacy.
        evaluations: Of its models, when they are due.
        rows: What metrics.csv holds.
    """

    task: Task
    remarks: Sequence[Remark]
    algorithm: Algorithm
    fingerprint: dict[str, str]
    privacy: Optional[RunPrivacy]
    summed: Aggregation
    training: Training
    initial: RunState
    quantities: Quantities
    evaluations: RunEvaluations
    rows: RunRows


def run_parts(
    spec: RunSpec,
    folder: RunFolder,
    runtime: Runtime,
    resume: bool,
    load_task: Callable[[RunSpec], Task],
) -> RunParts:
    """Builds what a run is made of.

    Args:
        spec: The run.
        folder: Where its files are.
        runtime: Executes the rounds; entered by the caller.
        resume: Whether it may go on with the run in `folder`.
        load_task: Returns the task of a run.

    Raises:
        UserError: If data, settings and runtime do not go together, or not with the run in the
            folder.
    """
    config = spec.config
    task = load_task(spec)
    check_cohort_size(len(task.train.client_ids), config.clients_per_round)
    check_readable(task.test, MAX_READS)
    remarks = data_remarks(task, config, share_kept_out(spec.algorithm))
    # What it started from may be gone by now.
    begun = folder.with_kept_model(spec)
    algorithm = build_algorithm(begun, task)
    fingerprint = begun.fingerprint(task)
    folder.check_fingerprint(fingerprint)
    aggregation = spec.build_aggregation()
    check_test_clients(task, aggregation)
    privacy = run_privacy(spec, task, algorithm)
    summed = aggregation
    if privacy is not None:
        summed = privacy.aggregation(aggregation)
        privacy.describe(algorithm, summed)
    check_sizes_by_chance(config, summed)
    runtime.check_clients_per_round(config.clients_per_round)
    if privacy is not None:
        privacy.check_execution(runtime.execution())
        folder.check_executed_alike(spec, runtime.execution())
    training = runtime.training(algorithm, summed)
    initial, quantities = training.initialize(), training.quantities
    if privacy is not None:
        quantities = privacy.account.quantities(quantities)
    return RunParts(
        task=task,
        remarks=remarks,
        algorithm=algorithm,
        fingerprint=fingerprint,
        privacy=privacy,
        summed=summed,
        training=training,
        initial=initial,
        quantities=quantities,
        evaluations=_evaluations(spec, folder, task, algorithm, aggregation, privacy, runtime),
        rows=RunRows(
            folder.metrics,
            task,
            quantities,
            tuple(algorithm.models(initial.algorithm)),
            _clipped(task, aggregation, privacy),
            config.client_percentiles,
        ),
    )


def _evaluations(
    spec: RunSpec,
    folder: RunFolder,
    task: Task,
    algorithm: Algorithm,
    aggregation: Aggregation,
    privacy: Optional[RunPrivacy],
    runtime: Runtime,
) -> RunEvaluations:
    config = spec.config
    noise = None if privacy is None else privacy.evaluation
    evaluator = Evaluator(
        task,
        prepared_evaluation(runtime, task, aggregation, noise),
        config.evaluation_clients,
        config.seed,
        config.worst_min_examples,
        algorithm.lambda_set,
        config.client_percentiles,
        noise,
    )
    ledger = None if noise is None else ReleaseLedger(folder.releases)
    return RunEvaluations(algorithm, evaluator, config.evaluate_every, config.rounds, ledger)


def _clipped(task: Task, aggregation: Aggregation, privacy: Optional[RunPrivacy]) -> Quantities:
    """Returns what evaluations report of clipped values."""
    if privacy is not None and privacy.evaluation is not None:
        # What private evaluations clip stays with the clients.
        return {}
    bounds = evaluation_bounds(task.model, aggregation.limits)
    return aggregation.quantities(bounds).get("clipped", {})
