"""A fleet's server reads the cohort sampling of an export and checks its claimed epsilon."""

import json
import math

import pytest

from fleet.node_noise.server_noise import parse_server_noise
from plan_runner.errors import PlanError
from tff_agnostic.privacy.accountant import PrivacyAccountant
from tff_agnostic.privacy.mechanisms import CentralNoise, TreeNoise
from tff_agnostic.privacy.sampling import (
    EveryClient,
    FixedSizeCohorts,
    PoissonCohorts,
    StratifiedCohorts,
)
from tff_agnostic.privacy.tree import Participations
from tff_agnostic.program.runs.fleet_privacy import _draw

_DELTA = 1e-3
_MECHANISMS = {
    "poisson": CentralNoise(2.0, PoissonCohorts(64, 10)),
    "fixed_size": CentralNoise(2.0, FixedSizeCohorts(64, 10)),
    "stratified": CentralNoise(2.0, StratifiedCohorts((40, 24), 10)),
    "everyone": CentralNoise(2.0, EveryClient()),
    "spaced": TreeNoise(2.0, Participations(3, 6)),
}


def _manifest(mechanism, epsilon, rounds):
    entry = {
        "mechanism": "tree" if isinstance(mechanism, TreeNoise) else "central",
        "groups": [{"noise_multiplier": 2.0 * math.sqrt(2)}] * 2,
        "delta": _DELTA,
        "draw": _draw(mechanism, 64, 10.0),
        "rounds": rounds,
        "guarantee_as_simulated": {"epsilon": epsilon},
    }
    return json.dumps({"privacy": {"differential_privacy": entry}}).encode()


@pytest.mark.parametrize("scheme", _MECHANISMS)
def test_server_reads_exported_draw(scheme):
    mechanism, rounds = _MECHANISMS[scheme], 13
    claimed = PrivacyAccountant([mechanism], _DELTA).epsilon(rounds)
    noise = parse_server_noise(_manifest(mechanism, claimed, rounds))
    assert (noise.draw.scheme, noise.draw.clients, noise.rounds) == (scheme, 64, rounds)
    assert noise.noise_multiplier == pytest.approx(2.0)
    if scheme == "spaced":
        # The exporter assumes participation in rounds 1, 7 and 13.
        assert noise.known_epsilon([1, 7, 13], rounds) <= claimed * (1 + 1e-6)
    else:
        # The fleet's epsilon can be slightly smaller, since the exporter rounds losses up.
        assert noise.sampled_epsilon(rounds) >= claimed * (1 - 5e-3)
    with pytest.raises(PlanError, match="which follows from the noise and the sampling"):
        parse_server_noise(_manifest(mechanism, claimed / 5, rounds))


def test_exported_epsilon_covers_its_rounds():
    """A former export claimed 10 of 64 nodes per round, although all nodes took part."""
    mechanism = CentralNoise(2.0, PoissonCohorts(64, 10))
    claimed = PrivacyAccountant([mechanism], 1 / 640).epsilon(2)
    assert claimed == pytest.approx(0.2985, abs=5e-4)
