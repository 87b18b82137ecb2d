"""Rounds of private sums compared with plain rounds and with tensorflow-privacy."""

import dataclasses
from typing import Any

import cloudpickle
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_privacy as tfp

from tests.support.algorithms import CASES, build
from tests.support.clients import cohort, make_client
from tests.support.comparing import assert_all_close
from tests.support.options import make_options
from tests.support.rounds import run_rounds
from tests.support.sums import encoded, private_sum, secure_sum
from tff_agnostic.aggregations.aggregation import Bound, PlainSum
from tff_agnostic.aggregations.clipping import without_noise_below
from tff_agnostic.aggregations.noise_generators import DEVIATION
from tff_agnostic.aggregations.private_sum import CentralDpSum, ClippedOutput
from tff_agnostic.algorithms import Problem
from tff_agnostic.base.errors import UserError
from tff_agnostic.computations.round import Round
from tff_agnostic.models import logistic_regression


@pytest.mark.slow
@pytest.mark.parametrize("name", ["agnostic_fed_avg", "delta_fl"])
def test_rounds_without_noise_and_clipping_equal_plain_rounds(streaming_runtime, name):
    rounds = [cohort()] * 3
    # Private AgnosticFedAvg divides by public counts: each domain's expected number of examples.
    counts = np.bincount(np.concatenate([client["domain_id"] for client in rounds[0]]))
    algorithm = build(name, initial_counts=tuple(map(float, counts)))
    aggregation = private_sum(clip_norm=1e6, limit_loss=1e3, clipping="adaptive")
    state, reports = run_rounds(streaming_runtime.training(algorithm, aggregation), rounds)
    plain = streaming_runtime.training(algorithm, PlainSum())
    expected, expected_reports = run_rounds(plain, rounds)
    assert_all_close(state.algorithm, expected.algorithm)
    assert reports[-1]["clients"] == expected_reports[-1]["clients"]


@pytest.mark.slow
def test_subsampled_update_is_divided_by_expected_weight(streaming_runtime):
    """FedAvg-Sub divides a round's summed update by the drawn clients' expected weight."""
    twenty_clients = [c for seed in range(20) for c in cohort(seed, sizes=(4,))]
    counts = np.bincount(np.concatenate([client["domain_id"] for client in twenty_clients]))
    problem = Problem(
        logistic_regression(4, 3), ("0", "1", "2"), 7, expected_counts=tuple(map(float, counts))
    )
    spec = CASES["fed_avg_sub"]
    algorithm = spec.build(
        problem, make_options(spec.options, client_learning_rate=0.3, cohort_share=0.5)
    )
    private = private_sum(clip_norm=1e6, expected_clients=20.0)
    (state, (report,)), (plain, _) = (
        run_rounds(streaming_runtime.training(algorithm, aggregation), [twenty_clients])
        for aggregation in (private, PlainSum())
    )
    drawn = np.sum(report["client_work"]["train"]["num_examples"])
    assert 0 < drawn < 80
    start = algorithm.initialize().weights.trainable
    for w_0, w, w_plain in zip(start, *(s.algorithm.weights.trainable for s in (state, plain))):
        # Clients are expected to train on 40 of the 80 examples.
        np.testing.assert_allclose((w - w_0) * 40, (w_plain - w_0) * drawn, rtol=1e-4, atol=1e-5)
    # The clip norm assumes that a client trains on all of its 4 examples.
    bounds = algorithm.steps[0].bounds(private.limits)
    (update,) = [group for group in private.groups(bounds) if group.is_update]
    assert update.limit == pytest.approx(4.0)


@pytest.mark.slow
def test_empty_cohort_has_noise(streaming_runtime):
    """The noise hides that the cohort was empty."""
    aggregation = private_sum("tree", noise_multiplier=0.7, clip_norm=0.2)
    training = streaming_runtime.training(build("agnostic_fed_avg"), aggregation)
    state, reports = run_rounds(training, [cohort(), []])
    assert state.aggregations[0].releases == 2
    assert reports[1]["finalizer"]["update_norm"] > 0


def test_skipped_round_uses_up_its_noise(streaming_runtime):
    aggregation = private_sum(noise_multiplier=800.0, clip_norm=1e37)
    training = streaming_runtime.training(build("agnostic_fed_avg"), aggregation)
    state, report = training.next(training.initialize(), cohort())
    assert report["skipped"]
    assert state.aggregations[0].releases == 1


@pytest.mark.parametrize("quantile", [0.0, 0.6])
def test_adaptive_clip_norm_equals_tensorflow_privacys(quantile):
    """With noise, summed bits can be outside the range of sums without noise."""
    clipping = f"adaptive:quantile={quantile},rate=0.3"
    aggregation = private_sum(clip_norm=0.4, clipping=clipping, expected_clients=8.0)
    (exchange,) = Round(build("fed_avg"), aggregation).steps
    state = exchange.initialize()
    query = tfp.QuantileEstimatorQuery(
        initial_estimate=0.4,
        target_quantile=quantile,
        learning_rate=0.3,
        below_estimate_stddev=0.0,
        expected_num_records=8.0,
        geometric_update=True,
    )
    query_state = query.initial_global_state()
    answer = tf.nest.map_structure(lambda bound: tf.constant(0.0, tf.float64), exchange.bounds)
    # A client sends its bit minus 1/2: 8 clients within the norm sum to 4, and 8 beyond it to -4.
    for summed in (-4.0, -2.5, 0.0, 3.0, 4.0, 4.5, 90.0, -5.0, -90.0, 1.0):
        within = [tf.constant(summed, tf.float64)]
        state, _, _ = exchange.aggregation.decode(
            state, ClippedOutput(answer, within), exchange.bounds
        )
        expected, query_state, _ = query.get_noised_result(tf.constant(summed), query_state)
        assert float(state.clip_norms[0]) == pytest.approx(float(expected), rel=1e-6)


@pytest.mark.parametrize("clipping", ["fixed", "adaptive"])
def test_all_steps_share_one_privacy_budget(clipping):
    """Besides the sums, the bits that adapt clip norms get shares of the budget."""
    algorithm = build("delta_fl", theta=(0.5, 1.0))
    aggregation = private_sum(update_share=0.7, clipping=clipping)
    exchanges = Round(algorithm, aggregation).steps
    assert [exchange.step.name for exchange in exchanges] == ["survey", "training"]
    shares = [share for exchange in exchanges for share in exchange.aggregation.shares]
    factors = [f for e in exchanges for f in e.aggregation.noise_factors(e.bounds)]
    assert factors == pytest.approx([1 / share**0.5 for share in shares])
    assert sum((3.0 * factor) ** -2 for factor in factors) ** -0.5 == pytest.approx(3.0)
    updates = [
        share
        for exchange in exchanges
        for group, share in zip(
            exchange.aggregation.groups(exchange.bounds), exchange.aggregation.shares
        )
        if group.is_update
    ]
    assert updates == pytest.approx([0.35, 0.35])


def test_domains_with_counts_below_noise_are_absent():
    bounds = [
        Bound(100.0, ratio="loss", entrywise=True),
        Bound(20, integer=True, ratio="loss", entrywise=True, denominator=True),
    ]
    losses = tf.constant([50.0, 7.0, -3.0, 600.0], tf.float64)
    counts = tf.constant([40.0, 3.0, 30.0, 10.0], tf.float64)
    deviations = [tf.constant(9.0, tf.float64), tf.constant(2.0, tf.float64)]
    actual = without_noise_below([losses, counts], deviations, bounds, absent_below=2.0)
    np.testing.assert_array_equal(actual[1], [40.0, 0.0, 30.0, 10.0])
    # Losses of absent domains are 0; other losses are between 0 and 5 per example.
    np.testing.assert_array_equal(actual[0], [50.0, 0.0, 0.0, 50.0])


@pytest.mark.slow
def test_rare_domain_counts_as_absent(streaming_runtime):
    """Noise hides a domain's single example, so the domain's loss counts as 0."""
    rng = np.random.default_rng(0)
    clients = [
        make_client(rng.normal(size=[19, 4]), [0] * 10 + [1] * 9, rng.integers(3, size=19))
        for _ in range(40)
    ]
    clients[0] = make_client(rng.normal(size=[1, 4]), [2], [1])
    aggregation = private_sum(noise_multiplier=0.1, clip_norm=1.0, expected_clients=40.0)
    training = streaming_runtime.training(build("agnostic_fed_avg"), aggregation)
    _, report = training.next(training.initialize(), clients)
    actual = report["client_work"]["train"]
    assert actual["num_examples"][2] == 0
    assert actual["loss"][2] == 0
    assert actual["num_examples"][0] == pytest.approx(390, abs=40)
    assert actual["loss"][0] == pytest.approx(1.1, abs=0.4)
    weights = report["domain_weights"]["lambda"]
    assert weights[2] < weights[0]


@dataclasses.dataclass(frozen=True)
class _Leaking(CentralDpSum):
    """A private sum whose message to clients contains a bit of the noise key."""

    def client_params(self, state: Any) -> Any:
        return state.clip_norms + tf.cast(state.noise_key[0] % 2, tf.float32)


@dataclasses.dataclass(frozen=True)
class _LeakingLater(CentralDpSum):
    """A private sum whose message contains a bit of the key only in the second step."""

    def client_params(self, state: Any) -> Any:
        leaked = tf.cast(state.noise_key[1] % 2, tf.float32) if self.exchange else 0.0
        return state.clip_norms + leaked


@pytest.mark.parametrize(
    ("kind", "algorithm"), [(_Leaking, "fed_avg"), (_LeakingLater, "above_mean")]
)
def test_rejects_noise_key_in_the_broadcast(streaming_runtime, kind, algorithm):
    usual = private_sum(noise_multiplier=1.0)
    leaking = kind(**{f.name: getattr(usual, f.name) for f in dataclasses.fields(usual)})
    with pytest.raises(UserError, match="the broadcast depends on a secret of the server"):
        streaming_runtime.training(build(algorithm), leaking)


def test_rejects_noise_too_wide_for_the_grid():
    aggregation = private_sum(noise_multiplier=1e6)
    with pytest.raises(UserError, match=r"^noise_multiplier: expected at most "):
        Round(build("agnostic_fed_avg"), aggregation).initialize()


@pytest.mark.parametrize("inner", [PlainSum(), secure_sum()])
def test_secure_noise_is_a_multiple_of_the_step(inner):
    aggregation = private_sum("central", inner, 0.5, clip_norm=0.25)
    (exchange,) = Round(build("agnostic_fed_avg"), aggregation).steps
    release, bounds = exchange.aggregation, exchange.bounds
    state = exchange.initialize()
    output = tf.nest.map_structure(
        lambda bound: tf.fill([7], tf.constant(1, tf.int64 if bound.integer else tf.float32)),
        bounds,
    )
    sent = encoded(release, output, bounds, state=state)
    noisy, deviations = release.noisy_sums(state, sent, bounds)
    values = tf.nest.flatten(noisy)
    for group, factor in zip(release.groups(bounds), release.noise_factors(bounds)):
        limit = group.limit * (0.25 if group.is_update else 1.0)
        for i in group.positions:
            # Rounding to the grid widens the noise.
            assert 1 < float(deviations[i]) / (0.5 * factor * limit) < 1 + 1e-6
            whole = values[i].numpy() / (float(deviations[i]) / DEVIATION)
            np.testing.assert_allclose(whole, np.round(whole), rtol=0, atol=1e-5)
            assert len(np.unique(whole)) == 7


def test_client_work_lacks_the_key():
    """Ray's workers receive pickled client work, which must not contain the noise key."""
    key = (0x1A2B3C4D5E6F7788, 0x1122334455667799)
    aggregation = private_sum(noise_multiplier=1.0, noise_key=key)
    (exchange,) = Round(build("agnostic_fed_avg"), aggregation).steps
    for side, has_key in ((exchange.on_clients(), False), (exchange, True)):
        pickled = cloudpickle.dumps(side.aggregation)
        for number in key:
            assert (number.to_bytes(8, "little") in pickled) == has_key
