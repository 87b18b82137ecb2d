"""Private training of a run: its cohorts, its planned evaluations, and remarks on its privacy."""

from __future__ import annotations

from typing import Optional

from tff_agnostic.aggregations.private_sum import BudgetEvaluation, DistributedOptions
from tff_agnostic.aggregations.registry import PRIVACIES
from tff_agnostic.base.errors import UserError
from tff_agnostic.computations.algorithm import Algorithm
from tff_agnostic.privacy.sampling import NoisyCohorts, SecretParticipation, noisy_cohorts
from tff_agnostic.program.options.flag_table import flags_in_errors
from tff_agnostic.program.runs.evaluation import Evaluations, num_evaluations
from tff_agnostic.program.runs.spec import RunSettings
from tff_agnostic.tasks.task import Task
from tff_agnostic.training.private import PrivateTraining
from tff_agnostic.training.private_cohorts import CohortPlan

_START_REMARK = (
    "what {flag} names is taken for public: if it was made of these clients' data, it is a release "
    "of its own"
)
_INPUT_REMARK = (
    "{what} of the inputs, which models and their cards carry, are made of the training clients: "
    "they are exact, and no part of epsilon"
)


def private_training(
    spec: RunSettings, task: Task, algorithm: Algorithm
) -> Optional[PrivateTraining]:
    """Returns the private training of a run; None if it is not private."""
    config = spec.config
    if PRIVACIES[config.privacy].build is None:
        return None
    if isinstance(spec.privacy, DistributedOptions):
        _check_participation(spec)
    with flags_in_errors(config, spec.privacy):
        return PrivateTraining(
            config.privacy,
            spec.privacy,
            spec.build_aggregation(),
            algorithm,
            cohort_plan(spec, task),
            task=task,
            evaluations=num_evaluations(config.rounds, config.evaluate_every),
            remarks=[
                *(_START_REMARK.format(flag=flag) for flag in _start_flags(spec)),
                *(_INPUT_REMARK.format(what=what) for what in _released_statistics(task)),
            ],
        )


def cohort_plan(spec: RunSettings, task: Task) -> CohortPlan:
    """Returns the clients of a private run, with the sampling of its cohorts."""
    config = spec.config
    return CohortPlan(
        task.train,
        task.num_domains,
        config.rounds,
        config.clients_per_round,
        config.cohort_sampling,
        config.seed,
    )


def run_noisy_cohorts(spec: RunSettings, task: Task) -> NoisyCohorts:
    """Returns the clients that add noise in a run with distributed privacy."""
    options = spec.privacy
    assert isinstance(options, DistributedOptions)
    _check_participation(spec)
    with flags_in_errors(spec.config, options):
        sampling = cohort_plan(spec, task).random_sampling(spec.config.privacy)
        min_clients = spec.build_aggregation().min_clients
        return noisy_cohorts(sampling, options.participation, min_clients)


def check_plan(
    private: PrivateTraining,
    spec: RunSettings,
    earlier: Optional[tuple[int, int]],
    completed: int,
    evaluations: Evaluations,
) -> None:
    """Checks that a resumed run plans the evaluations for which its noise was computed.

    Args:
        earlier: Numbers of rounds, and of rounds between evaluations, that the resumed run had
            before; None for a new run.
    """
    has_budget = private.evaluation is not None and isinstance(
        getattr(spec.privacy, "private_evaluation", None), BudgetEvaluation
    )
    if earlier is None or not has_budget:
        return
    last, every = spec.config.rounds, spec.config.evaluate_every
    wanted = num_evaluations(*earlier)
    expected = (
        f"--private_evaluation: expected {wanted} evaluations, for which the noise of the "
        "run's budget was computed, found "
    )
    if num_evaluations(last, every) != wanted:
        raise UserError(
            f"{expected}{num_evaluations(last, every)}: keep the run's --rounds and "
            "--evaluate_every; a run that gets more rounds later needs "
            "--private_evaluation=noise:multiplier=.. from its start"
        )
    assert evaluations.ledger is not None
    planned = ((t, evaluations.evaluated(t)) for t in range(completed + 1, last + 1))
    releases = evaluations.ledger.evaluations() | {(t, digest) for t, digest in planned if digest}
    if len(releases) > wanted:
        raise UserError(
            f"{expected}{len(releases)}, including evaluations made earlier: resume with the "
            "earlier --evaluate_every and --evaluation_clients of the run"
        )


def _check_participation(spec: RunSettings) -> None:
    is_secret = isinstance(spec.privacy.participation, SecretParticipation)
    if is_secret and "participation" in spec.given and spec.config.cohort_sampling != "poisson":
        raise UserError(
            "--participation: expected public with "
            f"--cohort_sampling={spec.config.cohort_sampling}, whose rounds have a public "
            "number of clients, found secret"
        )


def _start_flags(spec: RunSettings) -> list[str]:
    """Returns the flags that name initial models."""
    values = {
        "--initial_model": spec.config.initial_model,
        "--base_predictors": getattr(spec.algorithm, "base_predictors", None),
    }
    return [flag for flag, value in values.items() if value]


def _released_statistics(task: Task) -> list[str]:
    """Returns one text on the clients' statistics in models; no text without such statistics."""
    inputs = task.inputs
    are_released = {
        "means and deviations": inputs is not None
        and any(entry.statistics is not None for entry in inputs.vector_entries()),
        "categories": inputs is not None and bool(inputs.categories()),
        "words": task.words is not None,
    }
    names = [name for name, is_released in are_released.items() if is_released]
    return [", ".join(names)] if names else []
