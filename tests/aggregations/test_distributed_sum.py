"""Integer sums with clients' noise match a server's noise and tensorflow-privacy's moments."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_privacy as tfp
from scipy import stats

from tests.aggregations.test_sensitivity import random_values
from tests.support.algorithms import build
from tests.support.clients import make_client
from tests.support.comparing import flat
from tests.support.options import make_options
from tests.support.rounds import run_rounds
from tests.support.sums import KEYS, private_sum, secure_sum
from tff_agnostic.aggregations.aggregation import ClientFacts
from tff_agnostic.aggregations.integer_codec import centred
from tff_agnostic.algorithms import ALGORITHMS, Problem
from tff_agnostic.base.errors import UserError
from tff_agnostic.computations.clients import Place
from tff_agnostic.computations.round import Round
from tff_agnostic.models import logistic_regression
from tff_agnostic.privacy.distributed import ROUNDING_BETA, rounded_sensitivity
from tff_agnostic.runtimes.cohort import CohortRuntime
from tff_agnostic.runtimes.options import CohortOptions

_SECURE = secure_sum()
_CLIP_NORM = 0.3


def _distributed(**settings: Any) -> Any:
    return private_sum("distributed", _SECURE, clip_norm=_CLIP_NORM, **settings)


def _facts(place: int, silent: int = 0) -> ClientFacts:
    nothing = tf.constant(0, tf.int64)
    return ClientFacts(
        seed=nothing, examples_cut=nothing, place=Place(tf.constant(place), tf.constant(silent))
    )


def _added(answers: list[Any]) -> Any:
    return tf.nest.map_structure(lambda *leaves: tf.add_n(leaves), *answers)


def _exchange(aggregation: Any) -> Any:
    (exchange,) = Round(build("agnostic_fed_avg"), aggregation).steps
    return exchange


def _zeros(bounds: Any, update_size: int) -> Any:
    """Returns a client output of zeros, whose update arrays have `update_size` values each."""
    return tf.nest.map_structure(
        lambda bound: tf.zeros(
            [update_size] if bound.signed else [3] if bound.entrywise else [],
            tf.int64 if bound.integer else tf.float32,
        ),
        bounds,
    )


def _group_vectors(release: Any, sent: Any, bounds: Any) -> Iterator[tuple[Any, Any, np.ndarray]]:
    """Yields each group of values, its codec, and its centred integers with padding."""
    values, padding = tf.nest.flatten(sent.values), iter(sent.padding)
    for group, codec in zip(release.groups(bounds), release.codecs(values, bounds)):
        parts = [values[i] for i in group.positions]
        parts += [next(padding)] if codec.size > codec.num_values else []
        yield group, codec, flat(centred(part, codec.bits) for part in parts)


def _update_vector(release: Any, sent: Any, bounds: Any) -> np.ndarray:
    vectors = _group_vectors(release, sent, bounds)
    return next(vector for group, _, vector in vectors if group.is_update)


@pytest.mark.slow
def test_clients_stay_within_the_accounted_sensitivity():
    """Client outputs of any size, with NaN and infinity, are encoded without noise."""
    integer_clip = 20.0
    aggregation = _distributed(integer_clip=integer_clip, clipping="adaptive")
    exchange = _exchange(aggregation)
    release, structure = exchange.aggregation, exchange.bounds
    bounds = tf.nest.flatten(structure)
    shapes = [(5,) if bound.entrywise or bound.signed else () for bound in bounds]
    params = release.client_params(exchange.initialize())
    rng, longest = np.random.default_rng(3), 0.0
    for place in range(40):
        values = random_values(rng, bounds, shapes)
        output = tf.nest.pack_sequence_as(structure, values)
        sent = release.encode(params, output, structure, _facts(place))
        grouped = set()
        for group, _, vector in _group_vectors(release, sent, structure):
            grouped.update(group.positions)
            bound = rounded_sensitivity(integer_clip, len(vector), ROUNDING_BETA).l2
            norm = np.linalg.norm(np.float64(vector))
            assert norm <= bound, group.name
            longest = max(longest, norm / integer_clip)
        integers = tf.nest.flatten(sent.values)
        for i in set(range(len(integers))) - grouped:
            assert not np.any(integers[i]), "a value outside all groups was sent"
    assert longest > 0.99


@pytest.mark.slow_cases("philox")
@pytest.mark.parametrize("generator", KEYS)
def test_client_noise_equals_server_noise(generator):
    """The noise has the same variance on both sides, and a normal distribution."""
    num_clients, z, size = 5, 1.3, 20_000
    client_settings = {"noise_generator": generator}
    actual = {}
    for name, settings in (("distributed", client_settings), ("central", {})):
        aggregation = private_sum(
            name, _SECURE, z, float(num_clients), clip_norm=_CLIP_NORM, **settings
        )
        exchange = _exchange(aggregation)
        release, bounds = exchange.aggregation, exchange.bounds
        state = exchange.initialize()
        params = release.client_params(state)
        output = _zeros(bounds, size)
        leaves = tf.nest.flatten(output)
        first = next(i for i, bound in enumerate(tf.nest.flatten(bounds)) if bound.signed)
        group = next(g for g in release.groups(bounds) if g.is_update)
        leaves[first] = tf.one_hot(0, size) * group.limit * _CLIP_NORM
        output = tf.nest.pack_sequence_as(output, leaves)
        answers = [release.encode(params, output, bounds, _facts(k)) for k in range(num_clients)]
        _, total, _ = release.decode(state, _added(answers), bounds)
        deviation = z * dict(zip(release.groups(bounds), release.noise_factors(bounds)))[group]
        values = [tf.nest.flatten(total)[i] for i in group.positions]
        noise = flat(values) / (group.limit * _CLIP_NORM)
        # Each client's first value is the bound, which is the unit here. The first sum would be
        # `num_clients` without noise.
        noise[0] -= num_clients
        assert abs(noise[0]) < 5 * deviation
        actual[name] = np.var(noise)
        assert actual[name] == pytest.approx(deviation**2, rel=0.03), name
        assert stats.kstest(noise / deviation, "norm").pvalue > 0.01
    assert actual["distributed"] == pytest.approx(actual["central"], rel=0.03)


@pytest.mark.parametrize("generator", KEYS)
def test_noise_has_tensorflow_privacys_moments(generator):
    """Skellam noise of few steps is far from normal: its fourth moment is v + 3 v^2."""
    num_clients, z, steps, size = 4, 0.25, 2.0, 2**16
    aggregation = _distributed(
        noise_multiplier=z,
        integer_clip=steps,
        update_share=0.8,
        expected_clients=float(num_clients),
        noise_generator=generator,
        noise_key=KEYS[generator],
    )
    exchange = _exchange(aggregation)
    release, bounds = exchange.aggregation, exchange.bounds
    params, output = release.client_params(exchange.initialize()), _zeros(bounds, size)
    answers = [release.encode(params, output, bounds, _facts(k)) for k in range(num_clients)]
    actual = np.float64(_update_vector(release, _added(answers), bounds)[:size])

    query = tfp.DistributedSkellamSumQuery(0, 0.0, z / 0.8**0.5 * steps / num_clients**0.5)
    query_params = query.derive_sample_params(query.initial_global_state())
    record = tf.zeros([size], tf.int32)
    sample = query.initial_sample_state(record)
    for _ in range(num_clients):
        sample = query.accumulate_record(query_params, sample, record)
    theirs, _, _ = query.get_noised_result(sample, query.initial_global_state())
    # tensorflow-privacy's query has no seed, so the tolerance is six standard errors.
    assert abs(np.mean(actual) - np.mean(theirs)) < 0.02
    for power, rel in ((2, 0.07), (4, 0.2)):
        expected = np.mean(np.float64(theirs) ** power)
        assert np.mean(actual**power) == pytest.approx(expected, rel=rel), power


@pytest.mark.parametrize("generator", KEYS)
def test_client_noise_differs_by_client_release_and_key(generator):
    settings = {"noise_generator": generator, "noise_key": KEYS[generator]}
    exchange = _exchange(_distributed(noise_multiplier=1.0, **settings))
    release, bounds = exchange.aggregation, exchange.bounds
    state, output = exchange.initialize(), _zeros(exchange.bounds, 4000)

    def sent(place: int = 1, state: Any = state, release: Any = release) -> np.ndarray:
        encoded = release.encode(release.client_params(state), output, bounds, _facts(place))
        return _update_vector(release, encoded, bounds)

    first = sent()
    np.testing.assert_array_equal(sent(), first)
    others = [
        sent(place=2),
        sent(state=state._replace(releases=state.releases + 1)),
        sent(state=state._replace(noise_key=state.noise_key + 1)),
        sent(release=dataclasses.replace(release, exchange=1)),
    ]
    for other in others:
        assert abs(np.corrcoef(first, other)[0, 1]) < 0.06


def test_silent_clients_send_their_noise():
    """One message can carry several silent clients' noise, with the variance of all of them."""
    answering, drawn, z, size = 4000, 10, 1.3, 20_000
    settings: dict[str, Any] = {"noise_multiplier": z, "integer_clip": 200.0}
    aggregation = _distributed(
        **settings, expected_clients=float(drawn), noise_clients=answering, clipping="adaptive"
    )
    exchange = _exchange(aggregation)
    release, bounds = exchange.aggregation, exchange.bounds
    params, bundle = release.client_params(exchange.initialize()), release.bundle
    assert 100 < bundle < answering
    output = tf.nest.map_structure(tf.ones_like, _zeros(bounds, size))
    for silent in (1, bundle):
        sent = release.encode(params, output, bounds, _facts(5, silent))
        assert sent.num_clients == silent
        for group, codec, noise in _group_vectors(release, sent, bounds):
            variance = silent * (codec.deviation**2 / answering)
            if len(noise) < 1000:
                assert np.all(np.abs(noise) < 7 * np.sqrt(variance) + 7), group.name
                continue
            assert np.var(noise) == pytest.approx(variance, rel=0.03)
            expected = stats.skellam(variance / 2, variance / 2)
            edges = np.unique(expected.ppf(np.linspace(0.05, 0.95, 19)))
            counts = np.histogram(noise, [-np.inf, *edges + 0.5, np.inf])[0]
            shares = np.diff([0, *expected.cdf(edges), 1])
            assert stats.chisquare(counts, shares * len(noise)).pvalue > 0.001


def test_sum_is_empty_with_too_few_clients():
    exchange = _exchange(_distributed(min_clients=3, clipping="adaptive"))
    release, bounds = exchange.aggregation, exchange.bounds
    state = exchange.initialize()
    params = release.client_params(state)
    output = tf.nest.map_structure(tf.ones_like, _zeros(bounds, 10))
    answers = [release.encode(params, output, bounds, _facts(k)) for k in range(3)]
    none = _added([tf.nest.map_structure(tf.zeros_like, answers[0])])
    for num_clients in (2, 3):
        next_state, actual, report = release.decode(state, _added(answers[:num_clients]), bounds)
        _, expected, _ = release.decode(state, none, bounds)
        has_enough = num_clients == 3
        assert report["too_few_clients"] == int(not has_enough)
        assert next_state.releases == 1
        # All three clients are within the adaptive clip norm, which therefore changes.
        assert (next_state.clip_norms[0] == state.clip_norms[0]) != has_enough
        pairs = zip(tf.nest.flatten(actual), tf.nest.flatten(expected))
        assert all(np.array_equal(*pair) for pair in pairs) != has_enough


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"noise_multiplier": 1.0, "integer_clip": 2.0**18}, r".* random numbers for each value"),
        ({"integer_clip": 2.0**60}, "expected sums of at most 62 bits"),
    ],
)
def test_rejects_noise_and_sums_that_are_too_wide(settings, message):
    exchange = _exchange(_distributed(**settings))
    params = exchange.aggregation.client_params(exchange.initialize())
    with pytest.raises(UserError, match=f"^noise_multiplier: {message}"):
        exchange.aggregation.encode(params, _zeros(exchange.bounds, 3), exchange.bounds, _facts(0))


_COPIES, _ROUNDS = 9, 10


@pytest.mark.slow
def test_equal_clients_have_separate_noise():
    """If nine clients drew the same noise, the sum's variance would be nine times larger."""
    # The clip norm is three integer steps, so the noise is a small integer.
    settings: dict[str, Any] = {"integer_clip": 3.0, "clip_norm": 0.1}
    aggregation = private_sum("distributed", _SECURE, 2.0, float(_COPIES), **settings)
    # FedAvg divides updates by a public number of examples here, not by a noisy sum.
    problem = Problem(logistic_regression(31, 16), ("0", "1", "2"), 0, (float(_COPIES),) * 3)
    spec = ALGORITHMS["fed_avg"]
    algorithm = spec.build(problem, make_options(spec.options, client_learning_rate=1e-9))
    client = make_client(np.ones([3, 31]), [0, 1, 2], [0, 1, 2])
    # In shards of four, a client's index in its shard differs from its index in the cohort.
    options = CohortOptions(client_mode="vectorised", max_clients_in_step=4)
    with CohortRuntime(options) as runtime:
        training = runtime.training(algorithm, aggregation)
        variance = {}
        for size in (1, _COPIES):
            state, steps = training.initialize(), []
            for _ in range(_ROUNDS):
                before = state
                state, _ = run_rounds(training, [[client] * size], before)
                steps.append(_weights(state) - _weights(before))
            variance[size] = np.var(steps)
            assert variance[size] > 0
    # With 5,120 values each, the ratio has a standard error of 3%.
    assert variance[_COPIES] / variance[1] == pytest.approx(_COPIES, rel=0.15)


def _weights(state: Any) -> np.ndarray:
    return flat(state.algorithm.weights.trainable)
