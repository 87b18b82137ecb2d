"""Saved models of every task in plain TensorFlow, model cards, and frozen layers."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from binaries import evaluate, export, save_model, train
from tests.plan_runner.harness import call as run_plan
from tests.saving.harness import ask_plain_tensorflow
from tests.support import golden
from tests.support.commands import ADULT_ROW, TOY, Caller, model_weights
from tests.support.marks import selected, usually
from tests.support.stores import WORDS, image, text_store, write_store
from tff_agnostic.base.files import read_json
from tff_agnostic.data.store_format import Record
from tff_agnostic.program.runs.folder import RunFolder
from tff_agnostic.saving.checkpoints import newest_checkpoint
from tff_agnostic.tasks.emnist import CENSUS, HIGH_SCHOOL

_MODEL = """
import tensorflow as tf
from tff_agnostic.models import LSTM, SentenceLoss

def build_model(data):
    x = tf.keras.Input(data.x_shape, dtype=data.x_dtype)
    states = LSTM(3, return_sequences=True)(tf.keras.layers.Embedding(data.num_ids, 2)(x))
    return tf.keras.Model(x, tf.keras.layers.Dense(data.num_ids)(states)), SentenceLoss()
"""
_WORDS = (b"the", b"cat", b"sat")
_TEXTS = ("the cat", "unheard")
# `_TEXTS` as ids, for models of the next word and for classifiers.
_BEGINS = np.array([[5, 1, 2, 0], [5, 4, 0, 0]], np.int32)
_IDS = np.array([[1, 2, 0, 0], [4, 0, 0, 0]], np.int32)
_CLASSIFIER = (*("--task=text_classifier", "--data=labelled.sqlite", "--sequence_length=4"),)
_TASKS = {
    "next_word": (
        *("--task=next_word", "--data=texts.sqlite", "--network=lstm:units=3"),
        "--sequence_length=4",
    ),
    "custom": (
        *("--task=custom", "--data=texts.sqlite", "--model=model.py"),
        "--sequence_length=4",
    ),
    "text_classifier": _CLASSIFIER,
    "adult": ("--task=adult", "--data_dir=adult", "--num_clients=2", "--num_test_clients=2"),
    "emnist": ("--task=emnist", "--data=images.sqlite", "--num_classes=10"),
}
_USUAL = ("text_classifier", "adult")
_INPUTS = {
    "next_word": _BEGINS,
    "custom": _BEGINS,
    "text_classifier": _IDS,
    "adult": None,
    "emnist": None,
}

_ONE_ROUND = ("--clients_per_round=2", "--rounds=1", "--client_mode=streamed")


def _labelled_texts(path: Path) -> Path:
    rows = [
        (split, Record(client, domain, {"tokens": tokens, "label": label}))
        for split, clients in (("train", "ab"), ("test", "t"))
        for client in clients
        for domain, tokens, label in (("web", "the cat", 1), ("phone", "sat dog the", 0))
    ]
    return write_store(path, rows, "text", vocabulary=WORDS, class_names=("bad", "good"))


@pytest.fixture(scope="module")
def several(
    request: pytest.FixtureRequest, call: Caller, three_rounds: Path, tmp_path_factory
) -> Path:
    """A folder with a run of each task in run_NAME, and its models with outputs in all/NAME.

    all/digits has the model of `three_rounds` in every format; digits.out is the printed report.
    """
    folder = tmp_path_factory.mktemp("several")
    (folder / "model.py").write_text(_MODEL)
    text_store(folder / "texts.sqlite")
    _labelled_texts(folder / "labelled.sqlite")
    (folder / "adult").mkdir()
    doctor = ADULT_ROW.replace("Bachelors, 13", "Doctorate, 16").replace("<=50K", ">50K")
    for name in ("adult.data", "adult.test"):
        (folder / "adult" / name).write_text((ADULT_ROW + doctor) * 4)
    writers = [
        (split, image(f"{split}{domain}", domain, label, ink=0.1 * label))
        for split in ("train", "test")
        for domain in (HIGH_SCHOOL, CENSUS)
        for label in (2, 5)
    ]
    write_store(folder / "images.sqlite", writers, "features")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name in sorted({"text_classifier", *selected(request, "name")}):
            outcome = call.ok(train, *_TASKS[name], *_ONE_ROUND, f"--output_dir=run_{name}")
            outcome = call.ok(
                *(save_model, f"--checkpoint=run_{name}", "--format=keras,saved_model"),
                f"--output_dir=all/{name}",
            )
            assert outcome.out.count("predicts as the run's model does") == 2
            np.savez(folder / "all" / name / "x.npz", x=_inputs(folder, name))
            (folder / "all" / name / "texts.json").write_text(json.dumps(_TEXTS))
        outcome = call.ok(
            *(save_model, f"--checkpoint={three_rounds}", _FORMATS, "--quantize=float16"),
            "--output_dir=all/digits",
        )
        (folder / "digits.out").write_text(outcome.out)
        names = {path.name for path in (folder / "all" / "digits").iterdir()}
        assert names == {*_IN_EVERY_FORMAT, "model_card.json"}
        np.savez(folder / "all" / "digits" / "x.npz", x=_tested(three_rounds))
        ask_plain_tensorflow(folder / "all")
    return folder


_FORMATS = "--format=keras,saved_model,tflite"
_IN_EVERY_FORMAT = ("model.keras", "model_saved_model", "model.tflite", "model_float16.tflite")


def _tested(run: Path) -> np.ndarray:
    clients = RunFolder(run).spec().load_task().test
    return np.concatenate([clients.read(client)["x"] for client in clients.client_ids])


def _inputs(folder: Path, name: str) -> np.ndarray:
    if _INPUTS[name] is not None:
        return _INPUTS[name]
    return _tested(folder / f"run_{name}")


def _outputs(folder: Path, name: str, file_name: str) -> dict[str, np.ndarray]:
    with np.load(folder / "all" / name / f"{file_name}.npz") as file:
        return dict(file)


def _scores(folder: Path, name: str) -> np.ndarray:
    run = RunFolder(folder / f"run_{name}")
    model = run.spec().load_task().model
    weights = newest_checkpoint(run.checkpoints).models(model.initial_weights, "")["model"]
    x = _inputs(folder, name)
    return np.asarray(model.predict(weights, x, False, np.zeros(2, np.int32)))


@pytest.mark.slow
@pytest.mark.nightly_cases("text_classifier")
@pytest.mark.slow_cases("text_classifier")
@pytest.mark.parametrize("name", usually(_USUAL, _TASKS))
def test_plain_tensorflow_matches_run_predictions(several, name):
    scores = _scores(several, name)
    for file_name in ("model.keras", "model_saved_model"):
        outputs = _outputs(several, name, file_name)
        np.testing.assert_allclose(outputs["predictions"], scores, rtol=1e-5, atol=1e-5)
    # The run itself has written the same Keras file.
    written, saved = (several / f / "model.keras" for f in (f"run_{name}/model", f"all/{name}"))
    assert written.read_bytes() == saved.read_bytes()


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["next_word", "custom"])
def test_saved_model_predicts_next_words(several, name):
    scores, words = _scores(several, name), np.array(_WORDS)
    best = [np.argsort(-scores[row, last][1:4])[:2] for row, last in enumerate([2, 1])]
    outputs = _outputs(several, name, "model_saved_model")
    assert outputs["next_words"].tolist() == words[best].tolist()


@pytest.mark.slow
def test_saved_model_predicts_classes(several):
    scores = _scores(several, "text_classifier")
    outputs = _outputs(several, "text_classifier", "model_saved_model")
    np.testing.assert_allclose(outputs["default_predictions"], scores, atol=1e-6)
    names = np.array([b"bad", b"good"])
    assert outputs["default_class_name"].tolist() == names[scores.argmax(axis=1)].tolist()


_PRIVATE = ("--cohort_sampling=poisson", "--noise_multiplier=0.1", "--limit_loss=4")
_SUMS = {
    "plain": (),
    "secure": ("--aggregation=secure", "--secure_min_clients=1"),
    "central": ("--privacy=central", *_PRIVATE),
    "distributed": (
        "--privacy=distributed",
        "--aggregation=secure",
        "--secure_min_clients=1",
        *_PRIVATE,
    ),
}


@pytest.mark.nightly
@pytest.mark.parametrize("aggregation", usually(["secure"], _SUMS))
def test_frozen_layers_keep_their_weights(call, folder, several, aggregation):
    """The runs before and after the frozen run train all layers."""
    data = several / "labelled.sqlite"

    def run(name: str, *arguments: str) -> list[np.ndarray]:
        task = [*_CLASSIFIER, f"--data={data}", *_ONE_ROUND, f"--output_dir={name}"]
        call.ok(train, *task, *arguments)
        return model_weights(folder / name)

    source = folder / "source"
    shutil.copytree(several / "run_text_classifier", source)
    frozen = ["--frozen_layers=embed*", f"--initial_model={source}", "--rounds=2"]
    before, after = model_weights(source), run("frozen", *frozen, *_SUMS[aggregation])
    assert [np.any(a != b) for a, b in zip(before, after)] == [False, True, True]
    # The run has a copy of the frozen weights.
    shutil.rmtree(source)
    after = run("frozen", "--resume", "--rounds=3")
    assert [np.any(a != b) for a, b in zip(before, after)] == [False, True, True]
    free = run("free", "--initial_model=frozen")
    assert [np.any(a != b) for a, b in zip(after, free)] == [True] * 3
    # `evaluate` and model.keras have the trained weights.
    call.ok(evaluate, "--checkpoint=frozen", "--output=e.json", "--aggregation=plain")
    result, actual = (read_json(folder / name) for name in ("frozen/result.json", "e.json"))
    # The tolerance is needed because the run's secure sums are rounded.
    assert actual["overall"]["loss"] == pytest.approx(result["overall"]["loss"], rel=1e-3)
    keras_model = tf.keras.models.load_model(folder / "frozen" / "model" / "model.keras")
    for weights, expected in zip(keras_model.get_weights(), after):
        np.testing.assert_array_equal(weights, expected)
    message = call.refused(folder, train, *_CLASSIFIER, f"--data={data}", "--frozen_layers=lstm")
    assert message.startswith("--frozen_layers: expected layers with weights to train, or patt")


@pytest.mark.nightly
def test_run_with_frozen_layers_is_exported(call, folder, several):
    data = several / "labelled.sqlite"
    task = [*_CLASSIFIER, f"--data={data}", *_ONE_ROUND, "--frozen_layers=embedding"]
    call.ok(train, *task, "--output_dir=run")
    call.ok(export, "--checkpoint=run", "--output_dir=exported")
    outcome = run_plan("--plan=exported", "--verify")
    assert outcome.status == 0, outcome


# --- `save_model` writes every format, and a card


def _card(folder: Path) -> dict:
    return read_json(folder / "model_card.json")


@pytest.mark.slow
def test_every_format_matches_run_predictions(several, three_rounds):
    saved, names, x = several / "all" / "digits", _IN_EVERY_FORMAT, _tested(three_rounds)
    kernel, bias = newest_checkpoint(three_rounds / "checkpoints").model_arrays["model"]
    scores = x @ kernel + bias
    for name in names:
        with np.load(saved / f"{name}.npz") as outputs:
            atol = 1e-2 if "float16" in name else 1e-5
            np.testing.assert_allclose(outputs["predictions"], scores, rtol=0, atol=atol)
            if name == "model_saved_model":
                classes = [str(k).encode() for k in scores.argmax(axis=1)]
                assert outputs["class_name"].tolist() == classes
    printed = (several / "digits.out").read_text()
    for name in names:
        assert f"{name}: " in printed
    files = {file["path"]: file for file in _card(saved)["files"]}
    assert [files[name]["check"]["is_same"] for name in names] == [True, True, True, False]
    result = read_json(three_rounds / "result.json")
    for name in names:
        check = files[name]["check"]
        assert check["num_examples"] == len(x)
        for domain, values in check["domains"].items():
            expected = result["domains"][domain]["accuracy"]
            assert values["accuracy"]["run"] == pytest.approx(expected, abs=1e-6)
            assert values["accuracy"]["file"] == pytest.approx(expected, abs=0.05)


def test_card_describes_the_model(call, folder, three_rounds):
    call.ok(save_model, f"--checkpoint={three_rounds}", "--output_dir=saved")
    card = _card(folder / "saved")
    assert (card["task"], card["algorithm"], card["round"]) == ("digits", "agnostic_fed_avg", 3)
    assert card["result"] == read_json(three_rounds / "result.json")
    assert card["settings"]["clients_per_round"] == 3
    assert card["inputs"] == "float32[None, 64]"
    assert card["versions"]["tensorflow"].startswith("2.")
    # The card of an earlier round's checkpoint has no result.
    path = three_rounds / "checkpoints" / "round_00000002.npz"
    call.ok(save_model, f"--checkpoint={path}", "--output_dir=earlier")
    card = _card(folder / "earlier")
    assert (card["round"], card["result"]) == (2, None)


@pytest.mark.nightly
def test_every_family_model_is_saved(call, folder):
    arguments = ["--algorithm=delta_fl", "--theta=0.3,1", "--rounds=2", "--output_dir=run"]
    call.ok(train, *TOY, *arguments)
    call.ok(save_model, "--checkpoint=run", "--format=keras,tflite", "--output_dir=saved/all")
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
        for actual, expected in zip(keras_model.get_weights(), arrays):
            np.testing.assert_array_equal(actual, expected)
    assert [file["model"] for file in _card(saved)["files"]] == [
        *["conformity_0.3"] * 2,
        *["conformity_1"] * 2,
    ]


@golden.arguments
def test_rejects_unsavable_models(call, folder, three_rounds, arguments):
    return call.refused(
        folder, save_model, f"--checkpoint={three_rounds}", "--output_dir=saved", *arguments
    )


def test_rejects_missing_and_occupied_folders(call, folder, three_rounds):
    (folder / "empty").mkdir()
    (folder / "thesis").mkdir()
    (folder / "thesis" / "thesis.tex").write_text("")
    run = f"--checkpoint={three_rounds}"
    for arguments, message in (
        (["--output_dir=saved"], "--checkpoint: expected folder of a run"),
        ([run], "--output_dir: expected folder to write, found none"),
        (["--checkpoint=empty", "--output_dir=saved"], "empty/checkpoints: expected checkpoints"),
        ([run, "--output_dir=thesis"], "--output_dir: expected a new or empty folder, found thes"),
    ):
        assert call.refused(folder, save_model, *arguments).startswith(message)
