"""Rounds of private sums: what they add to plain ones, in every runtime, and what they keep."""

import dataclasses
from typing import Any

import cloudpickle
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_privacy as tfp

from tests.aggregations.sums import private_sum
from tests.algorithms.cases import CASES, build, cohort, cohorts
from tests.computations.harness import assert_all_close, assert_identical, make_client, run_rounds
from tests.marks import usually
from tests.options import make_options
from tff_agnostic.aggregations.aggregation import Bound, ClientFacts, PlainSum
from tff_agnostic.aggregations.clipping import (
    Group,
    budget_shares,
    without_noise_below,
)
from tff_agnostic.aggregations.noise_generators import DEVIATION
from tff_agnostic.aggregations.private_sum import CentralDpSum, ClippedOutput
from tff_agnostic.aggregations.secure_sum import SecureSum, SecureSumOptions
from tff_agnostic.algorithms import Problem
from tff_agnostic.base.errors import UserError
from tff_agnostic.computations.round import Round
from tff_agnostic.models import logistic_regression

_SECURE = SecureSum(
    make_options(SecureSumOptions, limit_examples=20, limit_loss=5.0, secure_min_clients=1)
)


@pytest.mark.slow
@pytest.mark.parametrize("name", usually(["agnostic_fed_avg", "delta_fl"], CASES))
def test_without_noise_and_clipping_rounds_are_plain_ones(streaming_runtime, name):
    rounds = [cohort()] * 3
    # A public denominator, as AgnosticFedAvg's, is that of a round with as many examples of each
    # domain as expected.
    counts = np.bincount(np.concatenate([client["domain_id"] for client in rounds[0]]))
    algorithm = build(name, initial_counts=tuple(map(float, counts)))
    aggregation = private_sum(clip_norm=1e6, limit_loss=1e3, clipping="adaptive")
    state, reports = run_rounds(streaming_runtime.training(algorithm, aggregation), rounds)
    plain = streaming_runtime.training(algorithm, PlainSum())
    expected, expected_reports = run_rounds(plain, rounds)
    assert_all_close(state.algorithm, expected.algorithm)
    assert reports[-1]["clients"] == expected_reports[-1]["clients"]


@pytest.mark.slow
def test_a_drawn_half_of_a_cohort_is_averaged_and_clipped_as_clients_that_all_train(
    streaming_runtime,
):
    """FedAvg-Sub: the weight of a round is that of the clients that are drawn, in expectation."""
    cohort_of_20 = [c for seed in range(20) for c in cohort(seed, sizes=(4,))]
    counts = np.bincount(np.concatenate([client["domain_id"] for client in cohort_of_20]))
    problem = Problem(
        logistic_regression(4, 3), ("0", "1", "2"), 7, expected_counts=tuple(map(float, counts))
    )
    spec = CASES["fed_avg_sub"]
    algorithm = spec.build(
        problem, make_options(spec.options, client_learning_rate=0.3, cohort_share=0.5)
    )
    private = private_sum(clip_norm=1e6, expected_clients=20.0)
    (state, (report,)), (plain, _) = (
        run_rounds(streaming_runtime.training(algorithm, aggregation), [cohort_of_20])
        for aggregation in (private, PlainSum())
    )
    drawn = np.sum(report["client_work"]["train"]["num_examples"])
    assert 0 < drawn < 80
    start = algorithm.initialize().weights.trainable
    for w_0, w, w_plain in zip(start, *(s.algorithm.weights.trainable for s in (state, plain))):
        # 40 of the 80 examples are expected to be trained on.
        np.testing.assert_allclose((w - w_0) * 40, (w_plain - w_0) * drawn, rtol=1e-4, atol=1e-5)
    # Clip norms are those of a client's 4 examples, as where all train.
    bounds = algorithm.steps[0].bounds(private.limits)
    (update,) = [group for group in private.groups(bounds) if group.is_update]
    assert update.limit == pytest.approx(4.0)


@pytest.mark.slow
def test_empty_cohort_has_noise(streaming_runtime):
    """Nobody learns that it was empty."""
    aggregation = private_sum("tree", noise_multiplier=0.7, clip_norm=0.2)
    training = streaming_runtime.training(build("agnostic_fed_avg"), aggregation)
    state, reports = run_rounds(training, [cohort(), []])
    assert state.aggregations[0].releases == 2
    assert reports[1]["finalizer"]["update_norm"] > 0


@pytest.mark.nightly
@pytest.mark.parametrize("name", usually(["tree"], ["central", "tree"]))
def test_a_resumed_run_has_the_noise_of_the_one_that_was_not_interrupted(streaming_runtime, name):
    settings = {"noise_multiplier": 0.5, "clip_norm": 0.2}

    def training(key: tuple[int, ...]) -> Any:
        aggregation = private_sum(name, noise_key=key, **settings)
        return streaming_runtime.training(build("agnostic_fed_avg"), aggregation)

    expected, _ = run_rounds(training((1, 2, 3, 4)), cohorts(6))
    halfway, _ = run_rounds(training((1, 2, 3, 4)), cohorts(3))
    # A process that goes on draws a key of its own, which is not used.
    resumed, _ = run_rounds(training((5, 6, 7, 8)), cohorts(6)[3:], halfway)
    assert_identical(resumed, expected)
    other, _ = run_rounds(training((5, 6, 7, 8)), cohorts(6))
    assert not np.array_equal(other.algorithm.weights[0][0], expected.algorithm.weights[0][0])


def test_a_round_that_is_skipped_uses_its_noise_up(streaming_runtime):
    aggregation = private_sum(noise_multiplier=800.0, clip_norm=1e37)
    training = streaming_runtime.training(build("agnostic_fed_avg"), aggregation)
    state, report = training.next(training.initialize(), cohort())
    assert report["skipped"]
    assert state.aggregations[0].releases == 1


@pytest.mark.slow
def test_updates_are_clipped_as_tensorflow_privacy_clips_them(streaming_runtime):
    """With equal weights, whose sum is public: 3 clients of 4 examples each."""
    clients = [c for seed in range(3) for c in cohort(seed, sizes=(4,))]
    model = logistic_regression(4, 3)
    problem = Problem(model, ("0", "1", "2"), seed=7, expected_counts=(4.0, 4.0, 4.0))
    algorithm = CASES["fed_avg"].build(
        problem, make_options(CASES["fed_avg"].options, client_learning_rate=0.3)
    )
    plain = streaming_runtime.training(algorithm, PlainSum())
    aggregation = private_sum(clip_norm=0.05, clipping="adaptive", expected_clients=3.0)
    private = streaming_runtime.training(algorithm, aggregation)
    query = tfp.QuantileAdaptiveClipSumQuery(
        initial_l2_norm_clip=0.05,
        noise_multiplier=0.0,
        target_unclipped_quantile=0.5,
        learning_rate=0.2,
        clipped_count_stddev=0.0,
        expected_num_records=3.0,
        geometric_update=True,
    )
    query_state, state = query.initial_global_state(), private.initialize()
    for _ in range(4):
        start = state._replace(aggregations=((),))
        deltas = []
        for client in clients:
            alone, _ = plain.next(start, [client])
            before, after = (s.algorithm.weights.trainable for s in (state, alone))
            deltas.append([tf.constant(b - a) for b, a in zip(before, after)])
        params = query.derive_sample_params(query_state)
        sample = query.initial_sample_state(deltas[0])
        for delta in deltas:
            sample = query.accumulate_record(params, sample, delta)
        total, query_state, _ = query.get_noised_result(sample, query_state)
        next_state, report = private.next(state, clients)
        for before, after, summed in zip(
            state.algorithm.weights.trainable, next_state.algorithm.weights.trainable, total
        ):
            np.testing.assert_allclose(before - after, summed / 3, rtol=1e-4, atol=1e-6)
        clip_norm = next_state.aggregations[0].clip_norms[0]
        assert clip_norm == pytest.approx(float(query_state.sum_state.l2_norm_clip), rel=1e-5)
        assert report["aggregator"]["clip_norm"]["update"] == state.aggregations[0].clip_norms[0]
        state = next_state
    assert state.aggregations[0].clip_norms[0] != pytest.approx(0.05, rel=0.05)


@pytest.mark.parametrize("quantile", [0.0, 0.6])
def test_an_adaptive_clip_norm_moves_as_tensorflow_privacys(quantile):
    """By sums of bits that noise takes below no client and above all of them, too."""
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
    # Bits less one half each: of 8 clients all within the norm is 4, none of them -4.
    for summed in (-4.0, -2.5, 0.0, 3.0, 4.0, 4.5, 90.0, -5.0, -90.0, 1.0):
        within = [tf.constant(summed, tf.float64)]
        state, _, _ = exchange.aggregation.decode(
            state, ClippedOutput(answer, within), exchange.bounds
        )
        expected, query_state, _ = query.get_noised_result(tf.constant(summed), query_state)
        assert float(state.clip_norms[0]) == pytest.approx(float(expected), rel=1e-6)


@pytest.mark.parametrize("clipping", ["fixed", "adaptive"])
def test_groups_of_all_exchanges_share_one_budget(clipping):
    """The bit that an adaptive clip norm takes of each update among them."""
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


def test_the_split_of_the_facts():
    groups = [Group("update", (0,), 1.0, is_update=True), *[Group("s", (k,), 1.0) for k in (1, 2)]]
    assert budget_shares(groups, 0.9) == pytest.approx((0.9, 0.05, 0.05))


def test_domains_below_their_noise_are_absent():
    bounds = [
        Bound(100.0, ratio="loss", entrywise=True),
        Bound(20, integer=True, ratio="loss", entrywise=True, denominator=True),
    ]
    losses = tf.constant([50.0, 7.0, -3.0, 600.0], tf.float64)
    counts = tf.constant([40.0, 3.0, 30.0, 10.0], tf.float64)
    deviations = [tf.constant(9.0, tf.float64), tf.constant(2.0, tf.float64)]
    found = without_noise_below([losses, counts], deviations, bounds, absent_below=2.0)
    np.testing.assert_array_equal(found[1], [40.0, 0.0, 30.0, 10.0])
    # Absent; not negative; at most 5 for each example.
    np.testing.assert_array_equal(found[0], [50.0, 0.0, 0.0, 50.0])


@pytest.mark.slow
def test_a_rare_domain_keeps_its_weight_of_the_round_before(streaming_runtime):
    """Its one example is lost in the noise: its loss counts as 0, as that of an absent domain."""
    rng = np.random.default_rng(0)
    clients = [
        make_client(rng.normal(size=[19, 4]), [0] * 10 + [1] * 9, rng.integers(3, size=19))
        for _ in range(40)
    ]
    clients[0] = make_client(rng.normal(size=[1, 4]), [2], [1])
    aggregation = private_sum(noise_multiplier=0.1, clip_norm=1.0, expected_clients=40.0)
    training = streaming_runtime.training(build("agnostic_fed_avg"), aggregation)
    _, report = training.next(training.initialize(), clients)
    found = report["client_work"]["train"]
    assert found["num_examples"][2] == 0
    assert found["loss"][2] == 0
    assert found["num_examples"][0] == pytest.approx(390, abs=40)
    assert found["loss"][0] == pytest.approx(1.1, abs=0.4)
    weights = report["domain_weights"]["lambda"]
    assert weights[2] < weights[0]


@dataclasses.dataclass(frozen=True)
class _Telling(CentralDpSum):
    """Sends clients the key with the clip norms."""

    def client_params(self, state: Any) -> Any:
        return state.clip_norms + tf.cast(state.noise_key[0] % 2, tf.float32)


@dataclasses.dataclass(frozen=True)
class _TellingLater(CentralDpSum):
    """Tells the key in the second exchange, through the state that the first one leaves."""

    def client_params(self, state: Any) -> Any:
        told = tf.cast(state.noise_key[1] % 2, tf.float32) if self.exchange else 0.0
        return state.clip_norms + told


@pytest.mark.parametrize(
    ("kind", "algorithm"),
    usually(
        [(_Telling, "fed_avg"), (_TellingLater, "above_mean")],
        [(_Telling, "fed_avg"), (_TellingLater, "above_mean"), (_Telling, "above_mean")],
    ),
)
@pytest.mark.parametrize(
    "runtime", usually(["streaming_runtime"], ["streaming_runtime", "tff_runtime"])
)
def test_a_key_that_is_sent_to_clients_is_refused(request, runtime, kind, algorithm):
    usual = private_sum(noise_multiplier=1.0)
    telling = kind(**{f.name: getattr(usual, f.name) for f in dataclasses.fields(usual)})
    with pytest.raises(UserError, match="the broadcast depends on a secret of the server"):
        request.getfixturevalue(runtime).training(build(algorithm), telling)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["central", "tree"])
def test_noisy_sums_may_be_sent_in_a_later_exchange(streaming_runtime, name):
    """They are made of the key, through noise."""
    training = streaming_runtime.training(build("above_mean"), private_sum(name))
    state, _ = run_rounds(training, cohorts(2))
    assert state.round_num == 2


def test_noise_that_is_too_wide_for_the_grid_is_refused():
    aggregation = private_sum(noise_multiplier=1e6)
    with pytest.raises(UserError, match=r"^noise_multiplier: expected at most "):
        Round(build("agnostic_fed_avg"), aggregation).initialize()


@pytest.mark.parametrize("inner", [PlainSum(), _SECURE])
def test_secure_noise_leaves_whole_steps(inner):
    aggregation = private_sum("central", inner, 0.5, clip_norm=0.25)
    (exchange,) = Round(build("agnostic_fed_avg"), aggregation).steps
    release, bounds = exchange.aggregation, exchange.bounds
    state = exchange.initialize()
    output = tf.nest.map_structure(
        lambda bound: tf.fill([7], tf.constant(1, tf.int64 if bound.integer else tf.float32)),
        bounds,
    )
    facts = ClientFacts(tf.constant(0, tf.int64), tf.constant(0, tf.int64))
    encoded = release.encode(release.client_params(state), output, bounds, facts)
    noisy, deviations = release.noisy_sums(state, encoded, bounds)
    values = tf.nest.flatten(noisy)
    for group, factor in zip(release.groups(bounds), release.noise_factors(bounds)):
        limit = group.limit * (0.25 if group.is_update else 1.0)
        for i in group.positions:
            # Wider by what rounding to the grid takes.
            assert 1 < float(deviations[i]) / (0.5 * factor * limit) < 1 + 1e-6
            whole = values[i].numpy() / (float(deviations[i]) / DEVIATION)
            np.testing.assert_allclose(whole, np.round(whole), rtol=0, atol=1e-5)
            assert len(np.unique(whole)) == 7


def test_processes_that_run_clients_do_not_get_the_key():
    """Ray's workers get what clients do as a pickle."""
    key = (0x1A2B3C4D5E6F7788, 0x1122334455667799)
    aggregation = private_sum(noise_multiplier=1.0, noise_key=key)
    (exchange,) = Round(build("agnostic_fed_avg"), aggregation).steps
    for side, is_there in ((exchange.on_clients(), False), (exchange, True)):
        pickled = cloudpickle.dumps(side.aggregation)
        for number in key:
            assert (number.to_bytes(8, "little") in pickled) == is_there
