"""Helpers of many tests: small models, clients, and an eager runner of an algorithm's rounds."""

import collections
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from tff_agnostic.computations.algorithm import Algorithm, ClientResult, RoundView, RunState
from tff_agnostic.computations.clients import (
    Clients,
    client_arrays,
    stacked_client_arrays,
    vectorised_clients,
)
from tff_agnostic.computations.round import client_result
from tff_agnostic.models.model import Examples, Model, ModelWeights


def make_client(x: Any, domain_id: Any, y: Any = None) -> dict[str, np.ndarray]:
    """Returns a client's examples as float32 and int32 arrays; labels are 0 by default."""
    return {
        "x": np.asarray(x, np.float32),
        "y": np.zeros([len(x)], np.int32) if y is None else np.asarray(y, np.int32),
        "domain_id": np.asarray(domain_id, np.int32),
    }


def single(client: Examples, seed: Any = (), state: Any = ()) -> Clients:
    """Returns `Clients` of one client, whose seed is an int64 scalar."""
    return dataclasses.replace(Clients.from_arrays(client_arrays(client, state)), seed=seed)


def vectorised(clients: Sequence[Examples], seed: Any = ()) -> Clients:
    """Returns vectorised `Clients` of G clients, whose seeds are int64 [G]."""
    return dataclasses.replace(
        Clients.from_arrays(stacked_client_arrays(clients), vectorised_clients), seed=seed
    )


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


def random_weights(seed: int = 0) -> ModelWeights:
    """Returns random weights of a logistic regression with 4 features and 3 classes."""
    rng = np.random.default_rng(seed)
    return ModelWeights([rng.normal(size=s).astype(np.float32) for s in ([4, 3], [3])], [])


def linear_model(initial: float = 4.0, regularizer: Any = None) -> Model:
    """Returns a model with one weight w, where an example's loss is x * w."""
    return Model(
        initial_weights=ModelWeights([np.array([initial], np.float32)], []),
        example_spec={"x": tf.TensorSpec([None], tf.float32), "y": tf.TensorSpec([None], tf.int32)},
        predict=lambda weights, x, training, seed: tf.multiply(x, weights.trainable[0]),
        loss=lambda labels, predictions: predictions,
        regularizer=regularizer,
    )


def squared_differences() -> Model:
    """Returns a linear regression with the squared loss and two weights, initially 0."""
    return Model(
        initial_weights=ModelWeights([np.zeros([2], np.float32)], []),
        example_spec={
            "x": tf.TensorSpec([None, 2], tf.float32),
            "y": tf.TensorSpec([None], tf.float32),
        },
        predict=lambda weights, x, training, seed: tf.linalg.matvec(x, weights.trainable[0]),
        loss=lambda labels, predictions: tf.square(labels - predictions),
    )


class EagerTraining:
    """Runs an algorithm's rounds from its pure functions, without TFF; sums clients in order."""

    def __init__(self, algorithm: Algorithm) -> None:
        self._algorithm = algorithm
        self._broadcasts = [
            tf.function(step.broadcast, autograph=False) for step in algorithm.steps
        ]
        self._clients: list[Any] = []

        def finish(state: Any, sums: Any) -> Any:
            after = algorithm.finish(state, *sums)
            return after, algorithm.report(RoundView(state, sums, after))

        self._finish = tf.function(finish, autograph=False)

    def initialize(self) -> RunState:
        # Plain sums have no state.
        aggregations = ((),) * len(self._algorithm.steps)
        return to_tensors(RunState(self._algorithm.initialize(), aggregations, np.int32(0)))

    def client_output(self, state: RunState, examples: Examples, sums: Any = ()) -> Any:
        """Returns one client's output; for `sums`, see `sum_cohort`."""
        return self._result(len(sums), to_tensors(state), sums, examples).output

    def sum_cohort(self, state: RunState, cohort: Sequence[Examples], sums: Any = ()) -> Any:
        """Returns the sum of a cohort's outputs; zeros for an empty cohort.

        Args:
            state: State of the server.
            cohort: Clients' examples.
            sums: Sums of the round's earlier steps; the step after them runs.
        """
        k, state = len(sums), to_tensors(state)
        empty = tf.nest.map_structure(lambda column: column[:0], self._example_row())
        zeros = tf.nest.map_structure(tf.zeros_like, self._result(k, state, sums, empty).output)
        outputs = [self._result(k, state, sums, examples).output for examples in cohort]
        return tf.nest.map_structure(lambda *values: tf.add_n(values), zeros, *outputs)

    def finish(self, state: RunState, sums: Any) -> tuple[RunState, Any]:
        """Returns the next state and the report, as NumPy arrays, from a round's sums."""
        state = to_tensors(state)
        algorithm, report = self._finish(state.algorithm, sums)
        return to_numpy(
            (state._replace(algorithm=algorithm, round_num=state.round_num + 1), report)
        )

    def next(self, state: RunState, cohort: Sequence[Examples]) -> tuple[RunState, Any]:
        sums: tuple[Any, ...] = ()
        for _ in self._algorithm.steps:
            sums = (*sums, self.sum_cohort(state, cohort, sums))
        return self.finish(state, sums)

    def _result(self, k: int, state: RunState, sums: Any, examples: Examples) -> ClientResult:
        """Returns a client's output and the client's state after step k."""
        # Repeat the earlier steps to get the client's state.
        remembered = self._result(k - 1, state, sums[: k - 1], examples).state if k else ()
        broadcast = self._broadcasts[k](state.algorithm, *sums)
        if len(self._clients) == k:
            self._clients.append(self._traced(self._algorithm.steps[k], broadcast, remembered))
        seed = tf.stack([tf.constant(self._algorithm.problem.seed, tf.int32), state.round_num])
        return self._clients[k](broadcast, to_tensors(dict(examples)), seed, remembered)

    def _traced(self, step: Any, broadcast: Any, remembered: Any) -> Any:
        def work(broadcast: Any, examples: Any, seed: tf.Tensor, remembered: Any) -> Any:
            clients = single(examples, state=remembered).seeded(seed)
            result = client_result(step, step.client_work(broadcast, clients))
            return result if step.keeps_client_state else result._replace(state=remembered)

        # Specs without lengths avoid a new trace, which takes seconds, for each size of a client.
        specs, state_specs = tf.nest.map_structure(
            tf.TensorSpec.from_tensor, (broadcast, remembered)
        )
        columns = dict(self._algorithm.client_data_spec)
        seed_spec = tf.TensorSpec([2], tf.int32)
        return tf.function(
            work, input_signature=[specs, columns, seed_spec, state_specs], autograph=False
        )

    def _example_row(self) -> Any:
        return tf.nest.map_structure(
            lambda spec: np.zeros([size or 1 for size in spec.shape], spec.dtype.as_numpy_dtype),
            dict(self._algorithm.client_data_spec),
        )


def run_rounds(
    training: Any, cohorts: Sequence[Sequence[Examples]], state: Optional[Any] = None
) -> tuple[Any, list[Any]]:
    """Runs a round per cohort; returns the last state and every round's metrics."""
    state = training.initialize() if state is None else state
    metrics = []
    for cohort in cohorts:
        state, round_metrics = training.next(state, cohort)
        metrics.append(round_metrics)
    return state, metrics


def to_tensors(structure: Any) -> Any:
    return tf.nest.map_structure(tf.convert_to_tensor, structure)


def to_numpy(structure: Any) -> Any:
    return tf.nest.map_structure(lambda value: np.asarray(value), structure)


def flat(arrays: Iterable[Any]) -> np.ndarray:
    """Returns the values of all arrays as one vector."""
    return np.concatenate([np.ravel(array) for array in arrays])


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


def communication(computation: Any) -> dict[str, int]:
    """Returns the number of uses of each intrinsic between clients and server, by URI."""
    import tensorflow_federated as tff

    uris: collections.Counter[str] = collections.Counter()

    def count(block: Any) -> tuple[Any, bool]:
        if isinstance(block, tff.framework.Intrinsic):
            uris[block.uri] += 1
        return block, False

    tff.framework.transform_postorder(computation.to_building_block(), count)
    local = ("federated_map", "federated_apply", "federated_zip", "federated_value")
    return {uri: number for uri, number in uris.items() if not uri.startswith(local)}
