"""TFF's C++ worker process, owned: started here, ended with this process whatever happens to it."""

import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Optional

import grpc
import portpicker
import tensorflow_federated as tff

from tff_agnostic.errors import ExecutionError

_START_TIMEOUT_SECONDS = 60.0
_POLL_SECONDS = 0.05
_MAX_MESSAGE_BYTES = 2 * 1000 * 1000 * 1000
_CHANNEL_OPTIONS = [
    ("grpc.max_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
]

# Becomes the worker. The kernel kills it when the parent dies, also by SIGKILL, which no handler in
# the parent could see; the check closes the gap in which the parent died before the request.
_LAUNCHER = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


class TffWorker:
    """A running `worker_binary` and the connection to it, as a context manager."""

    def __init__(self) -> None:
        self._log: Any = None
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._release = threading.Event()
        self._stub: Optional[tff.framework.RemoteExecutorGrpcStub] = None

    @property
    def pid(self) -> int:
        """Process id of the worker."""
        assert self._process is not None, "the worker is not running"
        return self._process.pid

    def __enter__(self) -> "TffWorker":
        """Starts the worker and waits until it answers.

        Raises:
            ExecutionError: If it ends or does not answer in time; the message holds its last
                output.
        """
        binary = Path(tff.__file__).parent / "data" / "worker_binary"
        port = portpicker.pick_unused_port()
        # A file, not a pipe: what nobody reads must not block the worker.
        self._log = tempfile.TemporaryFile()
        self._process = self._start([str(binary), f"--port={port}"])
        channel = grpc.insecure_channel(f"localhost:{port}", _CHANNEL_OPTIONS)
        self._stub = tff.framework.RemoteExecutorGrpcStub(channel)
        deadline = time.monotonic() + _START_TIMEOUT_SECONDS
        while not self._stub.is_ready:
            if self._process.poll() is not None or time.monotonic() > deadline:
                message = f"TFF's worker did not start: {self._last_output()}"
                self.__exit__()
                raise ExecutionError(message)
            time.sleep(_POLL_SECONDS)
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Ends the worker and waits for it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._release.set()
            self._log.close()
        self._process = self._stub = self._log = None

    def executor_factory(self) -> tff.framework.ExecutorFactory:
        """Returns a factory of executors that run in the worker."""

        def connect(cardinalities: dict[Any, int]) -> tff.framework.RemoteExecutor:
            if self._process is None or self._process.poll() is not None:
                raise ExecutionError(f"TFF's worker {self._what_became_of_it()}")
            cardinalities.setdefault(tff.CLIENTS, 0)
            executor = tff.framework.RemoteExecutor(self._stub)
            executor.set_cardinalities(cardinalities)
            return executor

        return tff.framework.ResourceManagingExecutorFactory(connect)

    def _start(self, command: list[str]) -> "subprocess.Popen[bytes]":
        # What the kernel takes for the death of the parent is the end of the thread that started
        # the process. This one ends with the worker, or with Python, whoever calls.
        started: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._release.clear()

        def start_and_stay() -> None:
            try:
                process = subprocess.Popen(
                    [sys.executable, "-ESc", _LAUNCHER, str(os.getpid()), *command],
                    stdin=subprocess.DEVNULL,
                    stdout=self._log,
                    stderr=self._log,
                    # Ctrl-C in a terminal is for the training loop, which still needs its worker.
                    start_new_session=True,
                )
            except BaseException as e:
                started.put(e)
                return
            started.put(process)
            self._release.wait()

        threading.Thread(target=start_and_stay, name="tff-worker", daemon=True).start()
        process = started.get()
        if isinstance(process, BaseException):
            raise process
        return process

    def _what_became_of_it(self) -> str:
        if self._process is None:
            return "is not running"
        code = self._process.returncode
        how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        return f"has ended ({how}): {self._last_output()}"

    def _last_output(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it printed nothing"
