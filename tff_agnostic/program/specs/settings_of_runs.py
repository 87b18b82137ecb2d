"""The settings that runs may have, of everything registered, and whose they are."""

import dataclasses
from collections.abc import Iterator

from tff_agnostic.aggregations.private.registry import PRIVACIES
from tff_agnostic.aggregations.registry import AGGREGATIONS
from tff_agnostic.algorithms.registry import ALGORITHMS
from tff_agnostic.program.specs.config import RunConfig
from tff_agnostic.settings import flag_of


def settings_of_runs() -> Iterator[tuple[str, str, type]]:
    """Yields (kind, name, settings) of everything registered that a run is made of."""
    for name, algorithm in ALGORITHMS.items():
        yield "algorithm", name, algorithm.options
    for name, aggregation in AGGREGATIONS.items():
        yield "aggregation", name, aggregation.options
    for name, privacy in PRIVACIES.items():
        yield "privacy", name, privacy.options


def without_effect(flag: str, config: RunConfig) -> str:
    """Returns why a setting that was given does nothing in a run, and what it needs."""
    owners: dict[str, list[str]] = {}
    for kind, name, options in settings_of_runs():
        if flag in (flag_of(field) for field in dataclasses.fields(options)):
            owners.setdefault(kind, []).append(name)
    for kind, names in owners.items():
        return (
            f"--{flag} has no effect with --{kind}={getattr(config, kind)}: it needs "
            f"--{kind}={' or '.join(names)}"
        )
    return f"--{flag} has no effect with --algorithm={config.algorithm}"
