"""`privacy`: epsilon, noise or rounds from the other two; privacy.json; rejected flags."""

import re

import pytest

from binaries import privacy
from tests.support import golden
from tests.support.commands import Caller
from tff_agnostic.base.files import read_json

_WRITERS = ("--clients=539", "--clients_per_round=50", "--delta=1e-3")
_QUICK = ("--privacy_accountant=rdp",)


@pytest.fixture
def call() -> Caller:
    return Caller(None)


@pytest.mark.slow
@golden.arguments
def test_settings_have_known_epsilons(call, arguments):
    outcome = call.ok(privacy, *arguments)
    assert "not covered" in outcome.out
    return outcome.out.splitlines()[0]


def test_printed_noise_spends_the_target_epsilon(call):
    """The printed noise gives back the epsilon and the number of rounds."""
    settings = [*_WRITERS, *_QUICK]
    printed = call(privacy, *settings, "--rounds=120", "--target_epsilon=2").out
    noise = re.match(r"the noise multiplier is ([\d.]+)\n", printed)[1]
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
    actual = [float(re.match(r"epsilon is ([\d.]+)", out)[1]) for out in outs]
    assert 1.8 < actual[0] < 3 < min(actual[1:])
    assert max(actual) == actual[3]


def test_privacy_json_has_the_guarantee(call, tmp_path):
    settings = [*_WRITERS, *_QUICK, "--rounds=120", "--noise_multiplier=2"]
    outcome = call.ok(privacy, *settings, f"--output_dir={tmp_path / 'out'}")
    actual = read_json(tmp_path / "out" / "privacy.json")
    assert actual["epsilon"] == pytest.approx(1.8227, rel=1e-4)
    assert actual["settings"]["clients_per_round"] == 50
    assert actual["split"] == pytest.approx({"update": 2.2361, "statistics": 4.4721}, abs=1e-4)
    table = outcome.out.partition("rounds    epsilon with noise 1")[2].splitlines()[2:7]
    assert [row.split()[0] for row in table] == ["30", "60", "120", "240", "480"]
    for row in table:
        epsilons = [float(text) for text in row.split()[1:]]
        assert epsilons == sorted(epsilons, reverse=True)


@golden.arguments
def test_rejects_invalid_flags(call, tmp_path, arguments):
    return call.refused(tmp_path, privacy, *arguments)
