"""Baselines for excess losses, computed before training: baseline runs, trivial predictors.

A baseline run is FedAvg on a single domain's examples, with the given settings. It makes as many
passes over these examples as the run that needs the baseline. It is stopped early: the baseline is
the loss after the round with the lowest loss on the domain's held-out examples. Together, baseline
runs cost about one run.
"""

from __future__ import annotations

import dataclasses
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

import numpy as np

from tff_agnostic.base.errors import UserError, counted
from tff_agnostic.base.files import make_folder, read_json, write_json
from tff_agnostic.base.later import scipy, tf
from tff_agnostic.boosting.ensemble import EnsembleModel
from tff_agnostic.boosting.members import WordMembers
from tff_agnostic.computations.algorithm import MAIN_MODEL
from tff_agnostic.data.clients import DomainClients, client_domain_counts
from tff_agnostic.domain_weights.ascent import LambdaOptions
from tff_agnostic.domain_weights.excess import HELDOUT, OWN, TRAINING, TRIVIAL
from tff_agnostic.metrics.class_counts import entropy
from tff_agnostic.metrics.metrics_file import read_history
from tff_agnostic.models.metrics import SentenceLoss
from tff_agnostic.models.model import Model
from tff_agnostic.program.options.defaults import DEFAULTS
from tff_agnostic.program.options.process import StopRequest
from tff_agnostic.program.progress import LongWork
from tff_agnostic.program.runs.baseline_files import (
    BASELINES,
    FILE_NAME,
    file_content,
    read_baselines,
)
from tff_agnostic.program.runs.folder import RunFolder
from tff_agnostic.program.runs.heldout import check_heldout, check_store, heldout_defaults
from tff_agnostic.program.runs.observers import RoundsDone
from tff_agnostic.program.runs.options import optional_path
from tff_agnostic.program.runs.spec import RunSettings, resolve
from tff_agnostic.program.runs.training import TrainingRun
from tff_agnostic.runtimes.runtime import Runtime
from tff_agnostic.saving.checkpoints import read_checkpoint
from tff_agnostic.tasks.task import Task
from tff_agnostic.training.evaluate import Evaluator, prepared_evaluation

_REFERENCE = "fed_avg"
# Number of evaluations of a baseline run.
_EVALUATIONS = 20
# With fewer clients, or fewer held-out examples, a domain has no separate baseline run.
MIN_CLIENTS, MIN_HELDOUT = 2, 10
_TRIVIAL_LABELS = "classes, numbers or texts"
# Number of sample outputs that determine the range of a model's outputs and the kind of its loss.
_PROBES = 32


def with_baselines(
    specs: Sequence[RunSettings],
    folder: Path,
    runtime: Runtime,
    stop: StopRequest,
    load_task: Optional[Callable[[RunSettings], Task]] = None,
    show_progress: bool = True,
) -> list[RunSettings]:
    """Computes the baselines that runs request, and returns the runs with these numbers.

    Runs share the first run's baselines if their own baseline runs would differ only in the seed.

    Args:
        folder: Parent folder of the baseline runs, which are in baselines/, then baselines/2/ and
            so on.
        stop: Records signals; after a signal, baseline runs stop and can be resumed.
        load_task: Called with settings; returns the task, evaluated on held-out clients. None for
            the held-out split of the task itself.
    """
    made: list[tuple[Any, Path]] = []
    printed: set[str] = set()
    result = []
    for spec in specs:
        options = spec.algorithm
        word = options.lambda_.baselines if isinstance(options, LambdaOptions) else None
        if word not in (OWN, TRIVIAL):
            result.append(spec)
            continue
        wanted = _settings(spec, str(word), load_task is not None)
        path = next((path for settings, path in made if settings == wanted), None)
        if path is None:
            path = folder / BASELINES / (str(len(made) + 1) if made else "")
            made.append((wanted, path))
            _make(spec, str(word), wanted, path, runtime, stop, load_task, show_progress)
        numbers = read_baselines(path / FILE_NAME, spec.task, options.lambda_.baseline_losses)
        line = (
            f"baselines ({word}, {options.lambda_.baseline_losses}; {path / FILE_NAME}): "
            + ", ".join(f"{name} {number:.4g}" for name, number in numbers.items())
        )
        # Print one line for all trials with the same baselines.
        if line not in printed:
            print(line)
            printed.add(line)
        algorithm = options.with_baselines(numbers.values())
        result.append(dataclasses.replace(spec, algorithm=algorithm))
    return result


def _settings(spec: RunSettings, word: str, has_heldout: bool) -> dict[str, Any]:
    """Returns the settings that determine baseline runs, except the seed, which trials vary."""
    flags = (_reference(spec, has_heldout) if word == OWN else spec).flags()
    if word == TRIVIAL:
        flags = {name: value for name, value in flags.items() if name not in spec.settings()}
    kept = {name: value for name, value in flags.items() if name not in ("seed", "runtime")}
    return {"baselines": word, **kept}


def _make(
    spec: RunSettings,
    word: str,
    wanted: Mapping[str, Any],
    path: Path,
    runtime: Runtime,
    stop: StopRequest,
    load_task: Optional[Callable[[RunSettings], Task]],
    show_progress: bool,
) -> None:
    file = path / FILE_NAME
    if file.is_file():
        if read_json(file).get("settings") != wanted:
            raise UserError(f"{file}: expected baselines of these settings, found different ones")
        return
    if word == TRIVIAL:
        task = (load_task or RunSettings.load_task)(spec)
        domains = _trivial(task, range(task.num_domains))
    else:
        reference = _reference(spec, load_task is not None)
        task = _with_heldout(reference) if load_task is None else load_task(reference)
        domains = _own(reference, task, path, runtime, stop, show_progress)
    make_folder(path)
    write_json(file, file_content(spec.task, domains, wanted))
    for checkpoints in path.glob("domain_*/checkpoints"):
        shutil.rmtree(checkpoints)


def _reference(spec: RunSettings, has_heldout: bool) -> RunSettings:
    """Returns the settings of baseline runs: FedAvg with a run's given settings, and held-out data.

    Args:
        has_heldout: Whether `load_task` evaluates on held-out clients, whatever the options are.
    """
    wanted, options = heldout_defaults(spec.task), dict(spec.task_options)
    defaults = {f.name: f.default for f in dataclasses.fields(DEFAULTS[spec.task].spec.options)}
    if has_heldout:
        wanted = {}
    elif not wanted:
        raise UserError(
            f"--lambda_baselines={OWN}: expected a task with held-out clients, which determine "
            f"when baseline runs stop, found --task={spec.task}"
        )
    for name, value in wanted.items():
        # A value other than the default is a held-out split that the user has chosen.
        if options[name] == defaults[name]:
            options[name] = value
    usual = resolve(spec.task, {"algorithm": _REFERENCE}, {}).settings()
    here = spec.settings()
    given = {name: here[name] for name in spec.given if name in usual and name in here}
    given |= {"rounds": spec.config.rounds, "clients_per_round": spec.config.clients_per_round}
    given |= {"algorithm": _REFERENCE, "seed": spec.config.seed, "cohort_sampling": "uniform"}
    for name in ("preset", "evaluation_clients"):
        given.pop(name, None)
    return resolve(
        spec.task, given, options, optional_path(spec.data_dir), optional_path(spec.data)
    )


def _with_heldout(reference: RunSettings) -> Task:
    if reference.data is not None:
        check_store(Path(reference.data))
    task = reference.load_task()
    check_heldout(task, reference.task)
    return task


def _own(
    reference: RunSettings,
    task: Task,
    path: Path,
    runtime: Runtime,
    stop: StopRequest,
    show_progress: bool,
) -> dict[str, Any]:
    train = client_domain_counts(task.train, task.num_domains)
    heldout = client_domain_counts(task.test, task.num_domains).sum(axis=0)
    num_clients = (train > 0).sum(axis=0)
    _check_all_there(task, train.sum(axis=0))
    is_small = (num_clients < MIN_CLIENTS) | (heldout < MIN_HELDOUT)
    small = np.flatnonzero(is_small).tolist()
    losses = _trivial(task, small)
    for k in small:
        print(
            f"note: {task.domain_names[k]} is too small for a reference run ({num_clients[k]} "
            f"training clients, {heldout[k]} held-out examples): its baseline is the loss of "
            f"the best constant answer ({TRIVIAL})"
        )
    folders = {k: path / f"domain_{k}" for k in range(task.num_domains) if k not in small}
    done = sum(RunFolder(folder).result.exists() for folder in folders.values())
    with LongWork("references", len(folders), "runs", done, visible=show_progress) as work:
        for k, folder in folders.items():
            name = task.domain_names[k]
            spec = _domain_reference(reference, len(train), int(num_clients[k]))
            work.note(f"reference run of {name}: {counted(spec.config.rounds, 'round')}")
            work.say(name)
            losses[name] = _reference_losses(
                spec, folder, _on_domain(task, k), k, runtime, stop, work
            )
    return {name: losses[name] for name in task.domain_names}


def _check_all_there(task: Task, totals: np.ndarray) -> None:
    absent = [name for name, total in zip(task.domain_names, totals) if total == 0]
    if absent:
        raise UserError(
            f"--lambda_baselines: expected training examples of every domain, found none of "
            f"{', '.join(absent)}: give one number per domain, --lambda_baselines=B1,B2,..."
        )


def _domain_reference(
    reference: RunSettings, num_clients: int, num_domain_clients: int
) -> RunSettings:
    """Returns the settings of a domain's baseline run.

    The run makes as many passes over the domain's clients as the run that needs the baseline.
    """
    config = reference.config
    cohort = min(config.clients_per_round, num_domain_clients)
    rounds = math.ceil(
        config.rounds * config.clients_per_round / num_clients * num_domain_clients / cohort
    )
    every = math.ceil(rounds / _EVALUATIONS)
    config = dataclasses.replace(
        config,
        rounds=rounds,
        clients_per_round=cohort,
        evaluate_every=every,
        checkpoint_every=every,
        keep_checkpoints=_EVALUATIONS,
    )
    return dataclasses.replace(reference, config=config)


def _on_domain(task: Task, domain: int) -> Task:
    train, test = (
        DomainClients(clients, domain, task.num_domains) for clients in (task.train, task.test)
    )
    return dataclasses.replace(task, train=train, test=test)


def _reference_losses(
    spec: RunSettings,
    path: Path,
    task: Task,
    domain: int,
    runtime: Runtime,
    stop: StopRequest,
    work: LongWork,
) -> dict[str, Any]:
    folder = RunFolder(path)
    run = TrainingRun(spec, folder, runtime, resume=True, load_task=lambda _: task)
    if not run.is_complete():
        was_done = folder.result.exists()
        run.run(stop, show_progress=False, observers=[RoundsDone(work)])
        work.update(not was_done)
    name = task.domain_names[domain]
    columns = read_history(path / "metrics.csv")
    losses = columns[f"{task.test_split}/loss/{name}"]
    best = int(np.nanargmin(losses))
    round_num = int(columns["round"][best])
    checkpoint = path / "checkpoints" / f"round_{round_num:08d}.npz"
    weights = read_checkpoint(checkpoint).models(
        task.model.initial_weights, str(checkpoint), task.model.frozen
    )[MAIN_MODEL]
    in_training = task.evaluated_in_training()
    evaluate = prepared_evaluation(runtime, in_training, spec.build_aggregation())
    report = Evaluator(in_training, evaluate)(weights, True)
    return {
        TRAINING: float(report.domains[name].measures["loss"].value),
        HELDOUT: float(losses[best]),
        "source": OWN,
        "round": round_num,
        "rounds": spec.config.rounds,
    }


# --- Trivial predictors: the best constant of each domain, from counts and sums


def _trivial(task: Task, domains: Sequence[int]) -> dict[str, Any]:
    if not domains:
        return {}
    parts = {}
    for k in domains:
        clients = DomainClients(task.train, k, task.num_domains)
        parts[k] = [clients.read(client_id) for client_id in clients.client_ids]
    _check_all_there(task, np.array([len(parts.get(k, "-")) for k in range(task.num_domains)]))
    losses = {k: trivial_loss(task.model, examples) for k, examples in parts.items()}
    return {
        task.domain_names[k]: {TRAINING: loss, HELDOUT: loss, "source": TRIVIAL}
        for k, loss in losses.items()
    }


def trivial_loss(model: Model, clients: Sequence[Mapping[str, Any]]) -> float:
    """Returns the mean loss of the best constant prediction, over all examples of some clients.

    For a cross-entropy, this loss is the entropy of the labels, and for a language model the loss
    of the best unigram model. Both are computed from counts, as are the losses of ensembles of
    distributions. For any other loss the constant is found numerically. Regularizers are ignored.

    Args:
        model: The model; its loss and labels determine the kind of predictor.
    """
    spec = model.example_spec["y"]
    if isinstance(spec, Mapping):
        raise UserError(
            f"--lambda_baselines={TRIVIAL}: expected {_TRIVIAL_LABELS}, found a mapping"
        )
    if isinstance(model.loss, SentenceLoss):
        return _unigram_loss(entropy, model.loss.expected_length, [c["y"] for c in clients])
    labels = np.concatenate([c["y"] for c in clients])
    if isinstance(model, EnsembleModel) and (members := model.members) and members.are_densities:
        smallest = entropy if model.mixture_loss == "log" else _gini
        if isinstance(members, WordMembers):
            return _unigram_loss(smallest, members.expected_length, [labels])
        return smallest(np.unique(labels, return_counts=True)[1])
    inputs = tf.nest.map_structure(lambda x: x[:_PROBES], clients[0]["x"])
    outputs = np.asarray(
        model.predict(model.initial_weights, inputs, False, tf.zeros([2], tf.int32))
    )
    if outputs.dtype.kind != "f" or outputs.ndim > 2 or labels.ndim > 2:
        raise UserError(
            f"--lambda_baselines={TRIVIAL}: expected {_TRIVIAL_LABELS}, found labels of shape "
            f"{list(labels.shape[1:])} and outputs of shape {list(outputs.shape[1:])}"
        )
    values, counts = np.unique(labels, axis=0, return_counts=True)
    link = _baseline_link(outputs)
    if labels.ndim == 1 and labels.dtype.kind in "iu" and _is_cross_entropy(model, outputs, link):
        return entropy(counts)
    return _smallest_constant_loss(model, values, counts / len(labels), outputs, link)


def _gini(counts: np.ndarray) -> float:
    """Returns the smallest mean of |y - h|^2 over distributions h, for one-hot labels y."""
    shares = counts / counts.sum()
    return float(1.0 - np.sum(np.square(shares)))


def _baseline_link(outputs: np.ndarray) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns the function that maps any numbers to the range of a model's outputs."""
    has_classes = outputs.ndim == 2 and outputs.shape[1] > 1 and np.all(outputs >= 0)
    if has_classes and np.allclose(outputs.sum(axis=1), 1.0, atol=1e-4):
        return tf.nn.softmax
    return tf.identity


def _is_cross_entropy(model: Model, outputs: np.ndarray, link: Callable[..., Any]) -> bool:
    if outputs.ndim != 2 or (classes := outputs.shape[1]) < 2:
        return False
    logits = np.random.default_rng(0).normal(size=[_PROBES, classes]).astype(np.float32)
    labels = np.arange(_PROBES, dtype=np.dtype(model.example_spec["y"].dtype.as_numpy_dtype))
    labels %= classes
    expected = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    losses = model.loss(tf.constant(labels), link(tf.constant(logits)))
    return bool(np.allclose(losses, expected, rtol=1e-4, atol=1e-5))


def _smallest_constant_loss(
    model: Model,
    labels: np.ndarray,
    shares: np.ndarray,
    outputs: np.ndarray,
    link: Callable[[tf.Tensor], tf.Tensor],
) -> float:
    """Returns min over constant predictions c of sum_i share_i loss(label_i, c).

    Args:
        labels: Distinct labels [n] or [n, k].
        shares: Fraction of examples with each label, float64 [n], with sum 1.
        outputs: Outputs of the model for some examples, which determine the shape.
        link: Called with free parameters; returns a prediction.
    """
    weights, values = tf.constant(shares, tf.float32), tf.constant(labels)

    @tf.function
    def loss_and_slope(free: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(free)
            constant = link(tf.reshape(free, [1, *outputs.shape[1:]]))
            repeated = tf.repeat(constant, len(labels), axis=0)
            loss = tf.reduce_sum(weights * model.loss(values, repeated))
        return loss, tape.gradient(loss, free)

    def objective(free: np.ndarray) -> tuple[float, np.ndarray]:
        loss, slope = loss_and_slope(tf.constant(free, tf.float32))
        return float(loss), np.asarray(slope, np.float64)

    size = int(np.prod(outputs.shape[1:]))
    if size == 1:
        # Minimise without derivatives, which an absolute error lacks at its minimum.
        bracket = (float(np.min(labels)), float(np.max(labels)) + 1.0)
        best = scipy.optimize.minimize_scalar(lambda c: objective(np.array([c]))[0], bracket)
    else:
        best = scipy.optimize.minimize(objective, np.zeros(size), jac=True, method="L-BFGS-B")
    return float(best.fun)


def _unigram_loss(
    smallest: Callable[[np.ndarray], float],
    expected_length: Optional[float],
    sentences: Sequence[np.ndarray],
) -> float:
    """Returns the mean loss per sentence of the best unigram distribution.

    Args:
        smallest: Called with counts of words; returns the smallest mean loss of a word.
        expected_length: See `SentenceLoss`.
        sentences: Ids of words, int [n, T] each; 0 is padding.
    """
    rows = np.concatenate(sentences)
    is_word = rows != 0
    length: Any = is_word.sum(axis=1)
    if expected_length is not None:
        length = np.full([len(rows)], expected_length)
    # Weight of a word in the loss of its sentence.
    weights = np.where(is_word, 1.0 / np.maximum(length, 1)[:, np.newaxis], 0.0)
    counts = np.bincount(rows[is_word], weights[is_word])
    return smallest(counts) * float(counts.sum()) / len(rows)
