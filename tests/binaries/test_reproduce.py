"""`reproduce`: an experiment from its raw files to its page."""

import csv
import dataclasses
import json
import shutil
from html import escape
from pathlib import Path
from typing import Any

import pytest

from binaries import reproduce
from tests.support import golden
from tests.support.commands import ADULT_ROW, Caller, tree
from tests.support.pages import page_blocks
from tff_agnostic.base.files import read_json
from tff_agnostic.base.registry import Registry
from tff_agnostic.program.experiments import EXPERIMENTS
from tff_agnostic.program.experiments import reproduce as reproduce_command
from tff_agnostic.program.experiments.experiment import ArmsAsPredictors

_ADULT = (
    *("--experiment=adult", "--data_dir=adult", "--trials=2", "--rounds=2"),
    "--clients_per_round=2",
)
_ARMS = ("doctorate", "agnostic_fed_avg")


@pytest.fixture
def small_experiments(monkeypatch):
    """Replaces experiments by ones with fewer methods and smaller tasks."""

    def smaller(name: str, arms: tuple[str, ...], **options: Any) -> None:
        experiment = EXPERIMENTS[name]
        some = {arm: experiment.arms[arm] for arm in arms}
        experiments[name] = dataclasses.replace(experiment, arms=some, task_options=options)

    experiments = dict(EXPERIMENTS.items())
    smaller("adult", _ARMS, num_clients=5, num_test_clients=2)
    sizes = {"vocabulary": 20, "sequence_length": 4, "network": "lstm:embedding=2,units=3"}
    mixing = ("ai", "beer", "agnostic_fed_avg", "fed_boost", "afl_boost")
    smaller("fedboost_stackexchange", mixing, **sizes)
    experiments["fedboost_stackexchange"] = dataclasses.replace(
        experiments["fedboost_stackexchange"], base_predictors=ArmsAsPredictors(mixing[:2])
    )
    registry = Registry("experiment", experiments)
    monkeypatch.setattr(reproduce_command, "EXPERIMENTS", registry)


def _posts(folder: Path) -> Path:
    """Writes a Stack Exchange dump of 30 questions and answers to a new folder."""
    rows = []
    for k in range(30):
        body = escape(f"<p>What is number {k % 4} of these?</p>")
        rows.append(
            f'<row Id="{k + 1}" PostTypeId="{1 + k % 2}" OwnerUserId="{k % 15}" Body="{body}" />'
        )
    folder.mkdir(parents=True)
    text = '<?xml version="1.0" encoding="utf-8"?>\n<posts>\n' + "\n".join(rows) + "\n</posts>\n"
    (folder / "Posts.xml").write_text(text)
    return folder


@pytest.fixture
def adult(folder: Path) -> Path:
    """The working directory, with a few rows in UCI Adult's files in `adult`."""
    (folder / "adult").mkdir()
    person = ADULT_ROW.rstrip()
    rich = person.replace("<=50K", ">50K")
    rows = [person, rich.replace("Bachelors, 13", "Doctorate, 16"), person, rich]
    (folder / "adult/adult.data").write_text("\n".join(rows * 5))
    (folder / "adult/adult.test").write_text("\n".join(f"{row}." for row in rows))
    return folder


def _lines(run: Path) -> list[str]:
    return [line for block in page_blocks(run) for line in block.get("sentences", ())]


@pytest.mark.nightly
def test_adult_files_become_runs_and_page(call: Caller, adult, small_experiments):
    arguments = (*_ADULT, "--output_dir=run")
    outcome = call.ok(reproduce, *arguments)
    for arm in _ARMS:
        configs = [
            read_json(adult / f"run/runs/{arm}/trial_{k:02d}/run/config.json") for k in range(2)
        ]
        assert [config["seed"] for config in configs] == [0, 1]
        # In config.json, tuples have become lists.
        settings = json.loads(json.dumps(dict(EXPERIMENTS["adult"].arms[arm].settings)))
        assert configs[0].items() >= settings.items()
    compared = read_json(adult / "run" / "compare.json")
    assert list(compared) == list(_ARMS)
    blocks, lines = page_blocks(adult / "run"), _lines(adult / "run")
    assert f"./run reproduce {' '.join(arguments)}" in lines
    assert any(line.startswith("--rounds is 2; the task's default is ") for line in lines)
    (row,) = [row for row in blocks[0]["rows"] if row[0].startswith("L doctorate")]
    assert row[2::2] == ["53.35 (0.91)", "73.58 (0.48)", "53.12 (0.89)", "53.12 (0.89)"]
    assert row[1]["value"] == compared["doctorate"]["(overall)"]["accuracy"]["mean"]
    assert outcome.out.endswith("\nreport: run/report.html\n")

    # A resumed experiment trains nothing again.
    runs = tree(adult / "run" / "runs")
    call.ok(reproduce, *arguments, "--resume")
    assert tree(adult / "run" / "runs") == runs
    assert page_blocks(adult / "run")[0] == blocks[0]


@pytest.mark.nightly
def test_dump_becomes_store_and_mixed_models(call: Caller, folder, small_experiments):
    sites, mixed = ("ai", "beer"), ("fed_boost", "afl_boost")
    for site in sites:
        _posts(folder / "dump" / site)
    run = folder / "run"
    arguments = (
        *("--experiment=fedboost_stackexchange", "--data_dir=dump", "--trials=1", "--rounds=2"),
        *("--clients_per_round=3", "--client_mode=streamed", "--output_dir=run"),
        *(f"--override={name}:budget=1" for name in mixed),
    )
    call.ok(reproduce, *arguments)
    compared = read_json(run / "compare.json")
    assert list(compared) == [*sites, "agnostic_fed_avg", *mixed]
    for results in compared.values():
        # The domains are sites, not kinds of posts.
        assert all(results[site]["perplexity"]["mean"] >= 1 for site in sites)
    for name in mixed:
        trial = run / "runs" / name / "trial_00" / "run"
        config = read_json(trial / "config.json")
        assert (config["data"], config["data_dir"]) == (str(run / "clients.store"), None)
        assert config["base_predictors"] == [
            str(run / "runs" / site / "trial_00" / "run") for site in sites
        ]
        rows = list(csv.DictReader((trial / "metrics.csv").read_text().splitlines()))
        assert [int(row["predictors/sampled"]) for row in rows] == [1, 1]
        for row in rows:
            whole = int(row["predictors/bytes_of_ensemble"])
            # A message holds one of the two predictors, and a few numbers.
            assert whole / 2 < int(row["predictors/bytes_sent"]) < whole

    # A resumed experiment does not read the dump again.
    shutil.move(folder / "dump", folder / "gone")
    (folder / "dump").mkdir()
    call.ok(reproduce, *arguments, "--resume")


@pytest.mark.slow
def test_scale_shortens_runs(call: Caller, adult, small_experiments, monkeypatch):
    experiment = reproduce_command.EXPERIMENTS["adult"]
    arms = {"fed_avg": EXPERIMENTS["adult"].arms["fed_avg"]}
    registry = Registry("experiment", {"adult": dataclasses.replace(experiment, arms=arms)})
    monkeypatch.setattr(reproduce_command, "EXPERIMENTS", registry)
    call.ok(
        *(reproduce, "--experiment=adult", "--data_dir=adult", "--trials=1", "--output_dir=run"),
        *("--clients_per_round=2", "--scale=0.0001", "--heldout_share=0.5"),
        "--worst_min_examples=2",
    )
    config = read_json(adult / "run/runs/fed_avg/trial_00/run/config.json")
    assert (config["rounds"], config["evaluate_every"]) == (1, 1)
    page = read_json(adult / "run/page.json")
    lines = _lines(adult / "run")
    assert "Shortened: 0.0001 times the task's rounds." in lines
    # The page also lists changed task options.
    assert "--heldout_share is 0.5; the task's default is 0." in lines
    assert "accuracy of doctorate on validation clients" in json.dumps(page)
    assert "heldout/accuracy/doctorate" in (
        adult / "run/runs/fed_avg/trial_00/run/metrics.csv"
    ).read_text().splitlines()[0].split(",")


@golden.arguments
def test_invalid_flags_raise_user_error(call: Caller, adult, arguments):
    return call.refused(adult, reproduce, *arguments, "--output_dir=run")
