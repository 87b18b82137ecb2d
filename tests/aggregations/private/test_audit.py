"""A lower bound on epsilon from many runs with and without a canary: below the claim, if it holds.

The adversary knows everything but the noise and whether the canary took part: a client whose
update is the largest that clipping leaves, along one coordinate. It looks at the canary's round,
and of a tree at the prefix sum that ends with it. With noise that is ten times too small it tells
the two apart better than the claim allows.
"""

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from tests.aggregations.private.sums import private_sum
from tests.algorithms.cases import build
from tff_agnostic.aggregations.private.private_release import Released
from tff_agnostic.computations.aggregated import AggregatedRound
from tff_agnostic.privacy.accountant import PrivacyAccountant
from tff_agnostic.privacy.mechanism import CentralNoise, TreeNoise
from tff_agnostic.privacy.sampling import PoissonCohorts
from tff_agnostic.privacy.tree import Participations

_ROUNDS, _DELTA, _TRIALS = 4, 1e-3, 1000
_CLIP_NORM = 0.5


def _sums_of_runs(name: str, noise_multiplier: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns what the adversary sees of runs without and with the canary, in canary's sizes."""
    aggregation = private_sum(name, clip_norm=_CLIP_NORM, noise_multiplier=noise_multiplier)
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

    @tf.function(autograph=False)
    def run(key: tf.Tensor, with_canary: tf.Tensor) -> tf.Tensor:
        state = exchange.initialize()._replace(noise_key=key)
        seen = tf.constant(0.0)
        for t in range(2):
            # The canary takes part once, in the second round.
            canary = tf.stack([with_canary * size * float(t == 1), 0.0])
            values = [canary if i == first else zero for i, zero in enumerate(zeros)]
            output = tf.nest.pack_sequence_as(exchange.bounds, values)
            state, noisy, _ = exchange.decode(state, Released(output, []))
            if t == 1 or (name == "tree" and t == 0):
                seen += tf.nest.flatten(noisy)[first][0]
        return seen / size

    rng = np.random.default_rng(seed)
    keys = rng.integers(0, 2**62, size=[2, _TRIALS, 2])
    return tuple(
        np.array(
            [run(tf.constant(key), tf.constant(float(canary))).numpy() for key in keys[canary]]
        )
        for canary in (0, 1)
    )


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
        "tree": (TreeNoise(z, Participations(max_participations=1)), _ROUNDS),
    }
    mechanism, rounds = mechanisms[name]
    return PrivacyAccountant([mechanism], _DELTA).epsilon(rounds)


@pytest.mark.parametrize("name", ["central", "tree"])
def test_no_adversary_finds_more_than_is_claimed_unless_noise_is_too_small(name):
    z = 2.5
    claimed = _claims(name, z)
    found = _lower_bound(*_sums_of_runs(name, z, seed=1))
    assert 0.0 <= found < claimed
    with_too_little = _lower_bound(*_sums_of_runs(name, z / 10, seed=2))
    assert with_too_little > claimed
