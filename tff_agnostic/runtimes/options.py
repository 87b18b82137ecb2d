"""How a runtime executes: nothing here changes what is computed."""

import dataclasses
from typing import Optional

from tff_agnostic.runtimes.client_modes import CLIENT_MODES
from tff_agnostic.runtimes.devices import DEVICES
from tff_agnostic.settings import check_values, setting

_IN_PROCESS = ("runtime", ("cohort", "ray"))


@dataclasses.dataclass(frozen=True)
class RuntimeOptions:
    """Settings of runtimes.

    Every field is a flag of the same name; its help text is in the field's metadata.
    """

    device: str = setting(
        "auto",
        "What clients run on; auto is every TPU or else GPU that TensorFlow sees, or else the CPU.",
        choices=DEVICES,
        only_with=_IN_PROCESS,
    )
    client_mode: str = setting(
        "auto",
        "Whether many clients take each step together (vectorised, for small models) or run one "
        "after another (streamed).",
        choices=CLIENT_MODES,
        only_with=_IN_PROCESS,
    )
    max_clients_in_step: Optional[int] = setting(
        None,
        "The most clients that take a step together; if not given, what fits into 64 MB, at most "
        "256.",
        at_least=1,
        only_with=_IN_PROCESS,
    )
    lanes: Optional[int] = setting(
        None,
        "How many clients, or groups of them, run at once; if not given, one per processor or two "
        "per GPU.",
        at_least=1,
        only_with=("runtime", ("cohort",)),
    )
    xla: bool = setting(False, "Whether XLA compiles what clients do.", only_with=_IN_PROCESS)

    def __post_init__(self) -> None:
        """Raises a `UserError` that names the flag if a value is out of range."""
        check_values(self)
