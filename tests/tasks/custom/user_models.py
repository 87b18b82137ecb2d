"""Model files like those of users, and their task on a store."""

from pathlib import Path
from textwrap import dedent
from typing import Any, Optional

import pytest

from tff_agnostic.base.errors import UserError
from tff_agnostic.tasks.registry import load_task
from tff_agnostic.tasks.task import Task, TaskContext

CLASSIFIER = """
    import tensorflow as tf

    def build_model(data):
        x = tf.keras.Input(data.x_shape)
        scores = tf.keras.layers.Dense(data.num_classes)(x)
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
        return tf.keras.Model(x, scores), loss
"""


NEXT_WORD = """
    import tensorflow as tf
    from tff_agnostic.models import SentenceLoss

    def build_model(data):
        x = tf.keras.Input(data.x_shape, dtype=data.x_dtype)
        vectors = tf.keras.layers.Embedding(data.num_ids, 2)(x)
        return tf.keras.Model(x, tf.keras.layers.Dense(data.num_ids)(vectors)), SentenceLoss()
"""


def model_file(folder: Path, text: str) -> Path:
    path = folder / "my_model.py"
    path.write_text(dedent(text))
    return path


def load(model: Optional[Path], data: Path, **options: Any) -> Task:
    given = {**options, **({} if model is None else {"model": str(model)})}
    return load_task("custom", given, TaskContext(0, data=data))


def load_error(model: Optional[Path], data: Path, client: str = "", **options: Any) -> str:
    with pytest.raises(UserError) as error:
        load(model, data, **options).train.read(client)
    return str(error.value)
