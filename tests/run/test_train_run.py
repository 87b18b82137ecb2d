"""`train_run` writes the same bytes as the command; `run_settings` accepts options."""

import contextlib
import dataclasses
from pathlib import Path

import pytest

from binaries import train as train_binary
from tests.support.commands import TOY, Caller
from tff_agnostic.algorithms.q_ffl import QFflOptions
from tff_agnostic.base.errors import UserError
from tff_agnostic.base.options import OptionError
from tff_agnostic.program import FinishedRun, RunConfig, run_settings, train_run
from tff_agnostic.program.runs import train_run as module
from tff_agnostic.program.runs.spec import RunSettings
from tff_agnostic.runtimes.registry import RUNTIMES
from tff_agnostic.tasks.toy_regression import ToyRegressionOptions

_FILES = ("config.json", "metrics.csv", "result.json", "model/model.keras")


@pytest.fixture(autouse=True)
def in_an_empty_folder(cohort_runtime, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    spec = dataclasses.replace(
        RUNTIMES["cohort"], build=lambda options: contextlib.nullcontext(cohort_runtime)
    )
    monkeypatch.setattr(module, "RUNTIMES", {"cohort": spec})


def _settings(rounds: int, seed: int = 0) -> RunSettings:
    task_options = ToyRegressionOptions(num_clients=8)
    usual = run_settings("toy_regression", task_options)
    config = dataclasses.replace(usual.config, rounds=rounds, clients_per_round=3, seed=seed)
    return run_settings("toy_regression", task_options, config)


def _check_same_files(run: FinishedRun, other: Path) -> None:
    for name in _FILES:
        assert (run.path / name).read_bytes() == (other / name).read_bytes(), name


@pytest.mark.slow
def test_train_run_writes_same_files_as_command(cohort_runtime):
    outcome = Caller({"cohort": cohort_runtime})(
        train_binary, *TOY, "--rounds=2", "--output_dir=by_command"
    )
    assert outcome.status == 0, outcome
    run = train_run(_settings(rounds=2), "by_python", show_progress=False)
    _check_same_files(run, Path("by_command"))
    assert run.table in outcome.out
    assert run.settings.config.rounds == run.result["rounds"] == 2
    assert list(run.history()["round"]) == [1, 2]
    learned = run.keras_model().get_weights()[0].item()
    assert learned == pytest.approx(run.history()["learned value"][-1])
    worst = run.by_group().worst()["loss"]
    assert worst == run.result["worst"]["loss"]["domain"]
    with pytest.raises(UserError, match=r"half\.keras: expected a Keras model, found model in"):
        run.keras_model("half")


@pytest.mark.slow
def test_train_run_resumes_to_equal_bytes():
    whole = train_run(_settings(rounds=3, seed=4), "whole")
    train_run(_settings(rounds=1, seed=4), "parts")
    with pytest.raises(UserError, match="parts holds this run already"):
        train_run(_settings(rounds=1, seed=4), "parts")
    with pytest.raises(UserError, match="parts holds another run: --seed is 4 there and 5 here"):
        train_run(_settings(rounds=3, seed=5), "parts", resume=True)
    _check_same_files(train_run(_settings(rounds=3, seed=4), "parts", resume=True), whole.path)


def test_omitted_options_take_task_defaults():
    usual = run_settings("digits")
    assert usual.config.rounds == 200
    changed = run_settings("digits", config=RunConfig(rounds=5, algorithm="q_ffl"))
    assert (changed.config.rounds, changed.config.clients_per_round) == (5, 10)
    assert (
        changed.algorithm == run_settings("digits", config=RunConfig(algorithm="q_ffl")).algorithm
    )
    options = QFflOptions(q=2.5)
    assert run_settings("digits", None, RunConfig(algorithm="q_ffl"), options).algorithm == options


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"algorithm": QFflOptions()},
            "algorithm: expected AgnosticFedAvgOptions, options of agnostic_fed_avg, found "
            "'QFflOptions'",
        ),
        (
            {"task_options": QFflOptions()},
            "task_options: expected DigitsOptions, options of digits, found 'QFflOptions'",
        ),
        (
            {"privacy": QFflOptions()},
            "privacy: expected Options, options of none, found 'QFflOptions'",
        ),
    ],
)
def test_rejects_options_of_another_part(arguments, message):
    with pytest.raises(OptionError) as error:
        run_settings("digits", **arguments)
    assert str(error.value) == message
