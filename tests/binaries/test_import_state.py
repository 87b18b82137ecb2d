"""`import_state`: the run from a fleet's state is resumed, evaluated and saved."""

import shutil
import stat
from pathlib import Path

import numpy as np
import pytest

from binaries import evaluate, export, import_state, save_model, train
from plan_runner.export import open_export
from plan_runner.graph_session import read_checkpoint, write_checkpoint
from tests.plan_runner.exports import rehash
from tests.plan_runner.harness import TRUST_WITHOUT_SANDBOX, isolated_here
from tests.plan_runner.harness import call as run_plan
from tests.support import golden
from tests.support.commands import Caller
from tests.support.marks import usually
from tff_agnostic.base.files import read_json
from tff_agnostic.deployment.rounds import EVALUATION
from tff_agnostic.metrics.metrics_file import read_history
from tff_agnostic.saving.checkpoints import newest_checkpoint
from tff_agnostic.saving.checkpoints import read_checkpoint as read_state

_DIGITS = (
    "--task=digits",
    "--num_clients=8",
    "--num_test_clients=2",
    "--clients_per_round=4",
    "--max_examples=40",
    "--client_learning_rate=0.3",
)
# Rounds of each part: a simulation, `run_plan` in the role of a fleet, a simulation again.
_ROUNDS = 2
_PARTS = {"daf": "plain", "secure": "secure"}


@pytest.fixture(scope="module", params=usually(["daf"], _PARTS))
def loop(request, call: Caller, tmp_path_factory) -> Path:
    """A folder with the simulated run `whole`, and the run `back`, imported from the fleet."""
    folder = tmp_path_factory.mktemp(f"loop_{request.param}")
    saved = [f"--checkpoint_every={_ROUNDS}", "--keep_checkpoints=3"]
    sums = f"--aggregation={_PARTS[request.param]}"
    whole = f"--output_dir={folder / 'whole'}"
    call.ok(train, *_DIGITS, sums, f"--rounds={3 * _ROUNDS}", *saved, whole)
    halfway = f"--checkpoint={folder / 'whole/checkpoints' / _name(_ROUNDS)}"
    places = [f"--output_dir={folder / 'export'}", f"--clients_dir={folder / 'clients'}"]
    printed = call.ok(export, halfway, f"--profile={request.param}", *places).out
    cohorts = "8 training clients, and the cohorts of rounds 3 to 8: "
    assert f"\n{cohorts}{folder / 'clients'}\n" in printed
    plan = f"--plan={folder / 'export'}"
    cohorts = [f"--cohorts={folder / 'clients/cohorts.txt'}", f"--rounds={_ROUNDS}"]
    clients = f"--clients={folder / 'clients'}"
    printed = _ok(run_plan(plan, clients, *cohorts, f"--output={folder / 'after'}"))
    assert printed.count("\nround ") == _ROUNDS
    state = f"--server_state={folder / 'after/server_state.ckpt'}"
    # This call reads the state in a separate process.
    places = [f"--output_dir={folder / 'back'}", *TRUST_WITHOUT_SANDBOX]
    printed = call.ok(import_state, plan, state, *places).out
    assert printed.startswith(f"agnostic_fed_avg on digits after 4 rounds: {folder / 'back'}\n")
    return folder


def _ok(outcome) -> str:
    assert outcome.status == 0, outcome
    return outcome.out


def _name(round_num: int) -> str:
    return f"round_{round_num:08d}.npz"


def _assert_close(actual, expected, names) -> None:
    for name, one, other in zip(names, actual, expected):
        if other.dtype.kind == "i":
            np.testing.assert_array_equal(one, other, err_msg=name)
        else:
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.slow
def test_imported_state_equals_server_state(loop):
    # The state of a plan with noise contains a secret key.
    assert stat.S_IMODE((loop / "after" / "server_state.ckpt").stat().st_mode) == 0o600
    imported = newest_checkpoint(loop / "back" / "checkpoints")
    assert imported.round_num == 2 * _ROUNDS
    tensors = read_checkpoint(loop / "after" / "server_state.ckpt", "the state")
    # The manifest lists the state's tensors in the order of the checkpoint's leaves.
    order = open_export(loop / "export").manifest.server_state
    assert set(tensors) == set(order)
    for name, leaf in zip(order, imported.leaves):
        np.testing.assert_array_equal(leaf, tensors[name], err_msg=name)
        assert leaf.dtype == tensors[name].dtype


@pytest.mark.slow
def test_fleet_rounds_match_the_simulation(loop):
    order = open_export(loop / "export").manifest.server_state
    before, expected = (
        read_state(loop / "whole" / "checkpoints" / _name(n * _ROUNDS)).leaves for n in (1, 2)
    )
    actual = newest_checkpoint(loop / "back" / "checkpoints").leaves
    _assert_close(actual, expected, order)
    weights = next(n for n, name in enumerate(order) if name.endswith("weights/trainable/0"))
    assert np.abs(actual[weights] - before[weights]).max() > 0.01


@pytest.mark.nightly
def test_resumed_import_matches_the_simulated_run(loop, call, tmp_path):
    shutil.copytree(loop / "back", tmp_path / "back")
    resumed = ["--resume", f"--rounds={3 * _ROUNDS}", f"--output_dir={tmp_path / 'back'}"]
    printed = call.ok(train, *resumed).out
    assert "resuming after round 4\n" in printed
    order = open_export(loop / "export").manifest.server_state
    actual, expected = (
        newest_checkpoint(folder / "checkpoints").leaves
        for folder in (tmp_path / "back", loop / "whole")
    )
    _assert_close(actual, expected, order)
    results = [read_json(folder / "result.json") for folder in (tmp_path / "back", loop / "whole")]
    assert results[0]["rounds"] == results[1]["rounds"] == 3 * _ROUNDS
    losses = [result["overall"]["loss"] for result in results]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    # Rows of imported rounds have the round number and no metrics.
    columns = read_history(tmp_path / "back" / "metrics.csv")
    assert columns["round"].tolist() == list(range(1, 3 * _ROUNDS + 1))
    has_metrics = ~np.isnan(columns["clients/contributed"])
    assert has_metrics.tolist() == [False] * 2 * _ROUNDS + [True] * _ROUNDS


@pytest.mark.nightly
def test_imported_run_is_evaluated_and_saved(loop, call, tmp_path):
    fleet = f"--checkpoint={loop / 'back'}"
    whole = f"--checkpoint={loop / 'whole/checkpoints' / _name(2 * _ROUNDS)}"
    reports = []
    for number, checkpoint in enumerate((fleet, whole)):
        output = tmp_path / f"{number}.json"
        call.ok(evaluate, checkpoint, f"--output={output}")
        reports.append(read_json(output))
    assert reports[0]["round"] == reports[1]["round"] == 2 * _ROUNDS
    losses = [report["overall"]["loss"] for report in reports]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    call.ok(save_model, fleet, f"--output_dir={tmp_path / 'model'}")
    assert read_json(tmp_path / "model" / "model_card.json")["round"] == 2 * _ROUNDS


# --- Rejected flags


@pytest.mark.slow
@golden.arguments
def test_rejects_invalid_flags(loop, folder, arguments):
    (folder / "full").touch()
    others = ("other_data", "other_model", "evaluation", "private_run")
    for name in ("export", *others):
        shutil.copytree(loop / "export", folder / name)
    manifest = read_json(folder / "export" / "manifest.json")
    rehash(folder / "other_data", fingerprint={"vocabulary": "abc"})
    settings = {**manifest["settings"], "algorithm": "fed_avg"}
    rehash(folder / "other_model", settings=settings)
    rehash(folder / "evaluation", kind=EVALUATION)
    rehash(folder / "private_run", privacy={"differential_privacy": {}})
    shutil.copy(loop / "after" / "server_state.ckpt", folder / "state")
    tensors = read_checkpoint(folder / "state", "the state")
    write_checkpoint(folder / "less", {n: v for n, v in tensors.items() if "round" in n})
    with isolated_here():
        return Caller(None).refused(folder, import_state, *arguments)
