"""Statements of a privacy guarantee: JSON, table rows and assumptions."""

import json
from importlib.metadata import version

import pytest

from tff_agnostic.privacy.accountant import PrivacyAccountant, statement
from tff_agnostic.privacy.mechanisms import CentralNoise, TreeNoise
from tff_agnostic.privacy.sampling import PoissonCohorts
from tff_agnostic.privacy.tree import Participations


def _statement(z, **more):
    training = CentralNoise(z, PoissonCohorts(539, 50))
    split = {"update": z / 0.9**0.5, "statistics": z / 0.1**0.5}
    return statement(PrivacyAccountant([training], 1e-3), [120], split, **more)


@pytest.mark.slow
def test_statement_json_has_guarantee_and_assumptions():
    result = json.loads(json.dumps(_statement(1.0, remarks=["--noise_seed=3 was given"]).to_dict()))
    assert result.pop("epsilon") == pytest.approx(4.8576, rel=1e-4)
    assert result.pop("split") == pytest.approx({"update": 1.0541, "statistics": 3.1623}, abs=1e-4)
    assert (
        "each of 539 clients takes part by itself with probability 0.0927644" in result["sampling"]
    )
    assert any("tuning" in text for text in result["not_covered"])
    assert (result["delta"], result["rounds"], result["noise_multiplier"]) == (1e-3, 120, 1.0)
    assert (result["unit"], result["adjacency"]) == ("client", "add or remove one client")
    assert result["library"] == f"dp-accounting {version('dp-accounting')}"
    assert (result["accountant"], result["remarks"]) == ("pld", ["--noise_seed=3 was given"])


def test_epsilon_without_noise_is_null_in_json():
    result = json.loads(json.dumps(_statement(0.0).to_dict(), allow_nan=False))
    assert result["epsilon"] is None


@pytest.mark.slow
def test_statement_has_table_rows():
    rows = _statement(1.0).rows()
    assert rows[0] == (
        "guarantee",
        "(4.858, 0.001)-differential privacy of each client after 120 rounds",
    )
    assert ("of each group", "update 1.054, statistics 3.162") in rows
    assert ("accountant", f"pld, dp-accounting {version('dp-accounting')}") in rows


def test_private_evaluation_adds_its_assumptions():
    training = TreeNoise(4.0, Participations(6, 20, 100))
    evaluation = TreeNoise(9.0, Participations(1))
    accountant = PrivacyAccountant([training, evaluation], 1e-6)
    result = statement(accountant, [400, 2], {"update": 4.0})
    assert result.sampling == (
        "a client takes part at most 6 times and a client that took part waits until at least 20 "
        "rounds later, however clients are chosen; a new tree every 100 rounds; a client takes "
        "part at most once, however clients are chosen; one tree"
    )
    assert result.epsilon == accountant.epsilon(400, 2)
