"""What a run has to say for its export."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Callable, Optional

import numpy as np

from tff_agnostic.aggregations.aggregation import Aggregation, Guarantee
from tff_agnostic.computations.exchange import Algorithm, RunState
from tff_agnostic.deployment.conformance import NUM_CLIENTS, column_ranges
from tff_agnostic.deployment.evaluation.metrics import EvaluationMetrics
from tff_agnostic.deployment.kinds import EVALUATION, TRAINING
from tff_agnostic.deployment.plan_export import CLIENT_GRAPHS, ExportRequest
from tff_agnostic.deployment.task_message import TaskSettings, task_message
from tff_agnostic.errors import UserError
from tff_agnostic.program.deployed.fleet_privacy import fleet_privacy
from tff_agnostic.program.specs.config import RunConfig
from tff_agnostic.program.specs.run_algorithm import build_algorithm
from tff_agnostic.program.specs.run_spec import FORMAT, RunSpec
from tff_agnostic.program.specs.setting_paths import path_fields
from tff_agnostic.registry import Registry
from tff_agnostic.tasks.registry import TASKS
from tff_agnostic.tasks.task import Task

# Fields of `RunConfig` that a plan does not depend on.
OF_SIMULATIONS = (
    "runtime",
    "aggregation",
    "privacy",
    "rounds",
    "cohort_sampling",
    "evaluate_every",
    "evaluation_clients",
    "checkpoint_every",
    "keep_checkpoints",
)
# In the manifest, beside "task" and "settings": what a run has to know to go on.
OPTIONS, SETTINGS_FORMAT, FINGERPRINT = "task_options", "settings_format", "fingerprint"
# In the manifest of an evaluation.
EVALUATED_MODEL = "evaluated_model"
# The collections of the app itself; there are others, which no client of ours has.
_OF_THE_APP = "app:/"
# How many clients are read for the ranges of the made-up clients' values.
_MAX_READS = 20


@dataclasses.dataclass(frozen=True)
class DeviceSettings:
    """What an export has to know of a fleet, and a simulation has not.

    Attributes:
        collection_uri: Which of a device's example collections is read.
        client_graph: Which graphs a device gets; see `CLIENT_GRAPHS`.
        max_clients_per_round: The most clients of a round that secure sums have room for; by
            default twice as many as a round should have.
        require_odp_ops: Whether an op that On-Device Personalization's devices lack is refused.
        noise_generator: What the noise of a private run's export is made of.
    """

    collection_uri: str = "app:/examples"
    client_graph: str = "tflite"
    max_clients_per_round: Optional[int] = None
    require_odp_ops: bool = False
    noise_generator: str = "secure"


def export_request(
    spec: RunSpec,
    task: Task,
    profile: str,
    device: DeviceSettings,
    restore: Optional[Callable[[RunState], RunState]] = None,
    kind: str = TRAINING,
    task_settings: TaskSettings = TaskSettings(),
    models: Optional[Sequence[str]] = None,
) -> ExportRequest:
    """Returns what to export.

    Args:
        spec: The run to deploy; its aggregation is the profile's.
        task: Its task, loaded.
        profile: Name of the kind of plan.
        device: What a run does not know of devices.
        restore: See `ExportRequest`.
        kind: Name of the kind of rounds.
        task_settings: What the server's task is to be.
        models: Of an evaluation: the name of the model of a family that is evaluated; the main one
            if None.

    Raises:
        UserError: If the settings do not fit the task or each other.
    """
    config, aggregation = spec.config, spec.build_aggregation()
    _check_device(device, config, aggregation)
    algorithm, evaluated = build_algorithm(spec, task), {}
    if kind == EVALUATION:
        name = _evaluated_model(algorithm, models)
        algorithm, evaluated = algorithm.with_main_model(name), {EVALUATED_MODEL: name}
    elif models is not None:
        raise UserError(f"--models has no effect with --kind={kind}")
    evaluation = EvaluationMetrics(task.model, config.worst_min_examples, config.client_percentiles)
    settings = spec.settings()
    fleet = fleet_privacy(kind, spec, task, algorithm, restore, device.noise_generator)
    if fleet is not None:
        settings["noise_generator"] = device.noise_generator
        aggregation, restore = fleet.aggregation, fleet.restore
        evaluation = dataclasses.replace(evaluation, **fleet.of_evaluation)
    ids = task.train.client_ids
    chosen = np.unique(np.linspace(0, len(ids) - 1, _MAX_READS).astype(int))
    return ExportRequest(
        algorithm=algorithm,
        profile=profile,
        num_domains=task.num_domains,
        num_parameters=task.model.num_parameters,
        max_clients_per_round=device.max_clients_per_round or _room_for(config),
        column_ranges=column_ranges(
            (task.train.read(ids[i]) for i in chosen), algorithm.client_data_spec
        ),
        aggregation=aggregation,
        max_examples=_max_examples(kind, config, aggregation),
        collection_uri=device.collection_uri,
        client_graph=device.client_graph,
        require_odp_ops=device.require_odp_ops,
        restore=restore,
        rounds=kind,
        evaluation=evaluation,
        task_message=task_message(kind, task_settings, config.clients_per_round),
        about={
            "task": spec.task,
            "domains": list(task.domain_names),
            "settings": {
                name: value for name, value in settings.items() if name not in OF_SIMULATIONS
            },
            OPTIONS: _options_without_paths(spec),
            SETTINGS_FORMAT: FORMAT,
            FINGERPRINT: spec.fingerprint(task),
            **evaluated,
        },
        noise=None if fleet is None else fleet.noise,
    )


def _evaluated_model(algorithm: Algorithm, names: Optional[Sequence[str]]) -> str:
    family = Registry(f"model of {algorithm.name}", dict(algorithm.models(algorithm.initialize())))
    if names is None:
        return next(iter(family))
    if len(names) != 1:
        found = ", ".join(names) or "none"
        raise UserError(
            f"--models: expected one of {', '.join(family)}, as a plan evaluates one, found {found}"
        )
    family.given("--models", names[0])
    return names[0]


def _check_device(device: DeviceSettings, config: RunConfig, aggregation: Aggregation) -> None:
    if not device.collection_uri.startswith(_OF_THE_APP):
        raise UserError(
            f"--collection_uri: expected {_OF_THE_APP}..., found {device.collection_uri!r}"
        )
    if device.client_graph not in CLIENT_GRAPHS:
        known = " or ".join(CLIENT_GRAPHS)
        raise UserError(f"--client_graph: expected {known}, found {device.client_graph!r}")
    most = device.max_clients_per_round
    if most is None:
        return
    if Guarantee.SECURE_SUMS not in aggregation.guarantees:
        raise UserError("--max_clients_per_round has no effect without secure sums")
    if most < config.clients_per_round:
        raise UserError(
            f"--max_clients_per_round: expected at least the {config.clients_per_round} of "
            f"--clients_per_round, found {most}"
        )


def _room_for(config: RunConfig) -> int:
    # Servers take part in advance of those who drop out; and the conformance rounds have to fit.
    return max(2 * config.clients_per_round, NUM_CLIENTS)


def _options_without_paths(spec: RunSpec) -> dict[str, Any]:
    # Where files lie is nobody's business, and would be other bytes on another machine.
    paths = {field.name for field in path_fields(TASKS[spec.task].options)}
    return {name: value for name, value in spec.task_options.items() if name not in paths}


def _max_examples(kind: str, config: RunConfig, aggregation: Aggregation) -> Optional[int]:
    # As simulations cut a client: first to what is used, of training, then to what is summed.
    used = config.max_examples if kind == TRAINING else None
    bounds = [used] if used is not None else []
    if aggregation.cuts_clients:
        bounds.append(aggregation.limits.max_examples)
    return min(bounds, default=None)
