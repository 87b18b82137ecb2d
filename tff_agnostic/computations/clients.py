"""`Clients`: the interface of client code, for one client or a vectorised batch.

A runtime may run a batch of clients at once (vectorised), which suits small models. Client code
therefore loops over batches of examples by `Clients.fold_batches`, and calls functions of one
client by `Clients.map`: a plain call for one client, a vectorised call for several.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable, NamedTuple, Optional, Protocol

import numpy as np

from tff_agnostic.base.later import tf
from tff_agnostic.base.stateless_random import (
    fold_in,
    hash_multipliers,
    known_multipliers,
    random_order,
)
from tff_agnostic.computations import client_convolutions, client_random
from tff_agnostic.models.model import Examples


class ClientMap(Protocol):
    """Applies a function of one client to every client."""

    @property
    def is_vectorised(self) -> bool:
        """Whether tensors have a leading axis of clients; otherwise there is a single client."""

    @property
    def fixed_shapes(self) -> bool:
        """Whether all batches of a loop have the same size, as XLA requires."""

    def __call__(self, fn: Callable[..., Any], *args: Any) -> Any:
        """Returns the results of `fn` for each client's arguments; see `Clients.map`."""


@dataclasses.dataclass(frozen=True)
class _OneClient:
    fixed_shapes: bool = False
    is_vectorised = False

    def __call__(self, fn: Callable[..., Any], *args: Any) -> Any:
        return fn(*args)


@dataclasses.dataclass(frozen=True)
class _VectorisedClients:
    draws_at_once: bool = False
    fixed_shapes = False
    is_vectorised = True

    def __call__(self, fn: Callable[..., Any], *args: Any) -> Any:
        # Call `pfor` directly instead of through `tf.vectorized_map`. To support arguments that all
        # clients share, `tf.vectorized_map` copies every argument, which adds more operations to
        # the graph than a training step of many models has.
        from tensorflow.python.ops.parallel_for.control_flow_ops import pfor

        num_clients = tf.shape(tf.nest.flatten(args)[0])[0]
        with _adapted_vectoriser(self.draws_at_once):
            return pfor(
                lambda k: fn(*tf.nest.map_structure(lambda values: tf.gather(values, k), args)),
                num_clients,
            )


one_client: ClientMap = _OneClient()
one_client_in_fixed_shapes: ClientMap = _OneClient(fixed_shapes=True)
vectorised_clients: ClientMap = _VectorisedClients()
# This map draws all clients' random numbers in one kernel, which is faster on devices that launch
# each operation separately.
vectorised_clients_on_accelerators: ClientMap = _VectorisedClients(draws_at_once=True)


class ClientArrays(NamedTuple):
    """Arguments of traced client work: clients with concatenated examples.

    Attributes:
        examples: Columns "x", "y" and "domain_id" of all clients, concatenated. For vectorised
            clients, an additional row belongs to no client.
        first_row: Row of each client's first example, int32: a scalar for one client, [G] for G
            vectorised clients.
        num_examples: Number of examples of each client, in the shape of `first_row`.
        capacity: Upper bound of all clients' numbers of examples, int32 scalar.
        state: State of each client after the round's earlier steps; () if clients keep none.
        place: The `Place` of each client in its cohort; () if no aggregation needs it.
    """

    examples: Examples
    first_row: Any
    num_examples: Any
    capacity: Any
    state: Any = ()
    place: Any = ()


class Batch(NamedTuple):
    """A batch: the same positions among the examples of every client.

    Attributes:
        start: First position of the batch, int32 scalar.
        positions: All positions of the batch, int32 [b].
        is_present: Whether each client has an example at each position, boolean [b] or [G, b].
    """

    start: tf.Tensor
    positions: tf.Tensor
    is_present: tf.Tensor


@dataclasses.dataclass(frozen=True)
class Clients:
    """A single client or a vectorised batch of G clients, while their work is traced.

    Attributes:
        examples: See `ClientArrays`.
        first_row: See `ClientArrays`.
        num_examples: Number of examples of each client, int32 scalar or [G].
        capacity: Upper bound of all clients' numbers of examples, int32 scalar.
        state: State of each client after the round's earlier steps.
        place: See `ClientArrays`.
        map_: Applies functions of one client; see `map`.
        seed: Seed of each client in this round, int64, in the shape of `num_examples`; () if not
            seeded.
        round_num: Number t of the round, from 0, int32 scalar; () if not seeded.
        order: Positions of each client's examples among its rows, int32 [m] or [G, m]; () for the
            stored order.
    """

    examples: Examples
    first_row: tf.Tensor
    num_examples: tf.Tensor
    capacity: tf.Tensor
    state: Any = ()
    place: Any = ()
    map_: ClientMap = one_client
    seed: Any = ()
    round_num: Any = ()
    order: Any = ()

    @classmethod
    def from_arrays(cls, arrays: ClientArrays, map_: ClientMap = one_client) -> Clients:
        """Returns the clients of the given arrays."""
        return cls(*arrays, map_=map_)

    def map(self, fn: Callable[..., Any], *args: Any) -> Any:
        """Returns the results of `fn` for each client's arguments.

        Args:
            fn: A function of one client's tensors. Values that it captures are shared by all
                clients.
            *args: Structures of tensors, at least one. For vectorised clients, arguments and result
                have a leading axis of clients.
        """
        return self.map_(fn, *args)

    def take(self, positions: tf.Tensor) -> Examples:
        """Returns examples of each client at given positions.

        Args:
            positions: int32 [b] for the same positions of every client, or [G, b]. A position past
                a client's last example yields the last example, never another client's example.

        Returns:
            Columns [b, ...], vectorised [G, b, ...].
        """
        last = tf.maximum(self.num_examples, 1) - 1
        places = tf.minimum(positions, last[..., tf.newaxis])
        if tf.is_tensor(self.order):
            places = tf.gather(self.order, places, axis=-1, batch_dims=places.shape.rank - 1)
        rows = self.first_row[..., tf.newaxis] + places
        return tf.nest.map_structure(lambda column: tf.gather(column, rows), dict(self.examples))

    def has(self, positions: tf.Tensor) -> tf.Tensor:
        """Whether each client has an example at positions [b]; boolean [b] or [G, b]."""
        return positions < self.num_examples[..., tf.newaxis]

    def fold_batches(self, batch_size: int, step: Callable[[Batch, Any], Any], initial: Any) -> Any:
        """Returns the final state of a loop over the batches of all clients.

        Args:
            batch_size: Examples of each client per batch. The last batch is shorter; in fixed
                shapes it keeps its size, and extends past the last example.
            step: (batch, state) -> the next state.
            initial: The state before the first batch.
        """

        def next_batch(start: tf.Tensor, state: Any) -> tuple[tf.Tensor, Any]:
            if self.map_.fixed_shapes:
                positions = start + tf.range(tf.minimum(batch_size, self.capacity))
            else:
                positions = tf.range(start, tf.minimum(start + batch_size, self.capacity))
            return start + batch_size, step(Batch(start, positions, self.has(positions)), state)

        _, final = tf.while_loop(
            lambda start, _: start < self.capacity, next_batch, (tf.constant(0), initial)
        )
        return final

    def limited(self, max_examples: Optional[int]) -> Clients:
        """Returns the clients with at most their first `max_examples` examples; None keeps all."""
        if max_examples is None:
            return self
        return dataclasses.replace(
            self,
            num_examples=tf.minimum(self.num_examples, max_examples),
            capacity=tf.minimum(self.capacity, max_examples),
        )

    def only(self, is_chosen: tf.Tensor) -> Clients:
        """Returns the clients, but without the examples of clients that are not chosen.

        Args:
            is_chosen: Boolean scalar or [G].
        """
        num_examples = tf.where(is_chosen, self.num_examples, 0)
        capacity = self.capacity
        if not self.map_.fixed_shapes:
            # Loops need not continue after the last example of the chosen clients.
            capacity = tf.minimum(capacity, tf.reduce_max(num_examples))
        return dataclasses.replace(self, num_examples=num_examples, capacity=capacity)

    def seeded(self, round_seed: tf.Tensor) -> Clients:
        """Returns the clients with their seeds for a round; see `client_seeds`."""
        seeds = client_seeds(round_seed, self)
        return dataclasses.replace(self, seed=seeds, round_num=round_seed[1])

    def example_order(self, seed: tf.Tensor, shuffle: bool) -> tf.Tensor:
        """Returns the order in which clients use their examples, int32 [c], vectorised [G, c].

        Args:
            seed: Seed of each client, int64.
            shuffle: Whether to shuffle the examples; otherwise their stored order is used.
        """
        if shuffle:
            return random_order(seed, self.num_examples, self.capacity)
        shape = tf.concat([tf.shape(self.num_examples), [self.capacity]], axis=0)
        return tf.broadcast_to(tf.range(self.capacity), shape)

    def end_rows(self) -> tf.Tensor:
        """Returns the rows of each client's first and last example, int32 [G, 2].

        For a client without examples, both are the row where its examples would start. Without any
        rows the result is [0, 2].
        """
        first = tf.reshape(self.first_row, [-1, 1])
        last = first + tf.maximum(tf.reshape(self.num_examples, [-1, 1]), 1) - 1
        rows = tf.concat([first, last], axis=1)
        has_rows = tf.minimum(tf.shape(self.examples["domain_id"])[0], 1)
        return rows[: has_rows * tf.shape(rows)[0]]


def client_seeds(round_seed: tf.Tensor, clients: Clients) -> tf.Tensor:
    """Returns the seed of each client in a round, int64, in the shape of `clients.num_examples`.

    The seed is a hash of the round's seed, the client's number of examples, and its first and last
    example.

    Args:
        round_seed: (seed of the run, number of the round), int32 [2].
    """
    num_examples = tf.reshape(clients.num_examples, [-1])
    seed = tf.fill(tf.shape(num_examples), fold_in(round_seed[0], round_seed[1]))
    seed = fold_in(seed, num_examples)
    ends = clients.end_rows()
    for column in tf.nest.flatten(clients.examples):
        bits = tf.reshape(_as_integers(tf.gather(column, ends)), [tf.size(num_examples), -1])
        width = tf.TensorShape(column.shape[1:]).num_elements()
        seed = fold_in(seed, tf.reduce_sum(bits * _multipliers(bits, width), axis=1))
    return tf.reshape(seed, tf.shape(clients.num_examples))


def client_hashes(seed: int, clients: Clients) -> tf.Tensor:
    """Returns a hash of each client, int64, from the same properties as its seed, but cheaper.

    Args:
        seed: Number that distinguishes uses of the hashes.
    """
    num_examples = tf.reshape(clients.num_examples, [-1])
    ends, rows = clients.end_rows(), tf.size(num_examples)
    columns = tf.nest.flatten(clients.examples)
    bits = tf.concat(
        [tf.reshape(_as_integers(tf.gather(column, ends)), [rows, -1]) for column in columns], 1
    )
    widths = [tf.TensorShape(column.shape[1:]).num_elements() for column in columns]
    width = None if None in widths else sum(widths)
    hashed = tf.reduce_sum(bits * _multipliers(bits, width), axis=1)
    hashed += tf.cast(num_examples, tf.int64)
    return tf.reshape(fold_in(tf.constant(seed), hashed), tf.shape(clients.num_examples))


def _multipliers(bits: tf.Tensor, width: Optional[int]) -> tf.Tensor:
    """Returns multipliers to hash two examples of `width` values each; None if unknown."""
    num_bits = tf.shape(bits)[1]
    if width is None:
        return hash_multipliers(num_bits)
    # Without rows, `bits` has width 0.
    return tf.constant(known_multipliers(2 * width))[:num_bits]


def _as_integers(column: tf.Tensor) -> tf.Tensor:
    if column.dtype == tf.float32:
        return tf.cast(tf.bitcast(column, tf.int32), tf.int64)
    if column.dtype == tf.float64:
        return tf.bitcast(column, tf.int64)
    return tf.cast(column, tf.int64)


class Place(NamedTuple):
    """Position of a client in its cohort; int32 scalars, or [G] for a group.

    Attributes:
        number: Index in the cohort, from 0.
        silent: 0 for a client that trains. Otherwise the entry represents this number of clients
            that a secret coin flip excluded; they send zeros plus their noise.
    """

    number: Any
    silent: Any


class SilentClients(dict):
    """A cohort entry without examples that represents clients excluded by a secret coin flip.

    Args:
        client_spec: Tensor specs of a client's examples.
        count: Number of clients that the entry represents.
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


def client_place(client: Examples, number: int) -> Place:
    """Returns the `Place` of a cohort entry, in NumPy scalars."""
    silent = client.count if isinstance(client, SilentClients) else 0
    return Place(np.int32(number), np.int32(silent))


def client_arrays(examples: Examples, state: Any = (), place: Any = ()) -> ClientArrays:
    """Returns the arrays of one client, without an axis of clients."""
    num_examples = tf.shape(examples["domain_id"])[0]
    return ClientArrays(examples, tf.constant(0), num_examples, num_examples, state, place)


def stacked_client_arrays(
    clients: Sequence[Examples], state: Any = (), place: Any = ()
) -> ClientArrays:
    """Returns NumPy arrays of vectorised clients.

    Args:
        clients: One or more clients; the columns of all clients have the same shapes and dtypes.
        state: State of the clients, with a leading axis of clients.
        place: `Place` of the clients; () if no aggregation needs it.
    """
    sizes = np.array([len(client["domain_id"]) for client in clients], np.int32)

    def concatenated(*columns: np.ndarray) -> np.ndarray:
        padding = np.zeros([1, *columns[0].shape[1:]], columns[0].dtype)
        return np.concatenate([*columns, padding])

    return ClientArrays(
        examples=tf.nest.map_structure(concatenated, *clients),
        first_row=np.cumsum(sizes, dtype=np.int32) - sizes,
        num_examples=sizes,
        capacity=sizes.max(),
        state=state,
        place=place,
    )


def _rank_with_clients(operand: Any) -> Any:
    """Returns an operand's rank including the axis of clients; None if unknown."""
    rank = operand.t.shape.rank
    return rank if rank is None or operand.is_stacked else rank + 1


def _with_axes(values: tf.Tensor, number: int) -> tf.Tensor:
    """Inserts axes of size 1 after the clients' axis of values [G, ...]."""
    for _ in range(number):
        values = tf.expand_dims(values, axis=1)
    return values


# Lock for tracing, which temporarily swaps attributes of Keras layers and of TensorFlow's
# vectoriser. A thread may hold it several times.
TRACING = threading.RLock()


@contextlib.contextmanager
def _adapted_vectoriser(draws_at_once: bool) -> Iterator[None]:
    """Makes TensorFlow's vectoriser convert convolutions, and insert only missing axes.

    Convolutions become batched products: see `client_convolutions`. With `draws_at_once` one kernel
    draws the random numbers of all clients: see `client_random`.

    `pfor` (in TensorFlow 2.14) adds a dozen operations per operand of an elementwise operation, to
    compute a new shape at run time. If all ranks are known, as in the models here, it suffices to
    insert the missing axes. Values are the same, tracing a model's step takes half the time, and
    the graph has fewer operations. If a rank is unknown, nothing changes. The change applies only
    in this thread and this context.
    """
    # Import by path, as the package exports a function with the module's name.
    vectoriser = importlib.import_module("tensorflow.python.ops.parallel_for.pfor")
    operands_class, registry = vectoriser._PforInput, vectoriser._pfor_converter_registry
    thread = threading.get_ident()

    def here(adapted: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: (adapted if threading.get_ident() == thread else original)(*args)

    def has_no_converter(operands: Any) -> Any:
        raise vectoriser.ConversionNotImplementedError(operands.op_type)

    with TRACING:
        insert_axes = operands_class.expanddim_inputs_for_broadcast
        kinds = (client_convolutions, client_random) if draws_at_once else (client_convolutions,)
        adapted = {n: kind.converter(vectoriser, n) for kind in kinds for n in kind.CONVERTED}
        before = {name: registry[name] for name in adapted if name in registry}
        operands_class.expanddim_inputs_for_broadcast = here(
            functools.partial(_insert_missing_axes, vectoriser, insert_axes), insert_axes
        )
        for name, convert in adapted.items():
            registry[name] = here(convert, before.get(name, has_no_converter))
        try:
            yield
        finally:
            operands_class.expanddim_inputs_for_broadcast = insert_axes
            registry.update(before)
            for name in adapted.keys() - before.keys():
                del registry[name]


def _insert_missing_axes(
    vectoriser: Any, with_computed_shapes: Callable[[Any], None], operands: Any
) -> None:
    ranks = [_rank_with_clients(operand) for operand in operands.inputs]
    if None in ranks:
        with_computed_shapes(operands)
        return
    for i, (operand, rank) in enumerate(zip(operands.inputs, ranks)):
        if operand.is_stacked and rank < max(ranks):
            operands.inputs[i] = vectoriser.wrap(_with_axes(operand.t, max(ranks) - rank), True)
