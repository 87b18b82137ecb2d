"""Reads Keras files that users name, with errors that name the flag."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.later import tf
from tff_agnostic.saving.keras import KerasFileError, read_keras

_TRUST = " (--trust loads it, and lets it run code: for files of people you trust)"


def read_named_keras(
    file: Path, classes: Mapping[str, Any], name: str, trust: bool = False
) -> tf.keras.Model:
    """Reads a Keras model from a file; see `read_keras`.

    Args:
        classes: Layer classes by name, in addition to Keras' own.
        name: Flag or argument that names the file, for messages.
        trust: Whether the file may run code.
    """
    try:
        return read_keras(file, classes, trust=trust)
    except KerasFileError as e:
        raise UserError(f"{name}: {e}{_TRUST if e.needs_trust else ''}") from e
