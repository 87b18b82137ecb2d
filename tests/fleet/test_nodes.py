"""A single node, with its plan, data and process, and the answers that it gives after a restart."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import signal
import sqlite3

import pytest

from fleet.node import Node
from fleet.player import Examples, Player
from fleet.settings import DataSettings, manifest_sha256
from fleet.wire import Kind, Message, decoded
from plan_runner.client_store import ClientStore
from plan_runner.errors import PlanError
from plan_runner.export import DEFAULT_LIMITS, Limits
from tests.fleet.fleet import Fleet
from tests.plan_runner.exports import encoded, example, write_client, write_clients
from tests.plan_runner.refusals import refusal
from tests.support import golden
from tests.support.processes import is_running, wait_until
from tests.support.stores import write_store
from tff_agnostic.data.store_format import Record

pytestmark = pytest.mark.slow

_LOAD = """
import tensorflow as tf

def load(config):
    path = config["path"]
    return list(tf.data.TFRecordDataset(path).as_numpy_iterator())
"""
# Copied tables have no constraints, like tables that other programs write.
_COPY_TABLES = "".join(
    f"""
CREATE TABLE copied AS SELECT * FROM {table};
DROP TABLE {table};
ALTER TABLE copied RENAME TO {table};
"""
    for table in ("client_metadata", "examples")
)


@pytest.fixture(scope="module")
def fleet(exports, tmp_path_factory):
    folder = tmp_path_factory.mktemp("nodes")
    clients = write_clients(folder / "clients", {"ann": [(1.0, 4), (2.0, 5)], "bob": []})
    made = Fleet(folder / "fleet", exports["daf"], clients)
    yield made
    made.close()


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Returns a client store with the examples of ann's file."""
    given = [("train", "ann", 1.0, 4), ("train", "eve", 3.0, 6), ("train", "ann", 2.0, 5)]
    return write_store(
        tmp_path_factory.mktemp("stores") / "s.sqlite",
        [
            (s, Record(c, "here", {"x": x, "n": n}))
            for s, c, x, n in [*given, ("test", "t", 1.0, 1)]
        ],
        "features",
    )


def work(fleet, checkpoint, number=1) -> bytes:
    head = {"tag": "x", "manifest": manifest_sha256(fleet.export), "id": bytes([number] * 32).hex()}
    return Message(Kind.WORK, head, (checkpoint,)).encoded()


@pytest.fixture(scope="module")
def checkpoint(fleet) -> bytes:
    player = fleet.player(fleet.export, manifest_sha256(fleet.export), DEFAULT_LIMITS, False)
    return player.begin((fleet.export / "server_state.ckpt").read_bytes())


def test_node_rejects_invalid_settings_at_its_start(fleet, store, tmp_path):
    ann = fleet.node_settings("ann")
    assert "pinned" in refusal(Node, dataclasses.replace(ann, manifest_sha256="0" * 64))
    stranger = tmp_path / "roster.toml"
    stranger.write_text(f'bob = "{"ab" * 32}"\n')
    assert "expected the identity of" in refusal(Node, dataclasses.replace(ann, roster=stranger))
    write_client(fleet.clients / "other.tfrecord", [encoded({})])
    data = DataSettings(tfrecord=fleet.clients / "other.tfrecord")
    assert "record 1: feature 'x': expected" in refusal(
        fleet.node, dataclasses.replace(ann, data=data)
    )
    few = dataclasses.replace(ann, limits=Limits(max_records=1))
    (tmp_path / "two.py").write_text(f"def load(config):\n    return [{example()!r}] * 2\n")
    for place in (
        {"tfrecord": fleet.clients / "ann.tfrecord"},
        {"store": store, "client": "ann"},
        {"load": tmp_path / "two.py"},
    ):
        few = dataclasses.replace(few, data=DataSettings(**place))
        assert "expected at most 1 records (--max_records)" in refusal(fleet.node, few)
    (tmp_path / "data.py").write_text("def load(config):\n    raise OSError('no disk')\n")
    data = DataSettings(load=tmp_path / "data.py")
    failing = dataclasses.replace(ann, data=data)
    assert "data.py: load: OSError: no disk" in refusal(fleet.node, failing)


def test_restarted_node_answers_each_round_once(fleet, checkpoint, tmp_path):
    settings = fleet.node_settings("ann")
    node = fleet.node(settings)
    first = node.answer(work(fleet, checkpoint))
    assert decoded(first, "answer").kind == Kind.WORKED
    node.close()
    (tmp_path / "data.py").write_text(_LOAD)
    config = {"path": str(fleet.clients / "ann.tfrecord")}
    data = DataSettings(load=tmp_path / "data.py", config=config)
    node = Node(dataclasses.replace(settings, data=data))
    try:
        assert node.answer(work(fleet, checkpoint)) == first
        changed = decoded(node.answer(work(fleet, checkpoint + b"x")), "answer")
        assert "found one that this node has answered" in changed.head["words"]
        # In a new round, the loaded examples give the same update as the file's.
        second = decoded(node.answer(work(fleet, checkpoint, 2)), "answer")
        assert second.parts == decoded(first, "answer").parts
        again = decoded(node.answer(work(fleet, checkpoint)), "answer")
        assert "found one that this node has answered" in again.head["words"]
    finally:
        node.close()


@golden.values
def test_node_rejects_invalid_stores(fleet, store, tmp_path, case):
    sql, given = case
    copied = tmp_path / "s.sqlite"
    shutil.copy(store, copied)
    with contextlib.closing(sqlite3.connect(copied)) as connection:
        connection.executescript(sql.replace("COPY TABLES;", _COPY_TABLES))
    place = {"store": copied, "client": "ann", **given}
    data = DataSettings(**{**place, "store": tmp_path / place["store"]})
    return refusal(fleet.node, fleet.node_settings("ann", data=data))


def test_open_store_is_locked_against_changes(store, tmp_path):
    copied = shutil.copy(store, tmp_path / "s.sqlite")
    with (
        contextlib.closing(ClientStore(copied)) as opened,
        contextlib.closing(sqlite3.connect(copied, timeout=0)) as writer,
    ):
        counts = opened.client_counts("train")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            writer.executescript("DELETE FROM examples")
        assert len(opened.examples("train", "ann", counts)) == counts["ann"]


def test_player_restarts_its_ended_process(fleet, checkpoint):
    player = Player(fleet.export, manifest_sha256(fleet.export), reads=[fleet.clients])
    try:
        examples = Examples(paths=[fleet.clients / "ann.tfrecord"])
        first = player.update("ann", checkpoint, examples)
        process = player.process_id
        with pytest.raises(PlanError, match=r"client ann: the graph failed \("):
            player.update("ann", b"no checkpoint", examples)
        assert player.process_id == process
        # The sandbox allows no files outside of `reads`.
        outside = fleet.folder / "ann.tfrecord"
        shutil.copy(fleet.clients / "ann.tfrecord", outside)
        with pytest.raises(PlanError, match="Permission denied"):
            player.update("ann", checkpoint, Examples(paths=[outside]))
        os.kill(process, signal.SIGKILL)
        wait_until(lambda: not is_running(process))
        assert player.update("ann", checkpoint, examples) == first
        assert player.process_id != process
    finally:
        last = player.process_id
        player.close()
    assert not is_running(last)


def test_slow_request_raises_and_ends_the_process(fleet):
    limits = Limits(max_round_seconds=0.2)
    player = Player(fleet.export, manifest_sha256(fleet.export), limits)
    try:
        with pytest.raises(PlanError, match=r"beginning a round: expected to end within 0\.2 s"):
            player.begin(b"")
        assert player.process_id is None
    finally:
        player.close()
