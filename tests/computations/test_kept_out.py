"""Losses from examples that clients keep out of training: the split, and lambda's steps."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.algorithms.cases import NUM_DOMAINS, build
from tests.computations import reference
from tests.computations.harness import (
    EagerTraining,
    assert_all_close,
    make_client,
    random_client,
    run_rounds,
    single,
    vectorised,
)
from tests.computations.kept_out_split import SHARE, SPLIT, split_of
from tests.marks import usually
from tests.options import make_options
from tff_agnostic.base.errors import UserError
from tff_agnostic.computations import PlainSum, SecureSum, SecureSumOptions
from tff_agnostic.computations.domain_losses import Holdout, HoldoutOptions
from tff_agnostic.domain_weights.ascent import LambdaPlayer, lambda_ascent
from tff_agnostic.domain_weights.sets import BoxSet
from tff_agnostic.runtimes import CohortRuntime
from tff_agnostic.runtimes.options import CohortOptions


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


@pytest.mark.parametrize("n", [2, 3, 7])
def test_the_share_is_kept_out_on_average_and_of_every_place(n):
    rng = np.random.default_rng(2)
    clients = [_numbered(rng, n) for _ in range(3000)]
    kept_out, _ = Holdout(0.3, seed=5).split(vectorised(clients))
    places = np.bincount(np.concatenate(_places(kept_out)).astype(int), minlength=n) / 3000
    np.testing.assert_allclose(places, 0.3, atol=0.03)


@pytest.mark.slow
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
def test_rejects_share_out_of_range(share):
    with pytest.raises(UserError, match=r"^measured_share: expected"):
        HoldoutOptions(measured_share=share)


# Lambda


def _f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


@pytest.mark.parametrize("freeze", [False, True])
def test_a_domain_that_is_trained_on_and_not_measured_keeps_its_weight(freeze):
    player = LambdaPlayer(learning_rate=0.5, absent="freeze" if freeze else "zero")
    lambda_, losses = _f32(0.1, 0.2, 0.3, 0.4), _f32(2.0, 0.0, 1.0, 0.0)
    # The second is trained on only, the third measured only, the last absent.
    steps = lambda_ascent(player, "abcd")
    found = steps.next(lambda_, losses, _f32(5, 2, 0, 0), measured=_f32(3, 0, 1, 0))
    moves = np.array([True, False, True, not freeze])
    expected = lambda_ * np.exp(0.5 * losses)
    expected *= lambda_[moves].sum() / expected[moves].sum()
    np.testing.assert_allclose(found, np.where(moves, expected, lambda_), rtol=1e-6)


def test_in_a_box_a_loss_that_nobody_knows_is_taken_for_the_mean():
    box = LambdaPlayer(set=BoxSet(upper=(0.6,)), learning_rate=0.5, absent="freeze")
    lambda_, losses = _f32(0.1, 0.4, 0.5), _f32(2.0, 0.0, 1.0)
    steps = lambda_ascent(box, "abc")
    found = steps.next(lambda_, losses, _f32(5, 2, 3), measured=_f32(3, 0, 1))
    # (0.1 * 2 + 0.5 * 1) / 0.6
    expected = lambda_ * np.exp(0.5 * np.array([2.0, 7 / 6, 1.0]))
    np.testing.assert_allclose(found, expected / expected.sum(), rtol=1e-6)


def test_a_round_in_which_nothing_is_measured_leaves_lambda():
    lambda_ = _f32(0.3, 0.7)
    steps = lambda_ascent(LambdaPlayer(absent="freeze"), "ab")
    found = steps.next(lambda_, _f32(0, 0), _f32(4, 0), measured=_f32(0, 0))
    np.testing.assert_array_equal(found, lambda_)


# --- Rounds whose losses are of examples kept out of training, against NumPy and by what they send


class _ServerApart(reference.Server):
    """Algorithm 1 where L is of examples that are kept out, and N of those that are trained on."""

    def round_apart(self, cohort: list[dict[str, np.ndarray]]) -> None:
        alpha = self.alpha()
        no_training = self.client_params._replace(E=0)
        measured, trained = [], []
        for client in cohort:
            for places, results, params in zip(
                split_of(client), (measured, trained), (no_training, self.client_params)
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
        known = measured_t > 0
        L[known] = np.sum([r.L for r in measured], axis=0)[known] / measured_t[known]
        if known.any():
            self.freeze_absent = True
            self.lambda_ = self._next_lambda(L, known | (N_t == 0))
        if N_t.sum() > 0:
            self.window = [*self.window[1:], N_t]


def _cohorts(num: int) -> list[list[dict[str, np.ndarray]]]:
    rng = np.random.default_rng(11)
    sizes = ((9, 1, 2), (1,), (2, 0, 14), (1, 1, 3, 5), (2,), (20, 4))
    # The second domain is rare: some rounds do not measure it, or do not train on it.
    return [
        [random_client(rng, n, [0, 0, 0, 0, 1, 2, 2]) for n in sizes[k % len(sizes)]]
        for k in range(num)
    ]


def _kind_of_round(cohort: list[dict[str, np.ndarray]], domain: int) -> tuple[bool, bool]:
    """Whether a domain is measured in a round, and whether it is trained on."""
    held = [[], []]
    for client in cohort:
        for ids, places in zip(held, split_of(client)):
            ids += client["domain_id"][places].tolist()
    return domain in held[0], domain in held[1]


# What is kept out decides which losses lambda's step has, whatever the step.
@pytest.mark.slow
@pytest.mark.parametrize(
    "update",
    ["exponentiated_gradient", "projected_gradient"],
)
def test_rounds_are_those_of_the_reference(streaming_runtime, update):
    algorithm = build(
        "agnostic_fed_avg",
        measured_share=SHARE,
        client_shuffle=False,
        lambda_update=update,
        initial_counts=(9.0, 3.0, 6.0),
        lambda_initial=(0.5, 0.2, 0.3),
        lambda_absent="zero",
    )
    server = _ServerApart(
        model=reference.SOFTMAX_REGRESSION,
        w=[np.zeros([4, 3]), np.zeros([3])],
        lambda_=np.array([0.5, 0.2, 0.3]),
        window=[np.array([9.0, 3.0, 6.0])] * 2,
        gamma_lambda=0.1,
        client_params=reference.ClientParams(gamma_w=0.3, E=2, B=4),
        optimizer=reference.Sgd(),
        lambda_update=update,
    )
    cohorts = _cohorts(20)
    # Every kind of round is among them: a domain whose examples are all kept out, too.
    kinds = {_kind_of_round(cohort, 1) for cohort in cohorts}
    assert kinds == {(a, b) for a in (False, True) for b in (False, True)}
    training = streaming_runtime.training(algorithm, PlainSum())
    state = training.initialize()
    for cohort in cohorts:
        state, _ = training.next(state, cohort)
        server.round_apart(cohort)
        for found, expected in zip(state.algorithm.weights.trainable, server.w):
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        domains = state.algorithm.memory
        np.testing.assert_allclose(domains.lambda_, server.lambda_, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(domains.window, server.window)


# Clients that measure nothing, in algorithms that weigh clients by their losses


@pytest.mark.slow
@pytest.mark.parametrize("name", ["q_ffl", "term"])
def test_a_client_of_one_example_weighs_as_one_of_the_usual_loss(name):
    algorithm = build(name, measured_share=SHARE, client_shuffle=False)
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


# --- Rounds with examples kept out are the same however clients and sums are run


def _everywhere(name: str) -> Any:
    return build(name, measured_share=SHARE, client_shuffle=True)


_EVERYWHERE = [
    [random_client(np.random.default_rng(20 + k), n, range(NUM_DOMAINS)) for n in sizes]
    for k, sizes in enumerate([(9, 0, 1, 14, 6), (2, 1, 11), ()])
]


@pytest.fixture(scope="module")
def streamed_rounds(streaming_runtime) -> Callable[[str], Any]:
    """Rounds of an algorithm whose clients run one by one."""

    @functools.cache
    def run(name: str) -> Any:
        training = streaming_runtime.training(_everywhere(name), PlainSum())
        return run_rounds(training, _EVERYWHERE)

    return run


def _assert_same(found: Any, expected: Any, rtol: float = 1e-4) -> None:
    assert_all_close(found[0].algorithm, expected[0].algorithm, rtol=rtol, atol=1e-5)
    for report, expected_report in zip(found[1], expected[1]):
        for key in ("client_work", "domain_weights", "clients"):
            found_part, expected_part = report.get(key, {}), expected_report.get(key, {})
            assert_all_close(found_part, expected_part, rtol=rtol, atol=1e-5)


@pytest.mark.nightly_cases("delta_fl-2")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "group"),
    usually(
        [("delta_fl", 2)],
        [
            ("agnostic_fed_avg", 2),
            ("delta_fl", 2),
            ("q_ffl", 5),
            ("stochastic_afl", 2),
            ("term", 5),
        ],
    ),
)
def test_vectorised_clients_do_the_same(streamed_rounds, name, group):
    options = CohortOptions(client_mode="vectorised", max_clients_in_step=group)
    with CohortRuntime(options) as runtime:
        found = run_rounds(runtime.training(_everywhere(name), PlainSum()), _EVERYWHERE)
    _assert_same(found, streamed_rounds(name))


@pytest.mark.nightly
def test_xla_does_the_same(cohort_runtime):
    cohorts = [[_EVERYWHERE[0][k] for k in (0, 2)]] * 2
    with CohortRuntime(CohortOptions(client_mode="streamed", xla=True)) as runtime:
        found, expected = (
            run_rounds(running.training(_everywhere("agnostic_fed_avg"), PlainSum()), cohorts)
            for running in (runtime, cohort_runtime)
        )
    _assert_same(found, expected)


@pytest.mark.slow
def test_tff_does_the_same(tff_runtime, streamed_rounds):
    training = tff_runtime.training(_everywhere("agnostic_fed_avg"), PlainSum())
    _assert_same(run_rounds(training, _EVERYWHERE), streamed_rounds("agnostic_fed_avg"))


@pytest.mark.slow
def test_secure_sums_carry_both_counts(streaming_runtime, streamed_rounds):
    name = "agnostic_fed_avg"
    aggregation = SecureSum(
        make_options(SecureSumOptions, limit_examples=20, limit_update=20.0, secure_bits=40)
    )
    training = streaming_runtime.training(_everywhere(name), aggregation)
    found = run_rounds(training, _EVERYWHERE)
    _assert_same(found, streamed_rounds(name))
    counts = found[1][0]["client_work"]["train"]
    for key in ("num_kept_out", "num_examples"):
        assert sum(counts[key]) > 0
    assert sum(counts["num_kept_out"]) + sum(counts["num_examples"]) == 30
    for report in found[1]:
        assert not any(report["aggregator"]["clipped"].values())


@pytest.mark.slow
def test_without_a_share_nothing_more_is_sent_or_reported(streaming_runtime):
    plain, apart = (
        streaming_runtime.training(build("agnostic_fed_avg", measured_share=share), PlainSum())
        for share in (0.0, SHARE)
    )
    names = [set(t.quantities["client_work"]["train"]) for t in (plain, apart)]
    assert names[1] - names[0] == {"num_kept_out"}
    algorithm = build("agnostic_fed_avg")
    training = EagerTraining(algorithm)
    output = training.client_output(training.initialize(), _EVERYWHERE[0][0])
    assert tf.nest.flatten(output.trained_counts) == []
    assert dataclasses.asdict(HoldoutOptions()) == {"measured_share": 0.0}
