"""The folder of a run: reading, locking, checking, writing.

The folder contains digests of the files and the code of the training, and a copy of the initial
model, which may be a checkpoint that another run deletes later. Both are written before
config.json, which marks the folder as a run's.

Checkpoints contain the settings of their training, which are compared with config.json: users may
edit that file, or copy checkpoints from another run with equal shapes. Checkpoints store the values
of settings, so that a message can name the setting and the value to restore.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Optional

from tff_agnostic.base.errors import UserError, counted, some_of
from tff_agnostic.base.files import (
    atomic_file,
    file_digest,
    folder_lock,
    is_new_or_empty,
    is_temporary,
    make_folder,
    read_json,
    write_errors,
    write_json,
)
from tff_agnostic.program.options.flags import flag_text
from tff_agnostic.program.options.tasks import FORMAT, check_format
from tff_agnostic.program.options.user_algorithm import OWN_CODE, is_user_file
from tff_agnostic.program.runs.baseline_files import BASELINES
from tff_agnostic.program.runs.options import CHANGEABLE_ON_RESUME
from tff_agnostic.program.runs.spec import (
    RunSettings,
    check_clients_per_round,
    differences,
    from_flags,
    path_flags,
    settings_changes,
)
from tff_agnostic.runtimes.options import TENSORFLOW
from tff_agnostic.saving.checkpoints import (
    CHECKPOINTS,
    Checkpoint,
    newest_checkpoint,
    read_checkpoint,
)
from tff_agnostic.saving.keras import KERAS_FILES
from tff_agnostic.tasks.task import DATA, Task

CHECKPOINT = ".npz"
# Suffixes of files that a run can start from.
FILES = (CHECKPOINT, *KERAS_FILES)
# Hints to append to the error about a different digest, by the digest's name.
_HINTS = {
    "base_predictors": "; an ensemble of Keras files is resumed with the Keras that it began with",
}
# Key in config.json of the runtime settings that can change last bits.
_EXECUTION = "execution"
FINGERPRINT = "fingerprint.json"
# Name of the setting with the initial model, and of the model's digest and copy.
INITIAL_MODEL = "initial_model"
_BLOCK = 1 << 20
# Seconds to wait for a lock: a killed process keeps its locks until its memory is freed.
_PATIENCE_SECONDS = 3.0
# Keys of `Checkpoint.trained_with`.
_SETTINGS, _FINGERPRINT = "settings", "made_of"
# Maximum number of different settings in the error about a checkpoint of another run.
_MAX_SETTINGS = 5


class RunFolder:
    """The folder of a run, with the paths of its files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.json"
        self.fingerprint = path / FINGERPRINT
        self.metrics = path / "metrics.csv"
        self.releases = path / "releases.jsonl"
        self.result = path / "result.json"
        self.resampled = path / "resampled.npz"
        self.checkpoints = path / CHECKPOINTS
        self.tensorboard = path / "tensorboard"
        self.model = path / "model"

    def saved(self) -> SavedRun:
        """Reads the folder's run."""
        flags = read_json(self.config)
        execution = flags.get(_EXECUTION, {})
        if not isinstance(flags.get("rounds"), int) or not isinstance(execution, dict):
            raise UserError(
                f"{self.config}: expected a number as rounds and an object as execution, found "
                f"{flags.get('rounds')!r:.40} and {execution!r:.40}"
            )
        check_format(self.config, flags.get("format"))
        return SavedRun(self, flags, execution)

    def read(self) -> Optional[SavedRun]:
        """Reads the folder's run; None if the folder has none."""
        return self.saved() if self.config.exists() else None

    def spec(self) -> RunSettings:
        """Returns the settings of the folder's run; see `SavedRun.spec`."""
        return self.saved().spec()

    def check(self, spec: RunSettings, resume: bool) -> Optional[SavedRun]:
        """Checks that a run may start or resume in the folder; writes nothing.

        A resumed run may have more rounds than before, and other values of the settings in
        `CHANGEABLE_ON_RESUME`. Files in the fingerprint may have moved.

        Returns:
            The folder's run; None if it has none.
        """
        with write_errors(self.path):
            saved = self.read()
            if saved is not None:
                check_same(saved, spec, resume)
            elif not (is_new_or_empty(self.path) or is_unstarted(self.path)):
                raise UserError(
                    "--output_dir: expected a new or empty folder or that of a run, found "
                    f"{self.path} with other content"
                )
            config, aggregation = spec.config, spec.build_aggregation()
            check_clients_per_round(config, spec.build_training_aggregation())
            check_clients_per_round(config, aggregation, "evaluation_clients")
            return saved

    @contextlib.contextmanager
    def claim(self, spec: RunSettings, resume: bool) -> Iterator[Optional[SavedRun]]:
        """Context in which the folder is reserved for a run, and other processes are excluded.

        Yields:
            The folder's run; None if it has none. See `check`.
        """
        with self.locked():
            # Check again under the lock: another process may have started a run meanwhile.
            yield self.check(spec, resume)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Creates the folder if it is missing, and locks it within the context."""
        make_folder(self.path)
        with folder_lock(self.path, patience=_PATIENCE_SECONDS) as is_ours:
            if not is_ours:
                raise UserError(f"--output_dir: another process is running in {self.path}")
            self._remove_temporary_files()
            yield

    def write_config(
        self, spec: RunSettings, fingerprint: Mapping[str, str], execution: Mapping[str, Any]
    ) -> None:
        """Writes config.json, which marks the folder as a run's.

        Args:
            fingerprint: Result of `RunSettings.fingerprint`.
            execution: Runtime settings that can change last bits of the results.
        """
        is_new = not self.config.exists()
        write_fingerprint(self.path, fingerprint, spec.config.initial_model, is_new)
        # Write config.json last: a folder with this file belongs to a run.
        flags = {"format": FORMAT, **spec.flags(), _EXECUTION: dict(execution)}
        write_json(self.config, flags)

    def _remove_temporary_files(self) -> None:
        for folder in (self.path, self.checkpoints, self.model):
            with write_errors(folder):
                for path in folder.iterdir() if folder.is_dir() else ():
                    if is_temporary(path):
                        path.unlink()


@dataclasses.dataclass(frozen=True)
class SavedRun:
    """A run as stored in its folder, completed or not; config.json is read once.

    Attributes:
        flags: Content of config.json.
        execution: Runtime settings of the rounds so far; empty before the first start.
    """

    folder: RunFolder
    flags: Mapping[str, Any]
    execution: Mapping[str, Any]

    @functools.cached_property
    def fingerprint(self) -> Mapping[str, str]:
        """Digests of the files and the code of the training."""
        path = self.folder.fingerprint
        return read_json(path) if path.exists() else {}

    @property
    def known_content(self) -> set[str]:
        """Names of the parts with a digest, in the folder or in a private run's checkpoint."""
        keyed = {DATA} if self.flags.get("privacy", "none") != "none" else set()
        return {*self.fingerprint, *keyed}

    @property
    def last_evaluation(self) -> tuple[int, int]:
        """The last round, and the number of rounds between evaluations."""
        return int(self.flags["rounds"]), int(self.flags["evaluate_every"])

    def spec(self, algorithm: Optional[str] = None) -> RunSettings:
        """Returns the run's settings.

        Args:
            algorithm: Path of the Python file of the run's algorithm, which may have moved; ignored
                for a registered algorithm.
        """
        flags, config = self.flags, self.folder.config
        if algorithm and is_user_file(algorithm) and is_user_file(str(flags.get("algorithm"))):
            flags = {**flags, "algorithm": algorithm}
        try:
            return from_flags(flags)
        except KeyError as e:
            raise UserError(f"{config}: expected every flag of a run, {e} is missing") from e
        except UserError as e:
            raise UserError(f"{config}: {e}") from e

    def check_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Checks that a checkpoint has the settings and the digests of the folder's run."""
        settings = checkpoint.trained_with.get(_SETTINGS)
        if settings is None:
            raise UserError(
                f"{checkpoint.file}: expected a checkpoint with the settings of its run, found "
                "none: restore the checkpoints of that run"
            )
        different = [name for name in settings if self.flags.get(name) != settings[name]]
        if different:
            expected = some_of(_texts(different, settings), _MAX_SETTINGS)
            current = ", ".join(_texts(different[:_MAX_SETTINGS], self.flags))
            raise UserError(
                f"{self.folder.config}: expected {expected}, with which {checkpoint.file} was "
                f"trained, found {current}: restore the changed values there, or the checkpoints "
                "of that run"
            )
        digests = self.fingerprint
        for name, digest in checkpoint.trained_with.get(_FINGERPRINT, {}).items():
            if digests.get(name) != digest:
                raise UserError(
                    f"{self.folder.fingerprint}: expected the {name} that {checkpoint.file} was "
                    f"trained with ({digest}), found {digests.get(name)}: restore the checkpoints "
                    "of that run"
                )

    def check_fingerprint(
        self, fingerprint: Mapping[str, str], others: Collection[str] = ()
    ) -> None:
        """Checks by digests that a run has the data, the code and the other parts of this run.

        Args:
            fingerprint: Digests of the run: `RunSettings.fingerprint`, or `Task.fingerprint`
                without an algorithm.
            others: Names of parts that may differ, such as the examples.
        """
        saved, path = self.fingerprint, self.folder.path
        for name in dict.fromkeys((*fingerprint, *saved)):
            if name not in others and fingerprint.get(name) != saved.get(name):
                copy = saved_start(path) if name == INITIAL_MODEL else None
                hint = f"; it is kept: --{INITIAL_MODEL}={copy}" if copy else _HINTS.get(name, "")
                raise UserError(
                    f"{path}: expected the {name} that the run there was trained with "
                    f"({saved.get(name)}), found {fingerprint.get(name)}{hint}"
                )

    def check_weights_fit(self, task: Task) -> None:
        """Checks that a task has the run's model and labels, so that its weights fit.

        Examples and training code may differ.
        """
        training_files = [*self.spec().paths()]
        self.check_fingerprint(task.fingerprint, others=(DATA, *OWN_CODE, *training_files))

    def check_execution(self, spec: RunSettings, execution: Mapping[str, Any]) -> None:
        """Checks that a private run resumes with the folder's runtime settings.

        A round that a crash lost is released again with the same noise. Other runtime settings may
        round its exact sum differently, and the difference of the two releases would have no noise.

        Args:
            execution: See `RunFolder.write_config`.
        """
        current = {"runtime": spec.config.runtime, **execution}
        saved = {"runtime": self.flags.get("runtime"), **self.execution}
        for name, value in saved.items():
            if value != current.get(name, value):
                raise UserError(
                    f"{_label(name)}: expected {flag_text(value)}, with which the private "
                    f"run in {self.folder.path} was executed, found {flag_text(current[name])}: a "
                    "repeated round has the same noise, so that other last bits would reveal exact "
                    "differences"
                )


def check_same(saved: SavedRun, spec: RunSettings, resume: bool) -> None:
    """Checks that a run equals the folder's run except for permitted changes."""
    path, earlier = saved.folder.path, saved.spec(spec.config.algorithm)
    different = differences(earlier, spec, saved.known_content)
    if different:
        raise UserError(f"--output_dir: {path} holds another run: {', '.join(different)}")
    if not resume:
        raise UserError(
            f"--output_dir: {path} holds this run already: add --resume to resume it, or "
            "choose another folder"
        )
    if spec.config.rounds < earlier.config.rounds:
        raise UserError(
            f"--rounds: the run in {path} has {counted(earlier.config.rounds, 'round')}, and a "
            f"resumed run cannot have fewer, found {spec.config.rounds}"
        )


def _label(name: str) -> str:
    return name if name == TENSORFLOW else f"--{name}"


def changes(
    saved: Optional[SavedRun], spec: RunSettings, execution: Mapping[str, Any]
) -> list[str]:
    """Returns a note for each change of a resumed run that affects its results.

    Args:
        saved: The folder's run; None if it has none.
        execution: Runtime settings of the coming rounds; see `RunFolder.write_config`.
    """
    if saved is None:
        return []
    before = saved.execution
    return settings_changes(saved.spec(spec.config.algorithm), spec) + [
        f"{_label(name)} was {before[name]} until now and is {value}: numbers may differ in their "
        "last bits from those of an uninterrupted run"
        for name, value in execution.items()
        if name in before and before[name] != value
    ]


def with_saved_start(saved: Optional[SavedRun], spec: RunSettings) -> RunSettings:
    """Returns the settings of a resumed run with the folder's copy as the initial model.

    If the run names another file than before, the settings stay unchanged: the content of that file
    is compared later.
    """
    model = spec.config.initial_model
    if saved is None or model is None or str(model) != saved.flags.get(INITIAL_MODEL):
        return spec
    copy = saved_start(saved.folder.path)
    if copy is None:
        return spec
    config = dataclasses.replace(spec.config, initial_model=copy)
    return dataclasses.replace(spec, config=config)


def is_unstarted(folder: Path) -> bool:
    """Returns whether a folder only contains files that a run writes before its config."""
    if not folder.is_dir():
        return False
    # Baseline runs of excess losses are trained before the config is written.
    paths = {path for path in folder.iterdir() if not is_temporary(path)} - {folder / BASELINES}
    if not paths:
        return True
    fingerprint = _fingerprint(folder)
    return bool(fingerprint) and paths <= {
        folder / FINGERPRINT,
        *(path for path in _copies(folder) if _has_digest(path, fingerprint)),
    }


def saved_start(folder: Path) -> Optional[Path]:
    """Returns the copy of the initial model in a run's folder; None if it has none."""
    fingerprint = _fingerprint(folder)
    return next((path for path in _copies(folder) if _has_digest(path, fingerprint)), None)


def write_fingerprint(
    folder: Path, fingerprint: Mapping[str, str], initial_model: Optional[Path], is_new: bool
) -> None:
    """Writes a run's fingerprint, and a copy of its initial model, into its folder.

    Args:
        fingerprint: Result of `RunSettings.fingerprint`.
        initial_model: File that the run starts from; None if there is none.
        is_new: Whether the folder has no config yet; a killed run's leftovers are then removed.
    """
    if is_new:
        for path in _copies(folder):
            if not _has_digest(path, fingerprint):
                path.unlink()
    if fingerprint:
        write_json(folder / FINGERPRINT, dict(fingerprint))
    elif is_new:
        (folder / FINGERPRINT).unlink(missing_ok=True)
    if initial_model is not None and saved_start(folder) is None:
        _copy(folder, initial_model, fingerprint)


def _copy(folder: Path, model: Path, fingerprint: Mapping[str, str]) -> None:
    copy = folder / f"{INITIAL_MODEL}{model.suffix}"
    # A private run's checkpoint contains the key of its noise.
    owner_only = model.suffix == CHECKPOINT
    try:
        with open(model, "rb") as file, atomic_file(copy, owner_only) as kept:
            while block := file.read(_BLOCK):
                kept.write(block)
            kept.flush()
            # Check the copy before the temporary file is renamed.
            if not _has_digest(Path(kept.name), fingerprint):
                raise UserError(
                    f"--{INITIAL_MODEL}: {model} has changed since it was read: start again"
                )
    except OSError as e:
        raise UserError(f"--{INITIAL_MODEL}: {model}: cannot read: {e.strerror or e}") from e


def _copies(folder: Path) -> list[Path]:
    paths = (folder / f"{INITIAL_MODEL}{suffix}" for suffix in FILES)
    return [path for path in paths if path.is_file()]


def _has_digest(copy: Path, fingerprint: Mapping[str, str]) -> bool:
    return file_digest(copy) == fingerprint.get(INITIAL_MODEL)


def _fingerprint(folder: Path) -> dict[str, str]:
    """Returns the digests in a folder's fingerprint.json; empty if it is missing or invalid."""
    try:
        digests = read_json(folder / FINGERPRINT)
    except UserError:
        return {}
    return digests if all(isinstance(value, str) for value in digests.values()) else {}


def find_checkpoint(path: Path) -> tuple[SavedRun, Checkpoint]:
    """Returns a checkpoint file, or the newest checkpoint of a folder, with its run."""
    is_folder, folder = path.is_dir(), checkpoint_folder(path)
    checkpoint = newest_checkpoint(folder.checkpoints) if is_folder else read_checkpoint(path)
    saved = folder.saved()
    saved.check_checkpoint(checkpoint)
    return saved, checkpoint


def checkpoint_folder(path: Path) -> RunFolder:
    """Returns the folder of a checkpoint's run; `path` may be the folder itself."""
    return RunFolder(path if path.is_dir() else path.absolute().parent.parent)


def stored_algorithm(folder: RunFolder) -> str:
    """Returns the algorithm of a folder's run; "" if its config is not readable."""
    try:
        algorithm = read_json(folder.config).get("algorithm", "")
    except UserError:
        return ""
    return algorithm if isinstance(algorithm, str) else ""


def trained_with(
    spec: RunSettings, fingerprint: Mapping[str, str]
) -> Mapping[str, Mapping[str, Any]]:
    """Returns the settings and digests of a run for its checkpoints.

    Args:
        fingerprint: Result of `RunSettings.fingerprint`.
    """
    paths = path_flags(spec)
    settings = {
        name: value
        for name, value in spec.flags().items()
        # A file may have moved, but a run without the file differs from a run with it.
        if name not in CHANGEABLE_ON_RESUME and (name not in paths or value is None)
    }
    # A task may find its folder without the flag.
    settings.pop("data_dir", None)
    if is_user_file(spec.config.algorithm):
        # The fingerprint has a digest of the file's content.
        del settings["algorithm"]
    return {_SETTINGS: settings, _FINGERPRINT: dict(fingerprint)}


def _texts(names: list[str], flags: Mapping[str, Any]) -> list[str]:
    return [
        f"no --{name}" if flags[name] is None else f"--{name}={flag_text(flags[name])}"
        for name in names
    ]
