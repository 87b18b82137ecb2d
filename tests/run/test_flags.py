"""Flags made from the settings of a run and the options of every task."""

from collections.abc import Iterator, Sequence

import pytest
from absl import flags
from absl.testing import flagsaver

from tff_agnostic.algorithms import ALGORITHMS, AgnosticFedAvgOptions
from tff_agnostic.computations.server_optimizers import ServerOptimizerOptions
from tff_agnostic.errors import UserError
from tff_agnostic.run.command_line import (
    define_run_flags,
    define_task_flags,
    given_settings,
    parsed_value,
    run_spec_from_flags,
)
from tff_agnostic.run.options import RunConfig
from tff_agnostic.run.spec import RunSpec, resolve
from tff_agnostic.tasks.registry import TASKS


@pytest.fixture(autouse=True)
def defined() -> Iterator[None]:
    """Flags as `train` has them, for one test."""
    with flagsaver.flagsaver():
        define_task_flags()
        define_run_flags()
        yield


def _parse(arguments: Sequence[str]) -> RunSpec:
    flags.FLAGS(["train", *arguments])
    return run_spec_from_flags()


def test_without_flags_a_run_is_the_default_tasks_own():
    assert _parse([]) == resolve("digits", {}, {})
    assert given_settings() == {}


def test_what_is_given_is_told_from_what_is_a_default():
    default = AgnosticFedAvgOptions().client_epochs
    spec = _parse([f"--client_epochs={default}", "--noshuffle"])
    assert given_settings() == {"client_epochs": default, "shuffle": False}
    assert spec == resolve("digits", {"shuffle": False}, {})


@pytest.mark.parametrize("task", list(TASKS))
def test_every_run_can_be_given_by_its_flags(task):
    """What config.json holds, written out as flags, is the same run again."""
    spec = resolve(task, {"seed": 3, "initial_domain_weights": (0.25, 0.75)}, {})
    defaults = resolve(task, {}, {}).settings()
    arguments = []
    for name, value in spec.flags().items():
        is_default = name in defaults and defaults[name] == value
        if value is not None and not is_default:
            text = ",".join(map(str, value)) if isinstance(value, list) else value
            arguments.append(f"--{name}={text}")
    assert _parse(arguments) == spec


def test_lists_of_numbers():
    spec = _parse(["--initial_domain_weights=0.5, 0.25,0.25", "--initial_domain_counts=1,2,3"])
    assert spec.algorithm.initial_domain_weights == (0.5, 0.25, 0.25)
    assert spec.algorithm.initial_domain_counts == (1.0, 2.0, 3.0)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("rounds", "7", 7),
        ("client_learning_rate", "1e-3", 0.001),
        ("secure_max_beta", "2", 2.0),
        ("shuffle", "False", False),
        ("freeze_absent_domains", "true", True),
        ("initial_domain_weights", "0.5,0.5", (0.5, 0.5)),
        ("target_domain", "3", "3"),
    ],
)
def test_values_from_text(name, text, value):
    found = parsed_value(name, text)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("rounds", "7.5", "--rounds: expected a whole number, found '7.5'"),
        ("client_learning_rate", "fast", "--client_learning_rate: expected a number, found 'fast'"),
        ("secure_max_beta", "", "--secure_max_beta: expected a number, found ''"),
        ("shuffle", "1", "--shuffle: expected true or false, found '1'"),
        (
            "initial_domain_weights",
            "1,",
            "--initial_domain_weights: expected numbers separated by commas, found '1,'",
        ),
        ("round", "7", "unknown flag 'round': did you mean rounds"),
    ],
)
def test_text_of_another_type(name, text, message):
    with pytest.raises(UserError) as error:
        parsed_value(name, text)
    assert str(error.value).startswith(message)


def test_help_names_choices_and_defaults():
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
