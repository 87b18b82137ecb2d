"""An algorithm: a state and three pure functions, and the parameters that algorithms share."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Callable, NamedTuple, Optional, Protocol

import tensorflow as tf
import tensorflow_federated as tff

from tff_agnostic.computations.aggregation import SecureBounds
from tff_agnostic.computations.client_group import ClientGroup, Each, one_client
from tff_agnostic.computations.domain_weights import DomainWeightsParams
from tff_agnostic.computations.local_training import LocalTrainingParams
from tff_agnostic.computations.structures import ClientInput, ClientOutput
from tff_agnostic.models.functional import Model, ModelWeights


class ServerState(NamedTuple):
    """State of the server between rounds.

    Attributes:
        weights: w_t.
        optimizer_state: State of the server optimizer.
        domains: A `DomainState`, or an empty tuple for algorithms with constant domain weights.
        round_num: Number of rounds completed, int32 scalar.
    """

    weights: ModelWeights
    optimizer_state: Any
    domains: Any
    round_num: tf.Tensor


# Nested mappings of what a round reports; leaves are scalars or vectors [p].
Metrics = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class AlgorithmParams:
    """Parameters of an algorithm.

    Attributes:
        local_training: How clients train.
        server_optimizer: Takes the averaged model delta as a gradient.
        domain_weights: How lambda moves; ignored by algorithms with constant domain weights.
        target_domain: Index of the domain that target-only training uses; None for the others.
        seed: Seed of the run; local shuffling and dropout derive from it.
    """

    local_training: LocalTrainingParams = LocalTrainingParams()
    server_optimizer: tff.learning.optimizers.Optimizer = dataclasses.field(
        default_factory=lambda: tff.learning.optimizers.build_sgdm(1.0)
    )
    domain_weights: DomainWeightsParams = DomainWeightsParams()
    target_domain: Optional[int] = None
    seed: int = 0


class ClientUpdate(Protocol):
    """What clients do in a round; see `FederatedAlgorithm`."""

    def __call__(
        self, client_input: ClientInput, clients: ClientGroup, each: Each = one_client
    ) -> ClientOutput:
        """Returns what each client sends."""


@dataclasses.dataclass(frozen=True)
class FederatedAlgorithm:
    """One round of federated learning as pure TensorFlow functions, for any runtime.

    Attributes:
        name: Name in the registry.
        initialize: () -> state.
        prepare: state -> client input; on the server, before the round.
        client_update: (client input, one client or a group, how to apply functions of one client)
            -> client output of each client; every field is only ever summed over the cohort. See
            `client_group`.
        server_update: (state, summed client output) -> (state, metrics).
        client_data_spec: Specs of one client's examples.
        output_bounds: The `Bound` of every value of the client output, in its structure.
    """

    name: str
    initialize: Callable[[], ServerState]
    prepare: Callable[[ServerState], ClientInput]
    client_update: ClientUpdate
    server_update: Callable[[ServerState, ClientOutput], tuple[ServerState, Metrics]]
    client_data_spec: Mapping[str, Any]
    output_bounds: Callable[[SecureBounds], ClientOutput]


def initial_state(
    model: Model, optimizer: tff.learning.optimizers.Optimizer, domains: Any
) -> ServerState:
    """Returns the state before the first round, from the model's initial weights."""
    weights = tf.nest.map_structure(tf.convert_to_tensor, model.initial_weights)
    specs = [tf.TensorSpec(w.shape, w.dtype) for w in weights.trainable]
    return ServerState(
        weights=weights,
        optimizer_state=tf.nest.map_structure(tf.convert_to_tensor, optimizer.initialize(specs)),
        domains=tf.nest.map_structure(tf.convert_to_tensor, domains),
        round_num=tf.constant(0, tf.int32),
    )
