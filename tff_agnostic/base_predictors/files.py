"""What an ensemble is mixed of: runs, Keras files, and files that base_predictors made.

Files of base predictors: several models of one architecture, in one .npz file.

The zip format holds a checksum of every array, so damage is noticed when a file is read.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

import numpy as np

from tff_agnostic.boosting.alpha import EnsembleOptions
from tff_agnostic.boosting.ensemble import EnsembleModel, architecture_of, ensemble, form_of
from tff_agnostic.boosting.predictor_store import Architecture
from tff_agnostic.errors import UserError
from tff_agnostic.files import digest, file_digest, read_json, read_npz, write_npz
from tff_agnostic.later import tf
from tff_agnostic.models.keras import fixed_from_keras
from tff_agnostic.models.keras_platform import classes_of, layers_of
from tff_agnostic.models.metrics import takes_scores
from tff_agnostic.models.model import Model, ModelWeights
from tff_agnostic.models.user_model import NUM_ROWS, described
from tff_agnostic.program.options.tasks import check_format, load_task_of_run, task_in
from tff_agnostic.saving.checkpoints import (
    CHECKPOINTS,
    Checkpoint,
    newest_checkpoint,
    read_checkpoint,
)
from tff_agnostic.saving.keras import KERAS_FILES, architecture_text, read_keras
from tff_agnostic.tasks.task import DATA, MODEL_CODE, Task, TaskContext
from tff_agnostic.user_code import in_one_line

FLAG = "--base_predictors"
_FORMAT = 1
_HEADER = "header"
_KIND = "base predictors"
# Of the sum of probabilities.
_TOLERANCE = 1e-4


@dataclasses.dataclass(frozen=True)
class MixingTask:
    """The task of the run that mixes.

    Attributes:
        task: It, loaded.
        name: Name of the task.
        options: All of its options.
        context: What else it was loaded from.
        trust: Whether Keras files may run code.
    """

    task: Task
    name: str
    options: Mapping[str, Any]
    context: TaskContext
    trust: bool = False


@dataclasses.dataclass(frozen=True)
class BasePredictor:
    """A predictor of an ensemble.

    Attributes:
        weights: Its weights.
        architecture: What it says, given them.
        told_apart_by: A text that other architectures do not have; "" of the task's own model.
    """

    weights: ModelWeights
    architecture: Architecture
    told_apart_by: str = ""


def check_same(path: Path, fingerprint: Mapping[str, str], expected: Mapping[str, str]) -> None:
    """Checks that a predictor is of the same vocabulary, say; examples may differ.

    Args:
        path: Of the predictor.
        fingerprint: What it depends on; see `Task.fingerprint`.
        expected: That of a task.
    """
    for name, value in expected.items():
        if name != DATA and name in fingerprint and fingerprint[name] != value:
            raise UserError(
                f"{FLAG}: {path}: expected the {name} of this task ({value}), found another one "
                f"({fingerprint[name]})"
            )


def rows_of(spec: Any) -> Any:
    """Returns two examples that differ, in the structure of specs with a first dimension of None.

    Numbers are random, and integers 0 in the first example and 1 in the second one.
    """
    rng = np.random.default_rng(0)

    def rows(one: tf.TensorSpec) -> tf.Tensor:
        shape = [NUM_ROWS, *(n or 1 for n in one.shape[1:])]
        if one.dtype.is_floating:
            return tf.constant(rng.normal(size=shape), one.dtype)
        values = np.arange(NUM_ROWS).reshape([NUM_ROWS] + [1] * (len(shape) - 1))
        return tf.cast(np.broadcast_to(values, shape), one.dtype)

    return tf.nest.map_structure(rows, spec)


def check_outputs(path: Path, found: Any, model: Model) -> None:
    """Checks that a predictor's outputs for `rows_of` are those of the task's model."""
    x = rows_of(model.example_spec["x"])
    expected = model.predict(_tensors(model.initial_weights), x, False, tf.zeros([2], tf.int32))
    if not tf.is_tensor(found) or found.shape != expected.shape or not found.dtype.is_floating:
        text = described(found) if tf.is_tensor(found) else "several"
        raise UserError(
            f"{FLAG}: {path}: expected outputs {described(expected)} as those of the task's model, "
            f"found {text}"
        )


def _tensors(weights: ModelWeights) -> ModelWeights:
    return tf.nest.map_structure(tf.constant, weights)


@dataclasses.dataclass(frozen=True)
class PredictorFile:
    """Base predictors as they were saved.

    Attributes:
        names: Of the q predictors.
        arrays: Their weights in the order of the model's, arrays [q, ...].
        fingerprint: What the weights depend on, such as the vocabulary; see `Task.fingerprint`.
        about: How they were made.
    """

    names: tuple[str, ...]
    arrays: tuple[np.ndarray, ...]
    fingerprint: Mapping[str, str]
    about: Mapping[str, Any]


def write_predictors(path: Path, predictors: PredictorFile) -> None:
    """Writes a file atomically."""
    header = {
        "kind": _KIND,
        "format": _FORMAT,
        "names": list(predictors.names),
        "arrays": len(predictors.arrays),
        "fingerprint": dict(predictors.fingerprint),
        "about": dict(predictors.about),
    }
    arrays = {f"array_{i:05d}": array for i, array in enumerate(predictors.arrays)}
    write_npz(path, {_HEADER: np.array(json.dumps(header)), **arrays})


def is_predictor_file(arrays: Mapping[str, np.ndarray]) -> bool:
    """Returns whether the arrays of an .npz file are those of base predictors."""
    try:
        return bool(json.loads(str(arrays[_HEADER]))["kind"] == _KIND)
    except (LookupError, TypeError, ValueError):
        return False


def read_predictors(path: Path) -> PredictorFile:
    """Reads a file."""
    arrays = read_npz(path, "a file of base predictors")
    if not is_predictor_file(arrays):
        raise UserError(f"{path}: expected a file of base predictors, found other arrays")
    header = json.loads(str(arrays[_HEADER]))
    file_format = header.get("format")
    if file_format != _FORMAT:
        raise UserError(f"{path}: expected format {_FORMAT} of this version, found {file_format}")
    try:
        found = PredictorFile(
            tuple(map(str, header["names"])),
            tuple(arrays[f"array_{i:05d}"] for i in range(header["arrays"])),
            {str(name): str(value) for name, value in header["fingerprint"].items()},
            dict(header["about"]),
        )
    except (AttributeError, LookupError, TypeError, ValueError) as e:
        raise UserError(f"{path}: expected a file of base predictors, found other arrays") from e
    _check_names(path, found.names, found.arrays)
    return found


def _check_names(path: Path, names: Sequence[str], arrays: Sequence[np.ndarray]) -> None:
    if not names or not arrays or any(a.ndim == 0 or len(a) != len(names) for a in arrays):
        shapes = ", ".join(str(list(a.shape)) for a in arrays) or "none"
        raise UserError(
            f"{path}: expected arrays of {len(names)} base predictors, found arrays of shapes "
            f"{shapes}"
        )


def keras_predictor(
    path: Path, mixing: MixingTask, known: Mapping[str, Architecture]
) -> BasePredictor:
    """Reads a Keras file as a base predictor.

    Where the task's model has scores, a file may have scores or probabilities: outputs that are not
    negative and sum to 1 are probabilities, and a single one is if its last layer's activation is
    a sigmoid.

    Args:
        path: A .keras or .h5 file.
        known: Architectures of earlier files by their text: equal ones are one.
    """
    model = mixing.task.model
    if not form_of(model).are_models:
        raise UserError(
            f"{FLAG}: {path}: expected a run or a file of base_predictors: the task's predictors "
            "are distributions of words, which Keras has no model of"
        )
    own = model.keras_model
    classes = {} if own is None else classes_of(own)
    keras_model = read_keras(path, classes, FLAG, mixing.trust)
    outputs = _outputs(path, keras_model, model.example_spec["x"])
    check_outputs(path, outputs, model)
    takes = takes_scores(model.loss)
    if outputs.shape.rank == 1 or outputs.shape[-1] == 1:
        from_scores = _has_score(path, keras_model, outputs, takes)
    else:
        from_scores = _has_scores(path, outputs, takes)
    text = f"{'scores' if from_scores else 'probabilities'} {architecture_text(keras_model)}"
    # What a layer was adapted to is a constant of what it computes, and not in its configuration.
    if any(hasattr(layer, "adapt") for layer in layers_of(keras_model)):
        text += f" of {file_digest(path)}"
    if text in known:
        architecture = known[text]
    else:
        try:
            architecture = Architecture(fixed_from_keras(keras_model, model), from_scores)
        except ValueError as e:
            raise UserError(f"{FLAG}: {path}: {e}") from e
    values = [weight.numpy() for weight in keras_model.weights]
    return BasePredictor(ModelWeights([], values), architecture, text)


def _outputs(path: Path, keras_model: tf.keras.Model, x_spec: Any) -> Any:
    try:
        return keras_model(rows_of(x_spec), training=False)
    # It is the file's own code that fails.
    except Exception as e:
        raise UserError(
            f"{FLAG}: {path}: expected a model of the task's features, x {described(x_spec)}, "
            f"found one that fails on them: {in_one_line(e)}"
        ) from e


def _has_scores(path: Path, outputs: tf.Tensor, takes: Optional[bool]) -> bool:
    """Returns whether outputs are scores; `takes` as of `takes_scores`."""
    if takes is None:
        return False
    values = np.asarray(outputs, np.float64)
    sums = values.sum(axis=-1)
    if np.all(values >= 0) and np.allclose(sums, 1, rtol=0, atol=_TOLERANCE):
        return False
    if not takes:
        raise UserError(
            f"{FLAG}: {path}: expected probabilities, as the task's model has them, found outputs "
            f"that sum to {sums.ravel()[0]:.4g}"
        )
    return True


def _has_score(
    path: Path, keras_model: tf.keras.Model, outputs: tf.Tensor, takes: Optional[bool]
) -> bool:
    """Returns whether a single output is the score of a class, and not its probability."""
    if takes is None or _ends_in_sigmoid(keras_model):
        return False
    values = np.asarray(outputs)
    if not takes and not np.all((values >= 0) & (values <= 1)):
        raise UserError(
            f"{FLAG}: {path}: expected probabilities, as the task's model has them, found the "
            f"output {values.ravel()[0]:.4g}"
        )
    return takes


def _ends_in_sigmoid(keras_model: tf.keras.Model) -> bool:
    (*_, last) = keras_model.layers
    return getattr(last, "activation", None) is tf.keras.activations.sigmoid


class RunPredictors:
    """Reads runs as base predictors; runs of equal settings have one architecture.

    Args:
        mixing: The task of the run that mixes.
    """

    def __init__(self, mixing: MixingTask) -> None:
        self._mixing = mixing
        self._tasks: list[tuple[Any, Task]] = []

    def read(self, path: Path, folder: Path, checkpoint: Checkpoint) -> BasePredictor:
        """Returns the main model of a checkpoint.

        Args:
            path: What was named, for messages.
            folder: The folder of the run.
        """
        fingerprint = _content(folder / "fingerprint.json")
        own = self._mixing.task
        task = self._task_of(path, _content(folder / "config.json"), fingerprint)
        check_same(path, fingerprint, own.fingerprint if task is None else task.fingerprint)
        model = own.model if task is None else task.model
        models = checkpoint.models(model.initial_weights, f"{FLAG}: {path}")
        weights = next(iter(models.values()))
        if task is None:
            return BasePredictor(weights, architecture_of(model))
        _check_fits(path, model, own.model)
        keras_model = model.keras_model
        text = type(model).__name__ if keras_model is None else architecture_text(keras_model)
        return BasePredictor(weights, architecture_of(model), text)

    def _task_of(
        self, path: Path, config: Mapping[str, Any], fingerprint: Mapping[str, str]
    ) -> Optional[Task]:
        """Returns the task of a run if its model may be another one than that of the own task."""
        if not config:
            return None
        if config.get("base_predictors") is not None:
            raise UserError(
                f"{FLAG}: {path}: expected a run that trained a model, found an ensemble: name its "
                "base predictors"
            )
        mixing = self._mixing
        try:
            check_format("config.json", config.get("format"))
            name, options = task_in(
                {k: tuple(v) if isinstance(v, list) else v for k, v in config.items()}
            )
            code = {key: mixing.task.fingerprint.get(key) for key in MODEL_CODE}
            is_own = (name, options) == (mixing.name, dict(mixing.options))
            # A user's file that has changed since is another model under the same name.
            if is_own and all(fingerprint.get(key) == value for key, value in code.items()):
                return None
            task = self._loaded(name, options, config)
        except KeyError as e:
            raise UserError(f"{FLAG}: {path}: expected every flag of a run, {e} is missing") from e
        except UserError as e:
            raise UserError(f"{FLAG}: {path}: {e}") from e
        of_data = {k: v for k, v in task.fingerprint.items() if k not in MODEL_CODE}
        check_same(path, of_data, mixing.task.fingerprint)
        return None if task.model == mixing.task.model else task

    def _loaded(self, name: str, options: Mapping[str, Any], config: Mapping[str, Any]) -> Task:
        for key, task in self._tasks:
            if key == (name, options):
                return task
        context = self._mixing.context
        if name != self._mixing.name:
            paths = (config.get("data_dir"), config.get("data"))
            context = TaskContext(context.seed, *(None if p is None else Path(p) for p in paths))
        task = load_task_of_run(name, options, context)
        self._tasks.append(((name, options), task))
        return task


def _content(path: Path) -> Mapping[str, Any]:
    return read_json(path) if path.exists() else {}


def _check_fits(path: Path, model: Model, own: Model) -> None:
    """Raises a `UserError` if a model has other inputs, labels or outputs than the task's own."""
    for key in ("x", "y"):
        found, expected = model.example_spec[key], own.example_spec[key]
        if found != expected:
            raise UserError(
                f"{FLAG}: {path}: expected a model of the task's examples, {key} "
                f"{described(expected)}, found one of {key} {described(found)}"
            )
    if form_of(model) is not form_of(own):
        raise UserError(
            f"{FLAG}: {path}: expected a model with the task's kind of loss, found another: what "
            "the two predict does not mix"
        )
    weights = tf.nest.map_structure(tf.constant, model.initial_weights)
    x = rows_of(own.example_spec["x"])
    check_outputs(path, model.predict(weights, x, False, tf.zeros([2], tf.int32)), own)


def with_base_predictors(mixing: MixingTask, options: Any) -> Task:
    """Returns a task whose model is the ensemble that an algorithm's settings name.

    Args:
        mixing: The task, whose inputs and outputs each predictor has.
        options: Settings of any algorithm; those that mix nothing leave the task as it is.
    """
    task = mixing.task
    if not isinstance(options, EnsembleOptions) or options.base_predictors is None:
        return task
    # Before anything is read: what is no mixture has no predictors.
    form_of(task.model)
    found = _all_of(mixing, options.base_predictors)
    predictors = list(found.values())
    model = ensemble(
        task.model,
        [predictor.weights for predictor in predictors],
        list(found),
        architectures=[predictor.architecture for predictor in predictors],
    )
    content = b"".join(np.asarray(a).tobytes() for a in model.initial_weights.non_trainable)
    content += "".join(predictor.told_apart_by for predictor in predictors).encode()
    return dataclasses.replace(
        task,
        model=model,
        # Those of the task are about the weights of its own model.
        tracked_weights={},
        figures={},
        fingerprint={**task.fingerprint, "base_predictors": digest(content)},
    )


def _all_of(mixing: MixingTask, paths: Sequence[Path]) -> Mapping[str, BasePredictor]:
    """Returns the predictors that files and folders hold, by their names."""
    runs, of_files = RunPredictors(mixing), dict[str, Architecture]()
    found: dict[str, BasePredictor] = {}
    names = [path.name for path in paths]
    for path in paths:
        if path.suffix in KERAS_FILES and path.is_file():
            predictor = keras_predictor(path, mixing, of_files)
            of_files[predictor.told_apart_by] = predictor.architecture
            read = {f"{path.parent.name}/{path.stem}": predictor}
        else:
            # Trials of a comparison have the same names in different folders.
            is_one = names.count(path.name) == 1
            name = path.name if is_one else f"{path.parent.name}/{path.name}"
            read = _read(path, name, mixing.task, runs)
        for name, predictor in read.items():
            if name in found:
                raise UserError(
                    f"{FLAG}: expected different base predictors, found {name!r} twice, in {path} "
                    "for the second time"
                )
            found[name] = predictor
    return found


def _read(path: Path, name: str, task: Task, runs: RunPredictors) -> dict[str, BasePredictor]:
    if path.is_dir():
        return {name: runs.read(path, path, newest_checkpoint(path / CHECKPOINTS))}
    if not path.exists():
        raise UserError(
            f"{FLAG}: expected the folder of a run, a file of base_predictors or a Keras model "
            f"({' or '.join(KERAS_FILES)}), found nothing at {path}"
        )
    if is_predictor_file(read_npz(path, "a file of base predictors, or a checkpoint")):
        return _of_file(path, task)
    folder = path.absolute().parent.parent
    return {f"{folder.name}/{path.stem}": runs.read(path, folder, read_checkpoint(path))}


def _of_file(path: Path, task: Task) -> dict[str, BasePredictor]:
    found = read_predictors(path)
    check_same(path, found.fingerprint, task.fingerprint)
    template = task.model.initial_weights
    expected = _described(tf.nest.flatten(template))
    there = _described([array[0] for array in found.arrays])
    if expected != there:
        raise UserError(
            f"{FLAG}: {path}: expected weights of the task's model ({', '.join(expected)}), found "
            f"{', '.join(there)}"
        )
    if len(set(found.names)) < len(found.names):
        twice = next(name for name in found.names if found.names.count(name) > 1)
        raise UserError(f"{FLAG}: {path}: expected different names, found {twice!r} twice")
    architecture = architecture_of(task.model)
    return {
        name: BasePredictor(
            tf.nest.pack_sequence_as(template, [array[k] for array in found.arrays]), architecture
        )
        for k, name in enumerate(found.names)
    }


def _described(arrays: Sequence[Any]) -> list[str]:
    return [f"{a.dtype}{list(a.shape)}" for a in map(np.asarray, arrays)]


def single_predictors(model: Model, models: Mapping[str, ModelWeights]) -> dict[str, ModelWeights]:
    """Returns each predictor of an ensemble as an ensemble in which the others weigh nothing.

    Args:
        model: The ensemble; of other models there is nothing.
        models: The models of a run of it, of which one has the predictors.
    """
    if not isinstance(model, EnsembleModel):
        return {}
    stacks = next(iter(models.values())).non_trainable
    vertices = np.eye(model.num_predictors, dtype=np.float32)
    return {name: ModelWeights([e], stacks) for name, e in zip(model.names, vertices)}
