"""The training loop: rounds, evaluations, checkpoints, and what a run leaves behind.

Meanwhile a person sees a bar or lines of progress, and TensorBoard.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, Optional

import numpy as np
from tqdm.auto import tqdm

from plan_runner.terminal import printable, unescaped
from tff_agnostic.computations.algorithm import Report, RunState
from tff_agnostic.data.clients import clients_digest
from tff_agnostic.data.data_warnings import Remark
from tff_agnostic.data.sampling import (
    COHORT_SAMPLINGS,
    CohortReader,
    Draw,
    PooledExamples,
    Silent,
    nobody_silent,
)
from tff_agnostic.errors import UserError
from tff_agnostic.files import (
    is_keyed_digest,
    make_folder,
    read_json,
    tensorflow_writes,
    write_errors,
)
from tff_agnostic.later import tf
from tff_agnostic.metrics.columns import example_counts
from tff_agnostic.metrics.evaluation_report import SUPERQUANTILE, EvaluationReport, statistic_names
from tff_agnostic.metrics.metrics_file import Column, Numbers
from tff_agnostic.models.model import Examples
from tff_agnostic.progress import is_shown
from tff_agnostic.report_fields import ReportField, ReportFields, Role, paired
from tff_agnostic.reports.evaluation_table import evaluation_table
from tff_agnostic.run.build import run_parts
from tff_agnostic.run.evaluation import Reports, diverged, skipped_rounds
from tff_agnostic.run.folder import RunFolder, changes, trained_with
from tff_agnostic.run.harm import remarks_at_end
from tff_agnostic.run.options import RunConfig
from tff_agnostic.run.privacy import RunPrivacy
from tff_agnostic.run.process import StopRequest
from tff_agnostic.run.results import leave_results
from tff_agnostic.run.spec import RunSpec
from tff_agnostic.runtimes.runtime import Runtime
from tff_agnostic.saving.checkpoints import Checkpoint, CheckpointFolder
from tff_agnostic.tasks.task import DATA, Task

# Is told the round and the evaluation of the main model after it.
Watch = Callable[[int, EvaluationReport], None]
# Is told the rounds that are done, and how many there are.
AfterRound = Callable[[int, int], None]
# Of a whole run, where there is no terminal to draw a bar on.
_NUM_LINES = 20
_OVERALL = "all"
# Bytes of a folder's name, with space for a number: file systems allow 255.
_MAX_RUN_NAME_BYTES = 200


def _only_goes_on(round_num: int, report: EvaluationReport) -> None:
    del round_num, report


def has_result_of(path: Path, config: RunConfig) -> bool:
    """Returns whether a result.json is there, of all rounds and with the evaluation asked for.

    Results of releases without superquantiles stay as they are.
    """
    if not path.exists():
        return False
    result = read_json(path)
    try:
        of_clients = result["overall"].get("over_clients", {}).values()
        with_tail = [of for of in of_clients if SUPERQUANTILE in of]
    except (AttributeError, LookupError, TypeError):
        # What is damaged is told by whoever reads the numbers.
        with_tail = []
    statistics = statistic_names(config.client_percentiles)
    return bool(
        result.get("rounds") == config.rounds
        and result.get("worst_min_examples") in (None, config.worst_min_examples)
        and all(name in of for of in with_tail for name in statistics)
    )


class TrainingRun:
    """One run from its first round, or the newest checkpoint, to its result.

    Args:
        spec: What to run.
        folder: Where its files are; see `RunFolder`.
        runtime: Executes the rounds; entered by the caller.
        resume: Go on with the run in `folder`, if there is one.
        load_task: Returns the task of a run.
        draws: Whether it leaves figures, which may take longer than short training.

    Attributes:
        spec: The run.
        parts: What it is made of.
        left_out: A line for each model of which the run, at its end, has left no Keras file.
        harm: What is to be said first of the run at its end; see `harm.remarks_at_end`.
    """

    def __init__(
        self,
        spec: RunSpec,
        folder: RunFolder,
        runtime: Runtime,
        resume: bool,
        load_task: Callable[[RunSpec], Task] = RunSpec.load_task,
        draws: bool = True,
    ) -> None:
        # Before the rest, which takes a while.
        self._saved = folder.check(spec, resume)
        self.spec = spec
        self._folder = folder
        self._resume = resume
        self._runtime = runtime
        self._draws = draws
        self.left_out: list[str] = []
        self.harm: list[Remark] = []
        self.parts = run_parts(spec, folder, self._saved, runtime, load_task)
        self._data = "" if self.parts.privacy is None else _data_digest(self.parts.task)
        self._checkpoints = CheckpointFolder(
            folder.checkpoints,
            spec.config.keep_checkpoints,
            self.parts.task.model.frozen,
            secret=self.parts.privacy is not None,
            data=self._data,
            trained_with=trained_with(spec, self.parts.fingerprint),
        )
        if self.parts.privacy is not None and self._saved is not None:
            self._check_same_data(self._checkpoints.load_latest())

    def run(
        self,
        stop: StopRequest,
        show_progress: bool = True,
        watch: Watch = _only_goes_on,
        after_round: Optional[AfterRound] = None,
    ) -> EvaluationReport:
        """Trains, evaluates, and writes everything that a run leaves in its folder.

        Args:
            show_progress: Whether to show a bar on a terminal, or lines elsewhere.
            watch: Is called after every evaluation, before a checkpoint of its round; what it
                raises ends the run there.
            after_round: Is called after every round.

        Returns:
            The evaluation of the main model after the last round.

        Raises:
            Interrupted: If a signal asked to stop; the run was saved.
        """
        with self._folder.locked():
            # Again: another process may have been faster.
            self._saved = self._folder.check(self.spec, self._resume)
            state, reports = self._start()
            if len(self.parts.rows.history):
                # Before the config, which says that rows of a shorter run fit this one by now.
                self.parts.rows.history.write()
            for line in changes(self._saved, self.spec, self._runtime.execution()):
                print(line)
            self._folder.write_config(self.spec, self.parts.fingerprint, self._runtime.execution())
            if self.parts.privacy is not None:
                self._begin_private(self.parts.privacy, state)
            state, reports = self._rounds(state, reports, stop, show_progress, watch, after_round)
            self._finish(state, reports)
        return next(iter(reports.values()))

    def _rounds(
        self,
        state: RunState,
        reports: Optional[Reports],
        stop: StopRequest,
        show_progress: bool,
        watch: Watch,
        after_round: Optional[AfterRound],
    ) -> tuple[RunState, Reports]:
        """Runs the rounds that are left; returns the state and its evaluation after the last."""
        config, names = self.spec.config, self.parts.task.domain_names
        total, completed = config.rounds, int(state.round_num)
        quantities = self.parts.quantities
        draw, silent = self._cohorts(state)
        with (
            CohortReader(self.parts.train, draw, total, silent) as cohorts,
            TensorBoardSink(
                self._folder.tensorboard, self.parts.rows.history.columns
            ) as tensorboard,
            Progress(quantities, names, completed, total, show_progress) as progress,
        ):
            for earlier in range(1, completed + 1):
                tensorboard.write(earlier, self.parts.rows.history.numbers(earlier))
            for round_num in range(completed + 1, total + 1):
                state, report = self._round(state, round_num, cohorts.read(round_num))
                reports = (
                    self.parts.evaluations(state)
                    if self.parts.evaluations.are_due(round_num)
                    else None
                )
                if self.parts.privacy is not None:
                    report = self.parts.privacy.account.report(report, round_num)
                tensorboard.write(round_num, self._record(state, report, reports))
                if reports is not None:
                    watch(round_num, next(iter(reports.values())))
                for event in self._runtime.take_events():
                    progress.note(f"round {round_num}: {event}")
                if report["skipped"]:
                    progress.note(f"round {round_num}: {skipped_rounds(self.spec.settings())}")
                progress.show(round_num, report)
                if after_round is not None:
                    after_round(round_num, total)
                # Asked once: a signal between two questions would be obeyed without saving.
                stopping = stop.signal_number is not None and round_num < total
                due = round_num % config.checkpoint_every == 0 or round_num == total
                if due or stopping:
                    self._save(state)
                if stopping:
                    stop.check(f"round {round_num}")
        # The last round is always evaluated.
        assert reports is not None
        return state, reports

    def _cohorts(self, state: RunState) -> tuple[Draw, Silent]:
        """Returns which clients train in a round, and which others answer in silence."""
        if self.parts.privacy is not None:
            return self.parts.privacy.cohorts(state, self.parts.summed)
        if isinstance(self.parts.train, PooledExamples):
            return self.parts.train.draw(), nobody_silent
        config, sampling = self.spec.config, COHORT_SAMPLINGS[self.spec.config.cohort_sampling]
        size, num_domains = config.clients_per_round, self.parts.task.num_domains
        return sampling(self.parts.task.train, num_domains, size, config.seed), nobody_silent

    def is_complete(self) -> bool:
        """Returns whether the folder holds the result of this run."""
        if not self._folder.result.exists():
            return False
        self._folder.check(self.spec, resume=True)
        return has_result_of(self._folder.result, self.spec.config)

    def _start(self) -> tuple[RunState, Optional[Reports]]:
        """Returns the state to go on from, and its evaluation if no rounds are left."""
        state = self.parts.initial
        checkpoint = self._checkpoints.load_latest() if self._resume else None
        if self.parts.privacy is not None:
            self._check_same_releases(checkpoint)
        if checkpoint is not None:
            if self._saved is not None:
                self._saved.check_own(checkpoint)
            state = checkpoint.restore(state, str(self._folder.checkpoints))
            print(f"going on after round {checkpoint.round_num}")
        self.parts.rows.history.load(completed_rounds=int(state.round_num))
        if self.parts.privacy is not None:
            self._account_from(self.parts.privacy, state)
            if checkpoint is not None and not self.parts.privacy.has_noise_of(self.parts.summed):
                # A run of more rounds has the noise that was worked out for fewer.
                summed = self.parts.privacy.aggregation()
                training = self._runtime.training(self.parts.algorithm, summed)
                self.parts = dataclasses.replace(self.parts, summed=summed, training=training)
        return state, self._evaluate_as_in_one_run(state)

    def _check_same_releases(self, checkpoint: Optional[Checkpoint]) -> None:
        """Checks that rounds that a crash lost will be the same releases when they are run again.

        Settings, cohorts and the execution of rounds are unchanged; see `RunFolder`.
        """
        if checkpoint is None and self._folder.metrics.exists():
            raise UserError(
                f"{self._folder.checkpoints}: expected a checkpoint, which holds the key of the "
                "private run's noise, found none: its rounds would be released again with other "
                "noise, which nobody has accounted for"
            )
        self._check_same_data(checkpoint)

    def _check_same_data(self, checkpoint: Optional[Checkpoint]) -> None:
        """Checks that a private run resumes with the examples that its checkpoint was made of."""
        if checkpoint is not None and not is_keyed_digest(checkpoint.data, self._data):
            raise UserError(
                f"{self._folder.path}: expected the examples that the private run there was "
                "trained with, found others: a round that is run again has the same noise, and "
                "other sums would show the difference"
            )

    def _account_from(self, privacy: RunPrivacy, state: RunState) -> None:
        ledger = self.parts.evaluations.ledger
        if ledger is not None:
            ledger.load(int(self.parts.rows.history.largest_in_file("evaluations")))
        privacy.go_on_from(state, self.parts.evaluations)
        privacy.check_plan(None if self._saved is None else self._saved.last_evaluation)
        if ledger is not None:
            # Before metrics.csv forgets rows.
            ledger.write()

    def _evaluate_as_in_one_run(self, state: RunState) -> Optional[Reports]:
        """Gives rows the evaluations that they have where nothing was interrupted.

        A shorter run was evaluated after its last round, and on all test clients, where this one
        may not be, or on some of them. Other evaluations stay, whenever they were due.
        """
        config, completed = self.spec.config, int(state.round_num)
        last, every = (0, 1) if self._saved is None else self._saved.last_evaluation
        if 0 < last <= completed and last % every and not self.parts.evaluations.are_due(last):
            self.parts.rows.change_evaluation(last, None)
        is_last = completed == config.rounds
        was_last = 0 < completed == last and self.parts.evaluations.are_due(completed)
        if not (is_last or (was_last and config.evaluation_clients is not None)):
            return None
        reports = self.parts.evaluations(state)
        self.parts.rows.change_evaluation(completed, reports)
        if self.parts.privacy is not None:
            # It may be of other clients than those that were evaluated then, if any were.
            self.parts.rows.history.change(completed, self.parts.privacy.account.spent(completed))
        return reports if is_last else None

    def _round(
        self, state: RunState, round_num: int, cohort: Sequence[Examples]
    ) -> tuple[RunState, Report]:
        state, report = self.parts.training.next(state, cohort)
        if self.parts.privacy is not None:
            # How many clients were not finite is known with noise only: nothing is made of it.
            return state, report
        clients = report.get("clients", {})
        if clients.get("non_finite", 0) > 0 and clients.get("contributed") == 0:
            model, num_non_finite = self.parts.task.model, clients["non_finite"]
            raise diverged(round_num, num_non_finite, len(cohort), model, cohort)
        self.parts.algorithm.check_report(report)
        return state, report

    def _record(self, state: RunState, report: Report, reports: Optional[Reports]) -> Numbers:
        weights = self.parts.algorithm.main_model(state.algorithm)
        return self.parts.rows.append(int(state.round_num), report, weights, reports)

    def _begin_private(self, privacy: RunPrivacy, state: RunState) -> None:
        """Says what the run will have spent, and keeps its key before anything is released."""
        if int(state.round_num) == 0:
            self._checkpoints.save(0, state, self.parts.algorithm.models(state.algorithm))
        rounds = self.spec.config.rounds
        print("\n".join(privacy.lines(rounds)))

    def _save(self, state: RunState) -> None:
        self.parts.rows.history.sync()
        models = self.parts.algorithm.models(state.algorithm)
        self._checkpoints.save(int(state.round_num), state, models)

    def _finish(self, state: RunState, reports: Reports) -> None:
        private = self.parts.privacy
        self.harm = remarks_at_end(
            self.parts.task.model,
            self.spec.algorithm,
            self.spec.settings(),
            self.parts.rows.columns,
            self.parts.rows.history.values(),
            next(iter(reports.values())),
            lambda: self.parts.evaluations.at_start(self.parts.initial),
        )
        self.left_out = leave_results(
            self._folder,
            self.spec,
            self.parts.task,
            self.parts.rows,
            self.parts.algorithm.models(state.algorithm),
            reports,
            privacy=None if private is None else private.to_json(self.spec.config.rounds),
            remarks=[*self.harm, *self.parts.remarks],
            security=self.parts.training.security,
            draws=self._draws,
        )

    def table(self, report: EvaluationReport) -> str:
        """Returns the table of an evaluation with the weights of domains, as the run calls them."""
        return evaluation_table(
            report, self.parts.rows.domain_weights(), self.parts.rows.weight_name
        )


def _data_digest(task: Task) -> str:
    """Returns a digest of all examples of a task."""
    return task.fingerprint.get(DATA) or clients_digest(task.train, task.test)


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
            total=total,
            initial=completed,
            unit="round",
            file=unescaped(sys.stderr),
            disable=self._lines or not visible,
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
        self._bar.set_postfix_str(printable(text), refresh=False)
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

    A domain without examples in the round has no loss. Returns the first reported number if the run
    does not report the domains' losses; an empty string if there is none.
    """
    pairs = list(paired(quantities, report))
    of_role = {quantity.role: (quantity, value) for quantity, value in pairs}
    if Role.DOMAIN_LOSS not in of_role:
        scalars = [f"{q.name} {float(value):.4g}" for q, value in pairs if not q.per_domain]
        return _with_privacy(scalars[0] if scalars else "", of_role)
    quantity, losses = of_role[Role.DOMAIN_LOSS]
    presence = example_counts([quantity for quantity, _ in pairs])
    counts = [value for q, value in pairs if q == presence and quantity.of_present_domains]
    is_present = np.asarray(counts[0]) != 0 if counts else np.full(len(losses), True)
    if not is_present.any():
        return _with_privacy("no domain with examples", of_role)
    worst = int(np.argmax(np.where(is_present, losses, -np.inf)))
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
    """Returns the run, which is a folder's name, of each domain and of all domains together."""
    names: dict[Optional[str], str] = {None: _OVERALL}
    for domain in domain_names:
        # Without slashes, and no "..".
        plain = re.sub(r"[^\w.+-]+", "_", domain).lstrip(".") or "_"
        name = base = plain.encode()[:_MAX_RUN_NAME_BYTES].decode(errors="ignore")
        number = 1
        while name in names.values():
            number += 1
            name = f"{base}_{number}"
        names[domain] = name
    return names
