"""Simulations, plain and secure, and exported plans use the same examples of a client with many."""

from typing import Any

import numpy as np
import pytest

from plan_runner.export import open_export
from plan_runner.rounds import run_rounds as run_plan_rounds
from plan_runner.verify import conformance_clients
from tests.computations.harness import run_rounds
from tests.deployment.kinds import NUM_DOMAINS, make_request
from tests.selection import exhaustive, usually
from tff_agnostic.computations import PlainSum, SecureSum, SecureSumOptions
from tff_agnostic.data.clients import first_rows
from tff_agnostic.deployment.rounds import synthetic_clients
from tff_agnostic.run.export import DeviceSettings, export_request
from tff_agnostic.run.spec import resolve

_LIMIT = 5
_ROUNDS = 3
_SECURE = SecureSum(SecureSumOptions(max_examples=_LIMIT))
# Of the clients' 7, 3, 0 and 12 examples.
_USED = [5, 3, 0, 5]
_LEFT_OUT = 2 + 0 + 0 + 7


def _clients() -> list[Any]:
    """Those that exports have, whole."""
    request = make_request("daf")
    columns = request.algorithm.client_data_spec
    return list(synthetic_clients(columns, request.column_ranges, NUM_DOMAINS).values())


def _values(weights: Any, lambda_: Any, num_examples: Any) -> list[np.ndarray]:
    return [*map(np.asarray, weights), np.asarray(lambda_), np.asarray(num_examples)]


def _of_simulation(runtime: Any, aggregation: Any, clients: list[Any]) -> list[np.ndarray]:
    training = runtime.training(make_request("daf").algorithm, aggregation)
    state, reports = run_rounds(training, [clients] * _ROUNDS)
    counts = reports[-1]["client_work"]["train"]["num_examples"]
    return _values(state.algorithm.weights.trainable, state.algorithm.domains.lambda_, counts)


def _of_plan(folder: Any) -> list[np.ndarray]:
    export = open_export(folder)
    *_, result = run_plan_rounds(export, [conformance_clients(export)] * _ROUNDS)
    server = "server/algorithm"
    weights = [result.state[f"{server}/weights/trainable/{i}"] for i in range(2)]
    counts = result.metrics["metrics/client_work/train/num_examples"]
    return _values(weights, result.state[f"{server}/domains/lambda_"], counts)


@pytest.fixture(scope="module")
def expected(cohort_runtime) -> list[np.ndarray]:
    return _of_simulation(cohort_runtime, PlainSum(), [first_rows(c, _LIMIT) for c in _clients()])


def _assert_the_same(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    assert found[-1].sum() == sum(_USED)
    for value, wanted in zip(found, expected):
        np.testing.assert_allclose(value, wanted, rtol=1e-4, atol=1e-6)


def test_a_plain_plan_is_the_plain_simulation(exported, expected):
    _assert_the_same(_of_plan(exported("daf", max_examples=_LIMIT)), expected)


def test_a_secure_simulation_is_the_plain_one_on_first_examples(cohort_runtime, expected):
    _assert_the_same(_of_simulation(cohort_runtime, _SECURE, _clients()), expected)


# What a device reads may be limited, or all of it; the client's graph has the limit of the sums.
@pytest.mark.parametrize("read", usually([8], [None, 8]))
def test_a_secure_plan_is_the_secure_simulation(exported, expected, read):
    folder = exported("secure", aggregation=_SECURE, max_examples=read)
    _assert_the_same(_of_plan(folder), expected)


@exhaustive
def test_a_secure_plan_says_how_many_examples_it_left_out(exported):
    folder = exported("secure", aggregation=_SECURE, max_examples=None)
    export = open_export(folder)
    (result,) = run_plan_rounds(export, [conformance_clients(export)])
    assert result.metrics["metrics/aggregator/clipped/examples"] == _LEFT_OUT


def test_without_a_limit_the_state_is_another(cohort_runtime, expected):
    """Otherwise all of the above would prove nothing."""
    found = _of_simulation(cohort_runtime, PlainSum(), _clients())
    assert not np.allclose(found[0], expected[0], rtol=1e-3)


@pytest.mark.parametrize(
    ("profile", "settings", "max_examples"),
    [
        ("daf", {}, None),
        ("daf", {"max_examples": 8}, 8),
        ("secure", {"secure_max_examples": 5}, 5),
        ("secure", {"secure_max_examples": 5, "max_examples": 8}, 5),
        ("secure", {"secure_max_examples": 9, "max_examples": 8}, 8),
    ],
)
def test_a_device_reads_no_more_than_a_run_would_use(profile, settings, max_examples):
    aggregation = {"daf": "plain", "secure": "secure"}[profile]
    spec = resolve("toy_regression", {"aggregation": aggregation, **settings}, {"num_clients": 6})
    request = export_request(spec, spec.load_task(), profile, DeviceSettings())
    assert request.max_examples == max_examples
