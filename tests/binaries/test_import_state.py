"""`import_state`: what a fleet trained goes on, is evaluated and saved as any run."""

import json
import shutil
import stat
from pathlib import Path

import numpy as np
import pytest

from binaries import evaluate, export, import_state, save_model, train
from plan_runner.export import open_export
from plan_runner.graph_session import read_checkpoint, write_checkpoint
from tests import golden
from tests.binaries.harness import Caller
from tests.marks import usually
from tests.plan_runner.exports import rehash
from tests.plan_runner.harness import TRUST_WITHOUT_SANDBOX, isolated_here
from tests.plan_runner.harness import call as run_plan
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
# In simulation, then of a fleet, then in simulation again.
_ROUNDS = 6
_PARTS = {"daf": "plain", "secure": "secure"}


@pytest.fixture(scope="module", params=usually(["daf"], _PARTS))
def loop(request, call: Caller, tmp_path_factory) -> Path:
    """A folder with a `whole` run, and one whose middle rounds were a fleet's: `back`."""
    folder = tmp_path_factory.mktemp(f"loop_{request.param}")
    saved = [f"--checkpoint_every={_ROUNDS}", "--keep_checkpoints=3"]
    sums = f"--aggregation={_PARTS[request.param]}"
    whole = f"--output_dir={folder / 'whole'}"
    _ok(call(train, *_DIGITS, sums, f"--rounds={3 * _ROUNDS}", *saved, whole))
    halfway = f"--checkpoint={folder / 'whole/checkpoints' / _name(_ROUNDS)}"
    places = [f"--output_dir={folder / 'export'}", f"--clients_dir={folder / 'clients'}"]
    printed = _ok(call(export, halfway, f"--profile={request.param}", *places))
    cohorts = "8 training clients, and the cohorts of rounds 7 to 24: "
    assert f"\n{cohorts}{folder / 'clients'}\n" in printed
    plan = f"--plan={folder / 'export'}"
    cohorts = [f"--cohorts={folder / 'clients/cohorts.txt'}", f"--rounds={_ROUNDS}"]
    clients = f"--clients={folder / 'clients'}"
    printed = _ok(run_plan(plan, clients, *cohorts, f"--output={folder / 'after'}"))
    assert printed.count("\nround ") == _ROUNDS
    state = f"--server_state={folder / 'after/server_state.ckpt'}"
    # The real thing: in a process of its own.
    places = [f"--output_dir={folder / 'back'}", *TRUST_WITHOUT_SANDBOX]
    printed = _ok(call(import_state, plan, state, *places))
    assert printed.startswith(f"agnostic_fed_avg on digits after 12 rounds: {folder / 'back'}\n")
    return folder


def _ok(outcome) -> str:
    assert outcome.status == 0, outcome
    return outcome.out


def _name(round_num: int) -> str:
    return f"round_{round_num:08d}.npz"


def _assert_close(found, expected, names) -> None:
    for name, one, other in zip(names, found, expected):
        if other.dtype.kind == "i":
            np.testing.assert_array_equal(one, other, err_msg=name)
        else:
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.slow
def test_the_state_is_readable_by_its_owner_only(loop):
    """That of a plan with noise holds its key."""
    assert stat.S_IMODE((loop / "after" / "server_state.ckpt").stat().st_mode) == 0o600


@pytest.mark.slow
def test_what_was_imported_is_what_the_server_had(loop):
    imported = newest_checkpoint(loop / "back" / "checkpoints")
    assert imported.round_num == 2 * _ROUNDS
    tensors = read_checkpoint(loop / "after" / "server_state.ckpt", "the state")
    # Both hold the state's tensors in its own order, which the export's manifest tells.
    order = open_export(loop / "export").manifest.server_state
    assert set(tensors) == set(order)
    for name, leaf in zip(order, imported.leaves):
        np.testing.assert_array_equal(leaf, tensors[name], err_msg=name)
        assert leaf.dtype == tensors[name].dtype


@pytest.mark.slow
def test_a_fleets_rounds_are_those_of_the_simulation(loop):
    """Up to rounding: the runner's TensorFlow sums as the runtime does, in its own kernels."""
    order = open_export(loop / "export").manifest.server_state
    before, expected = (
        read_state(loop / "whole" / "checkpoints" / _name(n * _ROUNDS)).leaves for n in (1, 2)
    )
    found = newest_checkpoint(loop / "back" / "checkpoints").leaves
    _assert_close(found, expected, order)
    weights = next(n for n, name in enumerate(order) if name.endswith("weights/trainable/0"))
    assert np.abs(found[weights] - before[weights]).max() > 0.01


@pytest.mark.nightly
def test_it_goes_on_as_if_it_had_never_been_away(loop, call, tmp_path):
    shutil.copytree(loop / "back", tmp_path / "back")
    resumed = ["--resume", f"--rounds={3 * _ROUNDS}", f"--output_dir={tmp_path / 'back'}"]
    printed = _ok(call(train, *resumed))
    assert "resuming after round 12\n" in printed
    order = open_export(loop / "export").manifest.server_state
    found, expected = (
        newest_checkpoint(folder / "checkpoints").leaves
        for folder in (tmp_path / "back", loop / "whole")
    )
    _assert_close(found, expected, order)
    results = [read_json(folder / "result.json") for folder in (tmp_path / "back", loop / "whole")]
    assert results[0]["rounds"] == results[1]["rounds"] == 3 * _ROUNDS
    losses = [result["overall"]["loss"] for result in results]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    # The fleet's rounds have a row each, of which only the number is known.
    columns = read_history(tmp_path / "back" / "metrics.csv")
    assert columns["round"].tolist() == list(range(1, 3 * _ROUNDS + 1))
    known = ~np.isnan(columns["clients/contributed"])
    assert known.tolist() == [False] * 2 * _ROUNDS + [True] * _ROUNDS


@pytest.mark.nightly
def test_it_is_evaluated_and_saved(loop, call, tmp_path):
    of_fleet = f"--checkpoint={loop / 'back'}"
    of_run = f"--checkpoint={loop / 'whole/checkpoints' / _name(2 * _ROUNDS)}"
    reports = []
    for number, checkpoint in enumerate((of_fleet, of_run)):
        output = tmp_path / f"{number}.json"
        _ok(call(evaluate, checkpoint, f"--output={output}"))
        reports.append(json.loads(output.read_text()))
    assert reports[0]["round"] == reports[1]["round"] == 2 * _ROUNDS
    losses = [report["overall"]["loss"] for report in reports]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    _ok(call(save_model, of_fleet, f"--output_dir={tmp_path / 'model'}"))
    assert read_json(tmp_path / "model" / "model_card.json")["round"] == 2 * _ROUNDS


# --- mistakes


@pytest.mark.slow
@golden.arguments
def test_flags(loop, folder, arguments):
    (folder / "full").touch()
    others = ("of_other_data", "of_other_model", "of_evaluation", "of_private_run")
    for name in ("export", *others):
        shutil.copytree(loop / "export", folder / name)
    manifest = json.loads((folder / "export" / "manifest.json").read_text())
    rehash(folder / "of_other_data", fingerprint={"vocabulary": "abc"})
    settings = {**manifest["settings"], "algorithm": "fed_avg"}
    rehash(folder / "of_other_model", settings=settings)
    rehash(folder / "of_evaluation", kind=EVALUATION)
    rehash(folder / "of_private_run", privacy={"differential_privacy": {}})
    shutil.copy(loop / "after" / "server_state.ckpt", folder / "state")
    tensors = read_checkpoint(folder / "state", "the state")
    write_checkpoint(folder / "less", {n: v for n, v in tensors.items() if "round" in n})
    with isolated_here():
        return Caller(None).refused(folder, import_state, *arguments)
