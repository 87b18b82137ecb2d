"""Rounds of an algorithm, run eagerly without TFF."""

import collections
from collections.abc import Sequence
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from tests.support.clients import single
from tests.support.comparing import to_numpy, to_tensors
from tff_agnostic.computations.algorithm import Algorithm, ClientResult, RoundView, RunState
from tff_agnostic.computations.round import client_result
from tff_agnostic.models.model import Examples


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
