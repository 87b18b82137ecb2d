"""`train`: result.json, printed tables, flags, and resuming."""

import importlib
from pathlib import Path

import numpy as np
import pytest

from binaries import import_data, reproduce, train
from tests.support.commands import ROOT, TOY, Caller, defined_flags, given
from tff_agnostic.base.files import read_json
from tff_agnostic.metrics.metrics_file import read_history
from tff_agnostic.program.commands.registry import COMMANDS, own_flags
from tff_agnostic.program.options.defaults import DEFAULTS
from tff_agnostic.program.options.flags import option_flags
from tff_agnostic.program.runs.options import RunConfig, registered_settings
from tff_agnostic.runtimes.options import CohortOptions, RayOptions

_DIGITS = (
    "--task=digits",
    "--num_clients=6",
    "--num_test_clients=4",
    "--clients_per_round=3",
    "--client_learning_rate=1",
)
_DOMAINS = [str(c) for c in range(10)]


@pytest.fixture(scope="module")
def digits(call: Caller, tmp_path_factory) -> tuple[Path, str]:
    """Folder and output of two rounds of digits."""
    path = tmp_path_factory.mktemp("digits") / "run"
    outcome = call.ok(train, *_DIGITS, "--rounds=2", "--evaluate_every=1", f"--output_dir={path}")
    return path, outcome.out


@pytest.mark.nightly
def test_result_json_is_consistent(digits):
    path, printed = digits
    lines = printed.splitlines()
    assert lines[0] == f"agnostic_fed_avg on digits, 2 rounds: {path}"
    assert {line.split()[0] for line in lines if line} >= {*_DOMAINS, "domain", "all"}
    result = read_json(path / "result.json")
    head = [result[name] for name in ("task", "algorithm", "runtime", "seed", "rounds")]
    assert head == ["digits", "agnostic_fed_avg", "cohort", 0, 2]
    assert list(result["domains"]) == list(result["domain_weights"]) == _DOMAINS
    for entry in (*result["domains"].values(), result["overall"]):
        assert list(entry) == ["num_examples", "loss", "accuracy", "over_clients", "intervals"]
        assert 0 <= entry["accuracy"] <= 1 and entry["loss"] > 0
    assert result["overall"]["num_examples"] == 540
    # Each domain of digits is a class.
    counts = [[n for n in row if n] for row in result["class_counts"].values()]
    assert counts == [[d["num_examples"]] for d in result["domains"].values()]
    tables = [np.array(table) for table in result["confusion"].values()]
    for domain, table in zip(result["domains"].values(), tables):
        assert np.trace(table) / table.sum() == pytest.approx(domain["accuracy"])
    losses = {name: report["loss"] for name, report in result["domains"].items()}
    assert result["worst_domain"] == max(losses, key=lambda name: losses[name])
    assert sum(result["domain_weights"].values()) == pytest.approx(1, abs=1e-5)
    assert result["difference"]["loss"] == max(losses.values()) - min(losses.values())
    assert result["clients"] == {"evaluated": 4, "empty": 0, "non_finite": 0}
    for measure, values in result["overall"]["over_clients"].items():
        in_order = [values[name] for name in ("p10", "p50", "p90", "p95")]
        assert in_order == sorted(in_order)
        ends = result["client_values"][measure]["histogram"]["value"]
        assert values["superquantile"] == pytest.approx(
            ends[-1 if measure == "loss" else 0], rel=1e-5
        )
        assert sum(result["client_values"][measure]["by_size"]["clients"]) == 4


def _settings() -> set[str]:
    """Returns the flags of all settings of tasks, runs and runtimes."""
    options = {name for entry in DEFAULTS.values() for name in entry.spec.option_names}
    assert {"keep", "test_split", "model"} < options
    run_options = [
        RunConfig,
        CohortOptions,
        RayOptions,
        *(settings for _, _, settings in registered_settings()),
    ]
    settings = {flag.name for part in run_options for flag in option_flags(part)}
    assert {"rounds", "window", "q", "mu", "secure_min_clients", "lanes"} < settings
    return options | settings


def test_train_has_flags_for_all_settings():
    others = {"task", "data_dir", "data", "algorithm_options", "output_dir", "resume"}
    assert defined_flags(train) == {*others, *_settings()}
    missing = _settings() - defined_flags(reproduce)
    assert missing == {"algorithm", "target_domain", "trust"}


def test_command_flags_are_reserved():
    """Options of users' algorithms must not have the name of any command's flag."""
    modules = {path.stem for path in (ROOT / "binaries").glob("[!_]*.py")}
    assert {*COMMANDS, "run_plan"} == modules
    commands = [importlib.import_module(f"binaries.{name}") for name in COMMANDS]
    commands.remove(import_data)
    names = set().union(*map(defined_flags, commands))
    assert names - _settings() == own_flags() - _settings()
    assert {"output_dir", "trials", "grid_points", "max_memory_gb"} < own_flags()


@pytest.mark.nightly
def test_toy_regression_tracks_the_learned_value(call, folder):
    flags = (*TOY, "--rounds=2", "--window=2", "--output_dir=run")
    call.ok(train, *flags)
    config = read_json(folder / "run" / "config.json")
    assert config.items() >= given(train, *flags).spec().flags().items()
    columns = read_history(folder / "run" / "metrics.csv")
    # The learned value is initially 2, and moves towards the domains.
    assert 0 < columns["learned value"][1] < columns["learned value"][0] < 2
    assert "learned value over the rounds" in (folder / "run" / "page.json").read_text()


@pytest.mark.nightly
@pytest.mark.parametrize(
    "arguments",
    [
        ["--client_mode=streamed", "--lanes=2"],
        ["--client_mode=vectorised", "--max_clients_in_step=2", "--device=cpu"],
    ],
)
def test_execution_flags_do_not_change_other_settings(call, folder, arguments):
    runs = {"run": [], "other": arguments}
    for name, more in runs.items():
        call.ok(train, *TOY, "--rounds=2", f"--output_dir={name}", *more)
    configs = [read_json(folder / name / "config.json") for name in runs]
    executions = [config.pop("execution") for config in configs]
    assert configs[0] == configs[1]
    assert executions[0] != executions[1]
    norms = [read_history(folder / name / "metrics.csv")["update_norm"] for name in runs]
    np.testing.assert_allclose(norms[1], norms[0], rtol=1e-5)


@pytest.mark.nightly
def test_run_resumes_with_other_percentiles(call, folder):
    first = [*TOY, "--rounds=2", "--evaluate_every=1", "--output_dir=run"]
    call.ok(train, *first, "--client_percentiles=10,50")
    resume = ["--resume", "--output_dir=run", "--rounds=3", "--client_percentiles=75,50"]
    outcome = call.ok(train, *resume)
    assert "--client_percentiles was 10.0,50.0 until now and is 75.0,50.0: col" in outcome.out
    columns = read_history(folder / "run" / "metrics.csv")
    for name, defined in (("p10", [1, 1, 0]), ("p50", [1, 1, 1]), ("p75", [0, 0, 1])):
        assert np.isfinite(columns[f"test/loss over clients/{name}"]).tolist() == defined


@pytest.mark.nightly
def test_run_resumes_with_settings_of_its_folder(call, folder):
    first = [*TOY, "--rounds=1", "--client_mode=streamed", "--window=3", "--seed=2"]
    call.ok(train, *first, "--output_dir=run")
    config = read_json(folder / "run" / "config.json")
    (folder / "run").rename(folder / "moved")
    outcome = call.ok(train, "--resume", "--output_dir=moved", "--rounds=2", "--evaluate_every=1")
    assert "resuming after round 1\n" in outcome.out
    assert "--evaluate_every was 50 until now and is 1: evaluations of earlier" in outcome.out
    assert "--client_mode" not in outcome.out
    actual = read_json(folder / "moved" / "config.json")
    assert actual == {**config, "rounds": 2, "evaluate_every": 1}

    resume = ("--resume", "--output_dir=moved")
    message = call.refused(folder, train, *resume, "--task=digits", "--keep=1:0.5")
    assert message.startswith("--output_dir: moved holds another run: --task is toy_regression th")
    outcome = call.ok(train, *resume, "--rounds=3", "--client_mode=vectorised")
    assert "--client_mode was streamed until now and is vectorised: numbers may" in outcome.out
