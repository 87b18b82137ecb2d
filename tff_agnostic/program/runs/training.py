"""A training run: its initial or resumed state, its observers, and its result."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Callable, Optional

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import is_keyed_digest, read_json
from tff_agnostic.computations.algorithm import RunState
from tff_agnostic.data.clients import clients_digest
from tff_agnostic.data.data_warnings import Remark
from tff_agnostic.data.sampling import COHORT_SAMPLINGS, Cohorts, PooledExamples
from tff_agnostic.metrics.evaluation_report import EvaluationReport, statistic_names
from tff_agnostic.program.options.process import StopRequest
from tff_agnostic.program.reports.evaluation_table import evaluation_table
from tff_agnostic.program.runs.build import run_parts
from tff_agnostic.program.runs.evaluation import Reports
from tff_agnostic.program.runs.folder import RunFolder, changes, trained_with
from tff_agnostic.program.runs.harm import remarks_at_end
from tff_agnostic.program.runs.observers import (
    Checkpoints,
    MetricsFile,
    Progress,
    StopOnSignal,
    TensorBoard,
)
from tff_agnostic.program.runs.options import RunConfig
from tff_agnostic.program.runs.privacy import check_plan
from tff_agnostic.program.runs.results import skipped_rounds, write_results
from tff_agnostic.program.runs.spec import RunSettings
from tff_agnostic.runtimes.runtime import Runtime
from tff_agnostic.saving.checkpoints import Checkpoint, CheckpointFolder
from tff_agnostic.tasks.task import DATA, Task
from tff_agnostic.training.divergence import LEARNING_RATES, Diverged
from tff_agnostic.training.loop import Observer, run_rounds
from tff_agnostic.training.private import PrivacyAccount, PrivateTraining

_RATE_FLAGS = "--client_learning_rate or --server_learning_rate"


def has_result(path: Path, config: RunConfig) -> bool:
    """Returns whether a result.json is of all rounds, with evaluations by the run's settings."""
    if not path.exists():
        return False
    result = read_json(path)
    statistics = statistic_names(config.client_percentiles)
    try:
        distributions = result["overall"]["over_clients"].values()
        has_statistics = all(name in one for one in distributions for name in statistics)
    except (AttributeError, LookupError, TypeError):
        # Ignore damaged numbers here: they raise an error where they are read.
        has_statistics = True
    return bool(
        result.get("rounds") == config.rounds
        and result.get("worst_min_examples") == config.worst_min_examples
        and has_statistics
    )


class TrainingRun:
    """A run from its first round, or from the newest checkpoint, to its result.

    Args:
        resume: Whether to resume the folder's run, if it has one.

    Attributes:
        parts: Data, algorithm, sums, noise, rows and evaluations of the run.
        left_out: One line per model that could not be saved as a Keras file.
        harm: Warnings of `harm.remarks_at_end`.
    """

    def __init__(
        self,
        spec: RunSettings,
        folder: RunFolder,
        runtime: Runtime,
        resume: bool,
        load_task: Callable[[RunSettings], Task] = RunSettings.load_task,
    ) -> None:
        # Fail before the data are loaded.
        self._saved = folder.check(spec, resume)
        self.spec = spec
        self._folder = folder
        self._resume = resume
        self._runtime = runtime
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
        self, stop: StopRequest, show_progress: bool = True, observers: Sequence[Observer] = ()
    ) -> EvaluationReport:
        """Trains, evaluates, and writes the output of the run.

        Args:
            show_progress: Whether to show progress, as a bar or in lines.
            observers: Further observers, called before a round is saved. Their exceptions end the
                run.

        Returns:
            The evaluation of the main model after the last round.

        Raises:
            Interrupted: If a signal requested a stop; the run is saved.
        """
        with self._folder.claim(self.spec, self._resume) as self._saved, _rate_flags():
            state = self._start()
            reports = self._evaluate_as_in_one_run(state)
            self._open()
            parts, rounds = self.parts, self.spec.config.rounds
            trained = run_rounds(
                parts.training,
                parts.algorithm,
                parts.summed,
                parts.train,
                self._cohorts(state),
                state,
                rounds,
                [*self.observers(stop, show_progress, observers)],
            )
            if int(trained.state.round_num) < rounds:
                stop.check(f"round {int(trained.state.round_num)}")
            # The last round is always evaluated.
            reports = trained.evaluation or reports
            assert reports is not None
            self._finish(trained.state, reports)
        return next(iter(reports.values()))

    def observers(
        self, stop: StopRequest, show_progress: bool, others: Sequence[Observer]
    ) -> Iterator[Observer]:
        """Yields the observers of the run in order.

        The account must be current before a row shows its numbers, and a row must be written before
        a checkpoint relies on it.
        """
        parts, config, history = self.parts, self.spec.config, self.parts.rows.history
        yield parts.evaluations
        if parts.privacy is not None:
            yield PrivacyAccount(parts.privacy)
        yield MetricsFile(parts.rows)
        yield TensorBoard(self._folder.tensorboard, history)
        yield from others
        yield Progress(
            parts.quantities,
            parts.task.domain_names,
            self._runtime,
            skipped_rounds(self.spec.settings()),
            show_progress,
        )
        yield StopOnSignal(stop)
        private = None if parts.privacy is None else parts.algorithm
        yield Checkpoints(self._checkpoints, config.checkpoint_every, history, private)

    def _open(self) -> None:
        """Drops metrics of lost rounds, prints changed settings, and writes config.json."""
        if len(self.parts.rows.history):
            self.parts.rows.history.write()
        execution = self._runtime.execution()
        for line in changes(self._saved, self.spec, execution):
            print(line)
        self._folder.write_config(self.spec, self.parts.fingerprint, execution)
        if self.parts.privacy is not None:
            print("\n".join(self.parts.privacy.lines(self.spec.config.rounds)))

    def _cohorts(self, state: RunState) -> Cohorts:
        if self.parts.privacy is not None:
            return self.parts.privacy.cohorts(state)
        if isinstance(self.parts.train, PooledExamples):
            return Cohorts(self.parts.train.draw())
        config, sampling = self.spec.config, COHORT_SAMPLINGS[self.spec.config.cohort_sampling]
        size, num_domains = config.clients_per_round, self.parts.task.num_domains
        return Cohorts(sampling(self.parts.task.train, num_domains, size, config.seed))

    def is_complete(self) -> bool:
        """Returns whether the folder has the result of this run."""
        if not self._folder.result.exists():
            return False
        self._folder.check(self.spec, resume=True)
        return has_result(self._folder.result, self.spec.config)

    def _start(self) -> RunState:
        """Returns the initial or the newest saved state; loads metrics and privacy account."""
        state = self.parts.initial
        checkpoint = self._checkpoints.load_latest() if self._resume else None
        if self.parts.privacy is not None:
            self._check_same_releases(checkpoint)
        if checkpoint is not None:
            if self._saved is not None:
                self._saved.check_checkpoint(checkpoint)
            state = checkpoint.restore(state, str(self._folder.checkpoints))
            print(f"resuming after round {checkpoint.round_num}")
        self.parts.rows.history.load(completed_rounds=int(state.round_num))
        if self.parts.privacy is not None:
            self._account_from(self.parts.privacy, state)
            if checkpoint is not None and not self.parts.privacy.accounts_for(self.parts.summed):
                # A run with more rounds than before keeps the noise computed for fewer rounds.
                summed = self.parts.privacy.aggregation()
                training = self._runtime.training(self.parts.algorithm, summed)
                self.parts = dataclasses.replace(self.parts, summed=summed, training=training)
        return state

    def _check_same_releases(self, checkpoint: Optional[Checkpoint]) -> None:
        """Checks that rounds lost in a crash will be released unchanged when they are repeated.

        `RunFolder` and `SavedRun` check settings, cohorts and runtime settings.
        """
        if checkpoint is None and self._folder.metrics.exists():
            raise UserError(
                f"{self._folder.checkpoints}: expected a checkpoint, which holds the key of the "
                "private run's noise, found none: its rounds would be released again with other "
                "noise, which no account covers"
            )
        self._check_same_data(checkpoint)

    def _check_same_data(self, checkpoint: Optional[Checkpoint]) -> None:
        """Checks that a private run resumes with the examples of its checkpoint."""
        if checkpoint is not None and not is_keyed_digest(checkpoint.data, self._data):
            raise UserError(
                f"{self._folder.path}: expected the examples that the private run there was "
                "trained with, found different ones: a repeated round has the same noise, so "
                "that other sums would reveal exact differences"
            )

    def _account_from(self, privacy: PrivateTraining, state: RunState) -> None:
        evaluations, ledger = self.parts.evaluations, self.parts.evaluations.ledger
        if ledger is not None:
            ledger.load(int(self.parts.rows.history.largest_in_file("evaluations")))
        privacy.resume_from(state, None if ledger is None else evaluations)
        earlier = None if self._saved is None else self._saved.last_evaluation
        check_plan(privacy, self.spec, earlier, int(state.round_num), evaluations)
        if ledger is not None:
            # Rows are dropped from metrics.csv only after these checks.
            ledger.write()

    def _evaluate_as_in_one_run(self, state: RunState) -> Optional[Reports]:
        """Makes the evaluations in metrics.csv equal to an uninterrupted run's.

        If a run is resumed with more rounds, its last round so far was evaluated on all test
        clients. An uninterrupted run evaluates fewer clients after that round, or none. All other
        evaluations stay.
        """
        config, completed = self.spec.config, int(state.round_num)
        last, every = (0, 1) if self._saved is None else self._saved.last_evaluation
        if 0 < last <= completed and last % every and not self.parts.evaluations.is_due(last):
            self.parts.rows.change_evaluation(last, None)
        is_last = completed == config.rounds
        was_last = 0 < completed == last and self.parts.evaluations.is_due(completed)
        if not (is_last or (was_last and config.evaluation_clients is not None)):
            return None
        reports = self.parts.evaluations(state)
        self.parts.rows.change_evaluation(completed, reports)
        if self.parts.privacy is not None:
            # The replaced evaluation may have had other clients, so the spent privacy changes as
            # well.
            self.parts.rows.history.change(completed, self.parts.privacy.account.spent(completed))
        return reports if is_last else None

    def _finish(self, state: RunState, reports: Reports) -> None:
        private = self.parts.privacy
        self.harm = remarks_at_end(
            self.parts.task.model,
            self.spec.algorithm,
            self.spec.settings(),
            self.parts.rows.columns,
            self.parts.rows.history.values(),
            next(iter(reports.values())),
            lambda: self.parts.evaluations.evaluate_start(self.parts.initial),
        )
        self.left_out = write_results(
            self._folder,
            self.spec,
            self.parts.task,
            self.parts.rows,
            self.parts.algorithm.models(state.algorithm),
            reports,
            privacy=None if private is None else private.to_json(self.spec.config.rounds),
            remarks=[*self.harm, *self.parts.remarks],
            security=self.parts.training.security,
        )

    def table(self, report: EvaluationReport) -> str:
        """Returns an evaluation as a text table, with the weights of the domains."""
        return evaluation_table(
            report, self.parts.rows.domain_weights(), self.parts.rows.weight_name
        )


@contextlib.contextmanager
def _rate_flags() -> Iterator[None]:
    """Within the context, errors about a diverged model name the flags of the learning rates."""
    try:
        yield
    except Diverged as e:
        raise Diverged(str(e).replace(LEARNING_RATES, _RATE_FLAGS)) from e


def _data_digest(task: Task) -> str:
    return task.fingerprint.get(DATA) or clients_digest(task.train, task.test)
