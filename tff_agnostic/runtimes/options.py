"""Options of runtimes: how to execute rounds. Options affect only the last bits of results."""

from __future__ import annotations

import dataclasses
import importlib.metadata
from typing import Annotated, Any, Optional

from tff_agnostic.base.options import OneOf, Options, Within
from tff_agnostic.runtimes.client_work import CLIENT_MODES
from tff_agnostic.runtimes.devices import DEVICES

# Maximum number of lanes. Each lane is a thread, and many systems cannot start tens of thousands.
_MAX_LANES = 1024
TENSORFLOW = "tensorflow"
"""Name of the release in `ExecutionOptions.execution`; it is not a flag."""
LOCAL, AUTO = "local", "auto"
"""Values of `RayOptions.ray_address`, apart from addresses."""


@dataclasses.dataclass(frozen=True)
class ExecutionOptions(Options):
    """Execution options that may change the last bits of results.

    Attributes:
        client_mode: Whether clients run as one batch (vectorised) or one after another (streamed);
            auto vectorises where it is faster, on CPUs only for small models.
        max_clients_in_step: Maximum number of vectorised clients in one batch. [as many as fit into
            64 MB, or into 2 GB of an accelerator, at most 512]
        xla: Whether XLA compiles the client work; clients are then streamed.
    """

    client_mode: Annotated[str, OneOf(CLIENT_MODES)] = "auto"
    max_clients_in_step: Optional[Annotated[int, Within(least=1)]] = None
    xla: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.xla and self.client_mode == "vectorised":
            raise self.error("client_mode", "auto or streamed with xla")
        if self.max_clients_in_step and (self.xla or self.client_mode == "streamed"):
            raise self.error("max_clients_in_step", "no value with xla or streamed clients")

    def execution(self) -> dict[str, Any]:
        """Returns options that may change the last bits of results, and TensorFlow's release."""
        major, minor, *_ = importlib.metadata.version(TENSORFLOW).split(".")
        values = {field.name: getattr(self, field.name) for field in _EXECUTION}
        return {**values, TENSORFLOW: f"{major}.{minor}"}


_EXECUTION = dataclasses.fields(ExecutionOptions)


@dataclasses.dataclass(frozen=True)
class CohortOptions(ExecutionOptions):
    """Options of the cohort runtime, which runs clients in this process.

    Attributes:
        device: Device of clients; auto takes all GPUs that TensorFlow sees, or else the CPU.
        lanes: Number of clients, or groups of clients, that run concurrently. [one per processor or
            two per GPU]
    """

    device: Annotated[str, OneOf(DEVICES)] = "auto"
    lanes: Optional[Annotated[int, Within(least=1, most=_MAX_LANES)]] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.device == "tpu" and not self.xla:
            raise self.error("device", "auto, cpu or gpu without xla")


@dataclasses.dataclass(frozen=True)
class RayOptions(ExecutionOptions):
    """Options of the Ray runtime.

    Attributes:
        ray_address: Address of the Ray cluster that runs clients. local starts a cluster for this
            command, on this machine's loopback interface; auto uses the cluster in RAY_ADDRESS, or
            else the cluster that this machine belongs to; HOST:PORT uses the cluster at this
            address.
        num_workers: Number of Ray workers, at most one per client of a round; by default as many as
            resources allow. It does not change the results.
        cpus_per_worker: Number of CPUs per Ray worker, and of clients that it runs concurrently.
            With a fraction, workers share a CPU.
        gpus_per_worker: Number of GPUs per Ray worker; if above 0, its clients run on GPUs. With a
            fraction, workers share a GPU.
    """

    ray_address: str = LOCAL
    num_workers: Optional[Annotated[int, Within(least=1)]] = None
    cpus_per_worker: Annotated[float, Within(above=0)] = 1.0
    gpus_per_worker: Annotated[float, Within(least=0.0)] = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        host, _, port = self.ray_address.rpartition(":")
        is_address = bool(host) and "/" not in host and port.isdigit()
        if not is_address and self.ray_address not in (LOCAL, AUTO):
            raise self.error("ray_address", "local, auto or HOST:PORT")
