"""Output folders of runs: resuming, crashes, damaged files, locks and rights."""

import json
import multiprocessing
import signal
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import golden
from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import claimed_folder, digest, file_digest, read_json
from tff_agnostic.metrics.metrics_file import read_history
from tff_agnostic.program.options.tasks import FORMAT
from tff_agnostic.program.runs.folder import (
    RunFolder,
    changes,
    checkpoint_folder,
    stored_algorithm,
    with_saved_start,
)
from tff_agnostic.program.runs.spec import RunSettings, resolve
from tff_agnostic.saving.checkpoints import read_checkpoint

_EXECUTION = {"client_mode": "auto", "xla": False}


def _spec(**given: Any) -> RunSettings:
    return resolve("digits", given, {})


def _claimed(path: Path, **given: Any) -> RunFolder:
    folder = RunFolder(path)
    with folder.locked():
        folder.write_config(_spec(**given), {}, _EXECUTION)
    return folder


def _error(folder: RunFolder, resume: bool = True, **given: Any) -> str:
    before = sorted(folder.path.rglob("*"))
    actual = golden.refusal(folder.check, _spec(**given), resume)
    assert before == sorted(folder.path.rglob("*"))
    return actual


def test_resume_needs_the_same_run(tmp_path):
    folder = _claimed(tmp_path, window=3, rounds=5)
    folder.check(_spec(window=3, rounds=6), resume=True)
    assert _error(folder, resume=False, window=3, rounds=5) == (
        f"--output_dir: {tmp_path} holds this run already: add --resume to resume it, or "
        "choose another folder"
    )
    for resume in (False, True):
        assert _error(folder, resume, window=4, rounds=5) == (
            f"--output_dir: {tmp_path} holds another run: --window is 3 there and 4 here"
        )
    assert _error(folder, window=3, rounds=4) == (
        f"--rounds: the run in {tmp_path} has 5 rounds, and a resumed run cannot have fewer, "
        "found 4"
    )


def test_rejects_folder_with_other_files(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    for path in (tmp_path, tmp_path / "thesis.tex"):
        assert _error(RunFolder(path)) == (
            "--output_dir: expected a new or empty folder or that of a run, found "
            f"{path} with other content"
        )


@pytest.mark.parametrize("content", ["{", "[]", "{}"])
def test_rejects_damaged_config(tmp_path, content):
    folder = _claimed(tmp_path)
    folder.config.write_text(content)
    assert _error(folder).startswith(f"{folder.config}: expected ")
    with pytest.raises(UserError, match=r"config.json: expected "):
        folder.spec()


def _change(folder: RunFolder, removed: Collection[str], **changed: Any) -> None:
    config = {**read_json(folder.config), **changed}
    folder.config.write_text(json.dumps({k: v for k, v in config.items() if k not in removed}))


@pytest.mark.parametrize("flag", ["task", "window", "keep", "data"])
def test_rejects_config_without_a_setting(tmp_path, flag):
    folder = _claimed(tmp_path)
    _change(folder, [flag])
    message = f"{folder.config}: expected every flag of a run, '{flag}' is missing"
    assert _error(folder) == message
    assert golden.refusal(folder.spec) == message


@golden.values
def test_wrong_setting_in_config_names_its_flag(tmp_path, case):
    folder = _claimed(tmp_path)
    flag, value = case
    _change(folder, [], **{flag: value})
    return golden.refusal(folder.spec).replace(str(folder.config), "FILE")


@pytest.mark.parametrize("stated", [FORMAT + 1, None])
def test_rejects_config_in_another_format(tmp_path, stated):
    folder = _claimed(tmp_path)
    _change(folder, [], format=stated)
    assert _error(folder) == (
        f"{folder.config}: expected format {FORMAT} of this version, found {stated or 'none'}"
    )


def test_invalid_fingerprint_names_its_file(tmp_path):
    folder = _claimed(tmp_path)
    folder.fingerprint.write_text("[]")
    message = golden.refusal(folder.saved().check_fingerprint, {"vocabulary": "624a37377f06b5af"})
    assert message == f"{folder.fingerprint}: expected a JSON object, found list"


def test_unterminated_cell_in_metrics_names_its_file(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text('round,loss\n1,"' + "9,\n" * 100_000)
    message = golden.refusal(read_history, path)
    assert message.startswith(f"{path}: expected CSV, found: field larger than")


@pytest.mark.parametrize(
    "header",
    [
        pytest.param("[" * 100_000, id="deep"),
        '{"format": 1, "round": Infinity, "leaves": 1}',
        '{"format": 1, "round": -1, "leaves": 1}',
        '{"format": 1, "round": 1, "leaves": 1, "models": {"model": [0]}}',
    ],
)
def test_invalid_checkpoint_header_names_its_file(tmp_path, header):
    path = tmp_path / "round_00000001.npz"
    np.savez(path, header=np.array(header), leaf_00000=np.zeros([2]))
    message = golden.refusal(read_checkpoint, path)
    assert message.startswith(f"{path}: expected a checkpoint, found")


@pytest.mark.parametrize("flag", ["clients_per_round", "evaluation_clients"])
def test_rejects_too_few_clients_for_secure_sums(tmp_path, flag):
    secure = {"aggregation": "secure", "secure_min_clients": 4}
    folder = RunFolder(tmp_path)
    folder.check(_spec(**secure, **{flag: 4}), resume=False)
    message = f"--{flag}: expected at least --secure_min_clients=4, found 3"
    assert _error(folder, resume=False, **secure, **{flag: 3}) == message
    folder.check(_spec(**{flag: 1}), resume=False)


def test_changed_execution_is_reported(tmp_path):
    folder = _claimed(tmp_path)
    spec = _spec()
    assert changes(folder.read(), spec, _EXECUTION) == []
    assert changes(folder.read(), spec, {**_EXECUTION, "client_mode": "streamed"}) == [
        "--client_mode was auto until now and is streamed: numbers may differ in their last bits "
        "from those of an uninterrupted run"
    ]
    assert changes(RunFolder(tmp_path / "new").read(), spec, _EXECUTION) == []
    # Without an effect on results, a change has no note.
    (line,) = changes(folder.read(), _spec(evaluate_every=3, keep_checkpoints=7), {})
    assert line.startswith(f"--evaluate_every was {spec.config.evaluate_every} until now and is 3:")


@pytest.mark.parametrize(
    ("content", "algorithm"),
    [('{"algorithm": "q_ffl"}', "q_ffl"), ('{"algorithm": 3}', ""), ("[]", "")],
)
def test_algorithm_is_read_from_unchecked_config(tmp_path, content, algorithm):
    (tmp_path / "config.json").write_text(content)
    for path in (tmp_path, tmp_path / "checkpoints" / "round_00000001.npz"):
        assert stored_algorithm(checkpoint_folder(path)) == algorithm


def test_folder_survives_kill_before_config(tmp_path):
    folder = RunFolder(tmp_path)
    for fingerprint in ({"data": "5eb63bbbe01eeed0"}, {}):
        folder.fingerprint.write_text('{"data": "0123456789abcdef", "vocabulary": "77"}')
        (tmp_path / ".config.json.4711.tmp").write_text("{")
        # Without a config, the old fingerprint does not matter, because nothing was trained with
        # it.
        folder.check(_spec(), resume=False)
        with folder.locked():
            folder.write_config(_spec(), fingerprint, _EXECUTION)
        folder.check(_spec(), resume=True)
        folder.saved().check_fingerprint(fingerprint)
        folder.config.unlink()


@pytest.mark.parametrize("content", ["{}", "[]", '{"thumb": 3}'])
def test_rejects_folder_with_foreign_fingerprint(tmp_path, content):
    folder = RunFolder(tmp_path)
    folder.fingerprint.write_text(content)
    assert "expected a new or empty folder or that of a run" in _error(folder)
    folder.fingerprint.write_text('{"data": "0123456789abcdef"}')
    (tmp_path / "thesis.tex").write_text("")
    assert "expected a new or empty folder or that of a run" in _error(folder)


@pytest.fixture
def model(tmp_path) -> Path:
    path = tmp_path / "model.keras"
    path.write_text("weights")
    return path


def test_initial_model_is_copied(tmp_path, model):
    folder, spec = RunFolder(tmp_path / "run"), _spec(initial_model=str(model))
    fingerprint = {"data": "0123456789abcdef", "initial_model": file_digest(model)}
    copy = folder.path / "initial_model.keras"
    for _ in range(2):
        with folder.locked():
            folder.write_config(spec, fingerprint, _EXECUTION)
        # The stored settings keep the path that was given, not the path of the copy.
        assert folder.spec() == spec and copy.read_text() == "weights"
        model.unlink(missing_ok=True)
    assert with_saved_start(folder.read(), spec).config.initial_model == copy
    # Another initial model is compared by its content.
    other = tmp_path / "other.keras"
    other.write_text("others")
    changed = _spec(initial_model=str(other))
    folder.check(changed, resume=True)
    assert with_saved_start(folder.read(), changed) == changed
    digests = {**fingerprint, "initial_model": file_digest(other)}
    actual = golden.refusal(folder.saved().check_fingerprint, digests)
    assert actual.endswith(f"; it is kept: --initial_model={copy}")


def test_rejects_changed_initial_model(tmp_path, model):
    folder, spec = RunFolder(tmp_path / "run"), _spec(initial_model=str(model))
    model.write_text("others")
    for message in ("has changed since it was", "cannot read: No such file"):
        with pytest.raises(UserError, match=message), folder.locked():
            folder.write_config(spec, {"initial_model": digest(b"weights")}, _EXECUTION)
        assert not folder.config.exists()
        folder.check(_spec(), resume=False)
        model.unlink(missing_ok=True)


def test_locking_removes_temporary_files(tmp_path):
    folder = _claimed(tmp_path)
    left = [tmp_path / ".metrics.csv.1.tmp", folder.checkpoints / ".round_00000001.npz.2.tmp"]
    kept = [tmp_path / ".gitignore", folder.checkpoints / "notes.tmp"]
    folder.checkpoints.mkdir()
    for path in left + kept:
        path.write_text("")
    with folder.locked():
        assert not any(path.exists() for path in left)
        assert all(path.exists() for path in kept)


def test_rejects_folder_of_a_running_process(tmp_path):
    def hold() -> None:
        with RunFolder(tmp_path).locked():
            locked.set()
            signal.pause()

    fork = multiprocessing.get_context("fork")
    locked = fork.Event()
    process = fork.Process(target=hold, daemon=True)
    process.start()
    assert locked.wait(timeout=60)
    with pytest.raises(UserError) as error, RunFolder(tmp_path).locked():
        pass
    process.kill()
    process.join()
    assert str(error.value) == f"--output_dir: another process is running in {tmp_path}"
    # The kernel has released the killed process's lock.
    with RunFolder(tmp_path).locked():
        pass


def test_unwritable_folder_is_named(tmp_path):
    long_name = tmp_path / ("x" * 300)
    for path, reason in (
        (long_name, "File name too long"),
        (Path("/proc/no/run"), "No such file or directory"),
    ):
        folder = RunFolder(path)
        with pytest.raises(UserError) as error:
            folder.check(_spec(), resume=False)
            with folder.locked():
                pass
        assert str(error.value) == f"{path}: cannot write: {reason}"
    message = golden.refusal(claimed_folder, long_name, "digits")
    assert message == f"{long_name}: cannot write: File name too long"
