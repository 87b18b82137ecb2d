"""The server's state folder: states, a journal of rounds, and metrics, which survive a kill.

The journal `rounds.jsonl` has these events for each training or evaluation round: "drawn" if the
cohort is sampled secretly, "begun", then "given up" or "done". Each event is on the disk before it
takes effect. "done" contains the hashes of the state before and after the round. No sum is stored
for resuming: an unfinished round resumes in the same session, in which nodes repeat their answers.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Optional

from fleet.node_noise.account import Lines
from fleet.secure_aggregation.sessions import remove_partial_files, replace_file, sync_folder
from plan_runner.errors import PlanError
from plan_runner.export import EVALUATION, METRICS, STATE, TRAINING

JOURNAL = "rounds.jsonl"
EVENTS = PLAN, DRAWN, BEGUN, GIVEN_UP, DONE = "plan", "drawn", "begun", "given up", "done"
_LOCK = "lock"
_NEXT = ".next"
# Names of the state file and the metrics file, keyed by the kind of rounds.
_FILES = {
    TRAINING: (STATE, METRICS),
    EVALUATION: ("evaluation_state.ckpt", "evaluation_metrics.jsonl"),
}


def sums_file(kind: str, number: int) -> str:
    """Returns the file name of a round's stored sums; secure sums are in NPZ format."""
    return f"{kind}_{number}_sums"


class StateFolder:
    """The state folder, created if missing, and locked by one server at a time.

    Args:
        step: Called with the description of each completed write; may raise to stop the server.
    """

    def __init__(self, folder: Path, step: Callable[[str], None] = lambda done: None) -> None:
        self.folder = folder
        self.step = step
        with self.one_line():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with contextlib.ExitStack() as stack:
            stack.callback(self.close)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise PlanError(f"{folder}: expected one server, found a second") from None
            with self.one_line():
                remove_partial_files(folder)
            self.journal = Lines(folder / JOURNAL)
            for number, event in enumerate(self.journal.lines, 1):
                # Search a list, because an invalid kind may be unhashable.
                if event.get("kind") not in [*_FILES] or event.get("event") not in EVENTS:
                    raise PlanError(
                        f"{self.journal.path}, line {number}: expected an event of a round, found "
                        f"{event!r:.100}"
                    )
            stack.pop_all()

    def replace(self, name: str, content: bytes) -> None:
        """Replaces a file atomically."""
        with self.one_line():
            replace_file(self.folder / name, content)

    def close(self) -> None:
        """Unlocks the folder for other servers."""
        os.close(self._lock)

    @contextlib.contextmanager
    def one_line(self) -> Iterator[None]:
        """Converts file-system errors to `PlanError`."""
        try:
            yield
        except OSError as e:
            raise PlanError(f"{self.folder}: cannot read or write ({e.strerror})") from e


class StartedRound(NamedTuple):
    """A round that has begun.

    Attributes:
        session: Unique id of the session that computes the round's sums.
        cohort: Names of the selected nodes.
    """

    session: bytes
    cohort: tuple[str, ...]


class RoundJournal:
    """Journal of the training rounds, or of the evaluation rounds.

    Attributes:
        state: Checkpoint of the server's state after the completed rounds.

    Args:
        kind: TRAINING or EVALUATION.
        manifest: SHA-256 of the export's manifest, as hexadecimal digits.
        initial: The export's initial state.
    """

    def __init__(self, folder: StateFolder, kind: str, manifest: str, initial: bytes) -> None:
        self._folder = folder
        self.kind = kind
        self._state_file, self._metrics_file = _FILES[kind]
        plans = self._events(PLAN)
        if not plans:
            self._check_new(initial)
            folder.replace(self._state_file, initial)
            self.write(PLAN, manifest=manifest)
        elif plans[0]["manifest"] != manifest:
            raise PlanError(
                f"{folder.folder}: expected rounds of the manifest {manifest}, found rounds of "
                f"{plans[0]['manifest']}"
            )
        self.state = self._recover()
        self._write_metrics()

    def _check_new(self, initial: bytes) -> None:
        """Checks that a new journal does not overwrite the state of earlier rounds."""
        path = self._folder.folder / self._state_file
        with self._folder.one_line():
            has_state = path.exists() and path.read_bytes() != initial
        if has_state or self._events(*EVENTS):
            raise PlanError(
                f"{self._folder.journal.path}: expected the plan of the existing state "
                f"{path.name}, found none"
            )

    def _recover(self) -> bytes:
        path = self._folder.folder / self._state_file
        done = self._events(DONE)
        with self._folder.one_line():
            state = path.read_bytes()
            if not done or _digest(state) == done[-1]["after"]:
                return state
            pending = path.with_name(f"{path.name}{_NEXT}")
            # The server may have been killed after it wrote the event, but before it replaced the
            # state.
            if _digest(state) == done[-1]["before"] and pending.is_file():
                content = pending.read_bytes()
                if _digest(content) == done[-1]["after"]:
                    self._folder.replace(self._state_file, content)
                    return content
        raise PlanError(
            f"{path}: expected the state after round {self.completed}, with the sha256 "
            f"{done[-1]['after']}, found {_digest(state)}"
        )

    def _events(self, *names: str) -> list[dict[str, Any]]:
        events = self._folder.journal.lines
        return [e for e in events if e["kind"] == self.kind and e.get("event") in names]

    @property
    def completed(self) -> int:
        """Number of the last completed round; 0 before the first."""
        done = self._events(DONE)
        return done[-1]["round"] if done else 0

    @property
    def num_done(self) -> int:
        """Number of completed rounds."""
        return len(self._events(DONE))

    def pending(self, number: Optional[int] = None) -> Optional[StartedRound]:
        """Returns the round that has begun, but is neither done nor given up; None if none has.

        Args:
            number: Number that the round must have; None for any number.
        """
        events = self._events(BEGUN, GIVEN_UP, DONE)
        if not events or events[-1]["event"] != BEGUN or number not in (None, events[-1]["round"]):
            return None
        return StartedRound(bytes.fromhex(events[-1]["session"]), tuple(events[-1]["cohort"]))

    def drawn(self, number: int) -> Optional[list[str]]:
        """Returns the nodes' names in a round's secret cohort; None before it is sampled."""
        events = [e for e in self._events(DRAWN) if e["round"] == number]
        return list(events[-1]["cohort"]) if events else None

    def begin(self, number: int, started: StartedRound) -> None:
        """Writes the start of a round."""
        self.write(BEGUN, number, session=started.session.hex(), cohort=list(started.cohort))

    def keep_sums(self, number: int, sums: bytes) -> None:
        """Writes the sums of a round, for later checks."""
        self._folder.replace(sums_file(self.kind, number), sums)

    def finish(
        self, number: int, state: bytes, row: Mapping[str, Any], facts: Mapping[str, Any]
    ) -> None:
        """Writes the state after a round, its metrics, and other facts about it."""
        self._folder.replace(f"{self._state_file}{_NEXT}", state)
        self._folder.step(f"{self.kind} {number}: next state written")
        hashes = {"before": _digest(self.state), "after": _digest(state)}
        self.write(DONE, number, **hashes, row=dict(row), **facts)
        path = self._folder.folder / self._state_file
        with self._folder.one_line():
            os.replace(path.with_name(f"{path.name}{_NEXT}"), path)
            sync_folder(self._folder.folder)
        self.state = state
        self._folder.step(f"{self.kind} {number}: state replaced")
        self._write_metrics()

    def write(self, event: str, number: int = 0, **fields: Any) -> None:
        """Appends an event to the journal; see the module's docstring."""
        self._folder.journal.append({"event": event, "kind": self.kind, "round": number, **fields})
        if event != PLAN:
            self._folder.step(f"{self.kind} {number}: {event}")

    def _write_metrics(self) -> None:
        rows = [json.dumps(event["row"]) for event in self._events(DONE)]
        self._folder.replace(self._metrics_file, "".join(f"{row}\n" for row in rows).encode())


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
