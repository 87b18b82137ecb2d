"""`compare` on planted data says first which domains were given up, and which losses are absurd."""

import json

import numpy as np
import pytest

from binaries import compare
from tests.binaries.harness import Caller


def _write(folder, scale=1.0):
    """Writes clients of a domain of random labels, of an easy one, and of a rare easy one."""
    rng = np.random.default_rng(0)
    names = ["noisy", "usual", "rare"]
    description = {"domains": names, "num_features": 4, "num_classes": 2}
    folder.mkdir()
    (folder / "dataset.json").write_text(json.dumps(description))
    for split, sizes in (("train", (12, 12, 4)), ("test", (12, 12, 12))):
        (folder / split).mkdir()
        for domain, count in enumerate(sizes):
            for k in range(count):
                y = rng.integers(2, size=24).astype(np.int32)
                x = rng.normal(size=[24, 4])
                # What labels are read from: of the rare domain, from features of its own.
                if domain:
                    x[:, domain] += 4.0 * (2 * y - 1)
                else:
                    x *= 5.0
                np.savez(
                    folder / split / f"{names[domain]}_{k}.npz",
                    x=(scale * x).astype(np.float32),
                    y=y,
                    domain_id=np.full([24], domain, np.int32),
                )
    return folder


_RUN = ("--task=client_files", "--rounds=20", "--clients_per_round=4", "--trials=1", "--seed=1")
_ARMS = (
    "--arms=fed_avg;collapse=agnostic_fed_avg:lambda_learning_rate=1,window=1,lambda_absent=zero"
)


@pytest.mark.nightly
def test_compare_says_first_whom_a_row_gave_up(call: Caller, tmp_path):
    data, path = _write(tmp_path / "data"), tmp_path / "runs"
    outcome = call(compare, *_RUN, _ARMS, f"--data_dir={data}", f"--output_dir={path}")
    assert outcome.status == 0, outcome
    # Four of 28 clients, and four in a round.
    assert "1 of 3 domains are expected in fewer than half of the rounds: rare (48%)" in (
        outcome.out + outcome.err
    )
    (line,) = [s for s in outcome.out.splitlines() if s.startswith("collapse gave up rare")]
    assert "--lambda_absent=freeze keeps it" in line
    page = (path / "report.html").read_text()
    assert page.index("collapse gave up rare") < page.rindex("What to know first")
    assert "Collapse gave up rare" in (path / "compare.md").read_text()


@pytest.mark.slow
def test_compare_says_first_that_losses_are_out_of_range(call: Caller, tmp_path):
    data, path = _write(tmp_path / "data", scale=1e4), tmp_path / "runs"
    outcome = call(
        compare, *_RUN, "--algorithms=fed_avg", f"--data_dir={data}", f"--output_dir={path}"
    )
    assert outcome.status == 0, outcome
    assert "fed_avg, trial 1: losses that no such model should have" in outcome.out + outcome.err
    page = (path / "report.html").read_text()
    assert page.index("osses that no such model should have") < page.rindex("What to know first")
