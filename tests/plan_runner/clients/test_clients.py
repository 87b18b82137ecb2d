"""Clients' files: examples as the manifest has them, or one line that says which is not."""

import struct

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.lite.python.convert import register_custom_opdefs
from tensorflow.python.framework import op_def_registry

from fleet.playing import convert_example
from plan_runner import kernel, plan_pb2
from plan_runner.client import Client, clients_in
from plan_runner.errors import PlanError
from plan_runner.export import TensorType, open_export
from plan_runner.graph_session import read_checkpoint, write_checkpoint
from plan_runner.kernel import kernel_problem, token_of
from plan_runner.rounds import conformance_clients, run_rounds
from plan_runner.tflite import TfLiteClient
from tests.plan_runner.exports import encoded, example, write_client
from tests.plan_runner.graphs.converted import converted, restored, saved

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


# --- The kernel of ExternalDataset, and what happens without one


_DEFINITION = """
name: "ExternalDataset"
input_arg { name: "token" type: DT_STRING }
input_arg { name: "selector" type: DT_STRING }
output_arg { name: "handle" type: DT_VARIANT }
is_stateful: true
"""


@pytest.fixture(scope="module")
def read_of_kernel():
    """Returns the examples that a graph gets for a token."""
    if op_def_registry.get("ExternalDataset") is None:
        # As an exporter in the same process does, whose empty kernel must not be the one that runs.
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


@pytest.mark.parametrize(
    "examples", [[], [b""], [b"a", b"", b"\0\0", bytes(range(256)), b"x" * 100_000]]
)
def test_a_token_holds_examples(read_of_kernel, examples):
    assert read_of_kernel(token_of(examples)) == examples
    # As it gets through NumPy's strings, on the way to TFLite.
    assert read_of_kernel(np.array(token_of(examples), np.bytes_).item()) == examples


_HUGE = b"plan_runner examples:" + struct.pack("<Q", 2**63) + b"x."


@pytest.mark.parametrize(
    ("token", "message"),
    [
        (b"", "expected a token with examples"),
        (b"/etc/passwd", "expected a token with examples"),
        (token_of([b"abc"])[:-1], "expected a token with examples"),
        (token_of([b"abc"])[:-2] + b".", "ends within an example"),
        (b"plan_runner examples:abc.", "ends within a size"),
        (_HUGE, "ends within an example"),
    ],
)
def test_other_tokens(read_of_kernel, token, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        read_of_kernel(token)


@pytest.mark.parametrize("profile", ["daf", "secure"])
def test_without_a_kernel_a_stand_in_leads_to_the_same(exports, profile, monkeypatch):
    export = open_export(exports[profile])
    (usual,) = run_rounds(export, [conformance_clients(export)])
    monkeypatch.setattr(kernel, "kernel_problem", lambda: "no compiler")
    (other,) = run_rounds(export, [conformance_clients(export)])
    assert _bits(other) == _bits(usual)


def _bits(result):
    return {name: value.tobytes() for name, value in result.tensors.items()}


def _problem_with(monkeypatch, programs, cache):
    """What is said of the kernel with other programs and another cache."""
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv(kernel.CACHE_VARIABLE, str(cache))
    return kernel_problem.__wrapped__()


def test_without_a_compiler(monkeypatch, tmp_path):
    said = _problem_with(monkeypatch, tmp_path, tmp_path)
    assert said == "no C++ compiler was found (g++ or clang++)"


def test_a_compiler_that_fails(monkeypatch, tmp_path):
    compiler, cache = tmp_path / "g++", tmp_path / "cache"
    compiler.write_text("#!/bin/sh\necho no such header >&2\nexit 1\n")
    compiler.chmod(0o755)
    assert _problem_with(monkeypatch, tmp_path, cache) == (
        f"{compiler} cannot build external_dataset.cc (no such header)"
    )
    # Nothing is left that would be taken for the library.
    assert [path.suffix for path in cache.iterdir()] == [".lock"]


def test_a_cache_that_cannot_be(monkeypatch, tmp_path):
    (tmp_path / "g++").touch(mode=0o755)
    (tmp_path / "file").touch()
    said = _problem_with(monkeypatch, tmp_path, tmp_path / "file")
    assert said == f"{tmp_path / 'file'}: cannot write (File exists)"


# --- A client's TFLite graph by itself: what it is fed


def _scaled(path, output, token, scale):
    unchanged = 0.0 * tf.cast(tf.strings.length(token), tf.float32)
    return [saved(output, restored(path) * tf.strings.to_number(scale) + unchanged)]


def _phase(scale):
    phase = plan_pb2.ClientPhase()
    phase.tensorflow_spec.dataset_token_tensor_name = "token:0"
    phase.federated_compute.input_filepath_tensor_name = "in:0"
    phase.federated_compute.output_filepath_tensor_name = "out:0"
    constant = tf.make_tensor_proto(scale).SerializeToString()
    phase.tensorflow_spec.constant_inputs["scale:0"] = constant
    return phase


@pytest.fixture(scope="module")
def content():
    return converted(_scaled, ("in", "out", "token", "scale"))


@pytest.mark.parametrize("scale", [7, 7.0, b"7"])
def test_constants_of_the_plan_are_fed_as_text(content, tmp_path, scale):
    """As the platform's client does; a name that TensorFlow has not was asked for once."""
    write_checkpoint(tmp_path / "in", {"a": np.array([1.0, 2.0], np.float32)})
    try:
        client = TfLiteClient(content, _phase(scale))
    except PlanError as e:
        if "no Flex delegate" not in str(e):
            raise
        pytest.skip(str(e))
    client.run("ann", [], tmp_path / "in", tmp_path / "out")
    assert read_checkpoint(tmp_path / "out", "out")["b"].tolist() == [7.0, 14.0]


def test_a_constant_is_one_value(content):
    with pytest.raises(PlanError, match=r"constant_inputs: scale:0: expected one value, found \(2"):
        TfLiteClient(content, _phase([1, 2]))


# --- Examples of a store


def _taken(domain: str, **own: tf.train.Feature) -> dict[str, list]:
    """What a plan finds in an example of a store."""
    text = tf.train.Feature(bytes_list=tf.train.BytesList(value=[domain.encode()]))
    kinds = {name: TensorType("int64", ()) for name in ("y", "domain_id")}
    stored = encoded({"label": _int(7), "domain": text, **own})
    found = tf.train.Example.FromString(
        convert_example(stored, kinds, ["a", "b"], "ann, example 3")
    )
    return {name: list(found.features.feature[name].int64_list.value) for name in kinds}


def _int(value: int) -> tf.train.Feature:
    return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))


def test_labels_and_domains_of_a_store_have_the_plans_names():
    assert _taken("b") == {"y": [7], "domain_id": [1]}
    # Those of its own are not replaced, whatever the domain is.
    assert _taken("c", y=_int(2), domain_id=_int(0)) == {"y": [2], "domain_id": [0]}
    with pytest.raises(PlanError) as caught:
        _taken("c")
    assert (
        str(caught.value) == "ann, example 3: expected one of the plan's domains, a, b, found 'c'"
    )
    # What is no example is for `check_example` to refuse.
    assert convert_example(b"\xff\xff", FEATURES, ["a"], "ann") == b"\xff\xff"
