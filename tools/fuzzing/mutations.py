"""Creates mutants: exports with a few random changes, and with matching hashes."""

import hashlib
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flatbuffers
from tensorflow.lite.python import schema_py_generated as schema

from fuzzing.draws import Draws
from fuzzing.graph_changes import GraphChanges
from plan_runner import plan_pb2


class Mutation:
    """Random changes of an export.

    Args:
        rng: Random number generator of all changes.
        canary: A path that the sandboxed process must not write.
        checked: Whether graphs will be checked; see `GraphChanges`.
    """

    def __init__(self, rng: random.Random, canary: str, checked: bool) -> None:
        self._rng, self._draws = rng, Draws(rng, canary)
        self._graphs = GraphChanges(self._draws, checked)

    def apply(self, folder: Path) -> None:
        """Changes an export, and updates the hashes in its manifest."""
        kinds: list[tuple[Callable[[Path], None], int]] = [
            (self._graphs.change_plan, 10),
            (self._change_tflite, 4),
            (self._change_bytes, 2),
        ]
        change = self._rng.choices([k for k, _ in kinds], [weight for _, weight in kinds])[0]
        change(folder)
        path = folder / "manifest.json"
        manifest = json.loads(path.read_text())
        for name, entry in manifest["files"].items():
            content = (folder / name).read_bytes()
            entry.update(sha256=hashlib.sha256(content).hexdigest(), bytes=len(content))
        path.write_text(json.dumps(manifest))

    def _change_bytes(self, folder: Path) -> None:
        names = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != "manifest.json")
        path = self._rng.choice(names)
        path.write_bytes(self._draws.flipped(path.read_bytes()))

    def _change_tflite(self, folder: Path) -> None:
        path = folder / "client_only_plan.pb"
        device = plan_pb2.ClientOnlyPlan.FromString(path.read_bytes())
        if not device.tflite_graph:
            return self._graphs.change_plan(folder)
        if self._rng.random() < 0.3:
            device.tflite_graph = self._draws.flipped(device.tflite_graph)
        else:
            device.tflite_graph = self._other_flatbuffer(device.tflite_graph)
        path.write_bytes(device.SerializeToString())
        if self._rng.random() < 0.5:
            plan = plan_pb2.Plan.FromString((folder / "plan.pb").read_bytes())
            plan.client_tflite_graph_bytes = device.tflite_graph
            (folder / "plan.pb").write_bytes(plan.SerializeToString())
        return None

    def _other_flatbuffer(self, content: bytes) -> bytes:
        model = schema.ModelT.InitFromPackedBuf(content, 0)
        for _ in range(self._rng.choice([1, 2, 4])):
            graph = self._rng.choice([*model.subgraphs, model.subgraphs[0]])
            if graph.operators:
                self._change_subgraph(model, graph, self._rng.choice(graph.operators))
        builder = flatbuffers.Builder(0)
        builder.Finish(model.Pack(builder), b"TFL3")
        return bytes(builder.Output())

    def _change_subgraph(self, model: Any, graph: Any, operator: Any) -> None:
        def a_tensor() -> int:
            fed = [int(index) for index in graph.inputs]
            return self._rng.choice([self._rng.randrange(len(graph.tensors)), *fed])

        kind = self._rng.randrange(8)
        if kind == 0 and len(operator.outputs):
            operator.outputs = [a_tensor() for _ in operator.outputs]
        elif kind == 1 and len(operator.inputs):
            operator.inputs = [a_tensor() for _ in operator.inputs]
        elif kind == 2:
            operator.opcodeIndex = self._rng.randrange(len(model.operatorCodes))
        elif kind == 3:
            at = self._rng.randrange(len(graph.operators) + 1)
            kept = list(graph.operators)
            graph.operators = [*kept[:at], operator, *kept[at:]]
        elif kind == 4:
            tensor = graph.tensors[a_tensor()]
            text = os.fsencode(self._draws.text() or b"x")
            size = len(text).to_bytes(4, "little")
            content = (1).to_bytes(4, "little") + (12).to_bytes(4, "little")
            model.buffers[tensor.buffer].data = list(content + size + text)
        elif kind == 5:
            graph.tensors[a_tensor()].name = graph.tensors[a_tensor()].name
        elif kind == 6:
            graph.inputs = [a_tensor() for _ in graph.inputs]
        elif operator.customOptions is not None and len(operator.customOptions):
            changed = self._draws.flipped(bytes(bytearray(operator.customOptions)))
            operator.customOptions = list(changed)
