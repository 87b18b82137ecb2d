"""Runs with differential privacy: what they leave, what they keep, and how they go on."""

import csv
import json
import signal
from pathlib import Path

import numpy as np
import pytest

from binaries import compare, export, train
from tests.binaries.harness import TOY, Caller, Process, python_module
from tff_agnostic.saving.checkpoints import CheckpointFolder

_PRIVATE = (
    *TOY,
    "--privacy=central",
    "--noise_multiplier=0.8",
    "--cohort_sampling=poisson",
    "--clip_norm=0.5",
    "--secure_max_examples=40",
    "--secure_max_loss=10",
)
_DISTRIBUTED = (
    *("--privacy=distributed", "--aggregation=secure"),
    *(flag for flag in _PRIVATE if flag != "--privacy=central"),
)
_TREE = (
    *TOY,
    "--privacy=tree",
    "--target_epsilon=20",
    "--cohort_sampling=turns",
    "--clients_per_round=2",
    "--secure_max_examples=40",
    "--secure_max_loss=10",
)


def _rows(folder: Path) -> list[dict[str, str]]:
    with open(folder / "metrics.csv", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _privacy(folder: Path) -> dict:
    return json.loads((folder / "result.json").read_text())["privacy"]


def _state_leaves(folder: Path) -> tuple[np.ndarray, ...]:
    checkpoint = CheckpointFolder(folder / "checkpoints", 1).load_latest()
    assert checkpoint is not None
    return checkpoint.leaves


@pytest.mark.parametrize(
    "flags", [_PRIVATE, _DISTRIBUTED, _TREE], ids=["central", "distributed", "tree"]
)
def test_what_was_spent_is_said_everywhere(call: Caller, tmp_path, flags):
    outcome = call(train, *flags, "--rounds=3", f"--output_dir={tmp_path / 'run'}")
    assert outcome.status == 0, outcome
    promised = _privacy(tmp_path / "run")
    spent = [float(row["epsilon"]) for row in _rows(tmp_path / "run")]
    assert spent == sorted(spent)
    assert 0 < spent[0] <= spent[-1] == pytest.approx(promised["epsilon"])
    assert promised["rounds"] == 3
    assert promised["unit"] == "client"
    assert "domain_counts" in promised["split"]
    assert promised["not_covered"]
    total = sum(z**-2 for z in promised["split"].values()) ** -0.5
    assert total == pytest.approx(promised["noise_multiplier"])
    line = next(text for text in outcome.out.splitlines() if text.startswith("private training: "))
    assert f"({promised['epsilon']:.4g}, {promised['delta']:.3g})-differential privacy" in line
    if flags is _DISTRIBUTED:
        assert any(text.startswith("this is a simulation: ") for text in promised["remarks"])
        assert "clients of a round add their noise" in promised["sampling"]
    if flags is _TREE:
        assert promised["epsilon"] == pytest.approx(20.0, rel=1e-3)


def test_more_rounds_cost_more_and_the_noise_stays(call: Caller, tmp_path):
    folder = tmp_path / "run"
    flags = (*_PRIVATE[:-4], "--target_epsilon=30", *_PRIVATE[-4:])
    flags = tuple(flag for flag in flags if not flag.startswith("--noise_multiplier"))
    assert call(train, *flags, "--rounds=2", f"--output_dir={folder}").status == 0
    before = _privacy(folder)
    outcome = call(train, *flags, "--rounds=4", f"--output_dir={folder}", "--resume")
    assert outcome.status == 0, outcome
    after = _privacy(folder)
    assert before["epsilon"] == pytest.approx(30.0, rel=1e-3)
    assert after["noise_multiplier"] == before["noise_multiplier"]
    assert after["epsilon"] > before["epsilon"]
    lines = outcome.out.splitlines()
    said = next(k for k, line in enumerate(lines) if line.startswith("private training: "))
    assert f"({after['epsilon']:.4g}, " in lines[said]
    assert said < next(k for k, line in enumerate(lines) if "worst" in line)


def test_kill_9_loses_no_key_and_repeats_no_noise(call: Caller, tmp_path, monkeypatch):
    """Rounds that were released before the kill are released again to the last bit."""
    flags = (*_PRIVATE, "--rounds=60", "--checkpoint_every=7", "--evaluate_every=20")
    monkeypatch.chdir(tmp_path)
    with Process(python_module("train", *flags, "--output_dir=run"), tmp_path) as process:
        process.wait_for_rows(tmp_path / "run" / "metrics.csv", 10)
        process.send(signal.SIGKILL)
        process.outcome()
    released, key = _rows(tmp_path / "run"), _key(tmp_path / "run")
    outcome = call(train, *flags, "--output_dir=run", "--resume")
    assert outcome.status == 0, outcome
    assert _key(tmp_path / "run") == key
    completed = _rows(tmp_path / "run")
    assert len(completed) == 60
    # The last row may have been cut short.
    assert completed[: len(released) - 1] == released[:-1]
    _assert_nowhere(tmp_path / "run", key)


def _key(folder: Path) -> list[int]:
    # Of the state of the only aggregation: the key is its first array, two int64 numbers.
    keys = [a for a in _state_leaves(folder) if a.dtype == np.int64 and a.shape == (2,)]
    assert len(keys) == 1
    return [int(number) for number in keys[0]]


def _assert_nowhere(folder: Path, key: list[int]) -> None:
    others = [p for p in folder.rglob("*") if p.is_file() and p.parent.name != "checkpoints"]
    assert {"config.json", "metrics.csv", "result.json"} <= {path.name for path in others}
    for path in others:
        content = path.read_bytes()
        for number in key:
            assert str(number).encode() not in content, path
            for byte_order in ("little", "big"):
                assert number.to_bytes(8, byte_order) not in content, path


def test_two_runs_have_different_noise_unless_it_is_seeded(call: Caller, tmp_path):
    def states(*flags: str) -> list[tuple[np.ndarray, ...]]:
        found = []
        for _ in range(2):
            folder = tmp_path / str(len(list(tmp_path.iterdir())))
            arguments = (*_PRIVATE, *flags, "--rounds=1", f"--output_dir={folder}")
            assert call(train, *arguments).status == 0
            found.append(_state_leaves(folder))
        return found

    first, second = states()
    assert not np.array_equal(first[0], second[0])
    first, second = states("--noise_seed=4")
    for a, b in zip(first, second):
        np.testing.assert_array_equal(a, b)
    remarks = [_privacy(folder)["remarks"] for folder in tmp_path.iterdir()]
    assert sum(any("--noise_seed=4" in text for text in texts) for texts in remarks) == 2


def test_who_takes_part_is_a_secret_of_its_own(call: Caller, tmp_path):
    """Without noise the counts of examples tell the cohorts, which --seed must not."""

    def examples_of_rounds(*flags: str) -> list[dict[str, str]]:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        arguments = (*_PRIVATE, "--noise_multiplier=0", "--rounds=8", *flags)
        assert call(train, *arguments, f"--output_dir={folder}").status == 0
        return [
            {k: v for k, v in row.items() if k.startswith(("train/num_examples", "clients/"))}
            for row in _rows(folder)
        ]

    assert examples_of_rounds() != examples_of_rounds()
    assert examples_of_rounds("--noise_seed=1") == examples_of_rounds("--noise_seed=1")
    assert examples_of_rounds("--noise_seed=1") != examples_of_rounds("--noise_seed=2")


def test_a_run_is_not_resumed_with_other_privacy(call: Caller, tmp_path):
    run = f"--output_dir={tmp_path / 'run'}"
    assert call(train, *_PRIVATE, "--rounds=1", run).status == 0
    for change in ("--noise_multiplier=0.1", "--clip_norm=2", "--absent_below=1"):
        outcome = call(train, *_PRIVATE, change, "--rounds=2", run, "--resume")
        assert outcome.status == 2
        flag = change.partition("=")[0].removeprefix("--")
        assert "holds another run" in outcome.error
        assert flag in outcome.error


def test_an_export_would_publish_the_key(call: Caller, folder):
    assert call(train, *_PRIVATE, "--rounds=1", "--output_dir=run").status == 0
    message = call.refused(folder, export, "--checkpoint=run", "--output_dir=plan")
    assert message.startswith("--privacy: expected none for an export, found central: the key of")


_OF_CLIENTS = ["--privacy=distributed", "--aggregation=secure", "--noise_multiplier=1"]
_BAD = [
    (["--privacy=central"], "--privacy=central: expected one of --noise_multiplier and "),
    (
        ["--privacy=central", "--noise_multiplier=1", "--target_epsilon=2"],
        "--privacy=central: expected one of --noise_multiplier and --target_epsilon, found both",
    ),
    (["--noise_multiplier=1"], "--noise_multiplier has no effect with --privacy=none: it needs "),
    (
        ["--privacy=central", "--noise_multiplier=1", "--delta=0.2"],
        "--delta: expected more than 0 and less than 0.125, one over the number of clients, found ",
    ),
    (
        ["--privacy=tree", "--noise_multiplier=1"],
        "--cohort_sampling: expected turns with --privacy=tree, whose account is of how often a ",
    ),
    (
        ["--privacy=central", "--noise_multiplier=1", "--cohort_sampling=turns"],
        "--cohort_sampling: expected ",
    ),
    (
        [
            "--privacy=central",
            "--target_epsilon=1e-9",
            "--delta=1e-12",
            "--cohort_sampling=poisson",
        ],
        "--target_epsilon: expected one that some noise reaches, found 1e-09",
    ),
    (
        ["--privacy=central", "--noise_multiplier=1", "--tree_restart_every=4"],
        "--tree_restart_every has no effect with --privacy=central: it needs --privacy=tree",
    ),
    (
        ["--privacy=central", "--noise_multiplier=1", "--clip_quantile=0.4"],
        "--clip_quantile has no effect with --clipping=fixed: it needs --clipping=adaptive",
    ),
    (
        ["--privacy=distributed", "--noise_multiplier=1"],
        "--aggregation: expected secure with --privacy=distributed, where a client's own noise ",
    ),
    (
        [*_OF_CLIENTS, "--privacy_min_clients=5"],
        "--privacy_min_clients: expected at most --clients_per_round=3 with --privacy=distributed, "
        "found 5",
    ),
    ([*_OF_CLIENTS, "--integer_clip=1e18"], "--integer_clip: expected so few steps that sums of "),
    (
        ["--privacy=central", "--noise_multiplier=1", "--integer_clip=100"],
        "--integer_clip has no effect with --privacy=central: it needs --privacy=distributed",
    ),
    (
        ["--aggregation=secure", "--cohort_sampling=poisson"],
        "--secure_min_clients: expected 1 with --cohort_sampling=poisson, of which a round may ",
    ),
    (["--privacy=centrl"], "--privacy: unknown privacy 'centrl': did you mean central? valid "),
]


@pytest.mark.parametrize(("flags", "message"), _BAD)
def test_what_cannot_be_promised_is_one_line(call: Caller, folder, flags, message):
    outcome = call(train, *TOY, *flags, "--rounds=2", "--output_dir=run")
    assert outcome.status != 0
    assert outcome.error.startswith(message), outcome.error
    assert not (folder / "run").exists()


def test_a_comparison_says_which_rows_are_private(call: Caller, tmp_path):
    shared = ("--cohort_sampling=poisson", "--rounds=2", "--trials=1", "--evaluate_every=2")
    arms = "plain=fed_avg;private=fed_avg:privacy=central,noise_multiplier=1.5"
    outcome = call(compare, *TOY, *shared, f"--arms={arms}", f"--output_dir={tmp_path / 'both'}")
    assert outcome.status == 0, outcome
    (line,) = [text for text in outcome.out.splitlines() if "differentially private" in text]
    assert line.startswith("private: each trial is (")
