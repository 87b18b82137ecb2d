"""Builds the export request of a run."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Callable, Optional
from urllib.parse import quote

import numpy as np
from tabulate import tabulate

from tff_agnostic.aggregations.aggregation import Aggregation, SecurityProperty
from tff_agnostic.aggregations.distributed_sum import DeviceSum
from tff_agnostic.aggregations.registry import PRIVACIES
from tff_agnostic.base.errors import UserError, counted
from tff_agnostic.base.files import new_folder
from tff_agnostic.base.options import OneOf, Options, Within
from tff_agnostic.base.registry import Registry
from tff_agnostic.computations.algorithm import MAIN_MODEL, Algorithm, RunState
from tff_agnostic.data.clients import ClientDataset
from tff_agnostic.data.sampling import COHORT_SAMPLINGS
from tff_agnostic.deployment.backends import BACKENDS, FCP, ServerTaskSettings, task_message
from tff_agnostic.deployment.client_graph import ExampleFormat
from tff_agnostic.deployment.export import CLIENT_GRAPHS, ExportRequest
from tff_agnostic.deployment.metrics import EvaluationMetrics
from tff_agnostic.deployment.rounds import (
    EVALUATION,
    NUM_CLIENTS,
    TRAINING,
    column_ranges,
    public_ranges,
)
from tff_agnostic.privacy.accountant import guarantee
from tff_agnostic.program.options.defaults import DEFAULTS
from tff_agnostic.program.options.flags import option_flags
from tff_agnostic.program.options.tasks import FORMAT
from tff_agnostic.program.runs.build import build_algorithm
from tff_agnostic.program.runs.fleet_privacy import fleet_privacy
from tff_agnostic.program.runs.options import RunConfig
from tff_agnostic.program.runs.spec import RunSettings
from tff_agnostic.tasks.task import Task

# Fields of `RunConfig` that do not affect a plan.
SIMULATION_SETTINGS = (
    "runtime",
    "aggregation",
    "privacy",
    "pooled",
    "rounds",
    "cohort_sampling",
    "evaluate_every",
    "evaluation_clients",
    "checkpoint_every",
    "keep_checkpoints",
)
# Further entries of the manifest, for resuming a run.
OPTIONS, SETTINGS_FORMAT, FINGERPRINT = "task_options", "settings_format", "fingerprint"
# Entry of an evaluation's manifest with the name of the model.
EVALUATED_MODEL = "evaluated_model"
# Prefix of the example collections that belong to an app; our clients read no other collections.
_APP_PREFIX = "app:/"
# Number of clients to read for the value ranges of made-up clients.
_MAX_READS = 20


@dataclasses.dataclass(frozen=True)
class DeviceSettings(Options):
    """Settings of a fleet that simulations lack; every field is a flag.

    Attributes:
        collection_uri: URI of the example collection that devices read.
        client_graph: Graphs for devices: tflite, or both, which adds a TensorFlow graph for clients
            built to run it, and about doubles the download.
        max_clients_per_round: With --profile=secure: maximum number of clients in a round; sums
            over more clients would wrap around. By default twice --clients_per_round. Each doubling
            adds one bit to each number that a device sends.
    """

    collection_uri: str = "app:/examples"
    client_graph: Annotated[str, OneOf(CLIENT_GRAPHS)] = "tflite"
    max_clients_per_round: Optional[Annotated[int, Within(least=1)]] = None


def export_request(
    spec: RunSettings,
    task: Task,
    profile: str,
    device: DeviceSettings,
    restore: Optional[Callable[[RunState], RunState]] = None,
    kind: str = TRAINING,
    task_settings: ServerTaskSettings = ServerTaskSettings(),
    models: Optional[Sequence[str]] = None,
    backend: str = FCP,
) -> ExportRequest:
    """Returns the export request of a run.

    Args:
        spec: The run to deploy. The profile determines its aggregation.
        profile: Name of the kind of plan.
        restore: See `ExportRequest`.
        kind: Name of the kind of rounds.
        task_settings: Settings of the server's task.
        models: Name of the model to evaluate if the algorithm has several; None for the main model.
        backend: Name of the execution backend.
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
    is_fleet = BACKENDS[backend].is_fleet
    fleet = fleet_privacy(kind, spec, task, algorithm, restore, is_fleet)
    if fleet is not None:
        aggregation, restore = fleet.aggregation, fleet.restore
        evaluation = dataclasses.replace(evaluation, **fleet.evaluation_changes)
    draw = {} if fleet is None else fleet.noise.draw
    message = task_message(
        kind, task_settings, config.clients_per_round, draw.get("min_separation", 1)
    )
    return ExportRequest(
        algorithm=algorithm,
        profile=profile,
        num_domains=task.num_domains,
        num_parameters=task.model.num_parameters,
        max_clients_per_round=_max_clients(config, device, aggregation),
        column_ranges=(
            _client_ranges(task, algorithm)
            if fleet is None
            else public_ranges(algorithm.client_data_spec)
        ),
        aggregation=aggregation,
        max_examples=_max_examples(kind, config, aggregation),
        collection_uri=device.collection_uri,
        client_graph=device.client_graph,
        restore=restore,
        rounds=kind,
        evaluation=evaluation,
        task_message=None if is_fleet else message,
        backend=backend,
        about={
            **({"backend": backend} if is_fleet else {}),
            "task": spec.task,
            "domains": list(task.domain_names),
            "settings": {
                name: value for name, value in settings.items() if name not in SIMULATION_SETTINGS
            },
            OPTIONS: _options_without_paths(spec),
            SETTINGS_FORMAT: FORMAT,
            FINGERPRINT: spec.fingerprint(task),
            **evaluated,
        },
        noise=None if fleet is None else fleet.noise,
    )


def _client_ranges(task: Task, algorithm: Algorithm) -> Any:
    """Returns the `column_ranges` of several training clients."""
    ids = task.train.client_ids
    chosen = np.unique(np.linspace(0, len(ids) - 1, _MAX_READS).astype(int))
    return column_ranges((task.train.read(ids[i]) for i in chosen), algorithm.client_data_spec)


def _evaluated_model(algorithm: Algorithm, names: Optional[Sequence[str]]) -> str:
    family = Registry(f"model of {algorithm.name}", dict(algorithm.models(algorithm.initialize())))
    if names is None:
        return next(iter(family))
    if len(names) != 1:
        listed = ", ".join(names) or "none"
        raise UserError(
            f"--models: expected one of {', '.join(family)}, as a plan evaluates one, found "
            f"{listed}"
        )
    family.given("--models", names[0])
    return names[0]


def _check_device(device: DeviceSettings, config: RunConfig, aggregation: Aggregation) -> None:
    if not device.collection_uri.startswith(_APP_PREFIX):
        raise UserError(
            f"--collection_uri: expected {_APP_PREFIX}..., found {device.collection_uri!r}"
        )
    most = device.max_clients_per_round
    if most is None:
        return
    if SecurityProperty.SECURE_SUMS not in aggregation.guarantees:
        raise UserError("--max_clients_per_round has no effect without secure sums")
    if most < config.clients_per_round:
        raise UserError(
            f"--max_clients_per_round: expected at least the {config.clients_per_round} of "
            f"--clients_per_round, found {most}"
        )


def _max_clients(config: RunConfig, device: DeviceSettings, aggregation: Aggregation) -> int:
    """Returns the maximum number of clients in any round, including conformance rounds."""
    given = device.max_clients_per_round
    if isinstance(aggregation, DeviceSum):
        # Sums over more clients could wrap around.
        most = max(int(aggregation.noise_clients or aggregation.expected_clients), NUM_CLIENTS)
        if given not in (None, most):
            raise UserError(
                f"--max_clients_per_round: expected {most}, the number of clients that divide a "
                f"round's noise, found {given}"
            )
        return most
    # Servers select more clients than they need, as some drop out.
    return given or max(2 * config.clients_per_round, NUM_CLIENTS)


def _options_without_paths(spec: RunSettings) -> dict[str, Any]:
    # Paths are private, and would make the plan depend on the machine.
    paths = {flag.name for flag in option_flags(DEFAULTS[spec.task].spec.options) if flag.is_path}
    return {name: value for name, value in spec.task_options.items() if name not in paths}


def _max_examples(kind: str, config: RunConfig, aggregation: Aggregation) -> Optional[int]:
    # Limit a client's examples as simulations do: in training to --max_examples, then to the
    # examples that secure sums allow.
    used = config.max_examples if kind == TRAINING else None
    bounds = [used] if used is not None else []
    if aggregation.cuts_clients:
        bounds.append(aggregation.limits.examples)
    return min(bounds, default=None)


def summary(manifest: dict[str, Any]) -> str:
    """Returns a summary of an export as text."""
    counts = manifest["bytes_per_client_and_round"]
    rows = []
    for direction in ("down", "up"):
        values = counts[direction]
        size = values.get("checkpoint_bytes", values["payload_bytes"])
        rows.append([direction, values["values"], values["payload_bytes"], size])
    rows.insert(0, ["plan", "", "", counts["plan"]["bytes"]])
    if "paper" in counts:
        paper = counts["paper"]
        rows.append(["paper, both", paper["values"], paper["payload_bytes"], ""])
    table = tabulate(rows, headers=["per client and round", "values", "bytes", "bytes as sent"])
    algorithm = manifest["algorithm"]
    what = f"{algorithm} on {manifest['task']}, profile {manifest['profile']}"
    if manifest["kind"] == EVALUATION:
        model = manifest[EVALUATED_MODEL]
        what = f"{EVALUATION} of {'' if model == MAIN_MODEL else f'{model} of '}{what}"
    rounds = f"after {counted(manifest['rounds_trained'], 'round')}"
    lines = [
        f"{what}, {rounds}; the server sees {manifest['privacy']['server_sees']}",
        *_noise_lines(manifest),
        table,
    ]
    if "backend" not in manifest:
        ops = ", ".join(manifest["tflite"]["beyond_odp"])
        lines += [f"On-Device Personalization's devices lack {ops}"] if ops else []
    return "\n".join(lines)


def _noise_lines(manifest: dict[str, Any]) -> list[str]:
    noise = manifest["privacy"].get("differential_privacy")
    if noise is None:
        return []
    simulated = noise["guarantee_as_simulated"]
    if "epsilon_after" in noise:
        subject = f"of each node after {counted(len(noise['epsilon_after']), 'sum')} with it"
        return [
            f"noise of z {noise['noise_multiplier']:.4g}, added by {noise['noise_clients']} nodes: "
            + guarantee(noise["epsilon_after"][-1], noise["delta"], subject)
            + f", against the server, of sums with at least {noise['fewest_clients']} nodes",
            "run_plan adds no noise: it is a node that does",
        ]
    epsilon = math.inf if simulated["epsilon"] is None else simulated["epsilon"]
    # Name the part that the guarantee covers: rounds of training, or a single evaluation.
    releases = counted(simulated["rounds"], "round") if "rounds" in simulated else "an evaluation"
    return [
        f"noise of z {noise['noise_multiplier']:.4g} in the server's result graph: "
        + guarantee(
            epsilon, simulated["delta"], f"of each client after {releases} of a fleet as the run's"
        )
        + "; see server_must in the manifest",
        "server_state.ckpt holds the key of the fleet's noise: keep it secret",
    ]


def write_clients(
    folder: Path, config: RunConfig, task: Task, example_format: ExampleFormat, completed: int
) -> str:
    """Writes a task's training clients for `run_plan`, and the next cohorts of a simulation.

    The cohorts of a private run are its server's secret, and are not written.

    Args:
        folder: New or empty folder for one file NAME.tfrecord per client, and cohorts.txt.
        config: Settings of the run; one cohort is written for each of its rounds.
        completed: Number of rounds that precede the first cohort.

    Returns:
        A line about the written files.
    """
    is_private = PRIVACIES[config.privacy].build is not None
    clients, sampling = task.train, COHORT_SAMPLINGS[config.cohort_sampling]
    draw = sampling(clients, task.num_domains, config.clients_per_round, config.seed)
    rounds = range(completed + 1, completed + config.rounds + 1)
    cohorts = [] if is_private else map(draw, rounds)
    what = f"{_write_clients(folder, clients, cohorts, example_format)} training clients"
    if not is_private:
        what += f", and the cohorts of rounds {rounds[0]} to {rounds[-1]}"
    return f"{what}: {folder}"


def write_test_clients(folder: Path, task: Task, example_format: ExampleFormat) -> str:
    """Writes a task's test clients, all of them as one cohort; see `write_clients`."""
    count = _write_clients(folder, task.test, [task.test.client_ids], example_format)
    return f"{count} {task.test_split} clients, and the cohort of all of them: {folder}"


def _write_clients(
    folder: Path,
    clients: ClientDataset,
    cohorts: Iterable[Sequence[str]],
    example_format: ExampleFormat,
) -> int:
    file_names = {client_id: quote(client_id, safe="") for client_id in clients.client_ids}
    lines = [",".join(file_names[client_id] for client_id in cohort) for cohort in cohorts]
    with new_folder(folder, "--clients_dir") as path:
        for client_id, name in file_names.items():
            example_format.write(path / f"{name}.tfrecord", clients.read(client_id))
        if lines:
            (path / "cohorts.txt").write_text("\n".join(lines) + "\n", "utf-8")
    return len(file_names)
