"""Option classes: annotations of fields, errors, and checks across several fields."""

import dataclasses
import math
from pathlib import Path
from typing import Annotated, Literal, Optional, Union

import pytest

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.options import OneOf, OptionError, Options, Verbatim, Within
from tff_agnostic.base.registry import Registry

_FUELS = Registry("fuel", {"coal": 1, "diesel": 2})


@dataclasses.dataclass(frozen=True)
class _Steam(Options):
    pressure: Annotated[float, Within(above=0)] = 10.0


@dataclasses.dataclass(frozen=True)
class _Electric(Options):
    pass


@dataclasses.dataclass(frozen=True)
class _Wagon(Options):
    seats: Annotated[int, Within(least=1, most=80)] = 40


@dataclasses.dataclass(frozen=True)
class _Train(Options):
    is_express: bool = False
    wagons: int = 3
    length: float = 1.0
    name: str = "local"
    timetable: Path = Path("timetable.json")
    stops: tuple[float, ...] = (0.0, 2.5)
    gauge: Literal["narrow", "standard"] = "standard"
    speed: Annotated[float, Within(least=1, below=300)] = 80.0
    brake: Annotated[float, Within(above=0.5, most=1, or_zero=True)] = 0.0
    grades: Annotated[tuple[float, ...], Within(least=0, most=1)] = ()
    fuel: Annotated[str, OneOf(_FUELS)] = "coal"
    dining_seats: Optional[Annotated[int, Within(least=1)]] = None
    wagon: _Wagon = _Wagon()
    engine: Union[_Steam, _Electric] = _Steam()
    crew: Union[tuple[int, ...], str, None] = None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("is_express", True),
        *(("wagons", value) for value in (-5, 0, 2**31 - 1)),
        *(("length", value) for value in (0.0, -3.4e38, 1.2e-38, 7)),
        ("name", ""),
        ("timetable", Path("/a/b")),
        *(("stops", value) for value in ((), (1.0,), (1, 2))),
        ("gauge", "narrow"),
        *(("speed", value) for value in (1, math.nextafter(300, 0))),
        *(("brake", value) for value in (0, math.nextafter(0.5, 1), 1)),
        *(("grades", value) for value in ((), (0.0, 1.0))),
        ("fuel", "diesel"),
        *(("dining_seats", value) for value in (None, 1)),
        ("wagon", _Wagon(seats=80)),
        *(("engine", value) for value in (_Steam(2.0), _Electric())),
        *(("crew", value) for value in (None, (1, 2), "all")),
    ],
)
def test_options_keep_valid_values(field, value):
    assert getattr(_Train(**{field: value}), field) == value


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("is_express", 1, "true or false"),
        ("is_express", "true", "true or false"),
        ("wagons", 3.0, "a whole number"),
        ("wagons", True, "a whole number"),
        ("wagons", 2**31, "at most 2147483647"),
        ("length", "1.0", "a number"),
        ("length", math.nan, "a finite number"),
        ("length", 3.5e38, "at most 3.4028235e+38 in size, in the float32 of rounds"),
        ("length", -1e-38, "0 or at least 1.1754944e-38 in size, in the float32 of rounds"),
        ("name", 3, "a string"),
        ("timetable", "a.json", "a path"),
        ("stops", [0.0], "a tuple of numbers"),
        ("stops", (0.0, "1"), "a number"),
        ("gauge", "broad", "one of narrow, standard"),
        ("speed", 0.5, "at least 1 and below 300"),
        ("speed", 300.0, "at least 1 and below 300"),
        ("brake", 0.5, "0 or above 0.5 and at most 1"),
        ("brake", 1.5, "0 or above 0.5 and at most 1"),
        ("grades", (0.5, 1.5), "at least 0 and at most 1"),
        ("dining_seats", 0, "at least 1"),
        ("wagon", None, "_Wagon"),
        ("engine", _Wagon(), "_Steam or _Electric"),
        ("engine", _Steam, "_Steam or _Electric"),
        ("crew", 3, "a tuple of whole numbers or a string"),
    ],
)
def test_error_names_field_and_expected_values(field, value, expected):
    with pytest.raises(OptionError) as raised:
        _Train(**{field: value})
    error = raised.value
    assert isinstance(error, UserError)
    assert (error.field, error.expected, error.kind) == (field, expected, _Train)
    assert error.value is value
    assert str(error).startswith(f"{field}: expected {expected}, found ")
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("steam", "'steam'"),
        (0.5, "0.5"),
        (None, "None"),
        ((1, 2), "1,2"),
        ((), "none"),
        (Path("a/b"), "'a/b'"),
        (Verbatim("3 of 2 stops"), "3 of 2 stops"),
        ("x" * 1000, "'" + "x" * 99),
    ],
)
def test_error_shows_found_value(value, shown):
    assert str(OptionError("line", "a line", value)) == f"line: expected a line, found {shown}"


def test_unknown_name_suggests_nearest():
    with pytest.raises(OptionError) as raised:
        _Train(fuel="diesl")
    assert str(raised.value) == (
        "fuel: unknown fuel 'diesl': did you mean diesel? valid names: coal, diesel"
    )
    assert (raised.value.field, raised.value.value, raised.value.kind) == ("fuel", "diesl", _Train)


def test_error_in_nested_options_names_nested_field():
    with pytest.raises(OptionError) as raised:
        _Train(wagon=_Wagon(seats=81))
    assert (raised.value.field, raised.value.kind) == ("seats", _Wagon)
    assert str(raised.value) == "seats: expected at least 1 and at most 80, found 81"


def test_registry_may_be_defined_after_its_options():
    @dataclasses.dataclass(frozen=True)
    class Line(Options):
        fuel: Annotated[str, OneOf(lambda: _FUELS)] = "coal"

    assert Line("diesel").fuel == "diesel"
    with pytest.raises(OptionError, match=r"^fuel: unknown fuel 'wood'"):
        Line("wood")


def test_replaced_options_are_checked():
    with pytest.raises(OptionError, match=r"^speed: "):
        dataclasses.replace(_Train(), speed=0.0)


@dataclasses.dataclass(frozen=True)
class _Express(_Train):
    max_speed: float = 200.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.speed > self.max_speed:
            raise self.error("speed", f"at most max_speed={self.max_speed:g}")
        if not self.is_express:
            raise self.error("is_express", "true", Verbatim("a local train"))


def test_subclass_checks_several_fields():
    assert _Express(is_express=True).max_speed == 200
    with pytest.raises(OptionError) as raised:
        _Express(is_express=True, speed=250.0)
    assert str(raised.value) == "speed: expected at most max_speed=200, found 250.0"
    assert (raised.value.field, raised.value.value) == ("speed", 250.0)
    assert raised.value.kind is _Express
    with pytest.raises(OptionError, match=r"^is_express: expected true, found a local train$"):
        _Express()
    with pytest.raises(OptionError, match=r"^speed: expected at least 1 and below 300, found 0"):
        _Express(is_express=True, speed=0.0)
