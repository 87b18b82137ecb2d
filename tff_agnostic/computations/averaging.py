"""Builds one-step algorithms that average client updates, from client work and a memory.

The memory is the part of the algorithm's state that is neither model nor optimizer state. In round
t, the server sends w_{t-1} and a part of the memory. Each client k returns beta^k (w_{t-1} - w^k)
and beta^k. The average sum_k beta^k (w_{t-1} - w^k) / sum_k beta^k is the gradient that the server
optimizer receives. With SGD of learning rate 1, w_t is therefore the weighted average of the w^k.
An algorithm defines its client work, and how the round's sums update its memory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple

from tff_agnostic.aggregations.aggregation import ClientLimits
from tff_agnostic.base.options import Options
from tff_agnostic.computations.algorithm import (
    Algorithm,
    Column,
    CommunicationStep,
    HashablePartial,
    Problem,
)
from tff_agnostic.computations.local_training import ClientTraining
from tff_agnostic.computations.server import (
    ServerUpdate,
    as_tensors,
    average_and_apply,
    initial_model,
    training_columns,
)
from tff_agnostic.models.model import ModelWeights


@dataclasses.dataclass(frozen=True)
class AveragingOptions(Options):
    """Options of algorithms that average client updates.

    Attributes:
        client: Options of local training.
        server: Options of the server's update.
    """

    client: ClientTraining = ClientTraining()
    server: ServerUpdate = ServerUpdate()


class Broadcast(NamedTuple):
    """The server's message to the clients.

    Attributes:
        weights: The model's weights w_{t-1}.
        sent: Part of the algorithm's memory that clients need.
    """

    weights: ModelWeights
    sent: Any


class AveragingState(NamedTuple):
    """The state of the server.

    Attributes:
        weights: The model's weights w_t.
        optimizer_state: State of the server optimizer.
        memory: The algorithm's memory, any structure of tensors.
    """

    weights: ModelWeights
    optimizer_state: Any
    memory: Any


def averaging(
    name: str,
    problem: Problem,
    options: AveragingOptions,
    client_work: Callable[..., Any],
    *,
    static: Mapping[str, Any],
    bounds: Callable[[ClientLimits], Any],
    memory: Callable[[], Any] = tuple,
    send: Callable[[Any], Any] = lambda memory: memory,
    remember: Callable[[Any, Any], Any] = lambda memory, summed: memory,
    columns: Sequence[Column] = (),
    domain_columns: Sequence[Column] = (),
    is_held_out: bool = False,
    while_training: bool = False,
    **more: Any,
) -> Algorithm:
    """Returns an algorithm that averages client updates.

    Args:
        options: Options of local training and of the server's update.
        client_work: A module-level function, called with a `Broadcast` and clients, and by keyword
            with `model`, `num_domains`, `training` and the arguments in `static`; returns a
            `TrainingOutput`, or another named tuple with the attributes `weighted_delta`, `beta`,
            `domain_sums` and `clients`.
        static: Further keyword arguments of `client_work`, hashable; see `HashablePartial`.
        bounds: `ClientLimits` -> a `Bound` for each value of a client's output.
        memory: () -> the memory before the first round.
        send: memory -> the values to broadcast.
        remember: (memory, sum over clients) -> the next memory.
        columns: Scalars that a round reports.
        domain_columns: Vectors that a round reports, with an entry per domain.
        is_held_out: Whether losses are measured on examples held out of training.
        while_training: Whether the first epoch of training measures the losses.
        more: Further attributes of the `Algorithm`, by keyword.
    """
    model, optimizer = problem.model, options.server.build(problem.model)

    def initialize() -> AveragingState:
        return AveragingState(*initial_model(model, optimizer), as_tensors(memory()))

    def finish(state: AveragingState, summed: Any) -> AveragingState:
        after: AveragingState = average_and_apply(
            optimizer, state, summed.weighted_delta, summed.beta
        )
        return after._replace(memory=remember(state.memory, summed))

    step = CommunicationStep(
        name="training",
        broadcast=lambda state: Broadcast(state.weights, send(state.memory)),
        # Pass only the options that training reads, as equal client work is traced only once.
        client_work=HashablePartial(
            client_work,
            model=model,
            num_domains=problem.num_domains,
            training=options.client,
            **static,
        ),
        bounds=bounds,
    )
    return Algorithm(
        name=name,
        problem=problem,
        initialize=initialize,
        steps=(step,),
        finish=finish,
        columns=training_columns(
            model,
            is_held_out,
            domain_weights=domain_columns,
            finalizer=columns,
            while_training=while_training,
        ),
        **more,
    )
