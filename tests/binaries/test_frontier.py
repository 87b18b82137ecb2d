"""`frontier`: algorithms compared with mixtures of the domains, which have known optima."""

import html
import re
from pathlib import Path

import numpy as np
import pytest

from binaries import frontier
from tests.support import golden
from tests.support.commands import TOY, Caller, stopped, tree, write_points
from tff_agnostic.base.files import read_json
from tff_agnostic.program import progress
from tff_agnostic.program.studies import frontier_command

# Each round is one gradient step on all points of all clients; this step size reaches the optimum.
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
    """Folder and output of a frontier of five domains."""
    path = tmp_path_factory.mktemp("exact") / "runs"
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(progress, "LINE_SECONDS", 0.01)
        outcome = call(frontier, *_EXACT, f"--output_dir={path}")
    assert outcome.status == 0, outcome
    assert re.search(r"^frontier: \d of 13 trials, .* left \(", outcome.err, re.MULTILINE)
    return path, outcome.out


def _json(path: Path) -> dict:
    return read_json(path / "frontier.json")


@pytest.mark.nightly
def test_mixtures_reach_their_optima(exact):
    content = _json(exact[0])
    domains = list(content["mixtures"]["training_mixture"]["lambda"])
    lambdas = {"training_mixture": _SHARES}
    for i in range(5):
        lambdas[f"to_{i}_0.5"] = (_SHARES + np.eye(5)[i]) / 2
        lambdas[f"only_{i}"] = np.eye(5)[i]
    assert list(content["mixtures"]) == list(lambdas)
    assert list(content["results"]) == [*lambdas, "fed_avg", "agnostic_fed_avg"]
    # A mixture's optimum is the mean of the centres, weighted by lambda.
    for name, lambda_ in lambdas.items():
        given = content["mixtures"][name]["lambda"]
        np.testing.assert_allclose([given[d] for d in domains], lambda_, atol=1e-12)
        losses = (_CENTERS - lambda_ @ _CENTERS) ** 2 + _VARIANCE
        result = content["results"][name]
        measured = [result[d]["loss"]["mean"] for d in domains]
        np.testing.assert_allclose(measured, losses, rtol=1e-4, err_msg=name)
        assert result["(worst)"]["loss"]["mean"] == pytest.approx(losses.max(), rel=1e-4)
    # FedAvg minimises the loss of the training mixture.
    ends = [
        content["results"][r]["(worst)"]["loss"]["mean"] for r in ("training_mixture", "fed_avg")
    ]
    assert ends[0] == pytest.approx(ends[1], rel=1e-5)


@pytest.mark.nightly
def test_verdict_begins_with_the_best_mixture(exact):
    path, printed = exact
    content = _json(path)
    # Halfway to the second domain, the optimum is at -0.0125, and the farthest centre is at 1.
    assert content["best"] == "to_1_0.5" and "fed_avg" in content["missed_by"]
    best = content["results"]["to_1_0.5"]["(worst)"]["loss"]["mean"]
    assert best == pytest.approx(1.0125**2 + _VARIANCE, rel=1e-4)
    first = content["sentences"][0]
    assert first.startswith("A mixture helps, and ")
    assert printed.splitlines()[-1] == f"report: {path / 'report.html'}"
    assert printed.index(first) < printed.index("\nloss on the test clients")
    page = html.unescape((path / "report.html").read_text())
    assert page.index(first) < page.index("<h2>What the verdict means</h2>")


_SHORT = (
    *("--task=custom", "--data=clients.sqlite", "--model=model.py", "--clients_per_round=2"),
    *("--rounds=2", "--trials=1", "--grid_points=2", "--algorithms=agnostic_fed_avg"),
)


@pytest.fixture
def two_domains(folder) -> Path:
    """The working directory, with clients of two domains."""
    write_points(folder / "clients.sqlite", ("often", "often", "often", "rare"))
    return folder


@pytest.mark.nightly
def test_finer_grid_keeps_trials(call, two_domains, monkeypatch):
    call.ok(frontier, *_SHORT, "--output_dir=runs")
    before = tree(Path("runs/runs"))
    args = "--override=mixtures:server_learning_rate=0.5"
    message = call.refused(two_domains, frontier, *_SHORT, "--output_dir=runs", "--resume", args)
    assert "holds another run: --server_learning_rate is 1.0 there and 0.5 here" in message
    monkeypatch.setattr(
        frontier_command, "neglected", lambda _, rows: [f"{len(rows)} methods neglect a domain"]
    )
    outcome = call.ok(frontier, *_SHORT, "--output_dir=runs", "--resume", "--grid_points=3")
    after = tree(Path("runs/runs"))
    results = [name for name in before if name.endswith(("result.json", "metrics.csv"))]
    assert len(results) == 8 and all(after[name] == before[name] for name in results)
    assert "note: 5 methods neglect a domain.\n" in outcome.out
    content = _json(Path("runs"))
    assert content["measure"] == "accuracy"
    mixtures = ["training_mixture", "only_1", "lambda_0-0.5_1-0.5", "only_0"]
    assert list(content["mixtures"]) == mixtures
    assert list(content["results"]) == [*mixtures, "agnostic_fed_avg"]
    assert content["mixtures"]["training_mixture"]["lambda"] == {"often": 0.75, "rare": 0.25}


@pytest.mark.nightly
def test_stopped_frontier_resumes_with_its_overrides(call, two_domains):
    args = "--override=mixtures:server_learning_rate=0.5"
    flags = (*_SHORT, "--output_dir=runs", "--grid_algorithm=stochastic_afl", args)
    with stopped():
        outcome = call(frontier, *flags)
    assert outcome.status == 143
    (line,) = [text for text in outcome.err.splitlines() if text.startswith("stopped and saved ")]
    assert "frontier --task=custom" in line
    assert line.endswith("--output_dir=runs --resume")
    call.ok(frontier, *flags, "--resume")
    configs = {
        row: read_json(Path("runs/runs", row, "trial_00", "run", "config.json"))
        for row in ("training_mixture", "only_0", "agnostic_fed_avg")
    }
    assert [config["server_learning_rate"] for config in configs.values()] == [0.5, 0.5, 1.0]
    assert configs["training_mixture"]["algorithm"] == "stochastic_afl"
    assert configs["only_0"]["lambda_initial"] == [1.0, 0.0]
    assert configs["only_0"]["lambda_update"] == "fixed"


@golden.arguments
def test_invalid_flags_raise_user_error(folder, arguments):
    nothing_starts = Caller(None)
    return nothing_starts.refused(folder, frontier, *TOY, *arguments)
