"""The CNN of Reddi et al. 2021."""

import numpy as np
import tensorflow as tf

from tff_agnostic.models import emnist_cnn
from tff_agnostic.models.model import ModelWeights

_SEED = np.array([0, 0], np.int32)


def test_weights_have_the_papers_shapes():
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


def test_outputs_have_losses_and_class_scores():
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
    (metric,) = model.metrics
    assert metric.name == "accuracy"
    correct, count = metric.per_example(labels, scores)
    np.testing.assert_array_equal(correct, np.argmax(scores, axis=1) == labels)
    np.testing.assert_array_equal(count, [1, 1, 1])


def test_dropout_acts_in_training_only():
    model = emnist_cnn(num_classes=10)
    images = np.random.default_rng(0).random([2, 28, 28, 1]).astype(np.float32)
    weights = ModelWeights(*tf.nest.map_structure(tf.constant, tuple(model.initial_weights)))
    call = tf.function(lambda training, seed: model.predict(weights, images, training, seed))
    quiet = call(False, _SEED)
    np.testing.assert_array_equal(call(False, _SEED + 1), quiet)
    noisy = call(True, _SEED)
    assert not np.allclose(noisy, quiet)
    np.testing.assert_array_equal(call(True, _SEED), noisy)
    assert not np.allclose(call(True, _SEED + 1), noisy)


def test_seed_determines_initial_weights_only():
    first, second, other = emnist_cnn(10, 1), emnist_cnn(10, 1), emnist_cnn(10, 2)
    for a, b in zip(first.initial_weights.trainable, second.initial_weights.trainable):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(
        first.initial_weights.trainable[0], other.initial_weights.trainable[0]
    )
    assert first == other
    assert first != emnist_cnn(62)
