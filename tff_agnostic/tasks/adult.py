"""UCI Adult census: does a person earn more than 50,000 a year? Domains: doctorate or not.

As in Mohri et al. 2019, section 5.1, the model is logistic regression on the one-hot categorical
columns (99 features). Examples are assigned to clients at random. The task reads `adult.data` and
`adult.test`.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import numpy as np

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.options import Options, Within
from tff_agnostic.data.clients import InMemoryClients, even_partition
from tff_agnostic.models.classifiers import logistic_regression
from tff_agnostic.tasks.dealing import deal
from tff_agnostic.tasks.task import HELDOUT_SPLIT, TEST_SPLIT, Task, TaskContext, TaskSpec, Use

_DOMAIN_NAMES = ("doctorate", "non-doctorate")
_LABELS = {"<=50K": 0, ">50K": 1}
_UNKNOWN = "?"
_COLUMN_NAMES = """
    age workclass fnlwgt education education_num marital_status occupation relationship race sex
    capital_gain capital_loss hours_per_week native_country income
"""
COLUMNS = tuple(_COLUMN_NAMES.split())
# The values of the categorical columns, 99 in all.
CATEGORIES: dict[str, tuple[str, ...]] = {
    name: tuple(values.split())
    for name, values in {
        "workclass": """
            Federal-gov Local-gov Never-worked Private Self-emp-inc Self-emp-not-inc State-gov
            Without-pay
        """,
        "education": """
            10th 11th 12th 1st-4th 5th-6th 7th-8th 9th Assoc-acdm Assoc-voc Bachelors Doctorate
            HS-grad Masters Preschool Prof-school Some-college
        """,
        "marital_status": """
            Divorced Married-AF-spouse Married-civ-spouse Married-spouse-absent Never-married
            Separated Widowed
        """,
        "occupation": """
            Adm-clerical Armed-Forces Craft-repair Exec-managerial Farming-fishing Handlers-cleaners
            Machine-op-inspct Other-service Priv-house-serv Prof-specialty Protective-serv Sales
            Tech-support Transport-moving
        """,
        "relationship": "Husband Not-in-family Other-relative Own-child Unmarried Wife",
        "race": "Amer-Indian-Eskimo Asian-Pac-Islander Black Other White",
        "sex": "Female Male",
        "native_country": """
            Cambodia Canada China Columbia Cuba Dominican-Republic Ecuador El-Salvador England
            France Germany Greece Guatemala Haiti Holand-Netherlands Honduras Hong Hungary India
            Iran Ireland Italy Jamaica Japan Laos Mexico Nicaragua Outlying-US(Guam-USVI-etc) Peru
            Philippines Poland Portugal Puerto-Rico Scotland South Taiwan Thailand Trinadad&Tobago
            United-States Vietnam Yugoslavia
        """,
    }.items()
}

# The features, labels and domain ids of a file's rows.
Table = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclasses.dataclass(frozen=True)
class AdultOptions(Options):
    """Options of the task.

    Attributes:
        num_clients: Number of training clients.
        num_test_clients: Number of test clients.
        heldout_share: Fraction of the training examples to evaluate on while tuning, instead of the
            test examples.
        ridge: Penalty factor: ridge / 2 ||w||^2 is added to the loss.
    """

    num_clients: int = 50
    num_test_clients: int = 20
    heldout_share: Annotated[float, Within(least=0.0, most=0.9)] = 0.0
    ridge: Annotated[float, Within(least=0.0)] = 0.0


def load(options: AdultOptions, context: TaskContext) -> Task:
    """Returns the task; the seed determines the rows of each client."""
    assert context.data_dir is not None
    rng = np.random.default_rng([context.seed, 2])
    train = read_adult(context.data_dir / "adult.data")
    if options.heldout_share:
        order = rng.permutation(len(train[1]))
        cut = round(options.heldout_share * len(order))
        test, train = _rows(train, order[:cut]), _rows(train, order[cut:])
    else:
        test = read_adult(context.data_dir / "adult.test")

    def clients(field: str, ids: str, table: Table) -> InMemoryClients:
        def partition(num_clients: int) -> list[np.ndarray]:
            return even_partition(len(table[1]), num_clients, rng)

        examples = dict(zip(("x", "y", "domain_id"), table))
        return deal(options, field, ids, examples, partition)

    num_features = sum(len(values) for values in CATEGORIES.values())
    return Task(
        domain_names=_DOMAIN_NAMES,
        train=clients("num_clients", "train_{:04d}", train),
        test=clients("num_test_clients", "test_{:04d}", test),
        model=logistic_regression(num_features, len(_LABELS), options.ridge),
        test_split=HELDOUT_SPLIT if options.heldout_share else TEST_SPLIT,
        class_names=tuple(_LABELS),
    )


def _rows(table: Table, rows: np.ndarray) -> Table:
    x, y, domain_id = table
    return x[rows], y[rows], domain_id[rows]


def read_adult(path: Path) -> Table:
    """Reads a file of UCI's Adult data.

    Returns:
        One-hot features float32 [n, 99] (all zeros in a column with unknown value, "?"), labels
        int32 [n] (1 for more than 50,000), domain ids int32 [n].
    """
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as e:
        raise UserError(f"{path}: expected UCI's Adult file, cannot read it ({e})") from e
    features, labels, domain_ids = [], [], []
    for number, line in enumerate(lines, start=1):
        # Skip the first line of the test file, which is a comment, and the last line of both
        # files, which is empty.
        if not line.strip() or line.startswith("|"):
            continue
        where = f"{path}:{number}"
        row = _parse_row(line, where)
        features.append(_one_hot(row, where))
        labels.append(_LABELS[row["income"]])
        domain_ids.append(0 if row["education"] == "Doctorate" else 1)
    if not labels:
        raise UserError(f"{path}: expected rows of UCI's Adult data, found none")
    return (
        np.array(features, np.float32),
        np.array(labels, np.int32),
        np.array(domain_ids, np.int32),
    )


def _parse_row(line: str, where: str) -> dict[str, str]:
    values = [value.strip() for value in line.split(",")]
    if len(values) != len(COLUMNS):
        raise UserError(f"{where}: expected {len(COLUMNS)} columns, found {len(values)}")
    row = dict(zip(COLUMNS, values))
    # Remove the full stop at the end of labels in the test file.
    row["income"] = row["income"].rstrip(".")
    if row["income"] not in _LABELS:
        raise UserError(f"{where}: expected {' or '.join(_LABELS)}, found {row['income']!r}")
    return row


def _one_hot(row: dict[str, str], where: str) -> list[float]:
    encoded: list[float] = []
    for column, categories in CATEGORIES.items():
        value = row[column]
        if value != _UNKNOWN and value not in categories:
            raise UserError(f"{where}: unknown value {value!r} in column {column}")
        encoded.extend(float(value == category) for category in categories)
    return encoded


TASK = TaskSpec(AdultOptions, load, data_dir=Use.REQUIRED)
