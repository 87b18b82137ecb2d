"""`save_model`: files of a run that plain TensorFlow reads, and their card."""

import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from binaries import save_model, train
from tests import golden
from tests.binaries.harness import TOY
from tests.saving.harness import ask_plain_tensorflow
from tff_agnostic.run.folder import RunFolder
from tff_agnostic.saving.checkpoints import newest_checkpoint

_FORMATS = "--format=keras,saved_model,tflite"


def _card(folder: Path) -> dict:
    return json.loads((folder / "model_card.json").read_text())


def test_files_tell_what_the_run_tells_in_plain_tensorflow(call, folder, three_rounds):
    outcome = call(
        *(save_model, f"--checkpoint={three_rounds}", _FORMATS, "--quantize=float16"),
        "--output_dir=all/saved",
    )
    assert outcome.status == 0, outcome
    names = ["model.keras", "model_saved_model", "model.tflite", "model_float16.tflite"]
    saved = folder / "all" / "saved"
    assert {path.name for path in saved.iterdir()} == {*names, "model_card.json"}
    clients = RunFolder(three_rounds).spec().load_task().test
    x = np.concatenate([clients.read(c)["x"] for c in clients.client_ids])
    kernel, bias = newest_checkpoint(three_rounds / "checkpoints").model_arrays["model"]
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
    result = json.loads((three_rounds / "result.json").read_text())
    for name in names:
        check = files[name]["check"]
        assert check["num_examples"] == len(x)
        for domain, values in check["domains"].items():
            expected = result["domains"][domain]["accuracy"]
            assert values["accuracy"]["run"] == pytest.approx(expected, abs=1e-6)
            assert values["accuracy"]["file"] == pytest.approx(expected, abs=0.05)


def test_the_card_says_what_the_model_is(call, folder, three_rounds):
    outcome = call(save_model, f"--checkpoint={three_rounds}", "--output_dir=saved")
    assert outcome.status == 0, outcome
    card = _card(folder / "saved")
    assert (card["task"], card["algorithm"], card["round"]) == ("digits", "agnostic_fed_avg", 3)
    assert card["result"] == json.loads((three_rounds / "result.json").read_text())
    assert card["settings"]["clients_per_round"] == 3
    assert card["inputs"] == "float32[None, 64]"
    assert card["versions"]["tensorflow"].startswith("2.")
    # Of an earlier round there is no result.
    path = three_rounds / "checkpoints" / "round_00000002.npz"
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


@golden.arguments
def test_what_cannot_be_saved(call, folder, three_rounds, arguments):
    return call.refused(
        folder,
        save_model,
        f"--checkpoint={three_rounds}",
        "--output_dir=saved",
        *arguments,
    )


def test_folders_that_are_missing_or_not_free(call, folder, three_rounds):
    def refused(*arguments: str) -> str:
        return call.refused(folder, save_model, *arguments)

    assert refused("--output_dir=saved") == (
        "--checkpoint: expected the folder of a run or a checkpoint file, found none"
    )
    assert refused(f"--checkpoint={three_rounds}") == (
        "--output_dir: expected the folder to write, found none"
    )
    (folder / "empty").mkdir()
    assert refused("--checkpoint=empty", "--output_dir=saved") == (
        "empty/checkpoints: expected checkpoints, found none"
    )
    (folder / "empty" / "thesis.tex").write_text("")
    assert refused(f"--checkpoint={three_rounds}", "--output_dir=empty") == (
        "--output_dir: expected a new or empty folder, found empty"
    )
