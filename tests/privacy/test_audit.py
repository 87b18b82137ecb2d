"""Whole rounds attacked: every private mode, and claims that are too small on purpose."""

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.privacy_audit import MODES
from tests.selection import usually
from tff_agnostic.aggregations.noise import TreeResidual
from tff_agnostic.privacy.tree import Participations, noise_covariance


@pytest.mark.parametrize("restart_every", [None, 3])
def test_the_covariance_of_tree_noise_is_that_of_the_noise(restart_every):
    """Exactly: each node draws a coordinate of its own, so that products are covariances."""
    noise, rounds, nodes = TreeResidual(restart_every), 11, {}
    spec = tf.TensorSpec([64], tf.float64)

    def draw(level, number):
        node = nodes.setdefault((int(level), int(number)), len(nodes))
        return tf.one_hot(node, 64, dtype=tf.float64)

    drawn = np.array([noise(draw, tf.constant(t, tf.int64), spec) for t in range(rounds)])
    participations = Participations(1, restart_every=restart_every)
    np.testing.assert_array_equal(drawn @ drawn.T, noise_covariance(participations, rounds))


# Runs that the usual tests play of a mode.
_FEWER = {"distributed, 2 of 6, a secret": 600, "control: half the noise that is claimed": 1000}


@pytest.mark.parametrize("name", usually(_FEWER, MODES))
def test_whole_rounds_of_every_mode(name):
    """Controls claim too little, on purpose: they are found. See `benchmarks.privacy_audit`."""
    mode = MODES[name]
    found = mode.audited(runs=_FEWER.get(name, 2000), seed=1)
    assert found.is_refuted == mode.is_control
    assert found.findings.noisy_sums.epsilon > 0.2
    # An account takes this much for granted, so it must not be less that is attacked.
    if mode.account is None and "counted" not in name:
        per_client = mode.mechanism.noise_multiplier * found.findings.shift
        is_replaced = "3 of" in name
        assert per_client == pytest.approx(2.0 if is_replaced else 1.0, rel=1e-3)
    is_shown = name == "control: counted, claimed as a secret"
    assert found.findings.shows_participation == is_shown
