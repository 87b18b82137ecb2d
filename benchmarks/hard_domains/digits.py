"""Writes digits.csv, with a usual, a noisy and a rare domain, and linear.py, a model, to a folder.

    .venv/bin/python -m benchmarks.hard_domains.digits FOLDER [SEED]

The data set has scikit-learn's 8x8 images: 360 unchanged training images (domain "usual"), 360 with
30% random labels ("noisy"), and 54 transposed images ("rare"). Each domain has 12 training clients,
and 120 held-out and 119 test images of the same kind. SEED determines the choice of images and the
wrong labels; its default is 0. docs/results/excess_losses.md has the commands that use both files.
"""

import csv
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tff_agnostic.base.later import sklearn

PIXELS = tuple(f"p{i}" for i in range(64))
# Header of the rows that `hard_digits` yields.
DIGITS_HEADER = ("user", "kind", "split", "digit", *PIXELS)
_DIGITS_TRAINING = {"usual": 360, "noisy": 360, "rare": 54}
_DIGITS_EVALUATED = {"heldout": 120, "test": 119}
_DIGITS_CLIENTS, _DIGITS_EVALUATED_CLIENTS = 12, 6
_DIGITS_NOISE = 0.3
DIGITS_MODEL = '''"""Logistic regression that starts from zeros."""

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


def hard_digits(
    seed: int = 0, evaluated_clients: int = _DIGITS_EVALUATED_CLIENTS
) -> Iterator[list]:
    """Yields a row for each example: client, domain, split, label, and 64 pixels from 0 to 1.

    Args:
        seed: Seed that determines the chosen images and the wrong labels.
        evaluated_clients: Number of held-out clients per domain, which is also the number of test
            clients per domain.
    """
    rng = np.random.default_rng(seed)
    images, labels = sklearn.datasets.load_digits(return_X_y=True)
    order = iter(rng.permutation(len(labels)))
    for domain, count in _DIGITS_TRAINING.items():
        for split, size in {"train": count, **_DIGITS_EVALUATED}.items():
            for k in range(size):
                number = next(order)
                image, label = images[number] / 16.0, int(labels[number])
                if domain == "rare":
                    image = image.reshape(8, 8).T.ravel()
                elif domain == "noisy" and rng.random() < _DIGITS_NOISE:
                    label = int(rng.integers(10))
                num_clients = _DIGITS_CLIENTS if split == "train" else evaluated_clients
                client = f"{domain}_{split}_{k % num_clients:02d}"
                yield [client, domain, split, label, *image.round(4).tolist()]


def main(folder: Path, seed: int = 0) -> None:
    """Writes both files."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "digits.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(DIGITS_HEADER)
        writer.writerows(hard_digits(seed))
    (folder / "linear.py").write_text(DIGITS_MODEL)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:3]))
