"""The settings of runs: ranges, help texts, and settings without effect, whoever has them."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import pytest

from tests import golden
from tff_agnostic.aggregations.aggregation import ClientLimits
from tff_agnostic.run.options import RunConfig, settings_of_runs
from tff_agnostic.settings import check_effective, flag_of, kind_of
from tff_agnostic.tasks.registry import TASKS

_PARTS = [RunConfig, *(options for _, _, options in settings_of_runs())]


def _settings() -> Iterator[tuple[type, dataclasses.Field]]:
    """Yields every setting once, with a dataclass that has it."""
    seen: set[str] = set()
    for options in _PARTS:
        for field in dataclasses.fields(options):
            if flag_of(field) not in seen:
                seen.add(flag_of(field))
                yield options, field


_BY_FLAG = {flag_of(field): (options, field) for options, field in _settings()}
_INTEGERS = [flag for flag, (options, field) in _BY_FLAG.items() if kind_of(options, field) is int]
_FLOATS = [flag for flag, (options, field) in _BY_FLAG.items() if kind_of(options, field) is float]


def _with(flag: str, metadata: str) -> bool:
    return metadata in _BY_FLAG[flag][1].metadata


def _made(flag: str, value: Any, **others: Any) -> Any:
    options, field = _BY_FLAG[flag]
    return options(**{field.name: value, **others})


def _error(flag: str, value: Any) -> str:
    return golden.refusal(_made, flag, value)


@pytest.mark.parametrize("flag", _BY_FLAG)
def test_every_setting_has_a_help_text_and_a_type_that_flags_can_have(flag):
    options, field = _BY_FLAG[flag]
    assert field.metadata["help"].endswith(".")
    assert kind_of(options, field) in (bool, int, float, str, tuple)


def test_a_setting_that_several_have_means_the_same_everywhere():
    for options in _PARTS:
        for field in dataclasses.fields(options):
            known_options, known = _BY_FLAG[flag_of(field)]
            assert kind_of(options, field) is kind_of(known_options, known), flag_of(field)
            assert field.metadata["help"] == known.metadata["help"], flag_of(field)
            assert field.default == known.default, flag_of(field)


def test_runs_algorithms_and_aggregations_share_no_setting_but_the_limits_of_clients():
    owners: dict[str, set[str]] = {}
    limits = {flag_of(field) for field in dataclasses.fields(ClientLimits)}
    for kind, _, options in [("run", "", RunConfig), *settings_of_runs()]:
        for field in dataclasses.fields(options):
            if flag_of(field) not in limits:
                owners.setdefault(flag_of(field), set()).add(kind)
    assert {flag: kinds for flag, kinds in owners.items() if len(kinds) > 1} == {}


@pytest.mark.parametrize("flag", [f for f in _BY_FLAG if _with(f, "only_with")])
def test_what_a_setting_only_works_with_exists(flag):
    options, field = _BY_FLAG[flag]
    other, values = field.metadata["only_with"]
    assert set(values) <= set(_choices(options, other))


def _choices(options, name):
    """Returns what a setting may be; without choices it is a switch."""
    field = next(f for f in dataclasses.fields(options) if f.name == name)
    return field.metadata.get("choices", (False, True))


@pytest.mark.parametrize("options", _PARTS)
def test_the_defaults_are_in_range(options):
    options()


@pytest.mark.parametrize("flag", _INTEGERS)
def test_integers_below_their_range(flag):
    smallest = _BY_FLAG[flag][1].metadata["at_least"]
    expected = f"--{flag}: expected at least {smallest}, found {smallest - 1}"
    assert _error(flag, smallest - 1) == expected


@pytest.mark.parametrize("flag", _INTEGERS)
def test_integers_beyond_what_computations_count_in(flag):
    assert _error(flag, 2**31) == f"--{flag}: expected at most 2147483647, found 2147483648"


@pytest.mark.parametrize("flag", _FLOATS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite(flag, value):
    assert _error(flag, value) == f"--{flag}: expected a finite number, found {value}"


@pytest.mark.parametrize("flag", _FLOATS)
def test_numbers_below_their_range(flag):
    metadata = _BY_FLAG[flag][1].metadata
    if metadata.get("positive"):
        assert _error(flag, 0.0) == f"--{flag}: expected a positive number, found 0.0"
        assert _error(flag, -0.5) == f"--{flag}: expected a positive number, found -0.5"
    elif "at_least" in metadata:
        assert _error(flag, -0.5) == f"--{flag}: expected at least 0.0, found -0.5"
        _made(flag, 0.0)
    elif "zero_or_at_least" in metadata:
        least = metadata["zero_or_at_least"]
        for wrong in (-0.5, least / 2):
            expected = f"--{flag}: expected 0 or at least {least}, found {wrong}"
            assert _error(flag, wrong) == expected
        _made(flag, least)
    else:
        _made(flag, -0.5)


def test_ranges_with_an_upper_end():
    assert {flag for flag in _BY_FLAG if _with(flag, "below")} == {
        *("server_momentum", "domain_loss_share", "delta", "update_share", "uniform_share"),
        "evaluation_clients_share",
    }
    _made("server_momentum", 0.0)
    assert _error("server_momentum", 1.0) == "--server_momentum: expected less than 1.0, found 1.0"
    _made("secure_bits", 40)
    assert _error("secure_bits", 41) == "--secure_bits: expected at most 40, found 41"


@pytest.mark.parametrize("flag", [f for f in _BY_FLAG if _with(f, "choices")])
def test_an_unknown_choice_is_told_with_the_nearest(flag):
    choices = _BY_FLAG[flag][1].metadata["choices"]
    valid = next(iter(choices))
    message = _error(flag, valid[:-1] + "_")
    assert message.startswith(f"--{flag}: unknown ")
    assert f"did you mean {valid}" in message
    assert f"valid names: {', '.join(choices)}" in message


def test_a_choice_that_resembles_none():
    choices = _BY_FLAG["runtime"][1].metadata["choices"]
    expected = "--runtime: unknown runtime 'zzz': valid names: " + ", ".join(choices)
    assert _error("runtime", "zzz") == expected


@pytest.mark.parametrize("flag", [f for f in _BY_FLAG if _with(f, "only_with")])
def test_a_setting_without_effect_is_refused(flag):
    options, field = _BY_FLAG[flag]
    other, values = field.metadata["only_with"]
    useless = next(choice for choice in _choices(options, other) if choice not in values)
    check_effective(_made(flag, field.default, **{other: values[0]}), [field.name])
    check_effective(_made(flag, field.default, **{other: useless}), [])
    assert golden.refusal(
        lambda: check_effective(_made(flag, field.default, **{other: useless}), [field.name])
    ) == (
        f"--{flag} has no effect with --{other}={useless}: it needs --{other}="
        f"{' or '.join(map(str, values))}"
    )


def test_every_setting_that_a_task_sets_is_one_of_a_run():
    for spec in TASKS.values():
        settings = [spec.defaults, *spec.algorithm_defaults.values()]
        assert set().union(*settings) <= set(_BY_FLAG)
