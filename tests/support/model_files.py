"""Users' model files for tests, and the error messages that they cause."""

import textwrap
from pathlib import Path

import pytest
import tensorflow as tf

from tff_agnostic.base.errors import UserError
from tff_agnostic.models import ModelData, load_user_model

INT = tf.TensorSpec([None], tf.int32)
TOKENS = tf.TensorSpec([None, 5], tf.int32)
FEATURES = ModelData(tf.TensorSpec([None, 4], tf.float32), INT, ("phone", "watch"), 3)
TEXTS = ModelData(TOKENS, TOKENS, ("fiction", "news"), vocabulary_size=7)
REGRESSION = ModelData(
    tf.TensorSpec([None, 4], tf.float32), tf.TensorSpec([None], tf.float32), ("a",)
)

IMPORTS = """\
import tensorflow as tf
from tff_agnostic.models import Metric, SentenceLoss, accuracy

layers = tf.keras.layers
losses = tf.keras.losses
"""
# Expressions for `build_model` to return.
DENSE = "tf.keras.Sequential([tf.keras.Input(data.x_shape), layers.Dense(data.num_classes)])"
LOSS = 'losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")'


def model_file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "my_model.py"
    path.write_text(textwrap.dedent(text))
    return path


def returning(tmp_path: Path, *values: str) -> Path:
    text = f"{IMPORTS}\ndef build_model(data):\n    return {', '.join(values)}\n"
    return model_file(tmp_path, text)


def load_error(path: Path, data: ModelData = FEATURES) -> str:
    with pytest.raises(UserError) as caught:
        load_user_model(path, data)
    return str(caught.value)


def error_lines(path: Path) -> list[str]:
    """Returns the error's lines, without the markers that some Pythons print below code."""
    return [line for line in load_error(path).splitlines() if not set(line) <= set(" ^~")]


def error_line(path: Path, data: ModelData = FEATURES) -> str:
    """Returns the one-line error, without the file and line number at its beginning."""
    message = load_error(path, data)
    assert "\n" not in message
    lines = path.read_text().splitlines()
    line = next(k for k, text in enumerate(lines, start=1) if text.startswith("def build_model"))
    assert message.startswith(f"{path}, line {line}: ")
    return message[len(f"{path}, line {line}: ") :]
