"""Observers of a run: metrics.csv, TensorBoard, progress, checkpoints.

`TrainingRun.observers` determines their order. The privacy account is updated before a row shows
its numbers. A row is written before a checkpoint relies on it. The checkpoint comes last, so that
no file is older than the state from which the run resumes.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

import numpy as np

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import make_folder, tensorflow_writes, write_errors
from tff_agnostic.base.later import tf
from tff_agnostic.base.report_fields import ReportField, ReportFields, Role, paired
from tff_agnostic.base.terminal import printable, unescaped
from tff_agnostic.computations.algorithm import Algorithm, RunState
from tff_agnostic.metrics.columns import RunRows, example_counts
from tff_agnostic.metrics.metrics_file import History
from tff_agnostic.program.options.process import StopRequest
from tff_agnostic.program.progress import LongWork, is_shown, tqdm
from tff_agnostic.runtimes.runtime import Runtime, Training
from tff_agnostic.saving.checkpoints import CheckpointFolder
from tff_agnostic.training.loop import FinishedRound, Observer

# Number of progress lines per run if there is no terminal for a bar.
_NUM_LINES = 20
_OVERALL = "all"
# Maximum bytes of a folder's name without its number: file systems allow 255 in total.
_MAX_RUN_NAME_BYTES = 200


class MetricsFile(Observer):
    """Writes a row of metrics.csv for each round."""

    def __init__(self, rows: RunRows) -> None:
        self._rows = rows

    def after_round(self, finished: FinishedRound) -> None:
        """Writes the row of a round."""
        weights = next(iter(finished.models.values()))
        self._rows.append(finished.num, finished.report, weights, finished.evaluation)


class StopOnSignal(Observer):
    """Stops after the round in which a signal requested it."""

    def __init__(self, stop: StopRequest) -> None:
        self._stop = stop

    def after_round(self, finished: FinishedRound) -> None:
        """Stops the run if a signal requested it, unless the round is the last one."""
        # Read the signal's number only once: a signal between two reads would stop the run without
        # saving.
        if self._stop.signal_number is not None and finished.num < finished.last:
            finished.stop = True


class Checkpoints(Observer):
    """Saves the state every few rounds, after the last round, and when the run stops.

    Args:
        history: Rows of metrics.csv, written to disk before a checkpoint relies on them.
        private: Algorithm of a private run, whose initial state is also saved: it contains the key
            of the noise, which must be saved before anything is released. None for a run without
            noise.
    """

    def __init__(
        self,
        folder: CheckpointFolder,
        every: int,
        history: History,
        private: Optional[Algorithm] = None,
    ) -> None:
        self._folder = folder
        self._every = every
        self._history = history
        self._private = private

    def begin(self, training: Training, state: RunState, last: int) -> None:
        """Saves the initial state of a private run."""
        if self._private is not None and int(state.round_num) == 0:
            self._folder.save(0, state, self._private.models(state.algorithm))

    def after_round(self, finished: FinishedRound) -> None:
        """Saves the state if a checkpoint is due after the round, or if the run stops."""
        is_due = finished.num % self._every == 0 or finished.num == finished.last
        if is_due or finished.stop:
            self._history.sync()
            self._folder.save(finished.num, finished.state, finished.models)


class Progress(Observer):
    """Shows round, worst domain, its loss and its weight: in a bar, or else in lines of output.

    Args:
        runtime: Executes the rounds; its events are shown.
        skipped_text: Text about a round whose sums or next state were not finite.
    """

    def __init__(
        self,
        quantities: ReportFields,
        domain_names: Sequence[str],
        runtime: Runtime,
        skipped_text: str,
        visible: bool,
    ) -> None:
        self._quantities = quantities
        self._domain_names = domain_names
        self._runtime = runtime
        self._skipped_text = skipped_text
        self._visible = visible
        self._has_lines = visible and not is_shown()

    def begin(self, training: Training, state: RunState, last: int) -> None:
        """Shows the bar."""
        self._bar = tqdm.tqdm(
            total=last,
            initial=int(state.round_num),
            unit="round",
            file=unescaped(sys.stderr),
            disable=self._has_lines or not self._visible,
        )

    def after_round(self, finished: FinishedRound) -> None:
        """Shows a round, and the events of the runtime in it."""
        notes = list(self._runtime.take_events())
        if finished.report["skipped"]:
            notes.append(self._skipped_text)
        if self._visible:
            for note in notes:
                # Print events above the bar.
                tqdm.tqdm.write(f"round {finished.num}: {note}", file=sys.stderr)
        text = progress_text(self._quantities, self._domain_names, finished.report)
        self._bar.set_postfix_str(printable(text), refresh=False)
        self._bar.update()
        if self._has_lines and finished.num % max(1, finished.last // _NUM_LINES) == 0:
            parts = (f"round {finished.num}/{finished.last}", text)
            print(", ".join(filter(None, parts)), file=sys.stderr, flush=True)

    def end(self, state: RunState, error: Optional[BaseException]) -> None:
        """Closes the bar, which stays visible."""
        self._bar.close()


class RoundsDone(Observer):
    """Shows the finished rounds of a run in the progress of several runs."""

    def __init__(self, work: LongWork) -> None:
        self._work = work

    def after_round(self, finished: FinishedRound) -> None:
        """Shows a round."""
        self._work.within(finished.num, finished.last)


def progress_text(
    quantities: ReportFields, domain_names: Sequence[str], report: Mapping[str, Any]
) -> str:
    """Returns a line about a round: the domain with the largest loss, its loss and its weight.

    Domains without examples in the round are ignored. If the report has no losses of domains, the
    line shows the report's first number instead. Without any number the line is empty.
    """
    pairs = list(paired(quantities, report))
    with_role = {quantity.role: (quantity, value) for quantity, value in pairs}
    if Role.DOMAIN_LOSS not in with_role:
        scalars = [f"{q.name} {float(value):.4g}" for q, value in pairs if not q.per_domain]
        return _with_privacy(scalars[0] if scalars else "", with_role)
    quantity, losses = with_role[Role.DOMAIN_LOSS]
    presence = example_counts([quantity for quantity, _ in pairs])
    counts = [value for q, value in pairs if q == presence and quantity.needs_examples]
    is_present = np.asarray(counts[0]) != 0 if counts else np.full(len(losses), True)
    if not is_present.any():
        return _with_privacy("no domain with examples", with_role)
    worst = int(np.argmax(np.where(is_present, losses, -np.inf)))
    text = f"worst domain {domain_names[worst]}: loss {losses[worst]:.3f}"
    if Role.DOMAIN_WEIGHT in with_role:
        weight, weights = with_role[Role.DOMAIN_WEIGHT]
        text = f"{text}, {weight.name} {weights[worst]:.3f}"
    return _with_privacy(text, with_role)


def _with_privacy(text: str, with_role: Mapping[Role, tuple[ReportField, Any]]) -> str:
    if Role.PRIVACY not in with_role:
        return text
    quantity, value = with_role[Role.PRIVACY]
    return f"{text}, {quantity.name} {float(value):.3g}"


class TensorBoard(Observer):
    """Writes the rows of metrics.csv as scalars.

    A quantity's name is its tag, in a TensorBoard run per domain; quantities without domains are in
    the run "all". A resumed run rewrites the event files from the first round, so that rounds
    repeated after a crash do not appear twice.
    """

    def __init__(self, folder: Path, history: History) -> None:
        self._folder = folder
        self._history = history
        self._writers: dict[Optional[str], tf.io.TFRecordWriter] = {}

    def begin(self, training: Training, state: RunState, last: int) -> None:
        """Empties the log folder, and writes the rows of earlier rounds."""
        columns = self._history.columns
        domains = dict.fromkeys(c.domain for c in columns if c.domain is not None)
        self._run_names = _run_names(domains)
        with write_errors(self._folder):
            if self._folder.exists():
                shutil.rmtree(self._folder)
        make_folder(self._folder)
        for earlier in range(1, int(state.round_num) + 1):
            self._write(earlier)

    def after_round(self, finished: FinishedRound) -> None:
        """Writes the scalars of a round."""
        self._write(finished.num)

    def end(self, state: RunState, error: Optional[BaseException]) -> None:
        """Closes the event files."""
        for writer in self._writers.values():
            try:
                with write_errors(self._folder), tensorflow_writes():
                    writer.close()
            except UserError:
                # An earlier error is more informative.
                if error is None:
                    raise

    def _write(self, round_num: int) -> None:
        numbers = self._history.numbers(round_num)
        scalars: dict[Optional[str], dict[str, float]] = {}
        for column in self._history.columns:
            if column.name in numbers:
                values = scalars.setdefault(column.domain, {})
                values[column.quantity.name] = numbers[column.name]
        # Enter these contexts once per round, as changing a logger's level costs more than writing
        # an event.
        with write_errors(self._folder), tensorflow_writes():
            for domain, values in scalars.items():
                event = _event(wall_time=time.time(), step=round_num, summary=_summary(values))
                writer = self._writer(domain)
                writer.write(event.SerializeToString())
                writer.flush()

    def _writer(self, domain: Optional[str]) -> Any:
        if domain not in self._writers:
            folder = self._folder / self._run_names[domain]
            tf.io.gfile.makedirs(str(folder))
            # TensorBoard recognises its files by their names, and their format by the first event.
            path = folder / f"events.out.tfevents.{int(time.time())}.{os.getpid()}"
            writer = tf.io.TFRecordWriter(str(path))
            writer.write(_event(file_version="brain.Event:2").SerializeToString())
            self._writers[domain] = writer
        return self._writers[domain]


def _event(**fields: Any) -> Any:
    from tensorboard.compat.proto.event_pb2 import Event

    return Event(**fields)


def _summary(values: Mapping[str, float]) -> Any:
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.types_pb2 import DataType
    from tensorboard.plugins.scalar.metadata import create_summary_metadata

    scalar = create_summary_metadata(description=None, display_name=None)
    # `tf.summary.scalar` writes the same, but may take longer for a round's scalars than the round.
    return Summary(
        value=[
            Summary.Value(
                tag=tag,
                metadata=scalar,
                tensor=TensorProto(dtype=DataType.DT_FLOAT, float_val=[value], tensor_shape={}),
            )
            for tag, value in values.items()
        ]
    )


def _run_names(domain_names: Iterable[str]) -> dict[Optional[str], str]:
    """Returns the folder name of each domain's TensorBoard run; None maps to the run "all"."""
    names: dict[Optional[str], str] = {None: _OVERALL}
    for domain in domain_names:
        # A folder's name must have no slash, and must not be "..".
        plain = re.sub(r"[^\w.+-]+", "_", domain).lstrip(".") or "_"
        name = base = plain.encode()[:_MAX_RUN_NAME_BYTES].decode(errors="ignore")
        number = 1
        while name in names.values():
            number += 1
            name = f"{base}_{number}"
        names[domain] = name
    return names
