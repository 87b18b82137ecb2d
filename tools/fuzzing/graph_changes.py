"""Random changes of a plan's operations, inputs, attributes, functions, constants and messages."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import op_def_pb2
from tensorflow.python.client import pywrap_tf_session

from fuzzing.draws import Draws
from plan_runner import plan_pb2

# Operations that write or read files, or connect to addresses, if strings name these.
_REACHING = (
    *("WriteFile", "ReadFile", "SaveV2", "SaveSlices", "Save", "MatchingFiles", "PrintV2"),
    *("DebugIdentityV2", "DebugIdentity", "RestoreV2", "TFRecordDataset", "TextLineDataset"),
    *("DataServiceDatasetV2", "ShardedFilename", "MergeV2Checkpoints", "ImmutableConst"),
    *("CreateSummaryFileWriter", "LookupTableExportV2", "FixedLengthRecordReaderV2", "PyFunc"),
)


class GraphChanges:
    """Random changes of a plan.

    Args:
        draws: Generator of random values.
        checked: Whether graphs will be checked. If not, an operation on files or addresses is
            always added.
    """

    def __init__(self, draws: Draws, checked: bool) -> None:
        self._draws, self._rng, self._checked = draws, draws.rng, checked
        operations = pywrap_tf_session.TF_GetBuffer(pywrap_tf_session.TF_GetAllOpList())
        self._ops = op_def_pb2.OpList.FromString(operations).op
        self._named = {op.name: op for op in self._ops}

    def change_plan(self, folder: Path) -> None:
        """Changes an export's plan.pb."""
        path = folder / "plan.pb"
        plan = plan_pb2.Plan.FromString(path.read_bytes())
        packed = [
            any_
            for any_ in (
                *(plan.client_graph_bytes,) * 3,
                plan.server_graph_prepare_bytes,
                plan.server_graph_result_bytes,
                plan.server_graph_bytes,
            )
            if any_.value
        ]
        names: list[str] = []
        for chosen in self._rng.sample(packed, self._rng.choice([1, 1, 1, 2])):
            graph = tf.compat.v1.GraphDef.FromString(chosen.value)
            if not self._checked:
                self._reach(graph, graph.node, None)
            for _ in range(self._rng.choice([0, 1, 1, 2, 4]) + self._checked):
                self._change_graph(graph)
            names += [node.name for node in graph.node]
            chosen.value = graph.SerializeToString()
        if self._rng.random() < 0.5:
            self._change_message(plan, names)
        path.write_bytes(plan.SerializeToString())

    def _change_graph(self, graph: Any) -> None:
        bodies = [graph.node, *(function.node_def for function in graph.library.function)]
        nodes = self._rng.choice(bodies) if self._rng.random() < 0.3 else graph.node
        if not nodes:
            return
        node = self._rng.choice(nodes)
        changes: list[Callable[[Any, Any, Any], None]] = [
            self._set_text,
            self._rewire,
            self._replace,
            self._add,
            self._rename,
            self._change_attribute,
            self._change_attribute,
            self._change_function,
            self._set_version,
            self._get_in_between,
            self._get_in_between,
            self._place,
            self._reach,
            self._reach,
        ]
        self._rng.choice(changes)(graph, nodes, node)

    def _set_text(self, graph: Any, nodes: Any, node: Any) -> None:
        constants = [n for n in nodes if n.op == "Const" and n.attr["value"].tensor.string_val]
        if constants:
            tensor = self._rng.choice(constants).attr["value"].tensor
            at = self._rng.randrange(len(tensor.string_val))
            tensor.string_val[at] = self._draws.text()

    def _rewire(self, graph: Any, nodes: Any, node: Any) -> None:
        if node.input:
            at = self._rng.randrange(len(node.input))
            node.input[at] = self._other_input(nodes)

    def _other_input(self, nodes: Any) -> str:
        name = self._rng.choice(nodes).name
        return self._rng.choice([name, name, f"{name}:1", f"^{name}", f"{name}:0"])

    def _replace(self, graph: Any, nodes: Any, node: Any) -> None:
        """Replaces a node's operation, often by an operation on files."""
        telling = [op for op in self._ops if re.search("File|Save|Restore|Debug|Py|Rpc", op.name)]
        self._become(nodes, node, self._rng.choice(self._rng.choice([self._ops, telling])))

    def _become(self, nodes: Any, node: Any, definition: Any) -> None:
        node.op = definition.name
        kept = list(node.input)[: len(definition.input_arg)]
        while len(kept) < len(definition.input_arg):
            kept.append(self._other_input(nodes).removeprefix("^"))
        del node.input[:]
        node.input.extend(kept)
        for attribute in definition.attr:
            if attribute.name not in node.attr:
                self._fill(node, attribute)

    def _fill(self, node: Any, attribute: Any) -> None:
        value = node.attr[attribute.name]
        if attribute.HasField("default_value") and self._rng.random() < 0.7:
            value.CopyFrom(attribute.default_value)
        elif attribute.type == "string":
            value.s = self._draws.text()
        elif attribute.type == "int":
            value.i = self._draws.number()
        elif attribute.type == "bool":
            value.b = self._rng.random() < 0.5
        elif attribute.type == "type":
            value.type = self._rng.choice([1, 1, 3, 7, 9, 10, 20, 21, self._rng.randrange(30)])
        elif attribute.type == "list(type)":
            value.list.type.extend(self._rng.choices([1, 3, 7, 9], k=self._rng.randrange(3)))
        elif attribute.type == "list(string)":
            value.list.s.append(self._draws.text())
        elif attribute.type in ("shape", "list(shape)"):
            shape = value.shape if attribute.type == "shape" else value.list.shape.add()
            shape.dim.add(size=self._draws.number())
        else:
            value.list.SetInParent()

    def _add(self, graph: Any, nodes: Any, node: Any) -> None:
        """Adds a copy of a node, perhaps with another operation; another node waits for it."""
        added = nodes.add()
        added.CopyFrom(node)
        added.name = f"added_{len(nodes)}"
        if self._rng.random() < 0.5:
            self._replace(graph, nodes, added)
        waiting = [n for n in nodes if "save" in n.name.lower() or n.op == "SaveSlices"] or nodes
        self._rng.choice(waiting).input.append(f"^{added.name}")

    def _reach(self, graph: Any, nodes: Any, node: Any) -> None:
        """Adds a valid operation on files or addresses, and makes another node wait for it."""
        definition = self._named[self._rng.choice(_REACHING)]
        added = graph.node.add(name=f"reach_{len(graph.node)}", op=definition.name)
        for number, argument in enumerate(definition.input_arg):
            constant = graph.node.add(name=f"{added.name}_{number}", op="Const")
            value: Any = 1.0
            if argument.type == 7:
                value = self._draws.text()
            elif argument.type in (3, 9):
                value = 1
            if argument.number_attr or argument.name in ("tensor_names", "shape_and_slices"):
                value = [value]
            dtype = argument.type if argument.type in (3, 7, 9) else 1
            constant.attr["dtype"].type = dtype
            tensor = tf.make_tensor_proto(value, dtype)
            constant.attr["value"].tensor.CopyFrom(tensor)
            added.input.append(constant.name)
        for attribute in definition.attr:
            if attribute.type == "type":
                added.attr[attribute.name].type = 1
            elif attribute.type == "list(type)":
                added.attr[attribute.name].list.type.append(1)
            elif attribute.type == "list(string)":
                added.attr[attribute.name].list.s.append(self._draws.text())
            else:
                self._fill(added, attribute)
        takers = [n for n in graph.node if n.op in ("SaveSlices", "RestoreV2")]
        self._rng.choice(takers or graph.node).input.append(f"^{added.name}")

    def _rename(self, graph: Any, nodes: Any, node: Any) -> None:
        names = [self._rng.choice(nodes).name, f"{node.name}:0", "", self._draws.canary, "x" * 5000]
        node.name = self._rng.choice(names)

    def _change_attribute(self, graph: Any, nodes: Any, node: Any) -> None:
        if not node.attr:
            return
        name = self._rng.choice(sorted(node.attr))
        value = node.attr[name]
        kind = value.WhichOneof("value")
        if self._rng.random() < 0.2:
            del node.attr[name]
        elif self._rng.random() < 0.2:
            other = self._rng.choice(nodes)
            if other.attr:
                value.CopyFrom(other.attr[self._rng.choice(sorted(other.attr))])
        elif kind == "s":
            value.s = self._draws.text()
        elif kind == "i":
            value.i = self._draws.number()
        elif kind == "type":
            value.type = self._rng.randrange(40)
        elif kind == "func":
            functions = [f.signature.name for f in graph.library.function]
            value.func.name = self._rng.choice([*functions, "ReadFile", "WriteFile", ""])
        elif kind == "shape":
            value.shape.dim.add(size=self._draws.number())
        elif kind == "tensor":
            value.tensor.tensor_shape.dim.add(size=self._draws.number())
        elif kind == "list":
            value.list.Clear()
        elif kind == "b":
            value.b = not value.b

    def _change_function(self, graph: Any, nodes: Any, node: Any) -> None:
        functions = graph.library.function
        if not functions:
            return
        function = self._rng.choice(functions)
        kind = self._rng.randrange(5)
        if kind == 0:
            function.signature.name = self._rng.choice(["ReadFile", "SaveV2", "Identity", "x"])
        elif kind == 1:
            other = functions.add()
            other.CopyFrom(function)
            other.signature.name = self._rng.choice(self._ops).name
        elif kind == 2:
            function.signature.is_stateful = not function.signature.is_stateful
        elif kind == 3:
            names = [self._rng.choice(functions).signature.name for _ in range(2)]
            graph.library.gradient.add(function_name=names[0], gradient_func=names[1])
        elif function.ret:
            function.ret[self._rng.choice(sorted(function.ret))] = self._other_input(
                function.node_def or nodes
            )

    def _set_version(self, graph: Any, nodes: Any, node: Any) -> None:
        graph.versions.producer = self._rng.choice([0, 1, 21, 987, 2**31 - 1])
        graph.versions.min_consumer = self._rng.choice([0, 0, 1, 2**31 - 1])

    def _get_in_between(self, graph: Any, nodes: Any, node: Any) -> None:
        """Inserts an operation between a path and the operation that uses the path."""
        takers = [n for n in graph.node if n.op in ("SaveSlices", "RestoreV2", "Save", "SaveV2")]
        if not takers:
            return
        taker = self._rng.choice(takers)
        if self._rng.random() < 0.5:
            second = graph.node.add()
            second.CopyFrom(taker)
            second.name = f"second_{len(graph.node)}"
            taker.input.append(f"^{second.name}")
            taker = second
        between = graph.node.add(name=f"between_{len(graph.node)}", input=[taker.input[0]])
        between.op = self._rng.choice(
            ["Identity", "PlaceholderWithDefault", "StringLower", "EnsureShape", "Snapshot"]
        )
        between.attr["dtype" if "Default" in between.op else "T"].type = 7
        between.attr["shape"].shape.unknown_rank = True
        taker.input[0] = between.name

    def _place(self, graph: Any, nodes: Any, node: Any) -> None:
        kind = self._rng.randrange(4)
        if kind == 0:
            node.device = self._rng.choice(
                ["/job:worker/task:0", "/device:GPU:0", self._draws.canary]
            )
        elif kind == 1:
            node.attr["_class"].list.s.append(f"loc:@{self._rng.choice(nodes).name}".encode())
        elif kind == 2:
            node.attr["_XlaMustCompile"].b = True
        else:
            node.attr["_kernel"].s = self._rng.choice([b"host", b"eager", b"label"])

    def _change_message(self, plan: Any, names: list[str]) -> None:
        client = plan.phase[0].client_phase
        specs = [client.tensorflow_spec]
        if plan.phase[0].HasField("server_phase_v2"):
            server = plan.phase[0].server_phase_v2
            specs += [server.tensorflow_spec_prepare, server.tensorflow_spec_result]
        spec = self._rng.choice(specs)
        kind = self._rng.random()
        if kind < 0.3:
            client.tensorflow_spec.dataset_token_tensor_name = self._tensor(names)
        elif kind < 0.6:
            router = client.federated_compute
            router.input_filepath_tensor_name = self._tensor(names)
        elif kind < 0.8 or len(specs) > 1:
            spec.target_node_names.append(self._tensor(names).partition(":")[0])
        else:
            read = plan.phase[0].server_phase.read_aggregated_update
            for channel in read.side_channel_tensors.values():
                channel.restore_name = self._tensor(names)

    def _tensor(self, names: list[str]) -> str:
        paths = [name for name in names if "path" in name or "between" in name]
        name = self._rng.choice(self._rng.choice([names, paths or names]))
        return f"{name}{self._rng.choice([':0', ':0', ':00', ': 0', '', ':1'])}"
