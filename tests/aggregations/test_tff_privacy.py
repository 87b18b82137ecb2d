"""Private sums equal tensorflow-privacy's in clipping, noise and epsilon; its queries run in TFF.

tensorflow-privacy's noise has no seed, so tests compare distributions or noise-free results.
"""

import itertools
from typing import Any, NamedTuple

import dp_accounting
import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
import tensorflow_federated as tff
import tensorflow_privacy as tfp

from tests.support.algorithms import CASES
from tests.support.clients import cohort
from tests.support.options import make_options
from tests.support.sums import encoded, private_sum
from tff_agnostic import aggregations
from tff_agnostic.aggregations.aggregation import Bound
from tff_agnostic.algorithms import Problem
from tff_agnostic.models import logistic_regression
from tff_agnostic.privacy.accountant import PrivacyAccountant
from tff_agnostic.privacy.mechanisms import CentralNoise
from tff_agnostic.privacy.sampling import PoissonCohorts

_SIZE, _CLIP, _Z = 20_000, 0.4, 1.3


class _Answer(NamedTuple):
    delta: Any
    beta: Any


_BOUNDS = _Answer(
    Bound(1.0, signed=True, ratio="update"),
    Bound(1.0, ratio="update", denominator=True, public_sum=3.0),
)


def _deltas() -> list[np.ndarray]:
    """Returns one delta below the clip norm and two deltas above it."""
    rng = np.random.default_rng(0)
    drawn = [rng.normal(size=_SIZE).astype(np.float32) for _ in range(3)]
    return [norm * d / np.linalg.norm(d) for norm, d in zip((0.1, 0.5, 4.0), drawn)]


def _ours(noise_multiplier: float) -> np.ndarray:
    aggregation = private_sum(
        noise_multiplier=noise_multiplier, clip_norm=_CLIP, clipping="fixed", expected_clients=3.0
    )
    state = aggregation.initialize(_BOUNDS)
    outputs = [_Answer(tf.constant(d), tf.constant(1.0)) for d in _deltas()]
    sent = [encoded(aggregation, output, _BOUNDS, state=state) for output in outputs]
    summed = tf.nest.map_structure(lambda *values: tf.add_n(values), *sent)
    return aggregation.decode(state, summed, _BOUNDS)[1].delta.numpy()


def _theirs(noise_multiplier: float) -> tuple[np.ndarray, Any]:
    query = tfp.GaussianSumQuery(l2_norm_clip=_CLIP, stddev=noise_multiplier * _CLIP)
    state = query.initial_global_state()
    sample = query.initial_sample_state([tf.zeros([_SIZE])])
    for delta in _deltas():
        sample = query.accumulate_record(
            query.derive_sample_params(state), sample, [tf.constant(delta)]
        )
    (total,), _, event = query.get_noised_result(sample, state)
    return total.numpy(), event


def test_clipped_sums_equal_tensorflow_privacys():
    np.testing.assert_allclose(_ours(0.0), _theirs(0.0)[0], atol=1e-7)


def test_noise_has_tensorflow_privacys_distribution():
    ours, theirs = _ours(_Z) - _ours(0.0), _theirs(_Z)[0] - _theirs(0.0)[0]
    assert scipy.stats.ks_2samp(ours, theirs).pvalue > 1e-3
    for noise in (ours, theirs):
        assert scipy.stats.kstest(noise / (_Z * _CLIP), "norm").pvalue > 1e-3
    # The statistical test detects a noise multiplier that is 10% larger.
    assert scipy.stats.ks_2samp(1.1 * ours, theirs).pvalue < 1e-3


def test_epsilon_equals_dp_accountings():
    # dp-accounting rejects a float32 tensor.
    event = dp_accounting.GaussianDpEvent(float(_theirs(_Z)[1].noise_multiplier))
    sampled = dp_accounting.SelfComposedDpEvent(
        dp_accounting.PoissonSampledDpEvent(0.1, event), 100
    )
    accountant = dp_accounting.pld.PLDAccountant()
    ours = PrivacyAccountant([CentralNoise(_Z, PoissonCohorts(100, 10))], 1e-5)
    expected = accountant.compose(sampled).get_epsilon(1e-5)
    assert ours.epsilon(100) == pytest.approx(expected, rel=1e-3)


@pytest.mark.slow
def test_tff_dp_factory_equals_private_rounds(tff_runtime, streaming_runtime):
    """Each of 3 clients has 4 examples, so the clients' weights are equal and public."""
    query = tfp.QuantileAdaptiveClipSumQuery(
        initial_l2_norm_clip=0.05,
        noise_multiplier=0.0,
        target_unclipped_quantile=0.5,
        learning_rate=0.2,
        clipped_count_stddev=0.0,
        expected_num_records=3.0,
        geometric_update=True,
    )
    factory = tff.aggregators.UnweightedMeanFactory(
        tff.aggregators.DifferentiallyPrivateFactory(query)
    )
    sums = [
        (tff_runtime, aggregations.from_tff(factory, mean_weight=4.0)),
        (streaming_runtime, private_sum(clip_norm=0.05, clipping="adaptive", expected_clients=3.0)),
    ]
    problem = Problem(
        logistic_regression(4, 3), ("0", "1", "2"), seed=7, expected_counts=(4.0, 4.0, 4.0)
    )
    spec = CASES["fed_avg"]
    algorithm = spec.build(problem, make_options(spec.options, client_learning_rate=0.3))
    clients = [c for seed in range(3) for c in cohort(seed, sizes=(4,))]
    weights = []
    for runtime, aggregation in sums:
        training = runtime.training(algorithm, aggregation)
        first = state = training.initialize()
        for _ in range(4):
            state, _ = training.next(state, clients)
        assert not np.allclose(state.algorithm.weights[0][0], first.algorithm.weights[0][0])
        weights.append(state.algorithm.weights.trainable)
    for theirs, ours in zip(*weights):
        np.testing.assert_allclose(theirs, ours, atol=1e-5)


@pytest.mark.slow
def test_tff_tree_aggregation_updates_its_state(tff_runtime):
    model = logistic_regression(4, 3)
    specs = [tf.TensorSpec(w.shape, w.dtype) for w in model.initial_weights.trainable]
    factory = tff.aggregators.DifferentiallyPrivateFactory.tree_aggregation(
        noise_multiplier=0.01,
        clients_per_round=4.0,
        l2_norm_clip=0.1,
        record_specs=specs,
        noise_seed=3,
    )
    spec = CASES["agnostic_fed_avg"]
    algorithm = spec.build(Problem.numbered(model, 3), spec.options())
    training = tff_runtime.training(algorithm, aggregations.from_tff(factory, mean_weight=0.25))
    state = training.initialize()
    states = [state]
    for seed in range(2):
        state, report = training.next(state, cohort(seed))
        assert report["skipped"] == 0
        states.append(state)
    trees = [tf.nest.flatten(s.aggregations) for s in states]
    for before, after in itertools.pairwise(trees):
        assert any(not np.array_equal(a, b) for a, b in zip(before, after))
