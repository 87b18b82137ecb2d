"""Held-out examples, on which clients measure losses: the split, lambda's steps, and rounds."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.computations import reference
from tests.support.algorithms import build
from tests.support.clients import make_client, random_client, single, vectorised
from tests.support.comparing import assert_all_close
from tests.support.options import make_options
from tests.support.rounds import EagerTraining, run_rounds
from tff_agnostic.computations import PlainSum, SecureSum, SecureSumOptions
from tff_agnostic.computations.domain_losses import Holdout
from tff_agnostic.domain_weights.ascent import LambdaPlayer, lambda_ascent
from tff_agnostic.domain_weights.sets import BoxSet

_SHARE = 0.4
# 7 is the default seed in `tests.support.algorithms.build`.
_SPLIT = Holdout(_SHARE, seed=7)


def _split(client: dict[str, np.ndarray], holdout: Holdout = _SPLIT) -> list[list[int]]:
    """Returns the positions of a client's held-out examples and of its training examples."""
    parts = holdout.split(single(client))
    return [np.asarray(part.order)[: int(part.num_examples)].tolist() for part in parts]


def _numbered(rng: np.random.Generator, size: int) -> dict[str, np.ndarray]:
    """Returns a client whose labels are the positions of its examples."""
    return {**random_client(rng, size, range(3)), "y": np.arange(size, dtype=np.int32)}


def _places(group: Any) -> list[list[int]]:
    """Returns the positions of each client's examples in one part of a split."""
    positions = tf.range(group.capacity)
    taken, has = np.asarray(group.take(positions)["y"]), np.asarray(group.has(positions))
    columns = zip(np.atleast_2d(taken), np.atleast_2d(has))
    return [row[counted].tolist() for row, counted in columns]


# --- The split


@pytest.mark.parametrize("share", [1e-6, 0.5, 0.999])
def test_every_example_is_measured_or_trained_on(share):
    rng = np.random.default_rng(0)
    clients = [_numbered(rng, n) for n in (*range(12), 1, 2, 200)]
    parts = Holdout(share, seed=3).split(vectorised(clients))
    for part in parts:
        assert np.max(part.num_examples) <= part.capacity
    for client, kept_out, trained in zip(clients, *map(_places, parts)):
        n = len(client["y"])
        assert sorted(kept_out + trained) == list(range(n))
        # Training examples keep their order.
        assert trained == sorted(trained)
        assert bool(trained) == (n > 0)
        if n > 1 / (1 - share):
            assert abs(len(kept_out) - share * n) < 1


@pytest.mark.parametrize("n", [2, 7])
def test_every_position_is_equally_often_held_out(n):
    rng = np.random.default_rng(2)
    clients = [_numbered(rng, n) for _ in range(3000)]
    kept_out, _ = Holdout(0.3, seed=5).split(vectorised(clients))
    places = np.bincount(np.concatenate(_places(kept_out)).astype(int), minlength=n) / 3000
    np.testing.assert_allclose(places, 0.3, atol=0.03)


@pytest.mark.slow
def test_split_ignores_grouping_and_compilation():
    rng = np.random.default_rng(3)
    clients = [_numbered(rng, n) for n in (5, 0, 1, 30, 8, 2)]
    alone = [_split(client) for client in clients]
    for members in ((0, 1, 2, 3, 4, 5), (4, 0), (5, 2, 1)):
        parts = _SPLIT.split(vectorised([clients[k] for k in members]))
        actual = zip(*map(_places, parts))
        assert [list(parts) for parts in actual] == [alone[k] for k in members]

    @tf.function(jit_compile=True, autograph=False)
    def counts(examples: Any) -> Any:
        # XLA knows only the sizes of whole arrays, so return the parts' sizes as well.
        kept_out, trained = _SPLIT.split(single(examples))
        ids = [part.take(tf.range(part.capacity))["y"] for part in (kept_out, trained)]
        return ids, kept_out.num_examples, trained.num_examples

    for client, (kept_out, trained) in zip(clients, alone):
        if len(client["y"]):
            (first, second), num_kept_out, num_trained = counts(client)
            assert first[:num_kept_out].numpy().tolist() == kept_out
            assert second[:num_trained].numpy().tolist() == trained


def test_seeds_and_clients_have_separate_splits():
    rng = np.random.default_rng(4)
    client, other = _numbered(rng, 40), _numbered(rng, 40)
    assert _split(client) == _split(client)
    assert _split(client) != _split(other)
    assert _split(client) != _split(client, Holdout(_SHARE, seed=8))


# --- Lambda


def _f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def test_unmeasured_domain_gets_the_mean_loss():
    box = LambdaPlayer(set=BoxSet(upper=(0.6,)), learning_rate=0.5, absent="freeze")
    lambda_, losses = _f32(0.1, 0.4, 0.5), _f32(2.0, 0.0, 1.0)
    steps = lambda_ascent(box, "abc")
    actual = steps.next(lambda_, losses, _f32(5, 2, 3), measured=_f32(3, 0, 1))
    # The measured domains have lambda 0.1 and 0.5, and losses 2 and 1, whose mean is 7 / 6.
    expected = lambda_ * np.exp(0.5 * np.array([2.0, 7 / 6, 1.0]))
    np.testing.assert_allclose(actual, expected / expected.sum(), rtol=1e-6)


def test_round_without_measurement_keeps_lambda():
    lambda_ = _f32(0.3, 0.7)
    steps = lambda_ascent(LambdaPlayer(absent="freeze"), "ab")
    actual = steps.next(lambda_, _f32(0, 0), _f32(4, 0), measured=_f32(0, 0))
    np.testing.assert_array_equal(actual, lambda_)


# --- Tests of rounds with held-out examples


class _ServerWithHoldout(reference.Server):
    """Algorithm 1 with losses L on held-out examples and counts N of training examples."""

    def round_with_holdout(self, cohort: list[dict[str, np.ndarray]]) -> None:
        alpha = self.alpha()
        no_training = self.client_params._replace(E=0)
        measured, trained = [], []
        for client in cohort:
            for places, results, params in zip(
                _split(client), (measured, trained), (no_training, self.client_params)
            ):
                part = reference.Client(
                    client["x"][places], client["y"][places], client["domain_id"][places]
                )
                results.append(reference.client(self.model, part, self.w, alpha, params))
        beta_t = sum(r.beta for r in trained)
        if beta_t > 0:
            average = [sum(r.beta * r.w[m] for r in trained) / beta_t for m in range(len(self.w))]
            self.w = self.optimizer.step(self.w, [w - a for w, a in zip(self.w, average)])
        N_t = np.sum([r.N for r in trained], axis=0)
        measured_t = np.sum([r.N for r in measured], axis=0)
        L = np.zeros_like(self.lambda_)
        is_measured = measured_t > 0
        L[is_measured] = (
            np.sum([r.L for r in measured], axis=0)[is_measured] / measured_t[is_measured]
        )
        if is_measured.any():
            self.freeze_absent = True
            self.lambda_ = self._next_lambda(L, is_measured | (N_t == 0))
        if N_t.sum() > 0:
            self.window = [*self.window[1:], N_t]


def _random_cohorts(num: int) -> list[list[dict[str, np.ndarray]]]:
    rng = np.random.default_rng(11)
    sizes = ((9, 1, 2), (1,), (2, 0, 14), (1, 1, 3, 5), (2,), (20, 4))
    # The second domain is rare, so some rounds do not measure it or do not train on it.
    return [
        [random_client(rng, n, [0, 0, 0, 0, 1, 2, 2]) for n in sizes[k % len(sizes)]]
        for k in range(num)
    ]


def _round_kind(cohort: list[dict[str, np.ndarray]], domain: int) -> tuple[bool, bool]:
    """Returns whether a round measures a domain, and whether it trains on the domain."""
    held = [[], []]
    for client in cohort:
        for ids, places in zip(held, _split(client)):
            ids += client["domain_id"][places].tolist()
    return domain in held[0], domain in held[1]


_SECURE = SecureSum(
    make_options(
        SecureSumOptions,
        limit_examples=20,
        limit_update=20.0,
        secure_bits=40,
        secure_min_clients=1,
    )
)


@pytest.mark.slow
@pytest.mark.parametrize(("aggregation", "rounds"), [(PlainSum(), 20), (_SECURE, 6)])
def test_rounds_match_reference(streaming_runtime, aggregation, rounds):
    algorithm = build(
        "agnostic_fed_avg",
        measured_share=_SHARE,
        client_shuffle=False,
        initial_counts=(9.0, 3.0, 6.0),
        lambda_initial=(0.5, 0.2, 0.3),
        lambda_absent="zero",
    )
    server = _ServerWithHoldout(
        model=reference.SOFTMAX_REGRESSION,
        w=[np.zeros([4, 3]), np.zeros([3])],
        lambda_=np.array([0.5, 0.2, 0.3]),
        window=[np.array([9.0, 3.0, 6.0])] * 2,
        gamma_lambda=0.1,
        client_params=reference.ClientParams(gamma_w=0.3, E=2, B=4),
        optimizer=reference.Sgd(),
    )
    cohorts = _random_cohorts(rounds)
    training = streaming_runtime.training(algorithm, aggregation)
    state = training.initialize()
    for cohort in cohorts:
        state, report = training.next(state, cohort)
        counts = report["client_work"]["train"]
        sent = sum(counts["num_kept_out"]) + sum(counts["num_examples"])
        assert sent == sum(len(client["y"]) for client in cohort)
        server.round_with_holdout(cohort)
        assert_all_close(state.algorithm.weights.trainable, server.w, rtol=1e-4, atol=1e-5)
        domains = state.algorithm.memory
        np.testing.assert_allclose(domains.lambda_, server.lambda_, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(domains.window, server.window)


def test_random_rounds_cover_measured_and_trained_domains():
    """Some rounds only measure the second domain, some only train on it, some do both or none."""
    kinds = {_round_kind(cohort, 1) for cohort in _random_cohorts(20)}
    assert kinds == {(a, b) for a in (False, True) for b in (False, True)}


# --- Algorithms that weight clients by losses weight unmeasured clients by the mean loss


@pytest.mark.slow
@pytest.mark.parametrize("name", ["q_ffl", "term"])
def test_client_with_one_example_gets_mean_loss(name):
    algorithm = build(name, measured_share=_SHARE, client_shuffle=False)
    training = EagerTraining(algorithm)
    rng = np.random.default_rng(10)
    state, _ = run_rounds(training, [[random_client(rng, n, range(3)) for n in (9, 14)]] * 2)
    answers = [
        training.client_output(state, client)
        for client in (make_client([[1, 2, 3, 4]], [0]), make_client([[-9, 9, 9, 9]], [1]))
    ]
    for answer in answers:
        np.testing.assert_array_equal(answer.domain_counts, [0, 0, 0])
        assert sum(answer.trained_counts.numpy()) == answer.clients.contributed == 1
    if name == "term":
        memory = state.algorithm.memory
        expected = np.exp(1.5 * (memory.mean_loss - memory.center))
        for answer in answers:
            assert float(answer.beta) == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.slow
def test_holdout_counts_occur_only_with_holdout(streaming_runtime):
    plain, apart = (
        streaming_runtime.training(build("agnostic_fed_avg", measured_share=share), PlainSum())
        for share in (0.0, _SHARE)
    )
    names = [set(t.quantities["client_work"]["train"]) for t in (plain, apart)]
    assert names[1] - names[0] == {"num_kept_out"}
    algorithm = build("agnostic_fed_avg")
    training = EagerTraining(algorithm)
    output = training.client_output(training.initialize(), _random_cohorts(1)[0][0])
    assert tf.nest.flatten(output.trained_counts) == []
    # Algorithms that differ only in their seeds share traces.
    works = [build("agnostic_fed_avg", seed=seed).steps[0].client_work for seed in (1, 2)]
    assert works[0] == works[1]
