"""`Clients`: one client or a vectorised batch of them, with seeds, batches and local state.

One client, or many in step: what algorithms are written against.

A runtime may run small models for a group of clients at once. Loops over batches stay outside, and
what happens to each client inside a step goes through a `PerClient`: a plain call for one client, a
vectorised one for a group.

Vectorising without work for what is known: the ranks of the tensors that an operation combines.

TensorFlow's vectoriser (`pfor`) gives every operand of an elementwise operation as many axes as the
largest operand of that operation has, with a dozen operations that compute its new shape when the
step runs: for operands of equal rank too, and for operations of one operand. Where the ranks are
known, which they are in the models here, no more than the missing axes need be inserted. Values are
the same; a model's step is traced in half the time and has fewer operations.
"""

import dataclasses
import functools
import importlib
from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple, Optional, Protocol

import numpy as np
import tensorflow as tf

# What `tf.vectorized_map` is made of. That one would also let arguments have one entry for all,
# which takes a copy of each argument, and more operations than many a model's step.
from tensorflow.python.ops.parallel_for.control_flow_ops import pfor

from tff_agnostic.models.model import Examples
from tff_agnostic.stateless_random import fold_in, hash_multipliers, known_multipliers, random_order


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


def client_seeds(round_seed: tf.Tensor, clients: ClientGroup) -> tf.Tensor:
    """Returns the seed of each client in a round, int64, in the shape of `clients.num_examples`.

    It depends on the number of the client's examples and on the first and the last of them.

    Args:
        round_seed: (seed of the run, number of the round), int32 [2].
        clients: The clients.
    """
    num_examples = tf.reshape(clients.num_examples, [-1])
    seed = tf.fill(tf.shape(num_examples), fold_in(round_seed[0], round_seed[1]))
    seed = fold_in(seed, num_examples)
    ends = clients.end_rows()
    for column in tf.nest.flatten(clients.examples):
        bits = tf.reshape(_as_integers(tf.gather(column, ends)), [tf.size(num_examples), -1])
        width = tf.TensorShape(column.shape[1:]).num_elements()
        num_bits = tf.shape(bits)[1]
        if width is None:
            multipliers = hash_multipliers(num_bits)
        else:
            # Of two examples; where there is no row at all, of none.
            multipliers = tf.constant(known_multipliers(2 * width))[:num_bits]
        seed = fold_in(seed, tf.reduce_sum(bits * multipliers, axis=1))
    return tf.reshape(seed, tf.shape(clients.num_examples))


def example_order(clients: ClientGroup, seed: tf.Tensor, shuffle: bool) -> tf.Tensor:
    """Returns the order in which clients take their examples, int32 [c], in a group [G, c].

    Args:
        clients: The clients.
        seed: Of each client, int64.
        shuffle: Whether it is a random one; otherwise it is theirs.
    """
    if shuffle:
        return random_order(seed, clients.num_examples, clients.capacity)
    shape = tf.concat([tf.shape(clients.num_examples), [clients.capacity]], axis=0)
    return tf.broadcast_to(tf.range(clients.capacity), shape)


def _as_integers(column: tf.Tensor) -> tf.Tensor:
    if column.dtype == tf.float32:
        return tf.cast(tf.bitcast(column, tf.int32), tf.int64)
    if column.dtype == tf.float64:
        return tf.bitcast(column, tf.int64)
    return tf.cast(column, tf.int64)


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


def _rank_in_step(operand: Any) -> Any:
    """Returns the rank that an operand has with an axis of clients; None if it is unknown."""
    rank = operand.t.shape.rank
    return rank if rank is None or operand.is_stacked else rank + 1


def _with_axes(values: tf.Tensor, number: int) -> tf.Tensor:
    """Returns values [G, ...] with more axes of one entry after the axis of clients."""
    for _ in range(number):
        values = tf.expand_dims(values, axis=1)
    return values


@functools.cache
def insert_only_missing_axes() -> None:
    """Makes TensorFlow's vectoriser insert the axes that are missing where ranks are known.

    Where a rank is unknown it does what it did. Calls after the first do nothing.
    """
    # The package has a function of the same name as this module of it.
    vectoriser = importlib.import_module("tensorflow.python.ops.parallel_for.pfor")
    operands_class = vectoriser._PforInput
    with_computed_shapes = operands_class.expanddim_inputs_for_broadcast

    def expanddim_inputs_for_broadcast(operands: Any) -> None:
        ranks = [_rank_in_step(operand) for operand in operands.inputs]
        if None in ranks:
            with_computed_shapes(operands)
            return
        for i, (operand, rank) in enumerate(zip(operands.inputs, ranks)):
            if operand.is_stacked and rank < max(ranks):
                operands.inputs[i] = vectoriser.wrap(_with_axes(operand.t, max(ranks) - rank), True)

    operands_class.expanddim_inputs_for_broadcast = expanddim_inputs_for_broadcast


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
