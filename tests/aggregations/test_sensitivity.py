"""No client changes a group's sum by more than the group's bound."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support.algorithms import build
from tests.support.clients import (
    NUM_DOMAINS,
    empty_client,
    make_client,
    random_client,
    single,
    spoiled_client,
)
from tests.support.comparing import flat
from tests.support.model_kinds import KINDS
from tests.support.sums import private_sum, secure_sum
from tff_agnostic.aggregations.aggregation import Bound, ClientLimits, PlainSum
from tff_agnostic.aggregations.clipping import (
    Group,
    bound_groups,
    budget_shares,
    clip,
    scaled_ratios,
)
from tff_agnostic.computations.round import Round
from tff_agnostic.models import logistic_regression
from tff_agnostic.training.private_evaluation import private_evaluation_bounds, private_measurement

_CLIP_NORM = 0.3


def _private(inner: str) -> Any:
    bits = secure_sum(secure_bits=40)
    sums = {"plain": PlainSum(), "secure": bits, "joint": PlainSum(), "joint secure": bits}
    return private_sum(
        inner=sums[inner],
        clip_norm=_CLIP_NORM,
        clipping="adaptive",
        joint_clipping=inner.startswith("joint"),
    )


def _norms(exchange: Any, encoded: Any) -> dict[str, tuple[float, float]]:
    """Returns the norm and the bound of each group in one client's sum."""
    aggregation = exchange.aggregation
    released_bounds = aggregation.released_bounds(exchange.bounds)
    _, released, _ = aggregation.inner.decode((), encoded, released_bounds)
    values = [*tf.nest.flatten(released.answer), *released.within]
    actual = {}
    for group in aggregation.groups(exchange.bounds):
        norm = np.sqrt(sum(np.sum(np.square(np.float64(values[i]))) for i in group.positions))
        actual[group.name] = norm, group.limit * (_CLIP_NORM if group.is_update else 1.0)
    grouped = {i for group in aggregation.groups(exchange.bounds) for i in group.positions}
    for i, value in enumerate(values):
        if i not in grouped:
            assert not np.any(value), "a value outside all groups was sent"
    return actual


def _assert_bounded(exchange: Any, encoded: Any) -> None:
    if exchange.aggregation.options.joint_clipping:
        shares = exchange.aggregation.shares
        assert _joint_norm(exchange, encoded) <= np.sqrt(sum(shares)), exchange.step.name
        return
    for name, (norm, limit) in _norms(exchange, encoded).items():
        assert norm <= limit, (exchange.step.name, name)


def _joint_norm(exchange: Any, encoded: Any) -> float:
    """Returns the joint norm, sqrt(sum_g share_g (norm_g / bound_g)^2) over groups g."""
    parts = [norm / limit for norm, limit in _norms(exchange, encoded).values()]
    return float(np.sqrt(np.dot(exchange.aggregation.shares, np.square(parts))))


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
        # Each example's loss reaches or exceeds its bound of 5.
        "of large losses": make_client(np.full([20, 4], 60.0), [0] * 10 + [1] * 10, [2] * 20),
    }


# Algorithms with all structures of client outputs; the two largest outputs use secure sums.
_CASES = [
    ("agnostic_fed_avg", "secure"),
    ("delta_fl", "joint secure"),
    *((name, "plain") for name in ("q_ffl", "afl_boost", "above_mean")),
]


@pytest.mark.slow_cases("afl_boost-plain")
@pytest.mark.nightly_cases(but=["afl_boost-plain"])
@pytest.mark.parametrize(("name", "inner"), _CASES)
def test_every_algorithms_clients_stay_within_bounds(name, inner):
    algorithm = build(name, client_epochs=1)
    aggregation = _private(inner)
    steps = Round(algorithm, aggregation).steps
    state = tf.nest.map_structure(tf.convert_to_tensor, algorithm.initialize())
    sums: tuple[Any, ...] = ()
    states: dict[str, Any] = dict.fromkeys(_adversaries(), ())
    for step in steps:
        aggregation_state = step.initialize()
        broadcast = step.step.broadcast(state, *sums)
        message = step.message(aggregation_state, broadcast, tf.constant([1, 2], tf.int32))
        work = _traced(step, algorithm.client_data_spec)
        done = {key: work(message, client, states[key]) for key, client in _adversaries().items()}
        answers = {key: result.output for key, result in done.items()}
        if step.step.keeps_client_state:
            states = {key: result.state for key, result in done.items()}
        for encoded in answers.values():
            _assert_bounded(step, encoded)
        # At least one client reaches its bound.
        if inner.startswith("joint"):
            actual = [_joint_norm(step, answer) for answer in answers.values()]
            # Clipped counts are rounded down, the count of one client to 0, so norms end lower.
            assert max(actual) >= 0.7 * np.sqrt(sum(step.aggregation.shares))
        else:
            norms = _norms(step, answers["of many examples"])
            assert any(norm >= 0.99 * limit for norm, limit in norms.values())
        total = tf.nest.map_structure(lambda *leaves: tf.add_n(leaves), *answers.values())
        sums = (*sums, step.decode(aggregation_state, total)[1])


def _traced(step: Any, columns: Any) -> Any:
    @tf.function(autograph=False, reduce_retracing=True)
    def work(message: Any, examples: Any, state: Any) -> Any:
        return step.client_work(message, single(examples, state=state))

    def run(message: Any, client: Any, state: Any) -> Any:
        specs = {key: tf.constant(client[key], columns[key].dtype) for key in columns}
        return work(message, specs, state)

    return run


@pytest.mark.parametrize("kind", ["dict_of_inputs", "next_word"])
def test_every_model_kinds_clients_stay_within_bounds(kind):
    algorithm = build("agnostic_fed_avg", model=KINDS[kind].model(), client_epochs=1)
    (step,) = Round(algorithm, _private("plain")).steps
    state = tf.nest.map_structure(tf.convert_to_tensor, algorithm.initialize())
    broadcast = step.step.broadcast(state)
    message = step.message(step.initialize(), broadcast, tf.constant([1, 2], tf.int32))
    rng = np.random.default_rng(0)
    for size in (0, 1, 30):
        client = KINDS[kind].client(rng, size)
        examples = tf.nest.map_structure(tf.convert_to_tensor, client)
        encoded, _ = step.client_work(message, single(examples))
        _assert_bounded(step, encoded)


def random_values(rng: np.random.Generator, bounds: list[Bound], shapes: list[tuple]) -> list:
    """Returns a random value of any size for each bound; some are NaN or infinite."""
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


@pytest.mark.slow
def test_malicious_client_outputs_stay_within_bounds():
    """Malicious clients send negative counts, arbitrary floats and arbitrary integers."""
    measurement = private_measurement(logistic_regression(4, 3), NUM_DOMAINS, True)
    training = build("agnostic_fed_avg").steps[0]
    rng, norms = np.random.default_rng(7), [tf.constant(_CLIP_NORM)] * 3
    for exchange in (training, measurement.step):
        aggregation = private_sum(clip_norm=_CLIP_NORM)
        structure = exchange.bounds(aggregation.limits)
        bounds = tf.nest.flatten(structure)
        shapes = [(5,) if bound.entrywise or bound.signed else () for bound in bounds]
        groups = aggregation.groups(structure)
        shares = budget_shares(groups, 0.8)

        @tf.function(autograph=False, reduce_retracing=True)
        def clipped(values: Any, answer: Any = (bounds, groups), shares: Any = shares) -> Any:
            each, _ = clip(values, *answer, norms)
            jointly, _ = clip(values, *answer, norms, joint_shares=shares)
            return each, jointly

        for _ in range(30):
            each, jointly = clipped(random_values(rng, bounds, shapes))
            for norm, limit in _norms_and_limits(each, groups):
                assert norm <= limit
            parts = [norm / limit for norm, limit in _norms_and_limits(jointly, groups)]
            assert np.dot(shares, np.square(parts)) <= 1.0


def _norms_and_limits(sent: list, groups: Sequence[Group]) -> list[tuple[float, float]]:
    norms = [float(np.linalg.norm(flat(np.float64(sent[i]) for i in g.positions))) for g in groups]
    return list(zip(norms, [g.limit * (_CLIP_NORM if g.is_update else 1.0) for g in groups]))


def _answer(delta: Any, losses: Any, counts: Any) -> list[tf.Tensor]:
    return [
        tf.constant(v, t) for v, t in ((delta, "float32"), (losses, "float32"), (counts, "int64"))
    ]


def test_joint_clipping_equals_clipping_one_vector():
    """Delta, losses and counts have the bounds 2, 50, 10 and the shares 0.5, 0.2, 0.3."""
    bounds = [
        Bound(2.0, signed=True),
        Bound(50.0, ratio="loss", entrywise=True),
        Bound(10.0, integer=True, ratio="loss", entrywise=True, denominator=True),
    ]
    groups = [Group("update", (0,), 2.0, True), Group("l", (1,), 50.0), Group("c", (2,), 10.0)]
    shares, norms = (0.5, 0.2, 0.3), [tf.constant(0.5)]

    def clipped(delta: Any, losses: Any, counts: Any) -> list[np.ndarray]:
        answer = _answer(delta, losses, counts)
        sent, _ = clip(answer, bounds, groups, norms, joint_shares=shares)
        return [np.asarray(value) for value in sent]

    # The update's norm is 1.3: separate clipping would scale it to 1, joint clipping keeps it.
    small = clipped([1.2, 0.5], [4.0, 0.0], [2, 0])
    for actual, expected in zip(small, ([1.2, 0.5], [4.0, 0.0], [2, 0])):
        np.testing.assert_array_equal(actual, np.asarray(expected, actual.dtype))
    # Values just within the joint bound stay. A four times longer update scales all values.
    delta, losses, counts = np.float32([0.59, 0.79]), np.float32([30.0, 40.0]), np.int64([6, 8])
    for actual, expected in zip(clipped(delta, losses, counts), (delta, losses, counts)):
        np.testing.assert_array_equal(actual, expected)
    factor = 1 / np.sqrt(0.5 * (4.0**2) * (0.59**2 + 0.79**2) + 0.2 + 0.3)
    actual = clipped(4 * delta, losses, counts)
    np.testing.assert_allclose(actual[0], 4 * delta * factor, rtol=1e-5)
    np.testing.assert_array_equal(actual[2], np.floor(counts * factor))
    np.testing.assert_allclose(actual[1], losses * (np.floor(counts * factor) / counts), rtol=1e-5)


def test_evaluation_counts_every_domain_within_bounds():
    """An unclipped client with all domains counts once in each domain and once overall."""
    model = logistic_regression(4, 3)
    limits = ClientLimits(examples=20, loss=5.0)
    bounds = private_evaluation_bounds(model, NUM_DOMAINS, limits, with_client_distributions=True)
    measurement = private_measurement(model, NUM_DOMAINS, with_client_distributions=True)
    client = random_client(np.random.default_rng(0), 12, range(NUM_DOMAINS))
    examples = tf.nest.map_structure(tf.convert_to_tensor, client)
    weights = tf.nest.map_structure(tf.convert_to_tensor, model.initial_weights)
    answer = measurement.step.client_work(weights, single(examples))
    values, flat_bounds = tf.nest.flatten(answer), tf.nest.flatten(bounds)
    sent, _ = clip(values, flat_bounds, bound_groups(bounds, 1.0, 1.0), [])
    assert np.sum(answer.over_clients["loss"].num_clients) == NUM_DOMAINS + 1
    for value, actual, bound in zip(values, sent, flat_bounds):
        expected = np.zeros_like(value) if bound.public_sum == 0.0 else np.asarray(value)
        np.testing.assert_allclose(actual, expected, rtol=1e-6)


def test_scaling_keeps_ratios():
    bounds = [
        Bound(10.0, ratio="loss", entrywise=True),
        Bound(5.0, integer=True, ratio="loss", entrywise=True, denominator=True),
    ]
    losses, counts = np.float32([40.0, 3.0, 0.0]), np.int64([8, 6, 0])
    scaled_losses, scaled_counts = scaled_ratios([tf.constant(losses), tf.constant(counts)], bounds)
    assert np.linalg.norm(scaled_losses) <= 10.0
    assert np.linalg.norm(scaled_counts) <= 5.0
    present = scaled_counts.numpy() > 0
    np.testing.assert_allclose(
        (scaled_losses / tf.cast(scaled_counts, tf.float32)).numpy()[present],
        (losses / counts.clip(1))[present],
        rtol=1e-6,
    )
