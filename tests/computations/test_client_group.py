"""`Clients` of one or several clients: the layout of examples, and functions of each client."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tests.support.clients import make_client, random_client, single, vectorised
from tests.support.comparing import assert_all_close
from tests.support.models import random_weights
from tff_agnostic.computations.clients import (
    client_seeds,
    one_client,
    one_client_in_fixed_shapes,
    vectorised_clients,
)
from tff_agnostic.computations.domain_losses import domain_sums
from tff_agnostic.computations.local_training import ClientTraining, local_sgd
from tff_agnostic.models import logistic_regression


def _clients(*sizes: int) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [random_client(rng, size, range(3)) for size in sizes]


def test_examples_are_concatenated_and_zero_padded():
    clients = _clients(3, 0, 1, 2)
    group = vectorised(clients)
    np.testing.assert_array_equal(group.first_row, [0, 3, 3, 4])
    np.testing.assert_array_equal(group.num_examples, [3, 0, 1, 2])
    assert group.capacity == 3
    for values in (group.first_row, group.num_examples, group.capacity):
        assert values.dtype == np.int32
    for name in ("x", "y", "domain_id"):
        column = group.examples[name]
        assert column.dtype == clients[0][name].dtype
        assert len(column) == 7
        assert np.all(column[-1] == 0)
        for k, client in enumerate(clients):
            first = group.first_row[k]
            np.testing.assert_array_equal(column[first : first + len(client["y"])], client[name])


def test_columns_can_be_mappings_of_arrays():
    clients = [
        {"x": {"a": np.full([n, 2], n), "b": np.arange(n)}, "domain_id": np.zeros([n], np.int32)}
        for n in (1, 3)
    ]
    x = vectorised(clients).examples["x"]
    np.testing.assert_array_equal(x["a"], [[1, 1], [3, 3], [3, 3], [3, 3], [0, 0]])
    np.testing.assert_array_equal(x["b"], [0, 0, 1, 2, 0])


def test_take_returns_examples_by_position():
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
    # A single client's arrays have no axis of clients.
    alone = single(clients[0])
    assert alone.examples is clients[0] and alone.num_examples.shape == []
    assert (int(alone.first_row), int(alone.num_examples), int(alone.capacity)) == (0, 3, 3)
    np.testing.assert_array_equal(alone.has(tf.constant([2, 3])), [True, False])
    np.testing.assert_array_equal(alone.take(tf.constant([2, 3]))["x"], clients[0]["x"][[2, 2]])


@pytest.mark.parametrize("limit", [2, 9])
def test_limited_group_has_each_clients_first_examples(limit):
    clients = _clients(3, 1, 0, 2)
    limited = vectorised(clients).limited(limit)
    np.testing.assert_array_equal(limited.num_examples, np.minimum([3, 1, 0, 2], limit))
    assert limited.capacity == min(3, limit)
    cut = [{name: column[:limit] for name, column in client.items()} for client in clients]
    positions = tf.range(limited.capacity)
    for name in ("x", "y", "domain_id"):
        actual = np.asarray(limited.take(positions)[name])[np.asarray(limited.has(positions))]
        np.testing.assert_array_equal(actual, np.concatenate([client[name] for client in cut]))
    seeds = client_seeds(tf.constant([1, 2]), limited)
    np.testing.assert_array_equal(seeds, client_seeds(tf.constant([1, 2]), vectorised(cut)))


@pytest.mark.parametrize("map_", [one_client, one_client_in_fixed_shapes, vectorised_clients])
def test_batch_size_above_all_examples_gives_one_batch(map_):
    # An array of the batch's size would need 8 GiB.
    clients = dataclasses.replace(vectorised(_clients(5, 2)), map_=map_)
    seen = []
    clients.fold_batches(2**31 - 1, lambda batch, n: seen.append(batch) or n + 1, tf.constant(0))
    (batch,) = seen
    np.testing.assert_array_equal(batch.positions, range(5))
    np.testing.assert_array_equal(batch.is_present[1], [True, True, False, False, False])


def test_values_shared_by_clients_are_repeated_per_client():
    result = vectorised_clients(lambda _: tf.constant([1, 2]), tf.zeros([3]))
    np.testing.assert_array_equal(result, [[1, 2]] * 3)


@pytest.mark.parametrize(("sizes", "batch_size"), [((4, 9, 1), 3), ((0, 5), 100), ((0, 0), 3)])
def test_vectorised_domain_sums_match_single_clients(sizes, batch_size):
    model, clients = logistic_regression(4, 3), _clients(*sizes)
    weights = random_weights()
    together = domain_sums(model, 3, weights, vectorised(clients), batch_size=batch_size)
    alone = [domain_sums(model, 3, weights, single(c), batch_size=batch_size) for c in clients]
    for actual, expected in zip(tf.nest.flatten(together), zip(*map(tf.nest.flatten, alone))):
        assert_all_close(actual, np.stack(expected))


def test_end_rows_are_each_clients_first_and_last():
    """Columns are gathered at these rows, which must exist even if all clients are empty."""
    group = vectorised(_clients(3, 1, 0, 2))
    np.testing.assert_array_equal(group.end_rows(), [[0, 2], [3, 3], [4, 4], [4, 5]])
    for sizes in ((2, 0), (0, 0)):
        group = vectorised(_clients(*sizes))
        rows = np.asarray(group.end_rows())
        assert rows.shape == (len(sizes), 2)
        assert rows.min() >= 0 and rows.max() < len(group.examples["y"])
    assert single(_clients(0)[0]).end_rows().shape == [0, 2]


@pytest.mark.slow
def test_vectorised_client_ignores_its_neighbours():
    """An empty client gathers its neighbour's rows, which contain NaN here."""
    model, options = logistic_regression(4, 3), ClientTraining(0.5, epochs=2, batch_size=2)
    alpha, betas = np.array([0.5, 1, 2], np.float32), tf.constant([1.0, 2.0, 5.0])
    spoiled, good = make_client([[np.nan] * 4] * 2, [0, 1]), _clients(5)[0]
    clients = [make_client(np.zeros([0, 4]), []), spoiled, good]
    sums = domain_sums(model, 3, random_weights(), vectorised(clients), batch_size=2)
    expected = domain_sums(model, 3, random_weights(), single(good), batch_size=2)
    assert_all_close(sums.losses[2], expected.losses)
    np.testing.assert_array_equal(sums.losses[0], [0, 0, 0])
    np.testing.assert_array_equal(sums.counts, [[0, 0, 0], [1, 1, 0], expected.counts])
    seeds = tf.constant([10, 11, 12], tf.int64)
    together = local_sgd(model, options, random_weights(), vectorised(clients, seeds), alpha, betas)
    alone = local_sgd(model, options, random_weights(), single(good, seeds[2]), alpha, betas[2])
    assert_all_close([w[2] for w in together.trained], list(alone.trained))
