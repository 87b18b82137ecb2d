"""Writes a federated algorithm as a folder that a deployment can take: plan, state, proof."""

import dataclasses
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Callable, Optional

import numpy as np

from plan_runner import plan_pb2
from tff_agnostic.aggregations.aggregation import Aggregation, PlainSum
from tff_agnostic.computations.exchange import Algorithm, RunState
from tff_agnostic.data.clients import first_rows
from tff_agnostic.deployment.byte_counts import byte_counts
from tff_agnostic.deployment.checkpoint_files import named_values, write_checkpoint
from tff_agnostic.deployment.client_graph_builder import ExampleSource
from tff_agnostic.deployment.compiled_plan import CompiledPlan, PlanSettings
from tff_agnostic.deployment.conformance import expected_rounds, synthetic_clients
from tff_agnostic.deployment.device.device_ops import beyond_odp, check_within_odp
from tff_agnostic.deployment.device.tflite import TfLiteGraph, convert_client_graph
from tff_agnostic.deployment.evaluation.metrics import EvaluationMetrics
from tff_agnostic.deployment.example_format import ExampleFormat
from tff_agnostic.deployment.folders import new_folder
from tff_agnostic.deployment.kinds import KINDS, TRAINING, PlannedRounds
from tff_agnostic.deployment.manifest import (
    FORMAT,
    FORMAT_VERSION,
    describe_files,
    describe_tensors,
    verification,
    versions,
)
from tff_agnostic.deployment.naming import SERVER
from tff_agnostic.deployment.noise import CONFORMANCE_KEY, FleetNoise, noise_facts, with_key
from tff_agnostic.deployment.privacy import privacy_facts
from tff_agnostic.deployment.profiles import PROFILES
from tff_agnostic.errors import UserError
from tff_agnostic.files import OWNER_ONLY
from tff_agnostic.registry import Registry
from tff_agnostic.runtimes.tff import TffRuntime

STATE = "server_state.ckpt"
# Whether a device gets TensorFlow's graph beside TFLite's, by name.
CLIENT_GRAPHS: Registry[bool] = Registry("client graph", {"tflite": False, "both": True})
# The file that says how a server is told of the task.
TASK_MESSAGE = "task.json"


@dataclasses.dataclass(frozen=True)
class ExportRequest:
    """What to export.

    Attributes:
        algorithm: The algorithm.
        profile: Name of the kind of plan; see `PROFILES`.
        num_domains: p.
        num_parameters: |W|.
        max_clients_per_round: The most clients of a round that secure sums have room for: sums of
            more would wrap around.
        column_ranges: Smallest and largest values of the made-up clients' columns; see
            `conformance.column_ranges`.
        aggregation: How clients are summed: that of the profile.
        max_examples: How many of a client's examples are used at most, the first ones; all if
            None.
        collection_uri: Which of a device's example collections is read.
        client_graph: Which graphs a device gets; see `CLIENT_GRAPHS`.
        require_odp_ops: Whether an op that On-Device Personalization's devices lack is refused.
        restore: Returns the state to start from, given the initial one; that one if None.
        about: What the manifest says of the origin: task, settings, names of the domains.
        noise: Of private sums; None if `aggregation` has none.
        rounds: Name of the kind of rounds; see `KINDS`.
        evaluation: What an evaluation reports; a training has no use for it.
        task_message: What a server is told to create the task, as JSON; see `task_message`.
    """

    algorithm: Algorithm
    profile: str
    num_domains: int
    num_parameters: int
    max_clients_per_round: int
    column_ranges: Any
    aggregation: Aggregation = PlainSum()
    max_examples: Optional[int] = None
    collection_uri: str = "app:/examples"
    client_graph: str = "tflite"
    require_odp_ops: bool = False
    restore: Optional[Callable[[RunState], RunState]] = None
    about: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    noise: Optional[FleetNoise] = None
    rounds: str = TRAINING
    evaluation: Optional[EvaluationMetrics] = None
    task_message: Optional[Mapping[str, Any]] = None

    def example_format(self) -> ExampleFormat:
        """Returns how clients hold their examples."""
        return ExampleFormat(self.algorithm.client_data_spec, self.num_domains)


def export(folder: Path, request: ExportRequest, runtime: TffRuntime) -> dict[str, Any]:
    """Writes an export.

    Args:
        folder: Where to; new or empty. It is there whole, or not at all.
        request: What to export.
        runtime: Runs the rounds that others have to reproduce; entered by the caller.

    Returns:
        The manifest.

    Raises:
        UserError: If the folder has content or cannot be written, a column cannot be held in a
            `tf.train.Example`, the algorithm does not fit the profile, or a device would need ops
            that it may not.
    """
    profile, kind = PROFILES[request.profile], KINDS[request.rounds]
    _ = CLIENT_GRAPHS[request.client_graph]
    algorithm = kind.algorithm(request)
    check_exchanges(algorithm)
    source = ExampleSource(request.example_format(), request.collection_uri, request.max_examples)
    with new_folder(folder, "--output_dir") as path:
        rounds = kind.rounds(runtime, request)
        settings = PlanSettings(source, rounds.quantities, request.max_clients_per_round)
        plan = profile.build(rounds.round_, settings)
        lite = convert_client_graph(plan.client_graph, plan.client_phase)
        beyond = beyond_odp(lite.flex_ops, bool(plan.secure), request.noise is not None)
        if request.require_odp_ops:
            check_within_odp(beyond)
        plan.plan.client_tflite_graph_bytes = lite.content
        plan_bytes = _write_plan(path, plan, lite, CLIENT_GRAPHS[request.client_graph])
        if request.task_message is not None:
            text = json.dumps(request.task_message, indent=2) + "\n"
            (path / TASK_MESSAGE).write_text(text, "utf-8")
        initial = rounds.initialize()
        state = request.restore(initial) if request.restore else initial
        _write_state(path / STATE, state, plan, request.noise)
        conformance = _write_conformance(path, request, rounds, state, plan)
        counts = byte_counts(plan, request.num_parameters, request.num_domains, plan_bytes)
        if not kind.is_in_paper:
            del counts["paper"]
        manifest = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "kind": request.rounds,
            "profile": request.profile,
            "server": profile.server,
            "algorithm": request.algorithm.name,
            "rounds_trained": int(state.round_num),
            **request.about,
            "max_examples": request.max_examples,
            "examples": {
                "format": "tf.train.Example",
                "collection_uri": request.collection_uri,
                "features": source.format.features(),
            },
            "tflite": {
                "flex_ops": list(lite.flex_ops),
                "oldest_runtime": lite.oldest_runtime,
                "beyond_odp": beyond,
            },
            "tensors": describe_tensors(plan),
            "bytes_per_client_and_round": counts,
            "privacy": {
                **privacy_facts(
                    plan, algorithm, request.aggregation, request.max_clients_per_round
                ),
                **_noise_facts(request, state),
            },
            **verification(),
            "conformance": conformance,
            "versions": versions(),
            "files": describe_files(path, [p for p in path.rglob("*") if p.is_file()]),
        }
        (path / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", "utf-8")
    return manifest


def check_exchanges(algorithm: Algorithm) -> None:
    """Checks that an algorithm can be a plan of the platform, which has one exchange a round.

    Raises:
        UserError: If its rounds have several.
    """
    names = [exchange.name for exchange in algorithm.exchanges]
    if len(names) > 1:
        advice = algorithm.in_one_exchange and f"; it has one with {algorithm.in_one_exchange}"
        raise UserError(
            f"--algorithm: a plan of the platform has one exchange between server and devices in a "
            f"round, and {algorithm.name} has {len(names)} ({', '.join(names)}): it cannot be "
            f"exported{advice}"
        )


def _write_plan(folder: Path, plan: CompiledPlan, lite: TfLiteGraph, with_graph: bool) -> int:
    """Writes the plan, and a device's part of it, of which the size is returned."""
    client_only = plan_pb2.ClientOnlyPlan(tflite_graph=lite.content, phase=plan.client_phase)
    if with_graph:
        client_only.graph = plan.client_graph.SerializeToString(deterministic=True)
    (folder / "plan.pb").write_bytes(plan.plan.SerializeToString(deterministic=True))
    content = client_only.SerializeToString(deterministic=True)
    (folder / "client_only_plan.pb").write_bytes(content)
    return len(content)


def _write_state(
    path: Path, state: RunState, plan: CompiledPlan, noise: Optional[FleetNoise]
) -> None:
    if noise is None:
        write_checkpoint(path, named_values(state, plan.tensors.state, SERVER))
        return
    # TensorFlow makes a file that everybody may read: here in a folder that its owner alone enters.
    with tempfile.TemporaryDirectory(prefix=".", dir=path.parent) as hidden:
        secret = Path(hidden) / path.name
        tensors = named_values(with_key(state, noise.key), plan.tensors.state, SERVER)
        write_checkpoint(secret, tensors)
        secret.chmod(OWNER_ONLY)
        secret.replace(path)


def _noise_facts(request: ExportRequest, state: RunState) -> dict[str, Any]:
    if request.noise is None:
        return {}
    exchange = KINDS[request.rounds].exchange(request)
    return {"differential_privacy": noise_facts(exchange, state, request.noise)}


def _write_conformance(
    folder: Path,
    request: ExportRequest,
    rounds: PlannedRounds,
    state: RunState,
    plan: CompiledPlan,
) -> dict[str, Any]:
    columns = request.algorithm.client_data_spec
    clients = synthetic_clients(columns, request.column_ranges, request.num_domains)
    (folder / "conformance" / "clients").mkdir(parents=True)
    for name, examples in clients.items():
        request.example_format().write(
            folder / "conformance" / "clients" / f"{name}.tfrecord", examples
        )
    own_state = {}
    if request.noise is not None:
        state = with_key(state, CONFORMANCE_KEY[: len(request.noise.key)])
        own_state["state"] = f"conformance/{STATE}"
        write_checkpoint(
            folder / own_state["state"], named_values(state, plan.tensors.state, SERVER)
        )
    used = [first_rows(examples, request.max_examples) for examples in clients.values()]
    expected, num_rounds = [], KINDS[request.rounds].num_conformance_rounds
    found = expected_rounds(rounds, state, used, plan.tensors, num_rounds)
    for number, values in enumerate(found, 1):
        expected.append(f"conformance/round_{number}.npz")
        np.savez(folder / expected[-1], **values)
    return {"rounds": num_rounds, "clients": list(clients), "expected": expected, **own_state}
