"""A traced function as bytes: neither models nor closures travel to workers, nor their code."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Callable

import tensorflow as tf


def pack(traced: Any) -> dict[str, bytes]:
    """Returns the files of a SavedModel that holds a function.

    Args:
        traced: A concrete function without keyword arguments, variables or captured tensors.

    Returns:
        For `unpack`, which makes a function of the flat list of arguments to the flat list of
        results.
    """
    arguments, _ = traced.structured_input_signature
    specs = [tf.TensorSpec(spec.shape, spec.dtype) for spec in tf.nest.flatten(arguments)]

    def flat(*values: Any) -> list[Any]:
        results = traced(*tf.nest.pack_sequence_as(arguments, list(values)))
        flat_results: list[Any] = tf.nest.flatten(results)
        return flat_results

    module = tf.Module()
    module.run = tf.function(flat, input_signature=specs, autograph=False)
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(module, folder)
        files = [path for path in Path(folder).rglob("*") if path.is_file()]
        return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def unpack(files: Mapping[str, bytes]) -> Callable[..., Any]:
    """Returns the function that `pack` was given, on flat lists."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        module = tf.saved_model.load(folder)
    run = module.run
    # The function alone does not keep what it belongs to.
    run.module = module
    function: Callable[..., Any] = run
    return function
