"""A flatbuffer in fewer bytes is the same graph."""

import numpy as np
import pytest
import tensorflow as tf

from tff_agnostic.models.tflite_files import compacted, custom_op_names, oldest_runtime

_SIZE = 5000
_OUTPUTS = ("y0", "y1", "y2")


def _computed(x):
    """Has constants that are uniform, one that is not, and one that is small."""
    mixed = tf.constant(np.arange(_SIZE) % 2, tf.float32)
    constants = [tf.fill([_SIZE], -2.5), tf.zeros([_SIZE]) * -1.0, mixed, tf.fill([3], 7.0)]
    # Added, as otherwise one constant would be made of all.
    parts = [part + x[0] for part in constants]
    counts = tf.fill([_SIZE], tf.constant(2**40, tf.int64)) + tf.cast(x[1], tf.int64)
    inside = tf.while_loop(lambda i, _: i < 3, lambda i, v: (i + 1, v + tf.ones([2000])), [0, x])
    return tf.concat(parts, 0), counts, inside[1]


@pytest.fixture(scope="module")
def converted():
    return _converted(_computed)


def _converted(computed):
    graph = tf.Graph()
    with graph.as_default():
        x = tf.compat.v1.placeholder(tf.float32, [2000], "x")
        outputs = [tf.identity(y, f"y{i}") for i, y in enumerate(computed(x))]
        definition = graph.as_graph_def()
    converter = tf.compat.v1.lite.TFLiteConverter(
        definition,
        None,
        None,
        input_arrays_with_shape=[("x", [2000])],
        output_arrays=[y.op.name for y in outputs],
    )
    return converter.convert()


def _run(content):
    interpreter = tf.lite.Interpreter(model_content=content)
    interpreter.allocate_tensors()
    (x,) = interpreter.get_input_details()
    assert x["name"] == "x"
    interpreter.set_tensor(x["index"], np.linspace(-1, 1, 2000, dtype=np.float32))
    interpreter.invoke()
    return {y["name"]: interpreter.get_tensor(y["index"]) for y in interpreter.get_output_details()}


def test_the_same_results_from_fewer_bytes(converted):
    small = compacted(converted, _OUTPUTS)
    results, expected = _run(small), _run(converted)
    assert set(results) == set(expected) == {*_OUTPUTS}
    for name, value in expected.items():
        assert (results[name].dtype, results[name].tobytes()) == (value.dtype, value.tobytes())
    # The mixed constant is all that stays.
    assert 4 * _SIZE < len(small) < 4 * _SIZE + 8000
    assert len(converted) - len(small) > 8 * _SIZE
    assert oldest_runtime(small) == oldest_runtime(converted) != ""
    assert custom_op_names(small) == []


def test_what_is_compact_stays_as_it_is(converted):
    small = compacted(converted, _OUTPUTS)
    assert compacted(small, _OUTPUTS) == small


def test_equal_constants_are_outputs_of_their_own():
    """The converter makes one tensor of them, of one name."""
    content = _converted(lambda x: [x + 1.0, tf.zeros([2]), tf.zeros([2])])
    assert set(_run(content)) == {"y0", "y1"}
    results = _run(compacted(content, _OUTPUTS))
    assert set(results) == {*_OUTPUTS}
    for name in ("y1", "y2"):
        np.testing.assert_array_equal(results[name], [0.0, 0.0])
