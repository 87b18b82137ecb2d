"""`tune`: short searches, their files, resuming, and parallel processes."""

import contextlib
import html
import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from binaries import report, train, tune
from tests.support import golden
from tests.support.commands import (
    Caller,
    Process,
    compared_specs,
    given,
    python_module,
    stopped,
    tree,
)
from tests.support.processes import wait_until
from tests.support.stores import image, write_store
from tff_agnostic.base.files import folder_lock, read_json
from tff_agnostic.metrics.metrics_file import read_history
from tff_agnostic.program import progress
from tff_agnostic.program.studies import tuning_page

_DATA = ("--task=digits", "--num_clients=4", "--num_test_clients=2")
# The searched settings do not change client training, so it is traced only once.
_FLAGS = (
    *_DATA,
    *("--clients_per_round=2", "--client_batch_size=100", "--rounds=2", "--evaluate_every=1"),
    *("--algorithms=fed_avg", "--preset=paper", "--seed=7"),
    "--search=server_learning_rate=log:0.1..2;server_optimizer=choice:sgd,adam",
    "--objective=0.5*worst+0.5*overall",
)


@pytest.fixture(scope="module")
def call(streaming_runtime) -> Caller:
    """A caller on a runtime that traces fast."""
    return Caller({"cohort": streaming_runtime})


@pytest.fixture(scope="module")
def searched(call: Caller, tmp_path_factory) -> tuple[Path, str]:
    """Folder of a search of three trials, and the output of the session that added the third."""
    path = tmp_path_factory.mktemp("searched") / "search"
    call.ok(tune, *_FLAGS, "--trials=2", f"--output_dir={path}")
    before = tree(path / "runs")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(progress, "LINE_SECONDS", 0.01)
        outcome = call(tune, *_FLAGS, "--trials=3", f"--output_dir={path}", "--resume")
    assert "tune: 2 of 3 runs, " in outcome.err
    assert outcome.status == 0, outcome
    # The first two trials are not run again.
    assert before.items() <= tree(path / "runs").items()
    return path, outcome.out


def _rows(path: Path) -> list[dict[str, Any]]:
    """Returns the rows of the tables of trials in page.json, keyed by heading."""
    sections = read_json(path / "page.json")["sections"]
    (blocks,) = [s["blocks"] for s in sections if s["title"] == "All trials"]
    return [
        dict(zip(table["columns"], map(_plain, row))) for table in blocks for row in table["rows"]
    ]


def _plain(cell: Any) -> Any:
    return cell["value"] if isinstance(cell, dict) else cell.removesuffix(" (best)")


def _result(path: Path, trial: int) -> dict:
    return read_json(path / f"runs/fed_avg/trial_{trial:03d}/seed_7/run/result.json")


_OBJECTIVE = "0.5*worst:accuracy+0.5*overall:accuracy"
_HEADING = f"{_OBJECTIVE}, %"


@pytest.mark.nightly
def test_table_has_run_results(searched):
    path, printed = searched
    rows = _rows(path)
    assert [row["trial"] for row in rows] == ["0", "1", "2"]
    for k, row in enumerate(rows):
        result = _result(path, k)
        assert result["split"] == "heldout"
        expected = (result["worst"]["accuracy"]["value"] + result["overall"]["accuracy"]) / 2
        assert row[_HEADING] == pytest.approx(expected, abs=1e-12)
        assert (row["state"], row["round"]) == ("complete", 2)
        config = read_json(path / f"runs/fed_avg/trial_{k:03d}/seed_7/run/config.json")
        assert row["server_learning_rate"] == f"{config['server_learning_rate']:.4g}"
        # The preset applies to settings that are not searched.
        assert row["server_optimizer"] == config["server_optimizer"]
        assert config["client_normalizer"] == "batch"
        assert config["heldout_share"] == 0.25
    # The first trial has the task's settings.
    assert (rows[0]["server_learning_rate"], rows[0]["server_optimizer"]) == ("1", "sgd")
    assert len({row["server_learning_rate"] for row in rows}) == 3
    assert "(best)" in printed and "FedAvg" in printed
    # Trials report the evaluations between rounds.
    operations = map(json.loads, (path / "trials/journal.log").read_text().splitlines())
    reported = [o["intermediate_value"] for o in operations if "intermediate_value" in o]
    history = read_history(path / "runs/fed_avg/trial_001/seed_7/run/metrics.csv")
    worst = [min(history[f"heldout/accuracy/{d}"][k] for d in "0123456789") for k in range(2)]
    values = [(w + all_) / 2 for w, all_ in zip(worst, history["heldout/accuracy"])]
    assert reported[2:4] == pytest.approx(values, abs=1e-6)


@pytest.mark.nightly
def test_best_flags_describe_best_trial(searched):
    path, _ = searched
    rows = _rows(path)
    best = max(rows, key=lambda row: row[_HEADING])
    record = read_json(path / "tuned.json")["fed_avg"]
    assert record["trial"] == int(best["trial"])
    wanted = {
        "server_learning_rate": record["settings"]["server_learning_rate"],
        "server_optimizer": best["server_optimizer"],
        "preset": "paper",
        "client_normalizer": "batch",
        "rounds": 2,
        "client_batch_size": 100,
        "clients_per_round": 2,
    }
    file = f"--flagfile={path / 'fed_avg' / 'best.flags'}"
    spec = given(train, file).spec()
    assert wanted.items() <= spec.settings().items()
    # The file with the best flags omits the search's split and seed.
    assert (spec.task_options["heldout_share"], spec.config.seed) == (0.0, 0)
    assert spec.task_options["num_clients"] == 4
    (trials,) = compared_specs(file).values()
    assert trials[0].settings() == spec.settings()


@pytest.mark.nightly
def test_verdict_comes_before_the_tables(searched):
    path, printed = searched
    best = read_json(path / "tuned.json")["fed_avg"]["trial"]
    sections = read_json(path / "page.json")["sections"]
    sentences = sections[0]["blocks"][0]["sentences"]
    if best == 0:
        assert "none of 3 trials has a better value than the given settings" in sentences[0]
    else:
        assert f"FedAvg with trial {best}" in sentences[0]
        assert "the given settings (trial 0)" in sentences[0]
    assert sentences[-2].startswith("Each trial is one run of one seed (--repeats=1)")
    assert sentences[-1].startswith("The best of several trials looks better than it is on the ")
    places = [printed.index(sentence) for sentence in sentences]
    assert places == sorted(places) and places[-1] < printed.index("\nFedAvg\n")
    page = html.unescape((path / "report.html").read_text())
    assert f"report: {path / 'report.html'}\n" in printed
    assert page.index(sentences[0]) < page.index("<h2>The best settings</h2>")


@pytest.mark.nightly
def test_resumed_complete_search_trains_nothing(call, folder, searched, monkeypatch):
    shutil.copytree(searched[0], folder / "search")
    before = tree(folder / "search" / "runs")
    judged: list[Any] = []
    monkeypatch.setattr(
        tuning_page, "neglected", lambda *given: judged.append(given) or ["fed_avg neglects a part"]
    )
    call.ok(report, "--run=search", "--title=Digits & <b>")
    outcome = call.ok(tune, *_FLAGS, "--trials=3", "--output_dir=search", "--resume")
    assert tree(folder / "search" / "runs") == before
    assert "note: fed_avg neglects a part.\n" in outcome.out
    ((comparison, specs),) = judged
    best = read_json(folder / "search" / "tuned.json")["fed_avg"]["trial"]
    overall = _result(folder / "search", best)["overall"]["accuracy"]
    assert comparison.trials["fed_avg"].values["(overall)"]["accuracy"] == [overall]
    assert specs["fed_avg"].config.seed == 7
    assert "<h1>Digits &amp; &lt;b&gt;</h1>" in (folder / "search" / "report.html").read_text()


@pytest.mark.nightly
@golden.arguments
def test_invalid_flags_raise_user_error(call, folder, searched, arguments):
    shutil.copytree(searched[0], folder / "search")
    return call.refused(folder, tune, *_FLAGS, "--output_dir=search", *arguments)


def test_search_needs_heldout_split_and_ranges(call, folder):
    arguments = ("--task=toy_regression", "--output_dir=search")
    assert "one without: digits, adult" in call.refused(folder, tune, *arguments)
    assert call.refused(folder, tune, *_DATA).startswith("--search: expected settings to vary")
    rows = [("train", image("a", "x", 1)), ("test", image("b", "x", 1))]
    write_store(folder / "s.sqlite", rows, "features")
    flags = ("--task=emnist", "--data=s.sqlite", "--search=client_batch_size=1..9")
    message = call.refused(folder, tune, *flags, "--output_dir=s")
    assert message.startswith("--data: expected a store with clients in the split heldout")
    assert message.endswith("(import_data --split=train:0.8,heldout:0.1,test:0.1)")


@pytest.mark.nightly
def test_diverged_trials_end_and_equal_trials_share_runs(call, folder):
    call.ok(
        tune,
        *(f for f in _FLAGS if not f.startswith(("--search", "--objective"))),
        *("--search=client_learning_rate=choice:0.1,1e38", "--objective=overall:loss"),
        *("--trials=5", "--output_dir=search"),
    )
    rows = _rows(folder / "search")
    assert [row["trial"] for row in rows] == list("01234")
    for row in rows:
        is_complete = row["client_learning_rate"] == "0.1"
        assert row["state"].split(":")[0] == ("complete" if is_complete else "pruned")
        assert is_complete or "diverged" in row["state"]
    assert {row["client_learning_rate"] for row in rows} == {"0.1", "1e38"}
    # Equal trials end in the same state and round.
    ends = {(row["client_learning_rate"], row["state"], row["round"]) for row in rows}
    assert len(ends) == 2 and ("0.1", "complete", 2) in ends
    best = read_json(folder / "search" / "tuned.json")["fed_avg"]
    assert best["settings"] == {"client_learning_rate": "0.1"}
    # Trials with equal settings share one run.
    assert len(list((folder / "search/runs/fed_avg").glob("trial_*/seed_7/run"))) == 2


@pytest.mark.slow
def test_stopped_search_resumes_with_equal_trials(call, folder, searched):
    # The signal arrives after the first round of the second trial.
    with stopped(questions=3):
        outcome = call(tune, *_FLAGS, "--trials=3", "--output_dir=search")
    assert outcome.status == 128 + signal.SIGTERM
    assert outcome.err.rstrip().endswith("--output_dir=search --resume")
    runs = folder / "search/runs/fed_avg"
    assert (runs / "trial_001").exists() and len([*runs.rglob("result.json")]) == 1
    call.ok(tune, *_FLAGS, "--trials=3", "--output_dir=search", "--resume")
    assert _without_times(folder / "search") == _without_times(searched[0])


def _without_times(path: Path) -> list[dict[str, str]]:
    return [{k: v for k, v in row.items() if k != "seconds"} for row in _rows(path)]


_LONGER = (*(f for f in _FLAGS if not f.startswith("--rounds")), "--rounds=40", "--trials=4")


@pytest.mark.nightly
def test_killed_search_resumes_with_equal_trials(call, folder):
    call.ok(tune, *_LONGER, "--output_dir=whole")
    for trial in (0, 2):
        further = ["--resume"] if trial else []
        command = python_module("tune", *_LONGER, "--output_dir=killed", *further)
        with Process(command, folder) as process:
            rows = folder / f"killed/runs/fed_avg/trial_{trial:03d}/seed_7/run/metrics.csv"
            process.wait_for_rows(rows, 12)
            process.send(signal.SIGKILL)
            process.outcome()
    call.ok(tune, *_LONGER, "--output_dir=killed", "--resume")
    assert _without_times(folder / "killed") == _without_times(folder / "whole")


@pytest.mark.nightly
def test_two_processes_share_trials(folder):
    (folder / "second").mkdir()
    search = folder / "search"
    flags = (*_FLAGS, "--trials=5", f"--output_dir={search}")
    with Process(python_module("tune", *flags), folder) as first:
        asking = search / "runs" / ".ask"
        wait_until(asking.exists)
        joined = python_module("tune", *flags, "--resume")
        with Process(joined, folder / "second") as second:
            # Hold the lock until both processes wait for it to take a trial.
            with folder_lock(asking, wait=True):
                wait_until(
                    lambda: all(_has_open(process.pid, asking) for process in (first, second))
                )
            outcomes = [first.outcome(), second.outcome()]
    assert [outcome.status for outcome in outcomes] == [0, 0], outcomes
    ran = [
        [line.split(" (")[0] for line in outcome.out.splitlines() if line.startswith("fed_avg, ")]
        for outcome in outcomes
    ]
    assert sorted(ran[0] + ran[1]) == [f"fed_avg, trial {k}" for k in range(5)]
    assert ran[0] and ran[1]
    states = {row["state"].split(":")[0] for row in _rows(search)}
    assert states <= {"complete", "pruned"} and len(_rows(search)) == 5


def _has_open(pid: int, path: Path) -> bool:
    """Whether a process has opened a folder, as it does to wait for its lock."""
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        # Another descriptor may be closed meanwhile.
        with contextlib.suppress(OSError):
            if descriptor.resolve() == path:
                return True
    return False
