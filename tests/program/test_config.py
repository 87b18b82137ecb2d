"""The configuration of a run: ranges, help texts, and settings without effect."""

import dataclasses
import math
from typing import Any

import pytest

from tff_agnostic.errors import UserError
from tff_agnostic.program.config import RunConfig, check_effective, config_names
from tff_agnostic.tasks.registry import TASKS

_FIELDS = {field.name: field for field in dataclasses.fields(RunConfig)}
_INTEGERS = sorted(name for name, field in _FIELDS.items() if field.type is int)
_FLOATS = sorted(name for name, field in _FIELDS.items() if field.type is float)


def _error(**settings: Any) -> str:
    with pytest.raises(UserError) as error:
        RunConfig(**settings)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_every_field_has_a_help_text():
    assert config_names() == tuple(_FIELDS)
    for name, field in _FIELDS.items():
        assert field.metadata["help"].endswith("."), name


def test_what_a_field_only_works_with_exists():
    for field in _FIELDS.values():
        if "only_with" in field.metadata:
            other, values = field.metadata["only_with"]
            assert set(values) <= set(_FIELDS[other].metadata["choices"])


def test_the_defaults_are_in_range():
    RunConfig()


@pytest.mark.parametrize("name", _INTEGERS)
def test_integers_below_their_range(name):
    smallest = _FIELDS[name].metadata["at_least"]
    expected = f"--{name}: expected at least {smallest}, found {smallest - 1}"
    assert _error(**{name: smallest - 1}) == expected


@pytest.mark.parametrize("name", _INTEGERS)
def test_integers_beyond_what_computations_count_in(name):
    expected = f"--{name}: expected at most 2147483647, found 2147483648"
    assert _error(**{name: 2**31}) == expected


@pytest.mark.parametrize("name", [*_FLOATS, "secure_max_beta"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite(name, value):
    assert _error(**{name: value}) == f"--{name}: expected a finite number, found {value}"


@pytest.mark.parametrize("name", [*sorted(set(_FLOATS) - {"server_momentum"}), "secure_max_beta"])
@pytest.mark.parametrize("value", [0.0, -0.5])
def test_numbers_that_have_to_be_positive(name, value):
    assert _error(**{name: value}) == f"--{name}: expected a positive number, found {value}"


def test_the_range_of_momentum():
    RunConfig(server_momentum=0.0)
    assert _error(server_momentum=1.0) == "--server_momentum: expected less than 1.0, found 1.0"
    assert _error(server_momentum=-0.1) == "--server_momentum: expected at least 0.0, found -0.1"


def test_the_range_of_bits():
    RunConfig(secure_bits=40)
    assert _error(secure_bits=41) == "--secure_bits: expected less than 41, found 41"


@pytest.mark.parametrize(
    "name", sorted(name for name, field in _FIELDS.items() if "choices" in field.metadata)
)
def test_an_unknown_choice_is_told_with_the_nearest(name):
    valid = next(iter(_FIELDS[name].metadata["choices"]))
    message = _error(**{name: valid[:-1] + "x"})
    assert message.startswith(f"--{name}: unknown ")
    assert f"did you mean {valid}" in message
    assert f"valid names: {', '.join(_FIELDS[name].metadata['choices'])}" in message


def test_a_choice_that_resembles_none():
    assert _error(runtime="zzz") == "--runtime: unknown runtime 'zzz': valid names: " + ", ".join(
        _FIELDS["runtime"].metadata["choices"]
    )


@pytest.mark.parametrize(
    "name", sorted(name for name, field in _FIELDS.items() if "only_with" in field.metadata)
)
def test_a_setting_without_effect_is_refused(name):
    other, values = _FIELDS[name].metadata["only_with"]
    useless = next(v for v in _FIELDS[other].metadata["choices"] if v not in values)
    useful = {other: values[0]}
    given = {name: getattr(RunConfig(), name)}
    check_effective(RunConfig(**useful), given)
    check_effective(RunConfig(**{other: useless}), {})
    with pytest.raises(UserError) as error:
        check_effective(RunConfig(**{other: useless}), given)
    assert str(error.value) == (
        f"--{name} has no effect with --{other}={useless}: it needs --{other}={' or '.join(values)}"
    )


def test_the_target_domain_is_looked_up():
    config = RunConfig(algorithm="fed_avg_target_only", target_domain="tablet")
    params = config.algorithm_params(("phone", "tablet"), (1.0, 1.0))
    assert params.target_domain == 1
    assert RunConfig().algorithm_params(("phone", "tablet"), (1.0, 1.0)).target_domain is None


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (
            None,
            "--target_domain: expected one of phone, tablet with --algorithm=fed_avg_target_only, "
            "found none",
        ),
        (
            "tablett",
            "unknown domain in --target_domain 'tablett': did you mean tablet? valid names: phone, "
            "tablet",
        ),
    ],
)
def test_a_target_domain_that_is_missing_or_unknown(target, message):
    config = RunConfig(algorithm="fed_avg_target_only", target_domain=target)
    with pytest.raises(UserError) as error:
        config.algorithm_params(("phone", "tablet"), (1.0, 1.0))
    assert str(error.value) == message


def test_initial_counts_are_the_expected_ones_unless_given():
    def counts(**settings: Any) -> Any:
        params = RunConfig(**settings).algorithm_params(("a", "b"), (3.0, 4.0))
        return params.domain_weights.initial_counts

    assert counts() == (3.0, 4.0)
    assert counts(initial_domain_counts=(1.0, 2.0)) == (1.0, 2.0)
    # Not taken for "not given": the algorithm refuses it.
    assert counts(initial_domain_counts=()) == ()


def test_the_aggregation_has_its_bounds():
    config = RunConfig(aggregation="secure", secure_max_examples=7, secure_bits=20)
    aggregation = config.build_aggregation()
    assert aggregation.name == "secure"
    assert (aggregation.bounds.max_examples, aggregation.bounds.bits) == (7, 20)


def test_every_setting_that_a_task_sets_is_one_of_a_run():
    for spec in TASKS.values():
        settings = [spec.defaults, *spec.algorithm_defaults.values()]
        assert set().union(*settings) <= set(_FIELDS)
