"""What a step with its aggregation has in common with others."""

import dataclasses

from tests.algorithms.cases import build
from tff_agnostic.computations import SecureSum
from tff_agnostic.computations.round import RoundStep
from tff_agnostic.models import logistic_regression


def _key(step):
    return RoundStep(step, SecureSum()).key


def test_work_is_shared_by_equal_clients_with_equal_bounds():
    model = logistic_regression(4, 3)
    (step,) = build("fed_avg", model=model).steps
    (again,) = build("fed_avg", model=model).steps
    assert _key(again) == _key(step)
    hash(_key(step))

    def wider(limits):
        bounds = step.bounds(limits)
        beta = dataclasses.replace(bounds.beta, limit=2 * bounds.beta.limit)
        return bounds._replace(beta=beta)

    # Secure sums would quantise by other steps.
    assert _key(dataclasses.replace(step, bounds=wider)) != _key(step)
