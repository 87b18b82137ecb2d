"""What earlier releases left goes on, is evaluated and is exported as if it were of today."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from binaries import evaluate, export, import_state, train
from plan_runner.graph_session import read_checkpoint as read_server_state
from tests.binaries.harness import Caller
from tests.plan_runner.harness import TRUST_WITHOUT_SANDBOX
from tests.plan_runner.harness import call as run_plan
from tests.releases.old_runs import LAST, RELEASE, RUNS, copy_of, interrupted, missing_data
from tests.selection import has_tff, usually
from tff_agnostic.metrics.metrics_file import read_history
from tff_agnostic.run.spec import FORMAT
from tff_agnostic.saving.checkpoints import newest_checkpoint, read_checkpoint

# What FedAvg's columns were called; other algorithms' are called so still.
_OF_FED_AVG = {"train/loss": "first_epoch/loss", "train/accuracy": "first_epoch/accuracy"}
_OF_FED_AVG["lambda"] = "share"


@pytest.fixture(scope="module")
def call(request, cohort_runtime) -> Caller:
    """Calls binaries on running runtimes."""
    tff = {"tff": request.getfixturevalue("tff_runtime")} if has_tff() else {}
    return Caller({"cohort": cohort_runtime, **tff})


# On Ray its numbers are those of digits_plain; runs on Ray are in test_ray and a page of docs.
@pytest.fixture(scope="module", params=usually([n for n in RUNS if n != "digits_ray"], RUNS))
def resumed(request, call, tmp_path_factory) -> tuple[str, Path, str]:
    """A run that was interrupted and has gone on: its name, its folder, and what was printed."""
    name = request.param
    if missing_data(name):
        pytest.skip(missing_data(name))
    path = interrupted(name, tmp_path_factory.mktemp("resumed"))
    # Its settings are in its folder; how it was executed is not.
    how = [flag for flag in RUNS[name] if flag.startswith("--client_mode")]
    outcome = call(train, f"--output_dir={path}", "--resume", *how)
    assert outcome.status == 0, outcome
    return name, path, outcome.out


def _assert_same(found: Any, expected: Any) -> None:
    """Compares what JSON holds: numbers up to rounding, all else as it is."""
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        for key, value in expected.items():
            _assert_same(found[key], value)
    elif isinstance(expected, float):
        # Sums are rounded batch by batch; in secure sums that may be a step of quantisation.
        assert found == pytest.approx(expected, rel=1e-5, abs=1e-9)
    else:
        assert found == expected


def _assert_as_then(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Takes away what the first release did not say, and checks that it means what was done then.

    Percentiles were of the nearest rank, and are interpolated today.
    """
    assert (found.pop("split"), found.pop("percentiles")) == ("test", "interpolated")
    # Every domain with an example could be the worst.
    assert (found.pop("worst_min_examples"), found.pop("not_counted")) == (1, [])
    assert (found.pop("superquantile_share"), found.pop("interval_level")) == (0.1, 0.95)
    assert found.pop("client_values")
    of_labels = ("class_counts", "confusion", "answers_by_class", "score_counts")
    for name in (*of_labels, "constant_answers"):
        found.pop(name, None)
    for one in (*found["domains"].values(), found["overall"]):
        assert one.pop("intervals")
    statistics = {id(found): ("p95", "superquantile"), id(expected): ()}
    for result in (found, expected):
        for one in (*result["domains"].values(), result["overall"]):
            for measure in one["over_clients"].values():
                for statistic in ("p10", "p50", "p90", *statistics[id(result)]):
                    assert measure.pop(statistic) >= 0


def _today(name: str, column: str) -> str:
    head, slash, domain = column.rpartition("/")
    renamed = _OF_FED_AVG if "fed_avg" in name or "target" in name else {}
    return f"{renamed.get(head, head)}{slash}{domain}"


def _assert_same_rows(name: str, found: Path, rounds: int) -> None:
    there, today = (read_history(path / "metrics.csv") for path in (RELEASE / name, found))
    for column, values in there.items():
        values_today = today[_today(name, column)][:rounds]
        np.testing.assert_allclose(
            values_today, values[:rounds], rtol=1e-5, atol=1e-6, err_msg=column
        )


def test_the_weights_are_those_of_the_uninterrupted_run(resumed):
    name, path, printed = resumed
    assert "going on after round 6\n" in printed
    found, expected = (read_checkpoint(folder / LAST) for folder in (path, RELEASE / name))
    assert found.round_num == expected.round_num == 12
    # Of today's state all was there; it may have more around it.
    assert len(found.leaves) == len(expected.leaves)
    for leaf, leaf_there in zip(found.leaves, expected.leaves):
        np.testing.assert_allclose(leaf, leaf_there, rtol=1e-6, atol=1e-6)


def test_so_is_the_result(resumed):
    name, path, _ = resumed
    found, expected = (
        json.loads((folder / "result.json").read_text()) for folder in (path, RELEASE / name)
    )
    assert found.pop("about")["measures"]
    _assert_as_then(found, expected)
    # Evaluations by secure sums say today what they clipped.
    clipped = found.pop("clipped", {})
    assert bool(clipped) == ("secure" in name)
    assert not any(clipped.values())
    _assert_same(found, expected)


def test_so_are_the_rounds_under_their_names_of_today(resumed):
    name, path, _ = resumed
    _assert_same_rows(name, path, 12)
    values = read_history(path / "metrics.csv")
    columns = list(values)
    assert len(columns) == len(set(columns))
    # Rows of then are empty where today's evaluations have more.
    (tail,) = [column for column in columns if column.endswith("loss over clients/superquantile")]
    assert np.isnan(values[tail][:6]).all() and np.isfinite(values[tail][-1])
    assert not any(column.startswith(("lambda/", "train/loss/")) for column in columns) or (
        "fed_avg" not in name and "target" not in name
    )


def test_the_folder_is_one_of_today(resumed):
    name, path, _ = resumed
    config = json.loads((path / "config.json").read_text())
    assert config["format"] == FORMAT
    if config["aggregation"] == "secure":
        # Nobody asked for more than one client then.
        assert config["secure_min_clients"] == 1
    assert ("window" in config) == ("fed_avg" not in name and "target" not in name)


# What runs differ in here is what they train and read; `resumed` has their runtimes.
@pytest.mark.parametrize("name", usually(["digits_plain"], ["digits_plain", "texts"]))
def test_a_complete_run_gets_more_rounds(call, tmp_path, name):
    path = copy_of(name, tmp_path)
    outcome = call(train, *RUNS[name], "--rounds=14", f"--output_dir={path}", "--resume")
    assert outcome.status == 0, outcome
    assert "going on after round 12\n" in outcome.out
    assert json.loads((path / "result.json").read_text())["rounds"] == 14
    assert read_history(path / "metrics.csv")["round"].tolist() == list(range(1, 15))
    _assert_same_rows(name, path, 11)


@pytest.mark.parametrize("name", ["digits_plain", "digits_fed_avg_secure", "texts"])
def test_it_is_evaluated_as_it_was(call, tmp_path, name):
    path = copy_of(name, tmp_path)
    outcome = call(evaluate, f"--checkpoint={path}", f"--output={tmp_path / 'e.json'}")
    assert outcome.status == 0, outcome
    found = json.loads((tmp_path / "e.json").read_text())
    result = json.loads((path / "result.json").read_text())
    _assert_as_then(found, result)
    for key in ("task", "seed", "domains", "overall", "worst_domain", "worst", "difference"):
        _assert_same(found[key], result[key])
    worst = result["domains"][result["worst_domain"]]["loss"]
    # Of several tables, each of a measure, the first one is of the loss.
    line, *_ = [line for line in outcome.out.splitlines() if "(worst)" in line]
    assert f"{worst:.4f}"[:5] in line


@pytest.mark.parametrize(
    ("name", "profile"),
    usually(
        [("digits_tff_secure", "secure"), ("digits_fed_avg_secure", "daf")],
        [("digits_tff_secure", "secure"), ("digits_fed_avg_secure", "daf"), ("texts", "daf")],
    ),
)
def test_its_deployment_goes_on_where_it_ended(call, tmp_path, name, profile):
    path, plan = copy_of(name, tmp_path), tmp_path / "export"
    outcome = call(export, f"--checkpoint={path}", f"--profile={profile}", f"--output_dir={plan}")
    assert outcome.status == 0, outcome
    assert json.loads((plan / "manifest.json").read_text())["rounds_trained"] == 12
    outcome = run_plan(f"--plan={plan}", "--verify")
    assert outcome.status == 0, outcome
    assert "\nverified" in outcome.out


@pytest.mark.parametrize("profile", ["daf", "secure"])
def test_an_export_is_verified(profile):
    outcome = run_plan(f"--plan={RELEASE / f'export_{profile}'}", "--verify")
    assert outcome.status == 0, outcome
    assert "\nverified" in outcome.out


@pytest.mark.parametrize("profile", ["daf", "secure"])
def test_what_its_server_has_becomes_a_run(call, tmp_path, profile):
    plan, back = RELEASE / f"export_{profile}", tmp_path / "back to simulation"
    state = plan / "server_state.ckpt"
    places = [f"--plan={plan}", f"--server_state={state}", f"--output_dir={back}"]
    outcome = call(import_state, *places, *TRUST_WITHOUT_SANDBOX)
    assert outcome.status == 0, outcome
    assert f"./run train '--output_dir={back}' --resume" in outcome.out
    leaves = newest_checkpoint(back / "checkpoints").leaves
    tensors = read_server_state(state, "the state").values()
    assert sorted(leaf.tobytes() for leaf in leaves) == sorted(t.tobytes() for t in tensors)


def test_a_folder_of_a_later_release_is_left_alone(call, tmp_path):
    path = copy_of("digits_plain", tmp_path)
    config = {**json.loads((path / "config.json").read_text()), "format": FORMAT + 1}
    (path / "config.json").write_text(json.dumps(config))
    for command in (
        (train, *RUNS["digits_plain"], f"--output_dir={path}", "--resume"),
        (evaluate, f"--checkpoint={path}"),
        (export, f"--checkpoint={path}", f"--output_dir={tmp_path / 'export'}"),
    ):
        assert call.refused(tmp_path, *command) == (
            f"{path / 'config.json'}: expected format {FORMAT} at most, found {FORMAT + 1}: it was "
            "written by a later release"
        )
