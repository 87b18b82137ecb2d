"""The signature of a SavedModel that takes the cells of a table, each column by its name."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Mapping
from typing import Any, Callable

from tff_agnostic.data.inputs import IDS, MARK, NUMBER, Entry, Input, ModelInputs, Whole
from tff_agnostic.later import tf
from tff_agnostic.saving.trained_model import TrainedModel, inputs_of

BY_COLUMN = "by_column"

# Cells of columns: numbers float32 [n] or [n, items], categories string [n].
_Cells = Mapping[str, Any]


def argument_names(columns: Iterable[str]) -> dict[str, str]:
    """Returns the name of each column as an argument, which TensorFlow takes letters and digits of.

    `dep delay` is `dep_delay`, `1st` is `_1st`, and `class` is `class_`.
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
    """Returns what each column is, by its name."""
    found = {column: tf.TensorSpec([None], tf.string) for column in inputs.categories()}
    for column, items in inputs.numbers().items():
        of_lists = [] if items is None else [items]
        found[column] = tf.TensorSpec([None, *of_lists], tf.float32)
    return found


def signature(trained: TrainedModel, answers: Callable[[Any], dict[str, tf.Tensor]]) -> Any:
    """Returns the concrete function from columns to answers.

    Args:
        trained: A model whose inputs `are_of_columns`.
        answers: Returns the answers for x.
    """
    inputs = trained.inputs
    assert inputs is not None
    specs = argument_specs(inputs)
    names = argument_names(specs)
    x_specs = trained.input_specs()

    @tf.function
    def by_column(**arguments: tf.Tensor) -> dict[str, tf.Tensor]:
        cells = {column: arguments[name] for column, name in names.items()}
        found = {
            name: tf.reshape(_input(one, cells, inputs), [-1, *x_specs[name].shape[1:]])
            for name, one in inputs.inputs.items()
        }
        return answers(inputs_of(trained.model.example_spec["x"], found))

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
    """Returns a number of an input, float32 [n]; see `FeatureConverter.features`."""
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
            # As the import did it, with the digits of float64.
            difference = tf.cast(number, tf.float64) - entry.statistics.mean
            number = tf.cast(difference / entry.statistics.unit, tf.float32)
        may_be_missing = inputs.columns.missing_cells is not None
        return tf.where(gaps, 0.0, number) if may_be_missing else number
    assert entry.value is not None
    return tf.cast(_is_value(column, (entry.value,), inputs)[:, 0], tf.float32)


def _is_value(column: tf.Tensor, values: tuple[str, ...], inputs: ModelInputs) -> tf.Tensor:
    """Returns whether cells are each of some categories, bool [n, values]."""
    assert inputs.columns is not None
    found = tf.strings.strip(column)
    missing = inputs.columns.missing_cells
    if missing is not None:
        is_missing = tf.reduce_any(found[:, tf.newaxis] == tf.constant(missing), axis=1)
        found = tf.where(is_missing, inputs.missing_category, found)
    return tf.equal(found[:, tf.newaxis], tf.constant(values, tf.string, [1, len(values)]))
