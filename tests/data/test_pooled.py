"""Examples of all clients in one place: each pass has each of them once, in another order."""

import numpy as np
import pytest

from tff_agnostic.data.clients import InMemoryClients
from tff_agnostic.data.sampling import PooledExamples, dealt


@pytest.mark.parametrize(("num_examples", "size"), [(10, 4), (10, 25), (7, 7), (1, 3)])
def test_each_pass_has_each_example_once(num_examples, size):
    rounds = 12
    stream = np.concatenate([dealt(num_examples, size, t, 3) for t in range(1, rounds + 1)])
    assert len(stream) == rounds * size
    whole = stream[: len(stream) // num_examples * num_examples].reshape(-1, num_examples)
    for pass_rows in whole:
        np.testing.assert_array_equal(np.sort(pass_rows), np.arange(num_examples))


def test_passes_and_seeds_have_different_orders():
    first, second, other = dealt(50, 50, 1, 3), dealt(50, 50, 2, 3), dealt(50, 50, 1, 4)
    assert not np.array_equal(first, second) and not np.array_equal(first, other)
    np.testing.assert_array_equal(dealt(50, 50, 1, 3), first)


def test_rounds_have_mean_size_and_complete_rows():
    sizes, clients, first = (3, 9, 6, 6), {}, 0
    for k, size in enumerate(sizes):
        ids = np.arange(first, first + size, dtype=np.float32)
        clients[f"c{k}"] = {
            "x": {"a": ids[:, np.newaxis], "b": 2 * ids},
            "y": 3 * ids,
            "domain_id": np.full(size, k, np.int32),
        }
        first += size
    pooled = PooledExamples(InMemoryClients(clients), 2, 4, seed=5)
    draw = pooled.draw()
    (one,), (two,) = (list(map(pooled.read, draw(t))) for t in (1, 2))
    # Half of the clients get half of the 24 examples, so that two rounds are a pass.
    assert len(one["y"]) == len(two["y"]) == 12
    result = np.concatenate([one["y"], two["y"]]) / 3
    np.testing.assert_array_equal(np.sort(result), np.arange(24))
    owners = np.repeat(np.arange(4), sizes)
    for examples in (one, two):
        ids = examples["y"] / 3
        np.testing.assert_array_equal(examples["x"]["a"][:, 0], ids)
        np.testing.assert_array_equal(examples["x"]["b"], 2 * ids)
        np.testing.assert_array_equal(examples["domain_id"], owners[ids.astype(int)])
    # A run of more rounds continues after this one.
    longer = PooledExamples(InMemoryClients(clients), 2, 9, seed=5)
    shorter = PooledExamples(InMemoryClients(clients), 2, 4, seed=5)
    name = longer.draw()(3)[0]
    np.testing.assert_array_equal(longer.read(name)["y"], shorter.read(name)["y"])
