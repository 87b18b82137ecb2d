"""Settings: fields of frozen dataclasses that become flags, with their ranges in the metadata."""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

from tff_agnostic.errors import UserError
from tff_agnostic.registry import Registry

# Computations count in int32.
_MAX_INT = 2**31 - 1


def setting(default: Any, help_: str, **metadata: Any) -> Any:
    """Declares a field.

    Metadata: `choices` (a registry), `at_least`, `positive`, `below` (an exclusive upper limit),
    and `only_with` (another setting and the values with which this one has an effect).
    """
    return dataclasses.field(default=default, metadata={"help": help_, **metadata})


def check_values(settings: Any) -> None:
    """Raises a `UserError` that names the flag if a value of a dataclass is out of range."""
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if value is not None:
            _check_value(f"--{field.name}", value, field.metadata)


def check_effective(
    fields: Iterable[dataclasses.Field], values: Mapping[str, Any], given: Mapping[str, Any]
) -> None:
    """Refuses settings that were given but have no effect.

    Args:
        fields: Fields that may have an `only_with`.
        values: The values of all settings.
        given: The settings that the user gave.

    Raises:
        UserError: Naming the first such flag and what it needs.
    """
    for field in fields:
        only_with = field.metadata.get("only_with")
        if only_with is None or field.name not in given:
            continue
        other, wanted = only_with
        if values[other] not in wanted:
            raise UserError(
                f"--{field.name} has no effect with --{other}={values[other]}: it needs "
                f"--{other}={' or '.join(wanted)}"
            )


def _check_value(flag: str, value: Any, metadata: Mapping[str, Any]) -> None:
    if "choices" in metadata:
        choices: Registry = metadata["choices"]
        try:
            _ = choices[value]
        except UserError as e:
            raise UserError(f"{flag}: {e}") from None
    if isinstance(value, int) and value > _MAX_INT:
        raise UserError(f"{flag}: expected at most {_MAX_INT}, found {value}")
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{flag}: expected a finite number, found {value}")
    if metadata.get("positive") and value <= 0:
        raise UserError(f"{flag}: expected a positive number, found {value}")
    if "at_least" in metadata and value < metadata["at_least"]:
        raise UserError(f"{flag}: expected at least {metadata['at_least']}, found {value}")
    if "below" in metadata and value >= metadata["below"]:
        raise UserError(f"{flag}: expected less than {metadata['below']}, found {value}")
