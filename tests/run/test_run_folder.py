"""Output folders of runs: resuming, crashes, locks and rights."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import golden
from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import claimed_folder, digest, file_digest, read_json
from tff_agnostic.program.options.tasks import FORMAT
from tff_agnostic.program.runs.folder import (
    RunFolder,
    changes,
    checkpoint_folder,
    stored_algorithm,
    with_saved_start,
)
from tff_agnostic.program.runs.spec import RunSettings, resolve

_EXECUTION = {"client_mode": "auto", "xla": False}


def _spec(**given: Any) -> RunSettings:
    return resolve("digits", given, {})


def _claimed(path: Path, **given: Any) -> RunFolder:
    folder = RunFolder(path)
    with folder.locked():
        folder.write_config(_spec(**given), {}, _EXECUTION)
    return folder


def _error(folder: RunFolder, resume: bool = True, **given: Any) -> str:
    before = sorted(folder.path.rglob("*")) if folder.path.is_dir() else None
    actual = golden.refusal(lambda: folder.check(_spec(**given), resume))
    assert before == (sorted(folder.path.rglob("*")) if folder.path.is_dir() else None)
    return actual


@pytest.mark.parametrize("resume", [False, True])
def test_new_or_empty_folder_is_accepted(tmp_path, resume):
    RunFolder(tmp_path).check(_spec(), resume)
    RunFolder(tmp_path / "new").check(_spec(), resume)
    assert list(tmp_path.iterdir()) == []


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


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"rounds": "many"}', "3"])
def test_rejects_damaged_config(tmp_path, content):
    folder = _claimed(tmp_path)
    folder.config.write_text(content)
    assert _error(folder).startswith(f"{folder.config}: expected ")
    with pytest.raises(UserError, match=r"config.json: expected "):
        folder.spec()


def _change(folder: RunFolder, removed: Collection[str], **changed: Any) -> None:
    config = {**read_json(folder.config), **changed}
    folder.config.write_text(json.dumps({k: v for k, v in config.items() if k not in removed}))


def test_rejects_config_without_a_setting(tmp_path):
    folder = _claimed(tmp_path)
    _change(folder, ["window"])
    message = f"{folder.config}: expected every flag of a run, 'window' is missing"
    assert _error(folder) == message
    assert golden.refusal(folder.spec) == message


@pytest.mark.parametrize("stated", [FORMAT + 1, "new", None])
def test_rejects_config_in_another_format(tmp_path, stated):
    folder = _claimed(tmp_path)
    _change(folder, [], format=stated)
    assert _error(folder) == (
        f"{folder.config}: expected format {FORMAT} of this version, found {stated or 'none'}"
    )
    _change(folder, ["format"])
    assert _error(folder).endswith("of this version, found none")


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
    (line,) = changes(folder.read(), _spec(evaluate_every=3), {})
    assert line.startswith(f"--evaluate_every was {spec.config.evaluate_every} until now and is 3:")


def _algorithm(checkpoint: Path) -> str:
    return stored_algorithm(checkpoint_folder(checkpoint))


@pytest.mark.parametrize(
    ("content", "algorithm"),
    [('{"algorithm": "q_ffl"}', "q_ffl"), ('{"algorithm": 3}', ""), ("[]", ""), ("{", "")],
)
def test_algorithm_is_read_from_unchecked_config(tmp_path, content, algorithm):
    (tmp_path / "config.json").write_text(content)
    assert _algorithm(tmp_path) == algorithm
    assert _algorithm(tmp_path / "checkpoints" / "round_00000001.npz") == algorithm
    assert _algorithm(tmp_path / "missing") == ""


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


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"thumb": 3}'])
def test_rejects_folder_with_foreign_fingerprint(tmp_path, content):
    folder = RunFolder(tmp_path)
    folder.fingerprint.write_text(content)
    assert "expected a new or empty folder or that of a run" in _error(folder)
    folder.fingerprint.write_text('{"data": "0123456789abcdef"}')
    (tmp_path / "thesis.tex").write_text("")
    assert "expected a new or empty folder or that of a run" in _error(folder)


def _starting_from(folder: RunFolder, model: Path) -> tuple[RunSettings, dict[str, str]]:
    spec = _spec(initial_model=str(model))
    fingerprint = {"data": "0123456789abcdef", "initial_model": file_digest(model)}
    with folder.locked():
        folder.write_config(spec, fingerprint, _EXECUTION)
    return spec, fingerprint


@pytest.fixture
def model(tmp_path) -> Path:
    path = tmp_path / "model.keras"
    path.write_text("weights")
    return path


def test_initial_model_is_copied(tmp_path, model):
    folder = RunFolder(tmp_path / "run")
    spec, fingerprint = _starting_from(folder, model)
    copy = folder.path / "initial_model.keras"
    assert copy.read_text() == "weights"
    model.unlink()
    actual = with_saved_start(folder.read(), folder.spec())
    assert actual.config.initial_model == copy
    # The stored settings keep the path that was given, not the path of the copy.
    assert folder.spec() == spec
    with folder.locked():
        folder.write_config(spec, fingerprint, _EXECUTION)
    assert folder.spec() == spec and copy.read_text() == "weights"


def test_other_initial_model_error_names_the_copy(tmp_path, model):
    folder = RunFolder(tmp_path / "run")
    _, fingerprint = _starting_from(folder, model)
    other = tmp_path / "other.keras"
    other.write_text("others")
    spec = _spec(initial_model=str(other))
    folder.check(spec, resume=True)
    assert with_saved_start(folder.read(), spec) == spec
    actual = golden.refusal(
        lambda: folder.saved().check_fingerprint(
            {**fingerprint, "initial_model": file_digest(other)}
        )
    )
    copy = folder.path / "initial_model.keras"
    assert actual.endswith(f"; it is kept: --initial_model={copy}")


def test_rejects_changed_initial_model(tmp_path, model):
    folder = RunFolder(tmp_path / "run")
    for content in (None, "others"):
        fingerprint = {"initial_model": digest(b"weights")}
        spec = _spec(initial_model=str(model))
        if content is None:
            model.unlink()
        else:
            model.write_text(content)
        message = "cannot read: No such file" if content is None else "has changed since it was"
        with pytest.raises(UserError, match=message), folder.locked():
            folder.write_config(spec, fingerprint, _EXECUTION)
        assert not folder.config.exists()
        folder.check(_spec(), resume=False)
        model.write_text("weights")


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
    holder = (
        "import fcntl, os, sys\n"
        "fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)\n"
        "print('locked', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holder, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        with pytest.raises(UserError) as error, RunFolder(tmp_path).locked():
            pass
        process.kill()
    assert str(error.value) == f"--output_dir: another process is running in {tmp_path}"
    # The kernel has released the killed process's lock.
    with RunFolder(tmp_path).locked():
        pass


def test_unwritable_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    for path, reason in (
        (tmp_path / "file" / "run", "Not a directory"),
        (Path("/proc/no/run"), "No such file or directory"),
    ):
        folder = RunFolder(path)
        with pytest.raises(UserError) as error:
            folder.check(_spec(), resume=False)
            with folder.locked():
                pass
        assert str(error.value) == f"{path}: cannot write: {reason}"


@contextlib.contextmanager
def _as_other_user() -> Iterator[None]:
    """Drops root's rights, or skips the test if the process cannot drop and regain them."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user, and root again")
    try:
        os.seteuid(65534)
    except OSError:
        pytest.skip("there is no other user in this sandbox")
    try:
        yield
    finally:
        os.seteuid(0)


def test_rejects_folder_of_another_user(tmp_path):
    folder = _claimed(tmp_path / "private" / "run")
    (tmp_path / "private").chmod(0o700)
    with _as_other_user():
        with pytest.raises(UserError) as error:
            folder.check(_spec(), resume=True)
        with pytest.raises(UserError) as parent_error:
            claimed_folder(tmp_path / "private", "digits")
    assert str(error.value) == f"{folder.path}: cannot write: Permission denied"
    assert str(parent_error.value).endswith("cannot write: Permission denied")
