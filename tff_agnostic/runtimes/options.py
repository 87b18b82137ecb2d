"""How a runtime executes: nothing here changes what is computed."""

import dataclasses
from typing import Optional


@dataclasses.dataclass(frozen=True)
class RuntimeOptions:
    """Settings of runtimes; each has an effect on some of them only.

    Attributes:
        device: Member of `devices.DEVICES`.
        client_mode: Member of `cohort.CLIENT_MODES`.
        max_clients_in_step: The most clients of a vectorised group; None is what fits in memory.
        lanes: How many clients or groups run at once; None is one per processor, or two per
            accelerator.
        xla: Whether XLA compiles what clients do.
    """

    device: str = "auto"
    client_mode: str = "auto"
    max_clients_in_step: Optional[int] = None
    lanes: Optional[int] = None
    xla: bool = False
