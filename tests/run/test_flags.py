"""Flags made from the settings of a run and the options of every task."""

import pytest
from absl import flags
from absl.testing import flagsaver

from binaries import train
from tests.binaries.harness import given
from tff_agnostic.algorithms import ALGORITHMS, AgnosticFedAvgOptions
from tff_agnostic.computations.server_optimizers import ServerOptimizerOptions
from tff_agnostic.errors import UserError
from tff_agnostic.run.options import RunConfig, options_of_runs
from tff_agnostic.run.process import define
from tff_agnostic.run.spec import RunSpec, resolve
from tff_agnostic.run.train import TRAIN
from tff_agnostic.tasks.registry import TASKS


def _parse(*arguments: str) -> RunSpec:
    return given(train, *arguments).spec()


def test_without_flags_a_run_is_the_default_tasks_own():
    assert _parse() == resolve("digits", {}, {})
    assert given(train).settings == {}


def test_what_is_given_is_told_from_what_is_a_default():
    default = AgnosticFedAvgOptions().client_epochs
    found = given(train, f"--client_epochs={default}", "--noshuffle")
    assert found.settings == {"client_epochs": default, "shuffle": False}
    spec = found.spec()
    assert spec == resolve("digits", {"shuffle": False}, {})


@pytest.mark.parametrize("task", list(TASKS))
def test_every_run_can_be_given_by_its_flags(task):
    """What config.json holds, written out as flags, is the same run again."""
    spec = resolve(task, {"seed": 3, "initial_domain_weights": (0.25, 0.75)}, {})
    defaults = resolve(task, {}, {}).settings()
    arguments = []
    for name, value in spec.flags().items():
        read = tuple(value) if isinstance(value, list) else value
        is_default = name in defaults and defaults[name] == read
        if value is not None and not is_default:
            text = ",".join(map(str, value)) if isinstance(value, list) else value
            arguments.append(f"--{name}={text}")
    assert _parse(*arguments) == spec


def test_lists_of_numbers():
    spec = _parse("--initial_domain_weights=0.5, 0.25,0.25", "--initial_domain_counts=1,2,3")
    assert spec.algorithm.initial_domain_weights == (0.5, 0.25, 0.25)
    assert spec.algorithm.initial_domain_counts == (1.0, 2.0, 3.0)


def test_an_unknown_option_names_the_nearest():
    with pytest.raises(UserError, match="unknown flag 'round': did you mean rounds"):
        options_of_runs()["round"]


def test_help_names_choices_and_defaults():
    with flagsaver.flagsaver():
        define(TRAIN.define_flags)
        _check_help()


def _check_help() -> None:
    def text(name: str) -> str:
        return flags.FLAGS[name].help

    assert f"Names: {', '.join(ALGORITHMS)}." in text("algorithm")
    assert "One of: cohort, ray, tff." in text("runtime")
    rounds = TASKS["digits"].defaults["rounds"]
    assert f"[digits: {rounds};" in text("rounds")
    assert text("rounds").endswith(f"otherwise {RunConfig().rounds}]")
    assert text("shuffle").endswith("[true]")
    assert text("q").endswith("Of: q_ffl. [1.0]")
    with_optimizer = [
        name
        for name, spec in ALGORITHMS.items()
        if issubclass(spec.options, ServerOptimizerOptions)
    ]
    assert f"Of: {', '.join(with_optimizer)}." in text("server_optimizer")
    assert "stochastic_afl" not in text("shuffle")
    assert text("client_weighting").endswith("Of: delta_fl, q_ffl, term. [examples]")
    assert "Of: secure." in text("secure_bits")
    assert text("digits_num_clients").endswith("[50]")
    assert "toy_regression: " in text("task")
