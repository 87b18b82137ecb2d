"""What is told of rounds, and the verdict of a verification."""

from collections.abc import Iterable
from typing import Callable, NamedTuple, Optional

from plan_runner import plan_pb2
from plan_runner.clients.tflite_beside import TfLiteBeside
from plan_runner.command.request import ROUNDING
from plan_runner.files import export as exports
from plan_runner.files.export import Export
from plan_runner.files.parsing import parse
from plan_runner.playing.rounds import RoundResult
from plan_runner.playing.verify import RoundCheck

_MOST_NAMES = 10
# Said of every plan that is verified: this runner has neither.
_NEVER_RUN = "the platform's own client and server"
_TFLITE = "the TFLite graph that devices get"
_PROTOCOL = "a secure aggregation protocol"


class OnDevices(NamedTuple):
    """How a verification goes with the TFLite graph that devices get.

    Attributes:
        beside: What runs it; None if it is not run.
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
        f"round {result.number}: {result.clients} clients, {result.bytes_down:,} bytes down, "
        f"{result.bytes_up:,.0f} up{''.join(metrics)}"
    )


def tell_checks(
    export: Export,
    checks: Iterable[RoundCheck],
    tolerance: float,
    tell: Callable[[str], None],
    devices: OnDevices,
) -> bool:
    """Tells how the conformance rounds compare; returns whether all is as it has to be.

    Args:
        export: The export.
        checks: What `verify` finds.
        tolerance: The largest difference of floats that passes.
        tell: Is given one line after the other, the verdict last.
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
    of_rounds = f"{rounds} round{'s' * (rounds != 1)}"
    not_run = f"not run: {', '.join(_not_run(export, devices))}"
    lite, as_lite = devices.beside, ""
    if lite is not None:
        as_lite = f"; {_TFLITE}: {lite.clients} clients up to rounding, {lite.largest:g}"
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
