"""Warnings of `compare` on made-up data: neglected domains and implausible losses."""

from pathlib import Path

import numpy as np
import pytest

from binaries import compare
from tests.support.commands import Caller
from tests.support.stores import LOGISTIC_REGRESSION, points_store


def _write(folder: Path, scale: float = 1.0) -> tuple[str, str]:
    """Writes clients of a domain with random labels, one with easy labels, and a rare one.

    Returns:
        The flags that name the store and the model.
    """
    rng = np.random.default_rng(0)
    names = ["noisy", "usual", "rare"]
    clients = []
    for split, sizes in (("train", (12, 12, 4)), ("test", (12, 12, 12))):
        for domain, count in enumerate(sizes):
            for k in range(count):
                y = rng.integers(2, size=24)
                x = rng.normal(size=[24, 4])
                # The rare domain's labels are in features that no other domain uses.
                if domain:
                    x[:, domain] += 4.0 * (2 * y - 1)
                else:
                    x *= 5.0
                name = names[domain]
                clients.append((split, f"{name}_{k}", scale * x, y, [name] * 24))
    data, model = folder / "clients.sqlite", folder / "model.py"
    points_store(data, clients)
    model.write_text(LOGISTIC_REGRESSION)
    return f"--data={data}", f"--model={model}"


_RUN = (
    *("--task=custom", "--client_normalizer=client", "--rounds=20", "--clients_per_round=4"),
    *("--trials=1", "--seed=1"),
)
_ARMS = (
    "--arms=fed_avg;collapse=agnostic_fed_avg:lambda_learning_rate=1,window=1,lambda_absent=zero"
)


@pytest.mark.nightly
def test_compare_warns_about_neglected_domain(call: Caller, tmp_path):
    data, path = _write(tmp_path), tmp_path / "runs"
    outcome = call.ok(compare, *_RUN, _ARMS, *data, f"--output_dir={path}")
    # The rare domain has four of 28 clients, and a round has four clients.
    assert "1 of 3 domains are expected in fewer than half of the rounds: rare (48%)" in (
        outcome.out + outcome.err
    )
    (line,) = [s for s in outcome.out.splitlines() if s.startswith("note: collapse neglects rare")]
    assert "--lambda_absent=freeze keeps it" in line
    page = (path / "report.html").read_text()
    assert page.index("collapse neglects rare") < page.rindex("What to know first")


@pytest.mark.slow
def test_compare_warns_about_implausible_losses(call: Caller, tmp_path):
    data, path = _write(tmp_path, scale=1e4), tmp_path / "runs"
    short = ("--algorithms=fed_avg", "--rounds=2")
    outcome = call.ok(compare, *_RUN, *short, *data, f"--output_dir={path}")
    assert "fed_avg/trial_00: losses that no such model should have" in outcome.out + outcome.err
    page = (path / "report.html").read_text()
    assert page.index("osses that no such model should have") < page.rindex("What to know first")
