"""Options from values by flag, as a command makes them."""

from typing import Any

from tff_agnostic.program.options.flags import build, flags_of


def make_options(kind: type, **values: Any) -> Any:
    """Returns options of a class with values by flag: `make_options(FedAvg, client_epochs=2)`."""
    unknown = set(values) - {flag.name for flag in flags_of(kind)}
    assert not unknown, f"{kind.__name__} has no {', '.join(sorted(unknown))}"
    return build(kind, values)
