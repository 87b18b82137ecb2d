"""Writes digits.csv and linear.py into a folder: a usual, a noisy and a rare domain.

    .venv/bin/python -m benchmarks.hard_domains.digits FOLDER [SEED]

scikit-learn's digits, 8x8: 360 training images as they are (usual), 360 of whose labels three in
ten are drawn at random (noisy), and 54 whose images are transposed (rare), each in 12 clients. Each
domain has 120 held-out and 119 test images of its own kind. SEED, 0 if not given, draws images and
wrong labels. The page on absent domains and excess losses, docs/algorithms/excess_losses.md, has
the commands that go on from here.
"""

import csv
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import sklearn.datasets

_TRAINING = {"usual": 360, "noisy": 360, "rare": 54}
_EVALUATED = {"heldout": 120, "test": 119}
_CLIENTS = {"train": 12, "heldout": 6, "test": 6}
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


def rows(seed: int = 0) -> Iterator[list]:
    """Yields client, domain, split, label and the 64 pixels, from 0 to 1, of each example."""
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
                client = f"{domain}_{split}_{k % _CLIENTS[split]:02d}"
                yield [client, domain, split, label, *image.round(4).tolist()]


def main(folder: Path, seed: int = 0) -> None:
    """Writes both files."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "digits.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["user", "kind", "split", "digit", *(f"p{i}" for i in range(64))])
        writer.writerows(rows(seed))
    (folder / "linear.py").write_text(MODEL)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:3]))
