"""Ensembles of --base_predictors: runs of this package, and files that base_predictors made."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tff_agnostic.computations.boosting.options import EnsembleOptions
from tff_agnostic.data.npz import read_npz
from tff_agnostic.errors import UserError
from tff_agnostic.files import digest, read_json
from tff_agnostic.models.functional import Model, ModelWeights
from tff_agnostic.models.mixtures.ensemble import EnsembleModel, ensemble
from tff_agnostic.program.ensembles.predictor_files import is_predictor_file, read_predictors
from tff_agnostic.saving.checkpoints import newest_checkpoint, read_checkpoint
from tff_agnostic.tasks.task import DATA, Task

_FLAG = "--base_predictors"


def with_base_predictors(task: Task, options: Any) -> Task:
    """Returns a task whose model is the ensemble that an algorithm's settings name.

    Args:
        task: The task, of whose model each predictor is.
        options: Settings of any algorithm; those that mix nothing leave the task as it is.

    Raises:
        UserError: If predictors are missing, damaged, or not of the task's model.
    """
    if not isinstance(options, EnsembleOptions) or options.base_predictors is None:
        return task
    named: dict[str, ModelWeights] = {}
    for text in options.base_predictors:
        for name, weights in _read(Path(text), task).items():
            if name in named:
                raise UserError(
                    f"{_FLAG}: expected different base predictors, found {name!r} twice, in "
                    f"{text} for the second time"
                )
            named[name] = weights
    model = ensemble(task.model, list(named.values()), list(named), options.ensemble_loss)
    content = b"".join(np.asarray(a).tobytes() for a in model.initial_weights.non_trainable)
    return dataclasses.replace(
        task,
        model=model,
        # Those of the task are about the weights of its own model.
        tracked_weights={},
        figures={},
        fingerprint={**task.fingerprint, "base_predictors": digest(content)},
    )


def _read(path: Path, task: Task) -> Mapping[str, ModelWeights]:
    if path.is_dir():
        fingerprint = path / "fingerprint.json"
        checkpoint = newest_checkpoint(path / "checkpoints")
        name = path.name
    elif not path.exists():
        raise UserError(
            f"{_FLAG}: expected the folder of a run or a file of base_predictors, found nothing at "
            f"{path}"
        )
    elif is_predictor_file(read_npz(path, "a file of base predictors, or a checkpoint")):
        return _of_file(path, task)
    else:
        fingerprint = path.absolute().parent.parent / "fingerprint.json"
        checkpoint, name = read_checkpoint(path), f"{path.parent.parent.name}/{path.stem}"
    _check_same(path, read_json(fingerprint) if fingerprint.exists() else {}, task)
    models = checkpoint.models(task.model.initial_weights, f"{_FLAG}: {path}")
    return {name: next(iter(models.values()))}


def _of_file(path: Path, task: Task) -> Mapping[str, ModelWeights]:
    found = read_predictors(path)
    _check_same(path, found.fingerprint, task)
    template = task.model.initial_weights
    expected = _described(tf.nest.flatten(template))
    there = _described([array[0] for array in found.arrays])
    if expected != there:
        raise UserError(
            f"{_FLAG}: {path}: expected weights of the task's model ({', '.join(expected)}), found "
            f"{', '.join(there)}"
        )
    if len(set(found.names)) < len(found.names):
        twice = next(name for name in found.names if found.names.count(name) > 1)
        raise UserError(f"{_FLAG}: {path}: expected different names, found {twice!r} twice")
    return {
        name: tf.nest.pack_sequence_as(template, [array[k] for array in found.arrays])
        for k, name in enumerate(found.names)
    }


def _check_same(path: Path, fingerprint: Mapping[str, str], task: Task) -> None:
    """Raises a `UserError` if predictors are of another vocabulary, say; examples may differ."""
    for name, value in task.fingerprint.items():
        if name != DATA and name in fingerprint and fingerprint[name] != value:
            raise UserError(
                f"{_FLAG}: {path}: expected the {name} of this task ({value}), found another one "
                f"({fingerprint[name]})"
            )


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
