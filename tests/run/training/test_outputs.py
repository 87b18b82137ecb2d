"""Output files of a run."""

import numpy as np
import pytest
import tensorflow as tf

from tests.support import golden
from tests.support.runs import ROUNDS, round_numbers, train
from tff_agnostic.base.files import read_json
from tff_agnostic.metrics.metrics_file import read_history
from tff_agnostic.program.options.process import StopRequest
from tff_agnostic.program.reports.evaluation_table import evaluation_table
from tff_agnostic.program.runs.folder import RunFolder
from tff_agnostic.program.runs.spec import resolve
from tff_agnostic.program.runs.training import TrainingRun
from tff_agnostic.saving.checkpoints import newest_checkpoint

pytestmark = pytest.mark.slow


def test_run_writes_its_files(whole):
    folders, files = {"checkpoints", "model", "tensorboard"}, {"config.json", "metrics.csv"}
    assert {p.name for p in whole.iterdir()} == folders | files | {"resampled.npz", "result.json"}
    assert round_numbers(list((whole / "checkpoints").iterdir())) == [3, 6, 7]
    columns = read_history(whole / "metrics.csv")
    assert columns["round"].tolist() == list(range(1, ROUNDS + 1))
    evaluated = ~np.isnan(columns["test/loss"])
    assert evaluated.tolist() == [t % 2 == 0 or t == ROUNDS for t in range(1, ROUNDS + 1)]


def test_result_equals_the_last_row(whole):
    result = read_json(whole / "result.json")
    columns = read_history(whole / "metrics.csv")
    for name, domain in result["domains"].items():
        assert domain["loss"] == columns[f"test/loss/{name}"][-1]
        assert result["domain_weights"][name] == columns[f"lambda/{name}"][-1]
    assert sum(result["domain_weights"].values()) == pytest.approx(1, abs=1e-6)
    assert result["worst"]["loss"]["value"] == columns["test/worst loss"][-1]


def test_diverging_run_raises_user_error(cohort_runtime, tmp_path):
    message = golden.refusal(train, cohort_runtime, tmp_path, client_learning_rate=1e30)
    assert "the model has diverged: no client's numbers could be used" in message
    assert "lower --client_learning_rate or --server_learning_rate" in message
    assert not (tmp_path / "result.json").exists()


def test_every_model_is_evaluated_and_saved(cohort_runtime, tmp_path):
    settings = {"algorithm": "delta_fl", "theta": (0.3, 1.0), "rounds": 3, "evaluate_every": 2}
    spec = resolve("toy_regression", {**settings, "clients_per_round": 3}, {"num_clients": 8})
    run = TrainingRun(spec, RunFolder(tmp_path), cohort_runtime, resume=False)
    report = run.run(StopRequest(), show_progress=False)
    main, other = "conformity_0.3", "conformity_1"
    result = read_json(tmp_path / "result.json")
    assert result["overall"] == report.to_json()["overall"]
    assert list(result["models"]) == [other]
    columns = read_history(tmp_path / "metrics.csv")
    loss, other_loss = columns["test/loss"], columns[f"test[{other}]/loss"]
    assert result["overall"]["loss"] == loss[-1]
    assert result["models"][other]["overall"]["loss"] == other_loss[-1]
    assert np.array_equal(np.isnan(loss), np.isnan(other_loss)) and loss[-1] != other_loss[-1]
    checkpoint = newest_checkpoint(tmp_path / "checkpoints")
    models = checkpoint.models(run.parts.task.model.initial_weights, "here")
    assert list(models) == [main, other]
    state = checkpoint.restore(run.parts.initial, "here")
    for name, weights in run.parts.algorithm.models(state.algorithm).items():
        np.testing.assert_array_equal(models[name].trainable[0], weights.trainable[0])
    assert sorted(p.name for p in (tmp_path / "model").iterdir()) == [
        *(f"{main}.keras", f"{other}.keras", "model_card.json")
    ]
    for name, weights in models.items():
        keras_model = tf.keras.models.load_model(
            tmp_path / "model" / f"{name}.keras", compile=False
        )
        np.testing.assert_array_equal(keras_model.get_weights()[0], weights.trainable[0])
    card = read_json(tmp_path / "model" / "model_card.json")
    del result["about"]
    assert (card["result"], card["round"], card["left_out"]) == (result, 3, {})


def test_clipped_values_are_reported(cohort_runtime, tmp_path):
    report = train(cohort_runtime, tmp_path, aggregation="secure", limit_examples=3)
    result = read_json(tmp_path / "result.json")
    columns = read_history(tmp_path / "metrics.csv")
    assert result["clipped"]["examples"] > 0
    for field, count in result["clipped"].items():
        assert columns[f"test/clipped {field}"][-1] == count
    assert (
        f"{result['clipped']['examples']} of examples" in evaluation_table(report).splitlines()[-1]
    )


def test_rounds_with_infinite_updates_are_skipped(cohort_runtime, tmp_path, capsys):
    """Updates are about 6; the server's learning rate times 6 exceeds float32's range."""
    settings = {"server_optimizer": "sgd", "server_learning_rate": 3e38, "rounds": 3}
    train(cohort_runtime, tmp_path, **settings, client_learning_rate=3.0, client_batch_size=999)
    assert "3 of 3 rounds were skipped, as if no client had taken part" in capsys.readouterr().out
    history = read_history(tmp_path / "metrics.csv")
    assert history["skipped"].tolist() == [1, 1, 1]
    assert history["update_norm"].tolist() == [0, 0, 0]
