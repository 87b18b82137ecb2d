"""A sequence of rounds: their cohorts, the kinds of plans, and the files of each round.

An export's conformance rounds are replayed here, too, with a report of which results match.
"""

import dataclasses
import itertools
import json
import math
import random
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional

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
    TensorType,
    conformance_client,
    read_arrays,
)
from plan_runner.graph_session import check_tensors, read_checkpoint, type_of, write_checkpoint
from plan_runner.plan_messages import parse_plan, read_plans
from plan_runner.profile import Profile, RoundOutcome
from plan_runner.secure import SecureProfile
from plan_runner.tflite import TfLiteComparison

_NOBODY = "-"
PROFILES: dict[str, Callable[[plan_pb2.Plan], Profile]] = {
    "daf": DafProfile,
    "secure": SecureProfile,
}
_PREFIX = "metrics/"
_SMALLEST_SCALE = 0.01
_MOST_NAMES = 10
# Said of every plan that is verified: this runner has neither.
_NEVER_RUN = "the platform's own client and server"
_TFLITE = "the TFLite graph that devices get"
_PROTOCOL = "a secure aggregation protocol"


def drawn_cohorts(
    clients: Mapping[str, Client], rounds: int, clients_per_round: Optional[int], seed: int
) -> list[list[Client]]:
    """Returns the clients of every round, sorted by name: all of them, or so many by chance."""
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
    """Reads cohorts from a file: a line per round, of names with commas between them, or "-".

    A round of "-" is one without clients.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as e:
        raise PlanError(f"{path}: expected a text file, cannot read it ({reason(e)})") from e
    if not lines:
        raise PlanError(f"{path}: expected a line per round, found none")
    return [_cohort(line, clients, f"{path}, line {n}") for n, line in enumerate(lines, 1)]


def _cohort(line: str, clients: Mapping[str, Client], where: str) -> list[Client]:
    if line.strip() == _NOBODY:
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
    """Returns what plays a plan of the profile of that name."""
    if name not in PROFILES:
        known = ", ".join(sorted(PROFILES))
        raise PlanError(f"manifest.json: profile: expected one of {known}, found {name!r}")
    return PROFILES[name](plan)


@dataclasses.dataclass(frozen=True)
class RoundResult:
    """The report of a round.

    Attributes:
        number: Number of the round in this run, from 1.
        clients: How many took part.
        state: The server's tensors, named `server/...`.
        metrics: The round's, named `metrics/...`.
        bytes_down: The size of the checkpoint that every client got.
        bytes_up: The mean size of what a client sent.
        outputs: The server's further outputs, by name.
    """

    number: int
    clients: int
    state: Mapping[str, np.ndarray]
    metrics: Mapping[str, np.ndarray]
    bytes_down: int
    bytes_up: float
    outputs: Mapping[str, np.ndarray]

    @property
    def tensors(self) -> dict[str, np.ndarray]:
        """State and metrics."""
        return {**self.state, **self.metrics}


def run_rounds(
    export: Export,
    cohorts: Iterable[Sequence[Client]],
    state: Optional[Path] = None,
    begins: Callable[[str], None] = lambda step: None,
    beside: Optional[TfLiteComparison] = None,
) -> Iterator[RoundResult]:
    """Plays a round per cohort; yields what each has led to.

    Args:
        export: The export, whose graphs are code.
        cohorts: The clients of every round, in the order in which they are summed.
        state: A checkpoint of the server's state to begin with, instead of the export's own.
        begins: Called with the name of each round when it begins.
        beside: A second runner of every client, whose results are compared.
    """
    manifest = export.manifest
    initial = export.read(exports.SERVER_STATE) if state is None else _content(state)
    with tempfile.TemporaryDirectory(prefix="plan_runner_") as scratch:
        # A copy: TensorFlow takes the name of a checkpoint for a pattern.
        current = Path(scratch) / "server_state.ckpt"
        current.write_bytes(initial)
        where = str(state or export.folder / exports.SERVER_STATE)
        check_tensors(read_checkpoint(current, where), manifest.server_state, where)
        plan = parse_plan(export.read(exports.PLAN), exports.PLAN)
        profile = load_profile(manifest.profile, plan)
        profile.client.beside = beside
        try:
            for number, clients in enumerate(cohorts, 1):
                _check_size(len(clients), manifest, number)
                begins(f"round {number}")
                with tempfile.TemporaryDirectory(dir=scratch) as folder:
                    outcome = profile.run_round(current, clients, Path(folder))
                result = round_result(number, len(clients), outcome, manifest)
                write_checkpoint(current, result.state)
                yield result
        finally:
            profile.close()


def round_result(
    number: int, clients: int, outcome: RoundOutcome, manifest: Manifest
) -> RoundResult:
    """Returns what a round has led to, after a check of its tensors.

    Metrics are no part of the state that the next round begins with.

    Args:
        number: Number of the round.
        clients: How many took part.
    """
    place, metrics = f"round {number}: the new state", manifest.metrics
    tensors = with_metrics(outcome.tensors, outcome.outputs, metrics, place)
    check_tensors(tensors, {**manifest.server_state, **metrics}, place)
    return RoundResult(
        number,
        clients,
        {name: tensors[name] for name in manifest.server_state},
        {name: tensors[name] for name in metrics},
        outcome.bytes_down,
        outcome.bytes_up,
        other_outputs(outcome.outputs, metrics),
    )


def _check_size(clients: int, manifest: Manifest, number: int) -> None:
    if not clients and not manifest.has_noise:
        # With noise a round without clients is valid too, and must look like the others.
        raise PlanError(f"round {number}: expected at least 1 client, found 0")
    most = manifest.max_clients
    if most is not None and clients > most:
        raise PlanError(
            f"round {number}: expected at most {counted(most, 'client')}, for whom secure sums "
            f"have room, found {clients}; export with a larger --max_clients_per_round"
        )


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as e:
        raise PlanError(f"{path}: expected a checkpoint, cannot read it ({e.strerror})") from e


def write_results(folder: Path, rows: Sequence[str], state: Mapping[str, np.ndarray]) -> None:
    """Writes the rows of the rounds so far and the state after the last one to a new folder."""
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


def with_metrics(
    tensors: Mapping[str, np.ndarray],
    outputs: Mapping[str, np.ndarray],
    expected: Mapping[str, TensorType],
    where: str,
) -> dict[str, np.ndarray]:
    """Returns the tensors of a checkpoint and the metrics among the outputs of a round.

    Args:
        tensors: The server's checkpoint; earlier plans have their metrics only there.
        outputs: The server's outputs, by name: a metric, or each of its elements as NAME/INDEX.
        where: The round, for messages.
    """
    together = dict(tensors)
    for name, kind in expected.items():
        found = _metric(name, kind, outputs, where)
        if found is None:
            continue
        written = together.setdefault(name, found)
        if type_of(written) != type_of(found) or written.tobytes() != found.tobytes():
            raise PlanError(
                f"{where}: {name}: expected the same value in the checkpoint and the output, found "
                "two"
            )
    return together


def other_outputs(
    outputs: Mapping[str, np.ndarray], metrics: Mapping[str, TensorType]
) -> dict[str, np.ndarray]:
    """Returns the outputs that are no part of one of the metrics, such as values of all domains."""
    parts = {part for name, kind in metrics.items() for part in (name, *_elements(name, kind))}
    return {name: value for name, value in outputs.items() if name not in parts}


def _metric(
    name: str, kind: TensorType, outputs: Mapping[str, np.ndarray], where: str
) -> Optional[np.ndarray]:
    if name in outputs:
        return outputs[name]
    parts = _elements(name, kind)
    found = [outputs[part] for part in parts if part in outputs]
    if not found:
        return None
    if len(found) != len(parts) or any(value.shape for value in found):
        raise PlanError(
            f"{where}: {name}: expected {len(parts)} scalars, one for each element, found "
            f"{len(found)} outputs"
        )
    return np.array(found, found[0].dtype).reshape([size or 0 for size in kind.shape])


def _elements(name: str, kind: TensorType) -> list[str]:
    sizes = [size or 0 for size in kind.shape]
    return ["/".join(map(str, (name, *at))) for at in itertools.product(*map(range, sizes))]


@dataclasses.dataclass(frozen=True)
class RoundCheck:
    """How a round's tensors compare with those expected.

    Attributes:
        number: The round's.
        tensors: How many are expected or were found.
        differing: The difference of every tensor that differs by a bit; see `relative_difference`.
            Infinite if it is missing or not expected.
    """

    number: int
    tensors: int
    differing: Mapping[str, float]

    def failing(self, tolerance: float) -> list[str]:
        """Returns the tensors that differ by more than `tolerance`, or by a bit if that is 0.

        What cannot be compared differs by more than any.
        """
        return [
            name
            for name, difference in self.differing.items()
            if tolerance == 0 or math.isinf(difference) or not difference <= tolerance
        ]


def conformance_clients(export: Export) -> list[Client]:
    """Returns the clients of the conformance rounds, in their order."""
    manifest, most = export.manifest, export.limits.max_records
    return [
        Client(name, export.path(conformance_client(name)), manifest.features, most)
        for name in manifest.conformance.clients
    ]


def verify(
    export: Export,
    begins: Callable[[str], None] = lambda step: None,
    beside: Optional[TfLiteComparison] = None,
) -> Iterator[RoundCheck]:
    """Plays the conformance rounds; yields how each compares.

    Args:
        export: The export, whose graphs are code.
        begins: Called with the name of each round when it begins.
        beside: A second runner of every client, whose results are compared.
    """
    clients = conformance_clients(export)
    expected = export.manifest.conformance.expected
    own_state = export.manifest.conformance.state
    state = None if own_state is None else export.path(own_state)
    cohorts = [clients] * len(expected)
    for result, name in zip(run_rounds(export, cohorts, state, begins, beside), expected):
        wanted = read_arrays(export.path(name), export.limits.max_unpacked_mb)
        found = result.tensors
        differing = {}
        for key in sorted({*wanted, *found}):
            if key not in wanted or key not in found:
                differing[key] = math.inf
            elif not _same_bits(wanted[key], found[key]):
                differing[key] = relative_difference(wanted[key], found[key])
        yield RoundCheck(result.number, len({*wanted, *found}), differing)


def relative_difference(expected: np.ndarray, found: np.ndarray) -> float:
    """Returns the largest difference of two arrays of floats, as a share of the largest number.

    The share is of 0.01 where no number expected is larger: what should be 0 is so up to rounding.
    Equal infinities differ by 0, as two NaNs do, and a NaN and a number by infinity. Arrays of
    another kind that differ, or that have other dtypes or shapes, differ by infinity.
    """
    if expected.dtype != found.dtype or expected.shape != found.shape:
        return math.inf
    if expected.dtype.kind not in "fV":
        return math.inf
    a, b = expected.astype(np.float64), found.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore", over="ignore"):
        differences = np.where(same, 0.0, np.abs(a - b))
    difference = np.max(np.where(np.isnan(differences), math.inf, differences), initial=0.0)
    largest = np.max(np.abs(a), initial=_SMALLEST_SCALE, where=np.isfinite(a))
    return float(difference / largest)


def _same_bits(expected: np.ndarray, found: np.ndarray) -> bool:
    if found.dtype.kind == "O":  # How strings come out of TensorFlow.
        found = found.astype("S")
        expected = expected.astype("S")
        return expected.shape == found.shape and bool(np.all(expected == found))
    return (
        expected.dtype == found.dtype
        and expected.shape == found.shape
        and expected.tobytes() == found.tobytes()
    )


class OnDevices(NamedTuple):
    """How a verification goes with the TFLite graph that devices get.

    Attributes:
        beside: Its runner; None if it is not run.
        problem: Why it is not.
    """

    beside: Optional[TfLiteComparison]
    problem: str = ""


def round_line(result: RoundResult) -> str:
    """Returns a line about a round: its size, and the metrics that are single numbers."""
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
    tell: Callable[[str], None],
    devices: OnDevices,
) -> bool:
    """Prints how the conformance rounds compare; returns whether all of them match.

    Args:
        checks: The result of `verify`.
        tolerance: The largest difference of floats that passes.
        tell: Called with one line after the other, the verdict last.
        devices: Has compared the clients when all rounds are checked.
    """
    rounds, tensors, rounded, failing, furthest = 0, 0, 0, 0, 0.0
    tell(f"{'round':>5}  {'tensors':>7}  {'bit for bit':>11}  largest difference")
    for check in checks:
        largest = max(check.differing.values(), default=0.0)
        tell(
            f"{check.number:>5}  {check.tensors:>7}  {check.tensors - len(check.differing):>11}  "
            f"{largest:g}"
        )
        names = check.failing(tolerance)
        for name in names[:_MOST_NAMES]:
            tell(f"       {name}: {check.differing[name]:g}")
        if len(names) > _MOST_NAMES:
            tell(f"       and {len(names) - _MOST_NAMES} more")
        rounds, tensors, failing = rounds + 1, tensors + check.tensors, failing + len(names)
        rounded, furthest = rounded + len(check.differing), max(furthest, largest)
    plan, device = read_plans(export)
    another = _another_client(plan, device)
    of_rounds = counted(rounds, "round")
    not_run = f"not run: {', '.join(_not_run(plan, device, devices))}"
    lite, as_lite = devices.beside, ""
    if lite is not None:
        as_lite = f"; {_TFLITE}: {counted(lite.clients, 'client')} up to rounding, {lite.largest:g}"
    if failing:
        tell(f"NOT verified: {failing} of {tensors} tensors of {of_rounds} differ")
    elif another:
        tell(f"NOT verified: {exports.CLIENT_ONLY_PLAN}: {another}")
    elif lite is not None and lite.largest > max(tolerance, ROUNDING):
        another = f"{_TFLITE} sends other numbers, by {lite.largest:g} of the largest"
        tell(f"NOT verified: {exports.CLIENT_ONLY_PLAN}: {another}")
    elif rounded:
        tell(
            f"verified: {of_rounds}, {tensors} tensors, {tensors - rounded} bit for bit "
            f"and {rounded} up to rounding: {furthest:g} of their largest number at most"
            f"{as_lite}; {not_run}"
        )
    else:
        tell(f"verified bit for bit: {of_rounds}, {tensors} tensors{as_lite}; {not_run}")
    return not another and not failing


def _not_run(plan: plan_pb2.Plan, device: plan_pb2.ClientOnlyPlan, devices: OnDevices) -> list[str]:
    names = []
    if devices.beside is None and (device.tflite_graph or plan.client_tflite_graph_bytes):
        names.append(f"{_TFLITE} ({devices.problem})")
    if plan.phase[0].HasField("server_phase"):
        names.append(_PROTOCOL)
    return [*names, _NEVER_RUN]


def _another_client(plan: plan_pb2.Plan, device: plan_pb2.ClientOnlyPlan) -> str:
    """Returns in what the client for devices is another one than the plan's, "" if in nothing."""
    graphs = device.graph or device.tflite_graph
    if not graphs:
        return "expected a graph, found none"
    # Either graph may be left out for devices that run the other one.
    if device.graph and device.graph != plan.client_graph_bytes.value:
        return "expected the graph that was run, found another one"
    lite = plan.client_tflite_graph_bytes
    if device.tflite_graph and lite and device.tflite_graph != lite:
        return "expected the plan's TFLite graph, found another one"
    if device.HasField("phase") and device.phase != plan.phase[0].client_phase:
        return "expected the phase that was run, found another one"
    return ""
