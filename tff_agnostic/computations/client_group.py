"""One client, or many in step: what algorithms are written against.

A runtime may run small models for a group of clients at once. Loops over batches stay outside, and
what happens to each client inside a step goes through a `PerClient`: a plain call for one client, a
vectorised one for a group.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple, Optional, Protocol

import numpy as np
import tensorflow as tf

# What `tf.vectorized_map` is made of. That one would also let arguments have one entry for all,
# which takes a copy of each argument, and more operations than many a model's step.
from tensorflow.python.ops.parallel_for.control_flow_ops import pfor

from tff_agnostic.computations.known_ranks import insert_only_missing_axes
from tff_agnostic.models.functional import Examples


class Place(NamedTuple):
    """Where a client stands in its cohort; int32 scalars, or [G] of a group.

    Attributes:
        number: Its number, from 0.
        silent: 0 for a client that trains. Otherwise it stands for so many clients that a secret
            coin left out: they send zeros with their noise.
    """

    number: Any
    silent: Any


class SilentClients(dict):
    """Clients that a secret coin left out, as one entry of a cohort without examples.

    Args:
        client_spec: Tensor specs of a client's examples.
        count: How many clients the entry stands for.
    """

    def __init__(self, client_spec: Mapping[str, Any], count: int) -> None:
        super().__init__(
            tf.nest.map_structure(
                lambda spec: np.zeros(
                    [0, *(size or 0 for size in spec.shape[1:])], spec.dtype.as_numpy_dtype
                ),
                dict(client_spec),
            )
        )
        self.count = count


def place_of(client: Examples, number: int) -> Place:
    """Returns the place of an entry of a cohort, NumPy scalars."""
    silent = client.count if isinstance(client, SilentClients) else 0
    return Place(np.int32(number), np.int32(silent))


class ClientGroup(NamedTuple):
    """Clients whose examples lie one after the other in the same arrays.

    Attributes:
        examples: "x", "y" and "domain_id" of all clients; in a group one row more, of no client.
        first_row: Row of each client's first example, int32: a scalar for one client, [G] for a
            group of G.
        num_examples: Number of examples of each client, in the same shape.
        capacity: The largest number of examples, int32 scalar, or a larger one.
        order: Where each client's examples lie among its rows, int32 [m] or [G, m]; () if they lie
            there in their order.
        kept: What each client has kept of the round's earlier exchanges; () if it has kept nothing.
        place: The `Place` of each client in its cohort; () if nobody asks for it.
    """

    examples: Examples
    first_row: tf.Tensor
    num_examples: tf.Tensor
    capacity: tf.Tensor
    order: Any = ()
    kept: Any = ()
    place: Any = ()

    def take(self, positions: tf.Tensor) -> Examples:
        """Returns examples of each client.

        Args:
            positions: Which, int32 [b] for the same of every client, or [G, b] in a group. In place
                of those past a client's last example that one is returned: no other row is read.

        Returns:
            Columns [b, ...], in a group [G, b, ...].
        """
        last = tf.maximum(self.num_examples, 1) - 1
        places = tf.minimum(positions, last[..., tf.newaxis])
        if tf.is_tensor(self.order):
            places = tf.gather(self.order, places, axis=-1, batch_dims=places.shape.rank - 1)
        rows = self.first_row[..., tf.newaxis] + places
        return tf.nest.map_structure(lambda column: tf.gather(column, rows), dict(self.examples))

    def has(self, positions: tf.Tensor) -> tf.Tensor:
        """Returns whether each client has an example at positions [b]; boolean [b] or [G, b]."""
        return positions < self.num_examples[..., tf.newaxis]

    def limited(self, max_examples: Optional[int]) -> "ClientGroup":
        """Returns the same clients with no more than their first `max_examples`; all if None."""
        if max_examples is None:
            return self
        return self._replace(
            num_examples=tf.minimum(self.num_examples, max_examples),
            capacity=tf.minimum(self.capacity, max_examples),
        )

    def end_rows(self) -> tf.Tensor:
        """Rows of each client's first and last example, int32 [G, 2].

        Those of a client without examples are the row after it; [0, 2] if there is no row at all.
        """
        first = tf.reshape(self.first_row, [-1, 1])
        last = first + tf.maximum(tf.reshape(self.num_examples, [-1, 1]), 1) - 1
        rows = tf.concat([first, last], axis=1)
        has_rows = tf.minimum(tf.shape(self.examples["domain_id"])[0], 1)
        return rows[: has_rows * tf.shape(rows)[0]]


class PerClient(Protocol):
    """Applies a function of one client to every client."""

    @property
    def in_step(self) -> bool:
        """Whether there is a leading axis of clients; otherwise there is one client, and none."""

    @property
    def fixed_shapes(self) -> bool:
        """Whether every batch of a loop has the same size, which XLA needs."""

    def __call__(self, fn: Callable[..., Any], *args: Any) -> Any:
        """Returns `fn` of each client's arguments.

        Args:
            fn: A function of one client's tensors. What it captures is shared by all clients.
            *args: Structures of tensors; in step, each with a leading axis of clients, which what
                is returned has too.
        """


@dataclasses.dataclass(frozen=True)
class _OneClient:
    fixed_shapes: bool = False
    in_step = False

    def __call__(self, fn: Callable[..., Any], *args: Any) -> Any:
        return fn(*args)


class _ClientsInStep:
    in_step = True
    fixed_shapes = False

    def __call__(self, fn: Callable[..., Any], *args: Any) -> Any:
        insert_only_missing_axes()
        num_clients = tf.shape(tf.nest.flatten(args)[0])[0]
        return pfor(
            lambda k: fn(*tf.nest.map_structure(lambda values: tf.gather(values, k), args)),
            num_clients,
        )


one_client: PerClient = _OneClient()
one_client_in_fixed_shapes: PerClient = _OneClient(fixed_shapes=True)
clients_in_step: PerClient = _ClientsInStep()


def batch_positions(
    start: tf.Tensor, batch_size: int, capacity: tf.Tensor, per_client: PerClient
) -> tf.Tensor:
    """Returns the positions of a batch among each client's examples, int32 [b].

    Args:
        start: Of the batch, int32 scalar.
        batch_size: Of all batches but the last.
        capacity: The largest number of examples.
        per_client: Whether the last batch is shorter, or goes on past the last example.
    """
    if per_client.fixed_shapes:
        return start + tf.range(tf.minimum(batch_size, capacity))
    return tf.range(start, tf.minimum(start + batch_size, capacity))


def group_of_one(examples: Examples, kept: Any = (), place: Any = ()) -> ClientGroup:
    """Returns one client as a group without an axis of clients, for `one_client`."""
    num_examples = tf.shape(examples["domain_id"])[0]
    return ClientGroup(examples, tf.constant(0), num_examples, num_examples, kept=kept, place=place)


def group_of_many(clients: Sequence[Examples], kept: Any = (), place: Any = ()) -> ClientGroup:
    """Returns NumPy arrays of a group with an axis of clients, for `clients_in_step`.

    Args:
        clients: At least one client; columns of all of them have the same shapes and dtypes.
        kept: What they have kept, with a leading axis of clients.
        place: Their `Place`; () if nobody asks for it.
    """
    sizes = np.array([len(client["domain_id"]) for client in clients], np.int32)

    def laid_end_to_end(*columns: np.ndarray) -> np.ndarray:
        of_no_client = np.zeros([1, *columns[0].shape[1:]], columns[0].dtype)
        return np.concatenate([*columns, of_no_client])

    return ClientGroup(
        examples=tf.nest.map_structure(laid_end_to_end, *clients),
        first_row=np.cumsum(sizes, dtype=np.int32) - sizes,
        num_examples=sizes,
        capacity=sizes.max(),
        kept=kept,
        place=place,
    )
