"""Data frames give the same stores and clients as tables in files."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.support.comparing import assert_identical
from tests.support.imports import job
from tff_agnostic.base.errors import UserError
from tff_agnostic.base.options import OptionError
from tff_agnostic.data.store import load_store
from tff_agnostic.importing.frames import clients_of, import_table
from tff_agnostic.importing.source import ReadLog

_DRAW = np.random.default_rng(0)
_FRAME = {
    "who": np.array([f"c{k % 20}" for k in range(200)]),
    "where": np.array(["x", "y", "z"])[_DRAW.integers(3, size=200)],
    "age": _DRAW.normal(size=200),
    "pay": _DRAW.integers(9, size=200),
    "job": np.array(["cook", "baker", None], object)[_DRAW.integers(3, size=200)],
    "y": _DRAW.integers(4, size=200),
}
_OPTIONS: dict[str, Any] = {
    "client_column": "who",
    "domain_column": "where",
    "feature_columns": ("age", "pay"),
    "categorical_columns": ("job",),
    "label_column": "y",
    "missing_values": "zero",
}


@pytest.mark.parametrize("library", ["", "pandas", "polars"])
def test_frame_store_equals_file_store(tmp_path, library):
    frame = pytest.importorskip(library).DataFrame(_FRAME) if library else _FRAME
    path = tmp_path / "rows.parquet"
    parquet.write_table(pa.table(_FRAME), path)
    job("parquet", path, tmp_path / "file", **_OPTIONS).run(ReadLog())
    import_table(frame, tmp_path / "frame", **_OPTIONS)
    stores = [load_store(tmp_path / name) for name in ("file", "frame")]
    assert stores[1].description.source == "a data frame"
    for split in stores[0].splits():
        assert stores[0].client_counts(split) == stores[1].client_counts(split)
        for client in stores[0].client_ids(split):
            features = stores[0].description.features
            assert_identical(*(store.columns(split, client, features) for store in stores))


def test_clients_contain_their_rows():
    table = clients_of(_FRAME, _OPTIONS)
    assert table.domain_names == ("x", "y", "z")
    assert table.clients.client_ids == sorted({*_FRAME["who"].tolist()})
    is_own = _FRAME["who"] == "c3"
    columns = [_FRAME["age"], _FRAME["pay"], _FRAME["job"] == "baker", _FRAME["job"] == "cook"]
    expected = {
        "x": np.stack(columns, axis=1)[is_own].astype(np.float32),
        "y": _FRAME["y"][is_own],
        "domain_id": np.searchsorted(table.domain_names, _FRAME["where"][is_own]),
    }
    assert_identical(table.clients.read("c3"), expected)


def test_named_inputs_become_separate_arrays():
    options = {**_OPTIONS, "feature_columns": "a:age;b:pay", "categorical_columns": ()}
    examples = clients_of(_FRAME, options).clients.read("c0")
    assert {name: x.shape for name, x in examples["x"].items()} == {"a": (10, 1), "b": (10, 1)}


@pytest.mark.parametrize(
    ("frame", "options", "expected"),
    [
        (_FRAME, {"feature_columns": ("job",)}, "row 1: expected numbers as features, found "),
        (3, {}, "expected a mapping of arrays, or a data frame of pandas, polars or Arrow, fou"),
    ],
)
def test_invalid_frames_raise_one_line_error(frame, options, expected, tmp_path: Path):
    options = {**_OPTIONS, "categorical_columns": (), **options}
    for call in (
        lambda: clients_of(frame, options),
        lambda: import_table(frame, tmp_path / "s", **options),
    ):
        with pytest.raises(UserError) as error:
            call()
        assert str(error.value).startswith(expected) and "\n" not in str(error.value)
    assert not (tmp_path / "s").exists()


def test_frame_import_rejects_file_options(tmp_path):
    for option, message in (
        ({"label": "y"}, "label: expected an option of imports, found 'y'"),
        ({"encoding": "cp1252"}, "encoding: expected no value with format=parquet"),
    ):
        with pytest.raises(OptionError, match=f"^{message}"):
            import_table(_FRAME, tmp_path / "s", **{**_OPTIONS, **option})


def test_in_memory_clients_reject_store_options():
    with pytest.raises(OptionError, match=r"^columns: expected one of .*, found 'standardize'$"):
        clients_of(_FRAME, {**_OPTIONS, "standardize": True})


def test_missing_numbers_in_memory_raise_or_become_zero():
    frame = {**_FRAME, "age": np.where(np.arange(len(_FRAME["age"])) == 0, np.nan, _FRAME["age"])}
    options = {**_OPTIONS, "feature_columns": ("age",), "categorical_columns": ()}
    with pytest.raises(UserError, match=r"^row 1: expected numbers as features, found nan in age"):
        clients_of(frame, {**options, "missing_values": "fail"})
    with pytest.raises(OptionError, match=r"^missing_values: expected fail or zero, as clients in"):
        clients_of(frame, {**options, "missing_values": "mark"})
    client = str(_FRAME["who"][0])
    examples = clients_of(frame, options).clients.read(client)
    expected = frame["age"][_FRAME["who"] == client]
    np.testing.assert_array_equal(examples["x"][:, 0], np.nan_to_num(expected).astype(np.float32))
