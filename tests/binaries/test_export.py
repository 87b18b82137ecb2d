"""`export`: plans of runs, and rejected flags and checkpoints."""

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from binaries import evaluate, export, train
from plan_runner.graph_session import read_checkpoint
from tests.plan_runner.harness import call as run_plan
from tests.support import golden
from tests.support.commands import TOY, WORD_MODEL, Caller, write_texts
from tff_agnostic.base.files import read_json
from tff_agnostic.saving.checkpoints import newest_checkpoint


@pytest.fixture(scope="module")
def trained(call: Caller, tmp_path_factory) -> Path:
    """Folder of a run of two rounds, with baselines of excess losses."""
    path = tmp_path_factory.mktemp("trained") / "run"
    baselines = "--lambda_baselines=0.5,0.1,0,0.1,0.5"
    call.ok(train, *TOY, "--rounds=2", baselines, f"--output_dir={path}")
    return path


@pytest.fixture(scope="module", params=["daf", "secure"])
def exported(request, call: Caller, trained, tmp_path_factory) -> tuple[Path, str]:
    """Folder and output of an export of the run."""
    path = tmp_path_factory.mktemp(request.param) / "export"
    arguments = [f"--checkpoint={trained}", f"--profile={request.param}", f"--output_dir={path}"]
    outcome = call.ok(export, *arguments)
    return path, outcome.out


def _state(path: Path) -> dict[str, np.ndarray]:
    return read_checkpoint(path / "server_state.ckpt", "the state")


@pytest.mark.nightly
def test_export_starts_from_run_state(exported, trained):
    path, printed = exported
    outcome = run_plan(f"--plan={path}", "--verify")
    assert outcome.status == 0, outcome
    assert "\nverified" in outcome.out
    checkpoint = newest_checkpoint(trained / "checkpoints")
    state = _state(path)
    assert state["server/round_num"] == checkpoint.round_num == 2
    np.testing.assert_array_equal(
        state["server/algorithm/weights/trainable/0"], checkpoint.leaves[0]
    )
    manifest = read_json(path / "manifest.json")
    assert (manifest["task"], manifest["rounds_trained"]) == ("toy_regression", 2)
    assert manifest["settings"]["clients_per_round"] == 3
    head = f"agnostic_fed_avg on toy_regression, profile {manifest['profile']}, after 2 rounds; "
    assert printed.startswith(head)
    assert printed.endswith(
        f"plan: {path}; to replay its conformance rounds: ./run run_plan --plan={path} --verify\n"
    )


@pytest.mark.nightly
def test_fleet_export_has_plan_and_readme(call, trained, exported, tmp_path):
    secure, _ = exported
    if read_json(secure / "manifest.json")["profile"] != "secure":
        pytest.skip("a fleet's plans have secure sums")
    path = tmp_path / "fleet"
    flags = (f"--checkpoint={trained}", "--backend=flower", f"--output_dir={path}")
    outcome = call.ok(export, *flags)
    assert outcome.out.splitlines()[-1] == (
        "to run it with a fleet on this machine: ./run fleet demo "
        f"--export={path}/plan --clients=CLIENTS --nodes=4 --rounds=3"
    )
    assert "On-Device Personalization" not in outcome.out
    assert {each.name for each in path.iterdir()} == {"plan", "README.md"}
    files, expected = (
        {each.relative_to(folder).as_posix(): each.read_bytes() for each in folder.rglob("*.*")}
        for folder in (path / "plan", secure)
    )
    manifest, platforms = (json.loads(f["manifest.json"].decode()) for f in (files, expected))
    assert set(expected) - set(files) == {"task.json"}
    assert {name for name in files if files[name] != expected[name]} == {"manifest.json"}
    assert manifest["backend"] == "flower"
    assert "backend" not in platforms
    assert not any("platform" in text for text in manifest["not_verified"])
    sha256 = hashlib.sha256(files["manifest.json"]).hexdigest()
    readme = (path / "README.md").read_text().splitlines()
    assert len(readme) <= 10 and f"{sha256}." in readme


@pytest.mark.slow
def test_evaluation_plan_gives_same_report_as_evaluate(call, folder):
    family = ("--algorithm=delta_fl", "--theta=1,0.5", "--threshold=lagged")
    call.ok(train, *TOY, *family, "--rounds=2", "--output_dir=family")
    chosen = ("--checkpoint=family", "--models=conformity_0.5")
    kind = ("--kind=evaluation", "--population=fleet")
    outcome = call.ok(export, *chosen, *kind, "--output_dir=export", "--clients_dir=clients")
    head = "evaluation of conformity_0.5 of delta_fl on toy_regression, profile daf, after 2 rounds"
    assert outcome.out.startswith(head)
    assert "paper" not in outcome.out
    assert " test clients, and the cohort of all of them: clients\n" in outcome.out
    manifest = read_json(Path("export/manifest.json"))
    assert (manifest["kind"], manifest["evaluated_model"]) == ("evaluation", "conformity_0.5")
    assert manifest["conformance"]["rounds"] == 1
    message = read_json(Path("export/task.json"))["task"]
    assert message["populationName"] == "fleet"
    assert message["info"]["evaluationInfo"]["trainingPopulationName"] == "fleet"
    outcome = run_plan("--plan=export", "--verify")
    assert outcome.status == 0, outcome
    cohorts = ["--clients=clients", "--cohorts=clients/cohorts.txt"]
    outcome = run_plan("--plan=export", *cohorts, "--output=after")
    assert outcome.status == 0, outcome
    (row,) = Path("after/metrics.jsonl").read_text().splitlines()
    metrics = json.loads(row)["metrics"]
    call.ok(evaluate, *chosen, "--output=evaluation.json")
    expected = read_json(Path("evaluation.json"))
    domains = list(expected["domains"].values())
    assert metrics["domains/loss"] == pytest.approx([d["loss"] for d in domains], rel=1e-5)
    assert metrics["domains/num_examples"] == [d["num_examples"] for d in domains]
    assert metrics["overall/loss"] == pytest.approx(expected["overall"]["loss"], rel=1e-5)
    assert metrics["worst/loss"] == pytest.approx(expected["worst"]["loss"]["value"], rel=1e-5)
    sets = [*domains, expected["overall"]]
    for name in ("mean", "p10", "p50", "p90", "p95"):
        values = [s["over_clients"]["loss"][name] for s in sets]
        assert metrics[f"over_clients/loss/{name}"] == pytest.approx(values, rel=1e-5), name
    assert metrics["clients/evaluated"] == expected["clients"]["evaluated"]
    # The evaluation does not change the state.
    before, after = _state(Path("export")), _state(Path("after"))
    assert set(before) == set(after)
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value, err_msg=name)


@golden.arguments
def test_rejects_invalid_flags(folder, arguments):
    (folder / "full").mkdir()
    (folder / "full" / "file").write_text("")
    nothing_starts = Caller(None)
    task = [] if any(a.startswith("--task=") for a in arguments) else TOY
    return nothing_starts.refused(folder, export, *task, *arguments)


@pytest.mark.nightly
@golden.arguments
def test_rejects_invalid_checkpoints(call, folder, trained, arguments):
    for name in ("run", "damaged", "foreign"):
        shutil.copytree(trained, folder / name)
    (folder / "damaged" / "checkpoints" / "round_00000002.npz").write_bytes(b"PK\x03\x04")
    (folder / "foreign" / "config.json").unlink()
    return call.refused(folder, export, *arguments, "--output_dir=new/export")


def test_unwritable_folder_prints_one_line(call, folder):
    (folder / "file").write_text("")
    message = call.refused(folder, export, *TOY, "--output_dir=file/export")
    assert message.startswith("--output_dir: file/export: cannot write: ")


@pytest.mark.nightly
def test_unwritable_clients_keep_the_export(call, folder):
    (folder / "file").write_text("")
    message = call(export, *TOY, "--output_dir=export", "--clients_dir=file/clients").error
    assert message.startswith("file/clients: cannot write: ")
    assert run_plan("--plan=export", "--verify").status == 0
    assert sorted(path.name for path in folder.iterdir()) == ["export", "file"]


@pytest.mark.nightly
def test_model_file_of_user_is_exported(call, folder):
    write_texts(folder / "s.sqlite", {"a": 3, "b": 2, "c": 1})
    (folder / "model.py").write_text(WORD_MODEL)
    task = ("--task=custom", "--data=s.sqlite", "--model=model.py", "--sequence_length=3")
    flags = (*task, "--clients_per_round=2", "--rounds=1", "--output_dir=run")
    call.ok(train, *flags)
    arguments = ["--checkpoint=run", "--output_dir=export", "--clients_dir=clients"]
    call.ok(export, *arguments)
    outcome = run_plan("--plan=export", "--verify")
    assert outcome.status == 0, outcome
    outcome = run_plan("--plan=export", "--clients=clients", "--output=after")
    assert outcome.status == 0, outcome
