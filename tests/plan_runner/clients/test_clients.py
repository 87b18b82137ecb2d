"""Clients' files: examples as the manifest has them, or one line that says which is not."""

import pytest
import tensorflow as tf

from plan_runner.client import Client, clients_in
from plan_runner.errors import PlanError
from plan_runner.export import TensorType
from tests.plan_runner.exports import encoded, example, write_client

FLOATS = tf.train.Feature(float_list=tf.train.FloatList(value=[1.0, 2.0]))
INTS = tf.train.Feature(int64_list=tf.train.Int64List(value=[1]))
STRINGS = tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"a"]))
FEATURES = {
    "f": TensorType("float32", (2,)),
    "i": TensorType("int64", ()),
    "s": TensorType("string", ()),
}
GOOD = {"f": FLOATS, "i": INTS, "s": STRINGS}


def read(path, records, features=FEATURES):
    write_client(path, records)
    return Client("ann", path, features).examples()


def refused(path, records, features=FEATURES) -> str:
    with pytest.raises(PlanError) as caught:
        read(path, records, features)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ann.tfrecord"


def test_examples_come_as_they_are(path):
    more = encoded({**GOOD, "unused": INTS})
    assert read(path, [encoded(GOOD), more]) == [encoded(GOOD), more]
    assert read(path, []) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"f": None}, "feature 'f': expected float32[2], found none"),
        ({"f": INTS}, "feature 'f': expected float32[2], found int64"),
        ({"i": FLOATS}, "feature 'i': expected int64[], found float32"),
        ({"i": STRINGS}, "feature 'i': expected int64[], found string"),
        ({"s": tf.train.Feature()}, "feature 's': expected string[], found an empty feature"),
        (
            {"f": tf.train.Feature(float_list=tf.train.FloatList(value=[1.0]))},
            "feature 'f': expected float32[2], found 1 values",
        ),
        (
            {"i": tf.train.Feature(int64_list=tf.train.Int64List())},
            "feature 'i': expected int64[], found 0 values",
        ),
    ],
)
def test_features_that_are_missing_or_wrong(path, changes, message):
    features = {k: v for k, v in {**GOOD, **changes}.items() if v is not None}
    found = refused(path, [encoded(GOOD), encoded(features), encoded(GOOD)])
    assert found == f"{path}, record 2: {message}"


@pytest.mark.parametrize(
    ("shape", "count", "fits"),
    [
        ((None,), 2, True),
        ((None, 2), 2, True),
        ((None, 3), 2, False),
        ((1, 2), 2, True),
        ((0,), 0, True),
        ((None, 0), 0, True),
        ((None, 0), 2, False),
    ],
)
def test_open_shapes(path, shape, count, fits):
    values = tf.train.Feature(float_list=tf.train.FloatList(value=[1.0] * count))
    features = {"f": TensorType("float32", shape)}
    if fits:
        assert len(read(path, [encoded({"f": values})], features)) == 1
    else:
        assert f"found {count} values" in refused(path, [encoded({"f": values})], features)


def test_records_that_are_no_examples(path):
    found = refused(path, [b"\xff\xff"])
    assert found == f"{path}, record 1: expected a tf.train.Example, cannot parse it"


def test_damaged_files(path):
    write_client(path, [example(1.0, 2)] * 3)
    content = path.read_bytes()
    client = Client("ann", path, {})
    header = content[: len(content) // 3 + 5]
    for damaged in (
        content[:-1],
        header,
        b"nonsense",
        content[:20] + b"x" + content[21:],
        b"not a TFRecord file",
    ):
        path.write_bytes(damaged)
        with pytest.raises(PlanError) as caught:
            client.examples()
        message = str(caught.value)
        assert message.startswith(f"{path}: expected a TFRecord file, cannot read it (")
        assert "\n" not in message
        assert "{{" not in message
    path.unlink()
    with pytest.raises(PlanError, match="expected a TFRecord file, cannot read it"):
        client.examples()


def test_names_are_taken_literally(tmp_path):
    write_client(tmp_path / "a*[1].tfrecord", [example(), example()])
    write_client(tmp_path / "ab1.tfrecord", [example()])
    clients = clients_in(tmp_path, {})
    assert {name: len(client.examples()) for name, client in clients.items()} == {
        "a*[1]": 2,
        "ab1": 1,
    }


def test_folders(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(PlanError, match=r"expected files NAME.tfrecord, found no clients$"):
        clients_in(tmp_path, {})
    with pytest.raises(PlanError, match=r"x: expected a folder with files NAME.tfrecord, found n"):
        clients_in(tmp_path / "x", {})
    for name in ("b", "a", "c"):
        write_client(tmp_path / f"{name}.tfrecord", [])
    assert list(clients_in(tmp_path, {})) == ["a", "b", "c"]
