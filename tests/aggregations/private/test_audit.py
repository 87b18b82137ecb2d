"""A lower bound on epsilon from many runs with and without a canary: below the claim, if it holds.

The adversary knows everything but the noise and whether the canary took part: a client whose
update is the largest that clipping leaves, along one coordinate. It looks at the canary's round,
and of a tree at the prefix sum that ends with it. With noise that is ten times too small it tells
the two apart better than the claim allows.
"""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from tests.aggregations.private.sums import LIMITS, private_sum
from tests.algorithms.cases import build
from tests.selection import usually
from tff_agnostic.aggregations.aggregation import ClientFacts, PlainSum
from tff_agnostic.aggregations.private.private_release import Released
from tff_agnostic.aggregations.secure_sum import SecureSum, SecureSumOptions
from tff_agnostic.computations.aggregated import AggregatedRound
from tff_agnostic.computations.client_group import Place
from tff_agnostic.privacy.accountant import PrivacyAccountant
from tff_agnostic.privacy.distributed_mechanism import DistributedNoise, IntegerGroup
from tff_agnostic.privacy.mechanism import CentralNoise, TreeNoise
from tff_agnostic.privacy.sampling import PoissonCohorts, SecretCohorts
from tff_agnostic.privacy.tree import Participations

_ROUNDS, _DELTA, _TRIALS = 4, 1e-3, 1000
_CLIP_NORM = 0.5
_NUM_CLIENTS, _STEPS = 2.0, 2.0**14


def _sums_of_runs(name: str, noise_multiplier: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns what the adversary sees of runs without and with the canary, in canary's sizes."""
    aggregation = private_sum(
        name,
        SecureSum(SecureSumOptions(**LIMITS, min_clients=1))
        if name == "distributed"
        else PlainSum(),
        noise_multiplier,
        _NUM_CLIENTS,
        clip_norm=_CLIP_NORM,
    )
    (exchange,) = AggregatedRound(build("agnostic_fed_avg"), aggregation).exchanges
    bounds = tf.nest.flatten(exchange.bounds)
    update = next(g for g in exchange.aggregation.groups(exchange.bounds) if g.is_update)
    size = update.limit * _CLIP_NORM
    first = update.positions[0]
    shapes = [[2] if i == first else [] for i in range(len(bounds))]
    zeros = [
        tf.zeros(shape, tf.int64 if bound.integer else tf.float32)
        for bound, shape in zip(bounds, shapes)
    ]

    def run(key: tf.Tensor, with_canary: tf.Tensor) -> tf.Tensor:
        state = exchange.initialize()._replace(noise_key=key)
        seen = tf.constant(0.0)
        # Of other noise than a tree's the first round says nothing.
        for t in range(0 if name == "tree" else 1, 2):
            # The canary takes part once, in the second round.
            canary = tf.stack([with_canary * size * float(t == 1), 0.0])
            values = [canary if i == first else zero for i, zero in enumerate(zeros)]
            output = tf.nest.pack_sequence_as(exchange.bounds, values)
            state, noisy, _ = exchange.decode(state, _SUMMED[name](exchange, state, output))
            seen += tf.nest.flatten(noisy)[first][0]
        return seen / size

    @tf.function(autograph=False)
    def runs(keys: tf.Tensor, with_canary: tf.Tensor) -> tf.Tensor:
        return tf.map_fn(lambda key: run(key, with_canary), keys, fn_output_signature=tf.float32)

    keys = np.random.default_rng(seed).integers(0, 2**62, size=[2, _TRIALS, 2])
    return tuple(
        runs(tf.constant(keys[canary]), tf.constant(float(canary))).numpy() for canary in (0, 1)
    )


def _of_clients(exchange: Any, state: Any, canary: Any) -> Any:
    """Returns the sum of what the canary and clients that answer zeros submit, with their noise."""
    zeros = tf.nest.map_structure(tf.zeros_like, canary)
    params = exchange.aggregation.client_params(state)
    submitted = []
    for k in range(int(_NUM_CLIENTS)):
        nothing = tf.constant(0, tf.int64)
        facts = ClientFacts(nothing, nothing, place=Place(tf.constant(k), tf.constant(0)))
        answer = zeros if k else canary
        submitted.append(exchange.aggregation.encode(params, answer, exchange.bounds, facts))
    return tf.nest.map_structure(lambda *values: tf.add_n(values), *submitted)


def _of_server(exchange: Any, state: Any, canary: Any) -> Any:
    del exchange, state
    return Released(canary, [])


_SUMMED = {"central": _of_server, "distributed": _of_clients, "tree": _of_server}


def _lower_bound(without: np.ndarray, with_canary: np.ndarray) -> float:
    """Returns epsilon that holds with 99% confidence at least, by Clopper-Pearson's intervals."""
    best = 0.0
    for threshold in np.linspace(0.3, 1.5, 7):
        false, true = np.sum(without > threshold), np.sum(with_canary > threshold)
        most_false = stats.beta.ppf(1 - 0.01 / 14, false + 1, _TRIALS - false)
        least_true = stats.beta.ppf(0.01 / 14, true, _TRIALS - true + 1) if true else 0.0
        if least_true > _DELTA:
            best = max(best, float(np.log((least_true - _DELTA) / most_false)))
    return best


def _claims(name: str, z: float) -> float:
    everybody = PoissonCohorts(clients=100, expected_clients=100)
    mechanisms = {
        # The canary takes part in one round; each is of all clients.
        "central": (CentralNoise(z, everybody), 1),
        "distributed": (
            DistributedNoise(
                (IntegerGroup(z, _STEPS, 1000),),
                "skellam",
                SecretCohorts(int(_NUM_CLIENTS), int(_NUM_CLIENTS), _NUM_CLIENTS),
                int(_NUM_CLIENTS),
                int(_NUM_CLIENTS),
            ),
            1,
        ),
        "tree": (TreeNoise(z, Participations(max_participations=1)), _ROUNDS),
    }
    mechanism, rounds = mechanisms[name]
    return PrivacyAccountant([mechanism], _DELTA).epsilon(rounds)


@pytest.mark.parametrize("name", usually(["distributed"], ["central", "distributed", "tree"]))
def test_no_adversary_finds_more_than_is_claimed_unless_noise_is_too_small(name):
    z = 2.5
    claimed = _claims(name, z)
    found = _lower_bound(*_sums_of_runs(name, z, seed=1))
    assert 0.0 <= found < claimed
    with_too_little = _lower_bound(*_sums_of_runs(name, z / 10, seed=2))
    assert with_too_little > claimed
