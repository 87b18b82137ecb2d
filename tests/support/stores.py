"""Small stores in this project's formats and as TFF writes them."""

import sqlite3
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tff_agnostic.base.later import tf
from tff_agnostic.data.store import ArrowStore
from tff_agnostic.data.store_format import Record
from tff_agnostic.data.store_writer import StoreWriter, column_from
from tff_agnostic.data.tff_store import to_tff

WORDS = {"the": 9, "cat": 5, "sat": 3}

# A user's model file for a store from `points_store`; all initial weights are zero.
LOGISTIC_REGRESSION = """

from tff_agnostic.base.later import tf

def build_model(data):
    scores = tf.keras.layers.Dense(data.num_classes, kernel_initializer="zeros")
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    return tf.keras.Sequential([tf.keras.Input(data.x_shape), scores]), loss
"""


def sentence(client: str, domain: str, tokens: str) -> Record:
    return Record(client, domain, {"tokens": tokens})


def image(client: str, domain: str, label: int, ink: float = 0.5) -> Record:
    pixels = np.full([28, 28], ink, np.float32)
    return Record(client, domain, {"pixels": pixels, "label": label})


def write_store(path: Path, records: Iterable[tuple[str, Record]], kind: str, **more: Any) -> Path:
    """Writes a store: TFF's SQLite file if the path ends in .sqlite, else a folder."""
    if path.suffix == ".sqlite":
        with tempfile.TemporaryDirectory() as folder:
            store = write_store(Path(folder) / "arrow", records, kind, **more)
            to_tff(ArrowStore(store), path)
        return path
    with StoreWriter(path) as writer:
        add_records(writer, records)
        writer.finish(kind, **more)
    return path


def add_records(
    writer: StoreWriter, records: Iterable[tuple[str, Record]], units: Any = None
) -> None:
    """Adds records whose features have equal types."""
    splits, examples = zip(*records)
    features = {
        name: column_from([one.features[name] for one in examples]) for name in examples[0].features
    }
    features["domain"] = pa.array([one.domain for one in examples])
    clients = pa.array([one.client for one in examples])
    writer.add(pa.array(splits), clients, features, None if units is None else pa.array(units))


def mixed_records(count: int) -> list[tuple[str, Record]]:
    """Returns `count` records of 20 clients in two splits, with all feature types."""
    draw = np.random.default_rng(0)
    return [
        (
            ("train", "test")[int(client) % 3 == 0],
            Record(
                f"c{client}\u00e9",
                f"d{draw.integers(3)}",
                {"x": draw.normal(size=[2, 3]), "label": int(draw.integers(4)), "city": f"t{k}"},
            ),
        )
        for k, client in enumerate(draw.integers(20, size=count))
    ]


def points_store(
    path: Path, clients: Iterable[tuple[str, str, np.ndarray, np.ndarray, Sequence[str]]]
) -> Path:
    """Writes clients, given as (split, client, x [n, k], labels [n], domain names [n])."""
    records = [
        (split, Record(client, domain, {"x": x.astype(np.float32), "label": int(label)}))
        for split, client, xs, labels, domains in clients
        for x, label, domain in zip(xs, labels, domains)
    ]
    return write_store(path, records, "features")


def text_store(path: Path, words: Mapping[str, int] = WORDS) -> Path:
    """Writes a text store; its clients a and b of split train are not added in sorted order."""
    records = [
        ("train", sentence("b", "question", "the cat")),
        ("test", sentence("t", "answer", "the dog sat")),
        ("train", sentence("a", "answer", "cat sat the")),
        ("train", sentence("b", "answer", "sat")),
        ("train", sentence("b", "question", "the the dog")),
        ("heldout", sentence("h", "question", "cat")),
    ]
    return write_store(path, records, "text", vocabulary=words, source="by hand")


def tff_store(path: Path, rows: Iterable[tuple[str, str, Mapping[str, Any]]]) -> Path:
    """Writes (split, client, features) with TFF's own two tables only."""
    rows = list(rows)
    connection = sqlite3.connect(path)
    connection.execute(
        "CREATE TABLE examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB)"
    )
    connection.execute(
        "CREATE TABLE client_metadata (client_id TEXT, split_name TEXT, num_examples INTEGER)"
    )
    for split, client, features in rows:
        connection.execute(
            "INSERT INTO examples VALUES (?, ?, ?)", [split, client, _proto(features)]
        )
    for split, client in sorted({(split, client) for split, client, _ in rows}):
        count = sum((s, c) == (split, client) for s, c, _ in rows)
        connection.execute("INSERT INTO client_metadata VALUES (?, ?, ?)", [client, split, count])
    connection.commit()
    connection.close()
    return path


def _proto(features: Mapping[str, Any]) -> bytes:
    train = tf.train

    def feature(value: Any) -> tf.train.Feature:
        if isinstance(value, str):
            return train.Feature(bytes_list=train.BytesList(value=[value.encode()]))
        array = np.asarray(value)
        if array.dtype.kind == "f":
            return train.Feature(float_list=train.FloatList(value=array.ravel()))
        return train.Feature(int64_list=train.Int64List(value=array.ravel()))

    message = train.Example(
        features=train.Features(feature={name: feature(v) for name, v in features.items()})
    )
    return message.SerializeToString()


def point(client: str, domain: str, x: Any, label: Any) -> Record:
    return Record(client, domain, {"x": np.array(x, np.float32), "label": label})


def points(path: Path, labels: Sequence[Any] = (0, 2, 1), **more: Any) -> Path:
    rows = [
        (split, point("a", domain, [k, -k], label))
        for split in ("train", "test")
        for k, (label, domain) in enumerate(zip(labels, ["web", "app", "web"]))
    ]
    rows.append(("heldout", point("h", "app", [9, 9], labels[0])))
    return write_store(path, rows, "features", **more)


def people(path: Path, jobs: Sequence[str] = ("baker", "cook"), **features: Any) -> Path:
    def person(split: str, job: str, town: str, label: int) -> tuple[str, Record]:
        x = {"x": np.array([label, 5], np.float32), **features}
        return split, Record("a", "web", {**x, "job": job, "town": town, "label": label})

    rows = [
        person("train", "cook", "Rome", 1),
        person("train", "", "Rome", 0),
        person("train", "baker", "Oslo", 1),
        person("test", "clerk", "Rome", 0),
    ]
    # The order of the categories, town before job, is not alphabetical.
    return write_store(path, rows, "features", categories={"town": ("Rome",), "job": jobs})


def reviews(path: Path, labels: Sequence[Any] = (0, 2, 1), **more: Any) -> Path:
    rows = [
        (split, Record("a", "web", {"tokens": tokens, "label": label}))
        for split in ("train", "test")
        for tokens, label in zip(("the cat", "sat", "dog the the cat sat"), labels)
    ]
    words = {"the": 9, "cat": 5, "sat": 3}
    return write_store(path, rows, "text", vocabulary=words, **more)
