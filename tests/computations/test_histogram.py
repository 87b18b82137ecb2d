"""Quantiles and superquantiles from histograms are close to exact values."""

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf
from scipy import optimize

from tff_agnostic.computations.clients import vectorised_clients
from tff_agnostic.computations.histograms import (
    LinearGrid,
    LogGrid,
    SizeGrid,
    quantile,
    superquantile,
)

_QS = (0.0, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 1.0)


def _counts(grid, values: np.ndarray) -> np.ndarray:
    return np.bincount(grid.bin_index(values.astype(np.float32)), minlength=grid.num_bins)


def _cases(num_clients: int):
    """Yields grids, values, and maximum relative and absolute errors of quantiles."""
    rng = np.random.default_rng(num_clients)
    shares = rng.beta(2, 1, num_clients)
    yield LinearGrid(), shares, 0.0, 0.0025 + 1e-6
    yield LinearGrid(40.0), 40 * shares, 0.0, 40 * (0.0025 + 1e-6)
    yield LogGrid(), np.exp(rng.uniform(math.log(1e-6), math.log(1e6), num_clients)), 0.028, 0.0


@pytest.mark.parametrize(
    ("grid", "values", "bins"),
    [
        (LinearGrid(), [-1.0, 0.0, 0.5, 1.0, 9.0], [0, 0, 100, 200, 200]),
        (LogGrid(), [-1.0, 0.0, 1e-9, 1.0, 1e6, 1e30], [0, 0, 0, 256, 512, 512]),
    ],
    ids=["linear", "log"],
)
def test_grid_gives_bins_of_centres_edges_and_outliers(grid, values, bins):
    np.testing.assert_array_equal(grid.bin_index(np.array(values, np.float32)), bins)
    centers = grid.centers().astype(np.float32)
    assert len(centers) == grid.num_bins
    np.testing.assert_array_equal(grid.bin_index(centers), np.arange(grid.num_bins))
    lower, upper = grid.centers()[:-1], grid.centers()[1:]
    inner = np.sqrt(lower * upper) if isinstance(grid, LogGrid) else (lower + upper) / 2
    # Values slightly below or above an edge are in different bins.
    for factor, offset in ((1 - 1e-4, 0), (1 + 1e-4, 1)):
        bins = grid.bin_index((inner * factor).astype(np.float32))
        np.testing.assert_array_equal(bins, np.arange(grid.num_bins - 1) + offset)


def test_quantile_at_integer_position_is_exact():
    """In floating point 0.55 * 100 = 55.000000000000007, but the quantile is the 55th value."""
    grid, counts = LinearGrid(upper=200.0), np.zeros([201], np.int64)
    assert math.isnan(quantile(grid, counts, 0.5)) and math.isnan(superquantile(grid, counts, 0.1))
    counts[0:101] = 1
    assert [quantile(grid, counts, q) for q in (0.1, 0.55, 0.9)] == [10, 55, 90]


def test_quantiles_between_clients_are_interpolated():
    grid = LinearGrid()
    counts = _counts(grid, np.array([0.2, 0.6]))
    actual = [quantile(grid, counts, q) for q in (0.0, 0.1, 0.5, 0.9, 1.0)]
    assert actual == pytest.approx([0.2, 0.24, 0.4, 0.56, 0.6])
    log = LogGrid()
    # A log grid interpolates between losses, not between their logarithms.
    actual = quantile(log, _counts(log, np.array([1.0, 1e6])), 0.5)
    assert actual == pytest.approx(500_000.5)


_SHARES = (0.03, 0.1, 0.25, 1 / 3, 0.5, 1.0)


def _worst_mean(values: np.ndarray, share: float, worst_is_largest: bool) -> float:
    """Returns the mean of the worst `share` of the values; the last value can count in part."""
    left = wanted = share * len(values)
    total = 0.0
    for value in sorted(values, reverse=worst_is_largest):
        total += value * min(1.0, left)
        left -= min(1.0, left)
    return total / wanted


def _cvar(values: np.ndarray, share: float) -> float:
    """Returns SciPy's min_t t + mean(max(value - t, 0)) / share (Rockafellar, Uryasev)."""
    actual = optimize.minimize_scalar(
        lambda t: t + np.mean(np.maximum(values - t, 0)) / share,
        bounds=(values.min(), values.max() + 1e-9),
        method="bounded",
        options={"xatol": 1e-10},
    )
    return float(actual.fun)


@pytest.mark.parametrize("worst_is_largest", [True, False])
@pytest.mark.parametrize("num_clients", [1, 7, 999])
def test_quantiles_and_superquantiles_are_within_half_a_bin(num_clients, worst_is_largest):
    for grid, values, relative, absolute in _cases(num_clients):
        for q in _QS:
            exact = np.quantile(values, q)
            estimate = quantile(grid, _counts(grid, values), q)
            assert abs(estimate - exact) <= relative * exact + absolute
        for share in _SHARES:
            estimate = superquantile(grid, _counts(grid, values), share, worst_is_largest)
            exact = _worst_mean(values, share, worst_is_largest)
            assert abs(estimate - exact) <= relative * exact + absolute


@pytest.mark.parametrize("share", _SHARES)
def test_superquantile_equals_conditional_value_at_risk(share):
    """The values are on the grid, with ties, so the histogram adds no error."""
    grid = LinearGrid()
    values = grid.centers()[np.random.default_rng(0).integers(80, 120, size=57)]
    estimate = superquantile(grid, _counts(grid, values), share)
    assert estimate == pytest.approx(_cvar(values, share), abs=1e-6)
    assert estimate == pytest.approx(_worst_mean(values, share, True), rel=1e-12)


def test_size_bins_are_powers_of_two():
    grid = SizeGrid()
    sizes = [1, 2, 3, 4, 7, 8, 1023, 1024, 2**23 - 1, 2**23, 2**40]
    held = np.array([grid.holds(tf.constant(size, tf.int64)) for size in sizes])
    np.testing.assert_array_equal(held.sum(axis=1), 1)
    np.testing.assert_array_equal(held.argmax(axis=1), [0, 1, 1, 2, 2, 3, 9, 10, 22, 23, 23])
    assert not np.any(grid.holds(tf.constant(0, tf.int64)))
    np.testing.assert_array_equal(grid.lower(), [2**i for i in range(24)])


# --- Vectorised operations broadcast operands of any ranks, as a single client's do


_NUM_CLIENTS = 3


def _per_client(rank: int) -> np.ndarray:
    one = np.arange(2.0**rank, dtype=np.float32).reshape([2] * rank)
    return np.stack([one + np.float32(10 * k) for k in range(_NUM_CLIENTS)])


def _vectorised(fn, *args, has_ranks: bool = True):
    specs = [tf.TensorSpec([None] * np.ndim(a) if has_ranks else None, tf.float32) for a in args]
    return tf.function(
        lambda *args: vectorised_clients(fn, *args), autograph=False
    ).get_concrete_function(*specs)


@pytest.mark.parametrize("has_ranks", [True, False], ids=["known", "unknown"])
@pytest.mark.parametrize(("rank", "other_rank"), [(0, 3), (2, 1), (1, 1)])
def test_clients_and_shared_operands_are_broadcast(rank, other_rank, has_ranks):
    args = _per_client(rank), np.float32(0.5) * _per_client(other_rank)
    shared = _per_client(1)[1]
    combine = _vectorised(
        lambda a, b: tf.where(a > 2, a * b, b) - shared, *args, has_ranks=has_ranks
    )
    expected = np.stack([np.where(a > 2, a * b, b) - shared for a, b in zip(*args)])
    np.testing.assert_array_equal(combine(*map(tf.constant, args)), expected)


def test_known_ranks_are_broadcast_without_tile():
    traced = _vectorised(lambda a, b: tf.exp(a) * a + b, _per_client(2), _per_client(1))
    assert "Tile" not in {op.type for op in traced.graph.get_operations()}


@pytest.mark.slow
def test_other_code_keeps_tensorflows_vectorisation():
    """TensorFlow's own vectorisation runs before, after and, in a thread, during the package's."""

    def others() -> set[str]:
        specs = [tf.TensorSpec([None] * rank, tf.float32) for rank in (3, 2)]
        function = tf.function(lambda a, b: tf.vectorized_map(lambda ab: ab[0] * ab[1], (a, b)))
        graph = function.get_concrete_function(*specs).graph
        return {op.type for op in graph.get_operations()}

    def work(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
        with ThreadPoolExecutor(1) as thread:
            meanwhile.append(thread.submit(others).result())
        return a * b

    before, meanwhile = others(), []
    traced = _vectorised(work, _per_client(2), _per_client(1))
    ours = {op.type for op in traced.graph.get_operations()}
    assert others() == before
    assert meanwhile and all(actual == before for actual in meanwhile)
    assert ours != before
