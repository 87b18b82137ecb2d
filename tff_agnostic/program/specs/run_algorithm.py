"""The algorithm of a run, and the mixtures that it has in view."""

from typing import Optional

import numpy as np

from tff_agnostic.algorithms.spec import Problem
from tff_agnostic.algorithms.user_algorithm import algorithm_named
from tff_agnostic.computations.exchange import Algorithm
from tff_agnostic.data.clients import domain_counts
from tff_agnostic.lambda_sets import LambdaSet
from tff_agnostic.lambda_sets.options import LambdaSetOptions
from tff_agnostic.program.specs.initial_model import model_to_start_from
from tff_agnostic.program.specs.run_spec import RunSpec
from tff_agnostic.tasks.task import Task

# How many clients are read before the first round, if what they hold is not known otherwise.
MAX_READS = 2000


def build_algorithm(spec: RunSpec, task: Task) -> Algorithm:
    """Returns the algorithm of a run, for its task.

    Raises:
        UserError: If the settings do not fit the task.
    """
    problem = Problem(
        model=model_to_start_from(spec.config.initial_model, task.model, spec.config.trust),
        domain_names=task.domain_names,
        seed=spec.config.seed,
        expected_counts=_expected_counts(task, spec.config.clients_per_round),
    )
    return algorithm_named(spec.config.algorithm).build(problem, spec.algorithm)


def build_lambda_set(spec: RunSpec, task: Task) -> Optional[LambdaSet]:
    """Returns the mixtures of which a run minimises the worst; None if it is one of all mixtures.

    The centre of a ball is the training mixture of `task`.

    Raises:
        UserError: If the settings do not fit the task.
    """
    options = spec.algorithm
    if not isinstance(options, LambdaSetOptions) or options.lambda_set == "simplex":
        # Of all mixtures the worst is the worst domain, whatever the domains are.
        return None
    expected_counts = np.asarray(_expected_counts(task, spec.config.clients_per_round))
    return options.build_lambda_set(task.domain_names, expected_counts / expected_counts.sum())


def training_examples(task: Task) -> np.ndarray:
    """Returns the number of training examples of each domain, [p]; estimated for many clients."""
    return domain_counts(task.train, task.num_domains, MAX_READS)


def _expected_counts(task: Task, clients_per_round: int) -> tuple[float, ...]:
    totals = training_examples(task)
    expected = totals * (clients_per_round / len(task.train.client_ids))
    # A domain that no training client has never meets its count; any positive number will do.
    return tuple(float(count) for count in np.where(totals > 0, expected, 1.0))
