"""One client or several: how examples lie in arrays, and how functions are applied."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tests.computations.harness import (
    assert_all_close,
    make_client,
    random_client,
    single,
    vectorised,
)
from tff_agnostic.computations.clients import (
    client_seeds,
    one_client,
    one_client_in_fixed_shapes,
    vectorised_clients,
)
from tff_agnostic.computations.domain_losses import domain_sums
from tff_agnostic.computations.local_training import ClientTraining, local_sgd
from tff_agnostic.models import logistic_regression
from tff_agnostic.models.model import ModelWeights


def _clients(*sizes: int) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [random_client(rng, size, range(3)) for size in sizes]


def test_examples_of_a_group_lie_end_to_end_with_a_row_of_zeros_after_them():
    clients = _clients(3, 0, 1, 2)
    group = vectorised(clients)
    np.testing.assert_array_equal(group.first_row, [0, 3, 3, 4])
    np.testing.assert_array_equal(group.num_examples, [3, 0, 1, 2])
    assert group.capacity == 3
    for name in ("x", "y", "domain_id"):
        column = group.examples[name]
        assert column.dtype == clients[0][name].dtype
        assert len(column) == 7
        assert np.all(column[-1] == 0)
        for k, client in enumerate(clients):
            first = group.first_row[k]
            np.testing.assert_array_equal(column[first : first + len(client["y"])], client[name])


def test_positions_are_int32_as_traces_expect_them():
    group = vectorised(_clients(2, 5))
    for values in (group.first_row, group.num_examples, group.capacity):
        assert values.dtype == np.int32


def test_columns_may_be_mappings_of_arrays():
    clients = [
        {"x": {"a": np.full([n, 2], n), "b": np.arange(n)}, "domain_id": np.zeros([n], np.int32)}
        for n in (1, 3)
    ]
    x = vectorised(clients).examples["x"]
    np.testing.assert_array_equal(x["a"], [[1, 1], [3, 3], [3, 3], [3, 3], [0, 0]])
    np.testing.assert_array_equal(x["b"], [0, 0, 1, 2, 0])


def test_a_group_may_consist_of_clients_without_examples():
    group = vectorised(_clients(0, 0))
    assert group.capacity == 0
    assert len(group.examples["y"]) == 1


def test_one_client_is_a_group_without_an_axis_of_clients():
    (client,) = _clients(5)
    group = single(client)
    assert group.examples is client
    assert int(group.first_row) == 0
    assert int(group.num_examples) == int(group.capacity) == 5
    assert group.num_examples.shape == []


def test_examples_are_taken_by_their_position_in_each_client():
    clients = _clients(3, 1)
    group, positions = vectorised(clients), tf.constant([0, 2])
    np.testing.assert_array_equal(group.has(positions), [[True, True], [True, False]])
    taken = group.take(positions)
    for name in ("x", "y", "domain_id"):
        expected = [clients[0][name][[0, 2]], clients[1][name][[0, 0]]]
        np.testing.assert_array_equal(taken[name], expected)
    np.testing.assert_array_equal(
        group.take(tf.constant([[2, 1], [0, 0]]))["x"],
        [clients[0]["x"][[2, 1]], clients[1]["x"][[0, 0]]],
    )
    alone = single(clients[0])
    np.testing.assert_array_equal(alone.has(tf.constant([2, 3])), [True, False])
    np.testing.assert_array_equal(alone.take(tf.constant([2, 3]))["x"], clients[0]["x"][[2, 2]])


def test_a_client_without_examples_has_none_that_count():
    for group in (vectorised(_clients(2, 0)), vectorised(_clients(0))):
        positions = tf.range(3)
        assert not np.any(group.has(positions)[-1])
        # Something is taken all the same.
        assert group.take(positions)["x"].shape == [len(group.num_examples), 3, 4]


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1, 2, 3, 9])
def test_a_group_may_be_limited_to_the_first_examples_of_each_client(limit):
    clients = _clients(3, 1, 0, 2)
    limited = vectorised(clients).limited(limit)
    np.testing.assert_array_equal(limited.num_examples, np.minimum([3, 1, 0, 2], limit))
    # What loops over batches run to.
    assert limited.capacity == min(3, limit)
    cut = [{name: column[:limit] for name, column in client.items()} for client in clients]
    positions = tf.range(limited.capacity)
    for name in ("x", "y", "domain_id"):
        found = np.asarray(limited.take(positions)[name])[np.asarray(limited.has(positions))]
        np.testing.assert_array_equal(found, np.concatenate([client[name] for client in cut]))
    seeds = client_seeds(tf.constant([1, 2]), limited)
    np.testing.assert_array_equal(seeds, client_seeds(tf.constant([1, 2]), vectorised(cut)))


def test_without_a_limit_a_group_is_what_it_was():
    group = vectorised(_clients(3, 1))
    assert group.limited(None) is group


def test_end_rows_are_those_of_first_and_last_examples():
    group = vectorised(_clients(3, 1, 0, 2))
    np.testing.assert_array_equal(group.end_rows(), [[0, 2], [3, 3], [4, 4], [4, 5]])
    np.testing.assert_array_equal(single(_clients(5)[0]).end_rows(), [[0, 4]])


def test_end_rows_of_an_empty_client_are_rows_that_exist():
    """A column is gathered there, also after the last client, and in a group of none but empty."""
    for sizes in ((2, 0), (0, 0), (0,)):
        group = vectorised(_clients(*sizes))
        rows = np.asarray(group.end_rows())
        assert rows.shape == (len(sizes), 2)
        assert rows.min() >= 0 and rows.max() < len(group.examples["y"])


def test_one_client_without_examples_has_no_end_rows():
    assert single(_clients(0)[0]).end_rows().shape == [0, 2]


@pytest.mark.parametrize("map_", [one_client, one_client_in_fixed_shapes, vectorised_clients])
def test_a_batch_larger_than_any_client_is_one_batch_of_all(map_):
    # Nothing of the batch's size is made: that would be 8 GiB here.
    clients = dataclasses.replace(vectorised(_clients(5, 2)), map_=map_)
    seen = []
    clients.fold_batches(2**31 - 1, lambda batch, n: seen.append(batch) or n + 1, tf.constant(0))
    (batch,) = seen
    np.testing.assert_array_equal(batch.positions, range(5))
    np.testing.assert_array_equal(batch.is_present[1], [True, True, False, False, False])


@pytest.mark.slow
def test_a_function_is_applied_to_every_client():
    scale = tf.constant(10.0)

    def fn(a: tf.Tensor, parts: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        assert a.shape == []
        return a * scale, tf.reduce_sum(parts["b"])

    b = np.arange(6.0, dtype=np.float32).reshape(3, 2)
    assert not one_client.is_vectorised
    alone = one_client(fn, tf.constant(2.0), {"b": tf.constant(b[0])})
    np.testing.assert_allclose(alone[0], 20)
    assert vectorised_clients.is_vectorised
    product, total = vectorised_clients(fn, tf.constant([1.0, 2.0, 3.0]), {"b": tf.constant(b)})
    np.testing.assert_allclose(product, [10, 20, 30])
    np.testing.assert_allclose(total, b.sum(axis=1))


def test_what_does_not_depend_on_the_client_gets_an_axis_of_clients_too():
    result = vectorised_clients(lambda _: tf.constant([1, 2]), tf.zeros([3]))
    np.testing.assert_array_equal(result, [[1, 2]] * 3)


@pytest.mark.parametrize("sizes", [(4, 9, 1), (0, 5), (7,), (0, 0)])
@pytest.mark.parametrize("batch_size", [3, 100])
def test_vectorised_domain_sums_are_those_of_each_client(sizes, batch_size):
    model, clients = logistic_regression(4, 3), _clients(*sizes)
    weights = _weights()
    together = domain_sums(model, 3, weights, vectorised(clients), batch_size=batch_size)
    alone = [domain_sums(model, 3, weights, single(c), batch_size=batch_size) for c in clients]
    for found, expected in zip(tf.nest.flatten(together), zip(*map(tf.nest.flatten, alone))):
        assert_all_close(found, np.stack(expected))


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(4, 9, 1), (0, 5)])
def test_vectorised_training_is_that_of_each_client(sizes):
    model, clients = logistic_regression(4, 3), _clients(*sizes)
    options = ClientTraining(learning_rate=0.5, epochs=2, batch_size=4)
    alpha = np.array([0.5, 1, 2], np.float32)
    seeds = tf.range(10, 10 + len(sizes), dtype=tf.int64)
    betas = tf.constant([float(max(n, 1)) for n in sizes])
    together = local_sgd(model, options, _weights(), vectorised(clients, seeds), alpha, betas)
    for k, client in enumerate(clients):
        alone = local_sgd(model, options, _weights(), single(client, seeds[k]), alpha, betas[k])
        assert_all_close([w[k] for w in together.trained], list(alone.trained))


@pytest.mark.slow
def test_a_vectorised_client_cannot_be_told_from_one_alone_by_its_neighbours():
    """An empty client's rows are its neighbour's, whose numbers are not finite here."""
    spoiled = make_client([[np.nan] * 4] * 2, [0, 1])
    model = logistic_regression(4, 3)
    good = _clients(5)[0]
    clients = [make_client(np.zeros([0, 4]), []), spoiled, good]
    sums = domain_sums(model, 3, _weights(), vectorised(clients), batch_size=2)
    expected = domain_sums(model, 3, _weights(), single(good), batch_size=2)
    assert_all_close(sums.losses[2], expected.losses)
    np.testing.assert_array_equal(sums.losses[0], [0, 0, 0])
    np.testing.assert_array_equal(sums.counts, [[0, 0, 0], [1, 1, 0], expected.counts])


def _weights() -> ModelWeights:
    rng = np.random.default_rng(1)
    return ModelWeights([rng.normal(size=s).astype(np.float32) for s in ([4, 3], [3])], [])
