"""Image tasks whose classes are the domains, as in section 5.2 of Mohri et al. 2019.

- `digits`: handwritten digits from scikit-learn, 1,797 images of 8x8 pixels, without a download. As
  groups rarely have equal sizes, class 8 by default keeps 15% and class 9 keeps 30% of its training
  examples; all test images are kept. With equal class sizes there is little unfairness to reduce:
  uniform and agnostic training end equally well.
- `fashion_mnist`: t-shirt/top, pullover and shirt of Fashion-MNIST, logistic regression. The store
  contains all ten classes, or only these three, numbered 0 to 2.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Optional

import numpy as np

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.later import sklearn
from tff_agnostic.base.options import OptionError, Options, Verbatim, Within
from tff_agnostic.data.clients import InMemoryClients, dirichlet_partition
from tff_agnostic.data.store import StoreClients
from tff_agnostic.data.store_format import LABEL, Feature
from tff_agnostic.models.classifiers import logistic_regression
from tff_agnostic.models.model import Examples
from tff_agnostic.tasks.dealing import deal
from tff_agnostic.tasks.stored import (
    TRAIN_SPLIT,
    SplitOptions,
    data_fingerprint,
    open_store,
    read_labels,
)
from tff_agnostic.tasks.task import HELDOUT_SPLIT, TEST_SPLIT, Task, TaskContext, TaskSpec, Use

_NUM_CLASSES = 10
_MAX_PIXEL = 16.0
_DOMAIN_NAMES = ("t-shirt/top", "pullover", "shirt")
# The domains' labels in Fashion-MNIST.
_LABELS = (0, 2, 6)
_NUM_LABELS = 10
_PIXELS = "pixels"
_NUM_PIXELS = 28 * 28


@dataclasses.dataclass(frozen=True)
class DigitsOptions(Options):
    """Options of the task.

    Attributes:
        num_clients: Number of training clients.
        num_test_clients: Number of test clients.
        concentration: Dirichlet parameter of the clients' class mixtures; small values give skewed
            clients.
        keep: Fraction of the training images that rare classes keep, CLASS:SHARE comma-separated;
            empty keeps all.
        test_share: Fraction of the images to use as test images.
        heldout_share: Fraction of the training examples to evaluate on while tuning, instead of the
            test examples.
    """

    num_clients: int = 50
    num_test_clients: int = 20
    concentration: Annotated[float, Within(least=0.0001)] = 0.5
    keep: str = "8:0.15,9:0.3"
    test_share: Annotated[float, Within(least=0.05, most=0.9)] = 0.3
    # Only training images are thinned: rare classes keep all held-out and test images.
    heldout_share: Annotated[float, Within(least=0.0, most=0.9)] = 0.0


def load(options: DigitsOptions, context: TaskContext) -> Task:
    """Returns the task; the seed determines split, thinning and clients."""
    keep = parse_keep(options.keep)
    rng = np.random.default_rng([context.seed, 1])
    pixels, labels = sklearn.datasets.load_digits(return_X_y=True)
    x, y = (pixels / _MAX_PIXEL).astype(np.float32), labels.astype(np.int32)
    train_rows, test_rows = sklearn.model_selection.train_test_split(
        np.arange(len(y)),
        test_size=options.test_share,
        stratify=y,
        random_state=int(rng.integers(2**31)),
    )
    if options.heldout_share:
        train_rows, test_rows = sklearn.model_selection.train_test_split(
            train_rows,
            test_size=options.heldout_share,
            stratify=y[train_rows],
            random_state=int(rng.integers(2**31)),
        )
    train_rows = _thin(train_rows, y, keep, rng)

    def clients(field: str, ids: str, rows: np.ndarray) -> InMemoryClients:
        def partition(num_clients: int) -> list[np.ndarray]:
            return dirichlet_partition(y[rows], num_clients, options.concentration, rng)

        examples = {"x": x[rows], "y": y[rows], "domain_id": y[rows]}
        return deal(options, field, ids, examples, partition)

    class_names = tuple(map(str, range(_NUM_CLASSES)))
    return Task(
        domain_names=class_names,
        train=clients("num_clients", "train_{:03d}", train_rows),
        test=clients("num_test_clients", "test_{:03d}", test_rows),
        model=logistic_regression(x.shape[1], _NUM_CLASSES),
        class_names=class_names,
        test_split=HELDOUT_SPLIT if options.heldout_share else TEST_SPLIT,
    )


def parse_keep(text: str) -> dict[int, float]:
    """Parses a string such as "8:0.15,9:0.3" into the fraction that each rare class keeps."""
    keep: dict[int, float] = {}
    for item in filter(None, text.split(",")):
        try:
            name, share_text = item.split(":")
            label, share = int(name), float(share_text)
        except ValueError:
            label, share = -1, -1.0
        if not (0 <= label < _NUM_CLASSES and 0 < share <= 1) or label in keep:
            expected = "CLASS:SHARE with a class from 0 to 9, each once, and a share in (0, 1]"
            raise OptionError("keep", expected, Verbatim(f"{item!r} in {text!r}"))
        keep[label] = share
    return keep


def _thin(
    rows: np.ndarray, labels: np.ndarray, keep: dict[int, float], rng: np.random.Generator
) -> np.ndarray:
    kept = [
        rng.permutation(class_rows)[: max(1, round(keep.get(label, 1.0) * len(class_rows)))]
        for label in range(_NUM_CLASSES)
        for class_rows in [rows[labels[rows] == label]]
    ]
    return np.sort(np.concatenate(kept))


@dataclasses.dataclass(frozen=True)
class FashionMnistOptions(SplitOptions):
    """Options of the task."""


def load_fashion_mnist(options: FashionMnistOptions, context: TaskContext) -> Task:
    """Returns the task."""
    assert context.data is not None
    features = {_PIXELS: Feature("float32", (28, 28)), LABEL: Feature("int64")}
    store = open_store(context.data, features)
    class_by_label = _class_table(store.description.num_classes)

    def to_examples(client_id: str, columns: Mapping[str, np.ndarray]) -> Examples:
        where = f"{store.path}: client {client_id}"
        classes = class_by_label[read_labels(columns, len(class_by_label), where)]
        rows = classes >= 0
        if not np.any(rows):
            raise UserError(f"{where}: expected images of {', '.join(_DOMAIN_NAMES)}, found none")
        return {
            "x": columns[_PIXELS][rows].reshape(-1, _NUM_PIXELS),
            "y": classes[rows],
            "domain_id": classes[rows],
        }

    def clients(split: str) -> StoreClients:
        return StoreClients(store, split, features, to_examples, _DOMAIN_NAMES)

    return Task(
        domain_names=_DOMAIN_NAMES,
        train=clients(TRAIN_SPLIT),
        test=clients(options.test_split),
        model=logistic_regression(_NUM_PIXELS, len(_DOMAIN_NAMES)),
        fingerprint=data_fingerprint(store),
        class_names=_DOMAIN_NAMES,
    )


def _class_table(num_classes: Optional[int]) -> np.ndarray:
    """Returns the class of each of the store's labels; -1 for labels to skip."""
    if num_classes == len(_LABELS):
        return np.arange(num_classes, dtype=np.int32)
    class_by_label = np.full([_NUM_LABELS], -1, np.int32)
    class_by_label[list(_LABELS)] = range(len(_LABELS))
    return class_by_label


DIGITS = TaskSpec(DigitsOptions, load)
FASHION_MNIST = TaskSpec(FashionMnistOptions, load_fashion_mnist, data=Use.REQUIRED)
