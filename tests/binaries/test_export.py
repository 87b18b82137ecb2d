"""`export`: what is trained is exported, verified and goes on; mistakes are one line."""

import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest

from binaries import evaluate, export, train
from plan_runner.graph_session import read_checkpoint
from tests.binaries.harness import TOY, Caller
from tests.data.stores import sentence, write_store
from tests.plan_runner.harness import call as run_plan
from tests.run.harness import as_nobody
from tests.selection import exhaustive
from tff_agnostic.saving.checkpoints import newest_checkpoint


@pytest.fixture(scope="module")
def trained(call: Caller, tmp_path_factory) -> Path:
    """Two rounds of the toy task."""
    path = tmp_path_factory.mktemp("trained") / "run"
    outcome = call(train, *TOY, "--rounds=2", f"--output_dir={path}")
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


def test_an_export_of_a_run_is_verified(exported):
    path, _ = exported
    outcome = run_plan(f"--plan={path}", "--verify")
    assert outcome.status == 0, outcome
    assert "\nverified" in outcome.out


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


def test_an_evaluation_reports_what_evaluate_does(call, folder):
    """Of a family's model that is not the main one."""
    family = ("--algorithm=delta_fl", "--conformity=1,0.5", "--threshold=lagged")
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


_FLAGS = [
    ([], "--output_dir: expected the folder to write, found none"),
    (["--output_dir="], "--output_dir: expected a path, found an empty one"),
    (["--output_dir=full"], "--output_dir: expected a new or empty folder, found full"),
    (["--output_dir=full/file"], "--output_dir: expected a new or empty folder, found full/file"),
    ([f"--output_dir={'x' * 300}"], f"{'x' * 300}: cannot write: File name too long"),
    (["--output_dir=.", "--clients_dir=new"], "--output_dir: expected a new or empty folder"),
    (
        ["--output_dir=new", "--profile=daff"],
        "--profile: unknown profile 'daff': did you mean daf? valid names: daf, secure",
    ),
    (
        ["--output_dir=new", "--kind=evaluating"],
        "--kind: unknown kind of plan 'evaluating': did you mean evaluation? valid names: training",
    ),
    (["--output_dir=new", "--models=model"], "--models has no effect with --kind=training"),
    (
        ["--output_dir=new", "--kind=evaluation", "--models=conformity_1"],
        "--models: unknown model of agnostic_fed_avg 'conformity_1': valid names: model",
    ),
    (
        ["--output_dir=new", "--kind=evaluation", "--models="],
        "--models: expected one of model, as a plan evaluates one, found none",
    ),
    (["--output_dir=new", "--iterations=0"], "--iterations: expected at least 1, found 0"),
    (
        ["--output_dir=new", "--secure_bits=10"],
        "--secure_bits has no effect with --profile=daf",
    ),
    (
        ["--output_dir=new", "--profile=secure", "--secure_min_clients=4"],
        "--clients_per_round: expected at least --secure_min_clients=4, found 3",
    ),
    (["--output_dir=new", "--max_examples=0"], "--max_examples: expected at least 1, found 0"),
    (
        ["--output_dir=new", "--collection_uri=https://example.org/x"],
        "--collection_uri: expected app:/..., found 'https://example.org/x'",
    ),
    (
        ["--output_dir=new", "--clients_dir=full"],
        "--clients_dir: expected a new or empty folder, found full",
    ),
    (
        ["--output_dir=new", "--clients_dir=new/clients"],
        "--clients_dir: expected a folder apart from new, found new/clients",
    ),
    (
        ["--output_dir=new/export", "--clients_dir=new"],
        "--clients_dir: expected a folder apart from new/export, found new",
    ),
    (
        ["--output_dir=new", "--clients_dir=clients", "--clients_per_round=9"],
        "--clients_per_round: expected 1 to 8, the number of training clients, found 9",
    ),
    (["--output_dir=new", "--task=digit"], "unknown task 'digit': did you mean digits? "),
    (["--output_dir=new", "--algorithm=fed_agv"], "--algorithm: unknown algorithm 'fed_agv': did"),
    (["--output_dir=new", "--task=adult"], "--task=adult reads a folder: name it with --data_dir"),
    (
        ["--output_dir=new", "--task=fashion_mnist", "--data=missing"],
        "--data: expected a client store, found none at ",
    ),
    (["--output_dir=new", "--profil=daf"], "Unknown command line flag 'profil'. Did you mean: pro"),
    # What a plan does not depend on is no flag.
    (["--output_dir=new", "--aggregation=secure"], "Unknown command line flag 'aggregation'"),
    (["--output_dir=new", "--rounds=3"], "Unknown command line flag 'rounds'"),
    (["--output_dir=new", "daf"], "expected flags only, found 'daf'"),
]


@pytest.mark.parametrize(("arguments", "message"), _FLAGS)
def test_flags(folder, arguments, message):
    (folder / "full").mkdir()
    (folder / "full" / "file").write_text("")
    nothing_starts = Caller(None)
    task = [] if any(a.startswith("--task=") for a in arguments) else TOY
    assert nothing_starts.refused(folder, export, *task, *arguments).startswith(message)


_CHECKPOINTS = [
    (
        ["--checkpoint=run", "--task=digits"],
        "--task: expected toy_regression as in the run of --checkpoint, found digits",
    ),
    (
        ["--checkpoint=run", "--algorithm=fed_avg"],
        "--algorithm: expected agnostic_fed_avg as in the run of --checkpoint, found fed_avg",
    ),
    (
        ["--checkpoint=run", "--digits_num_clients=5"],
        "--digits_num_clients has no effect with --task=toy_regression",
    ),
    (["--checkpoint=missing"], "missing: expected a checkpoint, found none"),
    (["--checkpoint=empty"], "empty/checkpoints: expected checkpoints, found none"),
    (["--checkpoint=run/config.json"], "run/config.json: expected a checkpoint, found a damaged"),
    (["--checkpoint=damaged"], "every checkpoint is damaged; the oldest is damaged/checkpoints/"),
    (["--checkpoint=nobodys"], "nobodys/config.json: expected a JSON file, found none"),
]


@pytest.mark.parametrize(("arguments", "message"), _CHECKPOINTS)
def test_checkpoints(folder, trained, arguments, message):
    for name in ("run", "damaged", "nobodys"):
        shutil.copytree(trained, folder / name)
    (folder / "empty").mkdir()
    (folder / "damaged" / "checkpoints" / "round_00000002.npz").write_bytes(b"PK\x03\x04")
    (folder / "nobodys" / "config.json").unlink()
    nothing_starts = Caller(None)
    found = nothing_starts.refused(folder, export, *arguments, "--output_dir=new/export")
    assert found.startswith(message)


def test_a_checkpoint_of_other_settings(call, folder, trained):
    arguments = [f"--checkpoint={trained}", "--output_dir=new/export", "--server_optimizer=adam"]
    message = call.refused(folder, export, *arguments)
    assert message.startswith(f"{trained}: expected the state of this model and algorithm (")


def test_a_folder_that_cannot_be_made(call, folder):
    (folder / "file").write_text("")
    message = call.refused(folder, export, *TOY, "--output_dir=file/export")
    assert message.startswith("file/export: cannot write: ")


def test_an_unwritable_folder(call):
    # Not below pytest's folders, which others may not even enter.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o555)
        with as_nobody():
            message = call.refused(folder, export, *TOY, f"--output_dir={folder / 'export'}")
    assert message == f"{folder / 'export'}: cannot write: Permission denied"


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


@exhaustive
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
    task = ("--task=custom", "--data=s.sqlite", "--model=model.py", "--custom_sequence_length=3")
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
