"""The choice of devices, and errors that name an absent device."""

import pytest
import tensorflow as tf

from tests.support import golden
from tff_agnostic.runtimes.devices import DEVICES, one_thread_per_operation

_HINT = {
    "gpu": 'a driver and "pip install tensorflow[and-cuda]==2.14.*"',
    "tpu": "only on its host",
}


class _Logical:
    """A fake logical device."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.device_type = name.split(":")[1]


def _pretend(monkeypatch, *names: str) -> None:
    devices = [_Logical(name) for name in names]
    monkeypatch.setattr(
        tf.config,
        "list_logical_devices",
        lambda kind=None: [d for d in devices if kind in (None, d.device_type)],
    )


def test_cpu_is_always_available():
    assert DEVICES["cpu"]() == [d.name for d in tf.config.list_logical_devices("CPU")]
    assert len(DEVICES["cpu"]()) >= 1


def test_auto_selects_all_gpus_or_the_cpu(monkeypatch):
    cpu, gpus = "/device:CPU:0", [f"/device:GPU:{k}" for k in range(2)]
    _pretend(monkeypatch, cpu)
    assert DEVICES["auto"]() == [cpu]
    _pretend(monkeypatch, cpu, *gpus)
    assert DEVICES["auto"]() == DEVICES["gpu"]() == gpus
    assert DEVICES["cpu"]() == [cpu]
    # Auto never selects a TPU, which needs XLA.
    _pretend(monkeypatch, cpu, "/device:TPU:0")
    assert DEVICES["auto"]() == [cpu]
    assert DEVICES["tpu"]() == ["/device:TPU:0"]


@pytest.mark.parametrize("kind", ["gpu", "tpu"])
def test_absent_device_names_available_ones(monkeypatch, kind):
    _pretend(monkeypatch, "/device:CPU:0", "/device:CPU:1")
    message = golden.refusal(DEVICES[kind])
    assert message.startswith(
        f"device: expected a {kind.upper()} that TensorFlow sees, found only CPU: "
    )
    assert _HINT[kind] in message
    assert "\n" not in message


def test_late_thread_setting_is_ignored():
    tf.zeros([1])
    before = tf.config.threading.get_intra_op_parallelism_threads()
    one_thread_per_operation()
    assert tf.config.threading.get_intra_op_parallelism_threads() == before
