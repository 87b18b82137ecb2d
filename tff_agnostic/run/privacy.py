"""The differential privacy of a run: its noise, what it has spent, and what is said of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

from tff_agnostic.aggregations.aggregation import Aggregation
from tff_agnostic.aggregations.distributed_sum import DistributedDpSum
from tff_agnostic.aggregations.private_sum import (
    BudgetEvaluation,
    DistributedOptions,
    PrivateAggregation,
    ServerNoiseOptions,
)
from tff_agnostic.aggregations.registry import PRIVACIES, NoiseFacts
from tff_agnostic.computations.algorithm import Algorithm, RunState
from tff_agnostic.computations.clients import SilentClients
from tff_agnostic.computations.round import Round
from tff_agnostic.data.sampling import (
    COHORT_SAMPLINGS,
    Cohorts,
    SecretCoins,
    mean_cohort_size,
)
from tff_agnostic.errors import UserError, counted
from tff_agnostic.privacy.accountant import (
    PrivacyStatement,
    check_delta,
    check_rounds,
    check_tail,
    default_delta,
    drowned,
    noise_for_epsilon,
    statement,
)
from tff_agnostic.privacy.sampling import NoiseOfClients, SecretCohorts
from tff_agnostic.program.options.flag_table import flags_in_errors
from tff_agnostic.run.evaluation import Evaluations, num_evaluations
from tff_agnostic.run.private_account import (
    MECHANISMS,
    RunAccount,
    cohort_seed,
    noise_key,
    noise_of_run,
    noise_tail,
)
from tff_agnostic.run.spec import RunSpec
from tff_agnostic.tasks.task import Task
from tff_agnostic.training.private_evaluation import (
    PrivateEvaluation,
    check_metric_bounds,
)

_PUBLIC = (
    "the number of training clients, and the names of the domains and of the classes, are assumed "
    "to be public"
)
_OF_EXPECTED_COUNTS = (
    "how many examples of each domain a round is expected to have, and what follows from it (the "
    "weight of a round, and the centre of --lambda_set=ball), are worked out from exact totals "
    "over the training clients"
)
_OF_BEGINNING = (
    "what {flag} names is taken for public: if it was made of these clients' data, it is a release "
    "of its own"
)
_OF_INPUTS = (
    "{what} of the inputs, which models and their cards carry, are made of the training clients: "
    "they are exact, and no part of epsilon"
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

    Attributes:
        delta: The delta of (epsilon, delta).
        mechanism: Returns what a round of training releases with a noise multiplier.
        evaluation: The noise of its evaluations; None if they have none.
        account: What it has spent.
    """

    def __init__(self, spec: RunSpec, task: Task, algorithm: Algorithm) -> None:
        self._spec, self._task, self._algorithm = spec, task, algorithm
        num_clients = len(task.train.client_ids)
        options = spec.privacy
        self._noise_of_clients: Optional[NoiseOfClients] = None
        if isinstance(options, DistributedOptions):
            self._noise_of_clients = noise_of_run(spec, task)
        if (options.noise_multiplier is None) == (options.target_epsilon is None):
            found = "none" if options.noise_multiplier is None else "both"
            raise UserError(
                f"--privacy={spec.config.privacy}: expected one of --noise_multiplier and "
                f"--target_epsilon, found {found}"
            )
        self.delta = default_delta(num_clients) if options.delta is None else options.delta
        check_delta(self.delta, num_clients)
        check_rounds(spec.config.rounds)
        check_metric_bounds(task.model)
        self.mechanism = MECHANISMS[spec.config.privacy](spec, task, algorithm)
        self._noise_multiplier = options.noise_multiplier
        if self._noise_multiplier is None:
            self._noise_multiplier = noise_for_epsilon(
                lambda z: [self.mechanism(z)],
                [spec.config.rounds],
                options.target_epsilon,
                self.delta,
            )
        self._num_models = len(algorithm.models(algorithm.initialize()))
        self.evaluation = self._private_evaluation(task)
        self.account = RunAccount(
            spec.config,
            self.mechanism,
            self._noise_multiplier,
            self.delta,
            self.evaluation,
            self._num_models,
        )
        check_tail(self._tail(spec.config.rounds), self.delta)

    def aggregation(self) -> Aggregation:
        """Returns the sums of training, with the noise that is accounted for."""
        name, options = self._spec.config.privacy, self._spec.privacy
        whose = self._noise_of_clients
        facts = NoiseFacts(
            mean_cohort_size(
                self._spec.config.cohort_sampling,
                len(self._task.train.client_ids),
                self._spec.config.clients_per_round,
            ),
            noise_key(options),
            float(self._noise_multiplier),
            *(() if whose is None else (whose.min_clients, whose.noise_clients)),
        )
        build = PRIVACIES[name].build
        assert build is not None
        return build(name, self._spec.build_aggregation(), options, facts)

    def cohorts(self, state: RunState, summed: Aggregation) -> Cohorts:
        """Returns the cohorts of the rounds.

        Args:
            state: A state of the run, with the key of its noise.
            summed: The sums of training.
        """
        config, clients, secret = self._spec.config, self._task.train, cohort_seed(state)
        whose = self._noise_of_clients
        if whose is None or not isinstance(whose.sampling, SecretCohorts):
            sampling = COHORT_SAMPLINGS[config.cohort_sampling]
            num_domains = self._task.num_domains
            return Cohorts(sampling(clients, num_domains, config.clients_per_round, secret))
        coins = SecretCoins(
            clients.client_ids,
            whose.noise_clients,
            config.clients_per_round,
            config.seed,
            secret,
        )
        bundled = Round(self._algorithm, summed).steps[0].aggregation
        assert isinstance(bundled, DistributedDpSum)
        spec, bundle = self._algorithm.client_data_spec, bundled.bundle

        def silent(round_num: int, num_drawn: int) -> list[Any]:
            bundles, single = divmod(coins.num_silent(round_num, num_drawn), bundle)
            counts = [bundle] * bundles + [1] * single
            return [SilentClients(spec, count) for count in counts]

        return Cohorts(coins.drawn, silent)

    def go_on_from(self, state: RunState, evaluations: Optional[Evaluations] = None) -> None:
        """Accounts for the noise that a state has, which may be worked out for fewer rounds.

        Args:
            state: The state after some rounds.
            evaluations: Those of the run; None if its rounds alone are accounted for.
        """
        self._noise_multiplier = float(state.aggregations[0].noise_multiplier)
        self.account.go_on_from(int(state.round_num), self._noise_multiplier, evaluations)

    def has_noise_of(self, aggregation: Aggregation) -> bool:
        """Returns whether sums of training have the noise that is accounted for."""
        assert isinstance(aggregation, PrivateAggregation)
        return aggregation.noise_multiplier == self._noise_multiplier

    def check_plan(self, earlier: Optional[tuple[int, int]]) -> None:
        """Refuses other evaluations than their noise was worked out for.

        Args:
            earlier: Rounds of the run that goes on, and rounds between its evaluations; None if
                none goes on.
        """
        if self.evaluation is not None and isinstance(
            self._spec.privacy.private_evaluation, BudgetEvaluation
        ):
            self.account.check_plan(earlier)

    def statement(self, rounds: int) -> PrivacyStatement:
        """Returns what is promised after so many rounds."""
        options = self._spec.privacy
        split, of_sums = self._split()
        remarks = [
            _PUBLIC,
            _OF_EXPECTED_COUNTS,
            *(_OF_BEGINNING.format(flag=flag) for flag in _begins_with(self._spec)),
            *(_OF_INPUTS.format(what=what) for what in _told_of_inputs(self._task)),
            *([] if self._noise_of_clients is None else [_OF_SIMULATED_NOISE]),
            *of_sums,
        ]
        if options.noise_seed is not None:
            remarks.append(
                f"noise and cohorts are those of --noise_seed={options.noise_seed}: anyone who "
                "knows it can remove the noise, so nothing is private"
            )
        if self.account.is_composed:
            assert self.evaluation is not None
            evaluations = self.account.evaluations(rounds)
            remarks.append(
                f"epsilon is of training and of {counted(evaluations, 'evaluation')} together: "
                f"{_in_both(self.evaluation.num_shared)}"
            )
        return statement(
            self.account.accountant,
            self.account.counts(rounds),
            split,
            remarks,
            self.evaluation is not None,
            noise_generator=options.generator.title,
            noise_tail=self._tail(rounds),
        )

    def _tail(self, rounds: int) -> float:
        """Returns the tail of the noise of training, and of evaluations composed with it."""
        tail = noise_tail(self.mechanism(float(self._noise_multiplier)), rounds)
        if self.account.is_composed:
            assert self.evaluation is not None
            tail += self.evaluation.tail(self.account.evaluations(rounds))
        return tail

    def _split(self) -> tuple[dict[str, float], Sequence[str]]:
        """Returns the noise multiplier of each group of values, and what is said of the sums."""
        steps = Round(self._algorithm, self.aggregation()).steps
        split: dict[str, float] = {}
        remarks: Sequence[str] = ()
        for step in steps:
            private, bounds = step.aggregation, step.bounds
            assert isinstance(private, PrivateAggregation)
            remarks = private.remarks
            prefix = "" if len(steps) == 1 else f"{step.step.name} "
            for group, factor in zip(private.groups(bounds), private.noise_factors(bounds)):
                split[prefix + group.name] = factor * float(self._noise_multiplier)
        return split, remarks

    def to_json(self, rounds: int) -> dict[str, Any]:
        """Returns what is promised after so many rounds and their evaluations, for result.json."""
        of_training = self.statement(rounds).to_dict()
        if self.evaluation is None:
            return of_training
        of_evaluations = self.evaluation.statement(self.account.evaluations(rounds))
        return {**of_training, "evaluation": of_evaluations.to_dict()}

    def lines(self, rounds: int) -> list[str]:
        """Returns the same for people."""
        of_training = self.statement(rounds)
        lines = [f"private training: {of_training.text}"]
        config, z = self._spec.config, float(self._noise_multiplier)
        note = drowned(z, config.clients_per_round, rounds, config.privacy == "tree")
        if note is not None:
            lines.append(f"note: {note}")
        if self.evaluation is not None:
            of_evaluations = self.evaluation.statement(self.account.evaluations(rounds))
            lines.append(f"private evaluation, of test clients: {of_evaluations.text}")
        return [*lines, f"noise generator: {of_training.noise_generator}"]

    def _private_evaluation(self, task: Task) -> Optional[PrivateEvaluation]:
        options, config = self._spec.privacy, self._spec.config
        if not isinstance(options, ServerNoiseOptions) or options.private_evaluation is None:
            return None
        planned = num_evaluations(config.rounds, config.evaluate_every) * self._num_models
        inner = self._spec.build_aggregation()
        return PrivateEvaluation(
            options, task, inner, planned, self.mechanism(float(self._noise_multiplier))
        )


def _in_both(num_clients: int) -> str:
    if num_clients == 1:
        return "1 client is a training and a test client"
    return f"{num_clients} clients are training and test clients"


def _begins_with(spec: RunSpec) -> list[str]:
    """Returns the flags that name trained models with which a run begins."""
    given = {
        "--initial_model": spec.config.initial_model,
        "--base_predictors": getattr(spec.algorithm, "base_predictors", None),
    }
    return [flag for flag, value in given.items() if value]


def _told_of_inputs(task: Task) -> list[str]:
    """Returns what an import has made of training clients, and models tell their users."""
    inputs = task.inputs
    found = {
        "means and deviations": inputs is not None
        and any(entry.statistics is not None for entry in inputs.of_vectors()),
        "categories": inputs is not None and bool(inputs.categories()),
        "words": task.words is not None,
    }
    told = [what for what, is_told in found.items() if is_told]
    return [", ".join(told)] if told else []


def run_privacy(spec: RunSpec, task: Task, algorithm: Algorithm) -> Optional[RunPrivacy]:
    """Returns the privacy of a run; None if it has none."""
    has_noise = PRIVACIES[spec.config.privacy].build is not None
    if not has_noise:
        return None
    with flags_in_errors(spec.privacy):
        return RunPrivacy(spec, task, algorithm)
