"""The differential privacy of a run: its noise, what it has spent, and what is said of it."""

import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Optional

import numpy as np

from tff_agnostic.aggregations.aggregation import Aggregation
from tff_agnostic.aggregations.private.distributed_sum import DistributedSum
from tff_agnostic.aggregations.private.options import ServerNoiseOptions
from tff_agnostic.aggregations.private.private_release import PrivateRelease
from tff_agnostic.aggregations.private.registry import PRIVACIES, NoiseFacts
from tff_agnostic.computations.aggregated import AggregatedRound
from tff_agnostic.computations.exchange import Algorithm, Report, RunState
from tff_agnostic.errors import UserError
from tff_agnostic.privacy.accountant import PrivacyAccountant
from tff_agnostic.privacy.calibration import check_delta, default_delta, noise_for_epsilon
from tff_agnostic.privacy.statement import PrivacyStatement, statement
from tff_agnostic.program.evaluation.evaluator import num_evaluations
from tff_agnostic.program.evaluation.private_evaluation import (
    OF_DATA_REMARKS,
    PrivateEvaluation,
    check_metric_bounds,
)
from tff_agnostic.program.private.run_mechanisms import MECHANISMS, least_clients
from tff_agnostic.program.specs.run_spec import RunSpec
from tff_agnostic.quantities import Quantities, Quantity, Role
from tff_agnostic.tasks.task import Task

_KEY_BITS = 63
# Keeps what cohorts are drawn with apart from the key of the noise, of which it tells nothing.
_COHORTS = b"cohorts"
# Keeps the noise of a seed apart from other draws.
_NOISE_STREAM = 17
_EPSILON = Quantity("epsilon", "epsilon spent in training so far", role=Role.PRIVACY)
_OF_EVALUATIONS: Quantities = OrderedDict(
    evaluation_epsilon=Quantity("evaluation_epsilon", "epsilon spent in evaluations so far"),
    evaluations=Quantity("evaluations", "private evaluations of a model so far"),
)
_OF_EXPECTED_COUNTS = (
    "how many examples of each domain a round is expected to have, and the weight of a round that "
    "follows from it, are worked out from exact totals over the training clients"
)

_OF_SIMULATED_NOISE = (
    "this is a simulation: the noise of all clients is made of one secret key, which simulated "
    "clients are sent; on devices each must draw its own"
)


class RunPrivacy:
    """The noise of a private run, and its account.

    Args:
        spec: The run.
        task: Its task, loaded.
        algorithm: Its algorithm.

    Attributes:
        delta: The delta of (epsilon, delta).
        evaluation: The noise of its evaluations; None if they have none.

    Raises:
        UserError: If the settings do not go together, or no noise reaches what was asked for.
    """

    def __init__(self, spec: RunSpec, task: Task, algorithm: Algorithm) -> None:
        self._spec = spec
        num_clients = len(task.train.client_ids)
        options = spec.privacy
        if (options.noise_multiplier is None) == (options.target_epsilon is None):
            found = "none" if options.noise_multiplier is None else "both"
            raise UserError(
                f"--privacy={spec.config.privacy}: expected one of --noise_multiplier and "
                f"--target_epsilon, found {found}"
            )
        self.delta = default_delta(num_clients) if options.delta is None else options.delta
        check_delta(self.delta, num_clients)
        check_metric_bounds(task.model)
        self._mechanism = MECHANISMS[spec.config.privacy](spec, task, algorithm)
        self._noise_multiplier = options.noise_multiplier
        if self._noise_multiplier is None:
            self._noise_multiplier = noise_for_epsilon(
                lambda z: [self._mechanism(z)],
                [spec.config.rounds],
                options.target_epsilon,
                self.delta,
            )
        self._num_models = len(algorithm.models(algorithm.initialize()))
        self.evaluation = self._private_evaluation(task)
        # Evaluations of a model before the rounds of this process, and its first round.
        self._evaluated, self._completed = 0, 0
        self._account = self._accountant(self._noise_multiplier)
        self._split: Mapping[str, float] = {}
        self._pool = ThreadPoolExecutor(1, "privacy-accountant")
        self._ahead: dict[int, Future[Report]] = {}
        self._is_of_clients = False

    def aggregation(self, inner: Aggregation) -> Aggregation:
        """Returns the sums of training over the ones without noise."""
        name, options = self._spec.config.privacy, self._spec.privacy
        facts = NoiseFacts(
            float(self._spec.config.clients_per_round),
            noise_key(options.noise_seed),
            float(self._noise_multiplier),
            least_clients(self._spec),
        )
        build = PRIVACIES[name].build
        assert build is not None
        return build(name, inner, options, facts)

    def quantities(self, quantities: Quantities) -> Quantities:
        """Returns a description of what `report` returns."""
        of_evaluations = {} if self.evaluation is None else _OF_EVALUATIONS
        return OrderedDict(quantities, privacy=OrderedDict(epsilon=_EPSILON, **of_evaluations))

    def report(self, report: Report, rounds: int) -> Report:
        """Returns the report of a round with what was spent up to it, its evaluation included."""
        spent = self._ahead.pop(rounds, None) or self._submitted(rounds)
        if rounds < self._spec.config.rounds:
            # While the next round runs: privacy losses take longer than a small model's rounds.
            self._ahead = {rounds + 1: self._submitted(rounds + 1)}
        return OrderedDict(report, privacy=spent.result())

    def _submitted(self, rounds: int) -> "Future[Report]":
        return self._pool.submit(self.spent, rounds)

    def spent(self, rounds: int) -> Report:
        """Returns what was spent up to a round and its evaluation, in the form of `quantities`."""
        spent: OrderedDict[str, Any] = OrderedDict(
            epsilon=self._account.epsilon(*self._counts(rounds))
        )
        if self.evaluation is not None:
            evaluations = self.evaluations(rounds)
            spent.update(
                evaluation_epsilon=self.evaluation.epsilon(evaluations), evaluations=evaluations
            )
        return spent

    def evaluations(self, rounds: int) -> int:
        """Returns how many evaluations of a model there were up to a round, its own included."""
        every, last = self._spec.config.evaluate_every, self._spec.config.rounds
        due = rounds // every - self._completed // every
        if self._completed < rounds == last and last % every:
            due += 1
        return self._evaluated + due * self._num_models

    def evaluated_again(self) -> None:
        """Accounts for an evaluation of all models after a round that had one before."""
        self._evaluated += self._num_models

    def go_on_from(self, state: RunState, evaluations: int = 0) -> None:
        """Accounts for the noise that a state has, which may be worked out for fewer rounds.

        Args:
            state: The state after some rounds.
            evaluations: How many evaluations of a model there were up to it.
        """
        self._noise_multiplier = float(state.aggregations[0].noise_multiplier)
        self._evaluated, self._completed = evaluations, int(state.round_num)
        self._ahead = {}
        self._account = self._accountant(self._noise_multiplier)

    def has_noise_of(self, aggregation: Aggregation) -> bool:
        """Returns whether sums of training have the noise that is accounted for."""
        assert isinstance(aggregation, PrivateRelease)
        return aggregation.noise_multiplier == self._noise_multiplier

    def check_plan(self, earlier: Optional[tuple[int, int]]) -> None:
        """Refuses other evaluations than their noise was worked out for.

        Args:
            earlier: Rounds of the run that goes on, and rounds between its evaluations; None if
                none goes on.

        Raises:
            UserError: If noise would be another one than before.
        """
        config = self._spec.config
        if self.evaluation is None or self._spec.privacy.evaluation_target_epsilon is None:
            return
        here = num_evaluations(config.rounds, config.evaluate_every)
        if earlier is not None and num_evaluations(*earlier) != here:
            raise UserError(
                f"--evaluation_target_epsilon: expected {num_evaluations(*earlier)} evaluations, "
                f"for which the run's noise was worked out, found {here}: a run that may go on has "
                "--evaluation_noise_multiplier"
            )

    def cohort_seed(self, state: RunState) -> int:
        """Returns what cohorts are drawn with: a secret, as the account takes for granted.

        The run's own seed is in config.json, and every client is sent it.
        """
        key = np.asarray(state.aggregations[0].noise_key, np.int64).tobytes()
        return int.from_bytes(hashlib.sha256(_COHORTS + key).digest()[:16], "little")

    def describe(self, algorithm: Algorithm, aggregation: Aggregation) -> None:
        """Takes down how the budget of a round is divided."""
        exchanges = AggregatedRound(algorithm, aggregation).exchanges
        split = {}
        for exchange in exchanges:
            private, bounds = exchange.aggregation, exchange.bounds
            assert isinstance(private, PrivateRelease)
            prefix = "" if len(exchanges) == 1 else f"{exchange.exchange.name} "
            for group, factor in zip(private.groups(bounds), private.noise_factors(bounds)):
                split[prefix + group.name] = factor
        self._split = split
        self._is_of_clients = isinstance(aggregation, DistributedSum)

    def check_execution(self, execution: Mapping[str, Any]) -> None:
        """Refuses settings of how rounds are executed that clients' noise cannot be drawn with.

        Args:
            execution: See `Runtime.execution`.

        Raises:
            UserError: Naming the flag.
        """
        if self._is_of_clients and execution.get("xla"):
            raise UserError(
                "--xla: expected none with --privacy=distributed: TensorFlow has no Poisson "
                "numbers, of which wide noise of clients is made, that XLA compiles"
            )

    def statement(self, rounds: int) -> PrivacyStatement:
        """Returns what is promised after so many rounds."""
        options = self._spec.privacy
        z = float(self._noise_multiplier)
        remarks = [
            _OF_EXPECTED_COUNTS,
            OF_DATA_REMARKS,
            *([_OF_SIMULATED_NOISE] if self._is_of_clients else []),
        ]
        if options.noise_seed is not None:
            remarks.append(
                f"noise and cohorts are those of --noise_seed={options.noise_seed}: whoever knows "
                "it can take the noise away, so nothing is private"
            )
        split = {name: factor * z for name, factor in self._split.items()}
        if self._is_composed:
            assert self.evaluation is not None
            remarks.append(
                f"epsilon is of training and of {self.evaluations(rounds)} evaluations together: "
                f"{self.evaluation.num_shared} clients are training and test clients"
            )
        return statement(
            self._account, self._counts(rounds), split, remarks, self.evaluation is not None
        )

    def to_json(self, rounds: int) -> dict[str, Any]:
        """Returns what is promised after so many rounds and their evaluations, for result.json."""
        of_training = self.statement(rounds).to_dict()
        if self.evaluation is None:
            return of_training
        of_evaluations = self.evaluation.statement(self.evaluations(rounds))
        return {**of_training, "evaluation": of_evaluations.to_dict()}

    def lines(self, rounds: int) -> list[str]:
        """Returns the same for people."""
        lines = [f"private training: {self.statement(rounds).text}"]
        if self.evaluation is not None:
            of_evaluations = self.evaluation.statement(self.evaluations(rounds))
            lines.append(f"private evaluation, of test clients: {of_evaluations.text}")
        return lines

    @property
    def _is_composed(self) -> bool:
        return self.evaluation is not None and self.evaluation.num_shared > 0

    def _counts(self, rounds: int) -> list[int]:
        return [rounds, self.evaluations(rounds)] if self._is_composed else [rounds]

    def _private_evaluation(self, task: Task) -> Optional[PrivateEvaluation]:
        options, config = self._spec.privacy, self._spec.config
        if not isinstance(options, ServerNoiseOptions) or not options.private_evaluation:
            return None
        planned = num_evaluations(config.rounds, config.evaluate_every) * self._num_models
        inner = self._spec.build_aggregation()
        return PrivateEvaluation(
            options, task, inner, planned, self._mechanism(float(self._noise_multiplier))
        )

    def _accountant(self, noise_multiplier: float) -> PrivacyAccountant:
        mechanisms = [self._mechanism(noise_multiplier)]
        if self._is_composed:
            assert self.evaluation is not None
            mechanisms.append(self.evaluation.mechanism)
        return PrivacyAccountant(mechanisms, self.delta)


def run_privacy(spec: RunSpec, task: Task, algorithm: Algorithm) -> Optional[RunPrivacy]:
    """Returns the privacy of a run; None if it has none.

    Raises:
        UserError: See `RunPrivacy`.
    """
    has_noise = PRIVACIES[spec.config.privacy].build is not None
    return RunPrivacy(spec, task, algorithm) if has_noise else None


def noise_key(noise_seed: Optional[int]) -> tuple[int, int]:
    """Returns a secret from the operating system, or what a seed gives in its place."""
    if noise_seed is None:
        return secrets.randbits(_KEY_BITS), secrets.randbits(_KEY_BITS)
    first, second = np.random.SeedSequence([noise_seed, _NOISE_STREAM]).generate_state(2, np.uint64)
    return int(first >> np.uint64(1)), int(second >> np.uint64(1))
