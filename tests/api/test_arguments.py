"""Arguments of functions are the flags of commands: whose they are, and of which type."""

from pathlib import Path
from typing import Any

import pytest

from tff_agnostic.api.arguments import sorted_arguments, task_arguments
from tff_agnostic.errors import UserError

_USERS = """
import dataclasses

from tff_agnostic.algorithms import fed_avg
from tff_agnostic.settings import setting


@dataclasses.dataclass(frozen=True)
class Options(fed_avg.FedAvgOptions):
    shyness: float = setting(0.5, "How shy clients are.")


ALGORITHM = dataclasses.replace(fed_avg.ALGORITHM, options=Options)
"""


def test_arguments_are_sorted_by_whom_they_are_for():
    found = sorted_arguments(
        "digits",
        ["agnostic_fed_avg"],
        {
            "rounds": 5,
            "window": 3,
            "secure_bits": 20,
            "device": "cpu",
            "digits_num_clients": 7,
            "seed": None,
        },
    )
    assert found.settings == {"rounds": 5, "window": 3, "secure_bits": 20}
    assert found.runtime == {"device": "cpu"}
    assert found.task_options == {"num_clients": 7}


def test_a_flag_of_the_custom_task_without_its_name_before_it():
    assert sorted_arguments("custom", [], {"model": Path("my.py")}).task_options == {
        "model": "my.py"
    }


def test_a_users_algorithm_brings_settings_of_its_own(tmp_path):
    path = tmp_path / "shy.py"
    path.write_text(_USERS)
    found = sorted_arguments("digits", [str(path)], {"algorithm": path, "shyness": 1})
    assert found.settings == {"algorithm": str(path), "shyness": 1.0}


_BAD: list[tuple[str, dict[str, Any], str]] = [
    ("digits", {"roundz": 5}, "unknown argument 'roundz': did you mean rounds"),
    ("digits", {"xyzzy": 5}, "unknown argument 'xyzzy': `./run train --help` lists them"),
    ("digits", {"rounds": "many"}, "--rounds: expected a whole number, found 'many'"),
    ("digits", {"frozen_layers": "dense"}, "--frozen_layers: expected "),
    ("digits", {"model": "my.py"}, "--model has no effect with --task=digits"),
    ("digitz", {}, "unknown task 'digitz': did you mean digits?"),
]


@pytest.mark.parametrize(("task", "arguments", "message"), _BAD)
def test_bad_arguments_are_one_line(task, arguments, message):
    with pytest.raises(UserError) as error:
        sorted_arguments(task, [], arguments)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_settings_are_no_options_of_a_task():
    assert task_arguments("digits", {"digits_num_clients": 3}) == {"num_clients": 3}
    with pytest.raises(UserError, match="--adult_ridge has no effect with --task=digits"):
        task_arguments("digits", {"adult_ridge": 0.5})
    with pytest.raises(UserError, match="unknown argument 'rounds'"):
        task_arguments("digits", {"rounds": 5})
