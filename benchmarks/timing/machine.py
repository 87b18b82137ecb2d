"""Description of the machine that runs a benchmark."""

import dataclasses
import os
import platform
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Machine:
    """Properties of a machine that affect measurements.

    Attributes:
        cpu: Model name of the processor.
        cores: Number of logical processors that this process may use.
        memory_bytes: Size of the main memory.
        system: Name of the operating system.
        python: Version of the Python that runs the benchmark.
    """

    cpu: str
    cores: int
    memory_bytes: int
    system: str
    python: str

    @staticmethod
    def here() -> "Machine":
        """Returns the description of the machine that runs this process."""
        return Machine(
            cpu=_field(Path("/proc/cpuinfo"), "model name") or platform.machine(),
            cores=len(os.sched_getaffinity(0)),
            memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
            system=platform.platform(aliased=True),
            python=platform.python_version(),
        )

    def __str__(self) -> str:
        gigabytes = self.memory_bytes / 1e9
        return f"{self.cpu}, {self.cores} cores, {gigabytes:.0f} GB, CPython {self.python}"


def _field(path: Path, name: str) -> str:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""
