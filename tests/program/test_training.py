"""Runs from the first round to the result: what they leave, and that going on changes nothing."""

import dataclasses
import json
import shutil
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Optional
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tff_agnostic.errors import UserError
from tff_agnostic.program.interrupts import Interrupted, StopRequest
from tff_agnostic.program.reporting import plots
from tff_agnostic.program.reporting.evaluation_table import evaluation_table
from tff_agnostic.program.reporting.history import read_history
from tff_agnostic.program.specs.run_folder import RunFolder
from tff_agnostic.program.specs.run_spec import RunSpec, resolve
from tff_agnostic.program.training import TrainingRun
from tff_agnostic.saving.checkpoints import newest_checkpoint

_ROUNDS = 7
# Adam's moments, the window and lambda all have to survive.
_SETTINGS = {
    "rounds": _ROUNDS,
    "clients_per_round": 3,
    "client_epochs": 2,
    "server_optimizer": "adam",
    "server_learning_rate": 0.1,
    "domain_learning_rate": 0.5,
    "window": 3,
    "evaluate_every": 2,
    # Divides neither the rounds nor what the tests stop after.
    "checkpoint_every": 3,
    "keep_checkpoints": 3,
}


class StopAfter(StopRequest):
    """A signal that comes in the course of round `k`."""

    def __init__(self, k: int) -> None:
        super().__init__()
        self._left = k

    @property
    def signal_number(self) -> Optional[int]:
        """Asked once a round."""
        self._left -= 1
        return signal.SIGTERM if self._left <= 0 else None

    @signal_number.setter
    def signal_number(self, value: Optional[int]) -> None:
        pass


def _spec(**changed: Any) -> RunSpec:
    return resolve("toy_regression", {**_SETTINGS, **changed}, {"num_clients": 8})


def _run(runtime: Any, path: Path, resume: bool = False, stop_after: int = 0, **changed: Any):
    stop = StopAfter(stop_after) if stop_after else StopRequest()
    run = TrainingRun(_spec(**changed), RunFolder(path), runtime, resume)
    return run.run(stop, show_progress=False)


def _stopped(runtime: Any, path: Path, stop_after: int, **changed: Any) -> None:
    with pytest.raises(Interrupted, match=f"stopped and saved after round {stop_after}"):
        _run(runtime, path, stop_after=stop_after, **changed)
    assert newest_checkpoint(path / "checkpoints").round_num == stop_after


def _assert_same_run(found: Path, expected: Path) -> None:
    for name in ("metrics.csv", "result.json", "config.json"):
        assert (found / name).read_bytes() == (expected / name).read_bytes(), name
    first, second = (newest_checkpoint(p / "checkpoints") for p in (found, expected))
    assert first.round_num == second.round_num
    assert [a.tobytes() for a in first.leaves] == [a.tobytes() for a in second.leaves]
    for folder in ("plots", "model"):
        names = [{path.name for path in (run / folder).iterdir()} for run in (found, expected)]
        assert names[0] == names[1]
        for name in names[0]:
            content, wanted = ((run / folder / name).read_bytes() for run in (found, expected))
            assert content == wanted, name


def _shown(axes: Axes) -> list[Any]:
    """Returns the points of lines, and the corners of bars, in the axes' own numbers."""
    corners = (
        patch.get_patch_transform().transform(patch.get_path().vertices) for patch in axes.patches
    )
    return [*(line.get_xydata().tolist() for line in axes.lines), *(c.tolist() for c in corners)]


@pytest.fixture(scope="module", autouse=True)
def _figures_as_text() -> Iterator[None]:
    """Saves what figures show in place of pixels, which take longer than the rounds.

    `test_awkward_domain_names_come_through` compares the pixels of a run that went on.
    """

    def save(figure: Figure, path: Path) -> None:
        path.write_text(json.dumps([_shown(axes) for axes in figure.axes]))

    with mock.patch.object(plots, "save", save):
        yield


@pytest.fixture(scope="module")
def whole(cohort_runtime, tmp_path_factory) -> Path:
    """An uninterrupted run."""
    path = tmp_path_factory.mktemp("whole") / "run"
    _run(cohort_runtime, path)
    return path


def _numbers(names: Sequence[Path]) -> list[int]:
    return sorted(int(path.stem.removeprefix("round_")) for path in names)


def test_what_a_run_leaves(whole):
    assert sorted(path.name for path in whole.iterdir()) == [
        "checkpoints",
        "config.json",
        "metrics.csv",
        "model",
        "plots",
        "result.json",
        "tensorboard",
    ]
    assert _numbers(list((whole / "checkpoints").iterdir())) == [3, 6, 7]
    columns = read_history(whole / "metrics.csv")
    assert columns["round"].tolist() == list(range(1, _ROUNDS + 1))
    evaluated = ~np.isnan(columns["test/loss"])
    assert evaluated.tolist() == [t % 2 == 0 or t == _ROUNDS for t in range(1, _ROUNDS + 1)]


def test_every_round_has_its_own_cohort(whole):
    columns = read_history(whole / "metrics.csv")
    counts = [values for name, values in columns.items() if name.startswith("train/num_examples/")]
    assert len({tuple(row) for row in np.transpose(counts)}) > _ROUNDS // 2


def test_result_and_last_row_agree(whole):
    result = json.loads((whole / "result.json").read_text())
    columns = read_history(whole / "metrics.csv")
    for name, domain in result["domains"].items():
        assert domain["loss"] == columns[f"test/loss/{name}"][-1]
        assert result["domain_weights"][name] == columns[f"lambda/{name}"][-1]
    assert sum(result["domain_weights"].values()) == pytest.approx(1, abs=1e-6)
    assert result["worst"]["loss"]["value"] == columns["test/worst loss"][-1]


@pytest.mark.parametrize("stop_after", [1, 3, 5])
def test_stopping_and_going_on_changes_nothing(cohort_runtime, whole, tmp_path, stop_after):
    _stopped(cohort_runtime, tmp_path / "run", stop_after)
    assert not (tmp_path / "run" / "result.json").exists()
    _run(cohort_runtime, tmp_path / "run", resume=True)
    _assert_same_run(tmp_path / "run", whole)


def test_a_crash_between_checkpoints_changes_nothing(cohort_runtime, whole, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(whole, path)
    # Rows beyond the newest checkpoint, and the last one is cut off.
    (path / "result.json").unlink()
    for name in ("round_00000006.npz", "round_00000007.npz"):
        (path / "checkpoints" / name).unlink()
    shutil.rmtree(path / "plots")
    # Killed while its model was written.
    (path / "model" / "model_card.json").unlink()
    (path / "model" / "model.keras").rename(path / "model" / ".model.keras.77.tmp")
    assert _numbers(list((path / "checkpoints").iterdir())) == [3]
    content = (path / "metrics.csv").read_bytes()
    (path / "metrics.csv").write_bytes(content[:-25])
    _run(cohort_runtime, path, resume=True)
    _assert_same_run(path, whole)


def test_a_damaged_checkpoint_costs_rounds_but_changes_nothing(cohort_runtime, whole, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(whole, path)
    newest = path / "checkpoints" / "round_00000007.npz"
    newest.write_bytes(newest.read_bytes()[:-100])
    _run(cohort_runtime, path, resume=True)
    _assert_same_run(path, whole)


def test_going_on_with_more_rounds_equals_a_longer_run(cohort_runtime, whole, tmp_path):
    path = tmp_path / "run"
    # Of odd length: the last round of the shorter run is evaluated, of the longer one it is not.
    _run(cohort_runtime, path, rounds=3)
    assert json.loads((path / "result.json").read_text())["rounds"] == 3
    _run(cohort_runtime, path, resume=True)
    _assert_same_run(path, whole)


def test_evaluations_of_earlier_rounds_stay_where_later_ones_are_due_otherwise(
    cohort_runtime, whole, tmp_path, capsys
):
    path = tmp_path / "run"
    _run(cohort_runtime, path, rounds=5)
    _run(cohort_runtime, path, resume=True, evaluate_every=3)
    assert (
        "--evaluate_every was 2 until now and is 3: evaluations of earl" in capsys.readouterr().out
    )
    # And once more: the folder only says what was due of late.
    _run(cohort_runtime, path, resume=True, evaluate_every=3, rounds=10)
    columns, expected = (read_history(p / "metrics.csv")["test/loss"] for p in (path, whole))
    # 5 and 7 were the last rounds, and 2 and 4 were due before.
    assert (np.flatnonzero(~np.isnan(columns)) + 1).tolist() == [2, 4, 6, 9, 10]
    np.testing.assert_array_equal(columns[[1, 3, 5]], expected[[1, 3, 5]])


def test_a_longer_run_evaluates_on_the_sample_where_a_shorter_one_did_on_all(
    cohort_runtime, tmp_path
):
    whole, longer, killed = (tmp_path / name for name in ("whole", "longer", "killed"))
    sampled = {"evaluation_clients": 2}
    _run(cohort_runtime, whole, **sampled)
    # After its last round the shorter run is evaluated on all, the whole one on two clients.
    _run(cohort_runtime, longer, rounds=4, **sampled)
    of_all = (longer / "metrics.csv").read_bytes()
    assert not (whole / "metrics.csv").read_bytes().startswith(of_all)
    shutil.copytree(longer, killed)
    _run(cohort_runtime, longer, resume=True, **sampled)
    _assert_same_run(longer, whole)
    # As if killed between the row that was changed and the longer run's config.
    lines = (whole / "metrics.csv").read_bytes().splitlines(keepends=True)
    (killed / "metrics.csv").write_bytes(b"".join(lines[:5]))
    again = tmp_path / "again"
    shutil.copytree(killed, again)
    _run(cohort_runtime, killed, resume=True, **sampled)
    _assert_same_run(killed, whole)
    # Or the shorter run is asked for again.
    _run(cohort_runtime, again, resume=True, rounds=4, **sampled)
    assert (again / "metrics.csv").read_bytes() == of_all


def test_nothing_is_evaluated_twice(cohort_runtime, whole, tmp_path):
    evaluated: list[int] = []

    class Counting:
        """The runtime, which notes how many clients each evaluation has."""

        def __getattr__(self, name: str) -> Any:
            return getattr(cohort_runtime, name)

        def evaluation(self, *args: Any) -> Any:
            evaluate = cohort_runtime.evaluation(*args)

            def counted(weights: Any, parts: Any, state: Any) -> Any:
                clients = [client for part in parts for client in part]
                evaluated.append(len(clients))
                return evaluate(weights, [clients], state)

            return counted

    _run(Counting(), tmp_path, evaluation_clients=2)
    # Rounds 2, 4, 6 and 7.
    assert evaluated[:3] == [2, 2, 2] and len(evaluated) == 4 and evaluated[3] > 2


def test_resuming_a_complete_run_changes_nothing(cohort_runtime, whole, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(whole, path)
    _run(cohort_runtime, path, resume=True)
    _assert_same_run(path, whole)


def test_resuming_in_a_new_folder_starts(cohort_runtime, whole, tmp_path):
    _run(cohort_runtime, tmp_path / "run", resume=True)
    _assert_same_run(tmp_path / "run", whole)


def test_missing_rows_are_told_and_nothing_is_touched(cohort_runtime, whole, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(whole, path)
    lines = (path / "metrics.csv").read_text().splitlines(keepends=True)
    (path / "metrics.csv").write_text("".join(lines[:3]))
    before = {p: p.read_bytes() for p in path.rglob("*") if p.is_file()}
    with pytest.raises(UserError, match="expected rows of rounds 1 to 7, as the checkpoint says"):
        _run(cohort_runtime, path, resume=True, rounds=_ROUNDS + 1)
    assert {p: p.read_bytes() for p in path.rglob("*") if p.is_file()} == before


def test_a_checkpoint_of_another_model_is_told_and_nothing_is_touched(
    cohort_runtime, whole, tmp_path
):
    path = tmp_path / "run"
    shutil.copytree(whole, path)
    other = newest_checkpoint(path / "checkpoints")
    arrays = {f"leaf_{i:05d}": leaf for i, leaf in enumerate(other.leaves[1:])}
    header = json.dumps({"format": 1, "round": 8, "leaves": len(arrays)})
    np.savez(path / "checkpoints" / "round_00000008.npz", header=np.array(header), **arrays)
    before = {p: p.read_bytes() for p in path.rglob("*") if p.is_file()}
    with pytest.raises(UserError, match="expected the state of this model and algorithm"):
        _run(cohort_runtime, path, resume=True)
    assert {p: p.read_bytes() for p in path.rglob("*") if p.is_file()} == before


def test_a_folder_is_refused_before_anything_is_compiled(whole):
    # No runtime is needed to say so.
    with pytest.raises(UserError, match="holds this run already: add --resume"):
        TrainingRun(_spec(), RunFolder(whole), None, resume=False)  # type: ignore[arg-type]


def test_a_complete_run_is_recognised(cohort_runtime, whole, tmp_path):
    def is_complete(path: Path, **changed: Any) -> bool:
        return TrainingRun(_spec(**changed), RunFolder(path), cohort_runtime, True).is_complete()

    assert is_complete(whole)
    assert not is_complete(whole, rounds=_ROUNDS + 1)
    assert not is_complete(tmp_path / "new")


def test_a_run_that_diverges_is_one_line(cohort_runtime, tmp_path):
    with pytest.raises(UserError) as error:
        _run(cohort_runtime, tmp_path, client_learning_rate=1e30)
    message = str(error.value)
    assert message.startswith("round ")
    assert "the model has diverged: no client returned finite numbers" in message
    assert "lower --client_learning_rate or --server_learning_rate" in message
    assert "\n" not in message
    assert not (tmp_path / "result.json").exists()


def test_a_run_that_diverges_in_its_last_round_is_one_line(cohort_runtime, tmp_path):
    # Finite deltas and weights, but the losses after the server's step are not.
    with pytest.raises(UserError, match="round 1: the model has diverged"):
        _run(cohort_runtime, tmp_path, rounds=1, server_optimizer="sgd", server_learning_rate=3e38)
    assert not (tmp_path / "result.json").exists()


def test_other_seeds_give_other_runs(cohort_runtime, whole, tmp_path):
    _run(cohort_runtime, tmp_path, seed=1)
    assert (tmp_path / "metrics.csv").read_bytes() != (whole / "metrics.csv").read_bytes()


_TWO_MODELS = """
import dataclasses

import tensorflow as tf

from tff_agnostic.algorithms import fed_avg


def build(problem, options):
    algorithm = fed_avg.fed_avg(problem, options)

    def models(state):
        half = tf.nest.map_structure(lambda w: w / 2, state.weights)
        return {"model": state.weights, "half": half}

    return dataclasses.replace(algorithm, models=models)


ALGORITHM = dataclasses.replace(fed_avg.ALGORITHM, build=build)
"""


def test_every_model_of_an_algorithm_is_evaluated_and_saved(cohort_runtime, tmp_path):
    (tmp_path / "two.py").write_text(_TWO_MODELS)
    path = tmp_path / "run"
    settings = {k: v for k, v in _SETTINGS.items() if k not in ("domain_learning_rate", "window")}
    spec = resolve(
        "toy_regression",
        {**settings, "algorithm": str(tmp_path / "two.py")},
        {"num_clients": 8},
    )
    run = TrainingRun(spec, RunFolder(path), cohort_runtime, resume=False)
    report = run.run(StopRequest(), show_progress=False)
    result = json.loads((path / "result.json").read_text())
    assert result["overall"] == report.to_json()["overall"]
    assert list(result["models"]) == ["half"]
    columns = read_history(path / "metrics.csv")
    loss, of_half = columns["test/loss"], columns["test[half]/loss"]
    assert result["overall"]["loss"] == loss[-1]
    assert result["models"]["half"]["overall"]["loss"] == of_half[-1]
    assert np.array_equal(np.isnan(loss), np.isnan(of_half)) and loss[-1] != of_half[-1]
    assert (path / "plots" / "test_half_loss.png").exists()
    checkpoint = newest_checkpoint(path / "checkpoints")
    models = checkpoint.models(run.task.model.initial_weights, "here")
    assert list(models) == ["model", "half"]
    np.testing.assert_array_equal(models["half"].trainable[0], models["model"].trainable[0] / 2)
    assert sorted(p.name for p in (path / "model").iterdir()) == [
        *("half.keras", "model.keras", "model_card.json"),
    ]
    for name, weights in models.items():
        keras_model = tf.keras.models.load_model(path / "model" / f"{name}.keras", compile=False)
        np.testing.assert_array_equal(keras_model.get_weights()[0], weights.trainable[0])
    card = json.loads((path / "model" / "model_card.json").read_text())
    # What the run was is in other places of the card.
    del result["about"]
    assert (card["result"], card["round"], card["left_out"]) == (result, _ROUNDS, {})


def test_what_secure_sums_clipped_in_the_last_evaluation_is_told(cohort_runtime, tmp_path):
    report = _run(cohort_runtime, tmp_path, aggregation="secure", secure_max_examples=3)
    result = json.loads((tmp_path / "result.json").read_text())
    columns = read_history(tmp_path / "metrics.csv")
    assert result["clipped"]["examples"] > 0
    for field, count in result["clipped"].items():
        assert columns[f"test/clipped {field}"][-1] == count
    assert (
        f"{result['clipped']['examples']} of examples" in evaluation_table(report).splitlines()[-1]
    )


def test_a_run_of_the_first_release_goes_on(cohort_runtime, tmp_path):
    release = Path(__file__).parents[1] / "releases" / "0.1.0" / "digits_plain"
    path = tmp_path / "run"
    shutil.copytree(release, path)
    before = read_history(path / "metrics.csv")
    spec = RunFolder(path).spec()
    longer = dataclasses.replace(spec, config=dataclasses.replace(spec.config, rounds=13))
    run = TrainingRun(longer, RunFolder(path), cohort_runtime, resume=True)
    run.run(StopRequest(), show_progress=False)
    after = read_history(path / "metrics.csv")
    # What that release did not know of is a column of its own.
    of_clients = {name for name in after if " over clients/" in name}
    assert len(of_clients) == 2 * len(("mean", "p10", "p50", "p90", "p95", "superquantile"))
    assert set(after) == {*before, *of_clients, "skipped"}
    for name, values in before.items():
        np.testing.assert_array_equal(after[name][:-1], values)
    assert after["round"][-1] == 13
    assert abs(after["train/loss/0"][-1] - after["train/loss/0"][-2]) < 0.5


def test_rounds_whose_update_is_not_finite_are_skipped_counted_and_said(
    cohort_runtime, tmp_path, capsys
):
    """The clients' updates are about 6, which the server's rate takes out of float32's range."""
    settings = {"server_optimizer": "sgd", "server_learning_rate": 3e38, "rounds": 3}
    _run(cohort_runtime, tmp_path, **settings, client_learning_rate=3.0, batch_size=999)
    assert "3 of 3 rounds were skipped, as if no client had taken part" in capsys.readouterr().out
    history = read_history(tmp_path / "metrics.csv")
    assert history["skipped"].tolist() == [1, 1, 1]
    assert history["update_norm"].tolist() == [0, 0, 0]
