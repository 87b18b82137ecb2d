"""Lanes: threads that run shards on devices, several at once, with results in the shards' order."""

import collections
import itertools
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Callable, TypeVar

import tensorflow as tf

Item = TypeVar("Item")
Result = TypeVar("Result")

# While a lane of a GPU waits for it, the other one prepares the next clients.
_LANES_PER_ACCELERATOR = 2


class Lanes:
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
