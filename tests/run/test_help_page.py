"""What --help prints: the flags that apply to what is chosen, with the defaults that hold."""

import re
import sys

import pytest

from tests.algorithms.user_files import write_by_size
from tff_agnostic.commands import COMMANDS, command
from tff_agnostic.errors import UserError
from tff_agnostic.run.help_page import asked_for
from tff_agnostic.tasks.registry import TASKS


@pytest.fixture
def page(monkeypatch):
    """Returns what a command prints for arguments beside --help, or --help=GROUP."""

    def of(name: str, *arguments: str, group: str = "") -> str:
        monkeypatch.setattr(sys, "argv", [name, *arguments, "--help"])
        return command(name).help_text("What it does.", group)

    return of


def _flags(text: str) -> set[str]:
    return set(re.findall(r"^  --(?:\[no\])?(\w+):", text, flags=re.M))


def _default(text: str, flag: str) -> str:
    (entry,) = re.findall(rf"^  --{flag}: (?:.*\n(?:      .*\n)*)", text, flags=re.M)
    return " ".join(entry.split()).rpartition("[")[2].removesuffix("]")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_page_whose_groups_print_one_by_one(page, name):
    text = page(name)
    assert text.startswith("What it does.")
    assert "--helpfull" in text
    groups = re.findall(r"^\S.* \[(\w+)\]$", text, flags=re.M)
    assert groups and len(set(groups)) == len(groups)
    of_groups = [_flags(page(name, group=group)) for group in groups]
    assert set.union(*of_groups) == _flags(text)
    # No flag is in two groups.
    assert sum(map(len, of_groups)) == len(_flags(text))


def test_flags_of_what_is_not_chosen_are_not_shown(page):
    text = page("train")
    shown = _flags(text)
    assert {"task", "rounds", "digits_keep", "window", "client_learning_rate", "lanes"} <= shown
    assert not shown & {
        "q",
        "tilt",
        "adult_ridge",
        "secure_bits",
        "noise_multiplier",
        "ray_address",
    }
    assert {"q", "client_weighting"} <= _flags(page("train", "--algorithm=q_ffl"))
    assert "window" not in _flags(page("train", "--algorithm=q_ffl"))
    assert "secure_bits" in _flags(page("train", "--aggregation=secure"))
    assert "noise_multiplier" in _flags(page("train", "--privacy=central"))
    ray = _flags(page("train", "--runtime=ray"))
    assert "ray_address" in ray and "lanes" not in ray
    assert len(text.splitlines()) < 170


@pytest.mark.parametrize("task", ["digits", "adult", "toy_regression"])
def test_defaults_are_those_that_hold(page, task):
    text = page("train", f"--task={task}")
    assert _default(text, "rounds") == str(TASKS[task].defaults.get("rounds", 100))
    own = TASKS[task].algorithm_defaults.get("stochastic_afl", {})
    expected = {**TASKS[task].defaults, **own}.get("server_learning_rate", 1.0)
    text = page("train", f"--task={task}", "--algorithm=stochastic_afl")
    assert float(_default(text, "server_learning_rate")) == float(expected)


def test_a_comparison_shows_the_flags_of_all_its_algorithms(page):
    both = _flags(page("compare", "--algorithms=q_ffl,term"))
    assert {"q", "tilt"} <= both and "window" not in both
    assert {"q", "tilt"} <= _flags(page("compare", "--arms=a=q_ffl:q=2;term"))


def test_a_users_algorithm_brings_its_flags(page, tmp_path):
    path = write_by_size(tmp_path / "by_size.py")
    text = page("train", f"--algorithm={path}")
    assert "--size_power: Power of a client's size that it weighs. [1.0]" in text
    assert "window" not in _flags(text)


def test_a_group_says_all_that_there_is_of_its_flags(page):
    text = page("train", group="lambda")
    assert "Of: afl_boost, agnostic_fed_avg, stochastic_afl." in " ".join(text.split())
    assert "otherwise" in text
    with pytest.raises(UserError, match=r"unknown group of flags 'lamda': did you mean lambda"):
        page("train", group="lamda")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--rounds=3"], None),
        (["--help"], ""),
        (["--rounds=3", "-help"], ""),
        (["--help=lambda"], "lambda"),
        (["--", "--help"], None),
        (["--helpfull"], None),
        (["--nohelp"], None),
    ],
)
def test_who_asks_for_help(arguments, expected):
    assert asked_for(arguments) == expected
