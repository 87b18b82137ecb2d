"""Vectorised, operands of any ranks are combined as they are for one client."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf

from tff_agnostic.computations.clients import vectorised_clients

_NUM_CLIENTS = 3
_SHARED = {rank: np.arange(2.0**rank, dtype=np.float32).reshape([2] * rank) for rank in range(4)}


def _per_client(rank: int) -> np.ndarray:
    return np.stack([_SHARED[rank] + np.float32(10 * k) for k in range(_NUM_CLIENTS)])


def _vectorised(fn, *args, known: bool = True):
    specs = [tf.TensorSpec([None] * np.ndim(a) if known else None, tf.float32) for a in args]
    return tf.function(
        lambda *args: vectorised_clients(fn, *args), autograph=False
    ).get_concrete_function(*specs)


@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
@pytest.mark.parametrize("rank", range(4))
@pytest.mark.parametrize("other_rank", range(4))
def test_operands_of_each_client_are_broadcast(rank, other_rank, known):
    args = _per_client(rank), np.float32(0.5) * _per_client(other_rank)
    combine = _vectorised(lambda a, b: a * b - b, *args, known=known)
    expected = np.stack([a * b - b for a, b in zip(*args)])
    np.testing.assert_array_equal(combine(*map(tf.constant, args)), expected)


@pytest.mark.parametrize("rank", range(4))
@pytest.mark.parametrize("shared_rank", range(4))
def test_operands_that_all_share_are_broadcast(rank, shared_rank):
    values, shared = _per_client(rank), _SHARED[shared_rank]
    combine = _vectorised(lambda a: tf.maximum(shared - a, 0.25), values)
    np.testing.assert_array_equal(
        combine(tf.constant(values)), np.stack([np.maximum(shared - a, 0.25) for a in values])
    )


def test_of_three_operands_the_largest_decides():
    condition, vectors, scalars = _per_client(2) > 11, _per_client(1), _per_client(0)
    select = _vectorised(lambda c, v, s: tf.where(c > 0, v, s), condition * 1.0, vectors, scalars)
    np.testing.assert_array_equal(
        select(*(tf.constant(a, tf.float32) for a in (condition, vectors, scalars))),
        np.stack([np.where(c, v, s) for c, v, s in zip(condition, vectors, scalars)]),
    )


def test_no_shape_is_computed_where_all_ranks_are_known():
    traced = _vectorised(lambda a, b: tf.exp(a) * a + b, _per_client(2), _per_client(1))
    assert "Tile" not in {op.type for op in traced.graph.get_operations()}


def test_what_others_vectorise_is_left_to_tensorflow():
    """Before, after, and in another thread while a client's function is being vectorised."""

    def others() -> set[str]:
        specs = [tf.TensorSpec([None] * rank, tf.float32) for rank in (3, 2)]
        function = tf.function(lambda a, b: tf.vectorized_map(lambda ab: ab[0] * ab[1], (a, b)))
        graph = function.get_concrete_function(*specs).graph
        return {op.type for op in graph.get_operations()}

    def of_a_client(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
        with ThreadPoolExecutor(1) as thread:
            meanwhile.append(thread.submit(others).result())
        return a * b

    before, meanwhile = others(), []
    traced = _vectorised(of_a_client, _per_client(2), _per_client(1))
    ours = {op.type for op in traced.graph.get_operations()}
    assert others() == before
    assert meanwhile and all(found == before for found in meanwhile)
    assert ours != before
