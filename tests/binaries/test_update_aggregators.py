"""Runs under an aggregator of TFF's: results, resumption and refused flags."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from binaries import export, train
from tests.binaries.harness import TOY, Caller
from tff_agnostic.saving.checkpoints import CheckpointFolder

_IN_TFF = (*TOY, "--runtime=tff")
_DP = (*_IN_TFF, "--update_aggregator=dp:noise_multiplier=0.001")
# Place in a state of "dp".
_ZEROING = -4


def _leaves(folder: Path) -> tuple[np.ndarray, ...]:
    checkpoint = CheckpointFolder(folder / "checkpoints", 1).load_latest()
    assert checkpoint is not None
    return checkpoint.leaves


@pytest.mark.nightly
def test_resumed_run_equals_uninterrupted_run(call: Caller, tmp_path):
    """Up to TFF's noise, which has no seed; `test_combinations.py` has the other aggregators."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    first = call(train, *_DP, "--rounds=2", f"--output_dir={parts}")
    half = _leaves(parts)
    # In TFF only, and not in a plan.
    outcome = call(train, "--resume", "--rounds=4", "--runtime=cohort", f"--output_dir={parts}")
    assert "--runtime: expected tff" in outcome.error
    outcome = call(export, f"--checkpoint={parts}", f"--output_dir={tmp_path / 'plan'}")
    assert "--update_aggregator: expected none of a run to export" in outcome.error
    outcomes = [
        first,
        call(train, "--resume", "--rounds=4", f"--output_dir={parts}"),
        call(train, *_DP, "--rounds=4", f"--output_dir={whole}"),
    ]
    for outcome in outcomes:
        assert outcome.status == 0, outcome
    found, expected = _leaves(parts), _leaves(whole)
    assert len(found) == len(expected) == len(half)
    # The noise of updates is little, the noise of the counts that the clip norm follows is some
    # percent a round. The norm beyond which values are zeroed has none.
    numbers = [k for k, leaf in enumerate(expected) if leaf.dtype.kind == "f"]
    for k in numbers:
        np.testing.assert_allclose(found[k], expected[k], rtol=0.3)
    assert found[_ZEROING] == expected[_ZEROING] < half[_ZEROING] < 10
    # No part of the noise is accounted for: the losses and counts beside the update have none.
    with open(whole / "metrics.csv", encoding="utf-8") as file:
        assert "epsilon" not in next(csv.reader(file))
    assert "privacy" not in json.loads((whole / "result.json").read_text())
    assert "epsilon" not in outcomes[0].out


_REFUSED = {
    "dp:noise_multiplier=0.3": "noise_multiplier: expected less than a tenth of the clients",
    "dp": "noise_multiplier: expected standard deviation of the noise in the sum of the updates",
    "robust:noise_multiplier=1": "expected robust alone",
    "median": "unknown update aggregator 'median': valid names: none, robust, ",
}


@pytest.mark.parametrize("aggregator", list(_REFUSED))
def test_wrong_aggregator_is_refused(call: Caller, tmp_path, aggregator):
    flags = (*_IN_TFF, f"--update_aggregator={aggregator}", "--rounds=1")
    message = call.refused(tmp_path, train, *flags, f"--output_dir={tmp_path / 'run'}")
    assert message.startswith(f"--update_aggregator: {_REFUSED[aggregator]}")
