"""`privacy`: three questions, what it writes, and what it refuses."""

import csv
import dataclasses
import json
import re
from typing import Any

import pytest

from binaries import privacy
from tests import golden
from tests.binaries.harness import Caller
from tests.run.harness import is_png
from tff_agnostic.privacy.accountant import PrivacyStatement
from tff_agnostic.program.studies import privacy_planning

_WRITERS = ("--clients=539", "--clients_per_round=50", "--delta=1e-3")
_QUICK = ("--privacy_accountant=rdp",)


@pytest.fixture
def call() -> Caller:
    """Calls that start nothing."""
    return Caller(None)


@pytest.mark.slow
@golden.arguments
def test_epsilon_of_settings(call, arguments):
    outcome = call(privacy, *arguments)
    assert outcome.status == 0, outcome
    assert "not covered" in outcome.out
    return outcome.out.splitlines()[0]


def test_noise_that_is_told_has_the_epsilon(call):
    """And rounds, of which one more would be too many."""
    settings = [*_WRITERS, *_QUICK]
    told = call(privacy, *settings, "--rounds=120", "--target_epsilon=2").out
    noise = re.match(r"the noise multiplier is ([\d.]+)\n", told)[1]
    again = call(privacy, *settings, "--rounds=120", f"--noise_multiplier={noise}").out
    assert again.startswith("epsilon is 2.0000")
    rounds = call(privacy, *settings, "--target_epsilon=2", f"--noise_multiplier={noise}").out
    assert rounds.startswith("the budget lasts for 120 rounds")


def test_distributed_noise_costs_more_with_fewer_clients(call):
    settings = [*_WRITERS, "--privacy=distributed", "--rounds=120", "--noise_multiplier=2"]
    all_clients = call(privacy, *settings).out
    fewer = call(privacy, *settings, "--participation=secret:min_clients=270").out
    in_turns = call(privacy, *settings, "--participation=secret:answering=100").out
    counted = call(privacy, *settings, "--participation=public").out
    outs = (all_clients, fewer, in_turns, counted)
    found = [float(re.match(r"epsilon is ([\d.]+)", out)[1]) for out in outs]
    assert 1.8 < found[0] < 3 < min(found[1:])
    assert max(found) == found[3]


def test_what_it_writes(call, tmp_path):
    settings = [*_WRITERS, *_QUICK, "--rounds=120", "--noise_multiplier=2"]
    outcome = call(privacy, *settings, f"--output_dir={tmp_path / 'out'}")
    assert outcome.status == 0, outcome
    found = json.loads((tmp_path / "out" / "privacy.json").read_text())
    assert found["epsilon"] == pytest.approx(1.8227, rel=1e-4)
    assert found["settings"]["clients_per_round"] == 50
    assert found["split"] == pytest.approx({"update": 2.2361, "statistics": 4.4721}, abs=1e-4)
    rows = list(csv.DictReader((tmp_path / "out" / "privacy.csv").open(newline="")))
    assert list(rows[0]) == ["rounds", "epsilon/1.0", "epsilon/2.0", "epsilon/4.0"]
    assert [int(rows[0]["rounds"]), int(rows[-1]["rounds"])] == [1, 480]
    for row in rows:
        of_noise = [float(value) for name, value in row.items() if name != "rounds"]
        assert of_noise == sorted(of_noise, reverse=True)
    assert is_png((tmp_path / "out" / "privacy.png").read_bytes())


@pytest.mark.nightly
def test_an_audit_ends_with_an_error_where_more_is_proved_than_is_claimed(
    call, tmp_path, monkeypatch
):
    """The account is made to claim 2.4 times too little; what is proved is below the right one."""
    right, stated = 5.4297, privacy_planning._statement

    def too_small(*of: Any) -> PrivacyStatement:
        found = stated(*of)
        return dataclasses.replace(found, epsilon=found.epsilon / 2.4)

    monkeypatch.setattr(privacy_planning, "_statement", too_small)
    settings = ["--clients=6", "--clients_per_round=6", "--rounds=4", "--delta=0.02"]
    outcome = call(
        privacy, *settings, "--noise_multiplier=1", "--audit", f"--output_dir={tmp_path / 'out'}"
    )
    assert outcome.status == 1
    assert "error: the claim is wrong: the attack proves that epsilon is at least " in outcome.err
    found = json.loads((tmp_path / "out" / "privacy.json").read_text())["audit"]
    assert found["is_refuted"]
    assert found["claimed"] == pytest.approx(right / 2.4, rel=1e-4)
    assert found["claimed"] < found["from_noisy_sums"] < right
    assert (found["runs"], found["rounds"], found["shows_participation"]) == (1000, 4, False)
    # One over the noise multiplier of the rounds.
    assert found["shift"] == pytest.approx(1.0, rel=1e-3)


@golden.arguments
def test_what_is_refused(call, tmp_path, arguments):
    return call.refused(tmp_path, privacy, *arguments)
