"""Settings with their ranges, and settings without effect."""

import dataclasses
import math
from typing import Any, Optional

import pytest
from tff_agnostic.settings import (
    Settings,
    check_effective,
    flag_of,
    kind_of,
    part_of,
    setting,
)

from tests import golden
from tff_agnostic.errors import UserError
from tff_agnostic.registry import Registry
from tff_agnostic.runtimes.options import RuntimeOptions
from tff_agnostic.runtimes.registry import RUNTIMES

_ENGINES = Registry("engine", {"steam": 1, "diesel": 2, "electric": 3})


@dataclasses.dataclass(frozen=True)
class _Train(Settings):
    engine: str = setting("steam", "What pulls.", choices=_ENGINES)
    wagons: int = setting(3, "How many.", at_least=1)
    seats: Optional[int] = setting(None, "In all.", at_least=10, at_most=20)
    speed: float = setting(0.5, "Of light.", positive=True, below=1.0)
    coal: float = setting(1.0, "Per hour.", only_with=("engine", ("steam",)))
    noise: float = setting(1.0, "Per hour.", only_with=("engine", ("steam", "diesel")))
    name: str = setting("", "Painted on it.", flag="train_name")
    line: Optional[str] = setting(None, "File of its stations.", is_path=True)
    stops: Optional[tuple[float, ...]] = setting(None, "At these kilometres.")


@dataclasses.dataclass(frozen=True)
class _Express(_Train):
    """A train with a setting more."""

    dining: bool = setting(True, "Whether there is a dining car.")


def _error(**values: Any) -> str:
    return golden.refusal(_Train, **values)


def test_values_in_range_are_taken():
    assert _Train() == _Train("steam", 3, None, 0.5, 1.0, 1.0, "", None, None)
    _Train(engine="diesel", wagons=1, seats=10, speed=math.nextafter(1, 0), name="any")
    _Train(seats=20, speed=1.2e-38, coal=3.4e38, stops=(0.0, -3.4e38))


@golden.values
def test_a_value_out_of_range_is_told_with_its_flag(case):
    return _error(**case)


def test_a_choice_is_told_with_the_nearest_name():
    assert _error(engine="disel") == (
        "--engine: unknown engine 'disel': did you mean diesel? valid names: steam, diesel, "
        "electric"
    )


def _field(name: str) -> dataclasses.Field:
    return next(field for field in dataclasses.fields(_Train) if field.name == name)


def test_a_flag_is_called_as_the_field_unless_it_has_a_name_of_its_own():
    assert flag_of(_field("noise")) == "noise"
    assert flag_of(_field("name")) == "train_name"


def test_the_kind_of_a_setting_is_its_type_optional_or_not():
    kinds = {field.name: kind_of(_Train, field) for field in dataclasses.fields(_Train)}
    assert kinds == {
        **{"engine": str, "wagons": int, "seats": int, "speed": float, "coal": float},
        **{"noise": float, "name": str, "line": str, "stops": tuple},
    }


def test_what_is_inherited_can_be_had_alone():
    part = part_of(_Express(wagons=7, dining=False), _Train)
    assert type(part) is _Train
    assert part == _Train(wagons=7)


def test_a_setting_without_effect_is_refused_only_if_it_was_given():
    check_effective(_Train(engine="steam"), ["coal", "noise", "speed"])
    check_effective(_Train(engine="electric"), ["speed"])
    check_effective(_Train(engine="diesel"), ["noise"])
    assert golden.refusal(lambda: check_effective(_Train(engine="diesel"), ["coal"])) == (
        "--coal has no effect with --engine=diesel: it needs --engine=steam"
    )
    with pytest.raises(UserError, match=r"it needs --engine=steam or diesel$"):
        check_effective(_Train(engine="electric"), ["noise"])


def test_a_message_has_the_name_of_the_flag():
    @dataclasses.dataclass(frozen=True)
    class Ship(Settings):
        length: float = setting(1.0, "In metres.", flag="ship_length", positive=True)
        fuel: str = setting("oil", "What burns.", flag="ship_fuel")
        tank: float = setting(1.0, "In litres.", flag="ship_tank", only_with=("fuel", ("gas",)))

    with pytest.raises(UserError, match=r"^--ship_length: expected a positive number, found -1"):
        Ship(length=-1.0)
    with pytest.raises(UserError, match=r"^--ship_tank has no effect with --ship_fuel=oil: it "):
        check_effective(Ship(), ["tank"])


_OPTIONS = {field.name: field for field in dataclasses.fields(RuntimeOptions)}


@pytest.mark.parametrize("name", _OPTIONS)
def test_an_option_of_runtimes_is_one_of_runtimes_that_exist(name):
    metadata = _OPTIONS[name].metadata
    assert metadata["help"].endswith((".", "]"))
    runtimes = metadata["runtimes"]
    assert runtimes and set(runtimes) < set(RUNTIMES)
