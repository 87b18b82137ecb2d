"""Reads an ensemble's base predictors from runs, Keras files and files of `base_predictors`.

The command `base_predictors` writes several models of one architecture to an .npz file, whose
checksums reveal damage.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

import numpy as np

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import digest, file_digest, read_json, read_npz, write_npz
from tff_agnostic.base.later import tf
from tff_agnostic.base.user_code import in_one_line
from tff_agnostic.boosting.alpha import EnsembleOptions
from tff_agnostic.boosting.ensemble import EnsembleModel, ensemble, model_architecture, output_kind
from tff_agnostic.boosting.predictor_store import Architecture
from tff_agnostic.models.keras import fixed_from_keras
from tff_agnostic.models.keras_platform import layer_classes, model_layers
from tff_agnostic.models.metrics import takes_scores
from tff_agnostic.models.model import Model, ModelWeights
from tff_agnostic.models.user_model import NUM_ROWS, described
from tff_agnostic.program.keras_files import read_named_keras
from tff_agnostic.program.options.tasks import check_format, load_run_task, task_in
from tff_agnostic.saving.checkpoints import (
    CHECKPOINTS,
    Checkpoint,
    newest_checkpoint,
    read_checkpoint,
)
from tff_agnostic.saving.keras import KERAS_FILES, architecture_text
from tff_agnostic.tasks.task import DATA, MODEL_CODE, Task, TaskContext

FLAG = "--base_predictors"
_FORMAT = 1
_HEADER = "header"
_KIND = "base predictors"
# Outputs are probabilities if their sum differs from 1 by at most this.
_TOLERANCE = 1e-4
_PROBABILITIES = "probabilities like the task's model"


@dataclasses.dataclass(frozen=True)
class MixingTask:
    """The task of a run that mixes predictors.

    Attributes:
        options: All options of the task, by flag.
        context: Seed of the run, and paths of the data.
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
        key: String that identifies the architecture; "" for the task's model.
    """

    weights: ModelWeights
    architecture: Architecture
    key: str = ""


def _error(path: Path, expected: str, actual: str) -> UserError:
    return UserError(f"{FLAG}: {path}: expected {expected}, found {actual}")


def _check_same(path: Path, fingerprint: Mapping[str, str], expected: Mapping[str, str]) -> None:
    """Checks that a predictor's fingerprint equals a task's, except for the examples' digest.

    Args:
        fingerprint: The predictor's fingerprint; see `Task.fingerprint`.
        expected: The task's fingerprint.
    """
    for name, value in expected.items():
        if name != DATA and name in fingerprint and fingerprint[name] != value:
            raise _error(path, f"the {name} of this task ({value})", fingerprint[name])


def _two_examples(model: Model) -> Any:
    """Returns two different examples for a model, with size 1 in dimensions of unknown size.

    Real numbers are random; integers are 0 in the first example and 1 in the second.
    """
    rng = np.random.default_rng(0)

    def rows(one: tf.TensorSpec) -> tf.Tensor:
        shape = [NUM_ROWS, *(n or 1 for n in one.shape[1:])]
        if one.dtype.is_floating:
            return tf.constant(rng.normal(size=shape), one.dtype)
        values = np.arange(NUM_ROWS).reshape([NUM_ROWS] + [1] * (len(shape) - 1))
        return tf.cast(np.broadcast_to(values, shape), one.dtype)

    return tf.nest.map_structure(rows, model.example_spec["x"])


def _two_outputs(model: Model) -> Any:
    """Returns a model's outputs for `_two_examples`, with its initial weights."""
    weights = tf.nest.map_structure(tf.constant, model.initial_weights)
    return model.predict(weights, _two_examples(model), False, tf.zeros([2], tf.int32))


def _check_outputs(path: Path, outputs: Any, model: Model) -> None:
    """Checks that a predictor's outputs for `_two_examples` fit the outputs of the task's model."""
    expected = _two_outputs(model)
    is_tensor = tf.is_tensor(outputs)
    if not is_tensor or outputs.shape != expected.shape or not outputs.dtype.is_floating:
        shown = described(outputs) if is_tensor else "several"
        raise _error(path, f"outputs {described(expected)} like the task's model", shown)


@dataclasses.dataclass(frozen=True)
class PredictorFile:
    """The content of a file of base predictors.

    Attributes:
        names: Names of the q predictors.
        arrays: Weights of the q predictors, in the order of the model's weights, arrays [q, ...].
        fingerprint: Fingerprint of the task; see `Task.fingerprint`.
        about: Grouping and smoothing of the predictors, and the number of examples that were
            counted.
    """

    names: tuple[str, ...]
    arrays: tuple[np.ndarray, ...]
    fingerprint: Mapping[str, str]
    about: Mapping[str, Any]


def write_predictors(path: Path, predictors: PredictorFile) -> None:
    """Writes a file of base predictors atomically."""
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


def _header(arrays: Mapping[str, np.ndarray]) -> Optional[dict[str, Any]]:
    """Returns the header of a file of base predictors; None if the file is of another kind."""
    try:
        header = json.loads(str(arrays[_HEADER]))
        return dict(header) if header["kind"] == _KIND else None
    except (LookupError, TypeError, ValueError):
        return None


def _stored_predictors(
    path: Path, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray], task: Task
) -> dict[str, BasePredictor]:
    if header.get("format") != _FORMAT:
        raise UserError(
            f"{path}: expected format {_FORMAT} of this version, found {header.get('format')}"
        )
    try:
        names = list(map(str, header["names"]))
        stacks = [arrays[f"array_{i:05d}"] for i in range(header["arrays"])]
        fingerprint = {str(name): str(value) for name, value in header["fingerprint"].items()}
    except (AttributeError, LookupError, TypeError, ValueError) as e:
        raise UserError(
            f"{path}: expected a file of base predictors, found arrays of another kind"
        ) from e
    if not names or not stacks or any(stack.shape[:1] != (len(names),) for stack in stacks):
        shapes = ", ".join(str(list(stack.shape)) for stack in stacks) or "none"
        raise UserError(
            f"{path}: expected arrays of {len(names)} base predictors, found arrays of shapes "
            f"{shapes}"
        )
    _check_same(path, fingerprint, task.fingerprint)
    template = task.model.initial_weights
    expected = _described(tf.nest.flatten(template))
    stored = _described([stack[0] for stack in stacks])
    if expected != stored:
        raise _error(path, f"weights of the task's model ({expected})", stored)
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise _error(path, "different names", f"{twice!r} twice")
    architecture = model_architecture(task.model)
    return {
        name: BasePredictor(
            tf.nest.pack_sequence_as(template, [stack[k] for stack in stacks]), architecture
        )
        for k, name in enumerate(names)
    }


def _described(arrays: Sequence[Any]) -> str:
    return ", ".join(f"{a.dtype}{list(a.shape)}" for a in map(np.asarray, arrays))


def _keras_predictor(
    path: Path, mixing: MixingTask, architectures: Mapping[str, Architecture]
) -> BasePredictor:
    """Reads a Keras file as a base predictor.

    If the task's model outputs scores, the file's model may output scores or probabilities.
    Nonnegative outputs that sum to 1 are treated as probabilities. A single output is treated as a
    probability if the last layer's activation is a sigmoid.

    Args:
        architectures: Architectures of the files that were read before, by `BasePredictor.key`.
    """
    model = mixing.task.model
    if not output_kind(model).are_models:
        expected = "a run or a file of base_predictors for distributions of words"
        raise _error(path, expected, "a Keras model")
    classes = {} if model.keras_model is None else layer_classes(model.keras_model)
    keras_model = read_named_keras(path, classes, FLAG, mixing.trust)
    try:
        outputs = keras_model(_two_examples(model), training=False)
    except Exception as e:  # The file's code can raise anything.
        expected = f"a model for the task's features, x {described(model.example_spec['x'])}"
        raise _error(path, expected, f"a model that fails on them: {in_one_line(e)}") from e
    _check_outputs(path, outputs, model)
    takes = takes_scores(model.loss)
    if outputs.shape.rank == 1 or outputs.shape[-1] == 1:
        from_scores = _has_score(path, keras_model, outputs, takes)
    else:
        from_scores = _has_scores(path, outputs, takes)
    key = f"{'scores' if from_scores else 'probabilities'} {architecture_text(keras_model)}"
    # Adapted layers contain statistics as constants, which are not in the layer's configuration.
    # Therefore the key also needs the digest of the file.
    if any(hasattr(layer, "adapt") for layer in model_layers(keras_model)):
        key += f" of {file_digest(path)}"
    if key in architectures:
        architecture = architectures[key]
    else:
        try:
            architecture = Architecture(fixed_from_keras(keras_model, model), from_scores)
        except ValueError as e:
            raise UserError(f"{FLAG}: {path}: {e}") from e
    values = [weight.numpy() for weight in keras_model.weights]
    return BasePredictor(ModelWeights([], values), architecture, key)


def _has_scores(path: Path, outputs: tf.Tensor, takes: Optional[bool]) -> bool:
    """Returns whether outputs are scores instead of probabilities.

    Args:
        takes: Result of `takes_scores` for the task's loss.
    """
    if takes is None:
        return False
    values = np.asarray(outputs, np.float64)
    sums = values.sum(axis=-1)
    if np.all(values >= 0) and np.allclose(sums, 1, rtol=0, atol=_TOLERANCE):
        return False
    if not takes:
        raise _error(path, _PROBABILITIES, f"outputs that sum to {sums.ravel()[0]:.4g}")
    return True


def _has_score(
    path: Path, keras_model: tf.keras.Model, outputs: tf.Tensor, takes: Optional[bool]
) -> bool:
    """Returns whether a single output is a class's score instead of its probability."""
    activation = getattr(keras_model.layers[-1], "activation", None)
    if takes is None or activation is tf.keras.activations.sigmoid:
        return False
    values = np.asarray(outputs)
    if not takes and not np.all((values >= 0) & (values <= 1)):
        raise _error(path, _PROBABILITIES, f"the output {values.ravel()[0]:.4g}")
    return takes


class _RunPredictors:
    """Reads runs as base predictors; loads one task for all runs with equal task options."""

    def __init__(self, mixing: MixingTask) -> None:
        self._mixing = mixing
        self._tasks: list[tuple[Any, Task]] = []

    def read(self, path: Path, folder: Path, checkpoint: Checkpoint) -> BasePredictor:
        """Returns the main model of a checkpoint as a base predictor.

        Args:
            path: Path that the user gave, for messages.
        """
        fingerprint = _content(folder / "fingerprint.json")
        mixing_task = self._mixing.task
        recorded = self._recorded_task(path, _content(folder / "config.json"), fingerprint)
        task = mixing_task if recorded is None else recorded
        _check_same(path, fingerprint, task.fingerprint)
        models = checkpoint.models(task.model.initial_weights, f"{FLAG}: {path}")
        weights = next(iter(models.values()))
        if recorded is None:
            return BasePredictor(weights, model_architecture(task.model))
        _check_fits(path, task.model, mixing_task.model)
        keras_model = task.model.keras_model
        key = type(task.model).__name__ if keras_model is None else architecture_text(keras_model)
        return BasePredictor(weights, model_architecture(task.model), key)

    def _recorded_task(
        self, path: Path, config: Mapping[str, Any], fingerprint: Mapping[str, str]
    ) -> Optional[Task]:
        """Returns the task of a run; None if the run has the same model as the mixing task."""
        if not config:
            return None
        if config.get("base_predictors") is not None:
            ensemble_run = "an ensemble, whose base predictors may be named instead"
            raise _error(path, "a run that trained a model", ensemble_run)
        mixing = self._mixing
        try:
            check_format("config.json", config.get("format"))
            name, options = task_in(
                {k: tuple(v) if isinstance(v, list) else v for k, v in config.items()}
            )
            code = {key: mixing.task.fingerprint.get(key) for key in MODEL_CODE}
            is_own = (name, options) == (mixing.name, dict(mixing.options))
            # If the user's file has changed, the same name refers to a different model.
            if is_own and all(fingerprint.get(key) == value for key, value in code.items()):
                return None
            task = self._loaded(name, options, config)
        except KeyError as e:
            raise _error(path, f"the flag {e} in config.json", "none") from e
        except UserError as e:
            raise UserError(f"{FLAG}: {path}: {e}") from e
        data_digests = {k: v for k, v in task.fingerprint.items() if k not in MODEL_CODE}
        _check_same(path, data_digests, mixing.task.fingerprint)
        return None if task.model == mixing.task.model else task

    def _loaded(self, name: str, options: Mapping[str, Any], config: Mapping[str, Any]) -> Task:
        for key, task in self._tasks:
            if key == (name, options):
                return task
        context = self._mixing.context
        if name != self._mixing.name:
            paths = (config.get("data_dir"), config.get("data"))
            context = TaskContext(context.seed, *(None if p is None else Path(p) for p in paths))
        task = load_run_task(name, options, context)
        self._tasks.append(((name, options), task))
        return task


def _content(path: Path) -> Mapping[str, Any]:
    return read_json(path) if path.exists() else {}


def _check_fits(path: Path, model: Model, task_model: Model) -> None:
    """Checks that a model has the same inputs, labels and outputs as the task's model."""
    for key in ("x", "y"):
        spec, expected = model.example_spec[key], task_model.example_spec[key]
        if spec != expected:
            text = f"a model for the task's examples, {key} {described(expected)}"
            raise _error(path, text, f"a model for {key} {described(spec)}")
    if output_kind(model) is not output_kind(task_model):
        raise _error(path, "a model with the task's kind of loss", "a different kind of loss")
    _check_outputs(path, _two_outputs(model), task_model)


def with_base_predictors(mixing: MixingTask, options: Any) -> Task:
    """Returns a task whose model is the ensemble of an algorithm's base predictors.

    Args:
        mixing: The task, whose inputs and outputs every predictor must share.
        options: Options of the algorithm. If they name no base predictors, the task is returned
            unchanged.
    """
    task = mixing.task
    if not isinstance(options, EnsembleOptions) or options.base_predictors is None:
        return task
    # Check the task's model before files are read.
    output_kind(task.model)
    named = _predictors_in(mixing, options.base_predictors)
    predictors = list(named.values())
    model = ensemble(
        task.model,
        [predictor.weights for predictor in predictors],
        list(named),
        architectures=[predictor.architecture for predictor in predictors],
    )
    content = b"".join(np.asarray(a).tobytes() for a in model.initial_weights.non_trainable)
    content += "".join(predictor.key for predictor in predictors).encode()
    return dataclasses.replace(
        task,
        model=model,
        # Tracked weights belong to the task's own model, which the ensemble replaces.
        tracked_weights={},
        fingerprint={**task.fingerprint, "base_predictors": digest(content)},
    )


def _predictors_in(mixing: MixingTask, paths: Sequence[Path]) -> Mapping[str, BasePredictor]:
    """Returns the predictors in files and folders, by name."""
    runs, architectures = _RunPredictors(mixing), dict[str, Architecture]()
    predictors: dict[str, BasePredictor] = {}
    # If all folders have the same name, as in a study, use the names of their parent folders.
    shown = [*paths]
    while len({*shown}) == len(shown) > 1 == len({path.name for path in shown}):
        shown = [path.parent for path in shown]
    names = [path.name for path in shown]
    for path, at in zip(paths, shown):
        if path.suffix in KERAS_FILES and path.is_file():
            predictor = _keras_predictor(path, mixing, architectures)
            architectures[predictor.key] = predictor.architecture
            read = {f"{path.parent.name}/{path.stem}": predictor}
        else:
            name = at.name if names.count(at.name) == 1 else f"{at.parent.name}/{at.name}"
            read = _read(path, name, mixing.task, runs)
        for name, predictor in read.items():
            if name in predictors:
                raise _error(path, "different base predictors", f"{name!r} twice")
            predictors[name] = predictor
    return predictors


def _read(path: Path, name: str, task: Task, runs: _RunPredictors) -> dict[str, BasePredictor]:
    if path.is_dir():
        return {name: runs.read(path, path, newest_checkpoint(path / CHECKPOINTS))}
    if not path.exists():
        raise UserError(
            f"{FLAG}: expected the folder of a run, a file of base_predictors or a Keras model "
            f"({' or '.join(KERAS_FILES)}), found nothing at {path}"
        )
    arrays = read_npz(path, "a file of base predictors, or a checkpoint")
    header = _header(arrays)
    if header is not None:
        return _stored_predictors(path, header, arrays, task)
    folder = path.absolute().parent.parent
    return {f"{folder.name}/{path.stem}": runs.read(path, folder, read_checkpoint(path))}


def single_predictors(model: Model, models: Mapping[str, ModelWeights]) -> dict[str, ModelWeights]:
    """Returns one ensemble per base predictor, in which all other predictors have weight 0.

    Args:
        model: The ensemble; for a model that is no ensemble, the result is empty.
        models: Models of the ensemble's run, by name; each contains all predictors.
    """
    if not isinstance(model, EnsembleModel):
        return {}
    stacks = next(iter(models.values())).non_trainable
    vertices = np.eye(model.num_predictors, dtype=np.float32)
    return {name: ModelWeights([e], stacks) for name, e in zip(model.names, vertices)}
