"""`frontier`: mixtures of the domains beside algorithms, on problems whose answer is known."""

import html
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from binaries import frontier, report
from tests import golden
from tests.binaries.harness import TOY, Caller, tree
from tests.data.stores import LOGISTIC_REGRESSION, points_store
from tff_agnostic.program import progress
from tff_agnostic.program.options.process import StopRequest
from tff_agnostic.program.studies import frontier_command

# Every client in every round, all of its points in one step of the size that ends at the optimum.
_EXACT = (
    "--task=toy_regression",
    "--num_clients=8",
    "--clients_per_round=8",
    "--client_batch_size=1000",
    "--client_learning_rate=0.5",
    "--rounds=2",
    "--trials=1",
    "--grid_points=3",
)
_CENTERS = np.array([-1.0, -0.4, 0.3, 0.7, 1.0])
_SHARES = np.array([0.1, 0.15, 0.2, 0.25, 0.3])
_VARIANCE = 0.1**2


@pytest.fixture(scope="module")
def exact(call: Caller, tmp_path_factory) -> tuple[Path, str]:
    """Five domains, of which each mixture has its optimum in closed form."""
    path = tmp_path_factory.mktemp("exact") / "runs"
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(progress, "LINE_SECONDS", 0.01)
        outcome = call(frontier, *_EXACT, f"--output_dir={path}")
    assert outcome.status == 0, outcome
    assert re.search(r"^frontier: \d of 13 trials, .* left \(", outcome.err, re.MULTILINE)
    return path, outcome.out


def _json(path: Path) -> dict:
    return json.loads((path / "frontier.json").read_text())


@pytest.mark.nightly
def test_every_mixture_ends_at_its_own_optimum(exact):
    found = _json(exact[0])
    domains = list(found["mixtures"]["training_mixture"]["lambda"])
    lambdas = {"training_mixture": _SHARES}
    for i in range(5):
        lambdas[f"to_{i}_0.5"] = (_SHARES + np.eye(5)[i]) / 2
        lambdas[f"only_{i}"] = np.eye(5)[i]
    assert list(found["mixtures"]) == list(lambdas)
    assert list(found["results"]) == [*lambdas, "fed_avg", "agnostic_fed_avg"]
    # The ends of the lines among them: the domain's own centre, where its loss is its variance.
    for name, lambda_ in lambdas.items():
        given = found["mixtures"][name]["lambda"]
        np.testing.assert_allclose([given[d] for d in domains], lambda_, atol=1e-12)
        losses = (_CENTERS - lambda_ @ _CENTERS) ** 2 + _VARIANCE
        result = found["results"][name]
        measured = [result[d]["loss"]["mean"] for d in domains]
        np.testing.assert_allclose(measured, losses, rtol=1e-4, err_msg=name)
        assert result["(worst)"]["loss"]["mean"] == pytest.approx(losses.max(), rel=1e-4)


@pytest.mark.nightly
def test_it_says_first_how_many_runs_there_are_and_what_makes_them_fewer(exact):
    path, printed = exact
    assert printed.startswith(
        "13 runs on toy_regression: 11 mixtures and fed_avg, agnostic_fed_avg, 1 trial of each; "
        f"fewer with smaller --grid_points or --trials: {path}\n"
    )


@pytest.mark.nightly
def test_fed_avg_ends_where_the_training_mixture_does(exact):
    found = _json(exact[0])
    ends = [found["results"][row]["(worst)"]["loss"]["mean"] for row in _ENDS]
    assert ends[0] == pytest.approx(ends[1], rel=1e-5)


_ENDS = ("training_mixture", "fed_avg")


@pytest.mark.nightly
def test_the_answer(exact):
    path, printed = exact
    found = _json(path)
    # Half of the way to the second domain: the optimum is at -0.0125, the farthest centre is 1.
    best, best_loss = found["worst_domain"]["best"], 1.0125**2 + _VARIANCE
    assert best["mixture"] == "to_1_0.5"
    assert best["mean"] == pytest.approx(best_loss, rel=1e-4)
    missed_by = found["worst_domain"]["algorithms"]["fed_avg"]["missed_by"]
    assert missed_by == pytest.approx(1.375**2 + _VARIANCE - best_loss, rel=1e-4)
    assert (found["measure"], found["split"], found["higher_is_better"]) == ("loss", "test", False)
    assert found["sentence"].startswith("A mixture helps, and ")
    assert "(50% of the way to center -0.4)" in found["sentence"]
    assert found["sentence"].endswith("(one seed: what another one would change is not known).")
    *_, report = printed.splitlines()
    assert report == f"report: {path / 'report.html'}"
    # It comes first: on the terminal and on the page.
    assert printed.index(found["sentence"]) < printed.index("\nloss on the test clients")
    page = html.unescape((path / "report.html").read_text())
    assert page.index(found["sentence"]) < page.index("<h2>What the verdict means</h2>")


@pytest.mark.nightly
def test_its_report_is_made_again_byte_for_byte(call, exact):
    path, _ = exact
    before = tree(path)
    (path / "report.html").unlink()
    outcome = call(report, f"--run={path}")
    assert (outcome.status, outcome.out) == (0, f"report: {path / 'report.html'}\n"), outcome
    assert tree(path) == before


@pytest.mark.nightly
def test_a_frontier_that_is_not_there_has_no_report(call, exact, folder):
    shutil.copytree(exact[0], folder / "runs")
    for spoil, what in (
        (lambda found: found["mixtures"]["only_0"].pop("lambda"), "a frontier"),
        (lambda found: found["mixtures"]["only_0"].update({"line": "nobody"}), "mixtures of cent"),
    ):
        found = _json(exact[0])
        spoil(found)
        (folder / "runs" / "frontier.json").write_text(json.dumps(found))
        message = call.refused(folder, report, "--run=runs")
        assert message.startswith(f"runs/frontier.json: expected {what}")
    found = _json(exact[0])
    found["results"]["only_0"]["(worst)"]["loss"]["mean"] += 1
    (folder / "runs" / "frontier.json").write_text(json.dumps(found))
    assert "found " in (message := call.refused(folder, report, "--run=runs"))
    assert message.endswith("frontier --resume writes the file again")


_SHORT = (
    *("--task=custom", "--data=clients.sqlite", "--model=model.py", "--clients_per_round=2"),
    *("--rounds=2", "--trials=1", "--grid_points=2", "--algorithms=agnostic_fed_avg"),
)


@pytest.fixture
def two_domains(folder) -> Path:
    """The current folder, with clients of two domains that want different things."""
    rng = np.random.default_rng(0)
    clients = []
    for split, num_clients in (("train", 4), ("test", 2)):
        for k in range(num_clients):
            domain_id = np.arange(40) % 4 // 3
            x = rng.normal(size=(40, 2))
            y = np.where(domain_id == 0, x[:, 0], x[:, 1]) > 0
            names = [("often", "rare")[i] for i in domain_id]
            clients.append((split, f"client_{k}", x, y, names))
    points_store(folder / "clients.sqlite", clients)
    (folder / "model.py").write_text(LOGISTIC_REGRESSION)
    return folder


@pytest.mark.nightly
def test_a_grid_that_takes_too_long_stops_and_goes_on(call, two_domains, monkeypatch):
    outcome = call(frontier, *_SHORT, "--output_dir=runs", "--max_hours=1e-9")
    assert outcome.status == 2
    (line,) = outcome.err.splitlines()
    assert line.startswith("error: --max_hours: expected about 0.0")
    assert " for 4 trials, the first of which took " in line and " s, found 1e-09; fewer " in line
    results = [path.parent for path in Path("runs/runs").glob("*/*/run/result.json")]
    assert results == [Path("runs/runs/training_mixture/trial_00/run")]
    assert not Path("runs/frontier.json").exists()
    before = tree(results[0])

    # And on a finer grid, which has the points of the coarser one.
    finer = ["--output_dir=runs", "--resume", "--grid_points=3", "--max_hours=1"]
    monkeypatch.setattr(
        frontier_command, "neglected", lambda _, rows: [f"{len(rows)} rows neglect somebody"]
    )
    outcome = call(frontier, *_SHORT, *finer)
    assert outcome.status == 0, outcome
    assert tree(results[0]) == before
    assert "note: 5 rows neglect somebody.\n" in outcome.out
    found = _json(Path("runs"))
    assert found["measure"] == "accuracy"
    mixtures = ["training_mixture", "only_1", "lambda_0-0.5_1-0.5", "only_0"]
    assert list(found["mixtures"]) == mixtures
    assert list(found["results"]) == [*mixtures, "agnostic_fed_avg"]
    assert found["mixtures"]["training_mixture"]["lambda"] == {"often": 0.75, "rare": 0.25}


@pytest.mark.nightly
def test_a_stopped_frontier_says_how_to_go_on(call, two_domains, monkeypatch):
    monkeypatch.setattr(StopRequest, "__enter__", _stopped)
    outcome = call(frontier, *_SHORT, "--output_dir=runs")
    assert outcome.status == 143
    (line,) = [text for text in outcome.err.splitlines() if text.startswith("stopped and saved ")]
    assert "frontier --task=custom" in line
    assert line.endswith("--output_dir=runs --resume")


def _stopped(self: StopRequest) -> StopRequest:
    self.signal_number = 15
    return self


@pytest.mark.nightly
def test_mixtures_have_settings_of_their_own(call, two_domains):
    own = "--override=mixtures:server_learning_rate=0.5"
    flags = ["--grid_algorithm=stochastic_afl", own, "--measure=loss"]
    outcome = call(frontier, *_SHORT, "--output_dir=runs", *flags)
    assert outcome.status == 0, outcome
    configs = {
        row: json.loads(Path("runs/runs", row, "trial_00", "run", "config.json").read_text())
        for row in ("training_mixture", "only_0", "agnostic_fed_avg")
    }
    assert [config["server_learning_rate"] for config in configs.values()] == [0.5, 0.5, 1.0]
    assert configs["training_mixture"]["algorithm"] == "stochastic_afl"
    assert configs["only_0"]["lambda_initial"] == [1.0, 0.0]
    assert configs["only_0"]["lambda_update"] == "fixed"
    assert _json(Path("runs"))["measure"] == "loss"


@golden.arguments
def test_what_cannot_be_drawn(folder, arguments):
    nothing_starts = Caller(None)
    return nothing_starts.refused(folder, frontier, *TOY, *arguments)
