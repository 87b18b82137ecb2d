"""Which devices TensorFlow has, and what to do for one that it lacks."""

import tensorflow as tf

from tff_agnostic.errors import UserError
from tff_agnostic.registry import Registry

_HINTS = {
    "GPU": (
        ': for NVIDIA GPUs, a driver and "pip install tensorflow[and-cuda]==2.14.*" in the '
        "environment make them visible"
    ),
    "TPU": ": TensorFlow sees a TPU only on its host, with a TensorFlow built for it",
    "CPU": "",
}


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
