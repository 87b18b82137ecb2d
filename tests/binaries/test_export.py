"""`export`: what is trained is exported, verified and goes on; mistakes are one line."""

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from binaries import evaluate, export, train
from plan_runner.graph_session import read_checkpoint
from tests import golden
from tests.binaries.harness import TOY, Caller
from tests.data.stores import sentence, write_store
from tests.plan_runner.harness import call as run_plan
from tff_agnostic.saving.checkpoints import newest_checkpoint


@pytest.fixture(scope="module")
def trained(call: Caller, tmp_path_factory) -> Path:
    """Two rounds of the toy task, with baselines of excess losses."""
    path = tmp_path_factory.mktemp("trained") / "run"
    baselines = "--lambda_baselines=0.5,0.1,0,0.1,0.5"
    outcome = call(train, *TOY, "--rounds=2", baselines, f"--output_dir={path}")
    assert outcome.status == 0, outcome
    return path


@pytest.fixture(scope="module", params=["daf", "secure"])
def exported(request, call: Caller, trained, tmp_path_factory) -> tuple[Path, str]:
    """An export of that run, and what was printed."""
    path = tmp_path_factory.mktemp(request.param) / "export"
    arguments = [f"--checkpoint={trained}", f"--profile={request.param}", f"--output_dir={path}"]
    outcome = call(export, *arguments)
    assert outcome.status == 0, outcome
    return path, outcome.out


def _state(path: Path) -> dict[str, np.ndarray]:
    return read_checkpoint(path / "server_state.ckpt", "the state")


@pytest.mark.nightly
def test_an_export_of_a_run_is_verified(exported):
    path, _ = exported
    outcome = run_plan(f"--plan={path}", "--verify")
    assert outcome.status == 0, outcome
    assert "\nverified" in outcome.out


@pytest.mark.nightly
def test_it_begins_where_the_run_ended(exported, trained):
    path, printed = exported
    checkpoint = newest_checkpoint(trained / "checkpoints")
    state = _state(path)
    assert state["server/round_num"] == checkpoint.round_num == 2
    np.testing.assert_array_equal(
        state["server/algorithm/weights/trainable/0"], checkpoint.leaves[0]
    )
    manifest = json.loads((path / "manifest.json").read_text())
    assert (manifest["task"], manifest["rounds_trained"]) == ("toy_regression", 2)
    assert manifest["settings"]["clients_per_round"] == 3
    head = f"agnostic_fed_avg on toy_regression, profile {manifest['profile']}, after 2 rounds; "
    assert printed.startswith(head)
    assert printed.endswith(
        f"plan: {path}; to replay its conformance rounds: ./run run_plan --plan={path} --verify\n"
    )


@pytest.mark.nightly
def test_what_is_printed_is_what_travels(exported, tmp_path):
    """With as many clients as the run had in a round."""
    path, printed = exported
    names = ("client_0", "client_1", "client_3")
    (tmp_path / "cohorts.txt").write_text(",".join(names))
    outcome = run_plan(
        f"--plan={path}",
        f"--clients={path / 'conformance' / 'clients'}",
        f"--cohorts={tmp_path / 'cohorts.txt'}",
        f"--output={tmp_path / 'after'}",
    )
    assert outcome.status == 0, outcome
    down, up = (
        int(line.split()[-1]) for line in printed.splitlines() if line.startswith(("down ", "up "))
    )
    assert f"3 clients, {down:,} bytes down, {up:,} up" in outcome.out


@pytest.mark.slow
def test_export_rejects_noise_generator_where_nodes_add_noise(call, tmp_path):
    path, run = tmp_path / "fleet", tmp_path / "run"
    bounds = ("--aggregation=secure", "--limit_examples=40", "--limit_loss=10")
    noise = ("--privacy=distributed", "--noise_multiplier=0.8", "--cohort_sampling=poisson")
    quick = ("--algorithm=fed_avg", "--client_mode=streamed", "--rounds=1")
    outcome = call(train, *TOY, *bounds, *noise, *quick, f"--output_dir={run}")
    assert outcome.status == 0, outcome
    flags = (f"--checkpoint={run}", f"--output_dir={path}")
    outcome = call(export, *flags, "--backend=flower", "--noise_generator=philox")
    assert outcome.status == 2 and not path.exists()
    assert outcome.err.splitlines()[-1].endswith(
        "--noise_generator has no effect on an export, whose noise is that of --checkpoint's run"
    )


@pytest.mark.nightly
def test_fleet_export_has_the_plan_and_a_readme(call, trained, exported, tmp_path):
    """Of secure sums; without what a server of the platform has of its own."""
    secure, _ = exported
    if json.loads((secure / "manifest.json").read_text())["profile"] != "secure":
        pytest.skip("a fleet's plans have secure sums")
    path = tmp_path / "fleet"
    flags = (f"--checkpoint={trained}", "--backend=flower", f"--output_dir={path}")
    outcome = call(export, *flags)
    assert outcome.status == 0, outcome
    assert outcome.out.splitlines()[-1] == (
        "to play it by a fleet on this machine: ./run fleet demo "
        f"--export={path}/plan --clients=CLIENTS --nodes=4 --rounds=3"
    )
    assert "On-Device Personalization" not in outcome.out
    assert {each.name for each in path.iterdir()} == {"plan", "README.md"}
    found, expected = (
        {each.relative_to(folder).as_posix(): each.read_bytes() for each in folder.rglob("*.*")}
        for folder in (path / "plan", secure)
    )
    manifest, of_platform = (
        json.loads(files.pop("manifest.json").decode()) for files in (dict(found), dict(expected))
    )
    assert set(expected) - set(found) == {"task.json"}
    assert {name for name in found if found[name] != expected[name]} == {"manifest.json"}
    assert manifest["backend"] == "flower"
    assert "backend" not in of_platform
    assert not any("platform" in text for text in manifest["not_verified"])
    sha256 = hashlib.sha256(found["manifest.json"]).hexdigest()
    readme = (path / "README.md").read_text().splitlines()
    assert len(readme) <= 10 and f"{sha256}." in readme


@pytest.mark.slow
def test_an_evaluation_reports_what_evaluate_does(call, folder):
    """Of a family's model that is not the main one."""
    family = ("--algorithm=delta_fl", "--theta=1,0.5", "--threshold=lagged")
    outcome = call(train, *TOY, *family, "--rounds=2", "--output_dir=family")
    assert outcome.status == 0, outcome
    chosen = ("--checkpoint=family", "--models=conformity_0.5")
    kind = ("--kind=evaluation", "--population=fleet", "--every_iterations=5")
    outcome = call(export, *chosen, *kind, "--output_dir=export", "--clients_dir=clients")
    assert outcome.status == 0, outcome
    head = "evaluation of conformity_0.5 of delta_fl on toy_regression, profile daf, after 2 rounds"
    assert outcome.out.startswith(head)
    assert "paper" not in outcome.out
    assert " test clients, and the cohort of all of them: clients\n" in outcome.out
    manifest = json.loads(Path("export/manifest.json").read_text())
    assert (manifest["kind"], manifest["evaluated_model"]) == ("evaluation", "conformity_0.5")
    assert manifest["conformance"]["rounds"] == 1
    message = json.loads(Path("export/task.json").read_text())["task"]
    assert message["populationName"] == "fleet"
    assert message["info"]["evaluationInfo"]["trainingPopulationName"] == "fleet"
    outcome = run_plan("--plan=export", "--verify")
    assert outcome.status == 0, outcome
    cohorts = ["--clients=clients", "--cohorts=clients/cohorts.txt"]
    outcome = run_plan("--plan=export", *cohorts, "--output=after")
    assert outcome.status == 0, outcome
    (row,) = Path("after/metrics.jsonl").read_text().splitlines()
    found = json.loads(row)["metrics"]
    outcome = call(evaluate, *chosen, "--output=evaluation.json")
    assert outcome.status == 0, outcome
    expected = json.loads(Path("evaluation.json").read_text())
    domains = list(expected["domains"].values())
    assert found["domains/loss"] == pytest.approx([d["loss"] for d in domains], rel=1e-5)
    assert found["domains/num_examples"] == [d["num_examples"] for d in domains]
    assert found["overall/loss"] == pytest.approx(expected["overall"]["loss"], rel=1e-5)
    assert found["worst/loss"] == pytest.approx(expected["worst"]["loss"]["value"], rel=1e-5)
    sets = [*domains, expected["overall"]]
    for name in ("mean", "p10", "p50", "p90", "p95"):
        values = [s["over_clients"]["loss"][name] for s in sets]
        assert found[f"over_clients/loss/{name}"] == pytest.approx(values, rel=1e-5), name
    assert found["clients/evaluated"] == expected["clients"]["evaluated"]
    # What was evaluated is still there.
    before, after = _state(Path("export")), _state(Path("after"))
    assert set(before) == set(after)
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value, err_msg=name)


@golden.arguments
def test_flags(folder, arguments):
    (folder / "full").mkdir()
    (folder / "full" / "file").write_text("")
    nothing_starts = Caller(None)
    task = [] if any(a.startswith("--task=") for a in arguments) else TOY
    return nothing_starts.refused(folder, export, *task, *arguments)


@pytest.mark.nightly
@golden.arguments
def test_checkpoints(folder, trained, arguments):
    for name in ("run", "damaged", "nobodys"):
        shutil.copytree(trained, folder / name)
    (folder / "empty").mkdir()
    (folder / "damaged" / "checkpoints" / "round_00000002.npz").write_bytes(b"PK\x03\x04")
    (folder / "nobodys" / "config.json").unlink()
    nothing_starts = Caller(None)
    return nothing_starts.refused(folder, export, *arguments, "--output_dir=new/export")


@pytest.mark.nightly
def test_a_checkpoint_of_other_settings(call, folder, trained):
    arguments = [f"--checkpoint={trained}", "--output_dir=new/export", "--server_optimizer=adam"]
    message = call.refused(folder, export, *arguments)
    assert message.startswith(f"{trained}: expected the state of this model and algorithm (")


def test_a_folder_that_cannot_be_made(call, folder):
    (folder / "file").write_text("")
    message = call.refused(folder, export, *TOY, "--output_dir=file/export")
    assert message.startswith("--output_dir: file/export: cannot write: ")


@pytest.mark.nightly
def test_clients_that_cannot_be_written(call, folder):
    (folder / "file").write_text("")
    message = call(export, *TOY, "--output_dir=export", "--clients_dir=file/clients").error
    assert message.startswith("file/clients: cannot write: ")
    # The export is whole.
    assert run_plan("--plan=export", "--verify").status == 0
    assert sorted(path.name for path in folder.iterdir()) == ["export", "file"]


_MODEL = """
import tensorflow as tf
from tff_agnostic.models import SentenceLoss

def build_model(data):
    x = tf.keras.Input(data.x_shape, dtype=data.x_dtype)
    scores = tf.keras.layers.Embedding(data.num_ids, data.num_ids)(x)
    return tf.keras.Model(x, scores), SentenceLoss()
"""


@pytest.mark.nightly
def test_a_users_own_model(call, folder):
    def write(words):
        rows = [
            (split, sentence(client, domain, "a b c"))
            for split in ("train", "test")
            for client in ("x", "y")
            for domain in ("answer", "question")
        ]
        (folder / "s.sqlite").unlink(missing_ok=True)
        write_store(folder / "s.sqlite", rows, "text", vocabulary=words)

    write({"a": 3, "b": 2, "c": 1})
    (folder / "model.py").write_text(_MODEL)
    task = ("--task=custom", "--data=s.sqlite", "--model=model.py", "--sequence_length=3")
    flags = (*task, "--clients_per_round=2", "--rounds=1", "--output_dir=run")
    outcome = call(train, *flags)
    assert outcome.status == 0, outcome
    # The store and the model are those of the run.
    arguments = ["--checkpoint=run", "--output_dir=export", "--clients_dir=clients"]
    outcome = call(export, *arguments)
    assert outcome.status == 0, outcome
    outcome = run_plan("--plan=export", "--verify")
    assert outcome.status == 0, outcome
    outcome = run_plan("--plan=export", "--clients=clients", "--output=after")
    assert outcome.status == 0, outcome

    write({"b": 3, "a": 2, "c": 1})
    message = call.refused(folder, export, "--checkpoint=run", "--output_dir=other")
    assert message.startswith("run: expected the vocabulary that the run there was trained with (")
