"""Statistics accumulated over blocks match NumPy's statistics over all rows."""

import numpy as np
import pytest

from tff_agnostic.data.statistics import RunningStatistics, standardized
from tff_agnostic.data.store_format import NumberStatistics


def _block_statistics(rows: np.ndarray, *ends: int) -> tuple[NumberStatistics, ...]:
    running = RunningStatistics(rows.shape[1])
    for block in np.split(rows, ends):
        running.add(block)
    return running.result()


@pytest.mark.parametrize("ends", [(), (1,), (3, 3, 500), tuple(range(1, 1000))])
def test_block_statistics_equal_statistics_over_all_rows(ends):
    rng = np.random.default_rng(0)
    # Column 1 has mean 1e9 and deviation 1e-3: a sum of squares would lose all digits.
    rows = rng.normal([0.5, 1e9, -3, 7], [2, 1e-3, 1e4, 0], [1000, 4])
    rows[rng.random(rows.shape) < 0.1] = np.nan
    value = _block_statistics(rows, *ends)
    for k, one in enumerate(value):
        present = rows[~np.isnan(rows[:, k]), k]
        assert (one.count, one.missing) == (len(present), 1000 - len(present))
        assert (one.least, one.most) == (present.min(), present.max())
        np.testing.assert_allclose(one.mean, present.mean(), rtol=1e-13)
        # NumPy's own deviation has few correct digits for column 1.
        np.testing.assert_allclose(one.deviation, present.std(), rtol=1e-9 if k != 1 else 1e-4)
    assert value[3].deviation == 0 and value[3].unit == 1


def test_column_of_nan_has_no_statistics():
    (one,) = _block_statistics(np.full([5, 1], np.nan), 2)
    assert one == NumberStatistics(0, 5, 0.0, 0.0, None, None)


def test_standardized_numbers_have_mean_0_and_deviation_1():
    rows = np.random.default_rng(1).normal([40, 1e6, 3], [12, 5, 0], [500, 3]).astype(np.float32)
    value = standardized(rows, _block_statistics(rows, 100))
    assert value.dtype == np.float32
    np.testing.assert_allclose(value.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(value.std(axis=0), [1, 1, 0], rtol=1e-4)
    gap = standardized(np.array([np.nan, 1e6, 3]), _block_statistics(rows))
    assert gap[0] == 0
