"""The training loop: rounds, evaluations, checkpoints, and what a run leaves behind."""

from collections.abc import Sequence
from typing import Any

from tff_agnostic.computations.algorithm import Metrics, ServerState
from tff_agnostic.data.cohorts import CohortReader
from tff_agnostic.data.sampling import check_cohort_size
from tff_agnostic.errors import UserError
from tff_agnostic.files import read_json, write_json
from tff_agnostic.models.functional import Examples
from tff_agnostic.program import plots
from tff_agnostic.program.checkpoints import CheckpointFolder
from tff_agnostic.program.config import COHORT_SAMPLINGS
from tff_agnostic.program.evaluation_report import EvaluationReport
from tff_agnostic.program.evaluator import Evaluator, check_readable
from tff_agnostic.program.history import History
from tff_agnostic.program.interrupts import StopRequest
from tff_agnostic.program.progress import Progress
from tff_agnostic.program.round_row import test_values, train_values, without_evaluation
from tff_agnostic.program.run_algorithm import MAX_READS, build_algorithm
from tff_agnostic.program.run_folder import RunFolder
from tff_agnostic.program.run_spec import RunSpec
from tff_agnostic.program.tensorboard import TensorBoardSink
from tff_agnostic.runtimes.runtime import Runtime
from tff_agnostic.tasks.task import Task


class TrainingRun:
    """One run from its first round, or the newest checkpoint, to its result.

    Args:
        spec: What to run.
        folder: Where its files are; see `RunFolder`.
        runtime: Executes the rounds; entered by the caller.
        resume: Go on with the run in `folder`, if there is one.

    Attributes:
        task: The task, loaded.
        security: What reaches the server, where secure sums were asked for.
    """

    def __init__(self, spec: RunSpec, folder: RunFolder, runtime: Runtime, resume: bool) -> None:
        config = spec.config
        self._spec = spec
        self._folder = folder
        self._resume = resume
        # Before the rest, which takes a while.
        folder.check(spec, resume)
        self.task: Task = spec.load_task()
        check_cohort_size(len(self.task.train.client_ids), config.clients_per_round)
        check_readable(self.task.test, MAX_READS)
        folder.check_fingerprint(self.task.fingerprint)
        algorithm = build_algorithm(config, self.task)
        aggregation = config.build_aggregation()
        self._take_events = runtime.take_events
        self._training = runtime.training(algorithm, aggregation)
        self.security = self._training.security
        self._evaluator = Evaluator(
            self.task,
            runtime.evaluation(self.task.model, self.task.num_domains, aggregation),
            config.evaluation_clients,
            config.seed,
        )
        self._history = History(folder.metrics)
        self._checkpoints = CheckpointFolder(folder.checkpoints, config.keep_checkpoints)

    def run(self, stop: StopRequest, show_progress: bool = True) -> EvaluationReport:
        """Trains, evaluates, and writes everything that a run leaves in its folder.

        Args:
            stop: Says when to stop after the round.
            show_progress: Whether to show a bar on a terminal, or lines elsewhere.

        Raises:
            UserError: If the folder belongs to another run or cannot be written, a client is
                malformed, or the model diverges.
            Interrupted: If a signal asked to stop; the run was saved.
        """
        with self._folder.locked():
            # Again: another process may have been faster.
            self._folder.check(self._spec, self._resume)
            state = self._start()
            self._folder.write_config(self._spec, self.task.fingerprint)
            self._history.write()
            return self._finish(self._rounds(state, stop, show_progress))

    def _rounds(self, state: ServerState, stop: StopRequest, show_progress: bool) -> ServerState:
        config = self._spec.config
        total, completed = config.rounds, int(state.round_num)
        clients, find_strata = self.task.train, COHORT_SAMPLINGS[config.cohort_sampling]
        strata = find_strata(clients, self.task.num_domains) if find_strata else None
        with (
            CohortReader(clients, config.clients_per_round, config.seed, total, strata) as cohorts,
            TensorBoardSink(self._folder.tensorboard, self.task.domain_names) as tensorboard,
            Progress(self.task, completed, total, show_progress) as progress,
        ):
            for row in self._history.rows:
                tensorboard.write(row)
            for round_num in range(completed + 1, total + 1):
                state, metrics = self._round(state, round_num, cohorts.read(round_num))
                tensorboard.write(self._record(round_num, state, metrics))
                for event in self._take_events():
                    progress.note(f"round {round_num}: {event}")
                progress.show(round_num, metrics)
                # Asked once: a signal between two questions would be obeyed without saving.
                stopping = stop.signal_number is not None and round_num < total
                due = round_num % config.checkpoint_every == 0 or round_num == total
                if due or stopping:
                    self._save(state)
                if stopping:
                    stop.check(f"round {round_num}")
        return state

    def is_complete(self) -> bool:
        """Returns whether the folder holds the result of this run.

        Raises:
            UserError: If the folder belongs to another run.
        """
        if not self._folder.result.exists():
            return False
        self._folder.check(self._spec, resume=True)
        return bool(read_json(self._folder.result)["rounds"] == self._spec.config.rounds)

    def _start(self) -> ServerState:
        state = self._training.initialize()
        checkpoint = self._checkpoints.load_latest() if self._resume else None
        if checkpoint is not None:
            state = checkpoint.restore(state, str(self._folder.checkpoints))
            print(f"going on after round {checkpoint.round_num}")
        self._history.load(completed_rounds=int(state.round_num))
        # A shorter run was evaluated after its last round, where this one may not be.
        self._history.rows = [
            row if self._is_evaluated(int(row["round"])) else without_evaluation(row)
            for row in self._history.rows
        ]
        return state

    def _round(
        self, state: ServerState, round_num: int, cohort: Sequence[Examples]
    ) -> tuple[ServerState, Metrics]:
        state, metrics = self._training.next(state, cohort)
        clients = metrics["clients"]
        if clients["non_finite"] > 0 and clients["contributed"] == 0:
            raise _diverged(round_num, clients["non_finite"], len(cohort))
        return state, metrics

    def _record(self, round_num: int, state: ServerState, metrics: Metrics) -> Any:
        report = self.evaluate(state) if self._is_evaluated(round_num) else None
        values = train_values(self.task, metrics, state)
        values.update(test_values(self.task, report))
        return self._history.append(round_num, values)

    def _is_evaluated(self, round_num: int) -> bool:
        config = self._spec.config
        return round_num % config.evaluate_every == 0 or round_num == config.rounds

    def evaluate(self, state: ServerState) -> EvaluationReport:
        """Evaluates a state on the test clients: all of them after the run's last round.

        Raises:
            UserError: If the model has diverged.
        """
        is_last = int(state.round_num) == self._spec.config.rounds
        report = self._evaluator(state.weights, on_all=is_last)
        num_clients = sum(report.clients.values())
        if report.clients["non_finite"] > 0 and report.clients["evaluated"] == 0:
            raise _diverged(int(state.round_num), report.clients["non_finite"], num_clients)
        return report

    def _save(self, state: ServerState) -> None:
        self._history.sync()
        self._checkpoints.save(int(state.round_num), state)

    def _finish(self, state: ServerState) -> EvaluationReport:
        report = self.evaluate(state)
        plots.draw_run(self._folder.plots, self.task, self._history.columns())
        config = self._spec.config
        # Last: where it is, the run is complete.
        write_json(
            self._folder.result,
            {
                "task": self._spec.task,
                "algorithm": config.algorithm,
                "runtime": config.runtime,
                "seed": config.seed,
                "rounds": config.rounds,
                **report.to_json(),
                "domain_weights": self.domain_weights(),
            },
        )
        return report

    def domain_weights(self) -> dict[str, float]:
        """Returns lambda of each domain after the last round."""
        last = self._history.rows[-1]
        return {name: float(last[f"lambda/{name}"]) for name in self.task.domain_names}


def _diverged(round_num: int, num_non_finite: int, num_clients: int) -> UserError:
    return UserError(
        f"round {round_num}: the model has diverged: no client returned finite numbers "
        f"({num_non_finite} of {num_clients} did not); lower --client_learning_rate or "
        "--server_learning_rate"
    )
