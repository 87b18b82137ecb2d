"""Properties of every registered algorithm, and properties that its traits declare.

These tests cover a new algorithm as soon as it is registered.
"""

import functools
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support import two_steps
from tests.support.algorithms import CASES, build
from tests.support.clients import (
    NUM_DOMAINS,
    cohort,
    cohorts,
    empty_client,
    make_client,
    random_client,
    spoiled_client,
)
from tests.support.comparing import assert_all_close, assert_identical
from tests.support.options import make_options
from tests.support.rounds import run_rounds
from tff_agnostic.aggregations.aggregation import ClientLimits
from tff_agnostic.algorithms import Trait
from tff_agnostic.base.errors import UserError
from tff_agnostic.base.report_fields import flattened, paired
from tff_agnostic.boosting.alpha import EnsembleOptions
from tff_agnostic.computations import PlainSum, SecureSum, SecureSumOptions
from tff_agnostic.models.model import ModelWeights

# Rounds of these algorithms are nearly rounds of FedAvg, AgnosticFedAvg or FedBoost.
_SIMILAR = ("fed_avg_sub", "fed_avg_target_only", "fed_prox", "afl_boost")


def _parameters(names: Iterable[str]) -> list[Any]:
    return [pytest.param(n, marks=pytest.mark.slow if n in _SIMILAR else ()) for n in names]


@pytest.fixture(params=_parameters(CASES))
def name(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def trainings(streaming_runtime):
    """A cached builder of trainings in one runtime; `test_combinations.py` tests other runtimes."""

    def training(name: str, **settings: Any) -> Any:
        return streaming_runtime.training(build(name, **settings), PlainSum())

    return functools.lru_cache(maxsize=None)(training)


@pytest.fixture
def training(trainings, name):
    return trainings(name)


def _with_trait(trait: Trait) -> list[Any]:
    return _parameters(name for name, spec in CASES.items() if trait in spec.traits)


def _started(training) -> Any:
    """Returns the state after two rounds; all its parts differ from the initial state's."""
    return run_rounds(training, cohorts(2))[0]


def _main_model(name: str, state: Any) -> Any:
    return build(name).main_model(state.algorithm)


def _assert_finite(structure) -> None:
    for value in tf.nest.flatten(structure):
        assert np.all(np.isfinite(value))


def test_algorithm_has_its_registered_name(name):
    assert build(name).name == name


@pytest.mark.nightly_cases(but=["fed_avg", "fed_avg_target_only"])
def test_report_describes_values_and_counts_clients(training):
    other_domain = random_client(np.random.default_rng(8), 5, [0])
    clients = [*cohort(8), other_domain, empty_client(), spoiled_client(np.nan)]
    _, report = training.next(training.initialize(), clients)
    assert sum(report["clients"].values()) == len(clients)
    described = list(paired(training.quantities, report))
    assert len({quantity.name for quantity, _ in described}) == len(described)
    for quantity, value in described:
        assert np.shape(value) == ((NUM_DOMAINS,) if quantity.per_domain else ())


def test_arrays_and_tensors_give_equal_models(training, name):
    state, algorithm = _started(training), build(name)
    as_tensors = tf.nest.map_structure(tf.convert_to_tensor, state.algorithm)
    assert_all_close(dict(algorithm.models(as_tensors)), dict(algorithm.models(state.algorithm)))


def test_client_order_keeps_the_state(training):
    state, clients = _started(training), cohort(3)
    forwards = training.next(state, clients)
    assert_all_close(training.next(state, clients[::-1]), forwards)


def test_empty_cohort_keeps_the_models(training, name):
    state = _started(training)
    first, started = (_main_model(name, s).trainable[0] for s in (training.initialize(), state))
    assert not np.allclose(first, started)
    next_state, report = training.next(state, [])
    assert next_state.round_num == state.round_num + 1
    assert_identical(_main_model(name, next_state), _main_model(name, state))
    _assert_finite((next_state, report))
    assert sum(report["clients"].values()) == 0


def test_clients_without_examples_are_only_counted(training):
    state, clients = _started(training), cohort(6)
    expected, _ = training.next(state, clients)
    next_state, report = training.next(state, [clients[0], empty_client(), *clients[1:]])
    assert_all_close(next_state, expected, rtol=1e-6)
    assert report["clients"]["empty"] == 1
    assert report["clients"]["non_finite"] == 0


def test_non_finite_sums_skip_the_round(training, name):
    """Each client's output is finite, but the sum of all outputs overflows."""
    algorithm = build(name)
    state, _ = run_rounds(training, cohorts(2))
    if not issubclass(CASES[name].options, EnsembleOptions):
        # With these weights, the inputs' size changes gradients but not losses.
        weights = ModelWeights([np.zeros([4, 3], np.float32), np.array([0, 1, 0], np.float32)], [])
        state = state._replace(algorithm=algorithm.with_weights(state.algorithm, weights))
    far_out = make_client(np.full([1, 4], 3e38, np.float32), [1], [2])
    near = make_client(np.zeros([1, 4]), [1], [1])
    next_state, report = training.next(state, [*[far_out] * 30, *[near] * 30])
    is_skipped = report["clients"]["non_finite"] == 0
    assert report["skipped"] == is_skipped
    _assert_finite((next_state, report))
    if name == two_steps.NAME:
        # All losses are equal, so rounding decides which clients are above the mean.
        return
    expected, _ = training.next(state, [] if is_skipped else [near] * 30)
    assert_all_close(next_state, expected)
    after, report = training.next(next_state, cohort(3))
    assert report["skipped"] == 0
    assert not np.array_equal(*(_main_model(name, s).trainable[0] for s in (after, state)))


def test_non_finite_clients_are_only_counted(training):
    state, clients = _started(training), cohort(7)
    expected, expected_report = training.next(state, clients)
    for value in (np.nan, np.inf):
        next_state, report = training.next(state, [*clients, spoiled_client(value)])
        assert_all_close(next_state, expected, rtol=1e-6)
        assert_all_close(report["client_work"], expected_report["client_work"], rtol=1e-6)
        assert report["clients"]["non_finite"] == 1
        assert report["clients"]["contributed"] == expected_report["clients"]["contributed"]


def test_long_absent_domains_keep_rounds_finite(training):
    rng = np.random.default_rng(9)
    state = training.initialize()
    for _ in range(30):
        state, report = training.next(state, [random_client(rng, 6, [1])])
    _assert_finite((state, report))
    # The two other domains return after an absence of fifteen windows.
    _assert_finite(training.next(state, cohort(10)))


@pytest.mark.slow_cases("delta_fl")
@pytest.mark.parametrize("name", ["agnostic_fed_avg", "delta_fl"])
def test_batch_size_above_client_size_keeps_state(trainings, name, training):
    clients = cohort(11, sizes=(4, 3, 1, 2))
    state, _ = run_rounds(trainings(name, client_batch_size=10_000), [clients] * 2)
    # The default batch size of 4 is the largest client's size.
    assert_all_close(state, run_rounds(training, [clients] * 2)[0])


# `test_combinations.py` tests the other algorithms.
@pytest.mark.slow
@pytest.mark.parametrize("name", ["agnostic_fed_avg", "delta_fl"])
def test_secure_rounds_match_plain_rounds(streaming_runtime, name, training):
    aggregation = SecureSum(
        make_options(SecureSumOptions, limit_examples=20, limit_update=20.0, secure_min_clients=3)
    )
    secure = streaming_runtime.training(build(name), aggregation)
    assert secure.security.is_secure
    # All fields of client outputs, counts of clipped values and numbers of clients are secure.
    sent = " ".join(secure.security.secure)
    for step in build(name).steps:
        bounds = step.bounds(ClientLimits())
        fields = [f for f in bounds._fields if tf.nest.flatten(getattr(bounds, f))]
        for field in (*fields, "clipped", "num_clients"):
            assert field in sent
    state, reports = run_rounds(secure, cohorts(3))
    expected, expected_reports = run_rounds(training, cohorts(3))
    assert_all_close(state.algorithm, expected.algorithm, rtol=1e-4, atol=1e-5)
    with pytest.raises(UserError, match="expected at least 3 clients in a sum, found 2"):
        secure.next(state, cohort()[:2])
    for report, plain_report in zip(reports, expected_reports):
        assert not any(tf.nest.flatten(_clipped(report["aggregator"])))
        assert report["clients"] == plain_report["clients"]


def _clipped(report: Any) -> Any:
    return report.get("clipped") or [part["clipped"] for part in report.values()]


@pytest.mark.parametrize("name", _with_trait(Trait.ONE_DOMAIN_IS_FED_AVG))
def test_one_domain_equals_fed_avg(trainings, name):
    rng = np.random.default_rng(1)
    clients = [[random_client(rng, n, [0]) for n in (7, 3, 10)] for _ in range(4)]
    models = []
    for other in (name, "fed_avg"):
        settings: dict[str, Any] = {"num_domains": 1, "target_domain": "0"}
        state, _ = run_rounds(trainings(other, **settings), clients)
        models.append(build(other, **settings).main_model(state.algorithm))
    assert_all_close(models[0], models[1])


@pytest.mark.nightly_cases(but=["fed_avg"])
@pytest.mark.parametrize("name", _with_trait(Trait.DOMAIN_BLIND))
def test_domain_blind_algorithms_ignore_domains(trainings, name):
    # Shuffling depends on the examples' domains.
    training = trainings(name, client_shuffle=False)
    clients = cohort(12)
    moved = [{**c, "domain_id": (c["domain_id"] + 1) % NUM_DOMAINS} for c in clients]
    states = [training.next(_started(training), cohort)[0] for cohort in (clients, moved)]
    assert_all_close(_main_model(name, states[0]), _main_model(name, states[1]))


@pytest.mark.nightly_cases(but=["stochastic_afl"])
@pytest.mark.parametrize("name", _with_trait(Trait.PARTITION_BLIND))
def test_full_batch_step_ignores_the_partition(trainings, name):
    training = trainings(name, client_epochs=1, client_batch_size=1000)
    clients = cohort(13)
    merged = {key: np.concatenate([c[key] for c in clients[1:]]) for key in clients[0]}
    states = [training.next(_started(training), c)[0] for c in (clients, [clients[0], merged])]
    assert_all_close(_main_model(name, states[0]), _main_model(name, states[1]), rtol=1e-4)


@pytest.mark.nightly_cases("agnostic_fed_avg", "delta_fl", "fed_boost", "above_mean")
@pytest.mark.parametrize("name", _with_trait(Trait.COHORT_TWICE_IS_ONCE))
def test_doubled_cohort_gives_the_same_model(name, training):
    state, clients = _started(training), cohort(4)
    once, once_report = training.next(state, clients)
    twice, twice_report = training.next(state, [*clients, *clients])
    assert_all_close(_main_model(name, twice), _main_model(name, once), rtol=1e-4)
    loss = [report["client_work"]["train"]["loss"] for report in (once_report, twice_report)]
    assert_all_close(loss[1], loss[0])


@pytest.mark.parametrize("name", _with_trait(Trait.LEARNS_FROM_EVERY_DOMAIN))
def test_every_domain_changes_the_model(name, training):
    state = _started(training)
    for domain in range(NUM_DOMAINS):
        clients = [random_client(np.random.default_rng(domain), 6, [domain]) for _ in range(2)]
        moved, _ = training.next(state, clients)
        first, second = (_main_model(name, s).trainable[0] for s in (state, moved))
        assert not np.allclose(first, second), domain


def test_every_trait_has_an_algorithm():
    assert set().union(*(spec.traits for spec in CASES.values())) == set(Trait)


def test_equally_named_quantities_agree_across_algorithms():
    kinds = {}
    for name in CASES:
        for quantity in flattened(build(name).quantities):
            kind = (quantity.per_domain, quantity.unit)
            assert kinds.setdefault(quantity.name, kind) == kind
