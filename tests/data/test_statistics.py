"""Statistics of blocks against NumPy's of all rows."""

import numpy as np
import pytest

from tff_agnostic.data.statistics import RunningStatistics, Standardization
from tff_agnostic.data.store_format import NumberStatistics


def _of_blocks(rows: np.ndarray, *ends: int) -> tuple[NumberStatistics, ...]:
    running = RunningStatistics(rows.shape[1])
    for block in np.split(rows, ends):
        running.add(block)
    return running.result()


@pytest.mark.parametrize("ends", [(), (1,), (3, 3, 500), tuple(range(1, 1000))])
def test_blocks_have_the_statistics_of_all_rows(ends):
    rng = np.random.default_rng(0)
    # The second is large compared with its deviation: a sum of squares would lose all digits.
    rows = rng.normal([0.5, 1e9, -3, 7], [2, 1e-3, 1e4, 0], [1000, 4])
    rows[rng.random(rows.shape) < 0.1] = np.nan
    found = _of_blocks(rows, *ends)
    for k, one in enumerate(found):
        there = rows[~np.isnan(rows[:, k]), k]
        assert (one.count, one.missing) == (len(there), 1000 - len(there))
        assert (one.least, one.most) == (there.min(), there.max())
        np.testing.assert_allclose(one.mean, there.mean(), rtol=1e-13)
        # NumPy's own has so many digits of a deviation at a mean of 1e9.
        np.testing.assert_allclose(one.deviation, there.std(), rtol=1e-9 if k != 1 else 1e-4)
    assert found[3].deviation == 0 and found[3].unit == 1


def test_missing_numbers_have_no_statistics():
    (one,) = _of_blocks(np.full([5, 1], np.nan), 2)
    assert one == NumberStatistics(0, 5, 0.0, 0.0, None, None)


def test_standardized_numbers_have_mean_0_and_deviation_1():
    rows = np.random.default_rng(1).normal([40, 1e6, 3], [12, 5, 0], [500, 3]).astype(np.float32)
    found = Standardization(_of_blocks(rows, 100))(rows)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(found.std(axis=0), [1, 1, 0], rtol=1e-4)
    gap = Standardization(_of_blocks(rows))(np.array([np.nan, 1e6, 3]))
    assert gap[0] == 0
