"""Rounds of exported plans equal the runtime's rounds."""

import itertools
from typing import Any

import numpy as np
import pytest

from plan_runner.errors import PlanError
from plan_runner.export import open_export, read_arrays
from plan_runner.kernel import kernel_problem
from plan_runner.rounds import conformance_clients, verify
from plan_runner.rounds import run_rounds as run_plan_rounds
from plan_runner.tflite import tflite_comparison
from tests.deployment import in_worker
from tests.deployment.kinds import (
    ALL_ALGORITHMS,
    COMBINATIONS,
    NUM_DOMAINS,
    USUAL_ALGORITHMS,
    make_request,
)
from tests.support.marks import usually
from tests.support.options import make_options
from tests.support.rounds import run_rounds
from tff_agnostic.base.options import hints
from tff_agnostic.computations import PlainSum, SecureSum, SecureSumOptions
from tff_agnostic.computations.server import ServerUpdate
from tff_agnostic.data.clients import first_rows
from tff_agnostic.deployment.profiles import PROFILES
from tff_agnostic.deployment.rounds import NUM_CLIENTS, NUM_ROUNDS, synthetic_clients
from tff_agnostic.program.options.flags import union_members
from tff_agnostic.program.runs.export import DeviceSettings, export_request
from tff_agnostic.program.runs.spec import resolve

_LIMIT = 5
_ROUNDS = 3
_SECURE = SecureSum(make_options(SecureSumOptions, limit_examples=_LIMIT))
# Numbers of examples that the clients use and skip; the clients have 7, 3, 0 and 12 examples.
_USED = [5, 3, 0, 5]
_SKIPPED = 2 + 0 + 0 + 7


def _clients() -> list[Any]:
    """Returns the examples of the conformance clients."""
    request = make_request("daf")
    columns = request.algorithm.client_data_spec
    return list(synthetic_clients(columns, request.column_ranges, NUM_DOMAINS).values())


def _values(weights: Any, lambda_: Any, num_examples: Any) -> list[np.ndarray]:
    return [*map(np.asarray, weights), np.asarray(lambda_), np.asarray(num_examples)]


def _executed(folder: Any) -> list[np.ndarray]:
    export = open_export(folder)
    *_, result = run_plan_rounds(export, [conformance_clients(export)] * _ROUNDS)
    server = "server/algorithm"
    weights = [result.state[f"{server}/weights/trainable/{i}"] for i in range(2)]
    counts = result.metrics["metrics/client_work/train/num_examples"]
    return _values(weights, result.state[f"{server}/memory/lambda_"], counts)


def _simulated(runtime: Any, aggregation: Any, clients: list[Any]) -> list[np.ndarray]:
    training = runtime.training(make_request("daf").algorithm, aggregation)
    state, reports = run_rounds(training, [clients] * _ROUNDS)
    counts = reports[-1]["client_work"]["train"]["num_examples"]
    return _values(state.algorithm.weights.trainable, state.algorithm.memory.lambda_, counts)


@pytest.fixture(scope="module")
def expected(cohort_runtime) -> list[np.ndarray]:
    return _simulated(cohort_runtime, PlainSum(), [first_rows(c, _LIMIT) for c in _clients()])


def _assert_equal(actual: list[np.ndarray], expected: list[np.ndarray]) -> None:
    assert actual[-1].sum() == sum(_USED)
    for value, expected_value in zip(actual, expected):
        np.testing.assert_allclose(value, expected_value, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_plain_plan_equals_simulation(exported, expected):
    _assert_equal(_executed(exported("daf", max_examples=_LIMIT)), expected)


@pytest.mark.nightly
def test_secure_simulation_equals_plain_simulation(cohort_runtime, expected):
    _assert_equal(_simulated(cohort_runtime, _SECURE, _clients()), expected)


# Examples are limited by max_examples and by the secure sums.
@pytest.mark.slow
@pytest.mark.parametrize("max_examples", usually([8], [None, 8]))
def test_secure_plan_equals_simulation(exported, expected, max_examples):
    folder = exported("secure", aggregation=_SECURE, max_examples=max_examples)
    _assert_equal(_executed(folder), expected)


@pytest.mark.nightly
def test_secure_plan_counts_skipped_examples(exported):
    folder = exported("secure", aggregation=_SECURE, max_examples=None)
    export = open_export(folder)
    (result,) = run_plan_rounds(export, [conformance_clients(export)])
    assert result.metrics["metrics/aggregator/clipped/examples"] == _SKIPPED


@pytest.mark.parametrize(
    ("profile", "settings", "max_examples"),
    [
        ("daf", {}, None),
        ("daf", {"max_examples": 8}, 8),
        ("secure", {"limit_examples": 5}, 5),
        ("secure", {"limit_examples": 5, "max_examples": 8}, 5),
        ("secure", {"limit_examples": 9, "max_examples": 8}, 8),
    ],
)
def test_exported_plan_limits_examples_like_a_run(profile, settings, max_examples):
    aggregation = {"daf": "plain", "secure": "secure"}[profile]
    spec = resolve("toy_regression", {"aggregation": aggregation, **settings}, {"num_clients": 6})
    request = export_request(spec, spec.load_task(), profile, DeviceSettings())
    assert request.max_examples == max_examples


def test_task_message_has_the_plans_minimum_separation():
    settings = {"privacy": "tree", "noise_multiplier": 1.0, "cohort_sampling": "turns"}
    settings = {**settings, "clients_per_round": 2, "limit_examples": 9, "limit_loss": 9.0}
    spec = resolve("toy_regression", settings, {"num_clients": 6})
    request = export_request(spec, spec.load_task(), "daf", DeviceSettings())
    info = request.task_message["task"]["info"]["trainingInfo"]
    assert info["eligibilityTaskInfo"]["eligibilityPolicies"][0]["minSepPolicy"] == {
        "minimumSeparation": "3"
    }


# --- Rounds in plain TensorFlow and in TFLite


_FALLING = [
    f"{name}:rounds=1"
    for name in union_members(hints(ServerUpdate)["schedule"])
    if name != "constant"
]
# Tolerance relative to a tensor's largest number: the kernels of Python's TensorFlow and of TFF's
# worker round differently, by an amount that depends on the processor.
_ROUNDING = 1e-5


def _assert_up_to_rounding(folder):
    """Verifies an export, with its TFLite graph if this TensorFlow has a Flex delegate."""
    export, comparison = open_export(folder), None
    try:
        comparison = tflite_comparison(export)
    except PlanError as e:
        assert kernel_problem() or "no Flex delegate" in str(e)
    checks = list(verify(export, comparison=comparison))
    assert len(checks) == NUM_ROUNDS
    for check in checks:
        assert check.tensors > 10
        assert all(difference <= _ROUNDING for difference in check.differing.values())
    if comparison is not None:
        assert comparison.clients == NUM_CLIENTS * NUM_ROUNDS
        assert comparison.largest <= _ROUNDING


@pytest.mark.nightly_cases("delta_fl-daf")
@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "profile"), usually(USUAL_ALGORITHMS, ALL_ALGORITHMS))
def test_plans_of_all_algorithms_equal_the_runtime(exported, algorithm, profile):
    _assert_up_to_rounding(exported(profile, algorithm=algorithm))


@pytest.mark.slow
@pytest.mark.parametrize("profile", usually(["daf"], PROFILES))
def test_plan_of_a_model_family_equals_the_runtime(exported, profile):
    how = {"algorithm": "delta_fl", "threshold": "tracked", "theta": (0.5, 1.0)}
    # test_plans_follow_learning_rate_schedules covers schedules without a model family.
    more = {"server_optimizer": "adam", "schedule": "exponential:rounds=1"}
    _assert_up_to_rounding(exported(profile, **how, **more))


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("algorithm", "schedule"), [*itertools.product(("agnostic_fed_avg", "q_ffl"), _FALLING)]
)
def test_plans_follow_learning_rate_schedules(exported, algorithm, schedule):
    folder = exported("daf", algorithm=algorithm, schedule=schedule)
    _assert_up_to_rounding(folder)
    constant = exported("daf", algorithm=algorithm)
    for name, is_same in (("round_1", True), ("round_2", False)):
        weights, expected = (
            read_arrays(f / f"conformance/{name}.npz")["server/algorithm/weights/trainable/0"]
            for f in (folder, constant)
        )
        assert np.allclose(weights, expected, rtol=1e-6) == is_same


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "profile"), usually([("logistic", "secure"), ("lstm", "daf")], COMBINATIONS)
)
def test_plans_equal_the_runtime_bitwise_in_its_worker(exported, kind, profile, monkeypatch):
    folder = exported(profile, kind=kind)
    in_worker.use(monkeypatch)
    assert [check.differing for check in verify(open_export(folder))] == [{}] * NUM_ROUNDS


# test_plans_of_all_algorithms_equal_the_runtime covers logistic regression.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "profile"),
    usually(
        [("convolutional", "daf"), ("lstm", "daf")],
        [one for one in COMBINATIONS if one[0] != "logistic"],
    ),
)
def test_plans_of_all_models_equal_the_runtime(exported, kind, profile):
    _assert_up_to_rounding(exported(profile, kind=kind))


@pytest.mark.slow
def test_conformance_rounds_change_the_state(exported):
    folder = exported("daf")
    rounds = [read_arrays(folder / f"conformance/round_{n}.npz") for n in (1, 2, 3)]
    for before, after in itertools.pairwise(rounds):
        for name in ("server/algorithm/weights/trainable/0", "server/algorithm/memory/lambda_"):
            assert not np.array_equal(before[name], after[name])


@pytest.mark.slow
def test_plan_uses_the_first_max_examples(exported):
    limited, unlimited = exported("daf", max_examples=5), exported("daf")
    _assert_up_to_rounding(limited)
    for name in ("conformance/clients/client_3.tfrecord", "server_state.ckpt"):
        assert (limited / name).read_bytes() == (unlimited / name).read_bytes()
    counts = [
        read_arrays(folder / "conformance/round_1.npz")["metrics/client_work/train/num_examples"]
        for folder in (limited, unlimited)
    ]
    # The clients have 7, 3, 0 and 12 examples.
    assert [count.sum() for count in counts] == [5 + 3 + 0 + 5, 7 + 3 + 0 + 12]
