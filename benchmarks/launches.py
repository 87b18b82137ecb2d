"""How many operations a round of AgnosticFedAvg starts, one client after another and in groups.

    .venv/bin/python -m benchmarks.launches

An accelerator starts a kernel or more for each of them, and each start takes 5 to 10 microseconds.
What clients do is traced as for an accelerator, executed once here with full statistics, and
counted: one client where they come one after another, or groups of two and of four, from which
follows what a group of any size starts: some operations, as those of dropout's random numbers, are
started for each client of a group. Left out is what starts no kernel: control flow, constants,
other views of the same numbers, and what gives int32 alone, which TensorFlow computes on the host.
The comparisons of loops are on the host, too, but are counted.
"""

import argparse
import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tabulate import tabulate

from benchmarks.timing.own_side import MODELS
from benchmarks.timing.workloads import WORKLOADS, Workload, make_clients
from tff_agnostic.aggregations.aggregation import PlainSum
from tff_agnostic.algorithms import ALGORITHMS, Problem
from tff_agnostic.computations.clients import arrays_of_clients
from tff_agnostic.computations.round import Round, specs_of
from tff_agnostic.runtimes.client_work import (
    CLIENT_MODES,
    ON_ACCELERATOR,
    ClientWork,
    CompiledClientWork,
)

_SECONDS = 5e-6, 1e-5
# Operations of which an accelerator has no kernel to start: control flow, and views.
_STARTS_NOTHING = frozenset(
    {
        *("Const", "NoOp", "_Arg", "_Retval", "_Send", "_Recv", "_HostSend", "_HostRecv"),
        *("Placeholder", "PlaceholderWithDefault", "Identity", "IdentityN", "Assert"),
        *("Enter", "Exit", "Merge", "Switch", "NextIteration", "LoopCond", "If", "While"),
        *("StatelessIf", "StatelessWhile", "PartitionedCall", "StatefulPartitionedCall"),
        *("Reshape", "Shape", "ShapeN", "Size", "Rank", "ExpandDims", "Squeeze", "StopGradient"),
        *("PreventGradient", "BroadcastGradientArgs", "BroadcastArgs", "ControlTrigger"),
        *("TensorListReserve", "EmptyTensorList", "TensorListSetItem", "TensorListGetItem"),
        *("TensorListPushBack", "TensorListPopBack", "TensorListLength", "TensorListElementShape"),
    }
)


def compiled_work(workload: Workload) -> tuple[CompiledClientWork, Any]:
    """Returns what clients do in a round, and the message that they get in the first one."""
    model = dataclasses.replace(MODELS[workload.model](workload), metrics=())
    spec = ALGORITHMS["agnostic_fed_avg"]
    options = spec.options(
        client_learning_rate=workload.learning_rate,
        batch_size=workload.batch_size,
        batch_normalizer="batch",
    )
    algorithm = spec.build(Problem.of_numbered_domains(model, workload.domains), options)
    round_ = Round(algorithm, PlainSum())
    message = round_.start(round_.initialize())
    (step,) = round_.steps
    work = ClientWork(step.on_clients(), specs_of(message), algorithm.client_data_spec)
    return CompiledClientWork(work, grouping=ON_ACCELERATOR), message


def executed(traced: Any, arguments: Any) -> Counter[str]:
    """Returns how often each type of operation is executed, and starts a kernel."""
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(traced.graph.as_graph_def(), name="")
    values = [np.asarray(value) for value in tf.nest.flatten(arguments)]
    inputs = [tensor.name for tensor in traced.inputs]
    feed = dict(zip(inputs, [*values, *(v.numpy() for v in traced.captured_inputs)]))
    options = tf.compat.v1.RunOptions(trace_level=tf.compat.v1.RunOptions.FULL_TRACE)
    metadata = tf.compat.v1.RunMetadata()
    with tf.compat.v1.Session(graph=graph) as session:
        outputs = [tensor.name for tensor in traced.outputs]
        session.run(outputs, feed, options=options, run_metadata=metadata)
    found: Counter[str] = Counter()
    for device in metadata.step_stats.dev_stats:
        for node in device.node_stats:
            kind = node.timeline_label.partition(" = ")[2].partition("(")[0]
            types = {output.tensor_description.dtype for output in node.output}
            is_on_host = bool(types) and types <= {tf.int32.as_datatype_enum}
            if kind and kind not in _STARTS_NOTHING and not is_on_host:
                found[kind] += 1
    return found


def of_groups(workload: Workload, compiled: CompiledClientWork, message: Any) -> tuple[int, int]:
    """Returns what a group starts whatever its size, and besides for each of its clients."""
    traced = compiled.vectorised.traced()

    def of_group(clients: int) -> int:
        cohort = make_clients(dataclasses.replace(workload, clients=clients))
        return executed(traced, (message, arrays_of_clients(cohort))).total()

    of_two, of_four = of_group(2), of_group(4)
    for_each = (of_four - of_two) // 2
    return of_two - 2 * for_each, for_each


def table(workload: Workload, numbers: Sequence[int]) -> list[list[str]]:
    """Returns rows for numbers of clients: one after another, in today's groups, and in one."""
    compiled, message = compiled_work(workload)
    (client,) = make_clients(dataclasses.replace(workload, clients=1))
    of_one = executed(compiled.streamed.traced(), (message, (client, (), ()))).total()
    fixed, for_each = of_groups(workload, compiled, message)
    rows = []
    for num in numbers:
        cohort = make_clients(dataclasses.replace(workload, clients=num))
        found = {"streamed": num * of_one}
        for most in sorted({1, len(CLIENT_MODES["vectorised"](compiled, cohort, None)[1])}):
            name = "one group" if most == 1 else f"{most} groups"
            found[name] = most * fixed + num * for_each
        for how, launches in found.items():
            seconds = " to ".join(f"{launches * each:.3f}" for each in _SECONDS)
            rows.append([workload.name, str(num), how, f"{launches:,}", seconds])
    return rows


def main() -> None:
    """Prints a row for each workload, mode and number of clients."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workloads", nargs="+", default=["emnist_cnn", "stackoverflow_lstm"])
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 50])
    given = parser.parse_args()
    rows = []
    for name in given.workloads:
        rows += table(WORKLOADS[name], given.clients)
    headers = ["workload", "clients", "how", "launches", "at 5 to 10 us, s"]
    print(tabulate(rows, headers, "github", disable_numparse=True))


if __name__ == "__main__":
    main()
