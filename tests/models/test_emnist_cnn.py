"""The CNN of Reddi et al. 2021."""

import numpy as np
import tensorflow as tf

from tff_agnostic.models import emnist_cnn

_SEED = np.array([0, 0], np.int32)


def test_cnn_weights_have_the_papers_shapes():
    assert emnist_cnn().num_parameters == 1_206_590
    shapes = [w.shape for w in emnist_cnn(num_classes=10).initial_weights.trainable]
    assert shapes == [
        (3, 3, 1, 32),
        (32,),
        (3, 3, 32, 64),
        (64,),
        (12 * 12 * 64, 128),
        (128,),
        (128, 10),
        (10,),
    ]


def test_cnn_has_the_papers_weight_count():
    assert emnist_cnn().num_parameters == 1_206_590
    # Each class has 128 weights and a bias.
    assert emnist_cnn(num_classes=10).num_parameters == 1_206_590 - (128 + 1) * (62 - 10)


def test_cnn_returns_cross_entropy_and_scores():
    model = emnist_cnn(num_classes=10)
    images = np.random.default_rng(0).random([3, 28, 28, 1]).astype(np.float32)
    labels = np.array([0, 9, 4], np.int32)
    losses, scores = model.example_losses(
        model.initial_weights, {"x": images, "y": labels}, False, _SEED
    )
    assert scores.shape == [3, 10]
    log_probabilities = scores - tf.reduce_logsumexp(scores, axis=1, keepdims=True)
    np.testing.assert_allclose(
        losses, [-log_probabilities[k, label] for k, label in enumerate(labels)], rtol=1e-5
    )
    assert [metric.name for metric in model.metrics] == ["accuracy"]


def test_cnn_applies_dropout_in_training_only():
    model = emnist_cnn(num_classes=10)
    images = np.random.default_rng(0).random([2, 28, 28, 1]).astype(np.float32)
    evaluated, trained = (
        model.predict(model.initial_weights, images, training, _SEED) for training in (False, True)
    )
    assert not np.allclose(trained, evaluated)
    again = model.predict(model.initial_weights, images, False, _SEED + 1)
    np.testing.assert_array_equal(again, evaluated)


def test_seed_determines_initial_weights_only():
    first, second, other = (emnist_cnn(10, seed) for seed in (1, 1, 2))
    weights = [model.initial_weights.trainable[0] for model in (first, second, other)]
    assert np.array_equal(weights[0], weights[1])
    assert not np.array_equal(weights[0], weights[2])
    assert first == other != emnist_cnn(62)
