"""The command evaluate: evaluates a checkpoint on test or training clients, per domain."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Optional

from tff_agnostic.aggregations.private_sum import PrivacyOptions, ServerNoiseOptions
from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import write_json
from tff_agnostic.base.options import Within
from tff_agnostic.base.registry import Registry
from tff_agnostic.domain_weights import LambdaSet
from tff_agnostic.metrics.evaluation_report import EvaluationReport
from tff_agnostic.models.model import Model, ModelWeights
from tff_agnostic.program.base_predictors.files import single_predictors
from tff_agnostic.program.commands.choice_table import check_choice, choice_table
from tff_agnostic.program.commands.command_line import RunArguments, RunCommand, TaskOptions
from tff_agnostic.program.options.flag_table import flags_in_errors
from tff_agnostic.program.options.user_algorithm import algorithm_label
from tff_agnostic.program.reports.evaluation_table import evaluation_table
from tff_agnostic.program.runs.build import build_lambda_set
from tff_agnostic.program.runs.folder import find_checkpoint
from tff_agnostic.program.runs.options import optional_path
from tff_agnostic.program.runs.spec import RunSettings, check_test_clients, resolve
from tff_agnostic.program.runs.train_run import started
from tff_agnostic.tasks.task import Task
from tff_agnostic.training.evaluate import Evaluator, evaluate_choice, prepared_evaluation
from tff_agnostic.training.private_cohorts import noise_key
from tff_agnostic.training.private_evaluation import PrivateEvaluation, evaluation_key

_SETTINGS = (
    "seed",
    "worst_min_examples",
    "client_percentiles",
    "trust",
    "runtime",
    "aggregation",
    "limit_examples",
    "limit_loss",
    "secure_bits",
    "secure_min_clients",
    "private_evaluation",
)

_ONE_CALL = "it covers this evaluation only: other releases about the same clients add to it"


@dataclasses.dataclass(frozen=True)
class EvaluateOptions(TaskOptions):
    """Flags of `evaluate` in addition to the settings of runs.

    Attributes:
        checkpoint: Folder of a run (its newest checkpoint), or one checkpoint file in it.
        models: Names of the models to evaluate: members of a family, such as conformity_0.5, or
            base predictors of an ensemble, each by itself. [all trained models]
        training_clients: Evaluate on the training clients instead of the test clients, to see the
            losses that training lowers, and their tail.
        adaptation_share: Also let each client choose a model of the family by its loss on this
            share of the client's examples, and report its results on the client's other examples.
        output: JSON file to write the evaluation to.
    """

    checkpoint: Path = dataclasses.field(kw_only=True)
    models: Optional[tuple[str, ...]] = None
    training_clients: bool = False
    adaptation_share: Optional[Annotated[float, Within(above=0, below=1)]] = None
    output: Optional[Path] = None


def evaluate(given: RunArguments) -> None:
    """Evaluates a checkpoint, and prints tables."""
    flags = given.args
    saved_run, checkpoint = find_checkpoint(flags.checkpoint)
    trained = saved_run.spec()
    spec = evaluated_spec(given, trained)
    task = spec.load_task()
    saved_run.check_weights_fit(task)
    config, aggregation = spec.config, spec.build_aggregation()
    if flags.training_clients:
        task = task.evaluated_in_training()
    check_test_clients(task, aggregation)
    options = given.runtime_options(config.runtime)
    # Read only the weights of models, as the task's domains may differ from the checkpoint's.
    saved = checkpoint.models(task.model.initial_weights, flags.checkpoint, task.model.frozen)
    models = _chosen_models(flags, saved, task.model)
    choice, share = None, flags.adaptation_share
    noise = _noise(spec, task, len(models))
    if noise is None and _is_protected(trained, flags.training_clients):
        print(
            f"note: the numbers of these {task.test_split} clients are exact: the epsilon of the "
            "run does not cover this evaluation"
        )
    if share is not None:
        if noise is not None:
            raise UserError(
                "--adaptation_share: expected none with --private_evaluation, which has noise for "
                "evaluations of single models; --private_evaluation=none evaluates without noise"
            )
        check_choice(task.test, models, share)
    with started(config.runtime, options) as runtime:
        evaluator = Evaluator(
            task,
            prepared_evaluation(runtime, task, aggregation, noise),
            worst_min_examples=config.worst_min_examples,
            lambda_set=_lambda_set(trained, task),
            percentiles=config.client_percentiles,
            noise=noise,
        )
        reports = evaluator.evaluate_models(models, True, _states(noise, spec, len(models)))
        if share is not None:
            choice = evaluate_choice(
                task,
                models,
                runtime,
                aggregation,
                share,
                seed=config.seed,
                worst_min_examples=config.worst_min_examples,
                percentiles=config.client_percentiles,
            )
    algorithm = algorithm_label(config.algorithm)
    print(f"{algorithm} after round {checkpoint.round_num}, on {spec.task}")
    for name, report in reports.items():
        if len(reports) > 1:
            print(f"\n{name}")
        print(evaluation_table(report))
    content = {
        "checkpoint": str(flags.checkpoint),
        "round": checkpoint.round_num,
        "task": spec.task,
        "seed": config.seed,
        **reports_to_json(reports),
    }
    if choice is not None:
        print(f"\n{choice_table(choice)}")
        content["choice"] = choice.to_json()
    if noise is not None:
        promised = noise.statement(len(models))
        clients = f"{task.test_split} clients"
        print(f"\nprivate evaluation, of {clients}: {promised.text}: {_ONE_CALL}")
        content["privacy"] = {**promised.to_dict(), "remarks": [*promised.remarks, _ONE_CALL]}
    if flags.output is not None:
        write_json(flags.output, content)


def _noise(spec: RunSettings, task: Task, num_models: int) -> Optional[PrivateEvaluation]:
    options = spec.privacy
    if not isinstance(options, ServerNoiseOptions) or options.private_evaluation is None:
        return None
    with flags_in_errors(options):
        return PrivateEvaluation(options, task, spec.build_aggregation(), num_models)


def _is_protected(trained: RunSettings, training_clients: bool) -> bool:
    """Whether a run guarantees differential privacy to the evaluated clients."""
    options = trained.privacy
    if training_clients:
        return isinstance(options, PrivacyOptions)
    return isinstance(options, ServerNoiseOptions) and options.private_evaluation is not None


def _states(
    noise: Optional[PrivateEvaluation], spec: RunSettings, num_models: int
) -> Optional[list[Any]]:
    """Returns a noise state for each model's evaluation; only this command uses their key."""
    if noise is None:
        return None
    key = evaluation_key(noise_key(spec.privacy), "evaluate")
    return [noise.state(key, release) for release in range(num_models)]


def _chosen_models(
    flags: EvaluateOptions, models: Mapping[str, ModelWeights], model: Model
) -> Mapping[str, ModelWeights]:
    """Returns the models that --models names, in that order, including base predictors."""
    if flags.models is None:
        return models
    if not flags.models:
        raise UserError(f"--models: expected some of {', '.join(models)}, found none")
    by_name = Registry(
        f"model of {flags.checkpoint}", {**single_predictors(model, models), **models}
    )
    return {name: by_name.given("--models", name) for name in flags.models}


def _lambda_set(trained: RunSettings, task: Task) -> Optional[LambdaSet]:
    try:
        return build_lambda_set(trained, task)
    except UserError as e:
        # This fails if the task's domains have changed, or if a file of mixtures is missing.
        print(f"note: the worst mixture of the run's --lambda_set is left out: {e}")
        return None


def reports_to_json(reports: Mapping[str, EvaluationReport]) -> dict[str, Any]:
    """Returns the main model's evaluation as JSON; other evaluations have the key "models"."""
    main, *others = reports
    models = {name: reports[name].to_json() for name in others}
    return {**reports[main].to_json(), **({"models": models} if models else {})}


def evaluated_spec(given: RunArguments, trained: RunSettings) -> RunSettings:
    """Returns a run's settings, overridden by the given task, options and settings."""
    flags, inherited = given.args, trained.settings()
    name = flags.task or trained.task
    same_task, folder, store = name == trained.task, flags.data_dir, flags.data
    options = {**(trained.task_options if same_task else {}), **given.task_options(name)}
    if same_task and folder is None and store is None:
        folder, store = map(optional_path, (trained.data_dir, trained.data))
    return resolve(name, given.settings, options, folder, store, inherited=inherited)


EVALUATE = RunCommand("evaluate", EvaluateOptions, evaluate, settings=_SETTINGS)
