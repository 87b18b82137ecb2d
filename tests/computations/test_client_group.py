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


@pytest.mark.parametrize("sizes", [(2, 0), (0, 0), (3, 1, 2)])
def test_clients_have_equal_seeds_alone_and_together(sizes):
    """Seeds depend on clients' first and last rows, which an empty client lacks."""
    clients, round_seed = _clients(*sizes), tf.constant([1, 2])
    together = client_seeds(round_seed, vectorised(clients))
    np.testing.assert_array_equal(together, [client_seeds(round_seed, single(c)) for c in clients])


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
