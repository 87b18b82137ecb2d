"""What a checkpoint was trained with, as its header knows it, beside what its folder says.

A folder's config.json can be edited, and checkpoints of another run with equal shapes can be copied
into it. Both would train on without a word as a run that nobody described. Values are kept, and no
digest of them, so that the message can name the setting and the value to put back. Where files lie
is not kept: of what is in them there are digests in the fingerprint. Checkpoints of earlier
releases know nothing of this, and are accepted.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tff_agnostic.algorithms.user_algorithm import is_user_file
from tff_agnostic.errors import UserError, some_of
from tff_agnostic.run.spec import CHANGEABLE, RunSpec, path_flags
from tff_agnostic.saving.checkpoints import Checkpoint
from tff_agnostic.settings import flag_text

# Parts of what a checkpoint was trained with.
_SETTINGS, _MADE_OF = "settings", "made_of"
# So many settings are told of a checkpoint of an altogether different run.
_MAX_TOLD = 5


def trained_with(spec: RunSpec, fingerprint: Mapping[str, str]) -> Mapping[str, Mapping[str, Any]]:
    """Returns what checkpoints keep of the run that they are of; equal runs keep equal texts.

    Args:
        fingerprint: `RunSpec.fingerprint`.
    """
    paths = path_flags(spec)
    settings = {
        name: value
        for name, value in spec.flags().items()
        # Not given is something else than any file.
        if name not in CHANGEABLE and (name not in paths or value is None)
    }
    # A folder that nobody named is one, too.
    settings.pop("data_dir", None)
    if is_user_file(spec.config.algorithm):
        # Its content is in the fingerprint.
        del settings["algorithm"]
    return {_SETTINGS: settings, _MADE_OF: dict(fingerprint)}


def check_trained_with(
    checkpoint: Checkpoint,
    config: tuple[Path, Mapping[str, Any]],
    fingerprint: tuple[Path, Mapping[str, Any]],
) -> None:
    """Checks that a checkpoint is of the run whose folder it lies in.

    Args:
        checkpoint: The checkpoint, as it was read.
        config: config.json and the flags in it.
        fingerprint: fingerprint.json and the digests in it.
    """
    (config_file, flags), (fingerprint_file, digests) = config, fingerprint
    where = checkpoint.file
    settings = checkpoint.trained_with.get(_SETTINGS, {})
    # What is missing in a config has another name by now.
    different = [name for name in settings if name in flags and flags[name] != settings[name]]
    if different:
        expected = some_of(_texts(different, settings), _MAX_TOLD)
        found = ", ".join(_texts(different[:_MAX_TOLD], flags))
        raise UserError(
            f"{config_file}: expected {expected}, with which {where} was trained, found {found}: "
            "put back what was changed there, or the checkpoints of that run"
        )
    for name, digest in checkpoint.trained_with.get(_MADE_OF, {}).items():
        if digests.get(name) != digest:
            raise UserError(
                f"{fingerprint_file}: expected the {name} that {where} was trained with "
                f"({digest}), found another one ({digests.get(name)}): put back the checkpoints "
                "of that run"
            )


def _texts(names: list[str], flags: Mapping[str, Any]) -> list[str]:
    return [
        f"no --{name}" if flags[name] is None else f"--{name}={flag_text(flags[name])}"
        for name in names
    ]
