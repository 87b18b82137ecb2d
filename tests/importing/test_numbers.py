"""Statistics of a table's numbers over training clients, and `standardize`."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.imports import job, write_csv
from tff_agnostic.data.store import Store, load_store
from tff_agnostic.importing.report import ImportReport
from tff_agnostic.importing.source import ReadLog

_COLUMNS: dict[str, Any] = {
    "client_column": "who",
    "domain_name": "web",
    "label_column": "y",
    "feature_columns": ("age", "pay"),
    "missing_values": "mark",
}
_WHO = np.array([f"w{k % 30}" for k in range(2400)])


def _imported(folder: Path, numbers: np.ndarray, **more: Any) -> tuple[ImportReport, Store]:
    """Imports the ages and pays in `numbers` [2400, 2]; NaN is missing."""
    rows = [
        {"who": who, "age": "" if np.isnan(age) else repr(age), "pay": repr(pay), "y": k % 2}
        for k, (who, (age, pay)) in enumerate(zip(_WHO.tolist(), numbers.tolist()))
    ]
    write_csv(folder / "rows.csv", rows)
    options = {**_COLUMNS, **more}
    report = job("csv", folder / "rows.csv", folder / "s.sqlite", **options).run(ReadLog())
    return report, load_store(folder / "s.sqlite")


@pytest.mark.nightly
@pytest.mark.parametrize("standardize", [False, True])
def test_statistics_use_training_clients(tmp_path, standardize):
    rng = np.random.default_rng(0)
    numbers = rng.normal([40, 3e4], [12, 1e4], [2400, 2])
    numbers[rng.random(2400) < 0.2, 0] = np.nan
    numbers = numbers.astype(np.float32).astype(np.float64)
    report, store = _imported(tmp_path, numbers, standardize=standardize)
    training_rows = numbers[np.isin(_WHO, [*store.client_counts("train")])]
    assert 0 < len(training_rows) < len(numbers)
    mean, deviation = np.nanmean(training_rows, axis=0), np.nanstd(training_rows, axis=0)
    result = store.description.statistics["x"]
    np.testing.assert_allclose([one.mean for one in result], mean, rtol=1e-13)
    np.testing.assert_allclose([one.deviation for one in result], deviation, rtol=1e-12)
    assert [one.least for one in result] == np.nanmin(training_rows, axis=0).tolist()
    assert [one.missing for one in result] == np.isnan(training_rows).sum(axis=0).tolist()
    # A test client's inputs use the training clients' statistics.
    client = store.client_ids("test")[0]
    rows = numbers[client == _WHO]
    expected = (rows - mean) / deviation if standardize else rows
    expected = np.concatenate([np.nan_to_num(expected), np.isnan(rows)], axis=1)
    x = store.columns("test", client, {"x": store.description.features["x"]})["x"]
    np.testing.assert_allclose(x, expected, rtol=1e-6, atol=1e-6)
    kinds = [remark.kind for remark in report.remarks]
    assert ("scales" in kinds) is not standardize


@pytest.mark.nightly
def test_numbers_of_similar_size_raise_no_warning(tmp_path):
    numbers = np.stack([np.full(2400, 0.3), 5.0 * (np.arange(2400) % 3)], axis=1)
    report, _ = _imported(tmp_path, numbers)
    assert "scales" not in [remark.kind for remark in report.remarks]
