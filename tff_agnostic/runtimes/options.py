"""How a runtime executes: nothing here changes what is computed."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import types
from collections.abc import Mapping
from typing import Annotated, Any, Optional

from tff_agnostic.base.options import OneOf, Options, Within
from tff_agnostic.errors import UserError
from tff_agnostic.runtimes.client_work import CLIENT_MODES
from tff_agnostic.runtimes.devices import DEVICES

_IN_PROCESS = ("cohort", "ray")
_ON_RAY = ("ray",)
# Each is a thread: systems refuse to start tens of thousands, in the middle of a run.
_MAX_LANES = 1024
LOCAL, AUTO = "local", "auto"
TENSORFLOW = "tensorflow"
"""Name of the release in `RuntimeOptions.execution`; it is no flag."""
_OF_LAST_BITS = ("client_mode", "max_clients_in_step", "xla")
# Runtimes that have a use for an option.
RUNTIMES_OF: Mapping[str, tuple[str, ...]] = {
    "device": ("cohort",),
    "client_mode": _IN_PROCESS,
    "max_clients_in_step": _IN_PROCESS,
    "lanes": ("cohort",),
    "xla": _IN_PROCESS,
    "ray_address": _ON_RAY,
    "num_workers": _ON_RAY,
    "cpus_per_worker": _ON_RAY,
    "gpus_per_worker": _ON_RAY,
}


@dataclasses.dataclass(frozen=True)
class RuntimeOptions(Options):
    """How rounds are executed.

    Attributes:
        device: Device of clients; auto takes all GPUs that TensorFlow sees, or else the CPU.
        client_mode: Whether many clients take each step together (vectorised; on CPUs for small
            models) or run one after another (streamed).
        max_clients_in_step: Most clients that take a step together. [what fits into 64 MB, or into
            2 GB of an accelerator, at most 512]
        lanes: Clients, or groups of clients, that run at once. [one per processor or two per GPU]
        xla: Whether XLA compiles what clients do, which are then streamed.
        ray_address: Which Ray runs clients: local starts one for this command, on this machine's
            loopback interface; auto is the cluster that this machine belongs to; HOST:PORT names
            one.
        num_workers: How many Ray workers, at most one per client of a round; if not given, as many
            as there is room for. No number of them changes the results.
        cpus_per_worker: CPUs of a Ray worker, which runs as many clients at once; a fraction lets
            workers share.
        gpus_per_worker: GPUs of a Ray worker, which runs its clients there; a fraction lets workers
            share.
    """

    device: Annotated[str, OneOf(DEVICES)] = "auto"
    client_mode: Annotated[str, OneOf(CLIENT_MODES)] = "auto"
    max_clients_in_step: Optional[Annotated[int, Within(least=1)]] = None
    lanes: Optional[Annotated[int, Within(least=1, most=_MAX_LANES)]] = None
    xla: bool = False
    ray_address: str = "local"
    num_workers: Optional[Annotated[int, Within(least=1)]] = None
    cpus_per_worker: Annotated[float, Within(above=0)] = 1.0
    gpus_per_worker: Annotated[float, Within(least=0.0)] = 0.0

    def execution(self) -> dict[str, Any]:
        """Returns what may change the last bits of numbers: settings, and TensorFlow's release."""
        major, minor, *_ = importlib.metadata.version(TENSORFLOW).split(".")
        settings = {name: getattr(self, name) for name in _OF_LAST_BITS}
        return {**settings, TENSORFLOW: f"{major}.{minor}"}


def options_of(
    runtime: str,
    given: Mapping[str, Any],
    before: Mapping[str, Any] = types.MappingProxyType({}),
) -> RuntimeOptions:
    """Returns the options that a user gives.

    Args:
        runtime: Name of the runtime that they are for.
        given: Values by name.
        before: How a run was executed until now, if it goes on: see `Runtime.execution`. What of it
            may change last bits stays as it was unless something of that is given.
    """
    names = [name for name in _OF_LAST_BITS if name in before]
    kept = {n: before[n] for n in names if runtime in RUNTIMES_OF[n]}
    options = RuntimeOptions(**({} if {*names} & {*given} else kept), **given)
    check_options(options, runtime, given)
    return options


def check_options(options: RuntimeOptions, runtime: str, given: Mapping[str, Any]) -> None:
    """Refuses options that were given and have no effect, or cannot go together.

    Args:
        options: All of them.
        runtime: Name of the runtime that they are for.
        given: Those that the user gave.
    """
    for name, wanted in RUNTIMES_OF.items():
        if name in given and runtime not in wanted:
            raise UserError(
                f"--{name} has no effect with --runtime={runtime}: it needs "
                f"--runtime={' or '.join(wanted)}"
            )
    if options.xla and options.client_mode == "vectorised":
        raise UserError("--client_mode=vectorised: XLA compiles streamed clients only")
    if options.max_clients_in_step and (options.xla or options.client_mode == "streamed"):
        streamed = "--xla" if options.xla else "--client_mode=streamed"
        raise UserError(f"--max_clients_in_step has no effect with {streamed}")
    if options.device == "tpu" and not options.xla:
        raise UserError("--device=tpu: expected --xla with it, without which no TPU runs")
