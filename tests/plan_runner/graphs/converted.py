"""Small TFLite graphs, converted from TensorFlow graphs."""

from collections.abc import Sequence
from typing import Any, Callable

import tensorflow as tf


def converted(build: Callable[..., Sequence[Any]], names: Sequence[str] = ("in", "out")) -> bytes:
    """Returns the flatbuffer of a graph whose string inputs have these names."""
    with tf.Graph().as_default() as graph:
        outputs = build(*(tf.compat.v1.placeholder(tf.string, [], name) for name in names))
    converter = tf.compat.v1.lite.TFLiteConverter(
        graph.as_graph_def(),
        None,
        None,
        input_arrays_with_shape=[(f"{name}:0", []) for name in names],
        output_arrays=[output.name for output in outputs if isinstance(output, tf.Tensor)],
    )
    converter.target_spec.supported_ops = [
        tf.lite.OpsSet.TFLITE_BUILTINS,
        tf.lite.OpsSet.SELECT_TF_OPS,
    ]
    converter._experimental_allow_all_select_tf_ops = True
    nodes = [output.name for output in outputs if isinstance(output, tf.Operation)]
    converter._control_output_arrays = nodes or None
    return converter.convert()


def restored(path: tf.Tensor) -> tf.Tensor:
    value = tf.raw_ops.RestoreV2(
        prefix=path, tensor_names=["a"], shape_and_slices=[""], dtypes=[tf.float32]
    )[0]
    return tf.reshape(value, [2])


def saved(path: tf.Tensor, value: tf.Tensor) -> tf.Operation:
    return tf.raw_ops.SaveSlices(
        filename=path, tensor_names=["b"], shapes_and_slices=[""], data=[value], name="save"
    )


def saving_graph() -> bytes:
    """Returns a graph that reads one file and writes another."""
    return converted(lambda i, o: [saved(o, restored(i) * 2.0)])
