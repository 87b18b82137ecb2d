"""Rounds with examples kept out are the same however clients and sums are run."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.algorithms.cases import NUM_DOMAINS, build
from tests.computations.harness import (
    EagerTraining,
    assert_all_close,
    assert_identical,
    random_client,
    run_rounds,
)
from tests.computations.kept_out_split import SHARE
from tests.selection import exhaustive, usually
from tff_agnostic.computations import PlainSum, SecureSum, SecureSumOptions
from tff_agnostic.computations.domain_losses import HoldoutOptions
from tff_agnostic.runtimes import CohortRuntime
from tff_agnostic.runtimes.options import RuntimeOptions

_ALGORITHMS = ("agnostic_fed_avg", "delta_fl", "q_ffl", "stochastic_afl", "term")


def _everywhere(name: str) -> Any:
    return build(name, domain_loss_share=SHARE, shuffle=True)


_EVERYWHERE = [
    [random_client(np.random.default_rng(20 + k), n, range(NUM_DOMAINS)) for n in sizes]
    for k, sizes in enumerate([(9, 0, 1, 14, 6), (2, 1, 11), ()])
]


@pytest.fixture(scope="module")
def streamed_rounds() -> dict[str, Any]:
    """Rounds of each algorithm whose clients run one by one."""
    with CohortRuntime(RuntimeOptions(client_mode="streamed")) as runtime:
        return {
            name: run_rounds(runtime.training(_everywhere(name), PlainSum()), _EVERYWHERE)
            for name in _ALGORITHMS
        }


def _assert_same(found: Any, expected: Any, rtol: float = 1e-4) -> None:
    assert_all_close(found[0].algorithm, expected[0].algorithm, rtol=rtol, atol=1e-5)
    for report, expected_report in zip(found[1], expected[1]):
        for key in ("client_work", "domain_weights", "clients"):
            found_part, expected_part = report.get(key, {}), expected_report.get(key, {})
            assert_all_close(found_part, expected_part, rtol=rtol, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "group"),
    usually(
        [("delta_fl", 2)],
        [
            ("agnostic_fed_avg", 2),
            ("delta_fl", 2),
            ("q_ffl", 5),
            ("stochastic_afl", 2),
            ("term", 5),
        ],
    ),
)
def test_vectorised_clients_do_the_same(streamed_rounds, name, group):
    options = RuntimeOptions(client_mode="vectorised", max_clients_in_step=group)
    with CohortRuntime(options) as runtime:
        found = run_rounds(runtime.training(_everywhere(name), PlainSum()), _EVERYWHERE)
    _assert_same(found, streamed_rounds[name])


@exhaustive
def test_xla_does_the_same(cohort_runtime):
    cohorts = [[_EVERYWHERE[0][k] for k in (0, 2)]] * 2
    with CohortRuntime(RuntimeOptions(client_mode="streamed", xla=True)) as runtime:
        found, expected = (
            run_rounds(running.training(_everywhere("agnostic_fed_avg"), PlainSum()), cohorts)
            for running in (runtime, cohort_runtime)
        )
    _assert_same(found, expected)


def test_tff_does_the_same(tff_runtime, streamed_rounds):
    training = tff_runtime.training(_everywhere("agnostic_fed_avg"), PlainSum())
    _assert_same(run_rounds(training, _EVERYWHERE), streamed_rounds["agnostic_fed_avg"])


def test_secure_sums_carry_both_counts(streaming_runtime, streamed_rounds):
    name = "agnostic_fed_avg"
    aggregation = SecureSum(SecureSumOptions(max_examples=20, max_delta=20.0, bits=40))
    training = streaming_runtime.training(_everywhere(name), aggregation)
    found = run_rounds(training, _EVERYWHERE)
    _assert_same(found, streamed_rounds[name])
    counts = found[1][0]["client_work"]["train"]
    for key in ("num_kept_out", "num_examples"):
        assert sum(counts[key]) > 0
    assert sum(counts["num_kept_out"]) + sum(counts["num_examples"]) == 30
    for report in found[1]:
        assert not any(report["aggregator"]["clipped"].values())


def test_a_run_that_goes_on_has_the_same_split(streaming_runtime):
    cohorts = _EVERYWHERE[:2] * 2
    training = streaming_runtime.training(_everywhere("agnostic_fed_avg"), PlainSum())
    expected, reports = run_rounds(training, cohorts)
    counts = [report["client_work"]["train"]["num_kept_out"] for report in reports]
    # In every round a client is split as in the others.
    np.testing.assert_array_equal(counts[:2], counts[2:])
    halfway, _ = run_rounds(training, cohorts[:2])
    again = streaming_runtime.training(_everywhere("agnostic_fed_avg"), PlainSum())
    assert_identical(run_rounds(again, cohorts[2:], halfway)[0], expected)


def test_without_a_share_nothing_more_is_sent_or_reported(streaming_runtime):
    plain, apart = (
        streaming_runtime.training(build("agnostic_fed_avg", domain_loss_share=share), PlainSum())
        for share in (0.0, SHARE)
    )
    names = [set(t.quantities["client_work"]["train"]) for t in (plain, apart)]
    assert names[1] - names[0] == {"num_kept_out"}
    algorithm = build("agnostic_fed_avg")
    training = EagerTraining(algorithm)
    output = training.client_output(training.initialize(), _EVERYWHERE[0][0])
    assert tf.nest.flatten(output.trained_counts) == []
    assert dataclasses.asdict(HoldoutOptions()) == {"domain_loss_share": 0.0}
