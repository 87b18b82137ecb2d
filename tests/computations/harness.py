"""Small models, cohorts and a runner of an algorithm's pure functions, for many tests."""

from collections.abc import Sequence
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from tff_agnostic.computations.algorithm import FederatedAlgorithm
from tff_agnostic.computations.client_group import group_of_one
from tff_agnostic.models.functional import Examples, Model, ModelWeights


def make_client(x: Any, domain_id: Any, y: Any = None) -> dict[str, np.ndarray]:
    """Returns a client's examples; `y` is zeros unless given, as integers."""
    return {
        "x": np.asarray(x, np.float32),
        "y": np.zeros([len(x)], np.int32) if y is None else np.asarray(y, np.int32),
        "domain_id": np.asarray(domain_id, np.int32),
    }


def random_client(
    rng: np.random.Generator,
    size: int,
    domains: Sequence[int],
    num_features: int = 4,
    num_classes: int = 3,
) -> dict[str, np.ndarray]:
    """Returns a client with `size` random examples of the given domains."""
    x = rng.normal(size=[size, num_features])
    return make_client(x, rng.choice(domains, size), rng.integers(num_classes, size=size))


def linear_model(initial: float = 4.0, regularizer: Any = None) -> Model:
    """Returns the model of the golden round: one weight w, and x * w is the loss of an example."""
    return Model(
        initial_weights=ModelWeights([np.array([initial], np.float32)], []),
        example_spec={
            "x": tf.TensorSpec([None], tf.float32),
            "y": tf.TensorSpec([None], tf.int32),
        },
        predict=lambda weights, x, training, seed: tf.multiply(x, weights.trainable[0]),
        loss=lambda labels, predictions: predictions,
        regularizer=regularizer,
    )


class EagerTraining:
    """Rounds of an algorithm's pure functions, without TFF: the sum is made here, in order."""

    def __init__(self, algorithm: FederatedAlgorithm) -> None:
        self._initialize = algorithm.initialize
        self._prepare = tf.function(algorithm.prepare)
        self._server_update = tf.function(algorithm.server_update)
        client_input = tf.nest.map_structure(
            tf.TensorSpec.from_tensor, self.prepare(self.initialize())
        )
        # A trace for each size of a client would take seconds; the spec leaves lengths open.
        self._client_update = tf.function(
            lambda client_input, examples: algorithm.client_update(
                client_input, group_of_one(examples)
            ),
            input_signature=[client_input, dict(algorithm.client_data_spec)],
        )
        output_specs = self._client_update.get_concrete_function().structured_outputs
        self._zeros = tf.nest.map_structure(lambda s: tf.zeros(s.shape, s.dtype), output_specs)

    def initialize(self) -> Any:
        """Returns the state before the first round."""
        return to_tensors(self._initialize())

    def prepare(self, state: Any) -> Any:
        """Returns what the server broadcasts."""
        return self._prepare(to_tensors(state))

    def client_update(self, client_input: Any, examples: Examples) -> Any:
        """Returns one client's output."""
        return self._client_update(to_tensors(client_input), to_tensors(dict(examples)))

    def sum_cohort(self, client_input: Any, cohort: Sequence[Examples]) -> Any:
        """Returns the sum of the cohort's outputs, zeros for an empty cohort."""
        outputs = [self.client_update(client_input, examples) for examples in cohort]
        return tf.nest.map_structure(lambda *values: tf.add_n(values), self._zeros, *outputs)

    def server_update(self, state: Any, summed: Any) -> Any:
        """Returns the next state and the metrics, as NumPy arrays."""
        return to_numpy(self._server_update(to_tensors(state), summed))

    def next(self, state: Any, cohort: Sequence[Examples]) -> Any:
        """Runs one round."""
        summed = self.sum_cohort(self.prepare(state), cohort)
        return self.server_update(state, summed)


def run_rounds(
    training: Any, cohorts: Sequence[Sequence[Examples]], state: Optional[Any] = None
) -> tuple[Any, list[Any]]:
    """Returns the last state and every round's metrics."""
    state = training.initialize() if state is None else state
    metrics = []
    for cohort in cohorts:
        state, round_metrics = training.next(state, cohort)
        metrics.append(round_metrics)
    return state, metrics


def to_tensors(structure: Any) -> Any:
    """Returns a structure with its leaves as tensors."""
    return tf.nest.map_structure(tf.convert_to_tensor, structure)


def to_numpy(structure: Any) -> Any:
    """Returns a structure with its leaves as NumPy arrays."""
    return tf.nest.map_structure(lambda value: np.asarray(value), structure)


def assert_all_close(actual: Any, expected: Any, rtol: float = 1e-5, atol: float = 1e-7) -> None:
    """Compares two structures leaf by leaf."""
    tf.nest.assert_same_structure(actual, expected)
    for a, e in zip(tf.nest.flatten(actual), tf.nest.flatten(expected)):
        np.testing.assert_allclose(np.asarray(a), np.asarray(e), rtol=rtol, atol=atol)


def assert_identical(actual: Any, expected: Any) -> None:
    """Compares two structures leaf by leaf and bit for bit; NaN equals NaN."""
    tf.nest.assert_same_structure(actual, expected)
    for a, e in zip(tf.nest.flatten(actual), tf.nest.flatten(expected)):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(e))
