"""What runs in a Ray worker: shards of a cohort, by traced functions that came as bytes.

Workers import TensorFlow but not TensorFlow Federated, which would take them seconds and memory.
"""

from __future__ import annotations

import collections
import itertools
import platform
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable

import numpy as np
import ray

import tff_agnostic
from tff_agnostic.errors import ExecutionError
from tff_agnostic.later import tf
from tff_agnostic.runtimes.devices import DEVICES, one_thread_per_operation, sum_in_order

# Training and evaluation, for two runs at a time.
_MAX_WORKS = 4

Arrays = Sequence[np.ndarray]


def versions() -> dict[str, str]:
    """Returns the versions in this process of what has to be the same everywhere."""
    return {
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "TensorFlow": tf.__version__,
        "tff_agnostic": tff_agnostic.__version__,
    }


class RayWorker:
    """An actor: runs shards, several at once if it is made with that concurrency.

    Args:
        device: Member of `devices.DEVICES`.
    """

    def __init__(self, device: str) -> None:
        one_thread_per_operation()
        self._devices = itertools.cycle(DEVICES[device]())
        self._works: collections.OrderedDict[str, Callable[..., Any]] = collections.OrderedDict()
        self._loading = threading.Lock()

    def versions(self) -> dict[str, str]:
        """Returns the versions of what this worker runs; see `versions`."""
        return versions()

    def run(
        self,
        work_id: str,
        packed: Sequence[Any],
        broadcast: Arrays,
        calls: Sequence[Arrays],
        num_summed: int,
    ) -> list[np.ndarray]:
        """Returns the sum of what a function returns for each call, in their order.

        What follows the values that are summed is what clients remember, of all calls one after
        the other.

        Args:
            work_id: Names the function; no two functions share a name.
            packed: A reference to its bytes, in a list, so that it is fetched once only.
            broadcast: The first arguments of every call.
            calls: The other arguments of each, at least one.
            num_summed: How many of the returned values are summed.

        Raises:
            ExecutionError: If a device is out of memory.
        """
        function = self._function(work_id, packed)
        try:
            with tf.device(next(self._devices)):
                shared = _tensors(broadcast)
                kept = []

                def summed() -> Iterator[list[tf.Tensor]]:
                    for inputs in calls:
                        output = function(*shared, *_tensors(inputs))
                        kept.append(output[num_summed:])
                        yield output[:num_summed]

                total = sum_in_order(summed(), lambda a, b: [x + y for x, y in zip(a, b)])
                return [
                    *(value.numpy() for value in total),
                    *(np.concatenate(columns) for columns in zip(*kept)),
                ]
        except tf.errors.ResourceExhaustedError as e:
            raise ExecutionError(
                "out of memory on a device of a Ray worker: lower --max_clients_in_step, "
                f"--client_batch_size or --max_examples: {e.message.splitlines()[0]}"
            ) from None

    def _function(self, work_id: str, packed: Sequence[Any]) -> Callable[..., Any]:
        with self._loading:
            if work_id not in self._works:
                self._works[work_id] = unpack(ray.get(packed[0]))
                if len(self._works) > _MAX_WORKS:
                    self._works.popitem(last=False)
            self._works.move_to_end(work_id)
            return self._works[work_id]


def _tensors(values: Arrays) -> list[Any]:
    return [tf.convert_to_tensor(value) for value in values]


def pack(traced: Any) -> dict[str, bytes]:
    """Returns the files of a SavedModel that holds a function.

    Args:
        traced: A concrete function without keyword arguments, variables or captured tensors.

    Returns:
        For `unpack`, which makes a function of the flat list of arguments to the flat list of
        results.
    """
    arguments, _ = traced.structured_input_signature
    specs = [tf.TensorSpec(spec.shape, spec.dtype) for spec in tf.nest.flatten(arguments)]

    def flat(*values: Any) -> list[Any]:
        results = traced(*tf.nest.pack_sequence_as(arguments, list(values)))
        flat_results: list[Any] = tf.nest.flatten(results)
        return flat_results

    module = tf.Module()
    module.run = tf.function(flat, input_signature=specs, autograph=False)
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(module, folder)
        files = [path for path in Path(folder).rglob("*") if path.is_file()]
        return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def unpack(files: Mapping[str, bytes]) -> Callable[..., Any]:
    """Returns the function that `pack` was given, on flat lists."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        module = tf.saved_model.load(folder)
    run = module.run
    # The function alone does not keep what it belongs to.
    run.module = module
    function: Callable[..., Any] = run
    return function
