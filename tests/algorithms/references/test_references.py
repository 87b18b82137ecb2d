"""The references equal values computed by hand, finite differences and SciPy's optima."""

import numpy as np
import pytest
from scipy import optimize

from tests.algorithms.references import fed_boost as reference
from tests.algorithms.references.above_mean import above_mean_round
from tests.algorithms.references.delta_fl import (
    Cut,
    cvar_lambda,
    lagged_round,
    nearest_center,
    quantile,
    shares,
    superquantile,
    survey_round,
    tracked_round,
)
from tests.algorithms.references.fed_prox import train_proximal
from tests.algorithms.references.local_sgd import LocalSgd, fed_avg_round, train
from tests.algorithms.references.q_fed_avg import q_fed_avg_message, q_fed_avg_round
from tests.algorithms.references.softmax import Model, losses, summed_gradient
from tests.algorithms.references.term import term_round, tilted_loss, tilted_weights

_FEATURES, _CLASSES = 4, 3
# All arrays are float64, so mathematically equal formulas differ only by rounding.
_RTOL = 1e-11
# A model with one weight w, where an example with the feature a has the loss (a/2) w^2.
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


def _assert_close(actual, expected, rtol=_RTOL):
    assert len(actual) == len(expected)
    for actual_m, expected_m in zip(actual, expected):
        np.testing.assert_allclose(actual_m, expected_m, rtol=rtol, atol=1e-13)


class TestSoftmax:
    def test_gradient_equals_finite_differences(self, w):
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
            # The batches (1, 2) and (4) have the gradients 3w and 4w. "client" divides both by
            # n_k = 3, and "batch" by the batches' sizes 2 and 1.
            ("client", (1 - 0.1 * 3 / 3) * (1 - 0.1 * 4 / 3)),
            ("batch", (1 - 0.1 * 3 / 2) * (1 - 0.1 * 4 / 1)),
        ],
    )
    def test_smaller_last_batch_equals_value_by_hand(self, divisor, expected):
        client = _quadratic_client(1.0, 2.0, 4.0)
        sgd = LocalSgd(eta=0.1, batch_size=2, divisor=divisor)
        _assert_close(train(_QUADRATIC, [1.0], client, sgd), [expected])
        twice = LocalSgd(eta=0.1, epochs=2, batch_size=2, divisor=divisor)
        _assert_close(train(_QUADRATIC, [1.0], client, twice), [expected**2])

    def test_fed_avg_equals_value_by_hand(self):
        clients = [_quadratic_client(1.0), _quadratic_client(2.0, 2.0, 2.0)]
        # The clients' weights are w_k = 1 - 0.1 a.
        by_examples = fed_avg_round(_QUADRATIC, [1.0], clients, LocalSgd(0.1))
        _assert_close(by_examples, [(1 * 0.9 + 3 * 0.8) / 4])
        equally = fed_avg_round(_QUADRATIC, [1.0], clients, LocalSgd(0.1), weighting="equal")
        _assert_close(equally, [0.85])


class TestQFedAvg:
    @pytest.mark.parametrize("q", [0.0, 1.0, 2.5])
    def test_one_device_equals_value_by_hand(self, q):
        a, w, eta = 3.0, 2.0, 0.1
        F, gradient, L = a / 2 * w**2, a * w, 1 / eta
        # The result is w - F^q a w / (q F^{q-1} a^2 w^2 + L F^q), where a^2 w^2 / F = 2 a.
        expected = w - gradient / (2 * q * a + L)
        assert F == 6.0
        client = _quadratic_client(a)
        message = q_fed_avg_message(_QUADRATIC, [w], client, q, LocalSgd(eta))
        # The expected value omits F's offset, so the tolerance is 1e-9.
        _assert_close(message.Delta, [6.0**q * 6.0], rtol=1e-9)
        assert message.h == pytest.approx(q * 6.0 ** (q - 1) * 36.0 + 10.0 * 6.0**q, rel=1e-9)
        _assert_close(
            q_fed_avg_round(_QUADRATIC, [w], [client], q, LocalSgd(eta)), [expected], rtol=1e-9
        )

    def test_two_devices_equal_values_by_hand(self):
        # With w = 1, eta = 1/10, q = 1: F = a/2, Dw = a, Delta = a^2/2, h = a^2 + 10 a/2.
        clients = [_quadratic_client(2.0), _quadratic_client(4.0, 4.0, 4.0)]
        equal = q_fed_avg_round(_QUADRATIC, [1.0], clients, 1.0, LocalSgd(0.1))
        _assert_close(equal, [1 - (2 + 8) / (14 + 36)], rtol=1e-9)
        examples = q_fed_avg_round(_QUADRATIC, [1.0], clients, 1.0, LocalSgd(0.1), "examples")
        _assert_close(examples, [1 - (2 + 3 * 8) / (14 + 3 * 36)], rtol=1e-9)


class TestFedProx:
    def test_two_local_steps_equal_value_by_hand(self):
        # With w = 1, a = 2, eta = 0.1 the steps give 0.8, then 0.8 - 0.1 (2 * 0.8 + mu (0.8 - 1)).
        client = _quadratic_client(2.0)
        w_k = train_proximal(_QUADRATIC, [1.0], client, LocalSgd(0.1, epochs=2), mu=3.0)
        _assert_close(w_k, [0.64 + 0.06])


class TestTerm:
    def test_two_devices_equal_values_by_hand(self):
        # At w = 1, F = a/2 and w_k = 1 - 0.1 a. With t = log 2, a loss larger by 1 has twice the
        # weight per example, so the clients' weights are 2 * 1 and 1 * 3.
        clients = [_quadratic_client(4.0), _quadratic_client(2.0, 2.0, 2.0)]
        w = term_round(_QUADRATIC, [1.0], clients, np.log(2), LocalSgd(0.1))
        _assert_close(w, [(2 * 0.6 + 3 * 0.8) / 5])
        equal = term_round(_QUADRATIC, [1.0], clients, np.log(2), LocalSgd(0.1), "equal")
        _assert_close(equal, [(2 * 0.6 + 1 * 0.8) / 3])

    @pytest.mark.parametrize("t", [0.3, 4.0, -2.0])
    def test_tilted_weights_equal_the_objectives_gradient(self, t):
        F, p, step = np.array([0.5, 1.7, 3.0]), np.array([5.0, 1.0, 2.0]), 1e-6
        for k, weight in enumerate(tilted_weights(F, p, t)):
            ends = [tilted_loss(F + sign * step * np.eye(3)[k], p, t) for sign in (1, -1)]
            assert weight == pytest.approx((ends[0] - ends[1]) / (2 * step), abs=1e-8)


class TestAboveMean:
    def test_above_mean_round_equals_value_by_hand(self):
        # The losses at w = 1 are 1, 3, 2; the last loss equals the mean, 2.
        clients = [_quadratic_client(2.0), _quadratic_client(6.0), _quadratic_client(3.0, 5.0)]
        w, mean, trains = above_mean_round(_QUADRATIC, [1.0], clients, LocalSgd(0.1))
        assert mean == 2.0
        assert trains == [False, True, True]
        _assert_close(w, [(1 * 0.4 + 2 * 0.6) / 3])


# --- Delta-FL


_SGD = LocalSgd(0.1)
_BOUNDARIES = ["paper", "exact"]


def _with_losses(losses, sizes):
    return [_quadratic_client(*[2.0 * F] * n) for F, n in zip(losses, sizes)]


def _random_losses(seed):
    """Returns random losses, weights and levels; losses of odd seeds have many ties."""
    rng = np.random.default_rng(seed)
    n = rng.integers(3, 10)
    F = rng.integers(1, 4, n).astype(np.float64) if seed % 2 else rng.exponential(size=n)
    alpha = rng.integers(1, 40, n) if seed % 3 else np.ones(n)
    # This level's threshold can be exactly between two clients.
    on_the_edge = alpha[rng.permutation(n)[: rng.integers(1, n)]].sum() / alpha.sum()
    return F, alpha, [rng.uniform(0.01, 1.0), on_the_edge, 1.0]


class TestFilter:
    @pytest.mark.parametrize(
        ("alpha", "theta", "eta", "kept", "filtered", "expected"),
        [
            ([0.1, 0.2, 0.3, 0.4], 0.8, 2, 0.9, 2.9 / 0.9, 3.375),
            ([0.1, 0.2, 0.3, 0.4], 0.5, 3, 0.7, 2.5 / 0.7, 3.8),
            ([0.1, 0.2, 0.3, 0.4], 0.4, 3, 0.7, 2.5 / 0.7, 4.0),
            ([0.1, 0.2, 0.3, 0.4], 0.1, 4, 0.4, 4.0, 4.0),
            ([1, 1, 1, 1], 0.8, 1, 1.0, 2.5, 2.875),
            ([1, 1, 1, 1], 0.5, 2, 0.75, 3.0, 3.5),
            ([1, 1, 1, 1], 0.3, 3, 0.5, 3.5, 11.5 / 3),
            ([1, 1, 1, 1], 0.25, 3, 0.5, 3.5, 4.0),
        ],
    )
    def test_quantiles_and_shares_equal_values_by_hand(
        self, alpha, theta, eta, kept, filtered, expected
    ):
        F = [1.0, 2.0, 3.0, 4.0]
        assert quantile(F, alpha, theta) == eta
        share = shares(F, alpha, theta, "paper")
        assert share @ np.array(alpha) / np.sum(alpha) == pytest.approx(kept)
        assert np.average(F, weights=share * alpha) == pytest.approx(filtered)
        assert superquantile(F, alpha, theta) == pytest.approx(expected)
        exact = shares(F, alpha, theta, "exact")
        assert np.average(F, weights=exact * alpha) == pytest.approx(expected)

    def test_rounded_levels_give_exact_quantiles(self):
        # In floating point, 0.3 < 1 - 0.7 < 0.1 + 0.2.
        assert quantile([1, 2, 3, 4], [0.1, 0.2, 0.3, 0.4], 0.7) == 2
        for n in range(1, 60):
            for k in range(1, n):
                assert quantile(np.arange(1, n + 1), [1 / n] * n, 1 - k / n) == k
                assert shares(np.arange(n), [1 / n] * n, k / n, "exact").sum() == k

    # The SciPy version that TFF requires calls a deprecated NumPy function.
    @pytest.mark.filterwarnings("ignore:np.find_common_type:DeprecationWarning")
    @pytest.mark.parametrize("seed", range(40))
    def test_worst_mixture_solves_the_linear_program(self, seed):
        F, alpha, levels = _random_losses(seed)
        p = alpha / alpha.sum()
        for theta in levels:
            best = optimize.linprog(
                -F, A_eq=np.ones((1, len(F))), b_eq=[1], bounds=[(0, a) for a in p / theta]
            )
            pi = cvar_lambda(F, alpha, theta)
            assert pi.sum() == pytest.approx(1, abs=1e-11)
            assert (pi >= 0).all()
            assert (pi <= p / theta * (1 + 1e-12)).all()
            assert pi @ F == pytest.approx(-best.fun, rel=1e-9)
            assert superquantile(F, alpha, theta) == pytest.approx(-best.fun, rel=1e-9)


class TestSurveyRound:
    def test_survey_round_equals_values_by_hand(self):
        # The clients' weights w_k are 0.8, 0.6, 0.4, 0.2.
        clients, w = _with_losses([1, 2, 3, 4], [1, 2, 3, 4]), [1.0]
        paper = survey_round(_QUADRATIC, w, clients, 0.8, _SGD)
        _assert_close(paper, [(2 * 0.6 + 3 * 0.4 + 4 * 0.2) / 9])
        exact = survey_round(_QUADRATIC, w, clients, 0.8, _SGD, "examples", "exact")
        _assert_close(exact, [(1 * 0.6 + 3 * 0.4 + 4 * 0.2) / 8])
        equal = survey_round(_QUADRATIC, w, clients, 0.3, _SGD, "equal", "exact")
        _assert_close(equal, [(0.2 * 0.4 + 1 * 0.2) / 1.2])

    def test_losses_in_one_bin_are_ties(self):
        # 1 is a bin's centre, and bins are 2.7% wide.
        actual = survey_round(
            _QUADRATIC,
            [1.0],
            _with_losses([1.0, 1.01, 0.5], [1, 1, 2]),
            0.25,
            _SGD,
            boundary="exact",
        )
        _assert_close(actual, [1 - 0.1 * (2 + float(np.float32(2.02))) / 2])

    @pytest.mark.parametrize("boundary", _BOUNDARIES)
    def test_quantile_includes_a_diverging_clients_loss(self, boundary):
        sgd = LocalSgd(0.1, epochs=80)
        others = _with_losses([1, 2, 3], [1, 1, 1])
        # The diverging client's loss is 5e5, and each step multiplies w by 1e5.
        diverging = _quadratic_client(1e6)
        actual = survey_round(_QUADRATIC, [1.0], [*others, diverging], 0.5, sgd, "equal", boundary)
        kept = {"paper": others[1:], "exact": others[2:]}[boundary]
        _assert_close(actual, fed_avg_round(_QUADRATIC, [1.0], kept, sgd))
        alone = survey_round(_QUADRATIC, [1.0], [*others, diverging], 0.1, sgd, "equal", boundary)
        _assert_close(alone, [1.0])


class TestLaggedRound:
    def test_threshold_comes_from_the_previous_round(self):
        clients = _with_losses([1, 2, 3, 4], [1, 2, 3, 4])
        bins = nearest_center([1, 2, 3, 4])
        w, first = lagged_round(_QUADRATIC, [1.0], None, clients, 0.8, _SGD, "examples", "exact")
        _assert_close(w, fed_avg_round(_QUADRATIC, [1.0], clients, _SGD))
        assert first.at == bins[1]
        assert first.share == pytest.approx(0.5)
        _, paper = lagged_round(_QUADRATIC, [1.0], None, clients, 0.8, _SGD)
        assert paper == Cut(bins[1], 1.0)
        # These losses' own threshold is 6. The previous threshold excludes the loss 1 and half of
        # the loss 2's weight.
        later = _with_losses([1, 2, 6, 7], [1, 2, 3, 4])
        w, second = lagged_round(_QUADRATIC, [1.0], first, later, 0.5, _SGD, "examples", "exact")
        _assert_close(w, [1 - 0.2 * (1 * 2 + 3 * 6 + 4 * 7) / 8])
        assert second.at == nearest_center([6])[0]
        assert second.share == pytest.approx(1 / 3)


class TestTrackedRound:
    def test_first_round_trains_all_clients(self):
        clients = _with_losses([1, 4], [1, 2])
        w, eta = tracked_round(_QUADRATIC, [1.0], None, clients, 0.5, _SGD)
        _assert_close(w, fed_avg_round(_QUADRATIC, [1.0], clients, _SGD))
        assert eta == pytest.approx(0.3)
        _, equal = tracked_round(_QUADRATIC, [1.0], None, clients, 0.5, _SGD, "equal")
        assert equal == pytest.approx(0.25)

    def test_tracked_round_equals_value_by_hand(self):
        clients = _with_losses([1, 2, 3, 4], [1, 2, 3, 4])
        # A client whose loss equals eta trains.
        w, eta = tracked_round(_QUADRATIC, [1.0], 2.0, clients, 0.8, _SGD)
        _assert_close(w, [(2 * 0.6 + 3 * 0.4 + 4 * 0.2) / 9])
        assert eta == pytest.approx(2 * np.exp(-0.2 * (0.1 - 0.2)))
        _, equal = tracked_round(_QUADRATIC, [1.0], 2.0, clients, 0.8, _SGD, "equal", 1.0)
        assert equal == pytest.approx(2 * np.exp(-(0.25 - 0.2)))


# --- Tests of the references for FedBoost and AFLBoost


_H = np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]])
_ALPHA = np.array([0.5, 0.3, 0.2])
_EXAMPLE = reference.Example(_H, 0)
_TRUE = {"squared": (-0.62, 0.532, 0.16), "log": (-1.666667, -0.238095, -0.476190)}


def _expected(estimator: str, sampling: str, loss: str = "squared") -> np.ndarray:
    gamma = reference.gammas(sampling, _ALPHA, 2)
    return reference.expectation(
        gamma, lambda m: reference.estimate(estimator, loss, _ALPHA, gamma, m, _EXAMPLE)
    )


def test_weighted_sampling_equals_equation_8():
    np.testing.assert_allclose(reference.gammas("weighted", _ALPHA, 2), [1, 0.6, 0.4])
    np.testing.assert_allclose(reference.gammas("uniform", _ALPHA, 2), [2 / 3] * 3)


@pytest.mark.parametrize("loss", ["squared", "log"])
def test_gradients_equal_values_by_hand(loss):
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
def test_expected_estimates_equal_values_by_hand(estimator, sampling, expected):
    np.testing.assert_allclose(_expected(estimator, sampling), expected, atol=5e-5)


def test_divided_log_loss_estimate_has_the_known_bias():
    expected = (-1.694889, -0.23, -0.417778)
    np.testing.assert_allclose(_expected("divided", "weighted", "log"), expected, atol=1e-6)


def test_mirror_steps_equal_known_values():
    gradient = np.array(_TRUE["squared"])
    eg = reference.entropy_step(_ALPHA, gradient, 0.5)
    np.testing.assert_allclose(eg, (0.621849, 0.209741, 0.168411), atol=1e-6)
    euclid = reference.euclidean_step(_ALPHA, gradient, 0.5)
    np.testing.assert_allclose(euclid, (0.822, 0.046, 0.132), atol=1e-6)


def test_capacity_and_minimax_equal_known_optima():
    lambda_, value = reference.capacity(_H)
    np.testing.assert_allclose(lambda_, (0.331169, 0.382308, 0.286523), atol=1e-5)
    np.testing.assert_allclose(lambda_ @ _H, (0.327354, 0.429385, 0.243262), atol=1e-5)
    assert abs(value - 0.290323) < 1e-6
    # SciPy minimises the largest cross-entropy over the simplex, with an auxiliary bound t.
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
