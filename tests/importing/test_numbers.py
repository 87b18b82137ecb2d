"""Statistics of a table's numbers over training clients, and `standardize`."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.imports import job, refused, write_csv
from tff_agnostic.data.store import Store, load_store
from tff_agnostic.importing.report import ImportReport
from tff_agnostic.importing.source import ReadLog

_COLUMNS: dict[str, Any] = {
    "client_column": "who",
    "domain_name": "web",
    "label_column": "y",
    "feature_columns": ("age", "pay"),
    "split_column": "for",
}


def _rows(seed: int = 0) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    return [
        {
            "who": f"w{k % 30}",
            "age": "" if rng.random() < 0.2 else repr(float(np.float32(rng.normal(40, 12)))),
            "pay": repr(float(np.float32(rng.normal(3e4, 1e4)))),
            "y": k % 2,
            "for": ("train", "test", "heldout")[k % 30 % 3],
        }
        for k in range(2400)
    ]


def _imported(folder: Path, rows: list[dict[str, Any]], **more: Any) -> tuple[ImportReport, Store]:
    path = folder / "rows.csv"
    write_csv(path, rows)
    options = {"missing_values": "mark", **_COLUMNS, **more}
    report = job("csv", path, folder / "s.sqlite", **options).run(ReadLog())
    return report, load_store(folder / "s.sqlite")


def _numbers(rows: list[dict[str, Any]]) -> np.ndarray:
    """Returns ages and pays, float64 [n, 2]; NaN if missing."""
    return np.array([[float(row[c] or "nan") for c in ("age", "pay")] for row in rows])


def _stored(store: Store, split: str, client: str) -> np.ndarray:
    return store.columns(split, client, {"x": store.description.features["x"]})["x"]


@pytest.mark.nightly
@pytest.mark.parametrize("standardize", [False, True])
def test_statistics_use_training_clients(tmp_path, standardize):
    rows = _rows()
    report, store = _imported(tmp_path, rows, standardize=standardize)
    training_rows = _numbers([row for row in rows if row["for"] == "train"])
    mean, deviation = np.nanmean(training_rows, axis=0), np.nanstd(training_rows, axis=0)
    result = store.description.statistics["x"]
    np.testing.assert_allclose([one.mean for one in result], mean, rtol=1e-13)
    np.testing.assert_allclose([one.deviation for one in result], deviation, rtol=1e-12)
    assert [one.least for one in result] == np.nanmin(training_rows, axis=0).tolist()
    assert [one.missing for one in result] == np.isnan(training_rows).sum(axis=0).tolist()
    # A test client's inputs use the training clients' statistics.
    own_rows = [row for row in rows if row["who"] == "w1"]
    numbers = _numbers(own_rows).astype(np.float32)
    if standardize:
        numbers = ((numbers - mean) / deviation).astype(np.float32)
    gaps = np.array([[row[c] == "" for c in ("age", "pay")] for row in own_rows])
    expected = np.concatenate([np.where(gaps, 0, numbers), gaps], axis=1)
    np.testing.assert_allclose(_stored(store, "test", "w1"), expected, rtol=1e-6, atol=1e-6)
    kinds = [remark.kind for remark in report.remarks]
    assert ("scales" in kinds) is not standardize


@pytest.mark.nightly
def test_statistics_use_final_splits(tmp_path):
    rows = [{**row, "for": ""} for row in _rows()]
    _, store = _imported(tmp_path, rows, split_column=None)
    training = store.client_counts("train")
    training_rows = _numbers([row for row in rows if row["who"] in training])
    assert 0 < len(training_rows) < len(rows)
    result = store.description.statistics["x"]
    np.testing.assert_allclose(
        [one.mean for one in result], np.nanmean(training_rows, axis=0), rtol=1e-13
    )


@pytest.mark.nightly
def test_numbers_of_similar_size_raise_no_warning(tmp_path):
    rows = [{**row, "age": 0.3, "pay": 5 * (k % 3)} for k, row in enumerate(_rows())]
    report, _ = _imported(tmp_path, rows)
    assert "scales" not in [remark.kind for remark in report.remarks]


def test_standardize_without_feature_columns_raises(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("who,job,y\na,cook,0\n")
    options = {**_COLUMNS, "feature_columns": (), "categorical_columns": ("job",)}
    assert refused("csv", path, standardize=True, **options).startswith("standardize: ")
