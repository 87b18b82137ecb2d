"""The `tff.federated_computation` template: broadcast, map, one sum, map."""

from collections import OrderedDict
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_agnostic.computations.aggregation import Aggregation
from tff_agnostic.computations.algorithm import FederatedAlgorithm
from tff_agnostic.computations.client_group import group_of_one
from tff_agnostic.models.functional import ModelWeights


def build_learning_process(
    algorithm: FederatedAlgorithm, aggregation: Aggregation
) -> tff.learning.templates.LearningProcess:
    """Wires an algorithm's functions and an aggregation into a TFF learning process.

    `next` maps (state at the server, one mapping of arrays per client) to
    `tff.learning.templates.LearningProcessOutput(state, metrics)`. Metrics of the aggregation are
    under "aggregator".
    """
    bounds = algorithm.output_bounds(aggregation.bounds)
    client_data_type = type_from_spec(algorithm.client_data_spec)

    initialize = tff.tensorflow.computation(algorithm.initialize)
    state_type = initialize.type_signature.result
    prepare = tff.tensorflow.computation(algorithm.prepare, state_type)

    @tff.tensorflow.computation(prepare.type_signature.result, client_data_type)
    def client_work(client_input: Any, examples: Any) -> Any:
        output = algorithm.client_update(client_input, group_of_one(examples))
        return aggregation.encode(output, bounds)

    @tff.federated_computation
    def initialize_fn() -> Any:
        return tff.federated_eval(initialize, tff.SERVER)

    @tff.federated_computation(tff.FederatedType(client_work.type_signature.result, tff.CLIENTS))
    def federated_sum(encoded: Any) -> Any:
        return aggregation.federated_sum(encoded, bounds)

    @tff.tensorflow.computation(state_type, federated_sum.type_signature.result.member)
    def finish_round(state: Any, summed: Any) -> Any:
        output, aggregator_metrics = aggregation.decode(summed, bounds)
        next_state, metrics = algorithm.server_update(state, output)
        return next_state, OrderedDict(metrics, aggregator=aggregator_metrics)

    @tff.federated_computation(
        tff.FederatedType(state_type, tff.SERVER),
        tff.FederatedType(client_data_type, tff.CLIENTS),
    )
    def next_fn(state: Any, client_data: Any) -> Any:
        client_input = tff.federated_broadcast(tff.federated_map(prepare, state))
        encoded = tff.federated_map(client_work, (client_input, client_data))
        summed = federated_sum(encoded)
        next_state, metrics = tff.federated_map(finish_round, (state, summed))
        return tff.learning.templates.LearningProcessOutput(next_state, metrics)

    @tff.tensorflow.computation(state_type)
    def get_model_weights(state: Any) -> ModelWeights:
        return state.weights

    @tff.tensorflow.computation(state_type, get_model_weights.type_signature.result)
    def set_model_weights(state: Any, weights: ModelWeights) -> Any:
        return state._replace(weights=weights)

    return tff.learning.templates.LearningProcess(
        initialize_fn, next_fn, get_model_weights, set_model_weights
    )


def type_from_spec(spec: Any) -> tff.Type:
    """Returns the TFF type of a structure of tensor specs."""
    return tff.to_type(
        tf.nest.map_structure(
            lambda s: tff.TensorType(s.dtype.as_numpy_dtype, s.shape.as_list()), spec
        )
    )
