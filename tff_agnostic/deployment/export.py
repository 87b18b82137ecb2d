"""Writes the folder of an export: plan, TFLite graph, state, manifest, task message."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Optional

import numpy as np

from plan_runner import plan_pb2
from tff_agnostic import versions
from tff_agnostic.aggregations.aggregation import Aggregation, PlainSum
from tff_agnostic.aggregations.distributed_sum import MODULAR, DeviceSum
from tff_agnostic.base.files import OWNER_ONLY, new_folder
from tff_agnostic.base.later import tf
from tff_agnostic.base.options import OptionError, Verbatim
from tff_agnostic.base.registry import Registry
from tff_agnostic.computations.algorithm import Algorithm, RunState
from tff_agnostic.data.clients import first_rows
from tff_agnostic.deployment.backends import BACKENDS, FCP
from tff_agnostic.deployment.client_graph import ExampleFormat, ExampleSource
from tff_agnostic.deployment.compiled_plan import CompiledPlan, PlanSettings
from tff_agnostic.deployment.graphs import (
    CLIENT,
    METRICS,
    SERVER,
    UPDATE,
    Leaf,
    checkpoint_bytes,
    named,
    named_values,
    write_checkpoint,
)
from tff_agnostic.deployment.metrics import EvaluationMetrics
from tff_agnostic.deployment.privacy import (
    CONFORMANCE_KEY,
    FleetNoise,
    node_noise_facts,
    noise_facts,
    privacy_facts,
    with_key,
)
from tff_agnostic.deployment.profiles import PROFILES
from tff_agnostic.deployment.rounds import (
    KINDS,
    TRAINING,
    PlannedRounds,
    expected_rounds,
    synthetic_clients,
)

if TYPE_CHECKING:
    from tff_agnostic.runtimes.tff import TffRuntime

STATE = "server_state.ckpt"
# Names of the choices of a device's graphs, mapped to whether the device gets TensorFlow's graph in
# addition to TFLite's.
CLIENT_GRAPHS: Registry[bool] = Registry("client graph", {"tflite": False, "both": True})
# File of the message that creates the task at a server.
TASK_MESSAGE = "task.json"
FORMAT = "tff_agnostic federated export"
FORMAT_VERSION = 2
_VERIFIED = ["the rounds in conformance/ were computed by TensorFlow Federated's runtime"]
_NOT_VERIFIED = "plan_runner has not verified these files in plain TensorFlow yet"
_FLOAT_BYTES = 4
_FLEX = "Flex"
# TensorFlow ops that On-Device Personalization's build of TFLite has in addition to TFLite's own:
# privacysandbox/odp-federatedcompute, python/taskbuilder/support_ops.csv at commit 015930f.
ODP_FLEX_OPS = frozenset(
    (
        "AnonymousIteratorV3",
        "AsString",
        "BatchDatasetV2",
        "BroadcastGradientArgs",
        "ConcatOffset",
        "ExternalDataset",
        "IteratorGetNextAsOptional",
        "L2Loss",
        "MakeIterator",
        "MapDataset",
        "OptionalGetValue",
        "OptionalHasValue",
        "ParseExampleV2",
        "ReduceDataset",
        "Relu6",
        "ReluGrad",
        "RestoreV2",
        "SaveSlices",
        "ShapeN",
        "Split",
        "StridedSliceGrad",
        "StringToHashBucketFast",
        "TakeDataset",
        "_TensorToHashBucketFast",
    )
)


@dataclasses.dataclass(frozen=True)
class ExportRequest:
    """A request for an export, with all of its parts.

    Attributes:
        profile: Name of the kind of plan; see `PROFILES`.
        num_domains: Number of domains, p.
        num_parameters: Number of the model's weights, |W|.
        max_clients_per_round: Maximum number of clients in a secure sum.
        column_ranges: Ranges of the made-up clients' columns; see `rounds.column_ranges`.
        aggregation: Aggregation of the clients' outputs, of the kind that the profile needs.
        max_examples: Number of a client's first examples to use; None for all.
        collection_uri: URI of the example collection on a device.
        client_graph: Name of the graphs for devices; see `CLIENT_GRAPHS`.
        restore: Called with the initial state; returns the state to start from. None to start from
            the initial state.
        about: Manifest entries about the task, the settings and the domains.
        noise: Noise of private sums; None without noise.
        rounds: Name of the kind of rounds; see `KINDS`.
        evaluation: Metrics of an evaluation; None for training.
        task_message: The message that creates the task at a server; see `backends.task_message`.
        backend: Name of the execution backend; see `BACKENDS`.
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
    restore: Optional[Callable[[RunState], RunState]] = None
    about: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    noise: Optional[FleetNoise] = None
    rounds: str = TRAINING
    evaluation: Optional[EvaluationMetrics] = None
    task_message: Optional[Mapping[str, Any]] = None
    backend: str = FCP

    def example_format(self) -> ExampleFormat:
        """Returns the format of clients' examples."""
        return ExampleFormat(self.algorithm.client_data_spec, self.num_domains)


def export(folder: Path, request: ExportRequest, runtime: TffRuntime) -> dict[str, Any]:
    """Writes an export to a new or empty folder; returns the manifest.

    Args:
        runtime: Runtime for the conformance rounds; the caller starts it.
    """
    profile, kind = PROFILES[request.profile], KINDS[request.rounds]
    _ = CLIENT_GRAPHS[request.client_graph]
    algorithm = kind.algorithm(request)
    check_single_step(algorithm)
    source = ExampleSource(request.example_format(), request.collection_uri, request.max_examples)
    with new_folder(folder, "export") as path:
        rounds = kind.rounds(runtime, request)
        settings = PlanSettings(
            source, rounds.quantities, request.max_clients_per_round, _modular(request)
        )
        plan = profile.build(rounds.round_, settings)
        lite = convert_client_graph(plan.client_graph, plan.client_phase)
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
                "beyond_odp": ops_missing_on_device(lite.flex_ops),
            },
            "tensors": describe_tensors(plan),
            "bytes_per_client_and_round": counts,
            "privacy": {
                **privacy_facts(
                    plan, algorithm, request.aggregation, request.max_clients_per_round
                ),
                **_noise_facts(request, state, plan),
            },
            **verification(request.backend),
            "conformance": conformance,
            "versions": versions(),
            "files": describe_files(path, [p for p in path.rglob("*") if p.is_file()]),
        }
        (path / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", "utf-8")
    return manifest


def check_single_step(algorithm: Algorithm) -> None:
    """Raises an `OptionError` unless an algorithm has one step per round, as a plan needs."""
    names = [step.name for step in algorithm.steps]
    if len(names) > 1:
        options = " or ".join(algorithm.single_step_options)
        advice = f"; it has one with {options}" if options else ""
        raise OptionError(
            "algorithm",
            "one step between server and devices in a round, as plans of the platform have",
            Verbatim(f"{len(names)} steps of {algorithm.name} ({', '.join(names)}){advice}"),
        )


def _write_plan(folder: Path, plan: CompiledPlan, lite: TfLiteGraph, with_graph: bool) -> int:
    """Writes the plan and its part for devices; returns the bytes of that part."""
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
    # If nodes add the noise, a key of zeros replaces the run's key.
    state = state if noise is None else with_key(state, noise.key)
    if noise is None or not noise.has_secret:
        write_checkpoint(path, named_values(state, plan.tensors.state, SERVER))
        return
    # All users may read TensorFlow's files, so write in a folder that only its owner may enter.
    with tempfile.TemporaryDirectory(prefix=".", dir=path.parent) as hidden:
        secret = Path(hidden) / path.name
        write_checkpoint(secret, named_values(state, plan.tensors.state, SERVER))
        secret.chmod(OWNER_ONLY)
        secret.replace(path)


def _modular(request: ExportRequest) -> tuple[str, ...]:
    """Returns the fields of the client output that are summed modulo 2^bits."""
    return MODULAR if isinstance(request.aggregation, DeviceSum) else ()


def _noise_facts(request: ExportRequest, state: RunState, plan: CompiledPlan) -> dict[str, Any]:
    if request.noise is None:
        return {}
    step, noise = KINDS[request.rounds].step(request), request.noise
    if noise.has_secret:
        return {"differential_privacy": noise_facts(step, state, noise)}
    return {"differential_privacy": node_noise_facts(step, state, noise, plan)}


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
    if request.noise is not None and not request.noise.has_secret:
        state = with_key(state, request.noise.key)
    elif request.noise is not None:
        state = with_key(state, CONFORMANCE_KEY)
        own_state["state"] = f"conformance/{STATE}"
        write_checkpoint(
            folder / own_state["state"], named_values(state, plan.tensors.state, SERVER)
        )
    used = [first_rows(examples, request.max_examples) for examples in clients.values()]
    expected, num_rounds = [], KINDS[request.rounds].num_conformance_rounds
    results = expected_rounds(rounds, state, used, plan.tensors, num_rounds)
    for number, values in enumerate(results, 1):
        expected.append(f"conformance/round_{number}.npz")
        np.savez(folder / expected[-1], **values)
    return {"rounds": num_rounds, "clients": list(clients), "expected": expected, **own_state}


def describe_files(folder: Path, paths: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """Returns size and SHA-256 of each file, by its path in `folder`."""
    described = {}
    for path in sorted(paths):
        content = path.read_bytes()
        described[path.relative_to(folder).as_posix()] = {
            "bytes": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
        }
    return described


def describe_tensors(plan: CompiledPlan) -> dict[str, Any]:
    """Returns name, dtype and shape of every tensor in the checkpoints of a round."""
    tensors = plan.tensors
    update = {value.name: _described(value.leaf) for value in plan.secure} or _by_name(
        tensors.update, UPDATE
    )
    return {
        "server_state": _by_name(tensors.state, SERVER),
        "client_input": _by_name(tensors.client_input, CLIENT),
        "client_output": update,
        "metrics": _by_name(tensors.metrics, METRICS),
    }


def verification(backend: str) -> Mapping[str, list[str]]:
    """Returns statements on what has been verified in an export, and what has not."""
    return {"verified": _VERIFIED, "not_verified": [_NOT_VERIFIED, *BACKENDS[backend].not_verified]}


def _by_name(structure: Iterable[Leaf], prefix: str) -> dict[str, Any]:
    structure = list(structure)
    return {spec.name: _described(leaf) for spec, leaf in zip(named(structure, prefix), structure)}


def _described(leaf: Leaf) -> dict[str, Any]:
    return {"dtype": leaf.dtype.name, "shape": leaf.shape.as_list()}


def byte_counts(
    plan: CompiledPlan, num_parameters: int, num_domains: int, plan_bytes: int
) -> dict[str, Any]:
    """Returns the numbers and bytes that a client transfers in a round, for the manifest.

    "values" counts numbers, "payload_bytes" counts their bytes without names and framing, and
    "checkpoint_bytes" counts the bytes of the file. "download_bytes" includes the plan.
    """
    tensors = plan.tensors
    up = _secure(plan) if plan.secure else _checkpoint(tensors.update, UPDATE)
    down = _checkpoint(tensors.client_input, CLIENT)
    # Ro et al. 2021, table 1: 2 c |W| + 4 c p numbers for c clients.
    paper = 2 * num_parameters + 4 * num_domains
    return {
        "plan": {"bytes": plan_bytes},
        "down": {**down, "download_bytes": plan_bytes + down["checkpoint_bytes"]},
        "up": up,
        "paper": {
            "source": "Ro et al. 2021, table 1: 2c|W| + 4cp for c clients, |W| weights, p domains",
            "num_weights": num_parameters,
            "num_domains": num_domains,
            "values": paper,
            "payload_bytes": paper * _FLOAT_BYTES,
        },
    }


def _checkpoint(structure: Sequence[Leaf], prefix: str) -> dict[str, int]:
    return {
        "values": sum(_size(leaf) for leaf in structure),
        "payload_bytes": sum(_size(leaf) * leaf.dtype.size for leaf in structure),
        "checkpoint_bytes": checkpoint_bytes(named(structure, prefix)),
    }


def _secure(plan: CompiledPlan) -> dict[str, int]:
    # Numbers are packed: each takes as many bits as the largest number below its modulus.
    widths = [(_size(value.leaf), (value.modulus - 1).bit_length()) for value in plan.secure]
    return {
        "values": sum(size for size, _ in widths),
        "payload_bytes": sum(-(-size * bits // 8) for size, bits in widths),
    }


def _size(leaf: Leaf) -> int:
    return int(leaf.shape.num_elements())


@dataclasses.dataclass(frozen=True)
class TfLiteGraph:
    """A client's graph in TFLite's format.

    Attributes:
        content: Serialised TFLite model, a flatbuffer.
        flex_ops: TensorFlow ops in the graph, which need the Flex delegate.
        oldest_runtime: First version of TFLite that has all ops of the graph except `flex_ops`.
    """

    content: bytes
    flex_ops: tuple[str, ...]
    oldest_runtime: str


def convert_client_graph(
    graph_def: tf.compat.v1.GraphDef, phase: plan_pb2.ClientPhase
) -> TfLiteGraph:
    """Converts a client's graph to TFLite; inputs, outputs and target ops keep their names.

    `ExternalDataset` becomes a Flex op, as the platform's client has a TensorFlow kernel for it.

    Raises:
        ValueError: If an op is neither TFLite's nor TensorFlow's.
    """
    # Import on demand, as these modules load TensorFlow.
    from tff_agnostic.deployment.lowering import lowered
    from tff_agnostic.models.tflite_files import (
        compacted,
        custom_op_names,
        in_fixed_order,
        oldest_runtime,
    )

    spec = phase.tensorflow_spec
    # The platform's client finds inputs by these names, and outputs in this order.
    inputs = [spec.dataset_token_tensor_name, *_names(spec.input_tensor_specs)]
    converter = tf.compat.v1.lite.TFLiteConverter(
        lowered(graph_def),
        None,
        None,
        input_arrays_with_shape=[(name, []) for name in inputs],
        output_arrays=_names(spec.output_tensor_specs),
    )
    converter.target_spec.supported_ops = [
        tf.lite.OpsSet.TFLITE_BUILTINS,
        tf.lite.OpsSet.SELECT_TF_OPS,
    ]
    # Let all TensorFlow ops become Flex ops; by default, only ops in TensorFlow's builds for
    # devices do.
    converter._experimental_allow_all_select_tf_ops = True
    # Use a private option, as no public one keeps ops without outputs, such as a save op.
    converter._control_output_arrays = list(spec.target_node_names) or None
    outputs = _names(spec.output_tensor_specs)
    content = in_fixed_order(compacted(converter.convert(), outputs))
    custom = custom_op_names(content)
    others = [name for name in custom if not name.startswith(_FLEX)]
    if others:
        raise ValueError(f"TFLite: expected builtin and Flex ops, found {', '.join(others)}")
    flex_ops = tuple(name[len(_FLEX) :] for name in custom)
    return TfLiteGraph(content, flex_ops, oldest_runtime(content))


def _names(specs: Iterable[bytes]) -> list[str]:
    from tensorflow.core.protobuf.struct_pb2 import TensorSpecProto

    return [TensorSpecProto.FromString(spec).name for spec in specs]


def ops_missing_on_device(flex_ops: Iterable[str]) -> list[str]:
    """Returns the ops that On-Device Personalization's devices lack."""
    return sorted(set(flex_ops) - ODP_FLEX_OPS)
