"""`tune`: a search of a few short trials, and what it leaves."""

import contextlib
import html
import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from binaries import report, train, tune
from tests import golden
from tests.binaries.harness import Caller, Process, compared_specs, given, python_module, tree
from tests.data.stores import image, write_store
from tests.processes import wait_until
from tff_agnostic.base.files import folder_lock
from tff_agnostic.metrics.metrics_file import read_history
from tff_agnostic.program import progress
from tff_agnostic.program.options.process import StopRequest
from tff_agnostic.program.studies import tuning_page
from tff_agnostic.program.studies.optuna_studies import FILE, Method, Studies

_DATA = ("--task=digits", "--num_clients=4", "--num_test_clients=2")
# What is searched changes nothing that clients do: they are traced once.
_FLAGS = (
    *_DATA,
    *("--clients_per_round=2", "--client_batch_size=100", "--rounds=2", "--evaluate_every=1"),
    *("--algorithms=fed_avg", "--preset=paper", "--seed=7"),
    "--search=server_learning_rate=log:0.1..2;server_optimizer=choice:sgd,adam",
    "--objective=0.5*worst+0.5*overall",
)


@pytest.fixture(scope="module")
def call(streaming_runtime) -> Caller:
    """Calls binaries on a runtime that traces little."""
    return Caller({"cohort": streaming_runtime})


@pytest.fixture(scope="module")
def searched(call: Caller, tmp_path_factory) -> tuple[Path, str]:
    """Three trials, the third in another session, and what the latter printed."""
    path = tmp_path_factory.mktemp("searched") / "search"
    first = call(tune, *_FLAGS, "--trials=2", f"--output_dir={path}")
    assert first.status == 0, first
    before = tree(path / "runs")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(progress, "LINE_SECONDS", 0.01)
        outcome = call(tune, *_FLAGS, "--trials=3", f"--output_dir={path}", "--resume")
    assert "tune: 2 of 3 runs, " in outcome.err
    assert outcome.status == 0, outcome
    # The first two are not run again.
    assert before.items() <= tree(path / "runs").items()
    return path, outcome.out


def _rows(path: Path) -> list[dict[str, Any]]:
    """The trials in page.json, by heading."""
    sections = json.loads((path / "page.json").read_text())["sections"]
    (blocks,) = [s["blocks"] for s in sections if s["title"] == "All trials"]
    return [
        dict(zip(table["columns"], map(_plain, row))) for table in blocks for row in table["rows"]
    ]


def _plain(cell: Any) -> Any:
    return cell["value"] if isinstance(cell, dict) else cell.removesuffix(" (best)")


def _result(path: Path, trial: int) -> dict:
    return json.loads((path / f"runs/fed_avg/trial_{trial:03d}/seed_7/run/result.json").read_text())


_OBJECTIVE = "0.5*worst:accuracy+0.5*overall:accuracy"
_HEADING = f"{_OBJECTIVE}, %"


@pytest.mark.nightly
def test_the_table_of_trials_is_what_the_runs_found(searched):
    path, printed = searched
    rows = _rows(path)
    assert [row["trial"] for row in rows] == ["0", "1", "2"]
    for k, row in enumerate(rows):
        result = _result(path, k)
        assert result["split"] == "heldout"
        expected = (result["worst"]["accuracy"]["value"] + result["overall"]["accuracy"]) / 2
        assert row[_HEADING] == pytest.approx(expected, abs=1e-12)
        assert (row["state"], row["round"]) == ("complete", 2)
        config = json.loads(
            (path / f"runs/fed_avg/trial_{k:03d}/seed_7/run/config.json").read_text()
        )
        assert row["server_learning_rate"] == f"{config['server_learning_rate']:.4g}"
        # What is searched comes before the preset, what is not after it.
        assert row["server_optimizer"] == config["server_optimizer"]
        assert config["client_normalizer"] == "batch"
        assert config["heldout_share"] == 0.25
    # What the task has without a search.
    assert (rows[0]["server_learning_rate"], rows[0]["server_optimizer"]) == ("1", "sgd")
    assert len({row["server_learning_rate"] for row in rows}) == 3
    assert "(best)" in printed and "FedAvg" in printed


@pytest.mark.nightly
def test_evaluations_between_rounds_are_reported(searched):
    path, _ = searched
    reported = tuned_trials(path)[1].intermediate_values
    history = read_history(path / "runs/fed_avg/trial_001/seed_7/run/metrics.csv")
    worst = [min(history[f"heldout/accuracy/{d}"][k] for d in "0123456789") for k in range(2)]
    expected = [(w + all_) / 2 for w, all_ in zip(worst, history["heldout/accuracy"])]
    assert list(reported) == [1, 2]
    assert list(reported.values()) == pytest.approx(expected, abs=1e-6)


def tuned_trials(path: Path) -> list:
    method = Method(True, seed=7, sampler="tpe", pruner="median", warm_up=1)
    return Studies(path, method).trials("fed_avg")


@pytest.mark.nightly
def test_the_best_trial_and_its_flags(searched, folder):
    path, _ = searched
    rows = _rows(path)
    best = max(rows, key=lambda row: row[_HEADING])
    found = json.loads((path / "tuned.json").read_text())
    of_it = found["algorithms"]["fed_avg"]
    assert (found["split"], found["objective"], found["seeds"]) == ("heldout", _OBJECTIVE, [7])
    assert of_it["best"]["trial"] == int(best["trial"])
    assert sum(of_it["importance"].values()) == pytest.approx(1)
    wanted = {
        "server_learning_rate": of_it["best"]["settings"]["server_learning_rate"],
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
    # It is trained for the test: neither its split nor its seed is that of the search.
    assert (spec.task_options["heldout_share"], spec.config.seed) == (0.0, 0)
    assert spec.task_options["num_clients"] == 4
    (trials,) = compared_specs(file).values()
    assert trials[0].settings() == spec.settings()


@pytest.mark.nightly
def test_the_verdict_comes_first_and_says_what_it_does_not_prove(searched):
    path, printed = searched
    found = json.loads((path / "tuned.json").read_text())
    best, sentences = found["algorithms"]["fed_avg"]["best"]["trial"], found["verdict"]
    if best == 0:
        assert (
            "none of 3 trials has a better value than the settings that were given" in sentences[0]
        )
    else:
        row = f"FedAvg with trial {best}"
        assert row in sentences[0] and "the given settings (trial 0)" in sentences[0]
    assert sentences[-2].startswith("Each trial is one run of one seed (--repeats=1)")
    assert sentences[-1].startswith("The best of several trials looks better than it is on the ")
    places = [printed.index(sentence) for sentence in sentences]
    assert places == sorted(places) and places[-1] < printed.index("\nFedAvg\n")
    page = html.unescape((path / "report.html").read_text())
    assert f"\nreport: {path / 'report.html'}\n" in printed
    assert page.index(sentences[0]) < page.index("<h2>The best settings</h2>")


@pytest.mark.nightly
def test_its_report_is_made_again_byte_for_byte(call, folder, searched):
    shutil.copytree(searched[0], folder / "search")
    before = tree(folder / "search")
    (folder / "search" / "report.html").unlink()
    outcome = call(report, "--run=search")
    assert (outcome.status, outcome.out) == (0, "report: search/report.html\n"), outcome
    assert tree(folder / "search") == before
    # A title is a new heading, and stays.
    for flags in (["--title=Digits & <b>"], []):
        assert call(report, "--run=search", *flags).status == 0
        assert "<h1>Digits &amp; &lt;b&gt;</h1>" in (folder / "search/report.html").read_text()
    (folder / "search" / FILE).unlink()
    message = call.refused(folder, report, "--run=search")
    assert message == (f"search/{FILE}: expected the trials of the search, found no such file")
    shutil.copy(searched[0] / FILE, folder / "search" / FILE)
    shutil.rmtree(folder / "search" / "runs" / "fed_avg")
    message = call.refused(folder, report, "--run=search")
    assert message.startswith("search: expected the runs of a complete trial, found none")


@pytest.mark.nightly
def test_of_two_stages_the_second_is_searched_and_the_first_is_trained_once(call, folder):
    further = ("--algorithms=last_layer", "--preset=none", "--rounds=3", "--pruner=none")
    search = ("--search=server_learning_rate=choice:0.1,1", "--trials=2", "--output_dir=search")
    outcome = call(tune, *_FLAGS, *further, *search)
    assert outcome.status == 0, outcome
    first = folder / "search/runs/first_stages/last_layer/seed_7/run"
    config = json.loads((first / "config.json").read_text())
    assert (config["algorithm"], config["rounds"], config["seed"]) == ("fed_avg", 2, 7)
    trained = (first / "checkpoints" / "round_00000002.npz").read_bytes()
    for row in _rows(folder / "search"):
        second = folder / f"search/runs/last_layer/trial_00{row['trial']}/seed_7/run"
        config = json.loads((second / "config.json").read_text())
        assert (config["lambda_update"], config["rounds"]) == ("fixed", 1)
        assert config["server_learning_rate"] == float(row["server_learning_rate"])
        assert (second / "initial_model.npz").read_bytes() == trained
    assert "./run compare --flagfile=search/last_layer/best.flags" in outcome.out
    best = json.loads((folder / "search" / "tuned.json").read_text())["algorithms"]["last_layer"]
    (trials,) = compared_specs("--flagfile=search/last_layer/best.flags").values()
    config = trials[0].settings()
    assert config["server_learning_rate"] == float(best["best"]["settings"]["server_learning_rate"])
    assert (config["lambda_update"], config["rounds"]) == ("fixed", 3)


@pytest.mark.nightly
def test_a_complete_search_runs_nothing_again(call, folder, searched, monkeypatch):
    shutil.copytree(searched[0], folder / "search")
    before = tree(folder / "search" / "runs")
    judged = []
    monkeypatch.setattr(
        tuning_page, "neglected", lambda *what: judged.append(what) or ["fed_avg neglects somebody"]
    )
    outcome = call(tune, *_FLAGS, "--trials=3", "--output_dir=search", "--resume")
    assert outcome.status == 0, outcome
    assert tree(folder / "search" / "runs") == before
    # Of the best trial of each algorithm, as `compare` says it.
    assert "note: fed_avg neglects somebody.\n" in outcome.out
    ((compared, specs),) = judged
    best = json.loads((folder / "search" / "tuned.json").read_text())["algorithms"]["fed_avg"]
    overall = _result(folder / "search", best["best"]["trial"])["overall"]["accuracy"]
    assert compared.trials["fed_avg"].values["(overall)"]["accuracy"] == [overall]
    assert specs["fed_avg"].config.seed == 7


_ADULT = (
    "39, State-gov, 77516, Doctorate, 13, Never-married, Adm-clerical, Not-in-family, White, "
    "Male, 2174, 0, 40, United-States, <=50K\n"
)
_TWO_CLIENTS = ("--num_clients=2", "--num_test_clients=2")


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("further", "found"),
    [
        (["--task=adult", "--data_dir=.", *_TWO_CLIENTS], "task was 'digits' there"),
        (
            ["--client_batch_size=50"],
            "settings: fed_avg: client_batch_size was 100 there, and is 50 here",
        ),
        (["--objective=worst"], "objective"),
        (["--search=server_learning_rate=0.1..1"], "search: fed_avg: server_learning_rate"),
        (["--seed=8"], "seeds"),
    ],
)
def test_another_search_does_not_go_on_there(call, folder, searched, further, found):
    shutil.copytree(searched[0], folder / "search")
    for name in ("adult.data", "adult.test"):
        (folder / name).write_text(_ADULT * 60)
    flags = [f for f in _FLAGS if further[0] != "--task=adult" or "digits" not in f]
    message = call.refused(folder, tune, *flags, "--output_dir=search", "--resume", *further)
    assert message.startswith(f"--output_dir: search holds another study: {found}")


@pytest.mark.nightly
@golden.arguments
def test_what_is_wrong_is_told_in_a_line(call, folder, searched, arguments):
    shutil.copytree(searched[0], folder / "search")
    return call.refused(folder, tune, *_FLAGS, "--output_dir=search", *arguments)


def test_a_search_needs_a_split_of_its_own_and_something_to_search(call, folder):
    arguments = ("--task=toy_regression", "--output_dir=search")
    assert "one without: digits, adult" in call.refused(folder, tune, *arguments)
    assert call.refused(folder, tune, *_DATA).startswith("--search: expected what to vary")


def test_a_store_without_the_split_is_told_what_mends_it(call, folder):
    write_store(
        folder / "s.sqlite",
        [("train", image("a", "x", 1)), ("test", image("b", "x", 1))],
        "features",
    )
    arguments = (
        "--task=emnist",
        "--data=s.sqlite",
        "--search=client_batch_size=1..9",
        "--output_dir=s",
    )
    assert call.refused(folder, tune, *arguments) == (
        "--data: expected a store with clients in the split heldout, to choose settings by, found "
        "the splits test, train in s.sqlite: import the data again with a share for it "
        "(import_data --split=train:0.8,heldout:0.1,test:0.1)"
    )


@pytest.mark.nightly
def test_an_objective_that_no_run_reports_ends_the_search(call, folder):
    """No domain has enough held-out examples to be the worst one."""
    few = (*_FLAGS, "--worst_min_examples=1000", "--trials=1", "--output_dir=search")
    outcome = call(tune, *few)
    message = outcome.err.splitlines()[-1]
    assert (outcome.status, outcome.err.count("error: ")) == (2, 1)
    where = "error: fed_avg, trial 0 (server_learning_rate=1, server_optimizer=sgd): "
    assert message.startswith(where)
    assert "expected a number that the runs report, found none: of the heldout" in message


@pytest.mark.nightly
def test_a_trial_that_diverges_ends_early_and_equal_settings_run_once(call, folder):
    outcome = call(
        tune,
        *(f for f in _FLAGS if not f.startswith(("--search", "--objective"))),
        *("--search=client_learning_rate=choice:0.1,1e38", "--objective=overall:loss"),
        *("--trials=5", "--sampler=random", "--output_dir=search"),
    )
    assert outcome.status == 0, outcome
    rows = _rows(folder / "search")
    assert [row["trial"] for row in rows] == list("01234")
    for row in rows:
        is_complete = row["client_learning_rate"] == "0.1"
        assert row["state"].split(":")[0] == ("complete" if is_complete else "pruned")
        assert is_complete or "diverged" in row["ended"]
    assert {row["client_learning_rate"] for row in rows} == {"0.1", "1e38"}
    best = json.loads((folder / "search" / "tuned.json").read_text())["algorithms"]["fed_avg"]
    assert best["best"]["settings"] == {"client_learning_rate": "0.1"}
    # The same settings are the same run.
    assert len(list((folder / "search/runs/fed_avg").glob("trial_*/seed_7/run"))) == 2


@pytest.mark.nightly
def test_a_stopped_search_goes_on_as_if_it_had_not_been(call, folder, searched, monkeypatch):
    monkeypatch.setattr(
        StopRequest, "signal_number", property(_after_evaluations(4)), raising=False
    )
    monkeypatch.setattr(StopRequest, "__init__", lambda self: setattr(self, "_previous", {}))
    stopped = call(tune, *_FLAGS, "--trials=3", "--output_dir=search")
    assert stopped.status == 128 + signal.SIGTERM
    assert "go on with: " in stopped.err and "--output_dir=search --resume" in stopped.err
    monkeypatch.undo()
    monkeypatch.chdir(folder)
    outcome = call(tune, *_FLAGS, "--trials=3", "--output_dir=search", "--resume")
    assert outcome.status == 0, outcome
    assert _without_times(folder / "search") == _without_times(searched[0])


@pytest.mark.slow
def test_a_signal_in_the_last_trial_costs_no_table(call, folder, monkeypatch):
    monkeypatch.setattr(
        StopRequest, "signal_number", property(lambda self: 15, lambda self, value: None), False
    )
    outcome = call(tune, *_FLAGS, "--rounds=1", "--trials=1", "--output_dir=search")
    assert outcome.status == 0, outcome
    assert len(_rows(folder / "search")) == 1


def _after_evaluations(count: int):
    asked = []

    def signal_number(self):
        asked.append(self)
        return signal.SIGTERM if len(asked) > count else None

    return signal_number


def _without_times(path: Path) -> list[dict[str, str]]:
    return [{k: v for k, v in row.items() if k != "seconds"} for row in _rows(path)]


_LONGER = (*(f for f in _FLAGS if not f.startswith("--rounds")), "--rounds=40", "--trials=4")


@pytest.mark.nightly
def test_kill_9_costs_nothing(call, folder):
    whole = call(tune, *_LONGER, "--output_dir=whole")
    assert whole.status == 0, whole
    for trial in (0, 2):
        further = ["--resume"] if trial else []
        command = python_module("tune", *_LONGER, "--output_dir=killed", *further)
        with Process(command, folder) as process:
            rows = folder / f"killed/runs/fed_avg/trial_{trial:03d}/seed_7/run/metrics.csv"
            process.wait_for_rows(rows, 12)
            process.send(signal.SIGKILL)
            process.outcome()
    outcome = call(tune, *_LONGER, "--output_dir=killed", "--resume")
    assert outcome.status == 0, outcome
    assert _without_times(folder / "killed") == _without_times(folder / "whole")


@pytest.mark.nightly
def test_two_processes_share_the_trials(folder):
    (folder / "second").mkdir()
    search = folder / "search"
    flags = (*_FLAGS, "--trials=5", f"--output_dir={search}")
    with Process(python_module("tune", *flags), folder) as first:
        asking = search / "runs" / ".ask"
        wait_until(asking.exists)
        joined = python_module("tune", *flags, "--resume")
        with Process(joined, folder / "second") as second:
            # Nobody takes a trial until both want one.
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
    assert {t.state.name for t in tuned_trials(search)} <= {"COMPLETE", "PRUNED"}


def _has_open(pid: int, path: Path) -> bool:
    """Whether a process has opened a folder, as it does to wait for its lock."""
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        # Another descriptor may be closed meanwhile.
        with contextlib.suppress(OSError):
            if descriptor.resolve() == path:
                return True
    return False
