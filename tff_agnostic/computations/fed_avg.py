"""FedAvg (McMahan et al. 2017) from the pieces of Algorithm 1: the scale alpha never moves.

Uniform: alpha_i = 1 for every domain, so that beta^k is the client's number of examples.
Target-only: alpha is 1 for one domain and 0 for the others, so that only its examples train.
"""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_agnostic.computations.aggregation import Aggregation, PlainSum, SecureBounds
from tff_agnostic.computations.algorithm import (
    AlgorithmParams,
    FederatedAlgorithm,
    Metrics,
    ServerState,
    initial_state,
)
from tff_agnostic.computations.client_update import (
    ClientUpdateOf,
    client_update_without_domain_pass,
)
from tff_agnostic.computations.server_update import (
    average_and_apply,
    client_output_bounds,
    round_metrics,
)
from tff_agnostic.computations.structures import ClientInput, ClientOutput
from tff_agnostic.computations.template import build_learning_process
from tff_agnostic.errors import UserError
from tff_agnostic.models.functional import Model


def fed_avg(model: Model, num_domains: int, params: AlgorithmParams) -> FederatedAlgorithm:
    """Returns FedAvg over all domains; see `_with_constant_scale`."""
    return _with_constant_scale("fed_avg", model, params, np.ones([num_domains], np.float32))


def fed_avg_target_only(
    model: Model, num_domains: int, params: AlgorithmParams
) -> FederatedAlgorithm:
    """Returns FedAvg on the examples of `params.target_domain` only.

    Raises:
        UserError: If there is no target domain, or it is not in [0, p).
    """
    target = params.target_domain
    if target is None or not 0 <= target < num_domains:
        raise UserError(
            f"target domain: expected an index from 0 to {num_domains - 1}, found {target}"
        )
    scale = np.eye(num_domains, dtype=np.float32)[target]
    return _with_constant_scale("fed_avg_target_only", model, params, scale)


def _with_constant_scale(
    name: str, model: Model, params: AlgorithmParams, alpha: np.ndarray
) -> FederatedAlgorithm:
    def initialize() -> ServerState:
        return initial_state(model, params.server_optimizer, domains=())

    def prepare(state: ServerState) -> ClientInput:
        return ClientInput(
            state.weights, tf.constant(alpha), tf.stack([params.seed, state.round_num])
        )

    def server_update(state: ServerState, summed: ClientOutput) -> tuple[ServerState, Metrics]:
        update = average_and_apply(
            params.server_optimizer, state.weights, state.optimizer_state, summed
        )
        # The mixture of domains that the round's average minimised, in place of lambda.
        weight = alpha * tf.cast(summed.domain_counts, tf.float32)
        mixture = tf.math.divide_no_nan(weight, tf.reduce_sum(weight))
        next_state = ServerState(
            weights=update.weights,
            optimizer_state=update.optimizer_state,
            domains=(),
            round_num=state.round_num + 1,
        )
        return next_state, round_metrics(model, summed, update, mixture, tf.constant(alpha))

    def output_bounds(bounds: SecureBounds) -> ClientOutput:
        return client_output_bounds(model, bounds, default_max_beta=float(bounds.max_examples))

    return FederatedAlgorithm(
        name=name,
        initialize=initialize,
        prepare=prepare,
        client_update=ClientUpdateOf(
            client_update_without_domain_pass, model, len(alpha), params.local_training
        ),
        server_update=server_update,
        client_data_spec=model.client_data_spec(),
        output_bounds=output_bounds,
    )


def build_fed_avg(
    model: Model,
    num_domains: int,
    params: AlgorithmParams = AlgorithmParams(),
    aggregation: Aggregation = PlainSum(),
) -> tff.learning.templates.LearningProcess:
    """Returns FedAvg as a TFF learning process with the interface of `build_agnostic_fed_avg`.

    It is target-only where `params.target_domain` is given, uniform otherwise.
    """
    algorithm = fed_avg if params.target_domain is None else fed_avg_target_only
    return build_learning_process(algorithm(model, num_domains, params), aggregation)
