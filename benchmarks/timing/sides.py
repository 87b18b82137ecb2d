"""Specifications of the sides that benchmarks measure: this package's algorithms and the peers."""

import dataclasses
import sys
from pathlib import Path
from typing import Optional

from benchmarks.timing.environments import BENCHMARKS, peer_python
from benchmarks.timing.workloads import Workload
from tff_agnostic.base.registry import Registry
from tff_agnostic.runtimes.devices import DEVICES
from tff_agnostic.runtimes.registry import RUNTIMES

_OWN_SIDE = "benchmarks.timing.own_side"
_PRODUCTS_SIDE = "benchmarks.timing.products_side"


@dataclasses.dataclass(frozen=True)
class SideSpec:
    """One simulator with one algorithm.

    Attributes:
        title: Name of the side in tables.
        script: Name of the side's script in benchmarks/peers; None to run `module`.
        module: Module to run if `script` is None.
        environment: Name of the side's Python environment; None for this process's environment.
        algorithm: Algorithm of the side, as NAME or NAME:SETTING=VALUE.
    """

    title: str
    script: Optional[str] = None
    module: str = _OWN_SIDE
    environment: Optional[str] = None
    algorithm: str = ""
    runtime: str = ""
    device: str = "cpu"
    client_mode: str = "auto"

    def command(self, workload: Workload) -> list[str]:
        """Returns the side's command line.

        Raises:
            SideError: The side's environment cannot be created.
        """
        python = Path(sys.executable) if self.environment is None else peer_python(self.environment)
        program = ["-m", self.module] if self.script is None else [self._script_path(self.script)]
        return [
            str(python),
            *program,
            f"--workload={workload.to_json()}",
            f"--algorithm={self.algorithm}",
            f"--runtime={self.runtime}",
            f"--device={self.device}",
            f"--client_mode={self.client_mode}",
        ]

    @staticmethod
    def _script_path(script: str) -> str:
        return str(BENCHMARKS / "peers" / script)


PEERS: Registry[SideSpec] = Registry(
    "peer",
    {
        "fedjax_agnostic": SideSpec(
            title="FedJAX agnostic_fed_avg",
            script="fedjax_side.py",
            environment="fedjax",
            algorithm="agnostic_fed_avg",
        ),
        "fedjax": SideSpec(
            title="FedJAX fed_avg",
            script="fedjax_side.py",
            environment="fedjax",
            algorithm="fed_avg",
        ),
        "tff": SideSpec(title="TFF build_weighted_fed_avg", script="tff_side.py"),
        "pfl": SideSpec(title="pfl FederatedAveraging", script="pfl_side.py", environment="pfl"),
        "flower": SideSpec(title="Flower FedAvg", script="flower_side.py", environment="flower"),
    },
)

# Title of the baseline side.
OURS = "AgnosticFedAvg"


def own_sides(runtime: str, device: str = "cpu") -> list[SideSpec]:
    """Returns this package's sides; the first side is the baseline.

    On an accelerator, AgnosticFedAvg also runs in client mode "streamed", and on the CPU.
    """
    _ = RUNTIMES[runtime], DEVICES[device]
    ours = SideSpec(title=OURS, algorithm="agnostic_fed_avg", runtime=runtime, device=device)
    one_pass = dataclasses.replace(
        ours,
        title=f"{OURS}, one pass",
        algorithm="agnostic_fed_avg:measure_losses=while_training",
    )
    fed_avg = dataclasses.replace(ours, title="FedAvg (ours)", algorithm="fed_avg")
    if device == "cpu":
        return [ours, one_pass, fed_avg]
    return [
        ours,
        one_pass,
        fed_avg,
        dataclasses.replace(ours, title=f"{OURS}, streamed", client_mode="streamed"),
        dataclasses.replace(ours, title=f"{OURS} on the CPU", device="cpu"),
    ]


def products_side() -> SideSpec:
    """Returns the side that only computes the matrix products of AgnosticFedAvg."""
    return SideSpec(title="matrix products alone", module=_PRODUCTS_SIDE)
