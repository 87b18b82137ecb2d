"""An exchange in TFF: a broadcast, what clients do, the sum at the server, and what they keep."""

from typing import Any, NamedTuple, Optional

import numpy as np
import tensorflow_federated as tff

from tff_agnostic.aggregations.aggregation import Aggregation
from tff_agnostic.computations.aggregated import AggregatedExchange
from tff_agnostic.computations.client_group import Place, group_of_one, one_client


class NumberedClient(NamedTuple):
    """What a client has in TFF where the aggregation numbers clients.

    Attributes:
        examples: Its examples.
        place: Its `Place` in the cohort.
    """

    examples: Any
    place: Any


def client_type(examples_type: tff.Type, aggregation: Aggregation) -> tff.Type:
    """Returns the type of what a client has: its examples, or a `NumberedClient`."""
    if not aggregation.numbers_clients:
        return examples_type
    return tff.to_type(NumberedClient(examples_type, Place(np.int32, np.int32)))


class PlacedExchange(NamedTuple):
    """An exchange in TFF.

    Attributes:
        sum_of: (message at the server, what clients have) -> the sum at the server. Clients have
            their examples, or a pair of these and of what they have kept.
        kept_type: Type of what a client keeps; None if the exchange keeps nothing.
        with_kept: The same with what clients keep, placed at them, beside the sum; only if they do.
    """

    sum_of: tff.Computation
    kept_type: Optional[tff.Type] = None
    with_kept: Optional[tff.Computation] = None

    def called(self, message: Any, client_data: Any, kept: Any) -> tuple[Any, Any]:
        """In a federated computation: returns the sum, and what clients have kept after it."""
        on_clients = client_data if kept is None else tff.federated_zip((client_data, kept))
        if self.with_kept is None:
            return self.sum_of(message, on_clients), kept
        both = self.with_kept(message, on_clients)
        return both[0], both[1]


def placed_exchange(
    exchange: AggregatedExchange,
    message_type: tff.Type,
    client_data_type: tff.Type,
    kept_type: Optional[tff.Type] = None,
) -> PlacedExchange:
    """Returns an exchange in TFF.

    Args:
        exchange: The exchange with its aggregation.
        message_type: Of what every client is sent.
        client_data_type: Of what a client has; see `client_type`.
        kept_type: Of what it has kept of earlier exchanges; None if that is nothing.
    """
    has_kept = kept_type is not None
    on_client_type = tff.to_type((client_data_type, kept_type)) if has_kept else client_data_type
    at_server = tff.FederatedType(message_type, tff.SERVER)
    at_clients = tff.FederatedType(on_client_type, tff.CLIENTS)
    keeps = exchange.exchange.keeps

    @tff.tensorflow.computation(message_type, on_client_type)
    def client_work(message: Any, on_client: Any) -> Any:
        client, kept = on_client if has_kept else (on_client, ())
        examples, place = client if exchange.aggregation.numbers_clients else (client, ())
        place = Place(*place) if place else ()
        clients = group_of_one(examples, kept, place)
        submission = exchange.client_work(message, clients, one_client)
        return submission if keeps else submission.submitted

    def worked(message: Any, client_data: Any) -> Any:
        return tff.federated_map(client_work, (tff.federated_broadcast(message), client_data))

    if not keeps:

        @tff.federated_computation(at_server, at_clients)
        def exchange_fn(message: Any, client_data: Any) -> Any:
            return exchange.federated_sum(worked(message, client_data))

        return PlacedExchange(exchange_fn)

    @tff.federated_computation(at_server, at_clients)
    def keeping_fn(message: Any, client_data: Any) -> Any:
        submission = worked(message, client_data)
        return exchange.federated_sum(submission.submitted), submission.kept

    # What is checked: the sum is all that leaves clients, as of any exchange.
    @tff.federated_computation(at_server, at_clients)
    def sum_fn(message: Any, client_data: Any) -> Any:
        return keeping_fn(message, client_data)[0]

    return PlacedExchange(sum_fn, client_work.type_signature.result.kept, keeping_fn)
