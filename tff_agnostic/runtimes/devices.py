"""Devices, and the threads that run shards on them."""

from __future__ import annotations

import collections
import itertools
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Callable, TypeVar

from tff_agnostic.errors import UserError
from tff_agnostic.later import tf
from tff_agnostic.registry import Registry

_HINTS = {
    "GPU": (
        ': for NVIDIA GPUs, a driver and "pip install tensorflow[and-cuda]==2.14.*" in the '
        "environment make them visible"
    ),
    "TPU": ": TensorFlow sees a TPU only on its host, with a TensorFlow built for it",
    "CPU": "",
}
# While a lane of a GPU waits for it, the other one prepares the next clients.
_LANES_PER_ACCELERATOR = 2


def _all(kind: str) -> list[str]:
    names = [device.name for device in tf.config.list_logical_devices(kind)]
    if not names:
        found = sorted({device.device_type for device in tf.config.list_logical_devices()})
        raise UserError(
            f"--device={kind.lower()}: TensorFlow sees no {kind}, only {', '.join(found)}"
            f"{_HINTS[kind]}"
        )
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
    """Makes TensorFlow run each operation in one thread, where it is not too late for that.

    Lanes then share the processors without waiting for each other, which is faster, and sums do not
    depend on the number of processors. TensorFlow takes such settings before its first operation
    only; afterwards the numbers are still right, but may differ in their last bits from machine
    to machine.
    """
    try:
        tf.config.threading.set_intra_op_parallelism_threads(1)
    except RuntimeError:
        return


Item = TypeVar("Item")

Result = TypeVar("Result")


class DeviceThreads:
    """Threads, each on one device.

    Args:
        devices: Names of logical devices.
        num_lanes: How many threads share them.
    """

    def __init__(self, devices: Sequence[str], num_lanes: int) -> None:
        self.num_lanes = num_lanes
        self._local = threading.local()
        self._devices = itertools.cycle(devices)
        self._choosing = threading.Lock()
        self._pool = ThreadPoolExecutor(num_lanes, "lane", initializer=self._take_device)

    def map_in_order(self, fn: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Yields `fn` of each item, in their order, whatever the order in which they finish.

        No more than twice as many items as there are lanes are under way or waiting.
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
        """Ends the threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _take_device(self) -> None:
        with self._choosing:
            self._local.device = next(self._devices)

    def _run(self, fn: Callable[[Item], Result], item: Item) -> Result:
        with tf.device(self._local.device):
            return fn(item)


def default_num_lanes(devices: Sequence[str]) -> int:
    """Returns one lane per processor, or two per accelerator."""
    if any(":CPU:" not in device for device in devices):
        return _LANES_PER_ACCELERATOR * len(devices)
    return max(len(devices), len(os.sched_getaffinity(0)))


def sum_in_order(values: Iterable[Any], add: Callable[[Any, Any], Any]) -> Any:
    """Returns the sum from left to right, None of nothing."""
    total = None
    for value in values:
        total = value if total is None else add(total, value)
    return total
