"""What an exchange with its aggregation has in common with others."""

import dataclasses

from tests.algorithms.cases import build
from tff_agnostic.computations import SecureSum
from tff_agnostic.computations.round import AggregatedExchange
from tff_agnostic.models import logistic_regression


def _key(exchange):
    return AggregatedExchange(exchange, SecureSum()).key


def test_work_is_shared_by_equal_clients_with_equal_bounds():
    model = logistic_regression(4, 3)
    (exchange,) = build("fed_avg", model=model).exchanges
    (again,) = build("fed_avg", model=model).exchanges
    assert _key(again) == _key(exchange)
    hash(_key(exchange))

    def wider(limits):
        bounds = exchange.bounds(limits)
        beta = dataclasses.replace(bounds.beta, limit=2 * bounds.beta.limit)
        return bounds._replace(beta=beta)

    # Secure sums would quantise by other steps.
    assert _key(dataclasses.replace(exchange, bounds=wider)) != _key(exchange)
