"""One client or many in step: how their examples lie in arrays, and how functions are applied."""

import numpy as np
import pytest
import tensorflow as tf

from tests.computations.harness import assert_all_close, make_client, random_client
from tff_agnostic.computations.clients import (
    batch_positions,
    client_seeds,
    clients_in_step,
    group_of_many,
    group_of_one,
    one_client,
    one_client_in_fixed_shapes,
)
from tff_agnostic.computations.domain_losses import domain_pass
from tff_agnostic.computations.local_training import LocalTrainingOptions, local_training
from tff_agnostic.models import logistic_regression
from tff_agnostic.models.model import ModelWeights


def _clients(*sizes: int) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [random_client(rng, size, range(3)) for size in sizes]


def test_examples_of_a_group_lie_end_to_end_with_a_row_of_zeros_after_them():
    clients = _clients(3, 0, 1, 2)
    group = group_of_many(clients)
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
    group = group_of_many(_clients(2, 5))
    for values in (group.first_row, group.num_examples, group.capacity):
        assert values.dtype == np.int32


def test_columns_may_be_mappings_of_arrays():
    clients = [
        {"x": {"a": np.full([n, 2], n), "b": np.arange(n)}, "domain_id": np.zeros([n], np.int32)}
        for n in (1, 3)
    ]
    x = group_of_many(clients).examples["x"]
    np.testing.assert_array_equal(x["a"], [[1, 1], [3, 3], [3, 3], [3, 3], [0, 0]])
    np.testing.assert_array_equal(x["b"], [0, 0, 1, 2, 0])


def test_a_group_may_consist_of_clients_without_examples():
    group = group_of_many(_clients(0, 0))
    assert group.capacity == 0
    assert len(group.examples["y"]) == 1


def test_one_client_is_a_group_without_an_axis_of_clients():
    (client,) = _clients(5)
    group = group_of_one(client)
    assert group.examples is client
    assert int(group.first_row) == 0
    assert int(group.num_examples) == int(group.capacity) == 5
    assert group.num_examples.shape == []


def test_examples_are_taken_by_their_position_in_each_client():
    clients = _clients(3, 1)
    group, positions = group_of_many(clients), tf.constant([0, 2])
    np.testing.assert_array_equal(group.has(positions), [[True, True], [True, False]])
    taken = group.take(positions)
    for name in ("x", "y", "domain_id"):
        expected = [clients[0][name][[0, 2]], clients[1][name][[0, 0]]]
        np.testing.assert_array_equal(taken[name], expected)
    np.testing.assert_array_equal(
        group.take(tf.constant([[2, 1], [0, 0]]))["x"],
        [clients[0]["x"][[2, 1]], clients[1]["x"][[0, 0]]],
    )
    alone = group_of_one(clients[0])
    np.testing.assert_array_equal(alone.has(tf.constant([2, 3])), [True, False])
    np.testing.assert_array_equal(alone.take(tf.constant([2, 3]))["x"], clients[0]["x"][[2, 2]])


def test_a_client_without_examples_has_none_that_count():
    for group in (group_of_many(_clients(2, 0)), group_of_many(_clients(0))):
        positions = tf.range(3)
        assert not np.any(group.has(positions)[-1])
        # Something is taken all the same.
        assert group.take(positions)["x"].shape == [len(group.num_examples), 3, 4]


@pytest.mark.parametrize("limit", [1, 2, 3, 9])
def test_a_group_may_be_limited_to_the_first_examples_of_each_client(limit):
    clients = _clients(3, 1, 0, 2)
    limited = group_of_many(clients).limited(limit)
    np.testing.assert_array_equal(limited.num_examples, np.minimum([3, 1, 0, 2], limit))
    # What loops over batches run to.
    assert limited.capacity == min(3, limit)
    cut = [{name: column[:limit] for name, column in client.items()} for client in clients]
    positions = tf.range(limited.capacity)
    for name in ("x", "y", "domain_id"):
        found = np.asarray(limited.take(positions)[name])[np.asarray(limited.has(positions))]
        np.testing.assert_array_equal(found, np.concatenate([client[name] for client in cut]))
    seeds = client_seeds(tf.constant([1, 2]), limited)
    np.testing.assert_array_equal(seeds, client_seeds(tf.constant([1, 2]), group_of_many(cut)))


def test_without_a_limit_a_group_is_what_it_was():
    group = group_of_many(_clients(3, 1))
    assert group.limited(None) is group


def test_end_rows_are_those_of_first_and_last_examples():
    group = group_of_many(_clients(3, 1, 0, 2))
    np.testing.assert_array_equal(group.end_rows(), [[0, 2], [3, 3], [4, 4], [4, 5]])
    np.testing.assert_array_equal(group_of_one(_clients(5)[0]).end_rows(), [[0, 4]])


def test_end_rows_of_an_empty_client_are_rows_that_exist():
    """A column is gathered there, also after the last client, and in a group of none but empty."""
    for sizes in ((2, 0), (0, 0), (0,)):
        group = group_of_many(_clients(*sizes))
        rows = np.asarray(group.end_rows())
        assert rows.shape == (len(sizes), 2)
        assert rows.min() >= 0 and rows.max() < len(group.examples["y"])


def test_one_client_without_examples_has_no_end_rows():
    assert group_of_one(_clients(0)[0]).end_rows().shape == [0, 2]


@pytest.mark.parametrize("per_client", [one_client, one_client_in_fixed_shapes, clients_in_step])
def test_a_batch_larger_than_any_client_is_one_batch_of_all(per_client):
    # Nothing of the batch's size is made: that would be 8 GiB here.
    positions = batch_positions(tf.constant(0), 2**31 - 1, tf.constant(5), per_client)
    np.testing.assert_array_equal(positions, range(5))


def test_a_function_is_applied_to_every_client():
    scale = tf.constant(10.0)

    def fn(a: tf.Tensor, parts: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        assert a.shape == []
        return a * scale, tf.reduce_sum(parts["b"])

    b = np.arange(6.0, dtype=np.float32).reshape(3, 2)
    assert not one_client.in_step
    alone = one_client(fn, tf.constant(2.0), {"b": tf.constant(b[0])})
    np.testing.assert_allclose(alone[0], 20)
    assert clients_in_step.in_step
    product, total = clients_in_step(fn, tf.constant([1.0, 2.0, 3.0]), {"b": tf.constant(b)})
    np.testing.assert_allclose(product, [10, 20, 30])
    np.testing.assert_allclose(total, b.sum(axis=1))


def test_what_does_not_depend_on_the_client_gets_an_axis_of_clients_too():
    result = clients_in_step(lambda _: tf.constant([1, 2]), tf.zeros([3]))
    np.testing.assert_array_equal(result, [[1, 2]] * 3)


@pytest.mark.parametrize("sizes", [(4, 9, 1), (0, 5), (7,), (0, 0)])
@pytest.mark.parametrize("batch_size", [3, 100])
def test_a_domain_pass_in_step_is_that_of_each_client(sizes, batch_size):
    model, clients = logistic_regression(4, 3), _clients(*sizes)
    weights = _weights()
    in_step = domain_pass(
        model, 3, weights, group_of_many(clients), batch_size=batch_size, per_client=clients_in_step
    )
    alone = [
        domain_pass(model, 3, weights, group_of_one(c), batch_size=batch_size) for c in clients
    ]
    for found, expected in zip(tf.nest.flatten(in_step), zip(*map(tf.nest.flatten, alone))):
        assert_all_close(found, np.stack(expected))


@pytest.mark.parametrize("sizes", [(4, 9, 1), (0, 5)])
def test_training_in_step_is_that_of_each_client(sizes):
    model, clients = logistic_regression(4, 3), _clients(*sizes)
    options = LocalTrainingOptions(client_learning_rate=0.5, client_epochs=2, batch_size=4)
    alpha = np.array([0.5, 1, 2], np.float32)
    seeds = tf.range(10, 10 + len(sizes), dtype=tf.int64)
    betas = tf.constant([float(max(n, 1)) for n in sizes])
    in_step = local_training(
        model, options, _weights(), group_of_many(clients), alpha, betas, seeds, clients_in_step
    )
    for k, client in enumerate(clients):
        alone = local_training(
            model, options, _weights(), group_of_one(client), alpha, betas[k], seeds[k]
        )
        assert_all_close([w[k] for w in in_step.trained], list(alone.trained))


def test_a_client_in_a_group_cannot_be_told_from_one_alone_by_its_neighbours():
    """An empty client's rows are its neighbour's, whose numbers are not finite here."""
    spoiled = make_client([[np.nan] * 4] * 2, [0, 1])
    model = logistic_regression(4, 3)
    good = _clients(5)[0]
    clients = [make_client(np.zeros([0, 4]), []), spoiled, good]
    sums = domain_pass(model, 3, _weights(), group_of_many(clients), clients_in_step, 2)
    expected = domain_pass(model, 3, _weights(), group_of_one(good), batch_size=2)
    assert_all_close(sums.losses[2], expected.losses)
    np.testing.assert_array_equal(sums.losses[0], [0, 0, 0])
    np.testing.assert_array_equal(sums.counts, [[0, 0, 0], [1, 1, 0], expected.counts])


def _weights() -> ModelWeights:
    rng = np.random.default_rng(1)
    return ModelWeights([rng.normal(size=s).astype(np.float32) for s in ([4, 3], [3])], [])
