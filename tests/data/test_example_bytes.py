"""Serialized examples: those of TensorFlow's own message, whatever came before."""

import numpy as np
import tensorflow as tf

from tff_agnostic.data.store_format import ExampleSerializer, parsed_features


def _message(title: str, score: int, x: "list[float]", ids: "list[int]") -> bytes:
    train = tf.train
    feature = {
        "title": train.Feature(bytes_list=train.BytesList(value=[title.encode()])),
        "score": train.Feature(int64_list=train.Int64List(value=[score])),
        "x": train.Feature(float_list=train.FloatList(value=x)),
        "ids": train.Feature(int64_list=train.Int64List(value=ids)),
    }
    message = train.Example(features=train.Features(feature=feature))
    return message.SerializeToString(deterministic=True)


def test_examples_do_not_depend_on_those_before():
    serialize, title = ExampleSerializer(), "añejo"
    # An array that a reader fills again and again.
    x = np.array([0.5, 1], np.float32)
    for k, score in enumerate([3, 3, -1, 3]):
        x[0] = k
        ids = np.arange(k, dtype=np.int64)
        found = serialize({"title": title, "score": score, "x": x, "ids": ids})
        assert found == _message(title, score, x.tolist(), list(range(k)))
        parsed = parsed_features(found)
        assert (parsed["title"], parsed["score"]) == (title, [score])
        np.testing.assert_array_equal(parsed["x"], x)
    other = serialize({"title": "b", "score": 3, "x": x, "ids": ids})
    assert other == _message("b", 3, x.tolist(), [0, 1, 2])
