"""Losses from examples that clients keep out of training: the split, and lambda's steps."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.algorithms.cases import build
from tests.computations.harness import (
    random_client,
    single,
    vectorised,
)
from tests.computations.kept_out_split import SHARE, SPLIT, split_of
from tff_agnostic.computations.domain_losses import Holdout, HoldoutOptions
from tff_agnostic.domain_weights.ascent import LambdaOptions, lambda_ascent
from tff_agnostic.errors import UserError


def _numbered(rng: np.random.Generator, size: int) -> dict[str, np.ndarray]:
    """A client whose labels are the places of its examples."""
    return {**random_client(rng, size, range(3)), "y": np.arange(size, dtype=np.int32)}


def _places(group: Any) -> list[list[int]]:
    """The places of each client's examples in a part of a split."""
    positions = tf.range(group.capacity)
    taken, has = np.asarray(group.take(positions)["y"]), np.asarray(group.has(positions))
    columns = zip(np.atleast_2d(taken), np.atleast_2d(has))
    return [row[counted].tolist() for row, counted in columns]


# The split


@pytest.mark.parametrize("share", [1e-6, 0.1, 0.5, 0.9, 0.999])
def test_every_example_is_measured_or_trained_on(share):
    rng = np.random.default_rng(0)
    clients = [_numbered(rng, n) for n in (*range(12), 1, 2, 200)]
    parts = Holdout(share, seed=3).split(vectorised(clients))
    for part in parts:
        assert np.max(part.num_examples) <= part.capacity
    for client, kept_out, trained in zip(clients, *map(_places, parts)):
        n = len(client["y"])
        assert sorted(kept_out + trained) == list(range(n))
        # In the order that they had.
        assert trained == sorted(trained)
        assert bool(trained) == (n > 0)
        if n > 1 / (1 - share):
            assert abs(len(kept_out) - share * n) < 1


def test_a_client_of_one_example_trains_on_it_and_one_of_two_on_one_at_least():
    rng = np.random.default_rng(1)
    for n, kept_out in ((1, {0}), (2, {0, 1})):
        clients = [_numbered(rng, n) for _ in range(100)]
        found, _ = Holdout(SHARE, seed=3).split(vectorised(clients))
        assert set(np.asarray(found.num_examples)) == kept_out


@pytest.mark.parametrize("n", [2, 3, 7])
def test_the_share_is_kept_out_on_average_and_of_every_place(n):
    rng = np.random.default_rng(2)
    clients = [_numbered(rng, n) for _ in range(3000)]
    kept_out, _ = Holdout(0.3, seed=5).split(vectorised(clients))
    places = np.bincount(np.concatenate(_places(kept_out)).astype(int), minlength=n) / 3000
    np.testing.assert_allclose(places, 0.3, atol=0.03)


def test_it_is_the_same_alone_in_any_group_and_in_fixed_shapes():
    rng = np.random.default_rng(3)
    clients = [_numbered(rng, n) for n in (5, 0, 1, 30, 8, 2)]
    alone = [split_of(client) for client in clients]
    for members in ((0, 1, 2, 3, 4, 5), (4, 0), (5, 2, 1)):
        parts = SPLIT.split(vectorised([clients[k] for k in members]))
        found = zip(*map(_places, parts))
        assert [list(parts) for parts in found] == [alone[k] for k in members]

    @tf.function(jit_compile=True, autograph=False)
    def counts(examples: Any) -> Any:
        # As XLA sees a client: the sizes of arrays are known, and no others.
        kept_out, trained = SPLIT.split(single(examples))
        ids = [part.take(tf.range(part.capacity))["y"] for part in (kept_out, trained)]
        return ids, kept_out.num_examples, trained.num_examples

    for client, (kept_out, trained) in zip(clients, alone):
        if len(client["y"]):
            (first, second), num_kept_out, num_trained = counts(client)
            assert first[:num_kept_out].numpy().tolist() == kept_out
            assert second[:num_trained].numpy().tolist() == trained


def test_another_seed_or_another_client_has_another_split():
    rng = np.random.default_rng(4)
    client, other = _numbered(rng, 40), _numbered(rng, 40)
    assert split_of(client) == split_of(client)
    assert split_of(client) != split_of(other)
    assert split_of(client) != split_of(client, Holdout(SHARE, seed=8))


def test_without_a_share_nothing_depends_on_the_seed():
    """Trials then share what was traced."""
    options = HoldoutOptions()
    assert options.holdout(1) == options.holdout(2)
    assert not options.holdout(1).is_active
    assert build("agnostic_fed_avg", seed=1).steps[0].client_work == (
        build("agnostic_fed_avg", seed=2).steps[0].client_work
    )


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_a_share_out_of_range_is_refused(share):
    with pytest.raises(UserError, match="--domain_loss_share: expected"):
        HoldoutOptions(domain_loss_share=share)


# Lambda


def _f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


@pytest.mark.parametrize("freeze", [False, True])
def test_a_domain_that_is_trained_on_and_not_measured_keeps_its_weight(freeze):
    options = LambdaOptions(domain_learning_rate=0.5, freeze_absent_domains=freeze)
    lambda_, losses = _f32(0.1, 0.2, 0.3, 0.4), _f32(2.0, 0.0, 1.0, 0.0)
    # The second is trained on only, the third measured only, the last absent.
    steps = lambda_ascent(options, "abcd")
    found = steps.next(lambda_, losses, _f32(5, 2, 0, 0), measured=_f32(3, 0, 1, 0))
    moves = np.array([True, False, True, not freeze])
    expected = lambda_ * np.exp(0.5 * losses)
    expected *= lambda_[moves].sum() / expected[moves].sum()
    np.testing.assert_allclose(found, np.where(moves, expected, lambda_), rtol=1e-6)


def test_in_a_box_a_loss_that_nobody_knows_is_taken_for_the_mean():
    box = LambdaOptions(lambda_set="box", lambda_upper=(0.6,), domain_learning_rate=0.5)
    lambda_, losses = _f32(0.1, 0.4, 0.5), _f32(2.0, 0.0, 1.0)
    steps = lambda_ascent(box, "abc")
    found = steps.next(lambda_, losses, _f32(5, 2, 3), measured=_f32(3, 0, 1))
    # (0.1 * 2 + 0.5 * 1) / 0.6
    expected = lambda_ * np.exp(0.5 * np.array([2.0, 7 / 6, 1.0]))
    np.testing.assert_allclose(found, expected / expected.sum(), rtol=1e-6)


def test_a_round_in_which_nothing_is_measured_leaves_lambda():
    lambda_ = _f32(0.3, 0.7)
    steps = lambda_ascent(LambdaOptions(), "ab")
    found = steps.next(lambda_, _f32(0, 0), _f32(4, 0), measured=_f32(0, 0))
    np.testing.assert_array_equal(found, lambda_)
