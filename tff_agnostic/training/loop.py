"""The training loop: runs an algorithm's rounds on the clients of a dataset, with observers.

A round depends only on the state, the round's number and its clients. Training that resumes from
the state after round t is therefore bit-identical to uninterrupted training. Observers handle
files, progress and signals.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, Callable, Optional

from tff_agnostic.aggregations.aggregation import Aggregation, PlainSum
from tff_agnostic.aggregations.private_sum import PrivateAggregation
from tff_agnostic.base.options import OptionError
from tff_agnostic.computations.algorithm import Algorithm, Models, Report, RunState
from tff_agnostic.data.clients import ClientDataset
from tff_agnostic.data.sampling import CohortReader, Cohorts, sample_cohort
from tff_agnostic.metrics.evaluation_report import EvaluationReport
from tff_agnostic.models.model import Examples
from tff_agnostic.runtimes.runtime import Runtime, Training
from tff_agnostic.training.divergence import diverged

# Function that maps the state before the first round to the cohorts of the rounds.
CohortBuilder = Callable[[RunState], Cohorts]


@dataclasses.dataclass
class FinishedRound:
    """A finished round. Observers may change its report, evaluation and `stop`.

    Attributes:
        num: Number of the round, from 1.
        last: Number of the last round.
        state: State of the server after the round.
        report: Report of the round.
        evaluation: Evaluation of each model, by name; None if the round has no evaluation.
        stop: Whether to stop training after this round.
    """

    algorithm: Algorithm
    num: int
    last: int
    state: RunState
    report: Report
    evaluation: Optional[Mapping[str, EvaluationReport]] = None
    stop: bool = False

    @functools.cached_property
    def models(self) -> Models:
        """The weights of each model after the round, by name; the main model is first."""
        return self.algorithm.models(self.state.algorithm)


class Observer:
    """Base class of observers, which `train` calls after each round in the given order.

    Example:
        >>> class Patience(Observer):
        ...     def after_round(self, finished):
        ...         finished.stop = finished.report["clients"]["contributed"] == 0
        >>> settings = {"clients_per_round": 4, "runtime": runtime}
        >>> trained = train(algorithm, clients, 2, observers=[Patience()], **settings)
    """

    def accounts_for(self, aggregation: Aggregation) -> bool:
        """Returns whether the observer accounts for the noise of a private aggregation."""
        del aggregation
        return False

    def begin(self, training: Training, state: RunState, last: int) -> None:
        """Called before the first round.

        Args:
            training: Runs the rounds.
            state: State before the first round, which may come from a checkpoint.
            last: Number of the last round.
        """

    def after_round(self, finished: FinishedRound) -> None:
        """Called after each round."""

    def end(self, state: RunState, error: Optional[BaseException]) -> None:
        """Called once when training ends, for each observer whose `begin` has returned.

        Args:
            state: State after the last finished round.
            error: Exception that ended training; None if training was completed or stopped.
        """


@dataclasses.dataclass(frozen=True)
class Trained:
    """The result of training.

    Attributes:
        state: State after the last round, from which `train` resumes.
        models: Weights of each model, by name; the main model is first.
        reports: Report of each round of this call.
        evaluation: Evaluation of each model after the last round, by name; None if no observer
            evaluated the models.
    """

    state: RunState
    models: Models
    reports: Sequence[Report]
    evaluation: Optional[Mapping[str, EvaluationReport]] = None


def train(
    algorithm: Algorithm,
    clients: ClientDataset,
    rounds: int,
    *,
    clients_per_round: int = 10,
    cohorts: Optional[CohortBuilder] = None,
    aggregation: Aggregation = PlainSum(),
    runtime: Optional[Runtime] = None,
    observers: Sequence[Observer] = (),
    state: Optional[RunState] = None,
) -> Trained:
    """Trains up to round `rounds`, from `state` or the initial state.

    Args:
        algorithm: The algorithm, such as `agnostic_fed_avg(problem, AgnosticFedAvgOptions())`.
        clients: The training clients.
        rounds: Number of the last round.
        clients_per_round: Size of cohorts, which are drawn uniformly with the problem's seed;
            ignored if `cohorts` is given.
        cohorts: Maps the state before the first round to the cohorts of the rounds. Private sums
            require `PrivateTraining.cohorts`, which draws with the secret key in the state.
        aggregation: The aggregation of client outputs.
        runtime: Runtime that executes the rounds; the caller must have entered it. By default a
            `CohortRuntime` that exists during this call.
        observers: Observers of the rounds, in this order.
        state: State to resume from.

    Raises:
        OptionError: If the aggregation is private, and no observer accounts for its noise.
        Diverged: If no client of a round has finite values.

    Example:
        >>> problem, clients = classification(network, arrays, ["common", "rare"])
        >>> algorithm = agnostic_fed_avg(problem, AgnosticFedAvgOptions())
        >>> trained = train(algorithm, clients, rounds=2, clients_per_round=4, runtime=runtime)
        >>> int(trained.state.round_num), [w.shape for w in trained.models["model"].trainable]
        (2, [(4, 2), (2,)])
    """
    if cohorts is None:
        if isinstance(aggregation, PrivateAggregation):
            expected = "cohorts that are drawn with the secret key of the noise"
            raise OptionError("cohorts", expected, None)
        ids, seed = clients.client_ids, algorithm.problem.seed

        def cohorts(_: RunState) -> Cohorts:
            return Cohorts(lambda t: sample_cohort(ids, clients_per_round, seed, t))

    with contextlib.ExitStack() as stack:
        if runtime is None:
            from tff_agnostic.runtimes.cohort import CohortRuntime

            runtime = stack.enter_context(CohortRuntime())
        training = runtime.training(algorithm, aggregation)
        state = training.initialize() if state is None else state
        trained = run_rounds(
            training, algorithm, aggregation, clients, cohorts(state), state, rounds, observers
        )
    return trained


def run_rounds(
    training: Training,
    algorithm: Algorithm,
    aggregation: Aggregation,
    clients: ClientDataset,
    cohorts: Cohorts,
    state: RunState,
    last: int,
    observers: Sequence[Observer] = (),
) -> Trained:
    """Runs the rounds after a state, for `train` and other callers with a prepared runtime.

    Args:
        training: Runs the rounds of `algorithm` with `aggregation`.
        aggregation: The aggregation of client outputs.
        state: State before the first round.
        last: Number of the last round.
        observers: Observers of the rounds, in this order.
    """
    is_private = isinstance(aggregation, PrivateAggregation)
    if is_private and not any(observer.accounts_for(aggregation) for observer in observers):
        expected = "an observer that accounts for the noise of the private aggregation"
        raise OptionError("observers", expected, tuple(type(o).__name__ for o in observers))
    reports: list[Report] = []
    evaluation = None
    with contextlib.ExitStack() as stack:
        reader = stack.enter_context(CohortReader(clients, cohorts, last))
        for observer in observers:
            observer.begin(training, state, last)
            stack.push(lambda kind, error, trace, ending=observer: ending.end(state, error))
        for num in range(int(state.round_num) + 1, last + 1):
            cohort = reader.read(num)
            state, report = training.next(state, cohort)
            if not is_private:
                # Skip this for private sums, whose noisy counts do not show which
                # clients had finite values.
                _check_finite(algorithm, report, num, cohort)
                algorithm.check_report(report)
            finished = FinishedRound(algorithm, num, last, state, report)
            for observer in observers:
                observer.after_round(finished)
            reports.append(finished.report)
            evaluation = finished.evaluation
            if finished.stop:
                break
    return Trained(state, algorithm.models(state.algorithm), reports, evaluation)


def _check_finite(
    algorithm: Algorithm, report: Mapping[str, Any], round_num: int, cohort: Sequence[Examples]
) -> None:
    clients = report.get("clients", {})
    if clients.get("non_finite", 0) > 0 and clients.get("contributed") == 0:
        model, num_non_finite = algorithm.problem.model, clients["non_finite"]
        raise diverged(round_num, num_non_finite, len(cohort), model, cohort)
