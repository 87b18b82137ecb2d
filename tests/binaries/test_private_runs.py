"""Runs with differential privacy: reported epsilon, secret keys, resuming and export."""

import csv
import signal
from pathlib import Path

import numpy as np
import pytest

from binaries import evaluate, export, train
from plan_runner.graph_session import read_checkpoint
from tests.plan_runner.harness import call as run_plan
from tests.support import golden
from tests.support.commands import TOY, Caller, Process, python_module
from tests.support.marks import usually
from tff_agnostic.base.files import read_json
from tff_agnostic.saving.checkpoints import CheckpointFolder

_PRIVATE = (
    *TOY,
    "--privacy=central",
    "--noise_multiplier=0.8",
    "--cohort_sampling=poisson",
    "--clip_norm=0.5",
    "--limit_examples=40",
    "--limit_loss=10",
    "--lambda_baselines=0.5,0.1,0,0.1,0.5",
)
_EVALUATED = (*_PRIVATE, "--private_evaluation=noise:multiplier=5")
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
    "--limit_examples=40",
    "--limit_loss=10",
)


def _rows(folder: Path) -> list[dict[str, str]]:
    with open(folder / "metrics.csv", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _privacy(folder: Path) -> dict:
    return read_json(folder / "result.json")["privacy"]


def _state_leaves(folder: Path) -> tuple[np.ndarray, ...]:
    checkpoint = CheckpointFolder(folder / "checkpoints", 1).load_latest()
    assert checkpoint is not None
    return checkpoint.leaves


_KINDS = {"central": _PRIVATE, "distributed": _DISTRIBUTED, "tree": _TREE}


# The commands of docs/explanations/privacy/noise_from_clients.md cover distributed noise.
@pytest.mark.nightly
@pytest.mark.parametrize("kind", usually(["central", "tree"], _KINDS))
def test_outputs_show_the_spent_privacy(call: Caller, tmp_path, kind):
    flags = _KINDS[kind]
    outcome = call.ok(train, *flags, "--rounds=3", f"--output_dir={tmp_path / 'run'}")
    promised = _privacy(tmp_path / "run")
    spent = [float(row["epsilon"]) for row in _rows(tmp_path / "run")]
    assert spent == sorted(spent)
    assert 0 < spent[0] <= spent[-1] == pytest.approx(promised["epsilon"])
    assert promised["rounds"] == 3
    assert promised["unit"] == "client"
    assert "domain_counts" in promised["split"]
    assert promised["not_covered"]
    has_client_noise = flags is _DISTRIBUTED
    assert promised["noise_generator"].startswith("Philox" if has_client_noise else "ChaCha20")
    # The bound for the sum of clients' noise underflows to 0.
    assert promised["noise_tail"] > 0 or has_client_noise
    assert promised["noise_tail"] < 0.01 * promised["delta"]
    card = read_json(tmp_path / "run" / "model" / "model_card.json")
    assert card["result"]["privacy"] == promised
    total = sum(z**-2 for z in promised["split"].values()) ** -0.5
    assert total == pytest.approx(promised["noise_multiplier"])
    line = next(text for text in outcome.out.splitlines() if text.startswith("private training: "))
    assert f"({promised['epsilon']:.4g}, {promised['delta']:.3g})-differential privacy" in line
    if flags is _DISTRIBUTED:
        assert any(text.startswith("this is a simulation: ") for text in promised["remarks"])
        assert "clients of a round add their noise" in promised["sampling"]
        plan = f"--output_dir={tmp_path / 'plan'}"
        to_plan = (f"--checkpoint={tmp_path / 'run'}", "--profile=secure", plan)
        refused = call.refused(tmp_path, export, *to_plan)
        assert refused.startswith("--privacy: expected none, central or tree for an export, found ")
    if flags is _TREE:
        assert promised["epsilon"] == pytest.approx(20.0, rel=1e-3)


@pytest.mark.parametrize("kind", ["central", "tree"])
def test_rejects_delta_below_noise_tail(call: Caller, tmp_path, kind):
    """Noise exceeds its bound with probability 2^-51 in a round, or 2^-50 with a tree."""
    flags = (*_KINDS[kind], "--rounds=3", "--delta=1e-13", f"--output_dir={tmp_path / 'run'}")
    refused = call.refused(tmp_path, train, *flags)
    least = (2 if kind == "tree" else 1) * 100 * 3 * 2.0**-51
    assert refused.startswith(f"--delta: expected at least {least:.3g}, 100 times the probability ")


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["central", "distributed"])
def test_more_rounds_increase_epsilon_at_equal_noise(call: Caller, tmp_path, kind):
    folder = tmp_path / "run"
    flags = ("--target_epsilon=30", *_KINDS[kind])
    flags = tuple(flag for flag in flags if not flag.startswith("--noise_multiplier"))
    call.ok(train, *flags, "--rounds=2", f"--output_dir={folder}")
    before = _privacy(folder)
    outcome = call.ok(train, *flags, "--rounds=4", f"--output_dir={folder}", "--resume")
    after = _privacy(folder)
    assert before["epsilon"] == pytest.approx(30.0, rel=1e-3)
    assert after["noise_multiplier"] == before["noise_multiplier"]
    assert after["epsilon"] > before["epsilon"]
    lines = outcome.out.splitlines()
    place = next(k for k, line in enumerate(lines) if line.startswith("private training: "))
    assert f"({after['epsilon']:.4g}, " in lines[place]
    assert place < next(k for k, line in enumerate(lines) if "worst" in line)


@pytest.mark.nightly
def test_killed_run_keeps_its_key_and_noise(call: Caller, tmp_path, monkeypatch):
    """Rounds before the kill have the same bits when the resumed run repeats them."""
    flags = (*_EVALUATED, "--rounds=40", "--checkpoint_every=7", "--evaluate_every=20")
    monkeypatch.chdir(tmp_path)
    with Process(python_module("train", *flags, "--output_dir=run"), tmp_path) as process:
        process.wait_for_rows(tmp_path / "run" / "metrics.csv", 10)
        process.send(signal.SIGKILL)
        process.outcome()
    released, key = _rows(tmp_path / "run"), _key(tmp_path / "run")
    call.ok(train, *flags, "--output_dir=run", "--resume")
    assert _key(tmp_path / "run") == key
    completed = _rows(tmp_path / "run")
    assert len(completed) == 40
    assert [int(row["evaluations"]) for row in completed] == [n // 20 for n in range(1, 41)]
    # The kill may have truncated the last row of the file.
    assert completed[: len(released) - 1] == released[:-1]
    _assert_nowhere(tmp_path / "run", key)


@pytest.mark.slow
def test_private_run_exits_without_python_errors(tmp_path):
    flags = (*_PRIVATE, "--rounds=1", "--output_dir=run")
    with Process(python_module("train", *flags), tmp_path) as process:
        outcome = process.outcome()
    assert outcome.status == 0
    assert "Exception ignored" not in outcome.err


def _key(folder: Path) -> list[int]:
    keys = [a for a in _state_leaves(folder) if a.dtype == np.int64 and a.shape == (4,)]
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
                assert number.to_bytes(8, byte_order, signed=True) not in content, path


@pytest.mark.nightly
def test_unseeded_runs_have_different_noise(call: Caller, tmp_path):
    def states(*flags: str) -> list[tuple[np.ndarray, ...]]:
        actual = []
        for _ in range(2):
            folder = tmp_path / str(len(list(tmp_path.iterdir())))
            arguments = (*_PRIVATE, *flags, "--rounds=1", f"--output_dir={folder}")
            call.ok(train, *arguments)
            actual.append(_state_leaves(folder))
        return actual

    first, second = states()
    assert not np.array_equal(first[0], second[0])
    first, second = states("--noise_seed=4")
    for a, b in zip(first, second):
        np.testing.assert_array_equal(a, b)
    remarks = [_privacy(folder)["remarks"] for folder in tmp_path.iterdir()]
    assert sum(any("noise_seed=4" in text for text in texts) for texts in remarks) == 2


@pytest.mark.nightly
def test_unseeded_runs_have_different_cohorts(call: Caller, tmp_path):
    """Without noise, the exact counts of examples identify the cohorts."""

    def round_examples(*flags: str) -> list[dict[str, str]]:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        arguments = (*_PRIVATE, "--noise_multiplier=0", "--rounds=8", *flags)
        call.ok(train, *arguments, f"--output_dir={folder}")
        return [
            {k: v for k, v in row.items() if k.startswith(("train/num_examples", "clients/"))}
            for row in _rows(folder)
        ]

    seeded = round_examples("--noise_seed=1")
    assert seeded == round_examples("--noise_seed=1")
    # Without a seed, the key comes from the operating system.
    assert seeded != round_examples()


@pytest.mark.nightly
def test_outputs_show_the_privacy_of_evaluations(call: Caller, folder):
    """The toy task trains and evaluates the same clients, whose epsilons add up."""
    noise = "--private_evaluation=noise:multiplier=0.2"
    flags = (*_EVALUATED, noise, "--evaluate_every=2", "--output_dir=run")
    outcome = call.ok(train, *flags, "--rounds=3")
    promised = _privacy(folder / "run")
    evaluations = promised["evaluation"]
    assert (promised["rounds"], evaluations["evaluations"]) == (3, 2)
    assert not any("evaluations" in text for text in promised["not_covered"])
    assert any("of training and of 2 evaluations together" in t for t in promised["remarks"])
    assert promised["epsilon"] > evaluations["epsilon"] > 0
    rows = _rows(folder / "run")
    assert float(rows[-1]["epsilon"]) == promised["epsilon"]
    assert float(rows[-1]["evaluation_epsilon"]) == evaluations["epsilon"]
    assert "\nprivate evaluation, of test clients: (" in outcome.out
    report = (folder / "run" / "report.html").read_text()
    assert "private evaluations do not resample clients" in report
    call.ok(train, *flags, "--rounds=4", "--evaluation_clients=4", "--resume")
    assert [row["evaluations"] for row in _rows(folder / "run")] == ["0", "1", "2", "3"]

    outputs = []
    for name in ("first.json", "second.json"):
        outcome = call.ok(evaluate, "--checkpoint=run", f"--output={name}")
        outputs.append(read_json(folder / name))
        assert outputs[-1]["privacy"]["evaluations"] == 1
    assert "it covers this evaluation only" in outcome.out
    assert outputs[0]["overall"]["loss"] != outputs[1]["overall"]["loss"]
    share = "--adaptation_share=0.5"
    assert "expected none with --private_evaluation" in call.refused(
        folder, evaluate, "--checkpoint=run", share
    )


@pytest.mark.slow
def test_export_has_a_separate_noise_key(call: Caller, folder):
    call.ok(train, *_EVALUATED, "--rounds=1", "--output_dir=run")
    to_plan = ("--checkpoint=run", "--output_dir=plan", "--clients_dir=clients")
    outcome = call.ok(export, *to_plan)
    assert "server_state.ckpt holds the key of the fleet's noise: keep it secret" in outcome.out
    assert not (folder / "clients" / "cohorts.txt").exists()
    actual = read_json(folder / "plan" / "manifest.json")["privacy"]
    assert actual["differential_privacy"]["guarantee_as_simulated"]["rounds"] == 1
    state = read_checkpoint(folder / "plan" / "server_state.ckpt", "the state")
    key = list(map(int, state["server/aggregations/0/noise_key"]))
    assert {*key}.isdisjoint(_key(folder / "run"))
    assert run_plan("--plan=plan", "--verify").status == 0
    for flag in ("--noise_multiplier=0.1", "--clip_norm=3"):
        refused = call.refused(folder, export, "--checkpoint=run", flag, "--output_dir=other")
        assert "has no effect on an export: the run of --checkpoint determines the noise" in refused


@pytest.mark.slow
def test_export_of_resumed_distributed_run_keeps_noise(call: Caller, folder):
    private = ("--privacy=distributed", "--aggregation=secure", "--cohort_sampling=poisson")
    bounds = ("--target_epsilon=30", "--clip_norm=0.5", "--limit_examples=40", "--limit_loss=10")
    # FedAvg trains fastest.
    flags = (*TOY, *private, *bounds, "--algorithm=fed_avg", "--output_dir=run")
    noises = []
    for rounds, more in ((1, ()), (2, ("--resume",))):
        call.ok(train, *flags, f"--rounds={rounds}", *more)
        noises.append(_privacy(folder / "run")["noise_multiplier"])
    call.ok(export, "--checkpoint=run", "--backend=flower", "--output_dir=fleet")
    exported = read_json(folder / "fleet/plan/manifest.json")["privacy"]["differential_privacy"]
    assert noises == [pytest.approx(exported["noise_multiplier"])] * 2
    assert len(exported["epsilon_after"]) == 2
    promised = exported["guarantee_as_simulated"]["epsilon"]
    assert promised == pytest.approx(_privacy(folder / "run")["epsilon"])
    assert promised > 1.2 * 30
    assert run_plan("--plan=fleet/plan", "--verify").status == 0
    fixed = ("--checkpoint=run", "--backend=flower", "--noise_generator=philox")
    assert call.refused(folder, export, *fixed, "--output_dir=other") == (
        "--noise_generator has no effect on an export: the run of --checkpoint determines the noise"
    )


@golden.arguments
def test_rejects_impossible_guarantees(call: Caller, folder, arguments):
    outcome = call(train, *TOY, *arguments, "--rounds=2", "--output_dir=run")
    assert outcome.status != 0
    assert not (folder / "run").exists()
    return outcome.error
