"""AgnosticFedAvg: Algorithm 1 of Ro et al. 2021, "Communication-Efficient Agnostic FedAvg".

The client's side is in `client_update`, line 9 in `server_update`, lines 4 and 12 in
`domain_weights`; here they stand in the order of the paper.
"""

import tensorflow as tf
import tensorflow_federated as tff

from tff_agnostic.computations import domain_weights as dw
from tff_agnostic.computations.aggregation import Aggregation, PlainSum, SecureBounds
from tff_agnostic.computations.algorithm import (
    AlgorithmParams,
    FederatedAlgorithm,
    Metrics,
    ServerState,
    initial_state,
)
from tff_agnostic.computations.client_update import ClientUpdateOf, client_update
from tff_agnostic.computations.server_update import (
    average_and_apply,
    client_output_bounds,
    mean_domain_losses,
    round_metrics,
)
from tff_agnostic.computations.structures import ClientInput, ClientOutput
from tff_agnostic.computations.template import build_learning_process
from tff_agnostic.models.functional import Model

# A client's weight is its share of the round, about 1 / c; more when a domain was rarer in the
# window than it is on the client.
_MAX_BETA = 10.0


def agnostic_fed_avg(model: Model, num_domains: int, params: AlgorithmParams) -> FederatedAlgorithm:
    """Returns AgnosticFedAvg as pure functions.

    Args:
        model: The model to train.
        num_domains: p.
        params: Its parameters; `target_domain` is not used.

    Raises:
        UserError: If initial domain weights or counts do not fit `num_domains`.
    """
    domains_0 = dw.initial_domain_state(params.domain_weights, num_domains)

    def initialize() -> ServerState:
        # w_0, lambda_0, N_0
        return initial_state(model, params.server_optimizer, domains_0)

    def prepare(state: ServerState) -> ClientInput:
        # alpha_t = lambda_{t-1} / (sum_{j=t-r}^{t-1} N_j / r)
        alpha = dw.scaling_vector(state.domains.lambda_, state.domains.mean_counts)
        return ClientInput(state.weights, alpha, tf.stack([params.seed, state.round_num]))

    def server_update(state: ServerState, summed: ClientOutput) -> tuple[ServerState, Metrics]:
        # w_t = sum_k beta^k w^k / beta_t
        update = average_and_apply(
            params.server_optimizer, state.weights, state.optimizer_state, summed
        )
        # N_t = sum_k N^k
        counts = tf.cast(summed.domain_counts, tf.float32)
        # L = sum_k L^k / N_t
        losses = mean_domain_losses(summed)
        # lambda_t = lambda_{t-1} exp(gamma_lambda L) / sum_i lambda_{t-1}^i exp(gamma_lambda L_i)
        lambda_ = dw.update_domain_weights(
            params.domain_weights, state.domains.lambda_, losses, counts
        )
        window, mean_counts = dw.append_counts(
            state.domains.window, state.domains.mean_counts, counts
        )
        next_state = ServerState(
            weights=update.weights,
            optimizer_state=update.optimizer_state,
            domains=dw.DomainState(lambda_, window, mean_counts),
            round_num=state.round_num + 1,
        )
        alpha = dw.scaling_vector(state.domains.lambda_, state.domains.mean_counts)
        return next_state, round_metrics(model, summed, update, lambda_, alpha)

    def output_bounds(bounds: SecureBounds) -> ClientOutput:
        return client_output_bounds(model, bounds, default_max_beta=_MAX_BETA)

    return FederatedAlgorithm(
        name="agnostic_fed_avg",
        initialize=initialize,
        prepare=prepare,
        client_update=ClientUpdateOf(client_update, model, num_domains, params.local_training),
        server_update=server_update,
        client_data_spec=model.client_data_spec(),
        output_bounds=output_bounds,
    )


def build_agnostic_fed_avg(
    model: Model,
    num_domains: int,
    params: AlgorithmParams = AlgorithmParams(),
    aggregation: Aggregation = PlainSum(),
) -> tff.learning.templates.LearningProcess:
    """Returns AgnosticFedAvg as a TFF learning process.

    Its `next` takes the state and, for each client of the cohort, a mapping of "x", "y" and
    "domain_id" (int32 in [0, p)) with equal first dimensions. One broadcast and one aggregation are
    all the communication of a round.

    Args:
        model: The model to train; see `models.model_from_keras`.
        num_domains: p.
        params: Parameters of the algorithm.
        aggregation: How client outputs are summed.

    Raises:
        UserError: If the parameters do not fit `num_domains`.
    """
    return build_learning_process(agnostic_fed_avg(model, num_domains, params), aggregation)
