"""Flags made from options classes, and options made from the values of flags."""

import dataclasses
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Optional, Union

import numpy as np
import pytest
from absl import flags as absl_flags
from absl.testing import flagsaver

from tests.support import golden
from tff_agnostic.base.errors import UserError
from tff_agnostic.base.options import OneOf, OptionError, Options, Within, alternatives, hints
from tff_agnostic.base.registry import Registry
from tff_agnostic.program.commands.registry import COMMANDS, command
from tff_agnostic.program.options.defaults import DEFAULTS
from tff_agnostic.program.options.flag_table import FlagTable, check_needs, flags_in_errors
from tff_agnostic.program.options.flags import (
    REPEATED,
    Flag,
    build,
    flag_text,
    option_flags,
    option_values,
    union_members,
)
from tff_agnostic.program.runs.options import RunConfig, registered_settings
from tff_agnostic.runtimes.registry import RUNTIMES

_FLOURS = Registry("flour", {"wheat": 1, "rye": 2, "spelt": 3})


@dataclasses.dataclass(frozen=True)
class ConstantHeat(Options):
    """A constant heat."""


@dataclasses.dataclass(frozen=True)
class FallingHeat(Options):
    """A heat that falls in steps.

    Attributes:
        minutes: Minutes after which the heat falls.
        factor: Factor of each fall.
        chart: File with a chart of the heat.
    """

    minutes: tuple[int, ...] = (10, 20)
    factor: Annotated[float, Within(above=0, below=1)] = 0.5
    chart: Optional[Path] = None


@dataclasses.dataclass(frozen=True)
class Dough(Options):
    """The dough.

    Attributes:
        flour: Kind of the flour.
        rest: Minutes of rest.
    """

    flour: Annotated[str, OneOf(_FLOURS)] = "wheat"
    rest: Annotated[int, Within(least=1, most=600)] = 60


@dataclasses.dataclass(frozen=True)
class _Oven(Options):
    """The oven.

    Attributes:
        degrees: Heat of the oven.
        fan: Whether a fan moves the air.
        place: Place of the loaf: low, middle or high.
        course: Heat over the minutes.
        notes: Notes, one per flag.
        trays: Heights of the trays, in `cm`,
            comma-separated.
        pause: Minute of a pause; None for no pause.
        book: File of recipes.
        weight: Grams of the loaf, or the weight in
            the recipe.
    """

    degrees: Annotated[float, Within(above=0)] = 180.0
    fan: bool = False
    place: Literal["low", "middle", "high"] = "middle"
    course: Union[ConstantHeat, FallingHeat] = ConstantHeat()
    notes: Annotated[tuple[str, ...], REPEATED] = ()
    trays: Optional[tuple[float, ...]] = None
    pause: Optional[int] = None
    book: Optional[Path] = None
    weight: Union[Annotated[int, Within(least=1)], Literal["recipe"]] = "recipe"


@dataclasses.dataclass(frozen=True)
class _Bread(Options):
    """A bread.

    Attributes:
        name: Name of the bread.
        dough: The dough.
        oven_: The oven.
    """

    name: str = "loaf"
    dough: Dough = Dough(rest=90)
    oven_: _Oven = _Oven()


@dataclasses.dataclass(frozen=True)
class _Cake(Options):
    fan: int = 0


_OVEN = {flag.name: flag for flag in option_flags(_Oven)}


def test_nested_options_prefix_their_flags():
    names = [flag.name for flag in option_flags(_Bread)]
    assert names == ["name", "dough_flour", "dough_rest", *(f"oven_{name}" for name in _OVEN)]
    defaults = {flag.name: flag.default for flag in option_flags(_Bread)}
    assert (defaults["dough_flour"], defaults["dough_rest"]) == ("wheat", 90)


def test_flag_has_type_of_its_field():
    assert {name: (flag.kind, flag.item) for name, flag in _OVEN.items()} == {
        **{"degrees": (float, float), "fan": (bool, bool), "place": (str, str)},
        **{"course": (str, str), "notes": (tuple, str), "trays": (tuple, float)},
        **{"pause": (int, int), "book": (Path, Path), "weight": (int, int)},
    }
    assert [name for name, flag in _OVEN.items() if flag.is_path] == ["book"]


def test_union_members_are_named_without_common_words():
    assert union_members(Union[ConstantHeat, FallingHeat]) == {
        "constant": ConstantHeat,
        "falling": FallingHeat,
    }
    assert union_members(Optional[FallingHeat]) == {"falling_heat": FallingHeat}
    assert union_members(float) == {}


@golden.cases(_OVEN)
def test_help_equals_attribute_text(case: Flag):
    return case.help(case.default_text())


@pytest.fixture
def given() -> Iterator[Any]:
    """A function that parses command-line arguments and returns the given values."""
    table = FlagTable.join([("", "", _Oven)])

    def values(*arguments: str) -> dict[str, Any]:
        absl_flags.FLAGS(["bake", *arguments])
        return table.from_flags()

    with flagsaver.flagsaver():
        table.define()
        yield values


def test_only_given_flags_have_values(given):
    assert given() == {}
    assert given("--degrees=180", "--nofan") == {"degrees": 180.0, "fan": False}


def test_given_values_have_field_types(given):
    values = given(
        *("--degrees=200", "--place=low", "--notes=a,b", "--notes=c", "--trays=1,2.5", "--pause=3"),
        *("--book=a/b", "--weight=7", "--course=falling:factor=0.25,minutes=1/2"),
    )
    assert values == {
        **{"degrees": 200.0, "place": "low", "notes": ("a,b", "c"), "trays": (1.0, 2.5)},
        **{"pause": 3, "book": "a/b", "weight": 7, "course": "falling:minutes=1/2,factor=0.25"},
    }
    assert build(_Oven, values) == _Oven(
        degrees=200.0,
        place="low",
        course=FallingHeat(minutes=(1, 2), factor=0.25),
        notes=("a,b", "c"),
        trays=(1.0, 2.5),
        pause=3,
        book=Path("a/b"),
        weight=7,
    )


@golden.arguments
def test_wrong_text_names_its_flag(arguments):
    name, _, text = arguments[0].removeprefix("--").partition("=")
    return golden.refusal(lambda: build(_Oven, {name: _OVEN[name].parsed(text)}))


@golden.values
def test_wrong_value_in_file_names_its_flag(case):
    name, value = case
    return golden.refusal(_OVEN[name].check_type, value)


def test_python_error_names_the_flag():
    bread = _Bread()
    for kind, values, message in (
        (Dough, {"rest": 0}, "--dough_rest: expected at least 1 and at most 600, found 0"),
        (_Oven, {"degrees": -1.0}, "--oven_degrees: expected above 0, found -1.0"),
    ):
        with pytest.raises(UserError) as error, flags_in_errors(bread):
            kind(**values)
        assert str(error.value) == message
    with pytest.raises(UserError) as error, flags_in_errors(_Oven(course=FallingHeat())):
        raise OptionError("factor", "another one", 0.5, FallingHeat)
    assert str(error.value) == "--course: factor: expected another one, found 0.5"


def test_options_with_several_users_share_a_flag():
    table = FlagTable.join([("meal", "lunch", _Oven), ("meal", "supper", _Oven)])
    assert table["fan"].users == (("meal", "lunch"), ("meal", "supper"))
    assert table["fan"].help("true") == "Whether a fan moves the air. Of: lunch, supper. [true]"
    with pytest.raises(UserError, match=r"^supper: options: expected fan to be bool, as in lunch"):
        FlagTable.join([("meal", "lunch", _Oven), ("meal", "supper", _Cake)])


def test_rejects_flag_that_is_already_defined(given):
    del given
    table = FlagTable.join([("meal", "lunch", _Oven)])
    with pytest.raises(UserError, match=r"^lunch: options: expected names that no other flag has"):
        table.define()


def test_rejects_given_flag_without_effect():
    needs = {"chart": ("course", ("falling", "rising")), "pause": ("fan", (True,))}
    values = {"course": "falling:factor=0.25", "fan": False}
    check_needs(needs, values, ["chart", "trays"])
    assert golden.refusal(check_needs, needs, values, ["pause"]) == (
        "--pause has no effect with --fan=false: it needs --fan=true"
    )
    assert golden.refusal(check_needs, needs, {"course": "constant"}, ["chart"]) == (
        "--chart has no effect with --course=constant: it needs --course=falling or rising"
    )


# --- All options classes that define flags


_CLASSES: dict[str, type] = {
    "bread": _Bread,
    "config": RunConfig,
    **{f"runtime {name}": spec.options for name, spec in RUNTIMES.items()},
    **{f"{kind} {name}": options for kind, name, options in registered_settings()},
    **{f"task {name}": entry.spec.options for name, entry in DEFAULTS.items()},
    **{f"command {name}": command(name).options_type for name in COMMANDS},
}
_REQUIRED: dict[type, dict[str, Any]] = {
    command("privacy").options_type: {"clients": 1000, "clients_per_round": 10},
    command("reproduce").options_type: {"experiment": "adult"},
}
_NUMBERS: dict[type, tuple[Any, ...]] = {
    int: (0, 1, 2, 3, 7, 40, 1000, 2**31 - 1, -5),
    float: (0.0, 0.1, 1 / 3, 0.75, 1.0, 2.5, 90.0, 12345.678, -3.5, 1e-7, 2e-30, 3.4e38),
}
_TEXTS = ("", "a", "block_*", "true", "2", "a b", "mean=x")
# Flags for which all random values may be invalid, alone or with other flags' defaults.
_NOT_RANDOM = {
    *("privacy", "lambda_baselines"),
    *("device", "max_clients_in_step", "ray_address", "xla"),
}


@pytest.mark.parametrize("name", _CLASSES)
def test_every_flag_has_a_help_text(name):
    for flag in option_flags(_CLASSES[name]):
        assert flag.help("").endswith((".", "]", ")")), flag.name
        assert "--" + flag.name not in flag.help(""), flag.name


@pytest.mark.parametrize("name", _CLASSES)
def test_default_texts_give_the_default_options(name):
    kind = _CLASSES[name]
    options = build(kind, _required(kind))
    assert _through_texts(options) == options
    assert build(kind, option_values(options)) == options


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", _CLASSES)
def test_texts_of_random_options_give_equal_options(name, seed):
    rng = np.random.default_rng(seed)
    options, without = _random_options(_CLASSES[name], rng)
    assert without <= _NOT_RANDOM
    assert _through_texts(options) == options
    assert build(type(options), option_values(options)) == options


def _required(kind: type) -> dict[str, Any]:
    """Returns values for the required flags of an options class."""
    missing = {flag.name: "a" for flag in option_flags(kind) if flag.default is dataclasses.MISSING}
    return missing | _REQUIRED.get(kind, {})


def _through_texts(options: Any) -> Any:
    """Writes options as command-line arguments, and returns the options parsed from them."""
    table = FlagTable.join([("", "", type(options))])
    arguments = []
    for name, value in option_values(options).items():
        is_repeated = REPEATED in getattr(table[name].hint, "__metadata__", ())
        texts = map(str, value) if is_repeated else [flag_text(value)]
        arguments += [f"--{name}={text}" for text in texts if value is not None]
    with flagsaver.flagsaver():
        table.define()
        absl_flags.FLAGS(["command", *arguments])
        return build(type(options), table.from_flags())


def _random_options(kind: type, rng: np.random.Generator) -> tuple[Any, set[str]]:
    """Returns options with random values, and the flags without any valid random value."""
    values, without = _required(kind), set()
    for flag in option_flags(kind):
        for _ in range(50):
            try:
                value = _random_value(flag.hint, rng)
                build(kind, {**values, flag.name: flag.to_value(value)})
            except UserError:
                continue
            values[flag.name] = flag.to_value(value)
            assert flag.value_in(build(kind, values)) == value
            break
        else:
            without.add(flag.name)
    return build(kind, values), without


def _random_value(hint: Any, rng: np.random.Generator) -> Any:
    """Returns a random value of an annotated type, never None."""
    # Only callers in Python can give a mapping.
    members = [m for m in alternatives(hint) if typing.get_origin(m) is not Mapping]
    hint = members[rng.integers(len(members))]
    limits: tuple[Any, ...] = getattr(hint, "__metadata__", ())
    for limit in limits:
        if isinstance(limit, OneOf):
            return str(rng.choice(list(limit.names)))
    hint = typing.get_args(hint)[0] if limits else hint
    if typing.get_origin(hint) is Literal:
        choices = typing.get_args(hint)
        return choices[rng.integers(len(choices))]
    if typing.get_origin(hint) is tuple:
        item = typing.get_args(hint)[0]
        items = [_random_scalar(item, limits, rng) for _ in range(rng.integers(1, 4))]
        # On a command line, one empty string is an empty list.
        return tuple(items) if items != [""] else ()
    if isinstance(hint, type) and issubclass(hint, Options):
        return hint(**{name: _random_value(inner, rng) for name, inner in hints(hint).items()})
    return _random_scalar(hint, limits, rng)


def _random_scalar(kind: Any, limits: tuple[Any, ...], rng: np.random.Generator) -> Any:
    if kind is bool:
        return bool(rng.integers(2))
    if kind is Path:
        return Path(str(rng.choice(["a/b.json", "/tmp/x y", "c"])))
    if kind is str:
        return str(rng.choice(_TEXTS))
    within = [limit for limit in limits if isinstance(limit, Within)]
    allowed = [n for n in _NUMBERS[kind] if all(limit.holds(n) for limit in within)]
    return allowed[rng.integers(len(allowed))]
