"""Traced client work: clients run sequentially (streamed) or as one batch (vectorised)."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable, Generic, Optional, TypeVar

import numpy as np

from tff_agnostic.base.later import tf
from tff_agnostic.base.options import OptionError, Verbatim
from tff_agnostic.base.registry import Registry
from tff_agnostic.computations.algorithm import ClientResult
from tff_agnostic.computations.clients import (
    TRACING,
    ClientArrays,
    ClientMap,
    Clients,
    Place,
    client_arrays,
    client_place,
    one_client,
    one_client_in_fixed_shapes,
    stacked_client_arrays,
    vectorised_clients,
    vectorised_clients_on_accelerators,
)
from tff_agnostic.computations.round import RoundStep
from tff_agnostic.models.model import Examples
from tff_agnostic.runtimes.devices import (
    Shard,
    select_client_state,
    streamed_shards,
    summed_in_order,
    vectorised_shards,
)

_MAX_GROUP = 512
_Traced = TypeVar("_Traced")


@dataclasses.dataclass(frozen=True)
class ShardFunction:
    """Runs a shard's clients by calls of one traced function, and sums its outputs.

    Attributes:
        traced: Returns the traced function of (broadcast, inputs); traces it on first use.
        inputs: Yields the inputs of each call as NumPy arrays, given a shard's clients, their
            states (first axis: clients) and their positions in the cohort.
    """

    traced: Callable[[], Any]
    inputs: Callable[[Sequence[Examples], Any, Shard], Iterator[Any]]

    def __call__(
        self, broadcast: Any, clients: Sequence[Examples], state: Any = (), shard: Shard = ()
    ) -> ClientResult:
        """Returns the sum of the clients' outputs, and the clients' states."""
        function = self.traced()
        calls = (function(broadcast, inputs) for inputs in self._tensors(clients, state, shard))
        return summed_in_order(calls)

    def for_each(
        self, broadcasts: Sequence[Any], clients: Sequence[Examples], shard: Shard
    ) -> ClientResult:
        """Returns the sum for each of several broadcasts, for clients without state."""
        function = self.traced()
        calls = (
            ClientResult([function(broadcast, inputs).output for broadcast in broadcasts], ())
            for inputs in self._tensors(clients, (), shard)
        )
        return summed_in_order(calls)

    def _tensors(self, clients: Sequence[Examples], state: Any, shard: Shard) -> Iterator[Any]:
        for inputs in self.inputs(clients, state, shard):
            yield tf.nest.map_structure(tf.convert_to_tensor, inputs)


@dataclasses.dataclass(frozen=True, eq=False)
class ClientWork:
    """The computation of a client in a communication step, up to its encoded output.

    Equal instances share traces.

    Attributes:
        step: The clients' part of the step, which can be sent to other processes; see
            `RoundStep.on_clients`.
        message_spec: Tensor specs of the message to every client.
        client_spec: Tensor specs of one client's examples.
        state_spec: Tensor specs of one client's state from the round's earlier steps.
    """

    step: RoundStep
    message_spec: Any
    client_spec: Mapping[str, Any]
    state_spec: Any = ()

    @functools.cached_property
    def _key(self) -> Any:
        specs = (self.message_spec, dict(self.client_spec), self.state_spec)
        return self.step.key, tuple(tf.nest.flatten(specs))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClientWork) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def numbers_clients(self) -> bool:
        """Whether clients receive their position in the cohort."""
        return self.step.aggregation.numbers_clients

    @property
    def gathered_bytes(self) -> Optional[int]:
        """See `CommunicationStep.bytes_per_example`."""
        return self.step.step.bytes_per_example

    @property
    def message_bytes(self) -> int:
        """Size of the message in bytes, about the size of the model."""
        return _num_bytes(self.message_spec)

    @property
    def example_bytes(self) -> int:
        """Size of one example in bytes; dimensions of unknown size count as 1."""
        rows = tf.nest.map_structure(
            lambda spec: tf.TensorSpec([size or 1 for size in spec.shape[1:]], spec.dtype),
            dict(self.client_spec),
        )
        return _num_bytes(rows)


def _num_bytes(specs: Any) -> int:
    return sum(spec.shape.num_elements() * spec.dtype.size for spec in tf.nest.flatten(specs))


class _TracedOnce(Generic[_Traced]):
    """An attribute that one thread computes on first use, while other threads wait.

    `functools.cached_property` has no lock from Python 3.12 on, and lanes are threads.
    """

    def __init__(self, trace: Callable[[Any], _Traced]) -> None:
        self._trace = trace
        self.__doc__ = trace.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: Optional[type] = None) -> _Traced:
        # Store the value in the instance: Python then no longer calls `__get__` for this name.
        with TRACING:
            traced = vars(instance)
            if self._name not in traced:
                traced[self._name] = self._trace(instance)
            result: _Traced = traced[self._name]
            return result


@dataclasses.dataclass(frozen=True)
class Grouping:
    """Limits on vectorised groups of clients, for the client mode auto.

    Attributes:
        largest_model_bytes: Maximum model size for vectorised clients; None for no limit.
        max_with_convolutions: Maximum number of clients in a group if the model has convolutions; 0
            to not vectorise such models.
        group_bytes: Approximate memory limit of a group, in bytes.
        map_: Applies a function of one client to a group of clients.
    """

    largest_model_bytes: Optional[int]
    max_with_convolutions: int
    group_bytes: int
    map_: ClientMap = vectorised_clients


# Limits for CPUs. For models up to 400 KB, starting the operations of a client's step
# takes longer than running them. A vectorised convolution becomes a product of patches,
# which is slower (both measured).
ON_CPU = Grouping(400_000, max_with_convolutions=0, group_bytes=64 * 2**20)
# Limits for accelerators, which one client's step does not saturate. Patches of convolutions are
# large, so groups with convolutions are limited to 25 clients. On an H200, a CNN's round took 7
# milliseconds per client in groups of 10, and 3 in groups of 25 or 50.
ON_ACCELERATOR = Grouping(
    None,
    max_with_convolutions=25,
    group_bytes=2 * 2**30,
    map_=vectorised_clients_on_accelerators,
)


class CompiledClientWork:
    """Traces a `ClientWork` as functions that sum the outputs of clients.

    Each function is traced once, on first use, and runs clients of any size on any device.

    Args:
        xla: Whether XLA compiles the functions.
        grouping: Limits on vectorised groups, which depend on the device.

    Attributes:
        streamed: Runs a shard's clients one after another.
        vectorised: Runs a shard's clients as one batch.
    """

    def __init__(self, work: ClientWork, xla: bool = False, grouping: Grouping = ON_CPU) -> None:
        self.work = work
        self.grouping = grouping
        self._columns = dict(work.client_spec)
        self._jit_compile = True if xla else None
        self.streamed = ShardFunction(lambda: self._one, self._each_client)
        self.vectorised = ShardFunction(lambda: self._many, self._as_one_batch)

    @_TracedOnce
    def _one(self) -> Any:
        map_ = one_client_in_fixed_shapes if self._jit_compile else one_client

        def one(message: Any, client: tuple[Any, Any, Any]) -> ClientResult:
            output, state = self.work.step.client_work(
                message, Clients.from_arrays(client_arrays(*client), map_)
            )
            # Add a client axis of size 1, as in vectorised work.
            return ClientResult(
                output, tf.nest.map_structure(lambda value: value[tf.newaxis], state)
            )

        number = tf.TensorSpec([], tf.int32)
        place = Place(number, number) if self.work.numbers_clients else ()
        return self._trace(one, (self._columns, self.work.state_spec, place))

    @_TracedOnce
    def _many(self) -> Any:
        def many(message: Any, arrays: ClientArrays) -> ClientResult:
            outputs, state = self.work.step.client_work(
                message, Clients.from_arrays(arrays, _ConvertedClients(self.grouping.map_))
            )
            return ClientResult(
                tf.nest.map_structure(lambda value: tf.reduce_sum(value, axis=0), outputs), state
            )

        rows = tf.TensorSpec([None], tf.int32)
        batch_state = tf.nest.map_structure(
            lambda spec: tf.TensorSpec([None, *spec.shape], spec.dtype), self.work.state_spec
        )
        capacity = tf.TensorSpec([], tf.int32)
        place = Place(rows, rows) if self.work.numbers_clients else ()
        return self._trace(
            many, ClientArrays(self._columns, rows, rows, capacity, batch_state, place)
        )

    def _trace(self, fn: Any, clients_spec: Any) -> Any:
        # Trace outside of any device scope, so that the function runs on whichever device calls it.
        with tf.device(None):
            return tf.function(
                fn, autograph=False, jit_compile=self._jit_compile
            ).get_concrete_function(self.work.message_spec, clients_spec)

    @_TracedOnce
    def vectorisation_error(self) -> Optional[str]:
        """The reason why the work cannot be vectorised; None if it can. Traces the work.

        TensorFlow may be unable to vectorise a model's loops, such as those of Keras' own recurrent
        layers. Errors in the work itself propagate unchanged; running clients one by one would only
        hide them.
        """
        if self._jit_compile:
            return "XLA cannot compile it so"
        try:
            with _quiet_tensorflow():
                _ = self._many
        except _ConversionError as e:
            return str(e)
        # TensorFlow vectorises some convolutions as grouped convolutions, whose results on several
        # CPU lanes were not reproducible. Conv2D is not grouped: clients share its kernel.
        convolutions = sorted(op for op in _op_types(self._many) if "Conv" in op and op != "Conv2D")
        return f"it has convolutions ({convolutions[0]})" if convolutions else None

    @functools.cached_property
    def has_convolutions(self) -> bool:
        """Whether the client work has convolutions, vectorised or not."""
        # The graph contains the operations in both forms: before and after vectorisation.
        graph = self._many.graph.as_graph_def()
        inner = (node for function in graph.library.function for node in function.node_def)
        return any("Conv" in node.op for nodes in (graph.node, inner) for node in nodes)

    def clients_step_together(self) -> bool:
        """Whether the client mode auto vectorises clients."""
        work, largest = self.work, self.grouping.largest_model_bytes
        only_gathers = work.gathered_bytes is not None
        if largest is not None and not only_gathers and work.message_bytes > largest:
            return False
        if self.vectorisation_error is not None:
            return False
        return self.grouping.max_with_convolutions > 0 or not self.has_convolutions

    def zeros(self) -> ClientResult:
        """Returns the result for a cohort without clients: zeros, and empty states."""
        output, state = self._output_specs
        return ClientResult(
            tf.nest.map_structure(lambda spec: tf.zeros(spec.shape, spec.dtype), output),
            tf.nest.map_structure(
                lambda spec: np.zeros([0, *spec.shape[1:]], spec.dtype.as_numpy_dtype), state
            ),
        )

    def output_bytes(self) -> int:
        """Returns the size of one client's output."""
        return _num_bytes(self._output_specs.output)

    @property
    def _output_specs(self) -> ClientResult:
        # Use whichever function is traced: a sum over clients has the shapes
        # of one client's output.
        traced = self._many if "_many" in vars(self) else self._one
        specs: ClientResult = traced.structured_outputs
        return specs

    def _each_client(self, clients: Sequence[Examples], state: Any, shard: Shard) -> Iterator[Any]:
        for k, examples in enumerate(clients):
            place = client_place(examples, shard[k]) if self.work.numbers_clients else ()
            yield self._chosen(examples), select_client_state(state, k), place

    def _as_one_batch(self, clients: Sequence[Examples], state: Any, shard: Shard) -> Iterator[Any]:
        places: Any = ()
        if self.work.numbers_clients:
            places = Place(*map(np.array, zip(*map(client_place, clients, shard))))
        yield stacked_client_arrays([self._chosen(examples) for examples in clients], state, places)

    def _chosen(self, examples: Examples) -> dict[str, Any]:
        return {name: examples[name] for name in self._columns}


class _ConversionError(Exception):
    """Raised if TensorFlow cannot vectorise an operation over clients."""


@dataclasses.dataclass(frozen=True)
class _ConvertedClients:
    """A `ClientMap` that distinguishes failed vectorisation from errors in the function itself.

    TensorFlow traces the function for one client, and then converts each operation. A missing or
    failing converter may raise any type of exception, with a truncated traceback; for Keras' LSTM
    it is a `TypeError`. The only reliable sign of a failed vectorisation is that the function
    itself had returned.
    """

    map_: ClientMap
    is_vectorised = True
    fixed_shapes = False

    def __call__(self, fn: Callable[..., Any], *args: Any) -> Any:
        has_returned = False

        def record_return(*args: Any) -> Any:
            nonlocal has_returned
            output = fn(*args)
            has_returned = True
            return output

        try:
            return self.map_(record_return, *args)
        except Exception as e:
            if not has_returned:
                raise
            reason = f"{type(e).__name__}: {' '.join(str(e).split())[:200]}"
            raise _ConversionError(reason) from e


def _op_types(traced: Any) -> set[str]:
    """Returns the types of all operations on which a traced function's outputs depend.

    The function's graph also contains the operations before vectorisation, which never run.
    """
    graph = traced.graph.as_graph_def()
    functions = {f.signature.name: f for f in graph.library.function}
    outputs = [tensor.name for tensor in traced.outputs]
    types: set[str] = set()
    seen: set[str] = set()
    waiting = [(graph.node, outputs)]
    while waiting:
        nodes, names = waiting.pop()
        by_name = {node.name: node for node in nodes}
        names, reached = list(names), set()
        while names:
            # The input of a node is a string: the output of another node, "node:y:0", or a control
            # dependency, "^node".
            name = names.pop().lstrip("^").partition(":")[0]
            if name in reached or name not in by_name:
                continue
            reached.add(name)
            node = by_name[name]
            types.add(node.op)
            names.extend(node.input)
            called = {value.func.name for value in node.attr.values() if value.HasField("func")}
            for function in (functions[name] for name in called - seen):
                waiting.append(
                    (function.node_def, [*function.ret.values(), *function.control_ret.values()])
                )
            seen |= called
    return types


@contextlib.contextmanager
def _quiet_tensorflow() -> Iterator[None]:
    # Hide messages about operations without a converter: they only help TensorFlow's developers.
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


Plan = tuple[ShardFunction, list[Shard]]


def _stream(
    compiled: CompiledClientWork, cohort: Sequence[Examples], max_clients_in_step: Optional[int]
) -> Plan:
    del max_clients_in_step
    return compiled.streamed, streamed_shards(len(cohort))


def _vectorise(
    compiled: CompiledClientWork, cohort: Sequence[Examples], max_clients_in_step: Optional[int]
) -> Plan:
    if compiled.vectorisation_error is not None:
        reason = f"vectorised: TensorFlow cannot vectorise it ({compiled.vectorisation_error})"
        raise OptionError("client_mode", "auto or streamed with this model", Verbatim(reason))
    sizes = [len(examples["domain_id"]) for examples in cohort]
    most = max_clients_in_step or _largest_group(compiled, max(sizes, default=0))
    return compiled.vectorised, vectorised_shards(sizes, most)


def _choose(
    compiled: CompiledClientWork, cohort: Sequence[Examples], max_clients_in_step: Optional[int]
) -> Plan:
    chosen = _vectorise if compiled.clients_step_together() else _stream
    return chosen(compiled, cohort, max_clients_in_step)


# A client mode maps (work, cohort, maximum clients per shard) to the function that runs a shard,
# and the shards. The result depends only on these arguments, so the number of devices or workers
# does not affect sums.
CLIENT_MODES: Registry[Callable[[CompiledClientWork, Sequence[Examples], Optional[int]], Plan]] = (
    Registry("client mode", {"auto": _choose, "vectorised": _vectorise, "streamed": _stream})
)


def _largest_group(compiled: CompiledClientWork, num_rows: int) -> int:
    work, output = compiled.work, compiled.output_bytes()
    gathered = work.gathered_bytes
    # If clients gather rows of the model, count only these rows, as clients share the table.
    model = work.message_bytes if gathered is None else num_rows * gathered
    # Estimate the memory for weights and updates, outputs and encodings, a batch and gradients.
    bytes_per_client = 3 * model + 2 * output + 4 * num_rows * work.example_bytes
    most = compiled.grouping.group_bytes // bytes_per_client
    max_with_convolutions = compiled.grouping.max_with_convolutions
    if max_with_convolutions and compiled.has_convolutions:
        most = min(most, max_with_convolutions)
    return max(1, min(_MAX_GROUP, most))
