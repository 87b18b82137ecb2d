"""Proxy for the process that executes an export; needs no TensorFlow itself."""

from __future__ import annotations

import dataclasses
import functools
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional, TypeVar

import numpy as np

from fleet import worker
from fleet.errors import ERRORS
from fleet.secure_aggregation.sum_plan import SummedTensor, SumPlan
from fleet.worker import About, Files, Worker
from plan_runner.errors import PlanError
from plan_runner.export import DEFAULT_LIMITS, Limits, read_arrays
from plan_runner.isolation import IsolationError
from plan_runner.kernel import find_kernel
from plan_runner.play import check_sandbox

_PACKAGE = Path(__file__).resolve().parent
_FUNCTION = "fleet.playing:play_requests"
_T = TypeVar("_T")


class Ended(NamedTuple):
    """The result of a round.

    Attributes:
        state: The checkpoint of the server's new state.
        row: The round's line of `metrics.jsonl`.
        line: A human-readable line on the round.
    """

    state: bytes
    row: str
    line: str


class Player:
    """Executes the parts of an export's rounds.

    The graphs are loaded once, in a process that has a sandbox and no network. It is started by the
    first call, and again if it has ended: at a bound of memory or time, say.

    Args:
        export: Folder of the export.
        pinned: SHA-256 of its manifest, as hexadecimal digits: no other one is played.
        limits: Memory of the process, time of each call, examples of a client.
        trust: Play without a sandbox.
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
        # Beforehand: no process can be started from the sandbox.
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
    def about(self) -> worker.About:
        """What the plan is."""

        def take(files: Files) -> worker.About:
            return worker.About.from_json(json.loads(files[worker.ABOUT_FILE]))

        return self._request(worker.ABOUT, "loading the plan", {}, {}, take)

    def evaluated(self, state: bytes, trained: bytes) -> bytes:
        """Returns the state of an evaluation's round.

        Args:
            state: What the evaluation's last round has left.
            trained: The state of the training to evaluate.
        """
        files = {worker.STATE: state, worker.TRAINED: trained}
        step = "taking the state of the training"
        return self._request(worker.EVALUATED, step, {}, files, _reading(worker.STATE))

    def begin(self, state: bytes) -> bytes:
        """Runs the server's first half of a round; returns the clients' checkpoint."""
        take = _reading(worker.CLIENT_CHECKPOINT)
        return self._request(worker.BEGIN, "beginning a round", {}, {worker.STATE: state}, take)

    def values(self, name: str, checkpoint: bytes, examples: Examples) -> dict[str, np.ndarray]:
        """Runs a client of secure sums; returns its integers by the tensors' names."""

        def take(files: Files) -> dict[str, np.ndarray]:
            content = io.BytesIO(files[worker.VALUES])
            return read_arrays(content, self._limits.max_unpacked_mb, f"values of {name}")

        return self._client(name, checkpoint, examples, take)

    def update(self, name: str, checkpoint: bytes, examples: Examples) -> bytes:
        """Runs a client of plain sums; returns the checkpoint that it sends."""
        return self._client(name, checkpoint, examples, _reading(worker.UPDATE))

    def check_examples(self, name: str, examples: Examples) -> None:
        """Checks that a client's examples are what the plan reads."""
        step = f"reading the examples of {name}"
        self._request(worker.READ, step, *_of_client(name, examples), _nothing)

    def _client(
        self, name: str, checkpoint: bytes, examples: Examples, take: Callable[[Files], _T]
    ) -> _T:
        request, files = _of_client(name, examples)
        files[worker.CLIENT_CHECKPOINT] = checkpoint
        return self._request(worker.CLIENT, f"playing client {name}", request, files, take)

    def check_update(self, name: str, update: bytes) -> None:
        """Checks that a client's update is one that the plan sums."""
        request, files = {"name": name}, {worker.UPDATE: update}
        self._request(
            worker.CHECK, f"reading the update of client {name}", request, files, _nothing
        )

    def plain_sums(self, updates: Sequence[tuple[str, bytes]]) -> bytes:
        """Returns the sums of clients' updates, as `end` takes them.

        Args:
            updates: Names and updates, in the order in which they are summed.
        """
        request = {"names": [name for name, _ in updates]}
        files = {f"{number}": update for number, (_, update) in enumerate(updates)}
        return self._request(worker.SUM, "summing updates", request, files, _reading(worker.SUMS))

    def end(
        self,
        state: bytes,
        sums: bytes,
        round_number: int,
        clients: int,
        bytes_down: int,
        bytes_up: float,
    ) -> Ended:
        """Runs the server's second half of a round.

        Args:
            state: The state that `begin` received.
            sums: The result of `plain_sums` or `secure_sums`.
            round_number: Number of the round, for the report.
            clients: Number of clients in the sums, for the report.
            bytes_down: Bytes that each of them received, for the report.
            bytes_up: Bytes that each of them sent, for the report.
        """
        request = {
            "round": round_number,
            "clients": clients,
            "bytes_down": bytes_down,
            "bytes_up": bytes_up,
        }

        def take(files: Files) -> Ended:
            told = json.loads(files[worker.TOLD])
            return Ended(files[worker.STATE], told["row"], told["line"])

        files = {worker.STATE: state, worker.SUMS: sums}
        return self._request(worker.END, f"round {round_number}", request, files, take)

    @property
    def process_id(self) -> Optional[int]:
        """Id of the process; None if there is none."""
        return self._worker.process_id

    def close(self) -> None:
        """Ends the process."""
        self._worker.close()

    def _request(
        self,
        part: str,
        step: str,
        request: Mapping[str, Any],
        files: Mapping[str, bytes],
        take: Callable[[Files], _T],
    ) -> _T:
        try:
            return self._worker.ask(step, {"part": part, **request}, files, take)
        except IsolationError as e:
            raise PlanError(str(e)) from e
        # Another process has written it, which may have been taken over.
        except (KeyError, OSError, RecursionError, TypeError, ValueError) as e:
            if isinstance(e, ERRORS):
                raise
            raise PlanError(f"{step}: expected results, found others ({type(e).__name__})") from e


class Examples(NamedTuple):
    """The examples of a client: files that the process reads, or records.

    Attributes:
        paths: TFRecord files.
        records: Serialised `tf.train.Example` messages, if there are no files.
        are_stored: Whether the records are those of a client store, whose labels and domains have
            other names than a plan's.
    """

    paths: Sequence[Path] = ()
    records: Sequence[bytes] = ()
    are_stored: bool = False


def _of_client(name: str, examples: Examples) -> tuple[dict[str, Any], dict[str, bytes]]:
    request = {
        "name": name,
        "paths": [str(path) for path in examples.paths],
        "are_stored": examples.are_stored,
    }
    return request, {worker.EXAMPLES: worker.framed(examples.records)}


def secure_sums(sums: Mapping[str, np.ndarray]) -> bytes:
    """Returns sums of integers as `Player.end` takes them."""
    file = io.BytesIO()
    # A name may be that of an argument of `np.savez`.
    arrays: dict[str, Any] = dict(sums)
    np.savez(file, **arrays)
    return file.getvalue()


def _reading(name: str) -> Callable[[Files], bytes]:
    return lambda files: files[name]


def _nothing(files: Files) -> Optional[bytes]:
    del files
    return None


def sum_plan(manifest: str, about: About, min_clients: int, checks_survivors: bool) -> SumPlan:
    """Returns what all parties of a plan's secure sums have to agree on.

    The modulus has room for as many clients as the plan admits, however many take part.

    Args:
        manifest: SHA-256 of the export's manifest, as hexadecimal digits.
        about: What the plan is, of the profile of secure sums.
        min_clients: The fewest clients whose sum may be opened; the plan's number if that is more.
        checks_survivors: See `SumPlan`.
    """
    min_clients = max(min_clients, about.min_clients)
    if about.max_clients is None or about.max_clients < min_clients:
        raise PlanError(
            f"min_clients: expected at most {about.max_clients}, which the plan has room for, "
            f"found {min_clients}; export with a larger --max_clients_per_round"
        )
    tensors = tuple(SummedTensor(t.name, t.shape, t.bound, t.modulus) for t in about.secure)
    return SumPlan(
        bytes.fromhex(manifest), tensors, about.max_clients, min_clients, checks_survivors
    )
