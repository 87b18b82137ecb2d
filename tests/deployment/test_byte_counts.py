"""The bytes that a manifest foretells are those of the checkpoints that travel."""

import json

import pytest

from plan_runner.export import open_export
from plan_runner.rounds import run_rounds
from plan_runner.verify import conformance_clients
from tests.deployment.kinds import NUM_DOMAINS
from tests.selection import usually


def _counts(folder):
    return json.loads((folder / "manifest.json").read_text())["bytes_per_client_and_round"]


def _measured(folder):
    export = open_export(folder)
    [result] = run_rounds(export, [conformance_clients(export)])
    return result


@pytest.mark.parametrize(
    "kind", usually(["logistic", "convolutional"], ["logistic", "convolutional", "lstm"])
)
def test_checkpoints_have_the_size_foretold(exported, kind):
    folder = exported("daf", kind=kind)
    counts, measured = _counts(folder), _measured(folder)
    assert measured.bytes_down == pytest.approx(counts["down"]["checkpoint_bytes"], rel=0.02)
    assert measured.bytes_up == pytest.approx(counts["up"]["checkpoint_bytes"], rel=0.02)


def test_secure_values_have_the_size_foretold(exported):
    folder = exported("secure")
    counts, measured = _counts(folder), _measured(folder)
    assert measured.bytes_down == pytest.approx(counts["down"]["checkpoint_bytes"], rel=0.02)
    assert measured.bytes_up == pytest.approx(counts["up"]["payload_bytes"], rel=0.02)


def test_values_beside_the_papers(exported):
    """Down: w, alpha and a seed of 2. Up: the delta, beta, L, N, accuracy and what became of it."""
    counts = _counts(exported("daf"))
    num_weights = 4 * 3 + 3
    assert counts["down"]["values"] == num_weights + NUM_DOMAINS + 2
    assert counts["up"]["values"] == num_weights + 1 + 2 * NUM_DOMAINS + 2 * NUM_DOMAINS + 4
    assert counts["paper"]["values"] == 2 * num_weights + 4 * NUM_DOMAINS
    assert counts["up"]["payload_bytes"] == 4 * counts["up"]["values"] + 4 * (NUM_DOMAINS + 4)
