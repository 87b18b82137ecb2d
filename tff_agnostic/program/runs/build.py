"""Builds the parts of a run: data, model, algorithm, aggregation, noise and evaluations."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, Callable, Optional

import numpy as np

from tff_agnostic.aggregations.aggregation import Aggregation, LimitedOptions
from tff_agnostic.aggregations.registry import PRIVACIES
from tff_agnostic.base.errors import UserError
from tff_agnostic.base.later import tf
from tff_agnostic.base.report_fields import ReportFields
from tff_agnostic.computations.algorithm import Algorithm, Problem, RunState
from tff_agnostic.computations.domain_losses import HoldoutOptions
from tff_agnostic.computations.evaluation import evaluation_bounds
from tff_agnostic.computations.schedules import with_rate_columns
from tff_agnostic.data.clients import (
    ClientDataset,
    FirstExamples,
    client_domain_counts,
    domain_counts,
    known_counts,
    some_counts,
)
from tff_agnostic.data.data_warnings import FEW_EXAMPLES, Remark, domains_without, small_domains
from tff_agnostic.data.sampling import PooledExamples, check_cohort_size, mean_cohort_size
from tff_agnostic.domain_weights import LambdaSet
from tff_agnostic.domain_weights.ascent import FREEZE, LambdaOptions
from tff_agnostic.domain_weights.sets import SimplexSet
from tff_agnostic.metrics.columns import EvaluationColumns, RunRows, TrainingColumns
from tff_agnostic.models.keras import as_in_keras, with_frozen
from tff_agnostic.models.keras_platform import keras_platform, layer_classes, plain_keras
from tff_agnostic.models.model import Model, ModelWeights, model_measures
from tff_agnostic.program.keras_files import read_named_keras
from tff_agnostic.program.options.flag_table import flags_in_errors
from tff_agnostic.program.options.user_algorithm import algorithm_named
from tff_agnostic.program.runs.baseline_files import check_domain_baselines
from tff_agnostic.program.runs.data_notes import (
    dominant_clients,
    examples_beyond,
    examples_kept_out,
    expected_kept_out,
    pooled_examples,
    rarely_present,
)
from tff_agnostic.program.runs.evaluation import Evaluations
from tff_agnostic.program.runs.folder import CHECKPOINT, RunFolder, SavedRun, with_saved_start
from tff_agnostic.program.runs.harm import keeping_absent, moves_lambda
from tff_agnostic.program.runs.options import PAPER, RunConfig
from tff_agnostic.program.runs.privacy import private_training
from tff_agnostic.program.runs.release_ledger import ReleaseLedger
from tff_agnostic.program.runs.spec import RunSettings, check_random_sizes, check_test_clients
from tff_agnostic.runtimes.runtime import Runtime, Training
from tff_agnostic.saving.checkpoints import read_checkpoint
from tff_agnostic.saving.keras import KERAS_FILES
from tff_agnostic.tasks.task import Task
from tff_agnostic.training.evaluate import Evaluator, prepared_evaluation
from tff_agnostic.training.private import PrivateTraining
from tff_agnostic.training.problems import expected_counts

# Maximum number of clients to read before the first round, for counts that the store lacks.
MAX_READS = 2000
# Maximum number of clients to read for the counts in result.json.
_MAX_READS = 200
# Maximum number of differences to list between two models.
_MAX_DIFFERENCES = 5


@dataclasses.dataclass(frozen=True)
class RunParts:
    """The parts of a run.

    Attributes:
        remarks: Warnings about the data, before the first round; none in a private run.
        fingerprint: Digests of data, model and imports.
        privacy: Noise and account of a private run; None for other runs.
        summed: Aggregation of the clients' outputs, including any noise.
        training: Executes the rounds.
        train: Training clients: the task's clients, or their pooled examples.
        quantities: Descriptions of the quantities that rounds report, including the spent privacy.
        evaluations: Evaluates the models after the rounds in which an evaluation is due.
        rows: Rows of metrics.csv.
    """

    task: Task
    remarks: Sequence[Remark]
    algorithm: Algorithm
    fingerprint: dict[str, str]
    privacy: Optional[PrivateTraining]
    summed: Aggregation
    training: Training
    train: ClientDataset
    initial: RunState
    quantities: ReportFields
    evaluations: Evaluations
    rows: RunRows


def run_parts(
    spec: RunSettings,
    folder: RunFolder,
    saved: Optional[SavedRun],
    runtime: Runtime,
    load_task: Callable[[RunSettings], Task],
) -> RunParts:
    """Builds the parts of a run.

    Args:
        saved: The run to resume; None for a new run.
    """
    config = spec.config
    task = load_task(spec)
    with flags_in_errors(config):
        check_cohort_size(len(task.train.client_ids), config.clients_per_round)
    check_readable(task.test, MAX_READS)
    # Warnings contain exact counts, which a private run must not publish.
    is_private = PRIVACIES[config.privacy].build is not None
    remarks = [] if is_private else data_remarks(task, config, share_kept_out(spec.algorithm))
    remarks += [] if is_private else rare_domains(task, spec)
    if config.pooled:
        remarks.append(pooled_examples(len(task.train.client_ids), config.clients_per_round))
    # The file of the initial model may be missing by now: use the folder's copy.
    begun = with_saved_start(saved, spec)
    algorithm = build_algorithm(begun, task)
    fingerprint = begun.fingerprint(task)
    if saved is not None:
        saved.check_fingerprint(fingerprint)
    aggregation = spec.build_aggregation()
    check_test_clients(task, aggregation)
    privacy = private_training(spec, task, algorithm)
    summed = spec.build_training_aggregation() if privacy is None else privacy.aggregation()
    check_random_sizes(config, summed)
    runtime.check_clients_per_round(config.clients_per_round)
    if privacy is not None and saved is not None:
        saved.check_execution(spec, runtime.execution())
    with flags_in_errors(spec.privacy):
        training = runtime.training(algorithm, summed)
        initial, quantities = training.initialize(), training.quantities
    if privacy is not None:
        quantities = privacy.account.quantities(quantities)
    return RunParts(
        task=task,
        remarks=remarks,
        algorithm=algorithm,
        fingerprint=fingerprint,
        privacy=privacy,
        summed=summed,
        training=training,
        train=_round_clients(task, config),
        initial=initial,
        quantities=quantities,
        evaluations=_evaluations(spec, folder, task, algorithm, aggregation, privacy, runtime),
        rows=RunRows(
            folder.metrics,
            quantities,
            TrainingColumns(quantities, task.tracked_weights, task.domain_names),
            EvaluationColumns(
                tuple(algorithm.models(initial.algorithm)),
                model_measures(task.model),
                _clipped(task, aggregation, privacy),
                task.domain_names,
                task.test_split,
                config.client_percentiles,
            ),
        ),
    )


def check_readable(clients: ClientDataset, max_clients: int) -> None:
    """Reads up to `max_clients` clients, evenly spaced, so that errors appear before training."""
    ids = clients.client_ids
    for i in np.unique(np.linspace(0, len(ids) - 1, min(len(ids), max_clients)).astype(int)):
        clients.read(ids[i])


def _round_clients(task: Task, config: RunConfig) -> ClientDataset:
    if not config.pooled:
        return task.train
    return PooledExamples(task.train, config.clients_per_round, config.rounds, config.seed)


def _evaluations(
    spec: RunSettings,
    folder: RunFolder,
    task: Task,
    algorithm: Algorithm,
    aggregation: Aggregation,
    privacy: Optional[PrivateTraining],
    runtime: Runtime,
) -> Evaluations:
    config = spec.config
    noise = None if privacy is None else privacy.evaluation
    evaluator = Evaluator(
        task,
        prepared_evaluation(runtime, task, aggregation, noise),
        config.evaluation_clients,
        config.seed,
        config.worst_min_examples,
        algorithm.lambda_set,
        config.client_percentiles,
        noise,
    )
    ledger = None if noise is None else ReleaseLedger(folder.releases)
    return Evaluations(algorithm, evaluator, config.evaluate_every, config.rounds, ledger)


def _clipped(
    task: Task, aggregation: Aggregation, privacy: Optional[PrivateTraining]
) -> ReportFields:
    """Returns the fields in which evaluations report the number of clipped values."""
    if privacy is not None and privacy.evaluation is not None:
        # Private evaluations do not report how many values they clip.
        return {}
    bounds = evaluation_bounds(task.model, aggregation.limits)
    return aggregation.quantities(bounds).get("clipped", {})


def build_algorithm(spec: RunSettings, task: Task) -> Algorithm:
    """Returns the algorithm of a run, for its task."""
    check_domain_baselines(spec.baseline_domains, task.domain_names)
    problem = Problem(
        model=model_to_start_from(spec.config.initial_model, task.model, spec.config.trust),
        domain_names=task.domain_names,
        seed=spec.config.seed,
        expected_counts=_expected_counts(spec, task),
        expected_kept_out=_expected_kept_out(spec, task),
    )
    named = algorithm_named(spec.config.algorithm)
    arguments = named.paper_arguments if spec.config.preset == PAPER else {}
    with flags_in_errors(spec.algorithm):
        algorithm = named.build(problem, spec.algorithm, **arguments)
    return with_rate_columns(algorithm, spec.algorithm)


def build_lambda_set(spec: RunSettings, task: Task) -> Optional[LambdaSet]:
    """Returns the set Lambda to which a run restricts lambda; None if it contains all mixtures.

    The centre of a ball is the training mixture of `task`.
    """
    options = spec.algorithm
    if not isinstance(options, LambdaOptions) or isinstance(options.lambda_.set, SimplexSet):
        # Among all mixtures, the worst one is a single domain, and evaluations report the losses
        # of single domains anyway.
        return None
    expected_counts = np.asarray(_expected_counts(spec, task))
    with flags_in_errors(options):
        return options.lambda_.set.build(task.domain_names, expected_counts / expected_counts.sum())


def training_examples(task: Task) -> np.ndarray:
    """Returns the number of training examples per domain, [p]; estimated for many clients."""
    return domain_counts(task.train, task.num_domains, MAX_READS)


def _expected_counts(spec: RunSettings, task: Task) -> tuple[float, ...]:
    return _expected_in_round(
        spec, task, some_counts(_as_summed(spec, task), task.num_domains, MAX_READS)
    )


def _expected_kept_out(spec: RunSettings, task: Task) -> Optional[tuple[float, ...]]:
    share = share_kept_out(spec.algorithm)
    if not share:
        return None
    counts = some_counts(_as_summed(spec, task), task.num_domains, MAX_READS)
    sizes = counts.sum(axis=1)
    return _expected_in_round(
        spec, task, counts * (expected_kept_out(sizes, share) / np.maximum(sizes, 1))[:, np.newaxis]
    )


def _expected_in_round(spec: RunSettings, task: Task, counts: np.ndarray) -> tuple[float, ...]:
    """Returns the expected number of each domain's examples in a round, from clients' counts."""
    config = spec.config
    in_round = mean_cohort_size(
        config.cohort_sampling, len(task.train.client_ids), config.clients_per_round
    )
    return expected_counts(counts, in_round)


def _as_summed(spec: RunSettings, task: Task) -> ClientDataset:
    """Returns the training clients, each with only its first --limit_examples examples."""
    for part in (spec.privacy, spec.update_aggregator, spec.aggregation):
        if isinstance(part, LimitedOptions):
            return FirstExamples(task.train, part.limit.examples)
    return task.train


def data_remarks(task: Task, config: RunConfig, kept_out: float = 0.0) -> list[Remark]:
    """Returns warnings about a run's data before its first round.

    Args:
        task: The run's task. `RunSettings.load_task` has already limited its clients to
            --max_examples.
        kept_out: Fraction of each client's examples that is held out; see `share_kept_out`.
    """
    remarks = list(task.remarks())
    counts = training_counts(task).counts
    if counts is not None:
        remarks += examples_beyond(counts.sum(axis=1), config.max_examples, "train")
        remarks += examples_kept_out(counts.sum(axis=1), kept_out, config.max_examples)
        remarks += _small_domain_remarks(counts, task, "train", FEW_EXAMPLES)
        remarks += dominant_clients(counts, task.domain_names, "train")
    counts = evaluation_counts(task).counts
    if counts is not None:
        remarks += _small_domain_remarks(counts, task, task.test_split, FEW_EXAMPLES)
        remarks += dominant_clients(counts, task.domain_names, task.test_split)
    return remarks


def rare_domains(task: Task, spec: RunSettings) -> list[Remark]:
    """Returns warnings about domains that are in few rounds; none if lambda ignores losses."""
    counts, config = training_counts(task).counts, spec.config
    if counts is None or not moves_lambda(spec.algorithm):
        return []
    keeps = spec.algorithm.lambda_.absent == FREEZE
    return rarely_present(
        counts,
        task.domain_names,
        config.cohort_sampling,
        config.clients_per_round,
        "stays as it is" if keeps else "falls, as its loss counts as 0",
        keeping_absent(spec.algorithm),
    )


def share_kept_out(algorithm: Any) -> float:
    """Returns the fraction of examples that an algorithm holds out of training."""
    return algorithm.measured_share if isinstance(algorithm, HoldoutOptions) else 0.0


def _small_domain_remarks(counts: np.ndarray, task: Task, split: str, fewest: int) -> list[Remark]:
    examples = dict(zip(task.domain_names, counts.sum(axis=0).tolist()))
    return [*domains_without(examples, split), *small_domains(examples, split, fewest)]


@dataclasses.dataclass(frozen=True)
class SplitCounts:
    """Number of clients and examples in a split.

    Attributes:
        counts: Number of examples per client and domain, int64 [clients, p]; None if the store has
            no counts and there are too many clients to read.
    """

    num_clients: int
    counts: Optional[np.ndarray]

    def to_json(self, domain_names: Sequence[str]) -> dict[str, Any]:
        """Returns the number of clients, and each domain's counts by name (null if unknown)."""
        domains = None
        if self.counts is not None:
            examples, clients = self.counts.sum(axis=0), (self.counts > 0).sum(axis=0)
            domains = {
                name: {"clients": int(clients[i]), "examples": int(examples[i])}
                for i, name in enumerate(domain_names)
            }
        return {"clients": self.num_clients, "domains": domains}


def training_counts(task: Task) -> SplitCounts:
    """Returns the counts of the training clients, including examples beyond --max_examples."""
    clients = task.train.clients if isinstance(task.train, FirstExamples) else task.train
    return _counts(clients, task.num_domains)


def evaluation_counts(task: Task) -> SplitCounts:
    """Returns the counts of the evaluated clients."""
    return _counts(task.test, task.num_domains)


def _counts(clients: ClientDataset, num_domains: int) -> SplitCounts:
    num_clients = len(clients.client_ids)
    if known_counts(clients) is None and num_clients > _MAX_READS:
        return SplitCounts(num_clients, None)
    return SplitCounts(num_clients, client_domain_counts(clients, num_domains))


def model_to_start_from(path: Optional[Path], model: Model, trust: bool = False) -> Model:
    """Returns a model with initial weights from a file.

    Args:
        path: A .keras or .h5 file, or a checkpoint, whose main model is used. None returns `model`
            unchanged.
        trust: Whether a Keras file may run code.
    """
    if path is None:
        return model
    file = path
    if file.suffix == CHECKPOINT:
        weights = _checkpoint_weights(file, model)
    elif file.suffix in KERAS_FILES:
        weights = _keras_weights(file, model, trust)
    else:
        raise UserError(
            f"--initial_model: expected a Keras model ({' or '.join(KERAS_FILES)}), a checkpoint "
            f"or the folder of a run, found {file}"
        )
    return dataclasses.replace(model, initial_weights=weights)


def _checkpoint_weights(file: Path, model: Model) -> ModelWeights:
    arrays = next(iter(read_checkpoint(file).model_arrays.values()))
    template = as_in_keras(model.initial_weights, model.frozen)
    expected = tf.nest.flatten(template)
    _check_same(file, _names(model), expected, arrays)
    return with_frozen(tf.nest.pack_sequence_as(template, list(arrays)), model.frozen)


def _keras_weights(file: Path, model: Model, trust: bool) -> ModelWeights:
    keras_model = model.keras_model
    if keras_model is None:
        raise UserError(
            "--initial_model: expected a task with a Keras model, found a model of another kind"
        )
    saved = read_named_keras(file, layer_classes(keras_model), "--initial_model", trust)
    values = [weight.numpy() for weight in saved.weights]
    names = [keras_platform().weight_name(weight) for weight in keras_model.weights]
    try:
        _check_same(file, names, keras_model.weights, values)
    except UserError as e:
        if list(map(_shape, plain_keras(keras_model).weights)) == list(map(_shape, values)):
            raise UserError(
                f"--initial_model: expected the layers of the task's model, found in {file} Keras "
                "layers that replaced some of them when the model was saved: give the run or its "
                "checkpoint instead"
            ) from e
        raise
    values_by_id = {id(weight): value for weight, value in zip(keras_model.weights, values)}
    weights = ModelWeights(
        [values_by_id[id(weight)] for weight in keras_model.trainable_weights],
        [values_by_id[id(weight)] for weight in keras_model.non_trainable_weights],
    )
    return with_frozen(weights, model.frozen)


def _check_same(
    file: Path, names: Sequence[str], expected: Sequence[Any], arrays: Sequence[Any]
) -> None:
    different = [
        f"{name or 'nothing'} {_shown(weight)}, found {_shown(array)}"
        for name, weight, array in zip_longest(names, expected, arrays)
        if weight is None or array is None or _shape(weight) != _shape(array)
    ]
    if different:
        more = (
            f"; and {len(different) - _MAX_DIFFERENCES} more"
            if len(different) > _MAX_DIFFERENCES
            else ""
        )
        shown = "; ".join(different[:_MAX_DIFFERENCES])
        raise UserError(f"--initial_model: {file}: expected {shown}{more}")


def _names(model: Model) -> list[str]:
    keras_model = model.keras_model
    if keras_model is None:
        return [f"weight {k}" for k in range(len(tf.nest.flatten(model.initial_weights)))]
    return [
        keras_platform().weight_name(weight)
        for weight in (*keras_model.trainable_weights, *keras_model.non_trainable_weights)
    ]


def _shape(array: Any) -> tuple[int, ...]:
    return tuple(array.shape)


def _shown(array: Any) -> str:
    return "nothing" if array is None else str(list(_shape(array)))
