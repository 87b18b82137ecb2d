"""The server's folder: states, a journal of what happened, and metrics. A kill loses nothing.

A round of a kind (training, evaluation) has these events in `rounds.jsonl`, each on the disk before
its effects: "drawn" if its cohort is a secret draw, "begun", then "given up" or "done" with the
hash of the state before and after. Sums are not in the folder: a round that was begun resumes with
the same session, and nodes give the same answers again.
"""

from __future__ import annotations

import contextlib
import csv
import fcntl
import hashlib
import io
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional

from fleet.secure_aggregation.sessions import sync_folder
from plan_runner.errors import PlanError
from plan_runner.export import EVALUATION, STATE, TRAINING

JOURNAL = "rounds.jsonl"
_LOCK = "lock"
_NEXT = ".next"
_PARTIAL = ".partial"
# By the kind of rounds: its state, and its metrics without an ending.
_FILES = {TRAINING: (STATE, "metrics"), EVALUATION: ("evaluation_state.ckpt", "evaluation_metrics")}
# The state of a plan with noise holds its key.
_OWNER_ONLY = 0o600
DRAWN, BEGUN, GIVEN_UP, DONE = "drawn", "begun", "given up", "done"
Step = Callable[[str], None]


def sums_file(kind: str, number: int) -> str:
    """Returns the name of the file of a round's kept sums, an .npz file of secure ones."""
    return f"{kind}_{number}_sums"


class StateFolder:
    """The folder, which one server has at a time.

    Args:
        folder: It is made if it is not there.
        step: Called with what is on the disk now, for whoever wants to stop there.
    """

    def __init__(self, folder: Path, step: Step = lambda done: None) -> None:
        self.folder = folder
        self.step = step
        with self.one_line():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _OWNER_ONLY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise PlanError(f"{folder}: expected one server, another one has this folder") from None
        try:
            self.events = self._read_journal()
        except BaseException:
            self.close()
            raise

    def _read_journal(self) -> list[dict[str, Any]]:
        path = self.folder / JOURNAL
        with self.one_line():
            content = path.read_bytes() if path.is_file() else b""
            whole = content[: content.rfind(b"\n") + 1]
            if whole != content:
                # Of a server that was ended while it wrote; nothing follows from it yet.
                os.truncate(path, len(whole))
        events = []
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                event = json.loads(line)
                kind, name = event["kind"], event["event"]
            except (KeyError, RecursionError, TypeError, ValueError):
                kind, name = None, None
            if kind not in _FILES or name not in (DRAWN, BEGUN, GIVEN_UP, DONE):
                raise PlanError(f"{path}, line {number}: expected an event of a round")
            events.append(event)
        return events

    def write(self, event: Mapping[str, Any]) -> None:
        """Adds an event to the journal; when this returns, it is on the disk."""
        path = self.folder / JOURNAL
        with self.one_line():
            size = path.stat().st_size if path.exists() else 0
            try:
                with open(path, "ab") as file:
                    file.write(json.dumps(event).encode() + b"\n")
                    file.flush()
                    os.fsync(file.fileno())
            except OSError:
                # A full disk: half a line is no event.
                os.truncate(path, size)
                raise
            sync_folder(self.folder)
        self.events.append(dict(event))

    def replace(self, name: str, content: bytes) -> None:
        """Writes a file so that a reader finds all of it, or what was there before."""
        with self.one_line():
            partial = self.folder / f"{name}{_PARTIAL}"
            file = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _OWNER_ONLY)
            with os.fdopen(file, "wb") as opened:
                opened.write(content)
                opened.flush()
                os.fsync(opened.fileno())
            os.replace(partial, self.folder / name)
            sync_folder(self.folder)

    def close(self) -> None:
        """Lets another server have the folder."""
        os.close(self._lock)

    @contextlib.contextmanager
    def one_line(self) -> Iterator[None]:
        """Makes what is wrong with the folder a line of words."""
        try:
            yield
        except OSError as e:
            raise PlanError(f"{self.folder}: cannot read or write ({e.strerror})") from e


class StartedRound(NamedTuple):
    """A round that has begun.

    Attributes:
        session: Of its sums; no other round has it.
        cohort: Names of the nodes that were asked.
    """

    session: bytes
    cohort: tuple[str, ...]


class RoundJournal:
    """The rounds of one kind.

    Attributes:
        state: The checkpoint of the server's state after the rounds that are done.

    Args:
        kind: Training, or evaluation.
        manifest: SHA-256 of the export's manifest, as hexadecimal digits.
        initial: The state that the export begins with.
    """

    def __init__(self, folder: StateFolder, kind: str, manifest: str, initial: bytes) -> None:
        self._folder = folder
        self.kind = kind
        self._state_file, self._metrics = _FILES[kind]
        pin = f"{kind}.sha256"
        with folder.one_line():
            if not (folder.folder / pin).exists():
                if self._events(DONE):
                    raise PlanError(f"{folder.folder}: expected the file {pin}, found none")
                folder.replace(self._state_file, initial)
                folder.replace(pin, f"{manifest}\n".encode())
            found = (folder.folder / pin).read_text().strip()
        if found != manifest:
            raise PlanError(
                f"{folder.folder}: expected rounds of the manifest {manifest}, found those of "
                f"{found}"
            )
        self.state = self._recovered()
        self._write_metrics()

    def _recovered(self) -> bytes:
        path = self._folder.folder / self._state_file
        done = self._events(DONE)
        with self._folder.one_line():
            state = path.read_bytes()
            if not done:
                return state
            before, after = done[-1]["before"], done[-1]["after"]
            coming = path.with_name(f"{path.name}{_NEXT}")
            if _hashed(state) == before and before != after and coming.is_file():
                # Ended between the event and the state.
                content = coming.read_bytes()
                if _hashed(content) == after:
                    self._folder.replace(self._state_file, content)
                    return content
        if _hashed(state) != after:
            raise PlanError(
                f"{path}: expected the state after round {self.completed}, with the sha256 "
                f"{after}, found {_hashed(state)}"
            )
        return state

    def _events(self, *names: str) -> list[dict[str, Any]]:
        return [e for e in self._folder.events if e["kind"] == self.kind and e["event"] in names]

    def _rows(self) -> list[dict[str, Any]]:
        return [event["row"] for event in self._events(DONE)]

    @property
    def completed(self) -> int:
        """Number of the last round that is done; 0 of none."""
        done = self._events(DONE)
        return done[-1]["round"] if done else 0

    @property
    def num_done(self) -> int:
        """Number of complete rounds."""
        return len(self._events(DONE))

    @property
    def unfinished(self) -> Optional[bytes]:
        """Session of the round that was begun last, if it is neither done nor given up."""
        events = self._events(BEGUN, GIVEN_UP, DONE)
        if not events or events[-1]["event"] != BEGUN:
            return None
        return bytes.fromhex(events[-1]["session"])

    def attempts(self, number: int) -> int:
        """Returns how often a round has begun."""
        return sum(event["round"] == number for event in self._events(BEGUN))

    def pending(self, number: int) -> Optional[StartedRound]:
        """Returns how a round was begun that is neither done nor given up."""
        events = [e for e in self._events(BEGUN, GIVEN_UP, DONE) if e["round"] == number]
        if not events or events[-1]["event"] != BEGUN:
            return None
        return StartedRound(bytes.fromhex(events[-1]["session"]), tuple(events[-1]["cohort"]))

    def drawn(self, number: int) -> Optional[list[str]]:
        """Returns the names of a round's secret draw; None before the draw."""
        events = [e for e in self._events(DRAWN) if e["round"] == number]
        return list(events[-1]["cohort"]) if events else None

    def draw(self, number: int, names: Sequence[str]) -> None:
        """Writes the secret draw of a round."""
        self._write(DRAWN, number, cohort=list(names))

    def begin(self, number: int, begun: StartedRound) -> None:
        """Writes that a round begins."""
        self._write(BEGUN, number, session=begun.session.hex(), cohort=list(begun.cohort))

    def give_up(self, number: int, why: str, asked_to_open: bool) -> None:
        """Writes that a round's sums will not be opened.

        Args:
            why: Words.
            asked_to_open: Whether nodes were asked to open them.
        """
        self._write(GIVEN_UP, number, why=why, asked_to_open=asked_to_open)

    def keep_sums(self, number: int, sums: bytes) -> None:
        """Writes the sums of a round, for later checks."""
        self._folder.replace(sums_file(self.kind, number), sums)

    def finish(
        self, number: int, state: bytes, row: Mapping[str, Any], facts: Mapping[str, Any]
    ) -> None:
        """Writes the state after a round, its metrics, and other facts about it."""
        self._folder.replace(f"{self._state_file}{_NEXT}", state)
        self._folder.step(f"{self.kind} {number}: next state written")
        before, after = _hashed(self.state), _hashed(state)
        self._write(DONE, number, before=before, after=after, row=dict(row), **facts)
        path = self._folder.folder / self._state_file
        with self._folder.one_line():
            os.replace(path.with_name(f"{path.name}{_NEXT}"), path)
            sync_folder(self._folder.folder)
            self.state = state
            self._folder.step(f"{self.kind} {number}: state replaced")
        self._write_metrics()

    def _write(self, event: str, number: int, **fields: Any) -> None:
        self._folder.write({"event": event, "kind": self.kind, "round": number, **fields})
        self._folder.step(f"{self.kind} {number}: {event}")

    def _write_metrics(self) -> None:
        for ending, write in _WRITERS.items():
            self._folder.replace(f"{self._metrics}{ending}", write(self._rows()).encode())


def _as_lines(rows: Sequence[Mapping[str, Any]]) -> str:
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def _as_table(rows: Sequence[Mapping[str, Any]]) -> str:
    flat = [_flat(row) for row in rows]
    columns = list(dict.fromkeys(name for cells in flat for name in cells))
    file = io.StringIO()
    writer = csv.DictWriter(file, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return file.getvalue()


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a row with a cell for each number; of a metric with several each as NAME/INDEX."""
    cells = {name: value for name, value in row.items() if name != "metrics"}
    for name, value in dict(row["metrics"]).items():
        cells.update(_cells(name, value))
    return cells


def _cells(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, list):
        return {name: value}
    cells = {}
    for number, item in enumerate(value):
        cells.update(_cells(f"{name}/{number}", item))
    return cells


_WRITERS = {".jsonl": _as_lines, ".csv": _as_table}


def _hashed(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
