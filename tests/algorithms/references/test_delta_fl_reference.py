"""The reference of Delta-FL against values by hand, a linear program, and identities."""

import numpy as np
import pytest
from scipy.optimize import linprog

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
from tests.algorithms.references.local_sgd import LocalSgd, fed_avg_round
from tests.algorithms.references.softmax import Model

_SGD = LocalSgd(0.1)
_BOUNDARIES = ["paper", "exact"]
# One weight w; an example's loss is (a/2) w^2, where a is its only feature: at w = 1 a client's
# loss is a/2, and one step of _SGD leaves 1 - a/10.
_QUADRATIC = Model(
    losses=lambda w, x, y: x[:, 0] / 2 * w[0] ** 2,
    summed_gradient=lambda w, x, y: [x[:, 0].sum() * w[0]],
)


def _quadratic_client(*a):
    return {"x": np.array(a, np.float32)[:, None], "y": np.zeros(len(a), np.int32)}


def _with_losses(losses, sizes):
    return [_quadratic_client(*[2.0 * F] * n) for F, n in zip(losses, sizes)]


def _softmax_client(seed, n):
    rng = np.random.default_rng(seed)
    return {"x": rng.normal(size=(n, 4)).astype(np.float32), "y": rng.integers(3, size=n)}


def _random_losses(seed):
    """Draws losses of three to nine clients; half of the draws have many ties."""
    rng = np.random.default_rng(seed)
    n = rng.integers(3, 10)
    F = rng.integers(1, 4, n).astype(np.float64) if seed % 2 else rng.exponential(size=n)
    alpha = rng.integers(1, 40, n) if seed % 3 else np.ones(n)
    # Levels at which the weight is cut between two clients too.
    on_the_edge = alpha[rng.permutation(n)[: rng.integers(1, n)]].sum() / alpha.sum()
    return F, alpha, [rng.uniform(0.01, 1.0), on_the_edge, 1.0]


@pytest.fixture
def clients():
    return [_softmax_client(1, 9), _softmax_client(2, 4), _softmax_client(3, 14)]


@pytest.fixture
def w():
    rng = np.random.default_rng(0)
    return [rng.normal(size=(4, 3)), rng.normal(size=3)]


def _assert_close(actual, expected):
    assert len(actual) == len(expected)
    for actual_m, expected_m in zip(actual, expected):
        np.testing.assert_allclose(actual_m, expected_m, rtol=1e-11, atol=1e-13)


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
    def test_by_hand(self, alpha, theta, eta, kept, filtered, expected):
        F = [1.0, 2.0, 3.0, 4.0]
        assert quantile(F, alpha, theta) == eta
        share = shares(F, alpha, theta, "paper")
        assert share @ np.array(alpha) / np.sum(alpha) == pytest.approx(kept)
        assert np.average(F, weights=share * alpha) == pytest.approx(filtered)
        assert superquantile(F, alpha, theta) == pytest.approx(expected)
        exact = shares(F, alpha, theta, "exact")
        assert np.average(F, weights=exact * alpha) == pytest.approx(expected)

    def test_levels_that_round(self):
        # 1 - 0.7 is more than 0.3, and 0.1 + 0.2 is more than that.
        assert quantile([1, 2, 3, 4], [0.1, 0.2, 0.3, 0.4], 0.7) == 2
        for n in range(1, 60):
            for k in range(1, n):
                assert quantile(np.arange(1, n + 1), [1 / n] * n, 1 - k / n) == k
                assert shares(np.arange(n), [1 / n] * n, k / n, "exact").sum() == k

    # TFF's SciPy is older than its NumPy.
    @pytest.mark.filterwarnings("ignore:np.find_common_type:DeprecationWarning")
    @pytest.mark.parametrize("seed", range(40))
    def test_pi_solves_the_linear_program(self, seed):
        F, alpha, levels = _random_losses(seed)
        p = alpha / alpha.sum()
        for theta in levels:
            best = linprog(
                -F, A_eq=np.ones((1, len(F))), b_eq=[1], bounds=[(0, a) for a in p / theta]
            )
            pi = cvar_lambda(F, alpha, theta)
            assert pi.sum() == pytest.approx(1, abs=1e-11)
            assert (pi >= 0).all()
            assert (pi <= p / theta * (1 + 1e-12)).all()
            assert pi @ F == pytest.approx(-best.fun, rel=1e-9)
            assert superquantile(F, alpha, theta) == pytest.approx(-best.fun, rel=1e-9)


class TestSurveyRound:
    def test_by_hand(self):
        # w_k = .8, .6, .4, .2.
        clients, w = _with_losses([1, 2, 3, 4], [1, 2, 3, 4]), [1.0]
        paper = survey_round(_QUADRATIC, w, clients, 0.8, _SGD)
        _assert_close(paper, [(2 * 0.6 + 3 * 0.4 + 4 * 0.2) / 9])
        exact = survey_round(_QUADRATIC, w, clients, 0.8, _SGD, "examples", "exact")
        _assert_close(exact, [(1 * 0.6 + 3 * 0.4 + 4 * 0.2) / 8])
        equal = survey_round(_QUADRATIC, w, clients, 0.3, _SGD, "equal", "exact")
        _assert_close(equal, [(0.2 * 0.4 + 1 * 0.2) / 1.2])

    def test_losses_of_one_bin_are_ties(self):
        # 1 is a centre, and bins are 2.7% wide.
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
    def test_a_client_that_diverges_counts_in_the_quantile(self, boundary):
        sgd = LocalSgd(0.1, epochs=80)
        others = _with_losses([1, 2, 3], [1, 1, 1])
        # Its loss is 5e5, and each step multiplies w by 1e5.
        diverging = _quadratic_client(1e6)
        actual = survey_round(_QUADRATIC, [1.0], [*others, diverging], 0.5, sgd, "equal", boundary)
        kept = {"paper": others[1:], "exact": others[2:]}[boundary]
        _assert_close(actual, fed_avg_round(_QUADRATIC, [1.0], kept, sgd))
        alone = survey_round(_QUADRATIC, [1.0], [*others, diverging], 0.1, sgd, "equal", boundary)
        _assert_close(alone, [1.0])


class TestLaggedRound:
    def test_the_cut_is_that_of_the_round_before(self):
        clients = _with_losses([1, 2, 3, 4], [1, 2, 3, 4])
        bins = nearest_center([1, 2, 3, 4])
        w, first = lagged_round(_QUADRATIC, [1.0], None, clients, 0.8, _SGD, "examples", "exact")
        _assert_close(w, fed_avg_round(_QUADRATIC, [1.0], clients, _SGD))
        assert first.at == bins[1]
        assert first.share == pytest.approx(0.5)
        _, paper = lagged_round(_QUADRATIC, [1.0], None, clients, 0.8, _SGD)
        assert paper == Cut(bins[1], 1.0)
        # These losses' own cut would be at 6; all but 1 and half of 2 are above the cut of before.
        later = _with_losses([1, 2, 6, 7], [1, 2, 3, 4])
        w, second = lagged_round(_QUADRATIC, [1.0], first, later, 0.5, _SGD, "examples", "exact")
        _assert_close(w, [1 - 0.2 * (1 * 2 + 3 * 6 + 4 * 7) / 8])
        assert second.at == nearest_center([6])[0]
        assert second.share == pytest.approx(1 / 3)


class TestTrackedRound:
    def test_the_first_round(self):
        clients = _with_losses([1, 4], [1, 2])
        w, eta = tracked_round(_QUADRATIC, [1.0], None, clients, 0.5, _SGD)
        _assert_close(w, fed_avg_round(_QUADRATIC, [1.0], clients, _SGD))
        assert eta == pytest.approx(0.3)
        _, equal = tracked_round(_QUADRATIC, [1.0], None, clients, 0.5, _SGD, "equal")
        assert equal == pytest.approx(0.25)

    def test_by_hand(self):
        clients = _with_losses([1, 2, 3, 4], [1, 2, 3, 4])
        # A loss of eta itself trains.
        w, eta = tracked_round(_QUADRATIC, [1.0], 2.0, clients, 0.8, _SGD)
        _assert_close(w, [(2 * 0.6 + 3 * 0.4 + 4 * 0.2) / 9])
        assert eta == pytest.approx(2 * np.exp(-0.2 * (0.1 - 0.2)))
        _, equal = tracked_round(_QUADRATIC, [1.0], 2.0, clients, 0.8, _SGD, "equal", 1.0)
        assert equal == pytest.approx(2 * np.exp(-(0.25 - 0.2)))
