"""The references against results that need no code of the project: by hand, and by identities."""

import numpy as np
import pytest
from scipy import optimize

from tests.algorithms.references import fed_boost as reference
from tests.algorithms.references.above_mean import above_mean_round
from tests.algorithms.references.fed_avg_sub import fed_avg_sub_round
from tests.algorithms.references.fed_prox import fed_prox_round, train_proximal
from tests.algorithms.references.local_sgd import LocalSgd, fed_avg_round, train
from tests.algorithms.references.q_fed_avg import (
    q_fed_avg_message,
    q_fed_avg_round,
    scale_free_round,
)
from tests.algorithms.references.softmax import SOFTMAX, Model, losses, mean_loss, summed_gradient
from tests.algorithms.references.term import term_round, tilted_loss, tilted_weights

_FEATURES, _CLASSES = 4, 3
# Float64 throughout: what is the same on paper differs by rounding alone.
_RTOL = 1e-11
_SGD = LocalSgd(eta=0.3, epochs=2, batch_size=4)

# One weight w; an example's loss is (a/2) w^2, where a is its only feature.
_QUADRATIC = Model(
    losses=lambda w, x, y: x[:, 0] / 2 * w[0] ** 2,
    summed_gradient=lambda w, x, y: [x[:, 0].sum() * w[0]],
)


def _client(seed, n):
    rng = np.random.default_rng(seed)
    return {
        "x": rng.normal(size=(n, _FEATURES)).astype(np.float32),
        "y": rng.integers(_CLASSES, size=n).astype(np.int32),
        "domain_id": rng.integers(2, size=n).astype(np.int32),
    }


def _quadratic_client(*a):
    return {
        "x": np.array(a, np.float32)[:, None],
        "y": np.zeros(len(a), np.int32),
        "domain_id": np.zeros(len(a), np.int32),
    }


def _not_finite(n):
    client = _client(99, n)
    client["x"][-1, 0] = np.nan
    return client


# At w = 1e100 its loss is finite, and its six steps of _SGD each multiply w by 3e37 or so.
_DIVERGING = _quadratic_client(*[1e38] * 12)


@pytest.fixture
def w():
    rng = np.random.default_rng(0)
    return [rng.normal(size=(_FEATURES, _CLASSES)), rng.normal(size=_CLASSES)]


@pytest.fixture
def clients():
    return [_client(1, 9), _client(2, 4), _client(3, 14)]


def _assert_close(actual, expected, rtol=_RTOL):
    assert len(actual) == len(expected)
    for actual_m, expected_m in zip(actual, expected):
        np.testing.assert_allclose(actual_m, expected_m, rtol=rtol, atol=1e-13)


def _distance(w, other):
    return np.sqrt(sum(np.sum((a - b) ** 2) for a, b in zip(w, other)))


class TestSoftmax:
    def test_losses_by_hand(self):
        w = [np.zeros((2, 2)), np.array([np.log(3.0), 0.0])]
        x, y = np.zeros((2, 2)), np.array([0, 1])
        np.testing.assert_allclose(losses(w, x, y), [np.log(4 / 3), np.log(4)])

    def test_gradient_against_finite_differences(self, w):
        x, y = _client(5, 7)["x"].astype(np.float64), _client(5, 7)["y"]
        step = 1e-6
        for m, gradient in enumerate(summed_gradient(w, x, y)):
            for index in np.ndindex(gradient.shape):
                value = w[m][index]
                w[m][index] = value + step
                above = losses(w, x, y).sum()
                w[m][index] = value - step
                below = losses(w, x, y).sum()
                w[m][index] = value
                assert gradient[index] == pytest.approx((above - below) / (2 * step), abs=1e-7)

    def test_large_scores_stay_finite(self):
        w = [np.array([[1e4, -1e4]]), np.zeros(2)]
        x, y = np.ones((1, 1)), np.array([1])
        np.testing.assert_allclose(losses(w, x, y), [2e4])
        _assert_close(summed_gradient(w, x, y), [[[1.0, -1.0]], [1.0, -1.0]])


class TestLocalSgd:
    @pytest.mark.parametrize(
        ("divisor", "expected"),
        [
            # Batches (1, 2) and (4): gradients 3w and 4w, over n_k = 3 or over 2 and 1.
            ("client", (1 - 0.1 * 3 / 3) * (1 - 0.1 * 4 / 3)),
            ("batch", (1 - 0.1 * 3 / 2) * (1 - 0.1 * 4 / 1)),
        ],
    )
    def test_an_epoch_with_a_smaller_last_batch(self, divisor, expected):
        client = _quadratic_client(1.0, 2.0, 4.0)
        sgd = LocalSgd(eta=0.1, batch_size=2, divisor=divisor)
        _assert_close(train(_QUADRATIC, [1.0], client, sgd), [expected])
        twice = LocalSgd(eta=0.1, epochs=2, batch_size=2, divisor=divisor)
        _assert_close(train(_QUADRATIC, [1.0], client, twice), [expected**2])

    def test_a_full_batch_has_one_divisor(self, w):
        client = _client(1, 5)
        _assert_close(
            train(SOFTMAX, w, client, LocalSgd(0.3, divisor="client")),
            train(SOFTMAX, w, client, LocalSgd(0.3, batch_size=5, divisor="batch")),
        )

    def test_fed_avg_by_hand(self):
        clients = [_quadratic_client(1.0), _quadratic_client(2.0, 2.0, 2.0)]
        # w_k = 1 - 0.1 a.
        by_examples = fed_avg_round(_QUADRATIC, [1.0], clients, LocalSgd(0.1))
        _assert_close(by_examples, [(1 * 0.9 + 3 * 0.8) / 4])
        equally = fed_avg_round(_QUADRATIC, [1.0], clients, LocalSgd(0.1), weighting="equal")
        _assert_close(equally, [0.85])


class TestQFedAvg:
    @pytest.mark.parametrize("weighting", ["equal", "examples"])
    def test_q_0_is_fed_avg(self, w, clients, weighting):
        _assert_close(
            q_fed_avg_round(SOFTMAX, w, clients, 0.0, _SGD, weighting),
            fed_avg_round(SOFTMAX, w, clients, _SGD, weighting),
        )

    @pytest.mark.parametrize("weighting", ["equal", "examples"])
    @pytest.mark.parametrize("q", [0.0, 0.5, 1.0, 5.0, 10.0])
    @pytest.mark.parametrize("cref", [0.1, 1.0, 7.3])
    def test_cref_changes_nothing(self, w, clients, weighting, q, cref):
        _assert_close(
            scale_free_round(SOFTMAX, w, clients, q, _SGD, cref, weighting),
            q_fed_avg_round(SOFTMAX, w, clients, q, _SGD, weighting),
        )

    @pytest.mark.parametrize("q", [0.0, 1.0, 2.5])
    def test_one_device_with_a_quadratic_loss_by_hand(self, q):
        a, w, eta = 3.0, 2.0, 0.1
        F, gradient, L = a / 2 * w**2, a * w, 1 / eta
        # w - F^q a w / (q F^{q-1} a^2 w^2 + L F^q), and a^2 w^2 / F = 2 a.
        expected = w - gradient / (2 * q * a + L)
        assert F == 6.0
        client = _quadratic_client(a)
        message = q_fed_avg_message(_QUADRATIC, [w], client, q, LocalSgd(eta))
        # 1e-9, since the offset of F is here left out.
        _assert_close(message.Delta, [6.0**q * 6.0], rtol=1e-9)
        assert message.h == pytest.approx(q * 6.0 ** (q - 1) * 36.0 + 10.0 * 6.0**q, rel=1e-9)
        _assert_close(
            q_fed_avg_round(_QUADRATIC, [w], [client], q, LocalSgd(eta)), [expected], rtol=1e-9
        )

    def test_two_devices_by_hand(self):
        # At w = 1, eta = 1/10, q = 1: F = a/2, Dw = a; Delta = a^2/2, h = a^2 + 10 a/2.
        clients = [_quadratic_client(2.0), _quadratic_client(4.0, 4.0, 4.0)]
        equal = q_fed_avg_round(_QUADRATIC, [1.0], clients, 1.0, LocalSgd(0.1))
        _assert_close(equal, [1 - (2 + 8) / (14 + 36)], rtol=1e-9)
        examples = q_fed_avg_round(_QUADRATIC, [1.0], clients, 1.0, LocalSgd(0.1), "examples")
        _assert_close(examples, [1 - (2 + 3 * 8) / (14 + 3 * 36)], rtol=1e-9)

    def test_the_loss_is_that_before_training(self, w):
        client = _client(1, 9)
        # Delta_k / Dw_k = F^q in every entry, but for the offset of F.
        message = q_fed_avg_message(SOFTMAX, w, client, 2.0, _SGD)
        w_k = train(SOFTMAX, w, client, _SGD)
        ratio = message.Delta[0][0, 0] / ((w[0] - w_k[0])[0, 0] / _SGD.eta)
        assert ratio == pytest.approx(mean_loss(SOFTMAX, w, client) ** 2, rel=1e-8)

    @pytest.mark.parametrize("q", [0.5, 1.0])
    def test_a_device_whose_loss_is_0(self, q):
        clients = [_quadratic_client(0.0), _quadratic_client(2.0)]
        both = q_fed_avg_round(_QUADRATIC, [1.0], clients, q, LocalSgd(0.1))
        other = q_fed_avg_round(_QUADRATIC, [1.0], clients[1:], q, LocalSgd(0.1))
        # All that is left of it is its offset: L 1e-10^q in the sum of h.
        _assert_close(both, other, rtol=1e-4)


class TestFedProx:
    @pytest.mark.parametrize("divisor", ["client", "batch"])
    def test_mu_0_is_fed_avg(self, w, clients, divisor):
        sgd = LocalSgd(eta=0.3, epochs=2, batch_size=4, divisor=divisor)
        _assert_close(
            fed_prox_round(SOFTMAX, w, clients, sgd, 0.0), fed_avg_round(SOFTMAX, w, clients, sgd)
        )

    def test_one_local_step_has_no_effect(self, w, clients):
        sgd = LocalSgd(eta=0.3)
        _assert_close(
            fed_prox_round(SOFTMAX, w, clients, sgd, 5.0), fed_avg_round(SOFTMAX, w, clients, sgd)
        )

    def test_two_local_steps_by_hand(self):
        # From w = 1 with a = 2 and eta = 0.1: 0.8, then 0.8 - 0.1 (2 * 0.8 + mu (0.8 - 1)).
        client = _quadratic_client(2.0)
        w_k = train_proximal(_QUADRATIC, [1.0], client, LocalSgd(0.1, epochs=2), mu=3.0)
        _assert_close(w_k, [0.64 + 0.06])

    def test_the_client_stays_nearer_with_a_larger_mu(self, w):
        sgd = LocalSgd(eta=0.1, epochs=5, batch_size=4)
        distances = [
            _distance(train_proximal(SOFTMAX, w, _client(1, 9), sgd, mu), w)
            for mu in (0.0, 0.01, 0.1, 1.0, 5.0)
        ]
        assert distances == sorted(distances, reverse=True)
        assert distances[-1] < 0.8 * distances[0]


class TestTerm:
    def test_two_devices_by_hand(self):
        # At w = 1: F = a/2, and w_k = 1 - 0.1 a. With t = log 2 a loss that is 1 larger weighs
        # twice as much: 2 * 1 against 1 * 3.
        clients = [_quadratic_client(4.0), _quadratic_client(2.0, 2.0, 2.0)]
        w = term_round(_QUADRATIC, [1.0], clients, np.log(2), LocalSgd(0.1))
        _assert_close(w, [(2 * 0.6 + 3 * 0.8) / 5])
        equal = term_round(_QUADRATIC, [1.0], clients, np.log(2), LocalSgd(0.1), "equal")
        _assert_close(equal, [(2 * 0.6 + 1 * 0.8) / 3])

    @pytest.mark.parametrize("weighting", ["equal", "examples"])
    def test_t_0_is_fed_avg(self, w, clients, weighting):
        _assert_close(
            term_round(SOFTMAX, w, clients, 0.0, _SGD, weighting),
            fed_avg_round(SOFTMAX, w, clients, _SGD, weighting),
        )

    @pytest.mark.parametrize(("t", "chosen"), [(1e6, np.argmax), (-1e6, np.argmin)])
    def test_a_large_t_leaves_one_client(self, w, clients, t, chosen):
        one = clients[int(chosen([mean_loss(SOFTMAX, w, client) for client in clients]))]
        _assert_close(term_round(SOFTMAX, w, clients, t, _SGD), train(SOFTMAX, w, one, _SGD))

    @pytest.mark.parametrize("t", [0.3, 4.0, -2.0])
    def test_the_weights_are_the_gradient_of_the_objective(self, t):
        F, p, step = np.array([0.5, 1.7, 3.0]), np.array([5.0, 1.0, 2.0]), 1e-6
        for k, weight in enumerate(tilted_weights(F, p, t)):
            ends = [tilted_loss(F + sign * step * np.eye(3)[k], p, t) for sign in (1, -1)]
            assert weight == pytest.approx((ends[0] - ends[1]) / (2 * step), abs=1e-8)


class TestFedAvgSub:
    def test_it_is_fed_avg_of_those_who_are_drawn(self, w, clients):
        found = fed_avg_sub_round(SOFTMAX, w, clients, [True, False, True], _SGD)
        _assert_close(found, fed_avg_round(SOFTMAX, w, [clients[0], clients[2]], _SGD))
        _assert_close(fed_avg_sub_round(SOFTMAX, w, clients, [False] * 3, _SGD), w)


class TestAboveMean:
    def test_by_hand(self):
        # Losses at w = 1: 1, 3, 2; their mean, 2, is met by the last one.
        clients = [
            _quadratic_client(2.0),
            _quadratic_client(6.0),
            _quadratic_client(3.0, 5.0),
        ]
        w, mean, trains = above_mean_round(_QUADRATIC, [1.0], clients, LocalSgd(0.1))
        assert mean == 2.0
        assert trains == [False, True, True]
        _assert_close(w, [(1 * 0.4 + 2 * 0.6) / 3])

    def test_equal_losses_train_all(self, w):
        clients = [_client(1, 9)] * 4
        result = above_mean_round(SOFTMAX, w, clients, _SGD)
        assert all(result.trains)
        _assert_close(result.w, fed_avg_round(SOFTMAX, w, clients, _SGD))

    def test_no_loss_no_training(self, w):
        result = above_mean_round(SOFTMAX, w, [_client(1, 0), _not_finite(3)], _SGD)
        assert np.isnan(result.mean_loss)
        assert result.trains == [False, False]
        _assert_close(result.w, w)


_ROUNDS = {
    "fed_avg": lambda *args: fed_avg_round(*args, _SGD),
    "fed_avg_equal": lambda *args: fed_avg_round(*args, _SGD, "equal"),
    "q_fed_avg_0": lambda *args: q_fed_avg_round(*args, 0.0, _SGD),
    "q_fed_avg_2": lambda *args: q_fed_avg_round(*args, 2.0, _SGD, "examples"),
    "scale_free": lambda *args: scale_free_round(*args, 2.0, _SGD, 0.5),
    "fed_prox": lambda *args: fed_prox_round(*args, _SGD, 0.5),
    "term": lambda *args: term_round(*args, 1.5, _SGD),
    "term_down": lambda *args: term_round(*args, -1.5, _SGD, "equal"),
    "above_mean": lambda *args: above_mean_round(*args, _SGD).w,
}


@pytest.mark.parametrize("a_round", list(_ROUNDS.values()), ids=list(_ROUNDS))
class TestWhoIsLeftOut:
    def test_clients_that_are_empty_or_not_finite(self, a_round, w, clients):
        with_more = [_client(7, 0), clients[0], _not_finite(1), *clients[1:], _not_finite(30)]
        _assert_close(a_round(SOFTMAX, w, with_more), a_round(SOFTMAX, w, clients))

    def test_nobody_is_left(self, a_round, w):
        _assert_close(a_round(SOFTMAX, w, [_client(7, 0), _not_finite(3)]), w)
        _assert_close(a_round(SOFTMAX, w, []), w)

    def test_an_infinite_loss(self, a_round):
        with_more = [_quadratic_client(np.inf), _quadratic_client(2.0)]
        expected = a_round(_QUADRATIC, [1.0], [_quadratic_client(2.0)])
        _assert_close(a_round(_QUADRATIC, [1.0], with_more), expected)


@pytest.mark.parametrize("name", [name for name in _ROUNDS if name != "above_mean"])
def test_a_client_that_diverges_is_left_out(name):
    sgd_round, others = _ROUNDS[name], [_quadratic_client(2.0), _quadratic_client(1.0, 3.0)]
    w = [1e100]
    _assert_close(sgd_round(_QUADRATIC, w, [*others, _DIVERGING]), sgd_round(_QUADRATIC, w, others))


def test_a_client_that_diverges_counts_in_the_mean_of_losses():
    w, mean, trains = above_mean_round(
        _QUADRATIC, [1e100], [_quadratic_client(2.0), _DIVERGING], _SGD
    )
    assert mean == pytest.approx(1e238 / 4, rel=1e-6)
    assert trains == [False, True]
    _assert_close(w, [1e100])


# --- The golden values of FedBoost and AFLBoost, of the reference that others are compared with


_H = np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]])
_ALPHA = np.array([0.5, 0.3, 0.2])
_EXAMPLE = reference.Example(_H, 0)
_TRUE = {"squared": (-0.62, 0.532, 0.16), "log": (-1.666667, -0.238095, -0.476190)}


def _expected(estimator: str, sampling: str, loss: str = "squared") -> np.ndarray:
    gamma = reference.gammas(sampling, _ALPHA, 2)
    return reference.expectation(
        gamma, lambda m: reference.estimate(estimator, loss, _ALPHA, gamma, m, _EXAMPLE)
    )


def test_weighted_sampling_is_equation_8():
    np.testing.assert_allclose(reference.gammas("weighted", _ALPHA, 2), [1, 0.6, 0.4])
    np.testing.assert_allclose(reference.gammas("uniform", _ALPHA, 2), [2 / 3] * 3)


@pytest.mark.parametrize("loss", ["squared", "log"])
def test_true_gradients(loss):
    gradient = reference.gradient_at(loss, _ALPHA, _EXAMPLE)
    np.testing.assert_allclose(gradient, _TRUE[loss], atol=1e-6)


@pytest.mark.parametrize(
    ("estimator", "sampling", "expected"),
    [
        ("masked", "weighted", (-0.62, 0.4776, 0.1696)),
        ("divided", "weighted", (-0.62, 0.796, 0.424)),
        ("unbiased", "weighted", (-0.62, 0.532, 0.16)),
        ("masked", "uniform", (-0.2333, 0.4867, 0.1653)),
        ("divided", "uniform", (-0.35, 0.73, 0.248)),
        ("unbiased", "uniform", (-0.62, 0.532, 0.16)),
    ],
)
def test_expectations_over_all_masks(estimator, sampling, expected):
    np.testing.assert_allclose(_expected(estimator, sampling), expected, atol=5e-5)


def test_all_coordinates_are_unbiased_for_the_squared_loss():
    # With the empty mask too, of which FedBoost makes no step: its gradient is that at 0.
    gamma = reference.gammas("uniform", _ALPHA, 2)
    found = reference.expectation(
        gamma, lambda m: reference.gradient_at("squared", m * _ALPHA / gamma, _EXAMPLE)
    )
    np.testing.assert_allclose(found, _TRUE["squared"], atol=1e-12)


def test_the_divided_log_loss_is_biased_as_computed():
    expected = (-1.694889, -0.23, -0.417778)
    np.testing.assert_allclose(_expected("divided", "weighted", "log"), expected, atol=1e-6)


def test_the_centred_gradient_has_mean_0_under_alpha():
    gradient = 1 + reference.gradient_at("log", _ALPHA, _EXAMPLE)
    assert abs(_ALPHA @ gradient) < 1e-12


def test_one_step_of_either_mirror_map():
    gradient = np.array(_TRUE["squared"])
    eg = reference.entropy_step(_ALPHA, gradient, 0.5)
    np.testing.assert_allclose(eg, (0.621849, 0.209741, 0.168411), atol=1e-6)
    euclid = reference.euclidean_step(_ALPHA, gradient, 0.5)
    np.testing.assert_allclose(euclid, (0.822, 0.046, 0.132), atol=1e-6)


def test_agnostic_optima():
    lambda_, value = reference.capacity(_H)
    np.testing.assert_allclose(lambda_, (0.331169, 0.382308, 0.286523), atol=1e-5)
    np.testing.assert_allclose(lambda_ @ _H, (0.327354, 0.429385, 0.243262), atol=1e-5)
    assert abs(value - 0.290323) < 1e-6
    # min over the simplex of the largest cross-entropy, as a smooth program with a bound t
    solved = optimize.minimize(
        lambda v: v[-1],
        [*[1 / 3] * 3, 2.0],
        constraints=[
            {"type": "eq", "fun": lambda v: v[:3].sum() - 1},
            {"type": "ineq", "fun": lambda v: v[-1] + _H @ np.log(v[:3] @ _H)},
        ],
        bounds=[(0, 1)] * 3 + [(None, None)],
    )
    np.testing.assert_allclose(solved.x, (0.311111, 0.222222, 0.466667, 1.098612), atol=1e-4)


def test_own_distributions_as_predictors_are_weighed_by_their_examples():
    rng = np.random.default_rng(0)
    words = [rng.choice(5, size=n, p=rng.dirichlet(np.ones(5))) for n in (7, 20, 3)]
    h = np.array([np.bincount(w, minlength=5) / len(w) for w in words])
    cohort = [[reference.Example(h, int(y)) for y in client] for client in words]
    best = np.array([7, 20, 3]) / 30
    alpha, gamma = np.full(3, 1 / 3), np.ones(3)
    for _ in range(600):
        alpha = reference.fed_boost_round(
            alpha, cohort, gamma, np.ones(3), "log", "masked", "entropy", 1.0
        )
    found, least = (reference.mean_loss("log", a, cohort) for a in (alpha, best))
    assert least <= found < least + 1e-4
