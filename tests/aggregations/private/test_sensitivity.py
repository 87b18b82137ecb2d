"""Whatever a client holds or answers, it changes the sum of no group by more than its bound."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.aggregations.private.sums import private_sum
from tests.algorithms.cases import CASES, NUM_DOMAINS, build, empty_client, spoiled_client
from tests.computations.harness import make_client, random_client
from tests.runtimes.model_kinds import KINDS
from tests.selection import usually
from tff_agnostic.aggregations.aggregation import PlainSum
from tff_agnostic.aggregations.limits import Bound
from tff_agnostic.aggregations.private.clipping import clip, clipped_group, scaled_ratios
from tff_agnostic.aggregations.secure_sum import SecureSum, SecureSumOptions
from tff_agnostic.computations.aggregated import AggregatedRound
from tff_agnostic.computations.client_group import group_of_one, one_client
from tff_agnostic.computations.evaluation import measurement_of_model
from tff_agnostic.models import logistic_regression

_CLIP_NORM = 0.3


def _private(inner: str) -> Any:
    bits = SecureSum(SecureSumOptions(max_examples=20, max_loss=5.0, min_clients=1, bits=40))
    sums = {"plain": PlainSum(), "secure": bits}
    return private_sum(inner=sums[inner], clip_norm=_CLIP_NORM, clipping="adaptive")


def _norms(exchange: Any, encoded: Any) -> dict[str, tuple[float, float]]:
    """Returns the norm of each group in a sum of one client, and its bound."""
    aggregation = exchange.aggregation
    released_bounds = aggregation.released_bounds(exchange.bounds)
    _, released, _ = aggregation.inner.decode((), encoded, released_bounds)
    values = [*tf.nest.flatten(released.answer), *released.within]
    found = {}
    for group in aggregation.groups(exchange.bounds):
        norm = np.sqrt(sum(np.sum(np.square(np.float64(values[i]))) for i in group.positions))
        found[group.name] = norm, group.limit * (_CLIP_NORM if group.is_update else 1.0)
    of_groups = {i for group in aggregation.groups(exchange.bounds) for i in group.positions}
    for i, value in enumerate(values):
        if i not in of_groups:
            assert not np.any(value), "a value in no group was sent"
    return found


def _assert_bounded(exchange: Any, encoded: Any) -> None:
    for name, (norm, limit) in _norms(exchange, encoded).items():
        assert norm <= limit, (exchange.exchange.name, name)


def _adversaries() -> dict[str, dict[str, np.ndarray]]:
    rng = np.random.default_rng(4)
    usual = random_client(rng, 6, range(NUM_DOMAINS))
    return {
        "usual": usual,
        "huge": {**usual, "x": usual["x"] * np.float32(1e6)},
        "beyond float32": {**usual, "x": usual["x"] * np.float32(1e37)},
        "not a number": spoiled_client(np.nan),
        "infinite": spoiled_client(np.inf),
        "of one domain": random_client(rng, 20, [1]),
        "of many examples": random_client(rng, 300, range(NUM_DOMAINS)),
        "many of one domain": random_client(rng, 300, [0]),
        "one example": make_client(np.ones([1, 4]), [2], [1]),
        "empty": empty_client(),
        # Each example's loss is at its bound of 5, and beyond.
        "of large losses": make_client(np.full([20, 4], 60.0), [0] * 10 + [1] * 10, [2] * 20),
    }


_SUMS = [(name, inner) for name in CASES for inner in ("plain", "secure")]
# Answers of every shape; secure sums of the two whose clients send most.
_USUAL = [
    ("agnostic_fed_avg", "secure"),
    ("delta_fl", "secure"),
    *((name, "plain") for name in ("q_ffl", "term", "afl_boost", "above_mean")),
]


@pytest.mark.parametrize(("name", "inner"), usually(_USUAL, _SUMS))
def test_of_every_algorithm(name, inner):
    algorithm = build(name, client_epochs=1)
    aggregation = _private(inner)
    exchanges = AggregatedRound(algorithm, aggregation).exchanges
    state = tf.nest.map_structure(tf.convert_to_tensor, algorithm.initialize())
    sums: tuple[Any, ...] = ()
    for exchange in exchanges:
        aggregation_state = exchange.initialize()
        broadcast = exchange.exchange.prepare(state, sums)
        message = exchange.message(aggregation_state, broadcast, tf.constant([1, 2], tf.int32))
        work = _traced(exchange, algorithm.client_data_spec)
        answers = {key: work(message, client) for key, client in _adversaries().items()}
        for encoded in answers.values():
            _assert_bounded(exchange, encoded)
        # Otherwise it would hold for clients that send nothing.
        norms = _norms(exchange, answers["of many examples"])
        assert any(norm >= 0.99 * limit for norm, limit in norms.values())
        total = tf.nest.map_structure(lambda *leaves: tf.add_n(leaves), *answers.values())
        sums = (*sums, exchange.decode(aggregation_state, total)[1])


def _traced(exchange: Any, columns: Any) -> Any:
    @tf.function(autograph=False, reduce_retracing=True)
    def work(message: Any, examples: Any) -> Any:
        return exchange.client_work(message, group_of_one(examples), one_client)

    def of_client(message: Any, client: Any) -> Any:
        specs = {key: tf.constant(client[key], columns[key].dtype) for key in columns}
        return work(message, specs)

    return of_client


@pytest.mark.parametrize("kind", usually(["dict_of_inputs", "next_word"], KINDS))
def test_of_every_kind_of_model(kind):
    algorithm = build("agnostic_fed_avg", model=KINDS[kind].model(), client_epochs=1)
    (exchange,) = AggregatedRound(algorithm, _private("plain")).exchanges
    state = tf.nest.map_structure(tf.convert_to_tensor, algorithm.initialize())
    broadcast = exchange.exchange.prepare(state, ())
    message = exchange.message(exchange.initialize(), broadcast, tf.constant([1, 2], tf.int32))
    rng = np.random.default_rng(0)
    for size in (0, 1, 30):
        client = KINDS[kind].client(rng, size)
        examples = tf.nest.map_structure(tf.convert_to_tensor, client)
        _assert_bounded(exchange, exchange.client_work(message, group_of_one(examples), one_client))


def random_values(rng: np.random.Generator, bounds: list[Bound], shapes: list[tuple]) -> list:
    """Returns values of any size for bounds, some of them no numbers."""
    scale = 10.0 ** rng.uniform(-3, 12)
    values = []
    for bound, shape in zip(bounds, shapes):
        value = rng.normal(size=shape) * scale * bound.limit
        if rng.random() < 0.3:
            value = np.where(rng.random(shape) < 0.5, value, rng.choice([np.nan, np.inf, -np.inf]))
        if bound.integer:
            value = np.nan_to_num(value, posinf=2.0**62, neginf=-(2.0**62))
            values.append(tf.constant(np.clip(value, -(2.0**62), 2.0**62), tf.int64))
        else:
            values.append(tf.constant(value, tf.float32))
    return values


def test_of_answers_that_no_algorithm_gives():
    """Clients that do not keep to the protocol: negative counts, any float, any int."""
    measurement = measurement_of_model(logistic_regression(4, 3), NUM_DOMAINS)
    training = build("agnostic_fed_avg").exchanges[0]
    rng = np.random.default_rng(7)
    for exchange in (training, measurement.exchange):
        aggregation = private_sum(clip_norm=_CLIP_NORM)
        structure = exchange.bounds(aggregation.limits)
        bounds = tf.nest.flatten(structure)
        shapes = [(5,) if bound.entrywise or bound.signed else () for bound in bounds]
        for _ in range(60):
            values = random_values(rng, bounds, shapes)
            groups = aggregation.groups(structure)
            sent, _ = clip(values, bounds, groups, [tf.constant(_CLIP_NORM)] * 3)
            for group in groups:
                joint = [np.ravel(np.float64(sent[i])) for i in group.positions]
                limit = group.limit * (_CLIP_NORM if group.is_update else 1.0)
                assert np.linalg.norm(np.concatenate(joint)) <= limit


def test_ratios_stay_as_they_were():
    bounds = [
        Bound(10.0, ratio="loss", entrywise=True),
        Bound(5.0, integer=True, ratio="loss", entrywise=True, denominator=True),
    ]
    losses, counts = np.float32([40.0, 3.0, 0.0]), np.int64([8, 6, 0])
    scaled_losses, scaled_counts = scaled_ratios([tf.constant(losses), tf.constant(counts)], bounds)
    assert np.linalg.norm(scaled_losses) <= 10.0
    assert np.linalg.norm(scaled_counts) <= 5.0
    there = scaled_counts.numpy() > 0
    np.testing.assert_allclose(
        (scaled_losses / tf.cast(scaled_counts, tf.float32)).numpy()[there],
        (losses / counts.clip(1))[there],
        rtol=1e-6,
    )


def test_what_is_within_its_bound_stays_as_it_is():
    values = [tf.constant([0.1, -0.2]), tf.constant([[0.05]])]
    for found, expected in zip(clipped_group(values, tf.constant(0.3)), values):
        np.testing.assert_array_equal(found, expected)
    clipped = clipped_group(values, tf.constant(0.1))
    np.testing.assert_allclose(clipped[0][1] / clipped[0][0], -2.0, rtol=1e-6)
