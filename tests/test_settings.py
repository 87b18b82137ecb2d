"""Settings with their ranges, and settings without effect."""

import dataclasses
import math
from typing import Any, Optional

import pytest

from tff_agnostic import settings
from tff_agnostic.errors import UserError
from tff_agnostic.registry import Registry
from tff_agnostic.runtimes.options import RuntimeOptions
from tff_agnostic.runtimes.registry import RUNTIMES
from tff_agnostic.settings import setting

_ENGINES = Registry("engine", {"steam": 1, "diesel": 2, "electric": 3})


@dataclasses.dataclass(frozen=True)
class _Train:
    engine: str = setting("steam", "What pulls.", choices=_ENGINES)
    wagons: int = setting(3, "How many.", at_least=1)
    seats: Optional[int] = setting(None, "In all.", at_least=10)
    speed: float = setting(0.5, "Of light.", positive=True, below=1.0)
    coal: float = setting(1.0, "Per hour.", only_with=("engine", ("steam",)))
    noise: float = setting(1.0, "Per hour.", only_with=("engine", ("steam", "diesel")))
    name: str = setting("", "Painted on it.")

    def __post_init__(self) -> None:
        settings.check_values(self)


def _error(**values: Any) -> str:
    with pytest.raises(UserError) as error:
        _Train(**values)
    return str(error.value)


def test_values_in_range_are_taken():
    assert _Train() == _Train("steam", 3, None, 0.5, 1.0, 1.0, "")
    _Train(engine="diesel", wagons=1, seats=10, speed=math.nextafter(1, 0), name="any")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"wagons": 0}, "--wagons: expected at least 1, found 0"),
        ({"wagons": 2**31}, "--wagons: expected at most 2147483647, found 2147483648"),
        ({"seats": 9}, "--seats: expected at least 10, found 9"),
        ({"speed": 0.0}, "--speed: expected a positive number, found 0.0"),
        ({"speed": 1.0}, "--speed: expected less than 1.0, found 1.0"),
        ({"speed": math.nan}, "--speed: expected a finite number, found nan"),
        ({"coal": math.inf}, "--coal: expected a finite number, found inf"),
    ],
)
def test_a_value_out_of_range_is_told_with_its_flag(values, message):
    assert _error(**values) == message


def test_a_choice_is_told_with_the_nearest_name():
    assert _error(engine="disel") == (
        "--engine: unknown engine 'disel': did you mean diesel? valid names: steam, diesel, "
        "electric"
    )


def test_metadata_hold_the_help_text_and_the_ranges():
    (field,) = (field for field in dataclasses.fields(_Train) if field.name == "noise")
    assert field.default == 1.0
    assert dict(field.metadata) == {"help": "Per hour.", "only_with": ("engine", _STEAM_OR_DIESEL)}


_STEAM_OR_DIESEL = ("steam", "diesel")


def _check_effective(engine: str, *given: str) -> None:
    settings.check_effective(
        dataclasses.fields(_Train), {"engine": engine}, {name: 1.0 for name in given}
    )


def test_a_setting_without_effect_is_refused_only_if_it_was_given():
    _check_effective("steam", "coal", "noise", "speed")
    _check_effective("electric", "speed")
    _check_effective("diesel", "noise")
    with pytest.raises(UserError) as error:
        _check_effective("diesel", "coal")
    assert str(error.value) == (
        "--coal has no effect with --engine=diesel: it needs --engine=steam"
    )
    with pytest.raises(UserError, match=r"it needs --engine=steam or diesel$"):
        _check_effective("electric", "noise")


_OPTIONS = {field.name: field for field in dataclasses.fields(RuntimeOptions)}


@pytest.mark.parametrize("name", _OPTIONS)
def test_an_option_of_runtimes_is_one_of_runtimes_that_exist(name):
    metadata = _OPTIONS[name].metadata
    assert metadata["help"].endswith(".")
    other, values = metadata["only_with"]
    assert other == "runtime"
    assert values and set(values) < set(RUNTIMES)


def test_options_of_runtimes_are_checked():
    RuntimeOptions()
    with pytest.raises(UserError, match=r"^--lanes: expected at least 1, found 0$"):
        RuntimeOptions(lanes=0)
    with pytest.raises(UserError, match=r"^--client_mode: unknown client mode 'vectorized': did "):
        RuntimeOptions(client_mode="vectorized")
