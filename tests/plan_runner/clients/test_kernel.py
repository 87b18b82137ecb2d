"""The kernel of ExternalDataset, and what happens without one."""

import struct

import numpy as np
import pytest
import tensorflow as tf

# A second registration of the same op ends the process.
from tensorflow.lite.python.convert import register_custom_opdefs
from tensorflow.python.framework import op_def_registry

from plan_runner import kernel
from plan_runner.export import open_export
from plan_runner.kernel import kernel_problem, token_of
from plan_runner.rounds import run_rounds
from plan_runner.verify import conformance_clients

_DEFINITION = """
name: "ExternalDataset"
input_arg { name: "token" type: DT_STRING }
input_arg { name: "selector" type: DT_STRING }
output_arg { name: "handle" type: DT_VARIANT }
is_stateful: true
"""


@pytest.fixture(scope="module")
def read():
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
def test_a_token_holds_examples(read, examples):
    assert read(token_of(examples)) == examples
    # As it gets through NumPy's strings, on the way to TFLite.
    assert read(np.array(token_of(examples), np.bytes_).item()) == examples


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
def test_other_tokens(read, token, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        read(token)


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
