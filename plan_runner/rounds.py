"""Runs a plan's rounds, selects their cohorts, writes results, and replays conformance rounds."""

import dataclasses
import json
import math
import random
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, Optional, Union

import numpy as np

from plan_runner import export as exports
from plan_runner import plan_pb2
from plan_runner.client import Client
from plan_runner.daf import DafProfile
from plan_runner.errors import PlanError, counted, reason
from plan_runner.export import (
    METRICS,
    ROUNDING,
    STATE,
    Export,
    Manifest,
    conformance_client,
    read_arrays,
)
from plan_runner.graph_session import (
    check_tensors,
    checkpoint_content,
    read_checkpoint,
    write_checkpoint,
)
from plan_runner.plan_messages import parse_plan, read_plans
from plan_runner.profile import Profile
from plan_runner.secure import SecureProfile
from plan_runner.tflite import TfLiteComparison, relative_difference

_NO_CLIENTS = "-"
PROFILES: dict[str, Callable[[plan_pb2.Plan], Profile]] = {
    "daf": DafProfile,
    "secure": SecureProfile,
}
_PREFIX = "metrics/"
_MAX_NAMES = 10
# Parts of a deployment that this runner does not run, which `print_checks` lists.
_NEVER_RUN = "the platform's own client and server"
_TFLITE = "the TFLite graph that devices get"


def drawn_cohorts(
    clients: Mapping[str, Client], rounds: int, clients_per_round: Optional[int], seed: int
) -> list[list[Client]]:
    """Returns each round's clients, sorted by name: a random sample, or all clients by default."""
    names = sorted(clients)
    if clients_per_round is None:
        return [[clients[name] for name in names]] * rounds
    if clients_per_round > len(names):
        raise PlanError(
            f"--clients_per_round: expected at most {len(names)}, the number of clients, "
            f"found {clients_per_round}"
        )
    generator = random.Random(seed)
    return [
        [clients[name] for name in sorted(generator.sample(names, clients_per_round))]
        for _ in range(rounds)
    ]


def written_cohorts(path: Path, clients: Mapping[str, Client]) -> list[list[Client]]:
    """Reads each round's clients from a line of comma-separated names; "-" stands for no client."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as e:
        raise PlanError(f"{path}: expected a text file, cannot read it ({reason(e)})") from e
    if not lines:
        raise PlanError(f"{path}: expected a line per round, found none")
    return [_cohort(line, clients, f"{path}, line {n}") for n, line in enumerate(lines, 1)]


def _cohort(line: str, clients: Mapping[str, Client], where: str) -> list[Client]:
    if line.strip() == _NO_CLIENTS:
        return []
    names: Sequence[str] = [name.strip() for name in line.split(",")] if line.strip() else []
    if not names:
        raise PlanError(f"{where}: expected names of clients, found none")
    for name in names:
        if name not in clients:
            raise PlanError(f"{where}: expected names of clients, found {name!r}")
        if names.count(name) > 1:
            raise PlanError(f"{where}: expected every client once, found {name!r} again")
    return [clients[name] for name in names]


def load_profile(name: str, plan: plan_pb2.Plan) -> Profile:
    """Loads a plan that has the named profile."""
    if name not in PROFILES:
        names = ", ".join(sorted(PROFILES))
        raise PlanError(f"manifest.json: profile: expected one of {names}, found {name!r}")
    return PROFILES[name](plan)


@dataclasses.dataclass(frozen=True)
class RoundResult:
    """The results of a round.

    Attributes:
        number: Number of the round in this run, from 1.
        clients: Number of clients that took part.
        state: The server's tensors, named `server/...`.
        metrics: The round's metrics, named `metrics/...`.
        bytes_down: Size of the checkpoint for clients, in bytes.
        bytes_up: Mean size of a client's output, in bytes.
        outputs: The server's outputs that are not in its checkpoint, keyed by name.
    """

    number: int
    clients: int
    state: Mapping[str, np.ndarray]
    metrics: Mapping[str, np.ndarray]
    bytes_down: int
    bytes_up: float
    outputs: Mapping[str, np.ndarray]


def run_rounds(
    export: Export,
    cohorts: Iterable[Sequence[Client]],
    state: Optional[Path] = None,
    begins: Callable[[str], None] = lambda step: None,
    comparison: Optional[TfLiteComparison] = None,
) -> Iterator[RoundResult]:
    """Runs one round per cohort, and yields the rounds' results.

    Args:
        export: The export, whose graphs are executed.
        cohorts: Each round's clients, in the order of summation.
        state: Checkpoint of the server's initial state; None for the export's.
        begins: Called with the name of each round when the round begins.
        comparison: Runs each client again on TFLite, and compares the results.
    """
    manifest = export.manifest
    initial = export.read(exports.SERVER_STATE) if state is None else checkpoint_content(state)
    with tempfile.TemporaryDirectory(prefix="plan_runner_") as scratch:
        # Use a copy, because TensorFlow treats the name of a checkpoint as a pattern.
        current = Path(scratch) / "server_state.ckpt"
        current.write_bytes(initial)
        where = str(state or export.folder / exports.SERVER_STATE)
        check_tensors(read_checkpoint(current, where), manifest.server_state, where)
        plan = parse_plan(export.read(exports.PLAN), exports.PLAN)
        profile = load_profile(manifest.profile, plan)
        profile.client.comparison = comparison
        try:
            for number, clients in enumerate(cohorts, 1):
                _check_size(len(clients), manifest, number)
                begins(f"round {number}")
                with tempfile.TemporaryDirectory(dir=scratch) as name:
                    folder, sums, sizes = Path(name), profile.new_sums(), []
                    down = profile.begin_round(current, folder)
                    for client in clients:
                        sent = profile.play_client(client.name, client.examples(), down, folder)
                        sums.add(client.name, sent)
                        sizes.append(sent.size)
                    tensors, outputs = profile.end_round(sums.results(), folder)
                    traffic = down.stat().st_size, sum(sizes) / max(1, len(sizes))
                result = round_result(number, len(clients), tensors, outputs, *traffic, manifest)
                write_checkpoint(current, result.state)
                yield result
        finally:
            profile.close()


def round_result(
    number: int,
    clients: int,
    tensors: Mapping[str, np.ndarray],
    outputs: Mapping[str, np.ndarray],
    bytes_down: int,
    bytes_up: float,
    manifest: Manifest,
) -> RoundResult:
    """Checks a round's tensors, and returns the results of the round.

    Args:
        tensors: The server's new state and the metrics, keyed by name.
        outputs: The server's outputs that are not in its checkpoint, keyed by name.
    """
    where = f"round {number}: the new state"
    check_tensors(tensors, {**manifest.server_state, **manifest.metrics}, where)
    return RoundResult(
        number,
        clients,
        {name: tensors[name] for name in manifest.server_state},
        {name: tensors[name] for name in manifest.metrics},
        bytes_down,
        bytes_up,
        check_metrics(tensors, outputs, manifest.metrics, where),
    )


def _check_size(clients: int, manifest: Manifest, number: int) -> None:
    if not clients and not manifest.has_noise:
        # With noise, a round without clients is valid, and must look like other rounds.
        raise PlanError(f"round {number}: expected at least 1 client, found 0")
    most = manifest.max_clients
    if most is not None and clients > most:
        raise PlanError(
            f"round {number}: expected at most {counted(most, 'client')}, the limit of the plan's "
            f"secure sums, found {clients}; export with a larger --max_clients_per_round"
        )


def write_results(folder: Path, rows: Sequence[str], state: Mapping[str, np.ndarray]) -> None:
    """Writes all rounds' lines of `metrics.jsonl`, and the last state, to a new folder."""
    folder.mkdir(parents=True)
    (folder / METRICS).write_text("".join(f"{row}\n" for row in rows))
    write_checkpoint(folder / STATE, state)


def metrics_row(result: RoundResult) -> str:
    """Returns a round's line of `metrics.jsonl`."""
    return json.dumps(
        {
            "round": result.number,
            "clients": result.clients,
            "metrics": {
                name[len(_PREFIX) :] if name.startswith(_PREFIX) else name: _plain(value.tolist())
                for name, value in sorted({**result.metrics, **result.outputs}.items())
            },
            "bytes_down": result.bytes_down,
            "bytes_up": result.bytes_up,
        },
        allow_nan=False,
    )


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    # JSON has no NaN and no infinities.
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def check_metrics(
    tensors: Mapping[str, np.ndarray],
    outputs: Mapping[str, np.ndarray],
    metrics: Iterable[str],
    where: str,
) -> dict[str, np.ndarray]:
    """Checks that outputs equal the metrics in the server's checkpoint.

    Args:
        tensors: Tensors of the server's checkpoint.
        outputs: The server's outputs. A metric's name is NAME, or its elements' names are
            NAME/INDEX.
        metrics: Names of the metrics.
        where: Name of the round, for error messages.

    Returns:
        The outputs that are not metrics, such as values of all domains.
    """
    others = dict(outputs)
    for name in metrics:
        values = tensors[name]
        elements = {
            "/".join(map(str, (name, *index))): values[index] for index in np.ndindex(values.shape)
        }
        num_outputs = len(elements.keys() & others.keys())
        if 0 < num_outputs < len(elements):
            raise PlanError(
                f"{where}: {name}: expected {len(elements)} scalars, one for each element, found "
                f"{num_outputs}"
            )
        for part, expected in {**elements, name: values}.items():
            value = others.pop(part, None)
            if value is not None and not _same_bits(expected, value):
                raise PlanError(
                    f"{where}: {part}: expected the same value in the checkpoint and the output, "
                    "found different values"
                )
    return others


@dataclasses.dataclass(frozen=True)
class RoundCheck:
    """Comparison of a conformance round's tensors with the expected tensors.

    Attributes:
        number: Number of the round.
        tensors: Number of tensors that are expected or computed.
        differing: `relative_difference` of each tensor that is not bit-identical; infinite if a
            tensor is missing, unexpected, or not of floats.
    """

    number: int
    tensors: int
    differing: Mapping[str, float]

    def failing(self, tolerance: float) -> list[str]:
        """Returns the tensors that differ by more than `tolerance`; 0 requires identical bits."""
        return [
            name
            for name, difference in self.differing.items()
            if tolerance == 0 or math.isinf(difference) or difference > tolerance
        ]


def conformance_clients(export: Export) -> list[Client]:
    """Returns the clients of the conformance rounds, in the order of summation."""
    manifest, most = export.manifest, export.limits.max_records
    return [
        Client(name, export.path(conformance_client(name)), manifest.features, most)
        for name in manifest.conformance.clients
    ]


def verify(
    export: Export,
    begins: Callable[[str], None] = lambda step: None,
    comparison: Optional[TfLiteComparison] = None,
) -> Iterator[RoundCheck]:
    """Runs the conformance rounds, and yields a check of each. For arguments see `run_rounds`."""
    clients = conformance_clients(export)
    expected = export.manifest.conformance.expected
    own_state = export.manifest.conformance.state
    state = None if own_state is None else export.path(own_state)
    cohorts = [clients] * len(expected)
    for result, name in zip(run_rounds(export, cohorts, state, begins, comparison), expected):
        wanted = read_arrays(export.path(name), export.limits.max_unpacked_mb)
        tensors = {**result.state, **result.metrics}
        names = sorted({*wanted, *tensors})
        differing = {}
        for key in names:
            if key not in wanted or key not in tensors:
                differing[key] = math.inf
            elif not _same_bits(wanted[key], tensors[key]):
                # Only floats may differ by rounding.
                is_rounded = wanted[key].dtype.kind in "fV"
                differing[key] = (
                    relative_difference(wanted[key], tensors[key]) if is_rounded else math.inf
                )
        yield RoundCheck(result.number, len(names), differing)


def _same_bits(expected: np.ndarray, actual: np.ndarray) -> bool:
    if actual.dtype.kind == "O":
        # TensorFlow returns strings as objects.
        return expected.shape == actual.shape and bool(np.all(expected.astype("S") == actual))
    return (
        expected.dtype == actual.dtype
        and expected.shape == actual.shape
        and expected.tobytes() == actual.tobytes()
    )


def round_line(result: RoundResult) -> str:
    """Returns a summary of a round in one line, with the metrics that are scalars."""
    metrics = [
        f", {name} {value[()]:.6g}"
        for name, value in sorted(result.metrics.items())
        if value.shape == () and value.dtype.kind in "iuf"
    ]
    return (
        f"round {result.number}: {counted(result.clients, 'client')}, {result.bytes_down:,} "
        f"bytes down, {result.bytes_up:,.0f} up{''.join(metrics)}"
    )


def print_checks(
    export: Export,
    checks: Iterable[RoundCheck],
    tolerance: float,
    print_line: Callable[[str], None],
    comparison: Union[TfLiteComparison, str],
) -> bool:
    """Prints the checks of the conformance rounds; returns whether the export is verified.

    Args:
        checks: The result of `verify`.
        tolerance: Maximum relative difference of floats.
        print_line: Called with each line of the report; the last line is the verdict.
        comparison: The comparison with TFLite, or the reason why there is none.
    """
    rounds, tensors, rounded, failing, furthest = 0, 0, 0, 0, 0.0
    print_line(f"{'round':>5}  {'tensors':>7}  {'bit for bit':>11}  largest difference")
    for check in checks:
        largest = max(check.differing.values(), default=0.0)
        equal = check.tensors - len(check.differing)
        print_line(f"{check.number:>5}  {check.tensors:>7}  {equal:>11}  {largest:g}")
        names = check.failing(tolerance)
        for name in names[:_MAX_NAMES]:
            print_line(f"       {name}: {check.differing[name]:g}")
        if len(names) > _MAX_NAMES:
            print_line(f"       and {len(names) - _MAX_NAMES} more")
        rounds, tensors, failing = rounds + 1, tensors + check.tensors, failing + len(names)
        rounded, furthest = rounded + len(check.differing), max(furthest, largest)
    plan, device = read_plans(export)
    num_rounds, as_lite, not_run = counted(rounds, "round"), "", [_NEVER_RUN]
    if plan.phase[0].HasField("server_phase"):
        not_run.insert(0, "a secure aggregation protocol")
    problem = _device_problem(plan, device)
    if isinstance(comparison, str):
        not_run.insert(0, f"{_TFLITE} ({comparison})")
    else:
        difference = comparison.largest
        as_lite = (
            f"; {_TFLITE}: {counted(comparison.clients, 'client')} up to rounding, {difference:g}"
        )
        if not problem and difference > max(tolerance, ROUNDING):
            problem = f"{_TFLITE} sends other numbers, by {difference:g} of the largest"
    if failing:
        print_line(f"NOT verified: {failing} of {tensors} tensors of {num_rounds} differ")
    elif problem:
        print_line(f"NOT verified: {exports.CLIENT_ONLY_PLAN}: {problem}")
    else:
        exact = "" if rounded else " bit for bit"
        rounding = (
            f", {tensors - rounded} bit for bit and {rounded} up to rounding: {furthest:g} of "
            "their largest number at most"
        )
        print_line(
            f"verified{exact}: {num_rounds}, {tensors} tensors{rounding if rounded else ''}"
            f"{as_lite}; not run: {', '.join(not_run)}"
        )
    return not problem and not failing


def _device_problem(plan: plan_pb2.Plan, device: plan_pb2.ClientOnlyPlan) -> str:
    """Returns the first difference between the client-only plan and the plan, or ""."""
    lite = plan.client_tflite_graph_bytes
    if not (device.graph or device.tflite_graph):
        return "expected a graph, found none"
    # One graph may be absent, as a device runs either TensorFlow's or TFLite's.
    if device.graph and device.graph != plan.client_graph_bytes.value:
        return "expected the plan's graph, found another one"
    if device.tflite_graph and lite and device.tflite_graph != lite:
        return "expected the plan's TFLite graph, found another one"
    if device.HasField("phase") and device.phase != plan.phase[0].client_phase:
        return "expected the plan's phase, found another one"
    return ""
