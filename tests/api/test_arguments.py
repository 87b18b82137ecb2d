"""Arguments of functions are the flags of commands: whose they are, and of which type."""

import subprocess
import sys
from pathlib import Path
from typing import Any, Optional

import pytest

from tests import golden
from tests.binaries.harness import ROOT
from tff_agnostic.base.errors import UserError
from tff_agnostic.program.commands.command_line import GivenRun
from tff_agnostic.program.commands.save_model import SAVE_MODEL
from tff_agnostic.program.commands.train import TRAIN

_USERS = """
import dataclasses

from tff_agnostic.algorithms import fed_avg


@dataclasses.dataclass(frozen=True)
class Options(fed_avg.FedAvgOptions):
    shyness: float = 0.5


ALGORITHM = dataclasses.replace(fed_avg.ALGORITHM, options=Options)
"""


def _given(task: Optional[str] = None, **arguments: Any) -> GivenRun:
    return TRAIN.given_by({"task": task, **arguments}, show_progress=False)


def test_arguments_are_sorted_by_whom_they_are_for():
    found = _given(
        rounds=5,
        window=3,
        secure_bits=20,
        device="cpu",
        num_clients=7,
        q=None,
        resume=True,
    )
    assert found.settings == {"rounds": 5, "window": 3, "secure_bits": 20}
    assert found.of_runtime == {"device": "cpu"}
    assert found.task_options("digits") == {"num_clients": 7}
    assert found.own.resume and found.names == {"resume"}
    assert found.again(Path("mine")) == "train(..., output_dir='mine', resume=True)"


def test_a_flag_of_the_custom_task_without_its_name_before_it():
    assert _given("custom", model=Path("my.py")).task_options("custom") == {"model": "my.py"}


def test_a_users_algorithm_brings_settings_of_its_own(tmp_path):
    path = tmp_path / "shy.py"
    path.write_text(_USERS)
    found = _given(algorithm=path, shyness=1)
    assert found.settings == {"algorithm": str(path), "shyness": 1.0}


@golden.values
def test_bad_arguments_are_one_line(case):
    with pytest.raises(UserError) as error:
        found = _given(**case)
        found.runtime_options(found.spec().config.runtime)
    return str(error.value)


def test_settings_are_no_options_of_a_command_that_trains_nothing():
    with pytest.raises(UserError, match="unknown argument 'rounds'"):
        SAVE_MODEL(checkpoint="run", output_dir="saved", rounds=5)


def test_the_package_imports_what_a_call_needs_and_no_more():
    code = "import sys; from tff_agnostic.api import train; print('tensorflow' in sys.modules)"
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    assert ended.stdout == "False\n"
