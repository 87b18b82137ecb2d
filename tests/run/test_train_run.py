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
from tff_agnostic.program import RunConfig, run_settings, train_run
from tff_agnostic.program.runs import train_run as module
from tff_agnostic.program.runs.spec import RunSettings
from tff_agnostic.runtimes.registry import RUNTIMES
from tff_agnostic.tasks.toy_regression import ToyRegressionOptions


@pytest.fixture(autouse=True)
def in_an_empty_folder(cohort_runtime, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    spec = dataclasses.replace(
        RUNTIMES["cohort"], build=lambda options: contextlib.nullcontext(cohort_runtime)
    )
    monkeypatch.setattr(module, "RUNTIMES", {"cohort": spec})


def _settings(rounds: int) -> RunSettings:
    task_options = ToyRegressionOptions(num_clients=8)
    usual = run_settings("toy_regression", task_options)
    config = dataclasses.replace(usual.config, rounds=rounds, clients_per_round=3)
    return run_settings("toy_regression", task_options, config)


@pytest.mark.slow
def test_train_run_writes_same_files_as_command(cohort_runtime):
    outcome = Caller({"cohort": cohort_runtime})(
        train_binary, *TOY, "--rounds=2", "--output_dir=by_command"
    )
    assert outcome.status == 0, outcome
    # The run is resumed after its first round.
    train_run(_settings(rounds=1), "by_python")
    run = train_run(_settings(rounds=2), "by_python", resume=True, show_progress=False)
    for name in ("config.json", "metrics.csv", "result.json", "model/model.keras"):
        assert (run.path / name).read_bytes() == Path("by_command", name).read_bytes(), name
    assert run.table in outcome.out
    assert run.settings.config.rounds == run.result["rounds"] == 2
    assert list(run.history()["round"]) == [1, 2]
    learned = run.keras_model().get_weights()[0].item()
    assert learned == pytest.approx(run.history()["learned value"][-1])
    worst = run.by_group().worst()["loss"]
    assert worst == run.result["worst"]["loss"]["domain"]
    with pytest.raises(UserError, match=r"half\.keras: expected a Keras model, found model in"):
        run.keras_model("half")
    with pytest.raises(UserError, match="by_python holds this run already"):
        train_run(_settings(rounds=2), "by_python")


def test_omitted_options_take_task_defaults():
    assert run_settings("digits").config.rounds == 200
    changed = run_settings("digits", config=RunConfig(rounds=5, algorithm="q_ffl"))
    assert (changed.config.rounds, changed.config.clients_per_round) == (5, 10)
    assert changed.algorithm.client.batch_size == 10 != QFflOptions().client.batch_size
    options = QFflOptions(q=2.5)
    assert run_settings("digits", None, RunConfig(algorithm="q_ffl"), options).algorithm == options


@pytest.mark.parametrize("part", ["algorithm", "task_options", "privacy"])
def test_rejects_options_of_another_part(part):
    with pytest.raises(OptionError, match=rf"^{part}: expected \w+, options of \w+, found 'QFfl"):
        run_settings("digits", **{part: QFflOptions()})
