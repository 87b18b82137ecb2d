"""What a run is made of, as its folder knows it: digests, and a copy of the model it started from.

Both are written before config.json, with which the folder is that of a run: one that was killed in
between has left nothing else. The copy is for the day when the model is gone: it may be a
checkpoint of another run, which deletes it when it goes on.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Optional

from tff_agnostic.errors import UserError
from tff_agnostic.files import atomic_file, file_digest, is_temporary, read_json, write_json
from tff_agnostic.program.specs.initial_model import CHECKPOINT, FILES

FINGERPRINT = "fingerprint.json"
# The setting that names the model; its digest in the fingerprint is called so, too, and the copy.
INITIAL_MODEL = "initial_model"
_BLOCK = 1 << 20


def is_all_there_is(folder: Path) -> bool:
    """Returns whether a folder holds what a run writes before its config, and nothing else."""
    if not folder.is_dir():
        return False
    there = {path for path in folder.iterdir() if not is_temporary(path)}
    fingerprint = _fingerprint(folder)
    return bool(fingerprint) and there <= {
        folder / FINGERPRINT,
        *(path for path in _copies(folder) if _is_of(path, fingerprint)),
    }


def kept_model(folder: Path) -> Optional[Path]:
    """Returns the copy of what the run of a folder started from; None if there is none."""
    fingerprint = _fingerprint(folder)
    return next((path for path in _copies(folder) if _is_of(path, fingerprint)), None)


def write_made_of(
    folder: Path, fingerprint: Mapping[str, str], initial_model: Optional[str], is_new: bool
) -> None:
    """Writes what a run is made of into its folder.

    Args:
        folder: The folder.
        fingerprint: `RunSpec.fingerprint`.
        initial_model: The file that the run starts from, if it does.
        is_new: Whether the folder is that of no run yet: what is there of one that was killed
            before it had a config is removed.

    Raises:
        UserError: If a file cannot be written, or the model is another one by now.
    """
    if is_new:
        for path in _copies(folder):
            if not _is_of(path, fingerprint):
                path.unlink()
    if fingerprint:
        write_json(folder / FINGERPRINT, dict(fingerprint))
    elif is_new:
        (folder / FINGERPRINT).unlink(missing_ok=True)
    if initial_model is not None and kept_model(folder) is None:
        _copy(folder, Path(initial_model), fingerprint)


def _copy(folder: Path, model: Path, fingerprint: Mapping[str, str]) -> None:
    copy = folder / f"{INITIAL_MODEL}{model.suffix}"
    if copy.exists():
        # Of an earlier release's run, which kept no copy: it is somebody else's.
        return
    # A checkpoint of a private run holds the key of its noise.
    owner_only = model.suffix == CHECKPOINT
    try:
        with open(model, "rb") as file, atomic_file(copy, owner_only) as kept:
            while block := file.read(_BLOCK):
                kept.write(block)
            kept.flush()
            # Before it gets its name.
            if not _is_of(Path(kept.name), fingerprint):
                raise UserError(
                    f"--{INITIAL_MODEL}: {model} has changed since it was read: start again"
                )
    except OSError as e:
        raise UserError(f"--{INITIAL_MODEL}: {model}: cannot read: {e.strerror or e}") from e


def _copies(folder: Path) -> list[Path]:
    paths = (folder / f"{INITIAL_MODEL}{suffix}" for suffix in FILES)
    return [path for path in paths if path.is_file()]


def _is_of(copy: Path, fingerprint: Mapping[str, str]) -> bool:
    return file_digest(copy) == fingerprint.get(INITIAL_MODEL)


def _fingerprint(folder: Path) -> dict[str, str]:
    """Returns the digests in a folder; none if the file is missing, or somebody else's."""
    try:
        found = read_json(folder / FINGERPRINT)
    except UserError:
        return {}
    return found if all(isinstance(value, str) for value in found.values()) else {}
