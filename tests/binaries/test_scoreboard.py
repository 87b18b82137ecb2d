"""`reproduce --experiment=scoreboard`: a table of rows, a page, and going on where it ended."""

import json
import signal

import pytest

from binaries import reproduce
from tests.binaries.harness import Caller
from tff_agnostic.base.registry import Registry
from tff_agnostic.program.experiments import scoreboard
from tff_agnostic.program.experiments.scoreboard_data import DataSet
from tff_agnostic.program.options.process import Interrupted
from tff_agnostic.program.runs.training import TrainingRun

_TOYS = DataSet(
    "toys of five kinds",
    "toy_regression",
    settings={"clients_per_round": 3},
    of_task={"num_clients": 75},
)
_FLAGS = ("--experiment=scoreboard", "--portfolio=uniform", "--tries=1", "--rounds=2")


@pytest.fixture(autouse=True)
def toys(monkeypatch):
    """The toys, and a data set whose files nobody has."""
    both = Registry("data set", {"toys": _TOYS, "more": DataSet("more", "adult", ("m",), "shops")})
    monkeypatch.setattr(scoreboard, "DATA_SETS", both)


@pytest.fixture
def call(streaming_runtime) -> Caller:
    """Calls binaries on a runtime that traces little."""
    return Caller({"cohort": streaming_runtime})


@pytest.mark.nightly
def test_it_goes_on_and_trains_nothing_again(call: Caller, folder, monkeypatch):
    flags = (*_FLAGS, "--trials=1", "--output_dir=runs", "--page=docs/board.md")
    last, train, trained = "runs/toys/runs/final/uniform/trial_00", TrainingRun.run, []

    def run(self, *arguments, **named):
        path = str(self._folder.path)
        if path == last and last not in trained:
            trained.append(last)
            raise Interrupted("stopped and saved after nothing", signal.SIGTERM)
        trained.append(path)
        return train(self, *arguments, **named)

    monkeypatch.setattr(TrainingRun, "run", run)
    assert call(reproduce, *flags).status == 128 + signal.SIGTERM
    assert not (folder / "docs").exists()
    told = call.refused(folder, reproduce, *flags)
    assert "holds this scoreboard already: add --resume" in told
    told = call.refused(folder, reproduce, *flags, "--trials=2", "--resume")
    assert "is of another scoreboard: --trials is 1 there and 2 here" in told
    outcome = call(reproduce, *flags, "--resume")
    assert outcome.status == 0, outcome
    runs = [f"search/{row}-1" for row in ("fed_avg", "uniform")]
    runs += [f"final/{row}" for row in ("fed_avg", "uniform")]
    expected = [f"runs/toys/runs/{path}/trial_00" for path in runs]
    assert trained == [*expected, last]

    page, board = folder / "docs/board.md", folder / "runs/toys/board.json"
    text, content = page.read_text(), json.loads(board.read_text())
    assert "output_dir" not in text and "--resume" not in text
    assert "- `more`: not run: needs m in --data_dir (shops)" in text
    assert list(content["lines"]) == ["fed_avg", "uniform"]
    for row, of in content["lines"].items():
        assert (of["settings"], of["seeds"]) == (1, 1)
        assert of["seconds"] > 0
        # What the page has is what the runs on the test clients have.
        result = json.loads(
            (folder / f"runs/toys/runs/final/{row}/trial_00/result.json").read_text()
        )
        assert of["worst"] == max(of["loss"] for of in result["domains"].values())
        assert of["overall"] == result["overall"]["loss"]

    page.write_text(text.replace("Nobody has written about these numbers yet.", "Toys are alike."))
    assert call(reproduce, *flags, "--resume").status == 0
    assert len(trained) == 5
    assert json.loads(board.read_text()) == content
    assert page.read_text().endswith("\n\nToys are alike.\n")


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--datasets=more",), "--data_dir: expected a folder with the files of more, found none"),
        (("--datasets=best",), "unknown data set 'best'"),
        (("--data=s.sqlite",), "--data has no effect with --experiment=scoreboard"),
        (("--keep=8:0.5",), "--keep has no effect with --experiment=scoreboard"),
        (("--experiment=adult",), "--tries has no effect without --experiment=scoreboard"),
    ],
)
def test_what_cannot_be_is_told_in_a_line(call: Caller, folder, flags, told):
    message = call.refused(folder, reproduce, *_FLAGS, *flags, "--output_dir=runs")
    assert told in message
