"""Settings as absl flags, and values of their types from flags and from text."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

import pytest
from absl import flags
from absl.testing import flagsaver
from tff_agnostic.settings import OptionTable, Settings, setting

from tests import golden
from tff_agnostic.errors import UserError


@dataclasses.dataclass(frozen=True)
class _Oven(Settings):
    heat: float = setting(180.0, "In degrees.", flag="oven_heat")
    minutes: int = setting(40, "How long.")
    fan: bool = setting(False, "Whether it blows.")
    dish: str = setting("bread", "What is in it.")
    pause: Optional[int] = setting(None, "When to look.")
    levels: Optional[tuple[float, ...]] = setting(None, "Of the trays.")
    turns: tuple[int, ...] = setting((), "Minutes at which it is turned.")


@dataclasses.dataclass(frozen=True)
class _Other(Settings):
    fan: int = setting(0, "How fast it turns.")


_TABLE = OptionTable.of("flag", [("", "", _Oven)])
_SETTINGS = {option.field.name: option for option in _TABLE.values()}


@pytest.fixture(autouse=True)
def defined() -> Iterator[None]:
    """The settings as flags, for one test."""
    with flagsaver.flagsaver():
        _TABLE.define()
        yield


def _given(*arguments: str) -> dict[str, Any]:
    flags.FLAGS(["bake", *arguments])
    return _TABLE.from_flags()


def test_a_setting_has_a_flag_and_types():
    found = [(s.flag, s.kind, s.item) for s in _SETTINGS.values()]
    assert found == [
        ("oven_heat", float, float),
        ("minutes", int, int),
        ("fan", bool, bool),
        ("dish", str, str),
        ("pause", int, int),
        ("levels", tuple, float),
        ("turns", tuple, int),
    ]


def test_what_was_not_given_is_not_there_and_a_default_that_was_given_is():
    assert _given() == {}
    assert _given("--minutes=40", "--nofan") == {"minutes": 40, "fan": False}


def test_given_values_have_their_types():
    found = _given("--oven_heat=200", "--levels=1,2.5", "--turns=10,20", "--pause=3", "--dish=7")
    assert found == {
        "oven_heat": 200.0,
        "levels": (1.0, 2.5),
        "turns": (10, 20),
        "pause": 3,
        "dish": "7",
    }
    assert [type(item) for item in found["turns"]] == [int, int]


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("heat", "1e2", 100.0),
        ("minutes", "7", 7),
        ("fan", "True", True),
        ("fan", "false", False),
        ("dish", "a, b", "a, b"),
        ("pause", "2", 2),
        ("levels", "1, 2", (1.0, 2.0)),
        ("turns", "1,2", (1, 2)),
    ],
)
def test_values_from_text(name, text, value):
    found = _SETTINGS[name].parsed(text)
    assert (found, type(found)) == (value, type(value))


@golden.values
def test_text_of_another_type(case):
    name, text = case
    return golden.refusal(_SETTINGS[name].parsed, text)


def test_a_list_of_another_type_on_the_command_line():
    assert (
        golden.refusal(_given, "--levels=1,x")
        == "--levels: expected numbers separated by commas, found '1,x'"
    )


@pytest.mark.parametrize(
    ("flag", "value", "expected"),
    [("oven_heat", 1, 1.0), ("turns", [1, 2], (1, 2)), ("dish", Path("a/b"), "a/b")],
)
def test_values_of_python_have_the_type_of_their_option(flag, value, expected):
    found = _TABLE.from_arguments({flag: value, "fan": None})
    assert found == {flag: expected}
    assert type(found[flag]) is type(expected)


@pytest.mark.parametrize("value", ["many", 2.5, True, (1,)])
def test_values_of_python_of_another_type(value):
    with pytest.raises(UserError, match=r"^--minutes: expected a whole number, found "):
        _TABLE.from_arguments({"minutes": value})


def test_what_several_have_is_one_option_that_names_them():
    table = OptionTable.of("flag", [("meal", "lunch", _Oven), ("meal", "supper", _Oven)])
    assert table["fan"].owners == (("meal", "lunch"), ("meal", "supper"))
    assert flags.FLAGS["fan"].help == "Whether it blows. [false]"
    assert table["fan"].help("true") == "Whether it blows. Of: lunch, supper. [true]"
    with pytest.raises(UserError, match=r"supper: options: expected fan to be bool, as that of l"):
        OptionTable.of("flag", [("meal", "lunch", _Oven), ("meal", "supper", _Other)])


def test_a_flag_that_is_there_already():
    table = OptionTable.of("flag", [("meal", "lunch", _Oven)])
    with pytest.raises(UserError, match=r"^lunch: options: expected names that no other flag has"):
        table.define()
