"""Rounds whose losses are of examples kept out of training, against NumPy and by what they send."""

import numpy as np
import pytest

from tests.algorithms.cases import build
from tests.computations import reference
from tests.computations.harness import (
    EagerTraining,
    assert_identical,
    make_client,
    random_client,
    run_rounds,
)
from tests.computations.kept_out_split import SHARE, split_of
from tff_agnostic.computations import PlainSum


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


@pytest.mark.parametrize("update", ["exponentiated_gradient", "projected_gradient"])
def test_rounds_are_those_of_the_reference(streaming_runtime, update):
    algorithm = build(
        "agnostic_fed_avg",
        domain_loss_share=SHARE,
        shuffle=False,
        domain_weight_update=update,
        initial_domain_counts=(9.0, 3.0, 6.0),
        initial_domain_weights=(0.5, 0.2, 0.3),
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
        domains = state.algorithm.domains
        np.testing.assert_allclose(domains.lambda_, server.lambda_, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(domains.window, server.window)


def test_a_domain_whose_only_example_is_kept_out_is_measured_and_not_scaled_anew():
    rng = np.random.default_rng(6)
    # Drawn until the only example of domain 2 is one that is kept out.
    while True:
        client = random_client(rng, 6, [0, 1])
        client["domain_id"][3] = 2
        kept_out, trained = split_of(client)
        if 3 in kept_out:
            break
    training = EagerTraining(build("agnostic_fed_avg", domain_loss_share=SHARE))
    before = training.initialize()
    after, report = training.next(before, [client])
    train = report["client_work"]["train"]
    assert train["num_kept_out"][2] == 1 and train["num_examples"][2] == 0
    assert train["loss"][2] == pytest.approx(np.log(3), rel=1e-5)
    domains = after.algorithm.domains
    assert domains.window[-1][2] == 0
    # No count to scale by but those before.
    assert np.all(np.asarray(domains.mean_counts) > 0)
    assert int(np.sum(train["num_kept_out"])) == len(kept_out)
    assert int(np.sum(train["num_examples"])) == len(trained)


def test_what_is_measured_is_not_trained_on():
    """Clients whose kept-out examples are another's give the same model, and other losses."""
    rng = np.random.default_rng(9)
    client = random_client(rng, 12, range(3))
    kept_out, _ = split_of(client)
    inner = [place for place in kept_out if 0 < place < 11]
    changed = {**client, "x": client["x"].copy()}
    # The first and the last example are in the seed of the split.
    changed["x"][inner] += 3.0
    training = EagerTraining(build("agnostic_fed_avg", domain_loss_share=SHARE))
    state, _ = run_rounds(training, [[client]])
    one, other = (training.next(state, [c]) for c in (client, changed))
    assert_identical(one[0].algorithm.weights, other[0].algorithm.weights)
    assert not np.array_equal(one[0].algorithm.domains.lambda_, other[0].algorithm.domains.lambda_)


# Clients that measure nothing, in algorithms that weigh clients by their losses


@pytest.mark.parametrize("name", ["q_ffl", "term"])
def test_a_client_of_one_example_weighs_as_one_of_the_usual_loss(name):
    algorithm = build(name, domain_loss_share=SHARE, shuffle=False)
    training = EagerTraining(algorithm)
    rng = np.random.default_rng(10)
    state, _ = run_rounds(training, [[random_client(rng, n, range(3)) for n in (9, 14)]] * 2)
    answers = [
        training.client_output(state, client)
        for client in (make_client([[1, 2, 3, 4]], [0]), make_client([[-9, 9, 9, 9]], [1]))
    ]
    for answer in answers:
        np.testing.assert_array_equal(answer.sums.counts, [0, 0, 0])
        assert sum(answer.sums.trained.numpy()) == answer.clients.contributed == 1
    if name == "term":
        own = state.algorithm
        expected = np.exp(1.5 * (own.mean_loss - own.center))
        for answer in answers:
            assert float(answer.weight) == pytest.approx(float(expected), rel=1e-5)
