"""`report` writes the pages of `train` and `compare` again."""

import shutil
from pathlib import Path

import pytest

from binaries import compare, report, train
from tests.support.commands import TOY, Caller, tree
from tests.support.pages import Reader, all_numbers, reads_as
from tff_agnostic.base.files import read_json


@pytest.fixture(scope="module")
def trained(call_that_draws: Caller, tmp_path_factory) -> Path:
    """Folder of a run of two rounds, with figures."""
    path = tmp_path_factory.mktemp("trained") / "run"
    arguments = (*TOY, "--rounds=2", "--evaluate_every=1", f"--output_dir={path}")
    call_that_draws.ok(train, *arguments)
    return path


@pytest.fixture(scope="module")
def compared(call: Caller, tmp_path_factory) -> Path:
    """Folder of a comparison of two algorithms with two trials each."""
    path = tmp_path_factory.mktemp("compared") / "runs"
    arguments = (*TOY, "--rounds=2", "--trials=2", f"--output_dir={path}")
    call.ok(compare, *arguments)
    return path


@pytest.mark.nightly
def test_run_report_shows_run_numbers(trained):
    page = Reader((trained / "report.html").read_text())
    assert len(page.images) > 3
    assert {address[:19] for address in page.images} == {"data:image/svg+xml;"}
    assert all(map(reads_as, page.data))
    record = all_numbers(read_json(trained / "page.json"))
    assert {datum.value for datum in page.data} - {None} <= record
    result = read_json(trained / "result.json")
    assert result["about"]["data"]["train"]["clients"] == 8
    assert "./run train --task=toy_regression" in page.text
    assert "The worst domain is center" in page.text


@pytest.mark.nightly
def test_comparison_report_names_its_trials(call, compared):
    page = Reader((compared / "report.html").read_text())
    assert all(map(reads_as, page.data))
    assert {"the-verdict", "results-by-domain", "how-to-make-it-again"} <= set(page.ids)
    assert "FedAvg" in page.names and "AgnosticFedAvg" in page.names
    for row in ("fed_avg", "agnostic_fed_avg"):
        trial = f"runs/{row}/trial_00/run"
        assert trial in page.text
        call.ok(report, f"--run={compared / trial}")
        run = Reader((compared / trial / "report.html").read_text())
        assert "./run train --task=toy_regression" in run.text
        (compared / trial / "report.html").unlink()


@pytest.mark.nightly
def test_report_command_rewrites_equal_bytes(call, call_that_draws, trained, compared):
    for caller, path in ((call_that_draws, trained), (call, compared)):
        before = tree(path)
        (path / "report.html").unlink()
        outcome = caller(report, f"--run={path}")
        assert (outcome.status, outcome.out) == (0, f"report: {path / 'report.html'}\n"), outcome
        assert tree(path) == before


@pytest.mark.nightly
def test_unwritable_report_keeps_results(call, folder):
    (folder / "run").mkdir()
    arguments = (*TOY, "--rounds=1", "--output_dir=run")
    call.ok(train, *arguments)
    shutil.rmtree(folder / "run" / "tensorboard")
    (folder / "run" / "report.html").unlink()
    (folder / "run" / "report.html").mkdir()
    outcome = call(train, *arguments, "--resume")
    assert outcome.status == 2
    assert outcome.err.splitlines()[-1].startswith("error: run/report.html: cannot write: expected")
    assert "the results in run are complete, and ./run report --run=run writes" in outcome.err
    assert "result: run/result.json" in outcome.out
    assert read_json(folder / "run" / "result.json")["rounds"] == 1


def test_rejects_folders_without_complete_runs(call, folder):
    assert call.refused(folder, report).startswith("--run: expected folder of a complete run, comp")
    for name, content in (("a", "{}"), ("b", '{"about": {"measures": {"loss": 3}}}')):
        (folder / name).mkdir()
        (folder / name / "result.json").write_text(content)
    (folder / "empty").mkdir()
    for name in ("nowhere", "empty", "a", "b"):
        message = call.refused(folder, report, f"--run={name}")
        assert message.startswith(f"{name}/result.json: expected the result of a ")
