"""Builders of options from values by flag, as commands build them."""

from typing import Any

from tff_agnostic.program.options.flags import build, option_flags
from tff_agnostic.runtimes.options import CohortOptions


def make_options(kind: type, **values: Any) -> Any:
    """Returns a class's options from values by flag: `make_options(FedAvg, client_epochs=2)`."""
    unknown = set(values) - {flag.name for flag in option_flags(kind)}
    assert not unknown, f"{kind.__name__} has no {', '.join(sorted(unknown))}"
    return build(kind, values)


def options_in_mode(client_mode: str, clients_in_step: int) -> CohortOptions:
    """Returns the cohort runtime's options; `clients_in_step` is for vectorised clients only."""
    limit = None if client_mode == "streamed" else clients_in_step
    return CohortOptions(client_mode=client_mode, max_clients_in_step=limit)
