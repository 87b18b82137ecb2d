"""Builds learning problems from a Keras model and arrays in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

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
from tff_agnostic.models.model import Model

# A client's arrays "x", "y" and "domain_id".
Arrays = Mapping[str, np.ndarray]
# Expected count of domains without examples, as a fraction of the smallest positive count.
_NEXT_TO_NONE = 1e-6


def classification(
    build: Callable[[], tf.keras.Model],
    clients: Mapping[str, Arrays],
    domain_names: Sequence[str],
    *,
    clients_per_round: int = 10,
    seed: int = 0,
) -> tuple[Problem, ClientDataset]:
    """Returns a classification problem with its training clients.

    The loss is cross-entropy, and accuracy is reported.

    Args:
        build: Returns a built Keras model with one score per class, [n, classes].
        clients: The arrays of each client, by id: "x" [n, ...]; "y" [n], classes from 0;
            "domain_id" [n], indices into `domain_names`. Floats become float32, integers int32.
        domain_names: Names of the p domains.
        clients_per_round: Number of clients per round, which determines each domain's expected
            number of examples per round.
        seed: Seed of the initial weights, the cohorts and the shuffling.

    Example:
        >>> network = lambda: keras.Sequential([keras.Input([4]), keras.layers.Dense(2)])
        >>> domains = ["common", "rare"]
        >>> problem, clients = classification(network, arrays, domains, clients_per_round=4)
        >>> problem.expected_counts
        (20.0, 14.0)
    """
    x_spec = _x_spec(clients)
    model = model_from_keras(
        build,
        loss=sparse_cross_entropy,
        example_spec={"x": x_spec, "y": tf.TensorSpec([None], tf.int32)},
        metrics=[accuracy()],
        seed=seed,
    )
    dataset = clients_from_arrays(model, clients, len(domain_names))
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
    """Returns a regression problem with its training clients.

    The loss is the squared error; mean absolute error and root mean squared error are reported.

    Args:
        build: Returns a built Keras model with one output, [n, 1] or [n].
        clients: See `classification`; labels are real numbers.
        domain_names: See `classification`.
        clients_per_round: See `classification`.
        seed: See `classification`.

    Example:
        >>> line = lambda: keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
        >>> problem, clients = regression(line, arrays, ["common", "rare"])
        >>> [metric.name for metric in problem.model.metrics]
        ['mean_absolute_error', 'root_mean_squared_error']
    """
    x_spec = _x_spec(clients)
    labels = [np.asarray(arrays["y"], np.float32) for arrays in clients.values() if "y" in arrays]
    label_range = float(np.ptp(np.concatenate(labels))) if any(map(len, labels)) else 0.0
    metrics: list[Metric] = []
    if label_range > 0:
        metrics = [mean_absolute_error(label_range), root_mean_squared_error(label_range)]
    model = model_from_keras(
        build,
        loss=_squared_error,
        example_spec={"x": x_spec, "y": tf.TensorSpec([None], tf.float32)},
        metrics=metrics,
        seed=seed,
    )
    dataset = clients_from_arrays(model, clients, len(domain_names))
    counts = some_counts(dataset, len(domain_names))
    expected = expected_counts(counts, clients_per_round)
    return Problem(model, tuple(domain_names), seed, expected), dataset


def clients_from_arrays(
    model: Model, clients: Mapping[str, Arrays], num_domains: int
) -> InMemoryClients:
    """Converts the clients' arrays to a model's dtypes, and checks them.

    Args:
        clients: The arrays of each client, by id; see `classification`.
    """
    spec = model.client_data_spec()
    checked = {}
    for client_id, arrays in clients.items():
        columns = {
            name: _in_32_bits(np.asarray(array), name == "y" and spec["y"].dtype.is_floating)
            for name, array in arrays.items()
        }
        checked[client_id] = checked_examples(columns, spec, num_domains, client_id)
        if model.loss is sparse_cross_entropy and model.keras_model is not None:
            num_classes = int(model.keras_model.output_shape[-1])
            check_labels(columns["y"], num_classes, client_id)
    return InMemoryClients(checked)


def expected_counts(counts: np.ndarray, clients_per_round: float) -> tuple[float, ...]:
    """Returns the expected number of examples of each domain in a round, [p].

    Args:
        counts: Number of examples by client and domain, [clients, p].
        clients_per_round: Expected number of clients in a round.
    """
    expected = counts.sum(axis=0) * (float(clients_per_round) / len(counts))
    # Counts must be positive, even if a domain has no examples. Choose a count so small that it
    # adds next to nothing to sums over domains.
    least = np.min(expected, initial=1.0, where=expected > 0)
    return tuple(float(count) for count in np.where(expected > 0, expected, _NEXT_TO_NONE * least))


def _in_32_bits(array: np.ndarray, as_floats: bool = False) -> np.ndarray:
    """Converts floats to float32, and integers to int32, or to float32 if `as_floats`."""
    if array.dtype.kind == "f" or (as_floats and array.dtype.kind in "iu"):
        return array.astype(np.float32)
    return array.astype(np.int32) if array.dtype.kind in "iu" else array


def _x_spec(clients: Mapping[str, Arrays]) -> tf.TensorSpec:
    """Returns the spec of "x" of the client with the smallest id."""
    if not clients:
        raise UserError("clients: expected at least one client, found none")
    client_id = min(clients)
    if "x" not in clients[client_id]:
        raise UserError(f"{client_id}: expected arrays x, y and domain_id, found no x")
    x = _in_32_bits(np.asarray(clients[client_id]["x"]))
    return tf.TensorSpec([None, *x.shape[1:]], x.dtype)


def _squared_error(labels: tf.Tensor, predictions: tf.Tensor) -> tf.Tensor:
    return tf.square(tf.reshape(predictions, [-1]) - tf.cast(labels, predictions.dtype))
