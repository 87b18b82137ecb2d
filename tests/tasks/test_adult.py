"""UCI Adult: hand-made lines in its format, and the real files if present."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import golden
from tests.support.imports import job
from tests.support.stores import LOGISTIC_REGRESSION
from tff_agnostic.data.clients import domain_counts, even_partition
from tff_agnostic.importing.source import ReadLog
from tff_agnostic.tasks.adult import CATEGORIES, COLUMNS, AdultOptions, load, read_adult
from tff_agnostic.tasks.registry import load_task
from tff_agnostic.tasks.task import Task, TaskContext

_REAL = Path(__file__).parents[2].parent / "shared" / "data" / "adult"
_needs_files = pytest.mark.skipif(
    not (_REAL / "adult.data").is_file(), reason=f"UCI's Adult files are not in {_REAL}"
)

_PERSON = (
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, "
    "Male, 2174, 0, 40, United-States, <=50K"
)
_DOCTOR = (
    "50, Private, 1, Doctorate, 16, Divorced, Sales, Husband, Black, Female, 0, 0, 40, ?, >50K"
)


def _write(folder: Path, train: list[str], test: list[str]) -> Path:
    (folder / "adult.data").write_text("\n".join(train) + "\n\n")
    (folder / "adult.test").write_text("\n".join(["|1x3 Cross validator", *test]) + "\n\n")
    return folder


def _load(folder: Path, seed: int = 0, **options: Any) -> Task:
    return load(AdultOptions(**options), TaskContext(seed, folder))


def test_adult_row_becomes_features_label_and_domain(tmp_path):
    path = tmp_path / "adult.data"
    path.write_text(f"{_PERSON}\n{_DOCTOR}\n")
    x, y, domain_id = read_adult(path)
    assert (x.dtype, y.dtype, domain_id.dtype) == (np.float32, np.int32, np.int32)
    names = [f"{c}={value}" for c, values in CATEGORIES.items() for value in values]
    assert len(names) == x.shape[1] == 99
    assert {name for name, value in zip(names, x[0]) if value} == {
        "workclass=State-gov",
        "education=Bachelors",
        "marital_status=Never-married",
        "occupation=Adm-clerical",
        "relationship=Not-in-family",
        "race=White",
        "sex=Male",
        "native_country=United-States",
    }
    # The second row's country is unknown, so no feature of a country is 1.
    assert x.sum(axis=1).tolist() == [8, 7]
    assert y.tolist() == [0, 1]
    assert domain_id.tolist() == [1, 0]


def test_test_file_may_have_periods_and_a_header(tmp_path):
    path = tmp_path / "adult.test"
    path.write_text(f"|1x3 Cross validator\n{_PERSON}.\n\n{_DOCTOR}.\n\n")
    assert read_adult(path)[1].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("39, State-gov", "expected 15 columns, found 2"),
        (_PERSON.replace("<=50K", "50K"), "expected <=50K or >50K, found '50K'"),
        (_PERSON.replace("White", "Purple"), "unknown value 'Purple' in column race"),
    ],
)
def test_malformed_adult_line_raises(tmp_path, line, message):
    path = tmp_path / "adult.data"
    path.write_text(f"{_PERSON}\n\n{line}\n{_PERSON}\n")
    assert golden.refusal(read_adult, path) == f"{path}:3: {message}"


def test_unreadable_or_empty_adult_file_raises(tmp_path):
    path = tmp_path / "adult.data"
    path.write_text(_PERSON, encoding="utf-16")
    message = golden.refusal(read_adult, path)
    assert message.startswith(f"{path}: expected UCI's Adult file, cannot read it")
    path.write_text("|1x3 Cross validator\n\n")
    message = golden.refusal(read_adult, path)
    assert message == f"{path}: expected rows of UCI's Adult data, found none"


def test_adult_rows_are_dealt_to_clients(tmp_path):
    folder = _write(tmp_path, [_PERSON] * 7 + [_DOCTOR] * 2, [f"{_DOCTOR}."] * 4)
    task = _load(folder, num_clients=3, num_test_clients=2)
    assert task.domain_names == ("doctorate", "non-doctorate")
    assert [len(task.train.read(k)["y"]) for k in task.train.client_ids] == [3, 3, 3]
    np.testing.assert_array_equal(domain_counts(task.train, 2), [2, 7])
    np.testing.assert_array_equal(domain_counts(task.test, 2), [4, 0])


@pytest.mark.nightly
@_needs_files
def test_real_adult_files_have_documented_counts():
    task = _load(_REAL)
    train, test = domain_counts(task.train, 2), domain_counts(task.test, 2)
    assert (train.sum(), train[0]) == (32561, 413)
    assert (test.sum(), test[0]) == (16281, 181)
    assert task.model.initial_weights.trainable[0].shape[0] == 99
    x, y, _ = read_adult(_REAL / "adult.data")
    # Every category occurs.
    assert x.sum(axis=0).min() >= 1
    assert np.bincount(y).tolist() == [24720, 7841]


_NUMBERS = ("age", "fnlwgt", "education_num", "capital_gain", "capital_loss", "hours_per_week")
_PARTS = {"train": ("adult.data", 20), "test": ("adult.test", 10)}
_FEW = 2000


def _few_people(folder: Path) -> Path:
    """Writes the first `_FEW` lines of UCI's files."""
    for name, _ in _PARTS.values():
        lines = (_REAL / name).read_text().splitlines(keepends=True)
        (folder / name).write_text("".join(lines[:_FEW]))
    return folder


def _as_a_table(folder: Path) -> Path:
    """Writes the files as a user's CSV table, with the same clients as the task."""
    rng = np.random.default_rng([0, 2])
    with open(folder / "adult.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow([*COLUMNS, "person", "degree", "part"])
        for part, (name, num_clients) in _PARTS.items():
            lines = [line for line in (folder / name).read_text().splitlines() if ", " in line]
            rows = [line.rstrip(".").split(", ") for line in lines]
            for k, client_rows in enumerate(even_partition(len(rows), num_clients, rng)):
                for row in (rows[i] for i in client_rows):
                    is_doctor = row[COLUMNS.index("education")] == "Doctorate"
                    degree = "doctorate" if is_doctor else "non-doctorate"
                    table.writerow([*row, f"{part}_{k:04d}", degree, part])
    return folder / "adult.csv"


@pytest.mark.nightly
@_needs_files
def test_imported_adult_table_equals_the_task(tmp_path):
    table = _as_a_table(_few_people(tmp_path))
    job(
        "csv",
        table,
        tmp_path / "s.sqlite",
        client_column="person",
        domain_column="degree",
        split_column="part",
        feature_columns=_NUMBERS,
        categorical_columns=tuple(CATEGORIES),
        missing_values="zero",
        missing_marks=("?",),
        label_column="income",
        class_names=("<=50K", ">50K"),
    ).run(ReadLog())
    (tmp_path / "my_model.py").write_text(LOGISTIC_REGRESSION)
    context = TaskContext(0, data=tmp_path / "s.sqlite")
    task = _load(tmp_path, num_clients=20, num_test_clients=10)
    custom = load_task("custom", {"model": str(tmp_path / "my_model.py")}, context)
    assert custom.domain_names == task.domain_names
    # The task knows all categories of UCI's files, a table only those of its training rows.
    train = np.concatenate([task.train.read(client)["x"] for client in task.train.client_ids])
    names = train.any(axis=0)
    assert 80 < names.sum() < 99
    for result, expected in ((custom.train, task.train), (custom.test, task.test)):
        assert list(result.client_ids) == list(expected.client_ids)
        for client in result.client_ids:
            columns, actual = result.read(client), expected.read(client)
            np.testing.assert_array_equal(columns["x"][:, len(_NUMBERS) :], actual["x"][:, names])
            np.testing.assert_array_equal(columns["y"], actual["y"])
            np.testing.assert_array_equal(columns["domain_id"], actual["domain_id"])
