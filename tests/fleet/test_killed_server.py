"""A killed server leaves no state or sum in its temporary folder."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from fleet.settings import manifest_sha256
from plan_runner.graph_session import write_checkpoint
from tests.plan_runner.hostile.graphs import varint
from tests.support.processes import is_running, wait_until

# The server's state and a sum contain this secret, like the key of the noise.
_SECRET = 0x5EC2E7_0F_A6_F1EE7
_SERVER = """
import os, signal, sys, threading
from pathlib import Path
from fleet.player import Player
export, pinned, state, when = sys.argv[1:]
player = Player(Path(export), pinned, trust=True)
content = Path(state).read_bytes()
player.begin(content)
if when == "asked":
    # The worker has received a request, and is stopped before it answers.
    os.kill(player.process_id, signal.SIGSTOP)
    threading.Thread(target=player.end, args=(content, content, 1, 3, 0, 0.0)).start()
    threading.Event().wait(1)
print(player.process_id, flush=True)
threading.Event().wait()
"""


@pytest.mark.slow
@pytest.mark.parametrize("when", ["between", "asked"])
def test_killed_server_leaves_no_secret(exports, tmp_path, when):
    """The server is killed between or during requests to its worker, which then ends too."""
    state, folder = tmp_path / "state.ckpt", tmp_path / "temporary"
    folder.mkdir()
    tensors = {"server/0": np.array(10.0, np.float32), "server/1": np.array(_SECRET)}
    write_checkpoint(state, tensors)
    # The secret may appear as bytes, as a varint, or within the complete checkpoint.
    traces = (_SECRET.to_bytes(8, "little"), state.read_bytes(), varint(_SECRET))
    assert any(trace in state.read_bytes() for trace in traces[::2])
    export = exports["daf"]
    arguments = [str(export), manifest_sha256(export), str(state), when]
    server = subprocess.Popen(
        [sys.executable, "-c", _SERVER, *arguments],
        env={**os.environ, "TMPDIR": str(folder), "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    worker = int(server.stdout.readline())
    server.send_signal(signal.SIGKILL)
    server.wait()
    wait_until(lambda: not is_running(worker))
    files = [path for path in folder.rglob("*") if path.is_file()]
    # The remaining files are those of the worker's start, and Keras' settings.
    assert {path.name for path in files} <= {"task.json", "errors.txt", "keras.json"}
    assert not any(trace in path.read_bytes() for path in files for trace in traces)
