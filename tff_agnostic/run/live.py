"""What a person sees of a run meanwhile: its progress, TensorBoard."""

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
from tqdm.auto import tqdm

from tff_agnostic.errors import UserError
from tff_agnostic.files import make_folder, tensorflow_writes, write_errors
from tff_agnostic.later import tf
from tff_agnostic.metrics.metrics_file import Column
from tff_agnostic.progress import is_shown
from tff_agnostic.report_fields import ReportField, ReportFields, Role, paired

# Lines of a whole run where there is no terminal to draw a bar on, such as a log file.
_NUM_LINES = 20
_OVERALL = "all"


class Progress:
    """A bar with round, worst domain, its loss and weight; lines where nobody sees a bar.

    Args:
        quantities: What rounds report.
        completed: Rounds completed before.
        total: Rounds of the whole run.
        visible: Whether to show anything.
    """

    def __init__(
        self,
        quantities: ReportFields,
        domain_names: Sequence[str],
        completed: int,
        total: int,
        visible: bool,
    ) -> None:
        self._quantities = quantities
        self._domain_names = domain_names
        self._total = total
        self._visible = visible
        self._lines = visible and not is_shown()
        self._bar = tqdm(
            total=total, initial=completed, unit="round", disable=self._lines or not visible
        )

    def __enter__(self) -> Progress:
        """Starts."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Leaves the bar as it is."""
        self._bar.close()

    def show(self, round_num: int, report: Mapping[str, Any]) -> None:
        """Shows a completed round."""
        text = round_in_short(self._quantities, self._domain_names, report)
        self._bar.set_postfix_str(text, refresh=False)
        self._bar.update()
        if self._lines and round_num % max(1, self._total // _NUM_LINES) == 0:
            line = ", ".join(part for part in (f"round {round_num}/{self._total}", text) if part)
            print(line, file=sys.stderr, flush=True)

    def note(self, line: str) -> None:
        """Shows a line of its own, above the bar."""
        if self._visible:
            tqdm.write(line, file=sys.stderr)


def round_in_short(
    quantities: ReportFields, domain_names: Sequence[str], report: Mapping[str, Any]
) -> str:
    """Returns the domain with the largest loss in a round, its loss and its weight.

    Of a run that does not report the domains' losses, the first number that it reports; nothing if
    there is none.
    """
    pairs = list(paired(quantities, report))
    of_role = {quantity.role: (quantity, value) for quantity, value in pairs}
    if Role.DOMAIN_LOSS not in of_role:
        scalars = [f"{q.name} {float(value):.4g}" for q, value in pairs if not q.per_domain]
        return _with_privacy(scalars[0] if scalars else "", of_role)
    losses = np.asarray(of_role[Role.DOMAIN_LOSS][1])
    worst = int(np.argmax(losses))
    text = f"worst domain {domain_names[worst]}: loss {losses[worst]:.3f}"
    if Role.DOMAIN_WEIGHT in of_role:
        weight, weights = of_role[Role.DOMAIN_WEIGHT]
        text = f"{text}, {weight.name} {weights[worst]:.3f}"
    return _with_privacy(text, of_role)


def _with_privacy(text: str, of_role: Mapping[Role, tuple[ReportField, Any]]) -> str:
    if Role.PRIVACY not in of_role:
        return text
    quantity, value = of_role[Role.PRIVACY]
    return f"{text}, {quantity.name} {float(value):.3g}"


class TensorBoardSink:
    """Writes the rows of metrics.csv as scalars, as a context manager.

    A quantity's name is its tag, in the run of each domain that has a column of it; what is about
    no domain belongs to the run "all". Event files of an earlier part of the run are replaced, so
    that rounds that were run again after a crash do not appear twice.

    Args:
        folder: The log folder.
        columns: The columns to write.
    """

    def __init__(self, folder: Path, columns: Sequence[Column]) -> None:
        self._folder = folder
        self._columns = columns
        self._run_names = _run_names(
            dict.fromkeys(c.domain for c in columns if c.domain is not None)
        )
        self._writers: dict[Optional[str], tf.io.TFRecordWriter] = {}

    def __enter__(self) -> TensorBoardSink:
        """Empties the log folder."""
        with write_errors(self._folder):
            if self._folder.exists():
                shutil.rmtree(self._folder)
        make_folder(self._folder)
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Closes the event files."""
        for writer in self._writers.values():
            try:
                with write_errors(self._folder), tensorflow_writes():
                    writer.close()
            except UserError:
                # What went wrong first says more.
                if exc_info[0] is None:
                    raise

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """Adds the scalars of a round, of those columns that have one."""
        scalars: dict[Optional[str], dict[str, float]] = {}
        for column in self._columns:
            if column.name in numbers:
                of_domain = scalars.setdefault(column.domain, {})
                of_domain[column.quantity.name] = numbers[column.name]
        # Entered once a round: to change the level of a logger costs more than to write an event.
        with write_errors(self._folder), tensorflow_writes():
            for domain, values in scalars.items():
                event = _event(wall_time=time.time(), step=step, summary=_summary(values))
                writer = self._writer(domain)
                writer.write(event.SerializeToString())
                writer.flush()

    def _writer(self, domain: Optional[str]) -> Any:
        if domain not in self._writers:
            folder = self._folder / self._run_names[domain]
            tf.io.gfile.makedirs(str(folder))
            # TensorBoard knows its files by their names, and their format by the first event.
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
    # `tf.summary.scalar` writes the same, but takes longer for a round's scalars than many a round.
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
    """Returns the run, which is a folder's name, of each domain and of what is about none."""
    names: dict[Optional[str], str] = {None: _OVERALL}
    for domain in domain_names:
        # Without slashes, and no "..".
        name = base = re.sub(r"[^\w.+-]+", "_", domain).lstrip(".") or "_"
        number = 1
        while name in names.values():
            number += 1
            name = f"{base}_{number}"
        names[domain] = name
    return names
