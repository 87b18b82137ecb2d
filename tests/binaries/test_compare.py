"""`compare`: trials, statistics, printed tables, and resuming."""

import html
import re
import shutil
from pathlib import Path

import pytest

from binaries import compare
from tests.support.commands import TOY, Caller, stopped, tree
from tff_agnostic.base.files import read_json
from tff_agnostic.program import progress

_SHORT = (*TOY, "--rounds=2", "--trials=2", "--evaluate_every=1")
_DOMAINS = ["center -1.0", "center -0.4", "center +0.3", "center +0.7", "center +1.0"]


@pytest.fixture(scope="module")
def compared(call: Caller, tmp_path_factory) -> tuple[Path, str]:
    """Folder and output of a comparison of two algorithms with two trials each."""
    path = tmp_path_factory.mktemp("compared") / "runs"
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(progress, "LINE_SECONDS", 0.01)
        outcome = call(compare, *_SHORT, f"--output_dir={path}", "--seed=3")
    assert outcome.status == 0, outcome
    line = r"compare: \d of 4 trials, \d+ s so far, about \d+ s left \(\w+/trial_0[01]\)"
    assert any(re.fullmatch(line, printed) for printed in outcome.err.splitlines())
    return path, outcome.out


@pytest.mark.slow
def test_folder_has_trials_and_their_numbers(compared):
    path, _ = compared
    assert sorted(p.name for p in path.iterdir()) == [
        *("compare.json", "page.json", "report.html", "runs", "study.json")
    ]
    content = read_json(path / "compare.json")
    assert list(content) == ["fed_avg", "agnostic_fed_avg"]
    for algorithm, domains in content.items():
        folders = [path / "runs" / algorithm / f"trial_{k:02d}" / "run" for k in range(2)]
        configs = [read_json(folder / "config.json") for folder in folders]
        assert [(c["algorithm"], c["seed"]) for c in configs] == [(algorithm, 3), (algorithm, 4)]
        results = [read_json(folder / "result.json") for folder in folders]
        summaries = ["(worst)", "(overall)", "(difference)", "(over clients)"]
        assert list(domains) == [*_DOMAINS, *summaries]
        for name in _DOMAINS:
            trials = [r["domains"][name]["loss"] for r in results]
            measure = domains[name]["loss"]
            assert measure["trials"] == trials
            assert measure["mean"] == pytest.approx(sum(trials) / 2)
            assert measure["std"] == pytest.approx(abs(trials[0] - trials[1]) / 2**0.5)
        worst = [r["worst"]["loss"]["value"] for r in results]
        assert domains["(worst)"]["loss"]["trials"] == worst
        assert domains["(overall)"]["loss"]["trials"] == [r["overall"]["loss"] for r in results]
        for name in ("mean", "p10", "p50", "p90", "p95", "superquantile"):
            trials = [r["overall"]["over_clients"]["loss"][name] for r in results]
            assert domains["(over clients)"][name]["loss"]["trials"] == trials


def test_terminal_has_verdict_and_tables(compared):
    path, printed = compared
    record = read_json(path / "page.json")
    verdict = record["sections"][0]["blocks"][0]["sentences"]
    # The verdict comes first. With plain sums, it has intervals over clients.
    assert re.match("(No significant diff|AgnosticFedAvg ).* in the worst domain", verdict[0])
    assert printed.index(verdict[0]) < printed.index("\nloss on the test clients")
    lines = printed.splitlines()
    (heading, *_) = [k for k, line in enumerate(lines) if line.startswith("domain ")]
    assert lines[heading].split() == ["domain", "FedAvg", "AgnosticFedAvg"]
    rows = [re.split("  +", line)[0] for line in lines[heading + 2 :]]
    assert {*rows[:5]} == {*_DOMAINS} and rows[5] == "worst domain"
    assert lines[-2] == f"numbers: {path / 'compare.json'}"
    command = html.unescape((path / "report.html").read_text())
    assert "./run compare --task=toy_regression" in command and "--trials=2" in command


def test_resume_with_other_evaluation_flags_evaluates_again(call, folder, compared):
    shutil.copytree(compared[0], folder / "runs")
    flags = ("--seed=3", "--worst_min_examples=51", "--client_percentiles=5,50")
    call.ok(compare, *_SHORT, "--output_dir=runs", *flags, "--resume")
    for path in (folder / "runs" / "runs").glob("*/trial_*/run/result.json"):
        result = read_json(path)
        assert result["worst_min_examples"] == 51
        assert "p5" in result["overall"]["over_clients"]["loss"]
    content = read_json(folder / "runs" / "compare.json")
    for row in ("fed_avg", "agnostic_fed_avg"):
        assert content[row]["(over clients)"]["p5"]["loss"]["mean"] > 0


@pytest.mark.nightly
def test_resume_adds_trials_and_keeps_complete_ones(call, folder, compared):
    shutil.copytree(compared[0], folder / "runs")
    complete = folder / "runs" / "runs"
    before = tree(complete)
    call.ok(compare, *_SHORT, "--output_dir=runs", "--seed=3", "--resume")
    assert tree(complete) == before
    shutil.rmtree(complete / "agnostic_fed_avg" / "trial_01" / "run")
    before = tree(complete / "fed_avg")
    flags = ["--output_dir=runs", "--trials=3", "--seed=3", "--resume"]
    call.ok(compare, *_SHORT, *flags)
    assert before.items() <= tree(complete / "fed_avg").items()
    content = read_json(folder / "runs" / "compare.json")
    expected = read_json(compared[0] / "compare.json")
    for algorithm, domains in expected.items():
        trials = content[algorithm]["(worst)"]["loss"]["trials"]
        assert len(trials) == 3 and trials[:2] == domains["(worst)"]["loss"]["trials"]


@pytest.mark.nightly
def test_stopped_comparison_resumes(call, folder, compared):
    # The signal arrives in the second trial.
    with stopped(questions=3):
        outcome = call(compare, *_SHORT, "--output_dir=runs", "--seed=3")
    assert outcome.status == 143
    (line,) = [text for text in outcome.err.splitlines() if text.startswith("stopped and saved ")]
    assert line.endswith("--output_dir=runs --resume")
    assert not (folder / "runs" / "compare.json").exists()
    call.ok(compare, *line[line.index(_SHORT[0]) :].split())
    actual, expected = ((p / "compare.json").read_bytes() for p in (folder / "runs", compared[0]))
    assert actual == expected


@pytest.mark.nightly
def test_signal_in_last_trial_keeps_results(call, folder):
    """No run remains that the signal could stop."""
    short = ("--rounds=1", "--trials=1", "--algorithms=fed_avg", "--output_dir=runs")
    with stopped():
        call.ok(compare, *TOY, *short)
    assert (folder / "runs" / "compare.json").exists()


@pytest.mark.nightly
def test_overrides_reach_methods_and_methods_share_notes(call, folder):
    flags = ("--rounds=1", "--output_dir=runs", "--window=7", "--max_examples=3", "--trials=1")
    outcome = call.ok(compare, *TOY, *flags, "--override=fed_avg:client_learning_rate=0.5")
    plain, agnostic = (
        read_json(folder / f"runs/runs/{name}/trial_00/run/config.json")
        for name in ("fed_avg", "agnostic_fed_avg")
    )
    assert plain["client_learning_rate"] == 0.5 != agnostic["client_learning_rate"]
    assert "window" not in plain and agnostic["window"] == 7
    # One trial has no standard deviation.
    comparison = read_json(folder / "runs" / "compare.json")
    assert comparison["fed_avg"]["(worst)"]["loss"]["std"] is None
    # Both methods share one note, which is printed before training and with the results.
    note = "8 of 8 clients have more than --max_examples=3."
    assert outcome.out.count(note) == 2
