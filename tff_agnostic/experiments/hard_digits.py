"""Digits with a usual, a noisy and a rare domain, made of scikit-learn's.

8x8 images: 360 training images as they are (usual), 360 of whose labels three in ten are drawn at
random (noisy), and 54 whose images are transposed (rare), each in 12 clients. Each domain has 120
held-out and 119 test images of its own kind, each in as many clients as are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tff_agnostic.later import sklearn

PIXELS = tuple(f"p{i}" for i in range(64))
# What each of `rows` has, for the head of a table.
HEADER = ("user", "kind", "split", "digit", *PIXELS)
_TRAINING = {"usual": 360, "noisy": 360, "rare": 54}
_EVALUATED = {"heldout": 120, "test": 119}
_CLIENTS, _EVALUATED_CLIENTS = 12, 6
_NOISE = 0.3
MODEL = '''"""Logistic regression that starts from zeros."""

import tensorflow as tf


def build_model(data):
    model = tf.keras.Sequential(
        [
            tf.keras.Input(data.x_shape),
            tf.keras.layers.Dense(data.num_classes, kernel_initializer="zeros"),
        ]
    )
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    return model, loss
'''


def rows(seed: int = 0, evaluated_clients: int = _EVALUATED_CLIENTS) -> Iterator[list]:
    """Yields client, domain, split, label and the 64 pixels, from 0 to 1, of each example.

    Args:
        seed: Draws images and wrong labels.
        evaluated_clients: How many clients of each domain have its held-out images, and its test
            images.
    """
    rng = np.random.default_rng(seed)
    images, labels = sklearn.datasets.load_digits(return_X_y=True)
    order = iter(rng.permutation(len(labels)))
    for domain, count in _TRAINING.items():
        for split, size in {"train": count, **_EVALUATED}.items():
            for k in range(size):
                number = next(order)
                image, label = images[number] / 16.0, int(labels[number])
                if domain == "rare":
                    image = image.reshape(8, 8).T.ravel()
                elif domain == "noisy" and rng.random() < _NOISE:
                    label = int(rng.integers(10))
                count_of_clients = _CLIENTS if split == "train" else evaluated_clients
                client = f"{domain}_{split}_{k % count_of_clients:02d}"
                yield [client, domain, split, label, *image.round(4).tolist()]
