"""Sandboxed process that executes an export's graphs, one part of a round per request."""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, Optional

import numpy as np
import tensorflow as tf
from google.protobuf import message

from fleet.worker import (
    CHECKPOINT,
    REPORT,
    SHARED,
    STATE,
    SUMS,
    TRAINED,
    UPDATE,
    VALUES,
    Files,
    serve,
)
from plan_runner.client import Client, check_example
from plan_runner.client_store import DOMAIN, LABEL
from plan_runner.daf import read_update
from plan_runner.errors import PlanError
from plan_runner.export import (
    PLAN,
    SERVER_STATE,
    Export,
    Limits,
    TensorType,
    check_count,
    open_export,
    read_arrays,
)
from plan_runner.graph_session import check_tensors, read_checkpoint, write_checkpoint
from plan_runner.isolation import Listener
from plan_runner.kernel import Kernel, give_kernel
from plan_runner.plan_messages import parse_plan
from plan_runner.play import refusing
from plan_runner.ram_files import File, RamFile, empty_folder
from plan_runner.rounds import load_profile, metrics_row, round_line, round_result
from plan_runner.secure import SecureProfile, in_graph

# Feature names of the label and the domain id in plans.
_Y = "y"
_DOMAIN_ID = "domain_id"


def play_requests(payload: dict[str, Any], listener: Listener, scratch: Path) -> int:
    """Executes the requests of `player.Player`; see `worker.serve`."""
    del scratch
    # Disable GPUs: limits do not cover their memory, and their kernels differ between machines.
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    give_kernel(Kernel(*payload["kernel"]))
    with refusing():
        limits = Limits(**payload["limits"])
        # Do not require a state: requests contain it. Nodes get no state, because it may contain
        # the key of the server's noise.
        export = open_export(Path(payload["export"]), limits, payload["pinned"], (SERVER_STATE,))
        playing = _Playing(export)
    return serve(playing.play, listener, payload[SHARED])


class _Playing:
    """An export with loaded graphs."""

    def __init__(self, export: Export) -> None:
        self._export = export
        self._manifest = export.manifest
        plan = parse_plan(export.read(PLAN), PLAN)
        self._profile = load_profile(self._manifest.profile, plan)
        # This folder is in memory, because its files contain the key of the server's noise.
        self._scratch = empty_folder("begun")
        # SHA-256 of the state with which the server's first half last ran.
        self._started: Optional[bytes] = None
        self._parts: dict[str, Callable[..., Files]] = {
            "about": self._about,
            "evaluated": self._evaluated,
            "begin": self._begin,
            "client": self._client,
            "read": self._read,
            "check": self._check,
            "sum": self._sum,
            "end": self._end,
        }

    def play(self, request: dict[str, Any], files: Files) -> Files:
        """Executes a part of a round; see `worker.serve`."""
        with refusing():
            return self._parts[request.pop("part")](files, **request)

    def _about(self, files: Files) -> Files:
        del files
        manifest, secure = self._manifest, []
        if isinstance(self._profile, SecureProfile):
            if manifest.max_clients is None:
                raise PlanError(
                    "manifest.json: privacy: expected maximum_clients_per_round, found none"
                )
            for name, tensor in sorted(self._profile.tensors.items()):
                shape = [size or 0 for size in tensor.kind.shape]
                secure.append((name, shape, tensor.modulus, tensor.modulus))
        min_clients = max(manifest.min_clients, 0 if manifest.has_noise else 1)
        about = (manifest.kind, secure, manifest.max_clients, min_clients)
        return {REPORT: json.dumps(about).encode()}

    def _evaluated(self, files: Files) -> Files:
        """Returns the evaluation's state with the training's weights."""
        folder = _in_memory(files)
        state = read_checkpoint(folder / STATE, "the state of the evaluation")
        trained = read_checkpoint(folder / TRAINED, "the state of the training")
        weights = {name: value for name, value in trained.items() if _is_trained(name)}
        expected = {n: k for n, k in self._manifest.server_state.items() if _is_trained(n)}
        check_tensors(weights, expected, "the state of the training")
        write_checkpoint(folder / STATE, {**state, **weights})
        return {STATE: (folder / STATE).read_bytes()}

    def _begin(self, files: Files) -> Files:
        return {CHECKPOINT: self._first_half(files[STATE]).read_bytes()}

    def _first_half(self, state: bytes) -> File:
        where = "the server's state"
        path = _in_memory({STATE: state}) / STATE
        self._scratch = empty_folder("begun")
        self._started = None
        check_tensors(read_checkpoint(path, where), self._manifest.server_state, where)
        down = self._profile.begin_round(path, self._scratch)
        self._started = hashlib.sha256(state).digest()
        return down

    def _client(self, files: Files, name: str, **source: Any) -> Files:
        examples = list(self._examples(files, name, **source))
        folder = _in_memory({CHECKPOINT: files[CHECKPOINT]})
        sent = self._profile.play_client(name, examples, folder / CHECKPOINT, folder)
        if sent.checkpoint is not None:
            return {UPDATE: sent.checkpoint.read_bytes()}
        values = io.BytesIO()
        np.savez(values, **sent.tensors)
        return {VALUES: values.getvalue()}

    def _read(self, files: Files, name: str, **source: Any) -> Files:
        for _ in self._examples(files, name, **source):
            pass
        return {}

    def _examples(
        self, files: Files, name: str, paths: Sequence[str], are_stored: bool
    ) -> Iterator[bytes]:
        features, limit = self._manifest.features, self._export.limits.max_records
        count = 0
        for path in paths:
            client = Client(name, Path(path), features, limit - count)
            examples = client.examples()
            count += len(examples)
            yield from examples
        if paths:
            return
        records = [content for file, content in files.items() if file.isdigit()]
        check_count(len(records), limit, name)
        for number, record in enumerate(records, 1):
            where = f"{name}, example {number}"
            if are_stored:
                record = convert_example(record, features, self._manifest.domains, where)
            check_example(record, features, where)
            yield record

    def _check(self, files: Files, name: str) -> Files:
        self._profile.new_sums().add(name, read_update(_in_memory(files) / UPDATE, name))
        return {}

    def _sum(self, files: Files, names: Sequence[str]) -> Files:
        sums, folder = self._profile.new_sums(), _in_memory(files)
        for number, name in enumerate(names):
            sums.add(name, read_update(folder / f"{number}", name))
        write_checkpoint(folder / SUMS, sums.results())
        return {SUMS: (folder / SUMS).read_bytes()}

    def _end(
        self, files: Files, number: int, clients: int, bytes_down: int, bytes_up: float
    ) -> Files:
        state = files[STATE]
        if self._started != hashlib.sha256(state).digest():
            self._first_half(state)
        # The second half changes the session's variables, so it cannot run twice.
        self._started = None
        folder = _in_memory(files)
        sums = self._read_sums(folder / SUMS)
        tensors, outputs = self._profile.end_round(sums, self._scratch)
        result = round_result(
            number, clients, tensors, outputs, bytes_down, bytes_up, self._manifest
        )
        write_checkpoint(folder / STATE, result.state)
        report = {"row": json.loads(metrics_row(result)), "line": round_line(result)}
        return {STATE: (folder / STATE).read_bytes(), REPORT: json.dumps(report).encode()}

    def _read_sums(self, path: RamFile) -> dict[str, np.ndarray]:
        if not isinstance(self._profile, SecureProfile):
            return read_checkpoint(path, "the sums")
        content = io.BytesIO(path.read_bytes())
        sums = read_arrays(content, self._export.limits.max_unpacked_mb, "the sums")
        tensors = self._profile.tensors
        if set(sums) != set(tensors):
            raise PlanError(f"the sums: expected {sorted(tensors)}, found {sorted(sums)}")
        return {name: in_graph(tensor, sums[name]) for name, tensor in tensors.items()}


def _in_memory(files: Files) -> RamFile:
    """Writes files to an in-memory folder, which replaces the previous request's folder."""
    folder = empty_folder("request")
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def _is_trained(name: str) -> bool:
    """Whether an evaluation copies this tensor of the state from the training."""
    return name.startswith("server/algorithm/") or name == "server/round_num"


def convert_example(
    record: bytes, features: Mapping[str, TensorType], domains: Sequence[str], where: str
) -> bytes:
    """Adds the plan's features for label and domain to an example of a client store.

    Existing features with the plan's names are unchanged. Malformed records are also unchanged, as
    `client.check_example` rejects them.

    Args:
        domains: Names of the plan's domains, ordered by id.
        where: Name of the example, for error messages.
    """
    try:
        example = tf.train.Example.FromString(record)
    except message.DecodeError:
        return record
    values = example.features.feature
    lacks = {name for name in features if name not in values}
    if _Y in lacks and LABEL in values:
        values[_Y].CopyFrom(values[LABEL])
    if _DOMAIN_ID in lacks and DOMAIN in values:
        names = [name.decode(errors="replace") for name in values[DOMAIN].bytes_list.value]
        unknown = [name for name in names if name not in domains]
        if unknown:
            raise PlanError(
                f"{where}: expected one of the plan's domains, {', '.join(domains) or 'none'}, "
                f"found {unknown[0]!r:.60}"
            )
        values[_DOMAIN_ID].int64_list.value.extend(map(domains.index, names))
    return example.SerializeToString(deterministic=True)
