"""Clients' files, and the kernel that passes their examples to TFLite."""

import struct

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.lite.python.convert import register_custom_opdefs
from tensorflow.python.framework import op_def_registry

from fleet.playing import convert_example
from plan_runner import kernel
from plan_runner.client import Client, clients_in
from plan_runner.errors import PlanError
from plan_runner.export import TensorType
from plan_runner.kernel import dataset_token, kernel_problem
from tests.plan_runner.exports import encoded, example, write_client
from tests.plan_runner.refusals import refusal

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
    return refusal(read, path, records, features)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ann.tfrecord"


def test_client_returns_its_records(path):
    more = encoded({**GOOD, "unused": INTS})
    assert read(path, [encoded(GOOD), more]) == [encoded(GOOD), more]
    assert read(path, []) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"f": None}, "feature 'f': expected float32[2], found none"),
        ({"i": FLOATS}, "feature 'i': expected int64[], found float32"),
        ({"s": tf.train.Feature()}, "feature 's': expected string[], found an empty feature"),
        (
            {"f": tf.train.Feature(float_list=tf.train.FloatList(value=[1.0]))},
            "feature 'f': expected float32[2], found 1 values",
        ),
    ],
)
def test_error_reports_record_with_wrong_feature(path, changes, message):
    features = {k: v for k, v in {**GOOD, **changes}.items() if v is not None}
    error = refused(path, [encoded(GOOD), encoded(features), encoded(GOOD)])
    assert error == f"{path}, record 2: {message}"


@pytest.mark.parametrize(
    ("shape", "count", "fits"),
    [
        ((None, 2), 2, True),
        ((None, 3), 2, False),
        ((1, 2), 2, True),
        ((0,), 0, True),
        ((None, 0), 2, False),
    ],
)
def test_shapes_with_unknown_size_accept_multiples(path, shape, count, fits):
    values = tf.train.Feature(float_list=tf.train.FloatList(value=[1.0] * count))
    features = {"f": TensorType("float32", shape)}
    if fits:
        assert len(read(path, [encoded({"f": values})], features)) == 1
    else:
        assert f"found {count} values" in refused(path, [encoded({"f": values})], features)


def test_damaged_client_files_raise(path):
    assert "record 1: expected a tf.train.Example" in refused(path, [b"\xff\xff"])
    write_client(path, [example(1.0, 2)] * 3)
    content = path.read_bytes()
    client = Client("ann", path, {})
    header = content[: len(content) // 3 + 5]
    for damaged in (content[:-1], header, b"nonsense", content[:20] + b"x" + content[21:]):
        path.write_bytes(damaged)
        message = refusal(client.examples)
        assert message.startswith(f"{path}: expected a TFRecord file, cannot read it (")
        assert "{{" not in message
    path.unlink()
    assert "expected a TFRecord file, cannot read it" in refusal(client.examples)


def test_folder_lists_clients_by_name(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(PlanError, match=r"expected files NAME.tfrecord, found no clients$"):
        clients_in(tmp_path, {})
    with pytest.raises(PlanError, match=r"x: expected a folder with files NAME.tfrecord, found n"):
        clients_in(tmp_path / "x", {})
    # As a pattern, "a*[1]" would match ab1.
    write_client(tmp_path / "ab1.tfrecord", [example()])
    write_client(tmp_path / "a*[1].tfrecord", [example(), example()])
    clients = clients_in(tmp_path, {})
    sizes = [(name, len(client.examples())) for name, client in clients.items()]
    assert sizes == [("a*[1]", 2), ("ab1", 1)]


# --- The kernel of the op ExternalDataset reads examples


_DEFINITION = """
name: "ExternalDataset"
input_arg { name: "token" type: DT_STRING }
input_arg { name: "selector" type: DT_STRING }
output_arg { name: "handle" type: DT_VARIANT }
is_stateful: true
"""


@pytest.fixture(scope="module")
def kernel_read():
    """Yields a function that returns the examples which a graph reads for a token."""
    if op_def_registry.get("ExternalDataset") is None:
        # If an exporter in this process has registered the op, its kernel is empty.
        register_custom_opdefs([_DEFINITION])
    if kernel_problem():
        pytest.skip(kernel_problem())
    with tf.Graph().as_default() as graph:
        token = tf.compat.v1.placeholder(tf.string, [])
        node = graph.create_op("ExternalDataset", [token, tf.constant(b"selector")], [tf.variant])
        dataset = tf.data.experimental.from_variant(
            node.outputs[0], structure=tf.TensorSpec([], tf.string)
        )
        empty = tf.zeros([0], tf.string)
        examples = dataset.reduce(empty, lambda all_, one: tf.concat([all_, [one]], 0))
    session = tf.compat.v1.Session(graph=graph)
    yield lambda content: session.run(examples, {token: content}).tolist()
    session.close()


def test_kernel_reads_examples_from_tokens(kernel_read):
    for examples in ([], [b""], [b"a", b"", b"\0\0", bytes(range(256)), b"x" * 100_000]):
        assert kernel_read(dataset_token(examples)) == examples
        # TFLite receives tokens as NumPy strings.
        assert kernel_read(np.array(dataset_token(examples), np.bytes_).item()) == examples


_HUGE = b"plan_runner examples:" + struct.pack("<Q", 2**63) + b"x."


@pytest.mark.parametrize(
    ("token", "message"),
    [
        (b"/etc/passwd", "expected a token with examples"),
        (dataset_token([b"abc"])[:-1], "expected a token with examples"),
        (dataset_token([b"abc"])[:-2] + b".", "ends within an example"),
        (b"plan_runner examples:abc.", "ends within a size"),
        (_HUGE, "ends within an example"),
    ],
)
def test_kernel_rejects_other_tokens(kernel_read, token, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        kernel_read(token)


def test_kernel_problem_reports_the_reason(monkeypatch, tmp_path):
    def problem(programs, cache):
        monkeypatch.setenv("PATH", str(programs))
        monkeypatch.setenv(kernel.CACHE_VARIABLE, str(cache))
        return kernel_problem.__wrapped__()

    compiler, cache = tmp_path / "g++", tmp_path / "cache"
    assert problem(tmp_path, cache) == "no C++ compiler was found (g++ or clang++)"
    compiler.write_text("#!/bin/sh\necho no such header >&2\nexit 1\n")
    compiler.chmod(0o755)
    assert problem(tmp_path, compiler) == f"{compiler}: cannot write (File exists)"
    monkeypatch.setattr(kernel, "_flags", list)
    expected = f"{compiler} cannot build external_dataset.cc (no such header)"
    assert problem(tmp_path, cache) == expected
    # No partial library remains, which later calls would load.
    assert [path.suffix for path in cache.iterdir()] == [".lock"]


# --- Examples from a store get the plan's names


def _int(value: int) -> tf.train.Feature:
    return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))


def test_store_examples_are_renamed_for_the_plan():
    kinds = {name: TensorType("int64", ()) for name in ("y", "domain_id")}

    def converted(domain, **more):
        text = tf.train.Feature(bytes_list=tf.train.BytesList(value=[domain.encode()]))
        stored = encoded({"label": _int(7), "domain": text, **more})
        example = convert_example(stored, kinds, ["a", "b"], "ann, example 3")
        features = tf.train.Example.FromString(example).features.feature
        return {name: list(features[name].int64_list.value) for name in kinds}

    assert converted("b") == {"y": [7], "domain_id": [1]}
    # Features that already have the plan's names are not replaced.
    assert converted("c", y=_int(2), domain_id=_int(0)) == {"y": [2], "domain_id": [0]}
    with pytest.raises(PlanError, match=r"^ann, example 3: expected one of .*, a, b, found 'c'$"):
        converted("c")
    # Invalid examples stay unchanged, because `check_example` rejects them later.
    assert convert_example(b"\xff\xff", kinds, ["a"], "ann") == b"\xff\xff"
