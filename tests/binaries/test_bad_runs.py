"""Runs that cannot start or go on: one line, status 2, and nothing is half-written."""

import errno
import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from binaries import compare, evaluate, export, save_model, train
from tests import golden
from tests.binaries.harness import ROOT, TOY, Caller, python_module, tree
from tff_agnostic.saving.checkpoints import newest_checkpoint

_RUN = (*TOY, "--rounds=6", "--checkpoint_every=2", "--evaluate_every=3", "--keep_checkpoints=3")


@pytest.fixture(scope="module")
def whole(call: Caller, tmp_path_factory) -> Path:
    """An uninterrupted run."""
    path = tmp_path_factory.mktemp("whole") / "run"
    outcome = call(train, *_RUN, f"--output_dir={path}")
    assert outcome.status == 0, outcome
    return path


def _assert_same_numbers(found: Path, expected: Path) -> None:
    for name in ("metrics.csv", "result.json"):
        assert (found / name).read_bytes() == (expected / name).read_bytes(), name


@golden.arguments
def test_settings_that_do_not_fit_the_task(call, folder, arguments):
    return call.refused(folder, train, *_RUN, "--output_dir=run", *arguments)


_SECURE = ("--aggregation=secure", "--secure_min_clients=4")


@pytest.mark.parametrize("binary", [train, compare])
def test_fewer_clients_than_secure_sums_need(call, folder, binary):
    def refused(*arguments: str) -> str:
        return call.refused(folder, binary, *TOY, *_SECURE, "--output_dir=run", *arguments)

    first = "fed_avg/trial_00: " if binary is compare else ""
    too_few = f"{first}--clients_per_round: expected at least --secure_min_clients=4, found 3"
    assert refused() == too_few
    if binary is train:
        # Before the task is loaded, which would be refused as well.
        assert refused("--num_clients=0") == too_few
    enough = "--clients_per_round=4"
    assert refused(enough, "--evaluation_clients=1") == (
        f"{first}--evaluation_clients: expected at least --secure_min_clients=4, found 1"
    )
    fewer = ["--task=digits", "--num_clients=6", "--num_test_clients=2"]
    message = call.refused(folder, binary, *fewer, *_SECURE, enough, "--output_dir=run")
    assert message == (
        f"{first}--secure_min_clients: expected at most 2, the number of test clients, found 4"
    )


@pytest.mark.nightly
def test_an_evaluation_on_fewer_clients_than_secure_sums_need(call, folder, whole):
    message = call.refused(
        *(folder, evaluate, f"--checkpoint={whole}", "--aggregation=secure"),
        "--secure_min_clients=9",
    )
    assert message == (
        "--secure_min_clients: expected at most 8, the number of test clients, found 9"
    )
    # How many clients the run had in a round is no matter here.
    outcome = call(
        *(evaluate, f"--checkpoint={whole}", "--aggregation=secure"), "--secure_min_clients=8"
    )
    assert outcome.status == 0, outcome


@golden.arguments
@pytest.mark.parametrize("binary", [train, compare])
def test_a_data_dir_without_the_files(call, folder, binary, arguments):
    return call.refused(folder, binary, *arguments, "--output_dir=run")


_COLUMNS_OF_ADULT = (
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, "
    "Male, 2174, 0, 40, United-States, <=50K\n"
)


def test_a_malformed_line_of_adult_is_named(call, folder):
    (folder / "adult.data").write_text(_COLUMNS_OF_ADULT * 3 + "what?\n")
    (folder / "adult.test").write_text(_COLUMNS_OF_ADULT)
    message = call.refused(folder, train, "--task=adult", "--data_dir=.", "--output_dir=run")
    assert message == f"{folder / 'adult.data'}:4: expected 15 columns, found 1"


@pytest.mark.nightly
def test_a_model_that_diverges(call, folder):
    arguments = ["--client_learning_rate=1e20", "--output_dir=run"]
    message = call(train, *_RUN, *arguments).error
    assert "the model has diverged: no client's numbers could be used" in message
    assert not (folder / "run" / "result.json").exists()
    message = call(
        compare, *_RUN, "--client_learning_rate=1e20", "--trials=1", "--output_dir=compared"
    ).error
    assert message.startswith("fed_avg, trial 1: round ")
    assert not (folder / "compared" / "compare.json").exists()


@pytest.mark.nightly
def test_a_damaged_checkpoint(call, folder, whole):
    shutil.copytree(whole, folder / "run")
    newest = folder / "run" / "checkpoints" / "round_00000006.npz"
    newest.write_bytes(newest.read_bytes()[:300])
    outcome = call(train, *_RUN, "--output_dir=run", "--resume")
    assert outcome.status == 0, outcome
    (warning,) = [line for line in outcome.err.splitlines() if "damaged" in line]
    assert "round_00000006.npz: expected a checkpoint, found a damaged or another file" in warning
    assert "; trying the one before it" in warning
    assert "going on after round 4\n" in outcome.out
    _assert_same_numbers(folder / "run", whole)


@pytest.mark.nightly
def test_only_damaged_checkpoints(call, folder, whole):
    shutil.copytree(whole, folder / "run")
    for path in (folder / "run" / "checkpoints").iterdir():
        path.write_bytes(b"")
    before = tree(folder)
    outcome = call(train, *_RUN, "--output_dir=run", "--resume", "--rounds=9")
    # A warning for each of the others comes before.
    assert outcome.status == 2
    message = outcome.err.splitlines()[-1]
    assert message.startswith("error: every checkpoint is damaged; the oldest is run/checkpoints/")
    assert "Traceback" not in outcome.err
    assert tree(folder) == before


# Everything that goes by config.json, and the checkpoints beside it.
_READERS = {
    "train": (train, "--output_dir=run", "--resume"),
    "evaluate": (evaluate, "--checkpoint=run"),
    "one file": (evaluate, "--checkpoint=run/checkpoints/round_00000006.npz"),
    "save_model": (save_model, "--checkpoint=run", "--output_dir=saved"),
    "export": (export, "--checkpoint=run", "--output_dir=export"),
}
_MENDED = "put back what was changed there, or the checkpoints of that run"


@pytest.mark.nightly
@pytest.mark.parametrize("reader", _READERS)
def test_a_config_that_was_edited_since(call, folder, whole, reader):
    shutil.copytree(whole, folder / "run")
    config = folder / "run" / "config.json"
    flags = json.loads(config.read_text())
    config.write_text(json.dumps({**flags, "seed": 7, "client_learning_rate": 0.5}))
    there = f"--seed=0, --client_learning_rate={flags['client_learning_rate']}"
    message = call.refused(folder, *_READERS[reader])
    # Of one file the folder is worked out.
    assert message.removeprefix(f"{folder}/") == (
        f"run/config.json: expected {there}, with which run/checkpoints/round_00000006.npz was "
        f"trained, found --seed=7, --client_learning_rate=0.5: {_MENDED}"
    )


@pytest.mark.nightly
def test_checkpoints_of_another_run_of_equal_shapes(call, folder, whole):
    outcome = call(train, *_RUN, "--seed=3", "--window=2", "--output_dir=other")
    assert outcome.status == 0, outcome
    shutil.copytree(whole, folder / "run")
    shutil.rmtree(folder / "run" / "checkpoints")
    shutil.copytree(folder / "other" / "checkpoints", folder / "run" / "checkpoints")
    message = call.refused(folder, train, "--output_dir=run", "--resume", "--rounds=9")
    assert message == (
        "run/config.json: expected --seed=3, --window=2, with which "
        "run/checkpoints/round_00000006.npz was trained, found --seed=0, --window=50: "
        f"{_MENDED}"
    )
    # On purpose, and said so.
    started = "--initial_model=run/checkpoints/round_00000006.npz"
    assert call(train, *_RUN, started, "--output_dir=started").status == 0


@pytest.mark.nightly
def test_what_may_change_may_be_edited(call, folder, whole):
    shutil.copytree(whole, folder / "run")
    config = folder / "run" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "checkpoint_every": 3}))
    outcome = call(train, "--output_dir=run", "--resume", "--rounds=7")
    assert outcome.status == 0, outcome


@pytest.mark.nightly
def test_a_full_disk_at_a_checkpoint(call, folder, whole, monkeypatch):
    fsync = os.fsync

    def full_at_the_second_checkpoint(descriptor: int) -> None:
        if "round_00000004" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full_at_the_second_checkpoint)
        message = call(train, *_RUN, "--output_dir=run").error
    path = folder / "run" / "checkpoints"
    assert message == "run/checkpoints/round_00000004.npz: cannot write: No space left on device"
    assert [p.name for p in path.iterdir()] == ["round_00000002.npz"]
    assert newest_checkpoint(path).round_num == 2
    outcome = call(train, *_RUN, "--output_dir=run", "--resume")
    assert outcome.status == 0, outcome
    _assert_same_numbers(folder / "run", whole)


def _private_tmpfs(command: str) -> list[str]:
    return [
        "unshare",
        "--mount",
        "sh",
        "-c",
        f"mount -t tmpfs -o size=64k tmpfs disk && {command}",
    ]


@pytest.mark.nightly
def test_a_disk_that_really_is_full(call, folder):
    (folder / "disk").mkdir()
    try:
        subprocess.run(_private_tmpfs("true"), check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no small file system can be mounted here")
    flags = [*TOY, "--rounds=50", "--checkpoint_every=3"]
    train_command = shlex.join(python_module("train", *flags, "--output_dir=disk/run"))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    # The file system ends with the shell: what is on it is copied before.
    completed = subprocess.run(
        _private_tmpfs(f"{train_command} 2>err >out; s=$?; cp -r disk/run run; exit $s"),
        env=environment,
        check=False,
    )
    error = (folder / "err").read_text()
    assert completed.returncode == 2, error
    assert "Traceback" not in error
    assert error.splitlines()[-1].startswith("error: disk/run/")
    assert error.splitlines()[-1].endswith(": cannot write: No space left on device")
    assert newest_checkpoint(folder / "run" / "checkpoints").round_num >= 3

    for arguments in (["--output_dir=run", "--resume"], ["--output_dir=whole"]):
        outcome = call(train, *flags, *arguments)
        assert outcome.status == 0, outcome
    _assert_same_numbers(folder / "run", folder / "whole")
