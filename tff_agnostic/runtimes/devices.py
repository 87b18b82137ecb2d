"""Devices, threads (lanes) that run shards on them, and the division of a cohort into shards.

A shard is a group of clients that one thread runs. Shards depend only on the cohort, and are
summed in order, so any number of devices or workers gives the same bits.

Each communication step of a round has its own shards, because steps may differ in size. Client
states are therefore stored in cohort order, with clients as the first axis.
"""

from __future__ import annotations

import collections
import itertools
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Callable, TypeVar

import numpy as np

from tff_agnostic.base.later import tf
from tff_agnostic.base.options import OptionError, Verbatim
from tff_agnostic.base.registry import Registry
from tff_agnostic.computations.algorithm import ClientResult

_HINTS = {
    "GPU": (
        ': for NVIDIA GPUs, a driver and "pip install tensorflow[and-cuda]=={release}.*" in the '
        "environment make them visible"
    ),
    "TPU": ": TensorFlow sees a TPU only on its host, with a TensorFlow built for it",
    "CPU": "",
}
# An accelerator has two lanes: while one waits for it, the other prepares the next clients.
_LANES_PER_ACCELERATOR = 2


def _all(kind: str) -> list[str]:
    names = [device.name for device in tf.config.list_logical_devices(kind)]
    if not names:
        kinds = sorted({device.device_type for device in tf.config.list_logical_devices()})
        hint = _HINTS[kind].format(release=".".join(tf.__version__.split(".")[:2]))
        kinds_found = Verbatim(f"only {', '.join(kinds)}{hint}")
        raise OptionError("device", f"a {kind} that TensorFlow sees", kinds_found)
    return names


def _best() -> list[str]:
    return _all("GPU" if tf.config.list_logical_devices("GPU") else "CPU")


DEVICES = Registry(
    "device",
    {
        "auto": _best,
        "cpu": lambda: _all("CPU"),
        "gpu": lambda: _all("GPU"),
        "tpu": lambda: _all("TPU"),
    },
)


def one_thread_per_operation() -> None:
    """Makes TensorFlow run each operation in one thread, if it is not initialised yet.

    Lanes then do not compete for processors, which is faster, and sums do not depend on the number
    of processors. TensorFlow accepts the setting only before its first operation. If it is too
    late, results are still correct, but their last bits may differ between machines.
    """
    try:
        tf.config.threading.set_intra_op_parallelism_threads(1)
    except RuntimeError:
        return


Item = TypeVar("Item")
Result = TypeVar("Result")


class DeviceThreads:
    """Threads that each use one device.

    Args:
        devices: Names of logical devices.
        num_lanes: Number of threads, which share the devices.
    """

    def __init__(self, devices: Sequence[str], num_lanes: int) -> None:
        self.num_lanes = num_lanes
        self._local = threading.local()
        self._devices = itertools.cycle(devices)
        self._choosing = threading.Lock()
        self._pool = ThreadPoolExecutor(num_lanes, "lane", initializer=self._take_device)

    def map_in_order(self, fn: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Calls `fn` on each item in the threads, and yields the results in the order of the items.

        At most two items per lane are in progress or waiting.
        """
        waiting: collections.deque[Future[Result]] = collections.deque()
        try:
            for item in items:
                if len(waiting) == 2 * self.num_lanes:
                    yield waiting.popleft().result()
                waiting.append(self._pool.submit(self._run, fn, item))
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()

    def close(self) -> None:
        """Stops the threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _take_device(self) -> None:
        with self._choosing:
            self._local.device = next(self._devices)

    def _run(self, fn: Callable[[Item], Result], item: Item) -> Result:
        with tf.device(self._local.device):
            return fn(item)


def default_num_lanes(devices: Sequence[str]) -> int:
    """Returns the default number of lanes: one per processor, or two per accelerator."""
    if any(":CPU:" not in device for device in devices):
        return _LANES_PER_ACCELERATOR * len(devices)
    return max(len(devices), len(os.sched_getaffinity(0)))


def sum_in_order(values: Iterable[Any], add: Callable[[Any, Any], Any]) -> Any:
    """Returns the sum of the values from left to right; None if there are no values."""
    total = None
    for value in values:
        total = value if total is None else add(total, value)
    return total


# Maximum number of shards of streamed clients, enough to balance 8 workers. Each waiting shard
# takes memory for a model.
MAX_STREAMED_SHARDS = 32
# A shard may always have this many padding rows: they cost less than another shard.
_FREE_PADDING = 2048
_MAX_PADDING_SHARE = 0.25

# A shard: the positions of its clients in the cohort.
Shard = tuple[int, ...]


def streamed_shards(num_clients: int) -> list[Shard]:
    """Divides a cohort of streamed clients into shards of neighbouring clients."""
    parts = np.array_split(np.arange(num_clients), min(num_clients, MAX_STREAMED_SHARDS) or 1)
    return [tuple(part.tolist()) for part in parts if len(part) > 0]


def vectorised_shards(sizes: Sequence[int], max_clients: int) -> list[Shard]:
    """Divides a cohort of vectorised clients into shards of similar clients, to limit padding.

    Args:
        sizes: Number of examples of each client.
        max_clients: Maximum number of clients in a shard.

    Returns:
        The minimum number of shards, or slightly more. Padding is at most a quarter of a shard's
        rows, or 2,048 rows if that is more.
    """
    if not sizes:
        return []
    largest_first = sorted(range(len(sizes)), key=lambda k: -sizes[k])
    num_shards = -(-len(sizes) // max_clients)
    target_size = -(-len(sizes) // num_shards)
    shards: list[list[int]] = []
    rows = 0
    for k in largest_first:
        if shards and len(shards[-1]) < target_size:
            padded = sizes[shards[-1][0]] * (len(shards[-1]) + 1)
            padding = padded - rows - sizes[k]
            if padding <= max(_FREE_PADDING, _MAX_PADDING_SHARE * padded):
                shards[-1].append(k)
                rows += sizes[k]
                continue
        shards.append([k])
        rows = sizes[k]
    return [tuple(shard) for shard in shards]


def summed_in_order(parts: Iterable[ClientResult]) -> ClientResult:
    """Returns the sum of the shards' outputs, and the client states in the order of the shards.

    Args:
        parts: Results of at least one shard; the first axis of states is clients.
    """
    states = []

    def outputs() -> Iterator[Any]:
        for part in parts:
            states.append(part.state)
            yield part.output

    total = sum_in_order(outputs(), _add)
    return ClientResult(
        total, tf.nest.map_structure(lambda *columns: np.concatenate(columns), *states)
    )


def _add(a: Any, b: Any) -> Any:
    # Use the raw operation: for a small model's sums, calling a traced function would cost several
    # times as much per client.
    return tf.nest.map_structure(lambda x, y: tf.raw_ops.AddV2(x=x, y=y), a, b)


def in_cohort_order(state: Any, shards: Sequence[Shard]) -> Any:
    """Reorders the client states of all shards as in the cohort."""
    positions = np.argsort([k for shard in shards for k in shard])
    return tf.nest.map_structure(lambda column: column[positions], state)


def select_client_state(state: Any, k: int) -> Any:
    """Selects the state of client k."""
    return tf.nest.map_structure(lambda column: column[k], state)


def select_shard_states(state: Any, shard: Shard) -> Any:
    """Selects the states of a shard's clients from the cohort's states."""
    return tf.nest.map_structure(lambda column: column[list(shard)], state)
