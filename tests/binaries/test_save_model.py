"""`save_model`: files of a run that plain TensorFlow reads, and their card."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from binaries import evaluate, save_model, train
from tests.binaries.harness import TOY, Caller
from tests.data.stores import text_store
from tests.saving.harness import ask_plain_tensorflow
from tff_agnostic.program.run_folder import RunFolder
from tff_agnostic.saving.checkpoints import newest_checkpoint

_DIGITS = ("--task=digits", "--digits_num_clients=6", "--digits_num_test_clients=4")
_FORMATS = "--format=keras,saved_model,tflite"


@pytest.fixture(scope="module")
def digits(call: Caller, tmp_path_factory) -> Path:
    """Three rounds, a checkpoint after each."""
    path = tmp_path_factory.mktemp("digits") / "run"
    outcome = call(
        *(train, *_DIGITS, "--clients_per_round=3", "--rounds=3", "--checkpoint_every=1"),
        f"--output_dir={path}",
    )
    assert outcome.status == 0, outcome
    return path


def _card(folder: Path) -> dict:
    return json.loads((folder / "model_card.json").read_text())


def test_files_tell_what_the_run_tells_in_plain_tensorflow(call, folder, digits):
    outcome = call(
        *(save_model, f"--checkpoint={digits}", _FORMATS, "--quantize=float16"),
        "--output_dir=all/saved",
    )
    assert outcome.status == 0, outcome
    names = ["model.keras", "model_saved_model", "model.tflite", "model_float16.tflite"]
    saved = folder / "all" / "saved"
    assert {path.name for path in saved.iterdir()} == {*names, "model_card.json"}
    clients = RunFolder(digits).spec().load_task().test
    x = np.concatenate([clients.read(c)["x"] for c in clients.client_ids])
    kernel, bias = newest_checkpoint(digits / "checkpoints").model_arrays["model"]
    scores = x @ kernel + bias
    np.savez(saved / "x.npz", x=x)
    ask_plain_tensorflow(folder / "all")
    for name in names:
        with np.load(saved / f"{name}.npz") as told:
            atol = 1e-2 if "float16" in name else 1e-5
            np.testing.assert_allclose(told["predictions"], scores, rtol=0, atol=atol)
            if name == "model_saved_model":
                classes = [str(k).encode() for k in scores.argmax(axis=1)]
                assert told["class_name"].tolist() == classes
    for name in names:
        assert f"{name}: " in outcome.out
    files = {file["path"]: file for file in _card(saved)["files"]}
    assert [files[name]["check"]["is_same"] for name in names] == [True, True, True, False]
    result = json.loads((digits / "result.json").read_text())
    for name in names:
        check = files[name]["check"]
        assert check["num_examples"] == len(x)
        for domain, values in check["domains"].items():
            expected = result["domains"][domain]["accuracy"]
            assert values["accuracy"]["run"] == pytest.approx(expected, abs=1e-6)
            assert values["accuracy"]["file"] == pytest.approx(expected, abs=0.05)


def test_the_card_says_what_the_model_is(call, folder, digits):
    outcome = call(save_model, f"--checkpoint={digits}", "--output_dir=saved")
    assert outcome.status == 0, outcome
    card = _card(folder / "saved")
    assert (card["task"], card["algorithm"], card["round"]) == ("digits", "agnostic_fed_avg", 3)
    assert card["result"] == json.loads((digits / "result.json").read_text())
    assert card["settings"]["clients_per_round"] == 3
    assert card["inputs"] == "float32[None, 64]"
    assert card["versions"]["tensorflow"].startswith("2.")
    # Of an earlier round there is no result.
    path = digits / "checkpoints" / "round_00000002.npz"
    assert call(save_model, f"--checkpoint={path}", "--output_dir=earlier").status == 0
    card = _card(folder / "earlier")
    assert (card["round"], card["result"]) == (2, None)


def test_every_member_of_a_family(call, folder):
    arguments = ["--algorithm=delta_fl", "--conformity=0.3,1", "--rounds=2", "--output_dir=run"]
    assert call(train, *TOY, *arguments).status == 0
    outcome = call(
        save_model, "--checkpoint=run", "--format=keras,tflite", "--output_dir=saved/all"
    )
    assert outcome.status == 0, outcome
    models = newest_checkpoint(folder / "run" / "checkpoints").model_arrays
    assert list(models) == ["conformity_0.3", "conformity_1"]
    saved = folder / "saved" / "all"
    endings = (".keras", ".tflite")
    assert {p.name for p in saved.iterdir()} == {
        *(f"{name}{ending}" for name in models for ending in endings),
        "model_card.json",
    }
    for name, arrays in models.items():
        keras_model = tf.keras.models.load_model(saved / f"{name}.keras", compile=False)
        for found, expected in zip(keras_model.get_weights(), arrays):
            np.testing.assert_array_equal(found, expected)
    assert [file["model"] for file in _card(saved)["files"]] == [
        *["conformity_0.3"] * 2,
        *["conformity_1"] * 2,
    ]


_MODEL = """
import tensorflow as tf
from tff_agnostic.models import LSTM, SentenceLoss

def build_model(data):
    x = tf.keras.Input(data.x_shape, dtype=data.x_dtype)
    states = LSTM(3, return_sequences=True)(tf.keras.layers.Embedding(data.num_ids, 2)(x))
    return tf.keras.Model(x, tf.keras.layers.Dense(data.num_ids)(states)), SentenceLoss()
"""


_TEXT_TASKS = {
    "next_word": ("--task=next_word", "--next_word_units=3", "--next_word_sequence_length=4"),
    "custom": ("--task=custom", "--model=model.py", "--custom_sequence_length=4"),
}


def test_next_words_of_texts(call, folder):
    (folder / "model.py").write_text(_MODEL)
    text_store(folder / "s.sqlite")
    # Begin, the cat; begin, a word that is not known.
    x = np.array([[5, 1, 2, 0], [5, 4, 0, 0]], np.int32)
    for name, task in _TEXT_TASKS.items():
        arguments = ["--data=s.sqlite", "--clients_per_round=2", "--rounds=1"]
        outcome = call(
            train, *task, *arguments, "--client_mode=streamed", f"--output_dir=run_{name}"
        )
        assert outcome.status == 0, outcome
        outcome = call(
            *(save_model, f"--checkpoint=run_{name}", "--format=keras,saved_model"),
            f"--output_dir=all/{name}",
        )
        assert outcome.status == 0, outcome
        assert outcome.out.count("predicts as the run's model does") == 2
        np.savez(folder / "all" / name / "x.npz", x=x)
        (folder / "all" / name / "texts.json").write_text(json.dumps(["the cat", "unheard"]))
    ask_plain_tensorflow(folder / "all")
    words = np.array([b"the", b"cat", b"sat"])
    for name in _TEXT_TASKS:
        run = RunFolder(folder / f"run_{name}")
        model = run.spec().load_task().model
        weights = newest_checkpoint(run.checkpoints).models(model.initial_weights, "")["model"]
        scores = np.asarray(model.predict(weights, x, False, np.zeros(2, np.int32)))
        for file_name in ("model.keras", "model_saved_model"):
            with np.load(folder / "all" / name / f"{file_name}.npz") as file:
                told = dict(file)
            np.testing.assert_allclose(told["predictions"], scores, atol=1e-5)
        best = [np.argsort(-scores[row, last][1:4])[:2] for row, last in enumerate([2, 1])]
        assert told["next_words"].tolist() == words[best].tolist()


_BAD = [
    (["--format=onnx"], "--format: unknown format 'onnx': valid names: keras, saved_model, tflite"),
    (["--format="], "--format: expected some of keras, saved_model, tflite, found none"),
    (
        ["--format=tflite", "--quantize=int4"],
        "--quantize: unknown quantisation 'int4': did you mean int8? valid names: none, int8, fl",
    ),
    (
        ["--quantize=int8"],
        "--quantize has no effect with --format=keras: it needs --format=tflite",
    ),
    (["--digits_num_clients=0"], "--digits_num_clients: expected "),
    (["--adult_num_clients=9"], "--adult_num_clients has no effect with --task=digits"),
]


@pytest.mark.parametrize(("arguments", "message"), _BAD)
def test_what_cannot_be_saved(call, folder, digits, arguments, message):
    found = call.refused(
        folder, save_model, f"--checkpoint={digits}", "--output_dir=saved", *arguments
    )
    assert found.startswith(message)


def test_folders_that_are_missing_or_not_free(call, folder, digits):
    def refused(*arguments: str) -> str:
        return call.refused(folder, save_model, *arguments)

    assert refused("--output_dir=saved") == (
        "--checkpoint: expected the folder of a run or a checkpoint file, found none"
    )
    assert refused(f"--checkpoint={digits}") == (
        "--output_dir: expected the folder to write, found none"
    )
    (folder / "empty").mkdir()
    assert refused("--checkpoint=empty", "--output_dir=saved") == (
        "empty/checkpoints: expected checkpoints, found none"
    )
    (folder / "empty" / "thesis.tex").write_text("")
    assert refused(f"--checkpoint={digits}", "--output_dir=empty") == (
        "--output_dir: expected a new or empty folder, found empty"
    )


# Full batches of all clients in every round: a round is the same function of the weights.
_SAME_ROUNDS = (
    *("--task=digits", "--digits_num_clients=4", "--digits_num_test_clients=2"),
    *("--clients_per_round=4", "--algorithm=fed_avg", "--batch_size=2000", "--client_epochs=1"),
)


def _weights(run: Path) -> list[np.ndarray]:
    return list(newest_checkpoint(run / "checkpoints").model_arrays["model"])


def test_a_run_from_the_model_of_round_n_is_the_run_that_goes_on_there(call, folder):
    def run(*arguments: str) -> None:
        outcome = call(train, *_SAME_ROUNDS, *arguments)
        assert outcome.status == 0, outcome

    run("--rounds=2", "--output_dir=whole")
    assert call(save_model, "--checkpoint=whole", "--output_dir=saved").status == 0
    shutil.copytree(folder / "whole", folder / "two")
    run("--rounds=4", "--output_dir=whole", "--resume")
    start, expected = _weights(folder / "two"), _weights(folder / "whole")
    assert max(np.abs(a - b).max() for a, b in zip(start, expected)) > 0.01
    for name, source in (("from_run", "two"), ("from_keras", "saved/model.keras")):
        run("--rounds=2", f"--output_dir={name}", f"--initial_model={source}")
        for found, wanted in zip(_weights(folder / name), expected):
            np.testing.assert_allclose(found, wanted, atol=1e-6)
    # It goes on, and is evaluated and saved, when what it started from has moved or is gone.
    (folder / "saved" / "model.keras").rename(folder / "moved.keras")
    more = ["--output_dir=from_keras", "--rounds=3", "--resume"]
    run(*more, "--initial_model=moved.keras")
    (folder / "moved.keras").unlink()
    assert call(evaluate, "--checkpoint=from_keras").status == 0
    assert call(save_model, "--checkpoint=from_keras", "--output_dir=again").status == 0


def test_initial_models_that_do_not_fit(call, folder, digits):
    def refused(path: str) -> str:
        arguments = [*TOY, "--rounds=1", "--output_dir=run", f"--initial_model={path}"]
        return call.refused(folder, train, *arguments)

    assert call(save_model, f"--checkpoint={digits}", "--output_dir=saved").status == 0
    for path in ("saved/model.keras", str(digits)):
        message = refused(path)
        assert message.startswith("--initial_model: /")
        assert "[64, 10]" in message
    (folder / "empty").mkdir()
    assert refused("empty") == (
        "--initial_model: expected a Keras model, a checkpoint or the folder of a run, found no "
        "checkpoint in empty"
    )
    assert refused("no.keras") == (
        "--initial_model: expected a file or a run's folder, found none at no.keras"
    )
    (folder / "notes.txt").write_text("")
    assert refused("notes.txt").startswith(
        "--initial_model: expected a Keras model (.keras or .h5), a checkpoint or the folder of a "
    )
    (folder / "broken.keras").write_text("")
    assert refused("broken.keras").startswith(
        "--initial_model: expected a Keras model, cannot load "
    )
