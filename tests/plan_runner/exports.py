"""Exports of the plans in plans.py, each with clients and with results computed by hand."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from plan_runner import plan_pb2
from plan_runner.graph_session import tensor_type, write_checkpoint
from tests.plan_runner.plans import FEATURES

STATE: Mapping[str, np.ndarray] = {
    "server/0": np.array(10.0, np.float32),
    "server/1": np.array(0, np.int64),
}
# Round 1 moves the mean from 10 by ((1-10) + (2-10) + (3-10)) / 3 = -8; later rounds keep it.
CLIENTS = {"ann": [(1.0, 4), (2.0, 5)], "bob": [(3.0, 6)], "cyd": []}
MEANS = [2.0, 2.0, 2.0]
# Each round of the secure plan adds (4 + 5 + 6) / 3 to the mean.
SECURE_MEANS = [15.0, 20.0, 25.0]


def example(x: float = 0.0, n: int = 0) -> bytes:
    features = {
        "x": tf.train.Feature(float_list=tf.train.FloatList(value=[x])),
        "n": tf.train.Feature(int64_list=tf.train.Int64List(value=[n])),
    }
    return encoded(features)


def encoded(features: Mapping[str, Any]) -> bytes:
    return tf.train.Example(features=tf.train.Features(feature=dict(features))).SerializeToString()


def write_client(path: Path, records: Sequence[bytes]) -> None:
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record)


def write_clients(folder: Path, clients: Mapping[str, Sequence[tuple[float, int]]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, examples in clients.items():
        write_client(folder / f"{name}.tfrecord", [example(x, n) for x, n in examples])
    return folder


def write_export(folder: Path, plan: plan_pb2.Plan, profile: str) -> Path:
    """Writes an export of a plan, with results computed by hand; returns its folder."""
    write_clients(folder / "conformance" / "clients", CLIENTS)
    write_checkpoint(folder / "server_state.ckpt", STATE)
    plan.client_tflite_graph_bytes = b"TFL3"
    (folder / "plan.pb").write_bytes(plan.SerializeToString(deterministic=True))
    device = plan_pb2.ClientOnlyPlan(graph=plan.client_graph_bytes.value, tflite_graph=b"TFL3")
    (folder / "client_only_plan.pb").write_bytes(device.SerializeToString())
    expected = []
    for number, tensors in enumerate(expected_rounds(profile), 1):
        expected.append(f"conformance/round_{number}.npz")
        np.savez(folder / expected[-1], **tensors)

    def types(prefix: str) -> dict[str, Any]:
        kinds = {name: tensor_type(v) for name, v in tensors.items() if name.startswith(prefix)}
        return {name: {"dtype": k.dtype, "shape": list(k.shape)} for name, k in kinds.items()}

    manifest = {
        "format": "tff_agnostic federated export",
        "format_version": 2,
        "kind": "training",
        "domains": ["one"],
        "profile": profile,
        "files": {},
        "max_examples": 100,
        "examples": {"format": "tf.train.Example", "features": FEATURES},
        "tensors": {"server_state": types("server/"), "metrics": types("metrics/")},
        "conformance": {"rounds": 3, "clients": sorted(CLIENTS), "expected": expected},
    }
    write_manifest(folder, manifest)
    return folder


def expected_rounds(profile: str) -> list[dict[str, np.ndarray]]:
    means = {"daf": MEANS, "secure": SECURE_MEANS}[profile]
    rounds = []
    for number, mean in enumerate(means, 1):
        tensors: dict[str, np.ndarray] = {
            "server/0": np.array(mean, np.float32),
            "server/1": np.array(number, np.int64),
            "metrics/count": np.array(3, np.int64),
        }
        if profile == "daf":
            total = -24.0 if number == 1 else 0.0
            tensors["metrics/loss"] = np.array([total, np.nan], np.float32)
        rounds.append(tensors)
    return rounds


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Writes a manifest that lists the folder's files."""
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != "manifest.json":
            content = path.read_bytes()
            sha256 = hashlib.sha256(content).hexdigest()
            files[path.relative_to(folder).as_posix()] = {"sha256": sha256, "bytes": len(content)}
    (folder / "manifest.json").write_text(json.dumps({**manifest, "files": files}))


def rehash(folder: Path, **changes: Any) -> None:
    """Updates the manifest's hashes, and changes the given entries."""
    manifest = json.loads((folder / "manifest.json").read_text())
    write_manifest(folder, {**manifest, **changes})
