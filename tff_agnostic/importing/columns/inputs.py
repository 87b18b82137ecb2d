"""Which columns of a table make which inputs: vectors of numbers, categories, images."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Optional

from tff_agnostic.data.store_format import DOMAIN, LABEL, TOKENS
from tff_agnostic.errors import UserError
from tff_agnostic.importing.columns.vectors import PIXELS, VECTOR, check_shape
from tff_agnostic.importing.records.options import ImportOptions

_RESERVED = (DOMAIN, LABEL, TOKENS)


@dataclasses.dataclass(frozen=True)
class Input:
    """A feature of the store that is made of columns of numbers.

    Attributes:
        name: Of the feature.
        columns: The columns, in the order of the vector's entries.
    """

    name: str
    columns: tuple[str, ...]


def vector_inputs(options: ImportOptions) -> tuple[Input, ...]:
    """Returns what --feature_columns says: `COLUMN,...`, or `NAME:COLUMN,...;NAME:COLUMN,...`.

    Raises:
        UserError: If an input has no name, no column, or the name of another one.
    """
    columns = options.feature_columns
    if not columns:
        return ()
    text = ",".join(columns)
    if ":" not in text and ";" not in text:
        return (Input(options.feature_name or VECTOR, columns),)
    if options.feature_name is not None:
        raise UserError(f"--feature_name has no effect: --feature_columns={text} names the inputs")
    inputs = []
    for part in text.split(";"):
        name, _, of_input = part.partition(":")
        if not name or not all(of_input.split(",")):
            raise UserError(
                "--feature_columns: expected COLUMN,... or NAME:COLUMN,...;NAME:COLUMN,..., found "
                f"{text!r}"
            )
        inputs.append(Input(name, tuple(of_input.split(","))))
    return tuple(inputs)


def image_inputs(options: ImportOptions) -> tuple[Input, ...]:
    """Returns an input for each of --image_columns, called as the column.

    The only input of a store is called --feature_name, or pixels.
    """
    columns = options.image_columns
    if len(columns) == 1 and not (options.feature_columns or options.categorical_columns):
        return (Input(options.feature_name or PIXELS, columns),)
    return tuple(Input(column, (column,)) for column in columns)


def feature_columns_of(options: ImportOptions) -> list[str]:
    """Returns every column that an input is made of, once for each use."""
    of_inputs = [
        column
        for input_ in (*vector_inputs(options), *image_inputs(options))
        for column in input_.columns
    ]
    return [*of_inputs, *options.categorical_columns]


def check_inputs(options: ImportOptions) -> None:
    """Checks that every column is in one input, and every input has a name of its own.

    Raises:
        UserError: If not, or an option has no effect on these inputs.
    """
    columns = feature_columns_of(options)
    twice = _repeated(columns)
    if twice is not None:
        raise UserError(f"{_flag_of(options, twice)}: expected a column once, found {twice} twice")
    if options.label_column in columns:
        raise UserError(
            f"{_flag_of(options, str(options.label_column))}: expected other columns than "
            f"--label_column, found {options.label_column}"
        )
    names = [*_names(options)]
    for name in names:
        if not name or name in _RESERVED or names.count(name) > 1:
            raise UserError(
                "--feature_columns: expected inputs with different names, other than "
                f"{', '.join(_RESERVED)}, found {', '.join(names)}"
            )
    _check_shapes(options)
    _check_effects(options)


def _names(options: ImportOptions) -> Iterator[str]:
    for input_ in (*vector_inputs(options), *image_inputs(options)):
        yield input_.name
    yield from options.categorical_columns


def _check_shapes(options: ImportOptions) -> None:
    check_shape(options.feature_shape)
    if not options.feature_shape:
        return
    if len(vector_inputs(options)) != 1:
        raise UserError(
            "--feature_shape has no effect: it is of the only input of --feature_columns, found "
            f"{len(vector_inputs(options))}"
        )
    if options.missing_values == "mark":
        raise UserError(
            "--feature_shape: expected vectors with --missing_values=mark, which adds an entry for "
            "each column"
        )


def _check_effects(options: ImportOptions) -> None:
    names = [input_.name for input_ in (*vector_inputs(options), *image_inputs(options))]
    if options.feature_name is not None and options.feature_name not in names:
        raise UserError(
            "--feature_name has no effect: it names the only input of numbers or images, found "
            f"{', '.join(names) or 'none'}"
        )
    can_be_missing = options.feature_columns or options.categorical_columns
    for name in ("missing_values", "missing_marks"):
        if getattr(options, name) != getattr(ImportOptions, name) and not can_be_missing:
            raise UserError(
                f"--{name} has no effect without --feature_columns or --categorical_columns"
            )
    if options.missing_marks and options.missing_values == "fail":
        raise UserError(
            "--missing_marks has no effect with --missing_values=fail: it needs "
            "--missing_values=zero or mark"
        )
    if options.max_categories != ImportOptions.max_categories and not options.categorical_columns:
        raise UserError("--max_categories has no effect without --categorical_columns")


def _flag_of(options: ImportOptions, column: str) -> str:
    if column in options.categorical_columns:
        return "--categorical_columns"
    return "--image_columns" if column in options.image_columns else "--feature_columns"


def _repeated(names: Sequence[str]) -> Optional[str]:
    return next((name for name in names if names.count(name) > 1), None)
