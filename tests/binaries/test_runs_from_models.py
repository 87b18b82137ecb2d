"""`train --initial_model`: runs that start from a checkpoint, a run or a Keras file."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from binaries import evaluate, export, save_model, train
from tests.support.commands import TOY, Outcome, model_weights
from tests.support.marks import usually
from tff_agnostic.base.files import read_json

# All clients train with full batches: every round is the same function of the weights.
_SAME_ROUNDS = (
    *("--task=digits", "--num_clients=4", "--num_test_clients=2"),
    *(
        "--clients_per_round=4",
        "--algorithm=fed_avg",
        "--client_batch_size=2000",
        "--client_epochs=1",
    ),
)


@pytest.mark.nightly
def test_run_from_model_matches_resumed_run(call, folder):
    def run(*arguments: str) -> None:
        call.ok(train, *_SAME_ROUNDS, *arguments)

    run("--rounds=2", "--output_dir=whole")
    call.ok(save_model, "--checkpoint=whole", "--output_dir=saved")
    shutil.copytree(folder / "whole", folder / "two")
    run("--rounds=4", "--output_dir=whole", "--resume")
    start, expected = model_weights(folder / "two"), model_weights(folder / "whole")
    assert max(np.abs(a - b).max() for a, b in zip(start, expected)) > 0.01
    for name, source in (("from_run", "two"), ("from_keras", "saved/model.keras")):
        run("--rounds=2", f"--output_dir={name}", f"--initial_model={source}")
        for actual, wanted in zip(model_weights(folder / name), expected):
            np.testing.assert_allclose(actual, wanted, atol=1e-6)
    # Resuming works after the initial model's file has moved.
    (folder / "saved" / "model.keras").rename(folder / "moved.keras")
    more = ["--output_dir=from_keras", "--rounds=3", "--resume"]
    run(*more, "--initial_model=moved.keras")
    (folder / "moved.keras").unlink()
    call.ok(evaluate, "--checkpoint=from_keras")
    call.ok(save_model, "--checkpoint=from_keras", "--output_dir=again")


@pytest.mark.nightly
def test_run_copies_its_initial_model(call, folder):

    def run(name: str, rounds: int, *arguments: str) -> Path:
        often = ("--checkpoint_every=1", "--keep_checkpoints=1", f"--rounds={rounds}")
        call.ok(train, *TOY, *often, f"--output_dir={name}", *arguments)
        return folder / name

    first = run("first", 1)
    whole, second = (run(name, n, "--initial_model=first") for name, n in (("w", 2), ("s", 1)))
    start = (second / "initial_model.npz").read_bytes()
    run("first", 2, "--resume")
    assert [path.name for path in (first / "checkpoints").iterdir()] == ["round_00000002.npz"]
    # --initial_model=first now has another checkpoint than the run's copy.
    message = call(train, *TOY, "--output_dir=s", "--initial_model=first", "--resume").error
    assert message.endswith("; it is kept: --initial_model=s/initial_model.npz")
    shutil.rmtree(first)
    run("s", 2, "--resume")
    for actual, expected in zip(model_weights(second), model_weights(whole)):
        np.testing.assert_array_equal(actual, expected)
    for name in ("fingerprint.json", "config.json", "metrics.csv"):
        assert (second / name).read_bytes() == (whole / name).read_bytes()
    assert (second / "initial_model.npz").read_bytes() == start
    call.ok(export, "--checkpoint=s", "--output_dir=exported")
    # Without a checkpoint, the run starts again from its copy.
    shutil.rmtree(second / "checkpoints")
    (second / "metrics.csv").unlink()
    run("s", 2, "--resume", "--initial_model=s/initial_model.npz")
    for actual, expected in zip(model_weights(second), model_weights(whole)):
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.nightly
def test_damaged_initial_checkpoint_is_skipped(call, folder):
    often = ("--checkpoint_every=1", "--rounds=2", "--output_dir=first")
    call.ok(train, *TOY, *often)
    checkpoints = folder / "first" / "checkpoints"
    newest = checkpoints / "round_00000002.npz"
    newest.write_bytes(newest.read_bytes()[:-100])
    start = ("--rounds=1", "--initial_model=first")
    outcome = call.ok(train, *TOY, *start, "--output_dir=second")
    assert outcome.err.count("round_00000002.npz: expected a checkpoint, found a damaged") == 1
    assert "; trying the one before it" in outcome.err
    copy = folder / "second" / "initial_model.npz"
    assert copy.read_bytes() == (checkpoints / "round_00000001.npz").read_bytes()
    newest.unlink()
    (checkpoints / "round_00000001.npz").write_bytes(b"")
    message = call.refused(folder, train, *TOY, *start, "--output_dir=third")
    assert message.startswith("--initial_model: every checkpoint is damaged; the oldest is ")


def _save_with_code(path: Path, mark: Path) -> None:
    """Writes a digits model whose Lambda layer creates the folder `mark` when it is loaded."""
    layers = tf.keras.layers
    code = f"lambda x: [__import__('pathlib').Path({str(mark)!r}).mkdir(exist_ok=True), x][1]"
    inputs = tf.keras.Input([64])
    tf.keras.Model(inputs, layers.Dense(10)(layers.Lambda(eval(code))(inputs))).save(path)
    mark.rmdir()


@pytest.mark.nightly
@pytest.mark.parametrize("name", usually(["code.h5"], ["code.h5", "code.keras"]))
def test_every_command_needs_trust_for_predictors(call, folder, name):
    mark = folder / "mark"
    _save_with_code(folder / name, mark)
    mixes = ("--task=digits", "--algorithm=fed_boost", f"--base_predictors={name}", "--rounds=1")
    for command, *arguments in (
        (train, *mixes, "--clients_per_round=2", "--output_dir=run"),
        (evaluate, "--checkpoint=run"),
        (save_model, "--checkpoint=run", "--format=saved_model", "--output_dir=saved"),
    ):
        message = call.refused(folder, command, *arguments)
        assert message.startswith(f"--base_predictors: {folder / name}: ")
        assert "--trust" in message
        assert not mark.exists()
        call.ok(command, *arguments, "--trust")
        assert mark.exists()
        mark.rmdir()


@pytest.mark.nightly
def test_resumed_run_needs_trust_again(call, folder):
    mark = folder / "mark"
    _save_with_code(folder / "code.h5", mark)

    def run(*arguments: str) -> Outcome:
        if mark.exists():
            mark.rmdir()
        return call(train, *_SAME_ROUNDS, "--output_dir=run", *arguments)

    start = ("--rounds=1", "--initial_model=code.h5")
    refused = "found the code of a Lambda layer"
    outcome = run(*start)
    assert (outcome.status, mark.exists()) == (2, False)
    assert refused in outcome.error
    assert not (folder / "run").exists()
    assert run(*start, "--trust").status == 0
    assert mark.exists()
    assert "trust" not in read_json(folder / "run" / "config.json")
    outcome = run("--rounds=2", "--resume")
    assert (outcome.status, mark.exists()) == (2, False)
    assert refused in outcome.error
    assert run("--rounds=2", "--resume", "--trust").status == 0


@pytest.mark.slow
def test_rejects_unusable_initial_models(call, folder, three_rounds):
    call.ok(save_model, f"--checkpoint={three_rounds}", "--output_dir=saved")
    (folder / "empty").mkdir()
    for name in ("notes.txt", "broken.keras"):
        (folder / name).write_text("")
    for path, message in (
        ("saved/model.keras", "[64, 10]"),
        (str(three_rounds), "[64, 10]"),
        ("empty", "found no checkpoint in empty"),
        ("no.keras", "expected a file or a run's folder, found none at no.keras"),
        ("notes.txt", "expected a Keras model (.keras or .h5), a checkpoint or the folder of a "),
        ("broken.keras", "expected a Keras model, cannot load "),
    ):
        flags = ("--rounds=1", "--output_dir=run", f"--initial_model={path}")
        actual = call.refused(folder, train, *TOY, *flags)
        assert actual.startswith("--initial_model: ") and message in actual
