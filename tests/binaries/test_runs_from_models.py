"""`train --initial_model`: a run from the model of another."""

import shutil
from pathlib import Path

import numpy as np

from binaries import evaluate, save_model, train
from tests.binaries.harness import TOY
from tff_agnostic.saving.checkpoints import newest_checkpoint


def _weights(run: Path) -> list[np.ndarray]:
    return list(newest_checkpoint(run / "checkpoints").model_arrays["model"])


# Full batches of all clients in every round: a round is the same function of the weights.
_SAME_ROUNDS = (
    *("--task=digits", "--digits_num_clients=4", "--digits_num_test_clients=2"),
    *("--clients_per_round=4", "--algorithm=fed_avg", "--batch_size=2000", "--client_epochs=1"),
)


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


def test_initial_models_that_do_not_fit(call, folder, three_rounds):
    def refused(path: str) -> str:
        arguments = [*TOY, "--rounds=1", "--output_dir=run", f"--initial_model={path}"]
        return call.refused(folder, train, *arguments)

    assert call(save_model, f"--checkpoint={three_rounds}", "--output_dir=saved").status == 0
    for path in ("saved/model.keras", str(three_rounds)):
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
