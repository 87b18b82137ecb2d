"""Replays an export's conformance rounds, and reports which results match."""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Callable, NamedTuple, Optional

import numpy as np

from plan_runner import export as exports
from plan_runner import plan_pb2
from plan_runner.client import Client
from plan_runner.errors import counted
from plan_runner.export import DEFAULT_LIMITS, ROUNDING, Export, conformance_client, read_arrays
from plan_runner.plan_messages import parse
from plan_runner.rounds import RoundResult, run_rounds
from plan_runner.tflite import TfLiteBeside

_SMALLEST_SCALE = 0.01
_MOST_NAMES = 10
# Said of every plan that is verified: this runner has neither.
_NEVER_RUN = "the platform's own client and server"
_TFLITE = "the TFLite graph that devices get"
_PROTOCOL = "a secure aggregation protocol"


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
    beside: Optional[TfLiteBeside] = None,
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


def read_tensors(path: Path) -> dict[str, np.ndarray]:
    """Returns the arrays of an .npz file; see `export.read_arrays`."""
    return read_arrays(path, DEFAULT_LIMITS.max_unpacked_mb)


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

    beside: Optional[TfLiteBeside]
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


def tell_checks(
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
    another = _another_client(export)
    of_rounds = counted(rounds, "round")
    not_run = f"not run: {', '.join(_not_run(export, devices))}"
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


def _not_run(export: Export, devices: OnDevices) -> list[str]:
    plan, device = _plans(export)
    names = []
    if devices.beside is None and (device.tflite_graph or plan.client_tflite_graph_bytes):
        names.append(f"{_TFLITE} ({devices.problem})")
    if plan.phase[0].HasField("server_phase"):
        names.append(_PROTOCOL)
    return [*names, _NEVER_RUN]


def _another_client(export: Export) -> str:
    """Returns in what the client for devices is another one than the plan's, "" if in nothing."""
    plan, device = _plans(export)
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


def _plans(export: Export) -> tuple[plan_pb2.Plan, plan_pb2.ClientOnlyPlan]:
    name = exports.CLIENT_ONLY_PLAN
    return (
        parse(plan_pb2.Plan, export.read(exports.PLAN), exports.PLAN),
        parse(plan_pb2.ClientOnlyPlan, export.read(name), name),
    )
