"""Sends requests to a sandboxed process that executes an export; does not import TensorFlow."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional

import numpy as np

from fleet.errors import ERRORS
from fleet.secure_aggregation.sum_plan import SummedTensor, SumPlan
from fleet.worker import CHECKPOINT, REPORT, STATE, SUMS, TRAINED, UPDATE, VALUES, Files, Worker
from plan_runner.errors import PlanError
from plan_runner.export import DEFAULT_LIMITS, Limits, read_arrays
from plan_runner.kernel import find_kernel
from plan_runner.play import check_sandbox

_PACKAGE = Path(__file__).resolve().parent
_FUNCTION = "fleet.playing:play_requests"
# Exceptions that malformed files of a compromised process can raise.
_MALFORMED = (
    *(ArithmeticError, AttributeError, KeyError, OSError, RecursionError, TypeError, ValueError),
)


@dataclasses.dataclass(frozen=True)
class About:
    """The facts about a plan that server and nodes need.

    Attributes:
        kind: Kind of the plan's rounds: training or evaluation.
        secure: Tensors that secure aggregation sums, with moduli that fit `max_clients`; empty
            without secure aggregation.
        max_clients: Maximum number of clients in a round; None for no limit.
        min_clients: Minimum number of clients in a round.
    """

    kind: str
    secure: tuple[SummedTensor, ...]
    max_clients: Optional[int]
    min_clients: int


class RoundEnd(NamedTuple):
    """The result of a round.

    Attributes:
        state: Checkpoint of the server's new state.
        row: The round's line of `metrics.jsonl`.
        line: One-line summary of the round, for the user.
    """

    state: bytes
    row: dict[str, Any]
    line: str


class Examples(NamedTuple):
    """A client's examples, as files or as records.

    Attributes:
        paths: TFRecord files that the sandboxed process reads.
        records: Serialised `tf.train.Example` messages, if there are no files.
        are_stored: Whether the records have a client store's feature names instead of the plan's.
    """

    paths: Sequence[Path] = ()
    records: Sequence[bytes] = ()
    are_stored: bool = False


class Player:
    """Executes an export's rounds in a sandboxed process, one part of a round per call.

    The process has no network, and loads the graphs once. A call starts the process if none is
    running, for example after an earlier call exceeded a memory or time limit.

    Args:
        export: Folder of the export.
        pinned: Required SHA-256 of the export's manifest, as hexadecimal digits.
        limits: Limits on the process's memory, each call's time, and a client's examples.
        reads: Files and folders with examples that the process may read.
    """

    def __init__(
        self,
        export: Path,
        pinned: str,
        limits: Limits = DEFAULT_LIMITS,
        trust: bool = False,
        reads: Iterable[Path] = (),
    ) -> None:
        limits.check()
        check_sandbox("export", trust)
        # Build the kernel before the sandbox starts, because the sandbox allows no compiler.
        kernel = find_kernel()
        self._limits = limits
        payload = {
            "export": str(export),
            "pinned": pinned,
            "limits": dataclasses.asdict(limits),
            "kernel": kernel,
        }
        readable = [str(export), kernel.library, str(_PACKAGE), *map(str, reads)]
        self._worker = Worker(_FUNCTION, payload, limits.bounds, None if trust else readable)

    @functools.cached_property
    def about(self) -> About:
        """Facts about the plan."""
        with self._results("about", "loading the plan", {}) as results:
            kind, secure, most, minimum = json.loads(results[REPORT])
            tensors = (
                SummedTensor(str(name), tuple(map(int, shape)), int(bound), int(modulus))
                for name, shape, bound, modulus in secure
            )
            max_clients = None if most is None else int(most)
            return About(str(kind), tuple(tensors), max_clients, int(minimum))

    def evaluated(self, state: bytes, trained: bytes) -> bytes:
        """Returns an evaluation's state with the weights of a training.

        Args:
            state: The state after the evaluation's last round.
            trained: The state of the training.
        """
        files = {STATE: state, TRAINED: trained}
        with self._results("evaluated", "taking the state of the training", files) as results:
            return results[STATE]

    def begin(self, state: bytes) -> bytes:
        """Runs the server's first half of a round, and returns the checkpoint for clients."""
        with self._results("begin", "beginning a round", {STATE: state}) as results:
            return results[CHECKPOINT]

    def values(self, name: str, checkpoint: bytes, examples: Examples) -> dict[str, np.ndarray]:
        """Runs a client with secure aggregation; returns its integers, keyed by tensor name."""
        with self._client(name, checkpoint, examples) as results:
            content, limit = io.BytesIO(results[VALUES]), self._limits.max_unpacked_mb
            return read_arrays(content, limit, f"values of {name}")

    def update(self, name: str, checkpoint: bytes, examples: Examples) -> bytes:
        """Runs a client without secure aggregation; returns the checkpoint that it sends."""
        with self._client(name, checkpoint, examples) as results:
            return results[UPDATE]

    def _client(
        self, name: str, checkpoint: bytes, examples: Examples
    ) -> contextlib.AbstractContextManager[Files]:
        request, records = _with_examples(name, examples)
        files = {**records, CHECKPOINT: checkpoint}
        return self._results("client", f"playing client {name}", files, **request)

    def check_examples(self, name: str, examples: Examples) -> None:
        """Checks that a client's examples have the plan's features."""
        request, records = _with_examples(name, examples)
        with self._results("read", f"reading the examples of {name}", records, **request):
            pass

    def check_update(self, name: str, update: bytes) -> None:
        """Checks that a client's update has the plan's tensors."""
        step = f"reading the update of client {name}"
        with self._results("check", step, {UPDATE: update}, name=name):
            pass

    def plain_sums(self, updates: Sequence[tuple[str, bytes]]) -> bytes:
        """Returns the sums of clients' updates, for `end`.

        Args:
            updates: Clients' names and updates, in the order of summation.
        """
        files = {f"{number}": update for number, (_, update) in enumerate(updates)}
        names = [name for name, _ in updates]
        with self._results("sum", "summing updates", files, names=names) as results:
            return results[SUMS]

    def end(
        self,
        state: bytes,
        sums: bytes,
        round_number: int,
        clients: int,
        bytes_down: int,
        bytes_up: float,
    ) -> RoundEnd:
        """Runs the server's second half of a round.

        Args:
            state: The state that `begin` received.
            sums: The result of `plain_sums` or `secure_sums`.
            round_number: Number of the round, for the report.
            clients: Number of clients in the sums, for the report.
            bytes_down: Bytes that each client received, for the report.
            bytes_up: Bytes that each client sent, for the report.
        """
        files = {STATE: state, SUMS: sums}
        traffic = {"bytes_down": bytes_down, "bytes_up": bytes_up}
        request = {"number": round_number, "clients": clients, **traffic}
        with self._results("end", f"round {round_number}", files, **request) as results:
            report = json.loads(results[REPORT])
            row = dict(report["row"], metrics=dict(report["row"]["metrics"]))
            return RoundEnd(results[STATE], row, str(report["line"]))

    @property
    def process_id(self) -> Optional[int]:
        """Process id; None if no process runs."""
        return self._worker.process_id

    def close(self) -> None:
        """Ends the process."""
        self._worker.close()

    @contextlib.contextmanager
    def _results(self, part: str, step: str, files: Files, **request: Any) -> Iterator[Files]:
        """Yields the files with which the process answers a request.

        Malformed files end the process, because it may be compromised.

        Raises:
            PlanError: The process rejects the request, exceeds a limit, or returns malformed files.
        """
        try:
            results = self._worker.ask(step, {"part": part, **request}, files)
            try:
                yield results
            except BaseException:
                self._worker.end()
                raise
        except _MALFORMED as e:
            if isinstance(e, ERRORS):
                raise
            raise PlanError(f"{step}: expected results, found malformed ones ({e!r:.100})") from e


def _with_examples(name: str, examples: Examples) -> tuple[dict[str, Any], dict[str, bytes]]:
    request = {
        "name": name,
        "paths": [str(path) for path in examples.paths],
        "are_stored": examples.are_stored,
    }
    return request, {f"{number}": record for number, record in enumerate(examples.records)}


def secure_sums(sums: Mapping[str, np.ndarray]) -> bytes:
    """Serialises sums of integers for `Player.end`."""
    file = io.BytesIO()
    # The type is Any, because a tensor may have the same name as an argument of `np.savez`.
    arrays: dict[str, Any] = dict(sums)
    np.savez(file, **arrays)
    return file.getvalue()


def sum_plan(manifest: str, about: About, min_clients: int) -> SumPlan:
    """Returns the settings of a plan's secure aggregation, which all parties must share.

    The modulus fits the plan's maximum number of clients, and does not depend on the cohort size.

    Args:
        manifest: SHA-256 of the export's manifest, as hexadecimal digits.
        about: Facts about a plan with secure aggregation.
        min_clients: Minimum number of clients in an unmasked sum. The plan may require more.
    """
    min_clients = max(min_clients, about.min_clients)
    if about.max_clients is None or about.max_clients < min_clients:
        raise PlanError(
            f"min_clients: expected at most {about.max_clients}, the maximum that the plan allows, "
            f"found {min_clients}; export with a larger --max_clients_per_round"
        )
    return SumPlan(bytes.fromhex(manifest), about.secure, about.max_clients, min_clients)
