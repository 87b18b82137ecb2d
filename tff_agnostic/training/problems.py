"""Problems from a Keras model and arrays in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.later import tf
from tff_agnostic.computations.algorithm import Problem
from tff_agnostic.data.clients import (
    ClientDataset,
    InMemoryClients,
    check_labels,
    checked_examples,
    some_counts,
)
from tff_agnostic.models.keras import model_from_keras
from tff_agnostic.models.metrics import (
    Metric,
    accuracy,
    mean_absolute_error,
    root_mean_squared_error,
    sparse_cross_entropy,
)

# The arrays "x", "y" and "domain_id" of a client.
Arrays = Mapping[str, np.ndarray]
# Of the smallest positive count.
_NEXT_TO_NONE = 1e-6


def classification(
    build: Callable[[], tf.keras.Model],
    clients: Mapping[str, Arrays],
    domain_names: Sequence[str],
    *,
    clients_per_round: int = 10,
    seed: int = 0,
) -> tuple[Problem, ClientDataset]:
    """Returns a problem of classes, with its training clients.

    The loss is the cross-entropy; accuracy is measured, too.

    Args:
        build: Returns a built Keras model with a score for each class, [n, classes].
        clients: The arrays of each client by its id: "x" [n, ...], "y" [n], classes from 0, and
            "domain_id" [n], positions in `domain_names`. Numbers become float32, integers int32.
        domain_names: Names of the p domains.
        clients_per_round: Number of clients that will train in a round, from which follows the
            expected number of examples of each domain in a round.
        seed: Seed of the initial weights, of cohorts and of shuffling.

    Example:
        >>> network = lambda: keras.Sequential([keras.Input([4]), keras.layers.Dense(2)])
        >>> problem, clients = classification(network, arrays, ["common", "rare"])
    """
    dataset = _dataset(clients, label_kind="i")
    spec = _spec(dataset, tf.int32)
    model = model_from_keras(
        build, loss=sparse_cross_entropy, example_spec=spec, metrics=[accuracy()], seed=seed
    )
    assert model.keras_model is not None
    num_classes = int(model.keras_model.output_shape[-1])
    for client_id in dataset.client_ids:
        examples = dataset.read(client_id)
        checked_examples(examples, model.client_data_spec(), len(domain_names), client_id)
        check_labels(examples["y"], num_classes, client_id)
    counts = some_counts(dataset, len(domain_names))
    expected = expected_counts(counts, clients_per_round)
    return Problem(model, tuple(domain_names), seed, expected), dataset


def regression(
    build: Callable[[], tf.keras.Model],
    clients: Mapping[str, Arrays],
    domain_names: Sequence[str],
    *,
    clients_per_round: int = 10,
    seed: int = 0,
) -> tuple[Problem, ClientDataset]:
    """Returns a problem of real numbers, with its training clients.

    The loss is the squared error; the mean absolute error and the root mean squared error are
    measured, too.

    Args:
        build: Returns a built Keras model with one output, [n, 1] or [n].
        clients: As in `classification`, with real numbers as labels.
        domain_names: As in `classification`.
        clients_per_round: As in `classification`.
        seed: As in `classification`.
    """
    dataset = _dataset(clients, label_kind="f")
    labels = np.concatenate([dataset.read(client_id)["y"] for client_id in dataset.client_ids])
    label_range = float(np.ptp(labels)) if len(labels) else 0.0
    metrics: list[Metric] = []
    if label_range > 0:
        metrics = [mean_absolute_error(label_range), root_mean_squared_error(label_range)]
    spec = _spec(dataset, tf.float32)
    model = model_from_keras(
        build, loss=_squared_error, example_spec=spec, metrics=metrics, seed=seed
    )
    for client_id in dataset.client_ids:
        examples = dataset.read(client_id)
        checked_examples(examples, model.client_data_spec(), len(domain_names), client_id)
    counts = some_counts(dataset, len(domain_names))
    expected = expected_counts(counts, clients_per_round)
    return Problem(model, tuple(domain_names), seed, expected), dataset


def expected_counts(counts: np.ndarray, clients_per_round: float) -> tuple[float, ...]:
    """Returns the expected number of examples of each domain in a round, [p].

    Args:
        counts: Examples of each client and domain, [clients, p].
        clients_per_round: Expected number of clients of a round.
    """
    expected = counts.sum(axis=0) * (float(clients_per_round) / len(counts))
    # A domain without any example never meets its count, which has to be positive, and adds next
    # to nothing to sums over domains.
    least = np.min(expected, initial=1.0, where=expected > 0)
    return tuple(float(count) for count in np.where(expected > 0, expected, _NEXT_TO_NONE * least))


def _dataset(clients: Mapping[str, Arrays], label_kind: str) -> ClientDataset:
    if not clients:
        raise UserError("clients: expected at least one client, found none")
    return InMemoryClients(
        {
            client_id: {
                name: _in_32_bits(np.asarray(array), label_kind if name == "y" else None)
                for name, array in arrays.items()
            }
            for client_id, arrays in clients.items()
        }
    )


def _in_32_bits(array: np.ndarray, kind: str | None) -> np.ndarray:
    """Returns floats as float32 and integers as int32; `kind` asks for floats of integers."""
    if array.dtype.kind == "f" or (kind == "f" and array.dtype.kind in "iu"):
        return array.astype(np.float32)
    return array.astype(np.int32) if array.dtype.kind in "iu" else array


def _spec(dataset: ClientDataset, label_type: tf.DType) -> dict[str, Any]:
    client_id = dataset.client_ids[0]
    examples = dataset.read(client_id)
    if "x" not in examples:
        raise UserError(f"{client_id}: expected arrays x, y and domain_id, found no x")
    x = examples["x"]
    return {
        "x": tf.TensorSpec([None, *x.shape[1:]], x.dtype),
        "y": tf.TensorSpec([None], label_type),
    }


def _squared_error(labels: tf.Tensor, predictions: tf.Tensor) -> tf.Tensor:
    return tf.square(tf.reshape(predictions, [-1]) - tf.cast(labels, predictions.dtype))
