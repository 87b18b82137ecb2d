"""Sandboxed process that executes an export's graphs, one part of a round per request."""

from __future__ import annotations

import dataclasses
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

from fleet import worker
from fleet.worker import Files
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
from plan_runner.profile import RoundOutcome
from plan_runner.ram_files import File, RamFile, empty_folder
from plan_runner.rounds import load_profile, metrics_row, round_line, round_result
from plan_runner.secure import SecureProfile, in_graph

_BEGUN = "begun"
# Of a plan: the label, and the domain's number.
_Y = "y"
_DOMAIN_ID = "domain_id"


def play_requests(payload: dict[str, Any], listener: Listener, scratch: Path) -> int:
    """Executes requests until no more come; see `worker.serve`.

    Args:
        payload: Of `player.Player`.
        scratch: The process's folder, in which nothing is written.
    """
    del scratch
    # The limits are not those of a GPU's memory, and its kernels are not the same everywhere.
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    give_kernel(Kernel(*payload["kernel"]))
    with refusing():
        limits = Limits(**payload["limits"])
        # States come with requests: a node has none, as one may hold the key of the server's noise.
        export = open_export(Path(payload["export"]), limits, payload["pinned"], (SERVER_STATE,))
        playing = _Playing(export)
    return worker.serve(playing.play, listener, payload[worker.SHARED])


class _Playing:
    """An export whose graphs are loaded."""

    def __init__(self, export: Export) -> None:
        self._export = export
        self._manifest = export.manifest
        plan = parse_plan(export.read(PLAN), PLAN)
        self._profile = load_profile(self._manifest.profile, plan)
        # In memory: it holds the key of the server's noise.
        self._scratch = empty_folder(_BEGUN)
        # SHA-256 of the state of which the server's first half was played last.
        self._begun: Optional[bytes] = None
        self._parts: dict[str, Callable[[dict[str, Any], Files], Files]] = {
            worker.ABOUT: self._about,
            worker.EVALUATED: self._evaluated,
            worker.BEGIN: self._begin,
            worker.CLIENT: self._client,
            worker.READ: self._read,
            worker.CHECK: self._check,
            worker.SUM: self._sum,
            worker.END: self._end,
        }

    def play(self, request: dict[str, Any], files: Files) -> Files:
        """Executes a part; see `worker.serve`."""
        with refusing():
            return self._parts[request["part"]](request, files)

    def _about(self, request: dict[str, Any], files: Files) -> Files:
        del request, files
        manifest = self._manifest
        about = worker.About(
            manifest.kind,
            manifest.profile,
            tuple(self._secure_values()),
            manifest.max_clients,
            max(self._profile.client.minimum, manifest.min_clients, 0 if manifest.has_noise else 1),
        )
        return {worker.ABOUT_FILE: json.dumps(dataclasses.asdict(about)).encode()}

    def _secure_values(self) -> Iterator[worker.SecureValue]:
        if not isinstance(self._profile, SecureProfile):
            return
        most = self._manifest.max_clients
        if most is None:
            raise PlanError(
                "manifest.json: privacy: expected maximum_clients_per_round, found none: clients "
                "have to know the modulus of their sums before they know of each other"
            )
        # Which checks that there is room for the sums of so many.
        self._profile.new_sums(most)
        for name, tensor in sorted(self._profile.tensors.items()):
            shape = tuple(size or 0 for size in tensor.kind.shape)
            yield worker.SecureValue(name, shape, tensor.modulus.bound, tensor.modulus.of(most))

    def _evaluated(self, request: dict[str, Any], files: Files) -> Files:
        """Puts a training's weights next to the state after the evaluation's own rounds."""
        del request
        folder = _in_memory(files)
        own = read_checkpoint(folder / worker.STATE, "the state of the evaluation")
        trained = read_checkpoint(folder / worker.TRAINED, "the state of the training")
        taken = {name: value for name, value in trained.items() if _is_trained(name)}
        check_tensors(
            taken,
            {n: k for n, k in self._manifest.server_state.items() if _is_trained(n)},
            "the state of the training",
        )
        write_checkpoint(folder / worker.STATE, {**own, **taken})
        return {worker.STATE: (folder / worker.STATE).read_bytes()}

    def _begin(self, request: dict[str, Any], files: Files) -> Files:
        del request
        return {worker.CLIENT_CHECKPOINT: self._first_half(files[worker.STATE]).read_bytes()}

    def _first_half(self, state: bytes) -> File:
        where = "the server's state"
        path = _in_memory({worker.STATE: state}) / worker.STATE
        self._scratch = empty_folder(_BEGUN)
        self._begun = None
        check_tensors(read_checkpoint(path, where), self._manifest.server_state, where)
        down = self._profile.begin_round(path, self._scratch)
        self._begun = hashlib.sha256(state).digest()
        return down

    def _client(self, request: dict[str, Any], files: Files) -> Files:
        examples = list(self._examples(request, files))
        folder = _in_memory({name: files[name] for name in [worker.CLIENT_CHECKPOINT]})
        checkpoint = folder / worker.CLIENT_CHECKPOINT
        sent = self._profile.play_client(request["name"], examples, checkpoint, folder)
        if sent.checkpoint is not None:
            return {worker.UPDATE: sent.checkpoint.read_bytes()}
        values = io.BytesIO()
        np.savez(values, **sent.tensors)
        return {worker.VALUES: values.getvalue()}

    def _read(self, request: dict[str, Any], files: Files) -> Files:
        for _ in self._examples(request, files):
            pass
        return {}

    def _examples(self, request: dict[str, Any], files: Files) -> Iterator[bytes]:
        features, most = self._manifest.features, self._export.limits.max_records
        count = 0
        for path in request["paths"]:
            client = Client(request["name"], Path(path), features, most - count)
            examples = client.examples()
            count += len(examples)
            yield from examples
        if request["paths"]:
            return
        records = worker.records_in(files[worker.EXAMPLES])
        for count, record in enumerate(records, 1):
            where = f"{request['name']}, example {count}"
            check_count(count, most, request["name"])
            if request["are_stored"]:
                record = convert_example(record, features, self._manifest.domains, where)
            check_example(record, features, where)
            yield record

    def _check(self, request: dict[str, Any], files: Files) -> Files:
        sums = self._profile.new_sums(1)
        path = _in_memory(files) / worker.UPDATE
        sums.add(request["name"], read_update(path, request["name"]))
        return {}

    def _sum(self, request: dict[str, Any], files: Files) -> Files:
        names: Sequence[str] = request["names"]
        sums, folder = self._profile.new_sums(len(names)), _in_memory(files)
        for number, name in enumerate(names):
            sums.add(name, read_update(folder / f"{number}", name))
        write_checkpoint(folder / worker.SUMS, sums.results())
        return {worker.SUMS: (folder / worker.SUMS).read_bytes()}

    def _end(self, request: dict[str, Any], files: Files) -> Files:
        state = files[worker.STATE]
        if self._begun != hashlib.sha256(state).digest():
            self._first_half(state)
        # It is played once: the session's variables change.
        self._begun = None
        folder = _in_memory(files)
        sums = self._read_sums(folder / worker.SUMS)
        tensors, outputs = self._profile.end_round(sums, self._scratch)
        outcome = RoundOutcome(tensors, request["bytes_down"], request["bytes_up"], outputs)
        result = round_result(request["round"], request["clients"], outcome, self._manifest)
        write_checkpoint(folder / worker.STATE, result.state)
        told = {"row": metrics_row(result), "line": round_line(result)}
        return {
            worker.STATE: (folder / worker.STATE).read_bytes(),
            worker.TOLD: json.dumps(told).encode(),
        }

    def _read_sums(self, path: RamFile) -> dict[str, np.ndarray]:
        if not isinstance(self._profile, SecureProfile):
            return read_checkpoint(path, "the sums")
        content = io.BytesIO(path.read_bytes())
        found = read_arrays(content, self._export.limits.max_unpacked_mb, "the sums")
        tensors = self._profile.tensors
        if set(found) != set(tensors):
            raise PlanError(f"the sums: expected {sorted(tensors)}, found {sorted(found)}")
        return {name: in_graph(tensor, found[name]) for name, tensor in tensors.items()}


def _in_memory(files: Files) -> RamFile:
    """Returns a folder with these files, in the place of the last request's."""
    folder = empty_folder("request")
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def _is_trained(name: str) -> bool:
    """Returns whether a tensor of an evaluation's state is the training's."""
    return name.startswith("server/algorithm/") or name == "server/round_num"


def convert_example(
    record: bytes, features: Mapping[str, TensorType], domains: Sequence[str], where: str
) -> bytes:
    """Returns an example of a store with what a plan reads of its label and domain.

    What the store has under the plan's own names stays as it is, and so does all that is no
    example, which `client.check_example` refuses.

    Args:
        features: The features that the plan reads.
        domains: The names of the plan's domains, in the order of their ids.
        where: Which example, for messages.
    """
    try:
        example = tf.train.Example.FromString(record)
    except message.DecodeError:
        return record
    found = example.features.feature
    lacks = {name for name in features if name not in found}
    if _Y in lacks and LABEL in found:
        found[_Y].CopyFrom(found[LABEL])
    if _DOMAIN_ID in lacks and DOMAIN in found:
        names = [name.decode(errors="replace") for name in found[DOMAIN].bytes_list.value]
        unknown = [name for name in names if name not in domains]
        if unknown:
            raise PlanError(
                f"{where}: expected one of the plan's domains, {', '.join(domains) or 'none'}, "
                f"found {unknown[0]!r:.60}"
            )
        found[_DOMAIN_ID].int64_list.value.extend(map(domains.index, names))
    return example.SerializeToString(deterministic=True)
