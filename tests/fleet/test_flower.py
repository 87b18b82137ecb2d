"""The adapter to Flower; most tests need the fleet's environment."""

import ast
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from fleet.app_files import app_files
from fleet.wire import Kind, Message, decoded

_CHECKOUT = Path(__file__).absolute().parents[2]


@pytest.mark.slow
def test_only_one_module_imports_flower():
    importing_files = set()
    for path in (*_CHECKOUT.glob("fleet/**/*.py"), *_CHECKOUT.glob("plan_runner/*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(name.split(".")[0] == "flwr" for name in names):
                importing_files.add(path.relative_to(_CHECKOUT).as_posix())
    assert importing_files == {"fleet/flower.py"}


def test_flower_app_has_three_small_files():
    files = app_files("0" * 64)
    assert set(files) == {"pyproject.toml", "server_app.py", "client_app.py"}
    assert "0" * 64 in files["pyproject.toml"]
    assert all(len(text) < 1000 for text in files.values())


@pytest.fixture
def flower():
    pytest.importorskip("flwr", reason="flwr is in the fleet's environment only")
    from fleet import flower

    return flower


def _request(part, tag="tag"):
    return Message(Kind.WORK, {"tag": tag}, (part,)).encoded()


class _Grid:
    """A stand-in for Flower's grid: nodes answer with the reversed content."""

    def __init__(self, flower):
        from flwr.supercore.task_identity import TaskIdentity

        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self._flower, self.sent, self.refused, self.failing = flower, {}, set(), set()

    def get_node_ids(self):
        return [1, 2**63 + 5]

    def push_messages(self, messages):
        keys = []
        for message in messages:
            key = None
            if message.metadata.dst_node_id not in self.refused:
                key = f"key {len(self.sent)}"
                message.metadata.__dict__["_message_id"] = key
                self.sent[key] = message
            keys.append(key)
        return keys

    def pull_messages(self, keys):
        from flwr.app import Error, Message

        replies = []
        for key in keys:
            message = self.sent.pop(key, None)
            if message is not None and message.metadata.dst_node_id in self.failing:
                replies.append(Message(Error(3, "the node is\ngone"), reply_to=message))
            elif message is not None:
                content = self._flower._content(message)[::-1]
                replies.append(Message(self._flower._record(content), reply_to=message))
        return replies


@pytest.mark.parametrize("size", [0, 10, 2_000_000])
def test_channel_sends_and_receives_bytes(flower, size):
    grid = _Grid(flower)
    channel = flower.FlowerChannel(grid)
    one, two = channel.nodes()
    assert two == str(2**63 + 5)
    content = _request(bytes(range(10)) * (size // 10))
    other = _request(b"x")
    channel.send({one: content, two: other}, 60)
    assert dict(channel.receive()) == {one: content[::-1], two: other[::-1]}
    assert channel.receive() == []


def test_channel_skips_unsent_messages(flower):
    grid = _Grid(flower)
    grid.refused = {1}
    channel = flower.FlowerChannel(grid)
    channel.send({"1": _request(b"a"), str(2**63 + 5): _request(b"bc")}, 60)
    assert channel.receive() == [(str(2**63 + 5), _request(b"bc")[::-1])]


def test_flower_error_becomes_a_refusal(flower):
    grid = _Grid(flower)
    grid.failing = {1}
    channel = flower.FlowerChannel(grid)
    channel.send({"1": _request(b"a", "one"), str(2**63 + 5): _request(b"bc")}, 60)
    answers = dict(channel.receive())
    assert answers.pop(str(2**63 + 5)) == _request(b"bc")[::-1]
    answer = decoded(answers.pop("1"), "answer")
    assert (answer.kind, answer.head["tag"]) == (Kind.REFUSED, "one")
    assert answer.head["words"] == "no answer, Flower reports: the node is gone"
    assert not answers and channel.receive() == []


class _SuperNode:
    """A stand-in for a SuperNode with two tasks; the first one's message never arrives."""

    def __init__(self, flower, monkeypatch):
        self._flower, self.pulling, self.answered = flower, [], []
        self.never = threading.Event()
        tokens = iter(["one", "two"])
        asked = SimpleNamespace(
            AcquireTask=lambda request: SimpleNamespace(token=next(tokens, "")), close=lambda: None
        )
        client = SimpleNamespace(from_server_address=lambda *given: asked)
        beating = SimpleNamespace(start=lambda: None, stop=lambda: None)
        monkeypatch.setattr(flower, "RuntimeHttpClient", client)
        monkeypatch.setattr(flower, "HeartbeatSender", lambda call: beating)
        monkeypatch.setattr(flower, "pull_task_input", self._pull)
        monkeypatch.setattr(flower, "push_message", self._push)
        monkeypatch.setattr(flower, "push_task_output", lambda *given: None)

    def _pull(self, client):
        self.pulling.append(client)
        if len(self.pulling) == 1:
            self.never.wait(60)
            return None, None, None, None
        from flwr.app import Message

        _Grid(self._flower)
        return Message(self._flower._record(b"question"), 1, "query.fleet"), "context", None, None

    def _push(self, client, message, context):
        self.answered.append((self._flower._content(message), context))
        raise KeyboardInterrupt


def test_stuck_task_does_not_block_others(flower, monkeypatch):
    supernode = _SuperNode(flower, monkeypatch)
    try:
        with pytest.raises(KeyboardInterrupt):
            flower.serve(lambda question: question[::-1], "127.0.0.1:1", bytes(32))
    finally:
        supernode.never.set()
    assert supernode.answered == [(b"noitseuq", "context")]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1/fleet/pull-messages", True),
        ("/health", True),
        ("/v1/control/register-node", False),
        ("/v1/control/start-run", False),
        ("/v1/runtime/acquire-task", False),
        ("/v1/fleet/../control/start-run", False),
        ("/v1/fleet//../control/start-run", False),
        ("/v1/fleet", False),
        ("/healthy", False),
        ("/", False),
    ],
)
def test_proxy_passes_node_requests_only(path, expected):
    pytest.importorskip("starlette", reason="starlette is in the fleet's environment only")
    from fleet.proxy import is_let_through

    assert is_let_through(path) is expected
