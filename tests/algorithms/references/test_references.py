"""The references against results that need no code of the project: by hand, and by identities."""

import numpy as np
import pytest
from scipy import optimize

from tests.algorithms.references import fed_boost as reference
from tests.algorithms.references.above_mean import above_mean_round
from tests.algorithms.references.fed_prox import train_proximal
from tests.algorithms.references.local_sgd import LocalSgd, fed_avg_round, train
from tests.algorithms.references.q_fed_avg import (
    q_fed_avg_message,
    q_fed_avg_round,
)
from tests.algorithms.references.softmax import Model, losses, summed_gradient
from tests.algorithms.references.term import term_round, tilted_loss, tilted_weights

_FEATURES, _CLASSES = 4, 3
# Float64 throughout: what is the same on paper differs by rounding alone.
_RTOL = 1e-11
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


class TestSoftmax:
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

    def test_fed_avg_by_hand(self):
        clients = [_quadratic_client(1.0), _quadratic_client(2.0, 2.0, 2.0)]
        # w_k = 1 - 0.1 a.
        by_examples = fed_avg_round(_QUADRATIC, [1.0], clients, LocalSgd(0.1))
        _assert_close(by_examples, [(1 * 0.9 + 3 * 0.8) / 4])
        equally = fed_avg_round(_QUADRATIC, [1.0], clients, LocalSgd(0.1), weighting="equal")
        _assert_close(equally, [0.85])


class TestQFedAvg:
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


class TestFedProx:
    def test_two_local_steps_by_hand(self):
        # From w = 1 with a = 2 and eta = 0.1: 0.8, then 0.8 - 0.1 (2 * 0.8 + mu (0.8 - 1)).
        client = _quadratic_client(2.0)
        w_k = train_proximal(_QUADRATIC, [1.0], client, LocalSgd(0.1, epochs=2), mu=3.0)
        _assert_close(w_k, [0.64 + 0.06])


class TestTerm:
    def test_two_devices_by_hand(self):
        # At w = 1: F = a/2, and w_k = 1 - 0.1 a. With t = log 2 a loss that is 1 larger weighs
        # twice as much: 2 * 1 against 1 * 3.
        clients = [_quadratic_client(4.0), _quadratic_client(2.0, 2.0, 2.0)]
        w = term_round(_QUADRATIC, [1.0], clients, np.log(2), LocalSgd(0.1))
        _assert_close(w, [(2 * 0.6 + 3 * 0.8) / 5])
        equal = term_round(_QUADRATIC, [1.0], clients, np.log(2), LocalSgd(0.1), "equal")
        _assert_close(equal, [(2 * 0.6 + 1 * 0.8) / 3])

    @pytest.mark.parametrize("t", [0.3, 4.0, -2.0])
    def test_the_weights_are_the_gradient_of_the_objective(self, t):
        F, p, step = np.array([0.5, 1.7, 3.0]), np.array([5.0, 1.0, 2.0]), 1e-6
        for k, weight in enumerate(tilted_weights(F, p, t)):
            ends = [tilted_loss(F + sign * step * np.eye(3)[k], p, t) for sign in (1, -1)]
            assert weight == pytest.approx((ends[0] - ends[1]) / (2 * step), abs=1e-8)


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


def test_the_divided_log_loss_is_biased_as_computed():
    expected = (-1.694889, -0.23, -0.417778)
    np.testing.assert_allclose(_expected("divided", "weighted", "log"), expected, atol=1e-6)


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
