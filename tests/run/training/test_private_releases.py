"""Private runs that crash and resume: released evaluations, noise, ledger and epsilon."""

import contextlib
import csv
import dataclasses
import importlib.metadata
import json
import math
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Optional
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from tests.privacy.closed_forms import gaussian_epsilon
from tests.support import golden
from tests.support.commands import tree
from tests.support.marks import usually
from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import read_json
from tff_agnostic.data.clients import InMemoryClients
from tff_agnostic.program.options.process import StopRequest
from tff_agnostic.program.runs.build import run_parts
from tff_agnostic.program.runs.evaluation import Evaluations
from tff_agnostic.program.runs.folder import RunFolder
from tff_agnostic.program.runs.privacy import check_plan
from tff_agnostic.program.runs.release_ledger import ReleaseLedger
from tff_agnostic.program.runs.spec import RunSettings, resolve
from tff_agnostic.program.runs.training import TrainingRun
from tff_agnostic.tasks.task import Task
from tff_agnostic.training.evaluate import Evaluator
from tff_agnostic.training.loop import FinishedRound, Observer
from tff_agnostic.training.private_evaluation import Release

_NUM_CLIENTS = 12
_Z, _DELTA = 5.0, 1e-3
_SETTINGS: dict[str, Any] = {
    "rounds": 9,
    "clients_per_round": 3,
    "evaluate_every": 4,
    "evaluation_clients": 10,
    # The crashed run has no checkpoint except its first one, which holds the noise key.
    "checkpoint_every": 100,
    "algorithm": "fed_avg",
    "privacy": "central",
    "noise_multiplier": 0.8,
    "delta": _DELTA,
    "limit_examples": 200,
    "limit_loss": 10.0,
    "private_evaluation": f"noise:multiplier={_Z},clients_share=0",
    # Crashed and uninterrupted runs have the same noise.
    "noise_seed": 3,
}


def _spec(**changed: Any) -> RunSettings:
    given = {k: value for k, value in {**_SETTINGS, **changed}.items() if value is not None}
    return resolve("toy_regression", given, {"num_clients": _NUM_CLIENTS})


class _Crash(Exception):
    """Simulates a kill: nothing is written afterwards."""


class _Released(NamedTuple):
    """The noisy sums of one evaluation of a model."""

    noise: tuple[int, ...]
    sums: bytes
    num_clients: int


@contextlib.contextmanager
def _watched(runtime: Any) -> Iterator[list[_Released]]:
    """Records the releases of private evaluations within the context."""
    released: list[_Released] = []
    original = runtime.measurement

    def measurement(*arguments: Any) -> Any:
        evaluate = original(*arguments)

        def for_each(models: Any, parts: Any, states: Any = None) -> Any:
            clients = [client for part in parts for client in part]
            actual = evaluate.for_each(models, [clients], states)
            # An evaluation without noise is not a release.
            for output, state in zip(actual, states or []):
                noise = (*map(int, state.noise_key), int(state.releases))
                sums = b"".join(leaf.tobytes() for leaf in tf.nest.flatten(output.output))
                released.append(_Released(noise, sums, len(clients)))
            return actual

        return mock.Mock(side_effect=evaluate, for_each=for_each)

    with mock.patch.object(runtime, "measurement", measurement):
        yield released


def _train(
    on: Any,
    path: Path,
    resume: bool = False,
    crash_after: int = 0,
    place: int = 4,
    task: Optional[Task] = None,
    **changed: Any,
) -> list[_Released]:
    """Trains, and returns the released evaluations.

    Args:
        crash_after: Round after which the process dies, before it is saved.
        place: Number of the run's observers that see this round.
    """
    crashing = Observer()
    crashing.after_round = mock.Mock(side_effect=[*[None] * (crash_after - 1), _Crash])
    load = RunSettings.load_task if task is None else lambda spec: task
    with _watched(on) as released:
        run = TrainingRun(_spec(**changed), RunFolder(path), on, resume, load)
        observers = list(run.observers(StopRequest(), False, []))
        if crash_after:
            observers.insert(place, crashing)
        with (
            mock.patch.object(run, "observers", lambda *_: observers),
            pytest.raises(_Crash) if crash_after else contextlib.nullcontext(),
        ):
            run.run(StopRequest(), show_progress=False)
    return released


def _rows(path: Path) -> list[dict[str, str]]:
    with open(path / "metrics.csv", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _ledger(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "releases.jsonl").read_text().splitlines()]


def _assert_accounted(
    path: Path, rounds: list[int], evaluations: str, released: list[_Released]
) -> None:
    """Asserts that epsilon includes the evaluations of these rounds, with different noise.

    Args:
        evaluations: Number of evaluations in each row of metrics.csv, one digit each.
    """
    assert [line["round_num"] for line in _ledger(path)] == rounds
    assert [row["evaluations"] for row in _rows(path)] == list(evaluations)
    by_noise: dict[tuple[int, ...], set[bytes]] = {}
    for one in released:
        by_noise.setdefault(one.noise, set()).add(one.sums)
    assert [len(sums) for sums in by_noise.values()] == [1] * len(rounds)
    private, releases = read_json(path / "result.json")["privacy"], len(rounds)
    assert private["evaluation"]["evaluations"] == releases
    # With cohorts of a fixed size, neighbours replace one client, which doubles sensitivity.
    expected = gaussian_epsilon(2 * math.sqrt(releases) / _Z, _DELTA)
    assert private["evaluation"]["epsilon"] == pytest.approx(expected, rel=2e-3)
    assert any(f"of training and of {releases} evaluations" in t for t in private["remarks"])
    last = _rows(path)[-1]
    assert float(last["evaluation_epsilon"]) == private["evaluation"]["epsilon"]
    assert float(last["epsilon"]) == private["epsilon"]
    assert sum(line["num_models"] for line in _ledger(path)) == releases


@pytest.fixture(scope="module")
def died(cohort_runtime, tmp_path_factory) -> tuple[Path, list[_Released]]:
    """Folder and releases of a run that crashed after the evaluation of round 4."""
    path = tmp_path_factory.mktemp("died") / "run"
    return path, _train(cohort_runtime, path, crash_after=4)


@pytest.fixture
def lost(died, tmp_path) -> Path:
    """A copy of the folder of `died`."""
    return shutil.copytree(died[0], tmp_path / "run")


_RESUMES = {
    "every": ({"evaluate_every": 5}, [4, 5, 9], "111122223", 10),
    "on_all": ({"evaluation_clients": None}, [4, 4, 8, 9], "111222234", 12),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", usually(["every"], _RESUMES))
def test_epsilon_includes_evaluations_lost_in_crash(cohort_runtime, died, lost, name):
    changed, rounds, evaluations, num_clients = _RESUMES[name]
    released = _train(cohort_runtime, lost, resume=True, **changed)
    _assert_accounted(lost, rounds, evaluations, [*died[1], *released])
    assert released[0].num_clients == num_clients


@pytest.mark.slow
def test_unchanged_resume_repeats_the_same_releases(cohort_runtime, died, lost, tmp_path):
    """The resumed and an uninterrupted run write equal files."""
    whole = tmp_path / "whole"
    _train(cohort_runtime, whole)
    released = _train(cohort_runtime, lost, resume=True)
    assert released[0] == died[1][0]
    for _ in range(2):
        for name in ("metrics.csv", "result.json", "releases.jsonl"):
            assert (lost / name).read_bytes() == (whole / name).read_bytes(), name
        released += _train(cohort_runtime, lost, resume=True)
    _assert_accounted(lost, [4, 8, 9], "000111123", [*died[1], *released])


@pytest.mark.slow
def test_epsilon_includes_last_evaluation_of_shorter_run(cohort_runtime, tmp_path):
    before = _train(cohort_runtime, tmp_path, crash_after=5, rounds=5)
    released = _train(cohort_runtime, tmp_path, resume=True)
    assert before[0] == released[0]
    _assert_accounted(tmp_path, [4, 5, 8, 9], "111222234", [*before, *released])


@pytest.mark.slow
def test_unwritable_ledger_hides_the_evaluation(cohort_runtime, tmp_path):
    """The ledger cannot be written when round 8 is evaluated."""

    class FullDisk(Observer):
        def after_round(self, finished: FinishedRound) -> None:
            if finished.num == 4:
                (tmp_path / "releases.jsonl").unlink()
                (tmp_path / "releases.jsonl").symlink_to("/dev/full")

    with (
        _watched(cohort_runtime) as released,
        pytest.raises(UserError, match=r"releases\.jsonl: cannot write: No space left"),
    ):
        run = TrainingRun(_spec(), RunFolder(tmp_path), cohort_runtime, False)
        run.run(StopRequest(), show_progress=False, observers=[FullDisk()])
    assert len(released) == 2
    assert len(_rows(tmp_path)) == 7


@pytest.mark.slow
@pytest.mark.parametrize("place", usually([1, 3, 7], range(1, 8)))
def test_crash_between_observers_loses_no_release(cohort_runtime, tmp_path, place):
    before = _train(cohort_runtime, tmp_path, crash_after=4, place=place)
    assert [line["round_num"] for line in _ledger(tmp_path)] == [4]
    # Evaluating fewer clients makes the repeated evaluation a separate release.
    released = _train(cohort_runtime, tmp_path, resume=True, evaluation_clients=9)
    assert [one.num_clients for one in (before[0], released[0])] == [10, 9]
    _assert_accounted(tmp_path, [4, 4, 8, 9], "111222234", [*before, *released])


def test_observers_of_private_runs_have_fixed_order(cohort_runtime, tmp_path):
    run = TrainingRun(_spec(), RunFolder(tmp_path), cohort_runtime, False)
    observers = run.observers(StopRequest(), False, [Observer()])
    assert [type(observer).__name__ for observer in observers] == [
        *("Evaluations", "PrivacyAccount", "MetricsFile", "TensorBoard", "Observer", "Progress"),
        *("StopOnSignal", "Checkpoints"),
    ]


_LINE = {"round_num": 4, "evaluated": "a", "place": "b", "sums": "c", "num_models": 1}


@pytest.mark.parametrize("line", ["{}", "nonsense", json.dumps({**_LINE, "num_models": "1"})])
def test_rejects_damaged_ledger(tmp_path, line):
    path = tmp_path / "releases.jsonl"
    path.write_text(f"{json.dumps(_LINE)}\n{line}\n{json.dumps(_LINE)}\n")
    with pytest.raises(UserError, match=r"expected a private evaluation in each line, .* line 2: "):
        ReleaseLedger(path).load(0)


@pytest.mark.parametrize("left", [20, -1])
def test_ledger_drops_incomplete_line(tmp_path, left):
    path = tmp_path / "releases.jsonl"
    line = f"{json.dumps(_LINE)}\n".encode()
    # Without its line break, the last line is incomplete.
    path.write_bytes(line + line[:left])
    ledger = ReleaseLedger(path)
    ledger.load(1)
    assert ledger.releases == [Release(**_LINE)]
    ledger.write()
    assert path.read_bytes() == line
    assert ledger.enter(Release(**{**_LINE, "round_num": 8, "place": "other"}))
    assert len(path.read_bytes().splitlines()) == 2


def test_equal_releases_count_once_in_the_ledger(tmp_path):
    path = tmp_path / "releases.jsonl"
    ledger = ReleaseLedger(path)
    release = Release(4, "ten clients", "noise", "sums", 2)
    assert ledger.enter(release) and ledger.enter(release)
    assert not ledger.enter(dataclasses.replace(release, sums="others"))
    assert ledger.enter(dataclasses.replace(release, place="other noise", sums="others"))
    again = ReleaseLedger(path)
    again.load(0)
    assert [r.place for r in again.releases] == ["noise", "other noise"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def _clients(dataset: Any) -> dict[str, Any]:
    return {name: dataset.read(name) for name in dataset.client_ids}


def _changed(clients: dict[str, Any]) -> dict[str, Any]:
    """Returns clients, the first one with other labels."""
    first = next(iter(clients))
    return {**clients, first: {**clients[first], "y": clients[first]["y"] + np.float32(1)}}


@pytest.mark.slow
def test_evaluation_of_changed_clients_has_other_noise(cohort_runtime, tmp_path, caplog):
    """One client's labels change; the weights and the client names do not."""
    # The noise is small, because with more of it a domain may seem absent and then has loss 0.
    spec = _spec(
        evaluation_clients=None, private_evaluation=f"noise:multiplier={1 / 64},clients_share=0"
    )
    parts = TrainingRun(spec, RunFolder(tmp_path / "run"), cohort_runtime, False).parts
    noise, state = parts.privacy.evaluation, parts.initial
    ledger = ReleaseLedger(tmp_path / "releases.jsonl")
    clients, shown = _clients(parts.task.test), []
    with _watched(cohort_runtime) as released:
        evaluate = cohort_runtime.measurement(noise.measurement, noise.aggregation)
        for test in (clients, _changed(clients), clients, _changed(clients)):
            task = dataclasses.replace(parts.task, test=InMemoryClients(test))
            evaluator = Evaluator(task, evaluate, noise=noise)
            Evaluations(parts.algorithm, evaluator, 4, 9, ledger)(state)
            shown.append(released[-1])
    assert shown[:2] == shown[2:]
    assert shown[0].noise != shown[1].noise
    assert released[1].noise == shown[0].noise
    assert len(ledger.releases) == 2
    assert "differs from the one that an interruption lost" in caplog.text


@pytest.mark.slow
def test_rejects_missing_ledger(cohort_runtime, lost):
    (lost / "releases.jsonl").unlink()
    before = tree(lost)
    assert golden.refusal(_train, cohort_runtime, lost, resume=True) == (
        f"{lost / 'releases.jsonl'}: expected 1 private evaluations of a model as in metrics.csv, "
        "found 0: without the complete file the run's privacy is unknown"
    )
    assert tree(lost) == before


@pytest.mark.slow
def test_rejects_more_evaluations_than_planned(cohort_runtime, lost):
    """Earlier releases count in addition to the planned ones."""
    spec = _spec(evaluation_clients=9, private_evaluation="budget:epsilon=3,clients_share=0")
    parts = run_parts(spec, RunFolder(lost), None, cohort_runtime, RunSettings.load_task)
    check_plan(parts.privacy, spec, (9, 4), 0, parts.evaluations)
    parts.evaluations.ledger.load(0)
    with pytest.raises(UserError, match=r"expected 3 evaluations, .* found 4, including"):
        check_plan(parts.privacy, spec, (9, 4), 0, parts.evaluations)
    # The new plan has as many evaluations as the old one, but one of them is for another round.
    with pytest.raises(UserError, match=r"expected 2 evaluations, .* found 3: keep the run"):
        check_plan(parts.privacy, spec, (9, 5), 4, parts.evaluations)


_TRAINING_ONLY = {
    "private_evaluation": None,
    "evaluation_clients": None,
    "noise_seed": None,
    "rounds": 5,
    "checkpoint_every": 2,
    "evaluate_every": 1,
}


@pytest.fixture(scope="module")
def crashed(cohort_runtime, tmp_path_factory) -> Path:
    """Folder of a run without private evaluations that crashed after round 3 of 5."""
    path = tmp_path_factory.mktemp("crashed") / "run"
    before = os.umask(0)
    try:
        _train(cohort_runtime, path, crash_after=3, **_TRAINING_ONLY)
    finally:
        os.umask(before)
    return path


@pytest.fixture
def folder(crashed, tmp_path) -> Path:
    """A copy of the crashed run's folder."""
    return shutil.copytree(crashed, tmp_path / "run")


def _modes(path: Path) -> set[int]:
    return {stat.S_IMODE(file.stat().st_mode) for file in (path / "checkpoints").iterdir()}


@pytest.mark.slow
def test_private_checkpoints_are_readable_by_owner_only(cohort_runtime, crashed, folder):
    assert _modes(crashed) == {0o600}
    _train(cohort_runtime, folder, resume=True, **_TRAINING_ONLY)
    assert _modes(folder) == {0o600}
    # A run without noise may start from this checkpoint; its copy of the checkpoint has the key
    # too.
    (newest,) = (folder / "checkpoints").glob("*5.npz")
    other = folder.parent / "other"
    private_ = ("privacy", "noise_multiplier", "delta", "limit_examples", "limit_loss")
    settings = {**_TRAINING_ONLY, **dict.fromkeys(private_), "rounds": 1}
    _train(cohort_runtime, other, initial_model=str(newest), **settings)
    assert (other / "initial_model.npz").read_bytes() == newest.read_bytes()
    assert stat.S_IMODE((other / "initial_model.npz").stat().st_mode) == 0o600
    assert 0o600 not in _modes(other)


@pytest.mark.slow
def test_private_run_resumes_with_its_execution_only(
    cohort_runtime, streaming_runtime, tff_runtime, folder, monkeypatch
):
    before = tree(folder)

    def refused(on: Any, **changed: Any) -> str:
        actual = golden.refusal(_train, on, folder, resume=True, **_TRAINING_ONLY, **changed)
        assert tree(folder) == before
        return actual

    assert refused(streaming_runtime) == (
        f"--client_mode: expected auto, with which the private run in {folder} was executed, found "
        "streamed: a repeated round has the same noise, so that other last bits would reveal exact "
        "differences"
    )
    assert refused(tff_runtime, runtime="tff").startswith("--runtime: expected cohort, with which")
    config = read_json(folder / "config.json")
    version = importlib.metadata.version("tensorflow")
    assert version.startswith(config["execution"]["tensorflow"])
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("importlib.metadata.version", lambda _: "3.1.0")
        message = refused(cohort_runtime)
    assert message.startswith(f"tensorflow: expected {version[:4]}, with which the private run in")
    assert ", found 3.1: a repeated round has the same noise" in message
    # If a run has no record of its execution, the execution is not checked.
    del config["execution"]
    (folder / "config.json").write_text(json.dumps(config))
    TrainingRun(_spec(**_TRAINING_ONLY), RunFolder(folder), streaming_runtime, True)


@pytest.mark.slow
def test_rejects_changed_examples_of_the_same_clients(cohort_runtime, folder):
    task = _spec(**_TRAINING_ONLY).load_task()
    other = dataclasses.replace(task, train=InMemoryClients(_changed(_clients(task.train))))
    with pytest.raises(UserError, match="expected the examples that the private run there was"):
        _train(cohort_runtime, folder, resume=True, task=other, **_TRAINING_ONLY)


@pytest.mark.slow
def test_rejects_private_run_without_key(cohort_runtime, folder):
    shutil.rmtree(folder / "checkpoints")
    with pytest.raises(UserError, match="expected a checkpoint, which holds the key of the "):
        _train(cohort_runtime, folder, resume=True, **_TRAINING_ONLY)
