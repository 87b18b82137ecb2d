"""The TFF runtime, TFF's worker process, and a `tff.program` context that uses the worker."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, Optional

import grpc
import numpy as np
import portpicker

# TFF's public context factories start their own worker, which outlives Python. This module
# therefore creates contexts itself, with the two functions that these factories pass to a context.
from tensorflow_federated.python.core.environments.tensorflow_frontend import tensorflow_computation

from tff_agnostic.aggregations.aggregation import Aggregation, require_enough_clients
from tff_agnostic.base.errors import ExecutionError
from tff_agnostic.base.later import tf, tff
from tff_agnostic.base.report_fields import ReportFields
from tff_agnostic.computations.algorithm import Algorithm, Report, RunState
from tff_agnostic.computations.clients import client_place
from tff_agnostic.computations.evaluation import Measurement
from tff_agnostic.computations.round import Round
from tff_agnostic.computations.tff_process import (
    EvaluationParts,
    NumberedClient,
    Process,
    build_evaluation_parts,
    build_process,
)
from tff_agnostic.computations.verification import SecurityReport, check_measurement, check_process
from tff_agnostic.models.model import Examples
from tff_agnostic.runtimes.runtime import Evaluation, Runtime, to_numpy_examples
from tff_agnostic.runtimes.tff_exit import drop_tff_context_at_exit

_START_TIMEOUT_SECONDS = 60.0
_POLL_SECONDS = 0.05
_MAX_MESSAGE_BYTES = 2 * 1000 * 1000 * 1000
_CHANNEL_OPTIONS = [
    ("grpc.max_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
]
# Script that becomes the worker process. The kernel kills the worker when its parent dies, even by
# SIGKILL, which the parent could not handle. getppid detects a parent that died before prctl.
_LAUNCHER = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


def _compile(computation: Any) -> Any:
    # TFF's native compiler does not support secure sums. A simulation has no adversary, so replace
    # secure sums by insecure ones.
    with_bodies = tff.backends.test.replace_secure_intrinsics_with_bodies(computation)
    return tff.backends.native.desugar_and_transform_to_native(with_bodies)


class TffWorker:
    """A context manager that runs TFF's `worker_binary` and connects to it."""

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

    def __enter__(self) -> TffWorker:
        """Starts the worker and waits until it answers.

        Raises:
            ExecutionError: If the worker exits or does not answer in time; the message contains the
                worker's last output.
        """
        binary = Path(tff.__file__).parent / "data" / "worker_binary"
        port = portpicker.pick_unused_port()
        # Use a file instead of a pipe, as an unread pipe would block the worker.
        self._log = tempfile.TemporaryFile()
        self._process = self._start([str(binary), f"-port={port}"])
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
        """Stops the worker and waits for it."""
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
                raise ExecutionError(f"TFF's worker {self._exit_reason()}")
            cardinalities.setdefault(tff.CLIENTS, 0)
            executor = tff.framework.RemoteExecutor(self._stub)
            executor.set_cardinalities(cardinalities)
            return executor

        return tff.framework.ResourceManagingExecutorFactory(connect)

    def _start(self, command: list[str]) -> subprocess.Popen[bytes]:
        # The kernel kills the worker when the thread that started it ends. Start it in a dedicated
        # thread, which lives as long as the worker or Python.
        started: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._release.clear()

        def start_and_stay() -> None:
            try:
                process = subprocess.Popen(
                    [sys.executable, "-ESc", _LAUNCHER, str(os.getpid()), *command],
                    stdin=subprocess.DEVNULL,
                    stdout=self._log,
                    stderr=self._log,
                    # Ctrl-C must not end the worker, which the training loop still needs.
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

    def _exit_reason(self) -> str:
        if self._process is None:
            return "is not running"
        code = self._process.returncode
        how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        return f"has ended ({how}): {self._last_output()}"

    def _last_output(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it printed nothing"


def create_context(worker: TffWorker) -> tff.framework.SyncExecutionContext:
    """Returns an execution context that runs in `worker`, for plain and secure sums."""
    return tff.framework.SyncExecutionContext(**_context_arguments(worker))


def create_async_context(worker: TffWorker) -> tff.framework.AsyncExecutionContext:
    """Returns the asynchronous form of `create_context`, for `tff.program`."""
    return tff.framework.AsyncExecutionContext(**_context_arguments(worker))


def _context_arguments(worker: TffWorker) -> dict[str, Any]:
    return {
        "executor_fn": worker.executor_factory(),
        "compiler_fn": _compile,
        "transform_args": tensorflow_computation.transform_args,
        "transform_result": tensorflow_computation.transform_result,
    }


class TffRuntime(Runtime):
    """Runs rounds in TFF's worker process; as a context manager it owns the worker."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._worker = TffWorker()
        self._context = create_context(self._worker)

    def __enter__(self) -> TffRuntime:
        """Starts the worker and makes it TFF's current execution context."""
        drop_tff_context_at_exit()
        self._stack.enter_context(self._worker)
        # Create a new context, as an old one keeps connections to a worker that has stopped.
        self._context = create_context(self._worker)
        self._stack.enter_context(self.installed())
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def installed(self) -> AbstractContextManager:
        """Returns a context in which the worker is TFF's current execution context.

        Each call of a prepared computation enters it. Otherwise a call after the runtime has exited
        would use TFF's default context, and start a worker that never stops.
        """
        return tff.framework.get_context_stack().install(self._context)

    def training(self, algorithm: Algorithm, aggregation: Aggregation) -> TffTraining:
        """Compiles the algorithm; see `runtime.Runtime.training`."""
        process = build_process(algorithm, aggregation)
        security = check_process(aggregation, process) if aggregation.guarantees else None
        quantities = Round(algorithm, aggregation).quantities
        return TffTraining(self, process, aggregation, quantities, security)

    def measurement(self, measurement: Measurement, aggregation: Aggregation) -> TffEvaluation:
        """Compiles a measurement; see `runtime.Runtime.measurement`."""
        check_measurement(aggregation, measurement)
        return TffEvaluation(self, build_evaluation_parts(measurement, aggregation), aggregation)

    def execution(self) -> dict[str, Any]:
        """Returns an empty mapping, as no settings of this runtime change results."""
        return {}


class TffTraining:
    """Runs the rounds of a `tff.learning.templates.LearningProcess`; see `runtime.Training`.

    Attributes:
        process: The algorithm as TFF computations.
        quantities: Descriptions of the values in a round's report.
        security: Report on the values that reach the server; None if the aggregation does not
            guarantee security.
    """

    def __init__(
        self,
        runtime: TffRuntime,
        process: Process,
        aggregation: Aggregation,
        quantities: ReportFields,
        security: Optional[SecurityReport] = None,
    ) -> None:
        self._runtime = runtime
        self._aggregation = aggregation
        self.process = process
        self.quantities = quantities
        self.security = security

    def initialize(self) -> RunState:
        """Returns the state before the first round."""
        with self._runtime.installed():
            return self.process.learning_process.initialize()

    def next(self, state: RunState, cohort: Sequence[Examples]) -> tuple[RunState, Report]:
        """Runs one round."""
        require_enough_clients(self._aggregation, len(cohort))
        with self._runtime.installed():
            output = self.process.learning_process.next(
                state, _on_clients(cohort, self._aggregation)
            )
        return output.state, output.metrics


class TffEvaluation(Evaluation):
    """A compiled federated evaluation."""

    def __init__(
        self, runtime: TffRuntime, parts: EvaluationParts, aggregation: Aggregation
    ) -> None:
        super().__init__(aggregation)
        self._runtime = runtime
        self._parts = parts

    def _scope(self) -> AbstractContextManager:
        return self._runtime.installed()

    def _state_or_initial(self, state: Any) -> Any:
        return self._parts.initialize() if state is None else state

    def _message(self, measured: Any, state: Any) -> Any:
        return self._parts.message(measured, state)

    def _added(self, totals: list[Any], sums: list[Any]) -> list[Any]:
        added: list[Any] = tf.nest.map_structure(np.add, totals, sums)
        return added

    def _decoded(self, state: Any, total: Any) -> tuple[Any, Report]:
        decoded: tuple[Any, Report] = self._parts.decode(state, total)
        return decoded

    def _sums(self, messages: Sequence[Any], clients: Sequence[Examples]) -> list[Any]:
        on_clients = _on_clients(clients, self._aggregation)
        return [self._parts.step(message, on_clients) for message in messages]


def _on_clients(cohort: Sequence[Examples], aggregation: Aggregation) -> list[Any]:
    clients = [to_numpy_examples(client) for client in cohort]
    if not aggregation.numbers_clients:
        return clients
    places = [client_place(client, k) for k, client in enumerate(cohort)]
    return [NumberedClient(client, place) for client, place in zip(clients, places)]


class ProgramContext(tff.program.NativeFederatedContext):
    """A `tff.program.NativeFederatedContext` for clients whose data are structures of arrays.

    TFF's own context traverses arguments by type, and treats the list of clients as one client's
    structure: it drops clients beyond the number of columns, or fails. This context traverses
    arguments by value, and passes lists of clients unchanged.

    Args:
        worker: Worker that runs the computations; it must outlive the context.
    """

    def __init__(self, worker: TffWorker) -> None:
        super().__init__(_CallContext(create_async_context(worker)))

    def invoke(self, comp: tff.Computation, arg: Optional[Any]) -> Any:
        """Invokes `comp`; see `tff.program.FederatedContext.invoke`."""
        return super().invoke(_Call(comp, arg), None)


class _Call(NamedTuple):
    """A computation and its argument, with the interface of a computation without argument."""

    computation: tff.Computation
    argument: Optional[Any]

    @property
    def type_signature(self) -> tff.FunctionType:
        return tff.FunctionType(None, self.computation.type_signature.result)


class _CallContext:
    """An execution context that invokes the computation of a `_Call` with its argument."""

    def __init__(self, context: tff.framework.AsyncExecutionContext) -> None:
        self._context = context

    async def invoke(self, call: _Call, _: None) -> Any:
        return await self._context.invoke(call.computation, await _materialize(call.argument))


async def _materialize(value: Any) -> Any:
    if isinstance(value, tff.structure.Struct):
        return tff.structure.Struct(
            [(name, await _materialize(v)) for name, v in tff.structure.iter_elements(value)]
        )
    return await tff.program.materialize_value(value)
