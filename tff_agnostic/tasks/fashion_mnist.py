"""Fashion-MNIST: which of three garments? Every class is a domain.

As in section 5.2 of Mohri et al. 2019: t-shirt/top, pullover and shirt of Fashion-MNIST, logistic
regression, Adam. The store is one of all ten classes, from `import_data --format=idx`, or of these
three, with `--classes=0,2,6`, which numbers them anew.
"""

import dataclasses
from collections.abc import Mapping
from typing import Optional

import numpy as np

from tff_agnostic.data.store_clients import StoreClients
from tff_agnostic.data.store_format import LABEL, Feature
from tff_agnostic.errors import UserError
from tff_agnostic.models.functional import Examples
from tff_agnostic.models.logistic import logistic_regression
from tff_agnostic.tasks.stored import (
    TRAIN_SPLIT,
    SplitOptions,
    data_fingerprint,
    labels_of,
    open_store,
)
from tff_agnostic.tasks.task import Task, TaskContext, TaskSpec, Use

_DOMAIN_NAMES = ("t-shirt/top", "pullover", "shirt")
# Their labels among the ten classes of Fashion-MNIST.
_LABELS = (0, 2, 6)
_NUM_LABELS = 10
_PIXELS = "pixels"
_NUM_PIXELS = 28 * 28


@dataclasses.dataclass(frozen=True)
class FashionMnistOptions(SplitOptions):
    """Options of the task."""


def load(options: FashionMnistOptions, context: TaskContext) -> Task:
    """Returns the task.

    Raises:
        UserError: If the store does not fit, or a client has none of the three classes.
    """
    assert context.data is not None
    features = {_PIXELS: Feature("float32", (28, 28)), LABEL: Feature("int64")}
    store = open_store(context.data, "fashion_mnist", features)
    class_of = _class_of(store.description.num_classes)

    def to_examples(client_id: str, columns: Mapping[str, np.ndarray]) -> Examples:
        where = f"{store.path}: client {client_id}"
        classes = class_of[labels_of(columns, len(class_of), where)]
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


def _class_of(num_classes: Optional[int]) -> np.ndarray:
    """Returns the class of each label of the store, -1 for one that is left out."""
    if num_classes == len(_LABELS):
        return np.arange(num_classes, dtype=np.int32)
    class_of = np.full([_NUM_LABELS], -1, np.int32)
    class_of[list(_LABELS)] = range(len(_LABELS))
    return class_of


TASK = TaskSpec(
    summary="three garments of Fashion-MNIST, logistic regression; every class a domain (--data)",
    options=FashionMnistOptions,
    load=load,
    defaults={
        "rounds": 300,
        "clients_per_round": 10,
        "batch_size": 50,
        "client_learning_rate": 0.1,
        "server_optimizer": "adam",
        "server_learning_rate": 0.01,
        "server_epsilon": 1e-7,
        "domain_learning_rate": 0.01,
        "batch_normalizer": "batch",
        "evaluate_every": 20,
    },
    data=Use.REQUIRED,
)
