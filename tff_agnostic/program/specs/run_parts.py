"""The dataclasses of settings that a run is made of, from values by flag and back."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from tff_agnostic.algorithms.spec import AlgorithmSpec
from tff_agnostic.algorithms.user_algorithm import (
    algorithm_named,
    is_user_file,
    making_options_of,
)
from tff_agnostic.errors import UserError
from tff_agnostic.setting_flags import check_type, settings_in
from tff_agnostic.settings import flag_of, is_stored

# Metadata of a setting: what folders mean that were written before it existed.
_AS_BEFORE = "as_before"


def algorithm_of_flag(name: str) -> AlgorithmSpec:
    """Returns the algorithm that --algorithm names.

    Raises:
        UserError: If there is none; a user's file names itself.
    """
    try:
        return algorithm_named(name)
    except UserError as e:
        raise e if is_user_file(name) else UserError(f"--algorithm: {e}") from None


def algorithm_options(name: str, values: Mapping[str, Any]) -> Any:
    """Returns the settings of an algorithm; see `made_of`."""
    options = algorithm_of_flag(name).options
    with making_options_of(name):
        return made_of(options, values)


def made_of(kind: type, values: Mapping[str, Any]) -> Any:
    """Returns an instance of a dataclass of settings.

    Args:
        kind: The dataclass.
        values: Values by flag; others than its own are left alone.

    Raises:
        UserError: If one is out of range.
    """
    fields = {flag_of(field): field.name for field in dataclasses.fields(kind)}
    return kind(**{name: values[flag] for flag, name in fields.items() if flag in values})


def complete(kind: type, values: Mapping[str, Any], is_of_now: bool) -> dict[str, Any]:
    """Adds what an earlier release, without a setting, did.

    Args:
        kind: The dataclass of settings.
        values: Values by flag, as they were read from a file.
        is_of_now: Whether they were written by this release, which leaves nothing out.

    Raises:
        UserError: If a value is not of its setting's type.
        KeyError: If something is missing all the same.
    """
    all_values = dict(values)
    for setting in settings_in(kind):
        if not is_stored(setting.field):
            # Whatever a file says.
            all_values[setting.flag] = setting.field.default
            continue
        if setting.flag in values:
            check_type(setting, values[setting.flag])
            continue
        if is_of_now:
            raise KeyError(setting.flag)
        field = setting.field
        all_values[setting.flag] = field.metadata.get(_AS_BEFORE, field.default)
    return all_values


def by_flag(settings: Any) -> dict[str, Any]:
    """Returns the values of a dataclass of settings by flag, of those that folders keep."""
    return {
        flag_of(field): getattr(settings, field.name)
        for field in dataclasses.fields(settings)
        if is_stored(field)
    }
