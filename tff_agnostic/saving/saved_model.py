"""Trained models as SavedModels with several signatures."""

from __future__ import annotations

import functools
import keyword
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Callable, Optional

from tff_agnostic.base.files import tensorflow_writes
from tff_agnostic.base.later import tf
from tff_agnostic.base.text_ids import TokenIds
from tff_agnostic.data.inputs import IDS, MARK, NUMBER, Entry, Input, ModelInputs, Whole
from tff_agnostic.models.metrics import takes_scores
from tff_agnostic.models.model import ModelWeights
from tff_agnostic.saving.trained_model import (
    OUTPUT,
    TrainedModel,
    inputs_by_name,
    inputs_from_names,
    outputs_by_name,
)
from tff_agnostic.saving.typed_text import store_words

PREDICT = "predict"
# tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY
DEFAULT = "serving_default"
NEXT_WORDS = "next_words"
# Default number of proposed next words.
_DEFAULT_BEST = 3


def write(trained: TrainedModel, path: Path) -> dict[str, Any]:
    """Writes a SavedModel folder; returns the inputs and outputs of its signatures."""
    served = ServedModel(trained)
    signatures = served.signatures()
    # Do not save the functions of gradients, which are large for recurrent layers.
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    with tensorflow_writes():
        tf.saved_model.save(served, str(path), signatures, options)
    about: dict[str, Any] = {
        "signatures": {
            name: {
                "inputs": _described(dict(f.structured_input_signature[1])),
                "outputs": _described(f.structured_outputs),
            }
            for name, f in signatures.items()
        }
    }
    if BY_COLUMN in signatures:
        assert trained.inputs is not None
        names = argument_names(argument_specs(trained.inputs))
        about["columns"] = {name: column for column, name in names.items()}
    return about


def load(path: Path, trained: TrainedModel) -> Any:
    """Returns the saved model as a function of x."""
    loaded = tf.saved_model.load(str(path))
    predict = loaded.signatures[PREDICT]
    structure = trained.output_structure()
    names = trained.output_names()

    def predict_x(x: Any) -> Any:
        # Use `loaded` here to keep it, as the signature's variables are deleted with it.
        _ = loaded
        outputs = predict(**{n: tf.convert_to_tensor(v) for n, v in inputs_by_name(x).items()})
        return tf.nest.pack_sequence_as(structure, [outputs[name] for name in names])

    return predict_x


def _text_spec() -> tf.TensorSpec:
    return tf.TensorSpec([None], tf.string, name="text")


def _described(specs: dict[str, Any]) -> dict[str, str]:
    return {name: f"{spec.dtype.name}{spec.shape.as_list()}" for name, spec in specs.items()}


class ServedModel(tf.Module):
    """A trained model with variables as weights, for SavedModels and TFLite."""

    def __init__(self, trained: TrainedModel) -> None:
        super().__init__()
        self._trained = trained
        self._trainable = [tf.Variable(w) for w in trained.weights.trainable]
        self._fixed = [tf.Variable(w, trainable=False) for w in trained.weights.non_trainable]
        self._table: Optional[tf.lookup.StaticHashTable] = None

    def predict(self, x: Any) -> Any:
        """Returns the predictions of n examples."""
        return self._trained.predict(x, ModelWeights(self._trainable, self._fixed))

    def predict_function(self, num_examples: Optional[int] = None) -> Any:
        """Returns a concrete function from inputs by name to predictions by name."""
        spec = self._trained.model.example_spec["x"]

        @tf.function
        def predict(**inputs: tf.Tensor) -> dict[str, tf.Tensor]:
            return outputs_by_name(self.predict(inputs_from_names(spec, inputs)))

        return predict.get_concrete_function(**self._trained.input_specs(num_examples))

    def signatures(self) -> dict[str, Any]:
        """Returns the signatures by name.

        `predict` maps inputs to raw predictions. For a classifier, `serving_default` also returns
        `probabilities` [n, classes], `class`, int32 [n], and `class_name` [n] if classes have
        names. For a text classifier, the inputs of `serving_default` are texts [n]. A next-word
        model has the signature `next_words`, which maps texts [n] and k to `words` and
        `probabilities` [n, k]; its `serving_default` is the same with k = 3. If the import's
        tokenizer is known, users may type texts freely. `by_column` takes the cells of a table.
        """
        predict = self.predict_function()
        signatures = {PREDICT: predict, DEFAULT: predict}
        outputs = self._trained.output_structure()
        if not tf.is_tensor(outputs):
            return signatures
        scores = takes_scores(self._trained.model.loss)
        inputs = self._trained.inputs
        if inputs is not None and inputs.are_column_inputs and outputs.shape.rank <= 2:
            answers = functools.partial(self._answers, scores)
            signatures[BY_COLUMN] = signature(self._trained, answers)
        reads_texts = self._reads_texts()
        if outputs.shape.rank == 3 and reads_texts and scores:
            signatures.update(self._next_words())
        elif outputs.shape.rank <= 2 and (reads_texts or scores is not None):
            answers = functools.partial(self._answers, scores)
            signatures[DEFAULT] = (self._from_texts if reads_texts else self._from_inputs)(answers)
        return signatures

    def _reads_texts(self) -> bool:
        spec = self._trained.model.example_spec["x"]
        are_ids = isinstance(spec, tf.TensorSpec) and spec.dtype == tf.int32
        return self._trained.words is not None and are_ids and spec.shape.rank == 2

    def _answers(self, are_scores: Optional[bool], x: Any) -> dict[str, tf.Tensor]:
        """Returns the predictions for n examples, including classes for a classifier."""
        predictions, names = self.predict(x), self._trained.class_names
        if are_scores is None:
            return {OUTPUT: predictions}
        probabilities = class_probabilities(predictions, are_scores)
        best = tf.argmax(probabilities, axis=-1, output_type=tf.int32)
        answer = {OUTPUT: predictions, "probabilities": probabilities, "class": best}
        if names is not None and len(names) == probabilities.shape[-1]:
            answer["class_name"] = tf.gather(tf.constant(names), best)
        return answer

    def _from_inputs(self, answers: Callable[[Any], dict[str, tf.Tensor]]) -> Any:
        spec = self._trained.model.example_spec["x"]

        @tf.function
        def answer(**inputs: tf.Tensor) -> dict[str, tf.Tensor]:
            return answers(inputs_from_names(spec, inputs))

        return answer.get_concrete_function(**self._trained.input_specs())

    def _from_texts(self, answers: Callable[[Any], dict[str, tf.Tensor]]) -> Any:
        (_, length), (ids, table) = self._trained.model.example_spec["x"].shape, self._vocabulary()

        @tf.function(input_signature=[_text_spec()])
        def answer(text: tf.Tensor) -> dict[str, tf.Tensor]:
            return answers(_first_words(table, self._store_words(text), ids, length))

        return answer.get_concrete_function()

    def _store_words(self, text: tf.Tensor) -> tf.Tensor:
        """Tokenizes texts as the import did; returns them unchanged if its rules are unknown."""
        inputs = self._trained.inputs
        columns = None if inputs is None else inputs.columns
        return text if columns is None or not columns.words else store_words(text, columns.words)

    def _vocabulary(self) -> tuple[TokenIds, tf.lookup.StaticHashTable]:
        """Returns the ids of the model's words, and a table from words to ids."""
        words = self._trained.words
        assert words is not None
        ids = TokenIds(len(words))
        keys, values = tf.constant(list(words)), tf.range(1, len(words) + 1)
        # The saved object must contain all resources of its signatures.
        self._table = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(keys, values), ids.oov
        )
        return ids, self._table

    def _next_words(self) -> Mapping[str, Any]:
        (_, length), (ids, table) = self._trained.model.example_spec["x"].shape, self._vocabulary()
        words = self._trained.words
        assert words is not None

        def answer(text: tf.Tensor, best: tf.Tensor) -> dict[str, tf.Tensor]:
            x, last = _begins(table, self._store_words(text), ids, length)
            scores = tf.gather(self.predict(x), last, batch_dims=1)
            # Propose words only: neither padding nor sentence marks.
            shares = tf.nn.softmax(scores)[:, 1 : ids.vocabulary_size + 1]
            top = tf.math.top_k(shares, tf.minimum(best, ids.vocabulary_size))
            return {
                "words": tf.gather(tf.constant(list(words)), top.indices),
                "probabilities": top.values,
            }

        asked: Any = tf.function(lambda text, k: answer(text, k))
        default: Any = tf.function(lambda text: answer(text, tf.constant(_DEFAULT_BEST)))
        return {
            NEXT_WORDS: asked.get_concrete_function(
                text=_text_spec(), k=tf.TensorSpec([], tf.int32, name="k")
            ),
            DEFAULT: default.get_concrete_function(text=_text_spec()),
        }


def class_probabilities(predictions: tf.Tensor, are_scores: bool) -> tf.Tensor:
    """Returns the probability of each class, float [n, classes].

    Args:
        predictions: Scores or probabilities: of all classes, [n, classes], or only of the second of
            two classes, [n] or [n, 1].
        are_scores: Whether predictions are scores instead of probabilities.
    """
    if predictions.shape.rank == 2 and predictions.shape[1] != 1:
        return tf.nn.softmax(predictions) if are_scores else predictions
    second = tf.reshape(predictions, [-1, 1])
    second = tf.sigmoid(second) if are_scores else second
    return tf.concat([1 - second, second], axis=1)


def _first_words(
    table: tf.lookup.StaticHashTable, text: tf.Tensor, ids: TokenIds, length: int
) -> tf.Tensor:
    """Returns ids of the first T words of texts, int32 [n, T], as in training."""
    word_ids = tf.ragged.map_flat_values(table.lookup, tf.strings.split(text))
    return word_ids.to_tensor(default_value=ids.pad, shape=[None, length])


def _begins(
    table: tf.lookup.StaticHashTable, text: tf.Tensor, ids: TokenIds, length: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns ids for predicting the next word, int32 [n, T], and the last word's position [n].

    The ids are the begin token and the last T - 1 words of each text.
    """
    split = tf.strings.split(text)
    word_ids = tf.ragged.map_flat_values(table.lookup, split)
    # Compute the position of the first kept word: for short texts, a slice that counts from the end
    # would be empty.
    start = tf.maximum(split.row_lengths() - (length - 1), 0)
    kept = tf.ragged.boolean_mask(
        word_ids,
        tf.ragged.map_flat_values(
            lambda position, first: position >= first,
            tf.ragged.range(split.row_lengths()),
            tf.repeat(start, split.row_lengths()),
        ),
    )
    begin = tf.fill([tf.shape(text)[0], 1], ids.bos)
    rows = tf.concat([begin, kept], axis=1)
    x = rows.to_tensor(default_value=ids.pad, shape=[None, length])
    return x, tf.cast(rows.row_lengths() - 1, tf.int32)


BY_COLUMN = "by_column"

# Values of table columns: numbers are float32 [n] or [n, items], categories string [n].
_Cells = Mapping[str, Any]


def argument_names(columns: Iterable[str]) -> dict[str, str]:
    """Returns the name of a Python argument for each column.

    For example, `dep delay` becomes `dep_delay`, `1st` becomes `_1st`, and `class` becomes
    `class_`.
    """
    names: dict[str, str] = {}
    for column in columns:
        name = re.sub(r"[^A-Za-z0-9_]|^(?=[0-9])", "_", column) or "_"
        name += "_" * keyword.iskeyword(name)
        while name in names.values():
            name += "_"
        names[column] = name
    return names


def argument_specs(inputs: ModelInputs) -> dict[str, tf.TensorSpec]:
    """Returns the tensor spec of each column by name."""
    specs = {column: tf.TensorSpec([None], tf.string) for column in inputs.categories()}
    for column, items in inputs.numbers().items():
        shape: list[Optional[int]] = [None] if items is None else [None, items]
        specs[column] = tf.TensorSpec(shape, tf.float32)
    return specs


def signature(trained: TrainedModel, answers: Callable[[Any], dict[str, tf.Tensor]]) -> Any:
    """Returns the concrete function that maps table columns to the model's outputs.

    Args:
        trained: Model whose `inputs.are_column_inputs` is true.
        answers: Called with the model's input x; returns the outputs.
    """
    inputs = trained.inputs
    assert inputs is not None
    specs = argument_specs(inputs)
    names = argument_names(specs)
    x_specs = trained.input_specs()

    @tf.function
    def by_column(**arguments: tf.Tensor) -> dict[str, tf.Tensor]:
        cells = {column: arguments[name] for column, name in names.items()}
        x = {
            name: tf.reshape(_input(one, cells, inputs), [-1, *x_specs[name].shape[1:]])
            for name, one in inputs.inputs.items()
        }
        return answers(inputs_from_names(trained.model.example_spec["x"], x))

    return by_column.get_concrete_function(
        **{
            name: tf.TensorSpec(specs[column].shape, specs[column].dtype, name=name)
            for column, name in names.items()
        }
    )


def _input(one: Input, cells: _Cells, inputs: ModelInputs) -> tf.Tensor:
    if isinstance(one, Whole):
        assert one.kind == IDS and one.column is not None
        is_value = _is_value(cells[one.column], one.values, inputs)
        ids = tf.range(1, len(one.values) + 1)
        return tf.reduce_sum(tf.where(is_value, ids, 0), axis=1)
    return tf.stack([_number(entry, cells, inputs) for entry in one], axis=1)


def _number(entry: Entry, cells: _Cells, inputs: ModelInputs) -> tf.Tensor:
    """Returns the values of an entry of x, float32 [n]; see `FeatureConverter.features`."""
    assert entry.column is not None
    column = cells[entry.column]
    if entry.kind == MARK:
        gaps = tf.math.is_nan(column)
        return tf.cast(gaps if column.shape.rank == 1 else tf.reduce_any(gaps, axis=1), tf.float32)
    if entry.kind == NUMBER:
        number = column if entry.item is None else column[:, entry.item]
        assert inputs.columns is not None
        gaps = tf.math.is_nan(number)
        if entry.is_standardized and entry.statistics is not None:
            # Compute in float64, like the import.
            difference = tf.cast(number, tf.float64) - entry.statistics.mean
            number = tf.cast(difference / entry.statistics.unit, tf.float32)
        may_be_missing = inputs.columns.missing_cells is not None
        return tf.where(gaps, 0.0, number) if may_be_missing else number
    assert entry.value is not None
    return tf.cast(_is_value(column, (entry.value,), inputs)[:, 0], tf.float32)


def _is_value(column: tf.Tensor, values: tuple[str, ...], inputs: ModelInputs) -> tf.Tensor:
    """Returns whether each cell equals each category, bool [n, values]."""
    assert inputs.columns is not None
    cells = tf.strings.strip(column)
    missing = inputs.columns.missing_cells
    if missing is not None:
        is_missing = tf.reduce_any(cells[:, tf.newaxis] == tf.constant(missing), axis=1)
        cells = tf.where(is_missing, inputs.missing_category, cells)
    return tf.equal(cells[:, tf.newaxis], tf.constant(values, tf.string, [1, len(values)]))
