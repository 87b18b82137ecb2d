"""Runs that cannot start or resume: commands print one line and leave no incomplete files."""

import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from binaries import compare, evaluate, export, save_model, train
from tests.support import golden
from tests.support.commands import TOY, Caller, assert_same_numbers
from tff_agnostic.base.files import read_json
from tff_agnostic.saving.checkpoints import newest_checkpoint

_RUN = (*TOY, "--rounds=6", "--checkpoint_every=2", "--evaluate_every=3", "--keep_checkpoints=3")


@pytest.fixture(scope="module")
def whole(call: Caller, tmp_path_factory) -> Path:
    """Folder of an uninterrupted run."""
    path = tmp_path_factory.mktemp("whole") / "run"
    call.ok(train, *_RUN, f"--output_dir={path}")
    return path


@golden.arguments
def test_rejects_settings_that_do_not_fit_task(call, folder, arguments):
    return call.refused(folder, train, *_RUN, "--output_dir=run", *arguments)


_SECURE = ("--aggregation=secure", "--secure_min_clients=4")


@pytest.mark.parametrize("binary", [train, compare])
def test_rejects_fewer_clients_than_secure_sums_need(call, folder, binary):
    digits = ("--task=digits", "--num_clients=6", "--num_test_clients=2", "--clients_per_round=4")
    first = "fed_avg/trial_00: " if binary is compare else ""
    # `train` checks flags before it loads the task, which would raise another error.
    toy = TOY if binary is compare else (*TOY, "--num_clients=0")
    for task, message in (
        (toy, "--clients_per_round: expected at least --secure_min_clients=4, found 3"),
        (digits, "--secure_min_clients: expected at most 2, the number of test clients, found 4"),
    ):
        actual = call.refused(folder, binary, *task, *_SECURE, "--output_dir=run")
        assert actual.startswith(f"{first}{message}")


@golden.arguments
def test_rejects_data_dir_without_the_files(call, folder, arguments):
    return call.refused(folder, train, *arguments, "--output_dir=run")


@pytest.mark.nightly
def test_resume_skips_damaged_checkpoint(call, folder, whole):
    shutil.copytree(whole, folder / "run")
    newest = folder / "run" / "checkpoints" / "round_00000006.npz"
    newest.write_bytes(newest.read_bytes()[:300])
    outcome = call.ok(train, *_RUN, "--output_dir=run", "--resume")
    (warning,) = [line for line in outcome.err.splitlines() if "damaged" in line]
    assert "round_00000006.npz: expected a checkpoint, found a damaged or another file" in warning
    assert "; trying the one before it" in warning
    assert "resuming after round 4\n" in outcome.out
    assert_same_numbers(folder / "run", whole)


_READERS = {
    "train": (train, "--output_dir=run", "--resume"),
    "evaluate": (evaluate, "--checkpoint=run"),
    "one file": (evaluate, "--checkpoint=run/checkpoints/round_00000006.npz"),
    "save_model": (save_model, "--checkpoint=run", "--output_dir=saved"),
    "export": (export, "--checkpoint=run", "--output_dir=export"),
}
_MENDED = "restore the changed values there, or the checkpoints of that run"


@pytest.mark.nightly
@pytest.mark.parametrize("reader", _READERS)
def test_rejects_config_edited_after_training(call, folder, whole, reader):
    shutil.copytree(whole, folder / "run")
    config = folder / "run" / "config.json"
    flags = read_json(config)
    config.write_text(json.dumps({**flags, "seed": 7, "client_learning_rate": 0.5}))
    expected = f"--seed=0, --client_learning_rate={flags['client_learning_rate']}"
    message = call.refused(folder, *_READERS[reader])
    assert message.removeprefix(f"{folder}/") == (
        f"run/config.json: expected {expected}, with which run/checkpoints/round_00000006.npz was "
        f"trained, found --seed=7, --client_learning_rate=0.5: {_MENDED}"
    )


@pytest.mark.nightly
def test_full_disk_keeps_earlier_checkpoints(call, folder, whole, monkeypatch):
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
    call.ok(train, *_RUN, "--output_dir=run", "--resume")
    assert_same_numbers(folder / "run", whole)
