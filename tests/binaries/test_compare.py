"""`compare`: several algorithms and seeds, a table and plots."""

import html
import json
import re
import shutil
from pathlib import Path

import pytest

from binaries import compare, report
from tests.binaries.harness import TOY, Caller, tree
from tff_agnostic.program import progress
from tff_agnostic.program.commands import command_line
from tff_agnostic.program.options.process import StopRequest

_SHORT = (*TOY, "--rounds=2", "--trials=2", "--evaluate_every=1")
_DOMAINS = ["center -1.0", "center -0.4", "center +0.3", "center +0.7", "center +1.0"]


@pytest.fixture(scope="module")
def compared(call: Caller, tmp_path_factory) -> tuple[Path, str]:
    """Two algorithms and two trials, and what was printed."""
    path = tmp_path_factory.mktemp("compared") / "runs"
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(progress, "LINE_SECONDS", 0.01)
        outcome = call(compare, *_SHORT, f"--output_dir={path}", "--seed=3")
    assert outcome.status == 0, outcome
    line = r"compare: \d of 4 trials, \d+ s so far, about \d+ s left \(\w+/trial_0[01]\)"
    assert any(re.fullmatch(line, printed) for printed in outcome.err.splitlines())
    return path, outcome.out


@pytest.mark.slow
def test_a_folder_per_trial_and_the_comparison(compared):
    path, _ = compared
    assert sorted(p.name for p in path.iterdir()) == [
        "compare.json",
        "comparison.json",
        "page.json",
        "report.html",
        "runs",
        "study.json",
    ]
    for algorithm in ("agnostic_fed_avg", "fed_avg"):
        for k in range(2):
            trial = path / "runs" / algorithm / f"trial_{k:02d}" / "run"
            config = json.loads((trial / "config.json").read_text())
            assert (config["algorithm"], config["seed"]) == (algorithm, 3 + k)
            assert (trial / "result.json").is_file()


@pytest.mark.slow
def test_compare_json(compared):
    path, _ = compared
    found = json.loads((path / "compare.json").read_text())
    assert list(found) == ["fed_avg", "agnostic_fed_avg"]
    for algorithm, domains in found.items():
        assert list(domains) == [
            *(*_DOMAINS, "(worst)", "(overall)", "(difference)"),
            "(over clients)",
        ]
        results = [
            json.loads(
                (path / "runs" / algorithm / f"trial_{k:02d}" / "run" / "result.json").read_text()
            )
            for k in range(2)
        ]
        for name in _DOMAINS:
            trials = [r["domains"][name]["loss"] for r in results]
            measure = domains[name]["loss"]
            assert list(measure) == ["mean", "std", "trials"]
            assert measure["trials"] == trials
            assert measure["mean"] == pytest.approx(sum(trials) / 2)
            assert measure["std"] == pytest.approx(abs(trials[0] - trials[1]) / 2**0.5)
        assert domains["(worst)"]["loss"]["trials"] == [
            r["worst"]["loss"]["value"] for r in results
        ]
        of_clients = [r["overall"]["over_clients"]["loss"] for r in results]
        for name in ("mean", "p10", "p50", "p90", "p95", "superquantile"):
            measure = domains["(over clients)"][name]["loss"]
            assert measure["trials"] == [of[name] for of in of_clients]
            assert measure["mean"] == pytest.approx(sum(measure["trials"]) / 2)
        assert domains["(overall)"]["loss"]["trials"] == [r["overall"]["loss"] for r in results]


def test_terminal_has_verdict_and_tables(compared):
    path, printed = compared
    record = json.loads((path / "page.json").read_text())
    verdict = record["sections"][0]["blocks"][0]["sentences"]
    # The verdict comes first, with intervals over clients, as sums are plain.
    assert re.match("(No significant diff|AgnosticFedAvg ).* in the worst domain", verdict[0])
    assert "over other test clients and other seeds (2 trials)" in printed
    assert printed.index(verdict[0]) < printed.index("\nloss on the test clients")
    lines = printed.splitlines()
    (heading, *_) = [k for k, line in enumerate(lines) if line.startswith("domain ")]
    assert lines[heading].split() == ["domain", "FedAvg", "AgnosticFedAvg"]
    rows = [re.split("  +", line)[0] for line in lines[heading + 2 :]]
    assert rows[:8] == [*_DOMAINS, "worst domain", "all examples", "best - worst"]
    assert "CVaR (worst 10% of clients)" in printed
    assert lines[-2] == f"numbers: {path / 'compare.json'}"
    command = html.unescape((path / "report.html").read_text())
    assert "./run compare --task=toy_regression" in command and "--trials=2" in command


@pytest.mark.nightly
def test_resuming_a_complete_comparison_runs_nothing_again(call, folder, compared):
    shutil.copytree(compared[0], folder / "runs")
    before = tree(folder)
    outcome = call(compare, *_SHORT, "--output_dir=runs", "--seed=3", "--resume")
    assert outcome.status == 0, outcome
    after = tree(folder)
    assert after == before


def test_resuming_with_another_evaluation_evaluates_again(call, folder, compared):
    shutil.copytree(compared[0], folder / "runs")
    flags = ("--seed=3", "--worst_min_examples=51", "--client_percentiles=5,50")
    outcome = call(compare, *_SHORT, "--output_dir=runs", *flags, "--resume")
    assert outcome.status == 0, outcome
    for path in (folder / "runs" / "runs").glob("*/trial_*/run/result.json"):
        result = json.loads(path.read_text())
        assert result["worst_min_examples"] == 51
        assert "p5" in result["overall"]["over_clients"]["loss"]
    found = json.loads((folder / "runs" / "compare.json").read_text())
    for row in ("fed_avg", "agnostic_fed_avg"):
        assert found[row]["(over clients)"]["p5"]["loss"]["mean"] > 0
    # The page reads what compare.json says back from the trials.
    assert call(report, "--run=runs").status == 0


def _without_pages(files):
    return {
        path: content
        for path, content in files.items()
        if not path.endswith(("report.html", "page.json"))
    }


@pytest.mark.nightly
def test_more_trials_and_algorithms_are_added(call, folder, compared):
    shutil.copytree(compared[0], folder / "runs")
    shutil.rmtree(folder / "runs" / "runs" / "agnostic_fed_avg" / "trial_01" / "run")
    before = tree(folder / "runs" / "runs" / "fed_avg")
    arguments = ["--trials=3", "--algorithms=fed_avg,agnostic_fed_avg", "--seed=3", "--resume"]
    outcome = call(compare, *_SHORT, "--output_dir=runs", *arguments)
    assert outcome.status == 0, outcome
    after = tree(folder / "runs" / "runs" / "fed_avg")
    assert {name: after[name] for name in before} == before
    found = json.loads((folder / "runs" / "compare.json").read_text())
    expected = json.loads((compared[0] / "compare.json").read_text())
    for algorithm, domains in expected.items():
        for name in _DOMAINS:
            trials = found[algorithm][name]["loss"]["trials"]
            assert len(trials) == 3
            assert trials[:2] == domains[name]["loss"]["trials"]


@pytest.mark.nightly
def test_a_stopped_comparison_goes_on(call, folder, compared, monkeypatch):
    class StopInSecondTrial(StopRequest):
        questions = 0

        @property
        def signal_number(self):
            type(self).questions += 1
            return 15 if self.questions > 3 else None

        @signal_number.setter
        def signal_number(self, value):
            pass

    with monkeypatch.context() as patch:
        patch.setattr(command_line, "StopRequest", StopInSecondTrial)
        outcome = call(compare, *_SHORT, "--output_dir=runs", "--seed=3")
    assert outcome.status == 143
    (line,) = [text for text in outcome.err.splitlines() if text.startswith("stopped and saved ")]
    assert line.endswith("--output_dir=runs --resume")
    assert not (folder / "runs" / "compare.json").exists()
    outcome = call(compare, *line[line.index(_SHORT[0]) :].split())
    assert outcome.status == 0, outcome
    found, expected = ((p / "compare.json").read_bytes() for p in (folder / "runs", compared[0]))
    assert found == expected


@pytest.mark.nightly
def test_a_signal_in_the_last_trial_costs_no_table(call, folder, monkeypatch):
    """Nothing is left to be stopped, on a terminal and elsewhere."""
    monkeypatch.setattr(
        StopRequest, "signal_number", property(lambda self: 15, lambda self, value: None), False
    )
    short = ("--rounds=1", "--trials=1", "--algorithms=fed_avg", "--output_dir=runs")
    outcome = call(compare, *TOY, *short)
    assert outcome.status == 0, outcome
    assert (folder / "runs" / "compare.json").exists()


@pytest.mark.nightly
def test_flags_for_one_algorithm_only(call, folder):
    outcome = call(
        compare,
        *TOY,
        "--rounds=1",
        "--trials=1",
        "--output_dir=runs",
        "--window=7",
        "--override=fed_avg:client_learning_rate=0.5",
        "--override=agnostic_fed_avg:client_learning_rate=0.25",
    )
    assert outcome.status == 0, outcome
    configs = [
        json.loads(
            (folder / "runs" / "runs" / name / "trial_00" / "run" / "config.json").read_text()
        )
        for name in ("fed_avg", "agnostic_fed_avg")
    ]
    assert [c["client_learning_rate"] for c in configs] == [0.5, 0.25]
    assert configs[1]["window"] == 7
    # One trial has no standard deviation.
    comparison = json.loads((folder / "runs" / "compare.json").read_text())
    assert comparison["fed_avg"]["(worst)"]["loss"]["std"] is None


@pytest.mark.nightly
def test_what_is_left_out_of_the_data_is_said_once(call, folder):
    outcome = call(compare, *TOY, "--rounds=1", "--trials=2", "--max_examples=3")
    assert outcome.status == 0, outcome
    # Of four trials; the clients of both algorithms are the same.
    said = [line for line in outcome.out.splitlines() if line.startswith("note: ")]
    assert len(said) == 1
    assert said[0].endswith("8 of 8 clients have more than --max_examples=3.")
