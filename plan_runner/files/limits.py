"""What an export from a stranger may take at most."""

import dataclasses

from plan_runner.errors import PlanError
from plan_runner.isolation.bounds import Bounds

# More than a kernel counts in bytes is no limit that it can be told, and no machine has so much.
_MOST_MEMORY_GB = 1e6


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of one run of the runner; see the flags of the same names.

    Attributes:
        max_memory_gb: Memory of the process that reads the export and runs its graphs, in 10^9
            bytes.
        max_round_seconds: Wall clock of each step: reading the export, loading the plan, a round.
        max_records: Examples of a client.
        max_unpacked_mb: What an archive in the export holds once it is unpacked, in 10^6 bytes.
        max_manifest_mb: The manifest's size, in 10^6 bytes.
    """

    max_memory_gb: float = 2.0
    max_round_seconds: float = 600.0
    max_records: int = 1_000_000
    max_unpacked_mb: float = 500.0
    max_manifest_mb: float = 16.0

    @property
    def bounds(self) -> Bounds:
        """Those of the process."""
        return Bounds(self.max_memory_gb, self.max_round_seconds)

    def check(self) -> None:
        """Checks that each limit is one.

        Raises:
            PlanError: Naming the flag of the first that is none.
        """
        for field in dataclasses.fields(self):
            found = getattr(self, field.name)
            # NaN is not, either.
            if not found > 0:
                raise PlanError(f"--{field.name}: expected a number above 0, found {found}")
        if self.max_memory_gb > _MOST_MEMORY_GB:
            raise PlanError(
                f"--max_memory_gb: expected at most {_MOST_MEMORY_GB:g}, found {self.max_memory_gb}"
            )

    def check_manifest(self, size: int, where: str) -> None:
        """Checks the size of a manifest, before it is read.

        Raises:
            PlanError: If it is larger.
        """
        if size > self.max_manifest_mb * 1e6:
            raise PlanError(
                f"{where}: expected at most {self.max_manifest_mb:g} MB (--max_manifest_mb), found "
                f"{size / 1e6:.1f} MB"
            )


DEFAULT_LIMITS = Limits()
