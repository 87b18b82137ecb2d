"""Private training: noisy sums, secret cohorts, the privacy account and the privacy statement."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Optional

from tff_agnostic.aggregations.aggregation import Aggregation, SecurityProperty
from tff_agnostic.aggregations.distributed_sum import DistributedDpSum
from tff_agnostic.aggregations.private_sum import (
    DistributedOptions,
    PrivacyOptions,
    PrivateAggregation,
    ServerNoiseOptions,
)
from tff_agnostic.aggregations.registry import PRIVACIES, NoiseFacts
from tff_agnostic.base.errors import counted
from tff_agnostic.base.later import tf
from tff_agnostic.base.options import OptionError, Verbatim
from tff_agnostic.computations.algorithm import Algorithm, RunState
from tff_agnostic.computations.clients import Clients, Place, client_arrays
from tff_agnostic.computations.round import Round, trace_steps, traced_specs
from tff_agnostic.data.sampling import Cohorts
from tff_agnostic.privacy.accountant import (
    PrivacyStatement,
    check_delta,
    check_rounds,
    check_tail,
    default_delta,
    noise_for_epsilon,
    noise_warning,
    statement,
)
from tff_agnostic.privacy.distributed import DistributedNoise, IntegerGroup
from tff_agnostic.privacy.mechanisms import CentralNoise, TreeNoise
from tff_agnostic.privacy.sampling import NoisyCohorts, SecretCohorts, noisy_cohorts
from tff_agnostic.privacy.tree import Participations
from tff_agnostic.tasks.task import Task
from tff_agnostic.training.loop import FinishedRound, Observer
from tff_agnostic.training.private_account import (
    MechanismBuilder,
    PlannedEvaluations,
    PrivateAccount,
    noise_tail,
)
from tff_agnostic.training.private_cohorts import CohortPlan, noise_key
from tff_agnostic.training.private_evaluation import PrivateEvaluation, check_metric_bounds

_PUBLIC = (
    "the number of training clients, and the names of the domains and of the classes, are assumed "
    "to be public"
)
_EXACT_TOTALS = (
    "how many examples of each domain a round is expected to have, and what follows from it (the "
    "weight of a round, and the centre of a ball of lambda), are worked out from exact totals "
    "over the training clients"
)
_SIMULATED_NOISE = (
    "this is a simulation: the noise of all clients is made of one secret key, which simulated "
    "clients are sent; on devices each must draw its own"
)


class PrivateTraining:
    """Differentially private training of an algorithm.

    Args:
        kind: A name in `PRIVACIES` with noise: "central", "distributed" or "tree".
        options: Options of this kind of privacy.
        inner: The aggregation of clipped outputs; a secure sum for distributed noise.
        plan: The training clients, and how cohorts are sampled.
        task: The task whose test clients are evaluated with noise, according to
            `options.private_evaluation`; None without private evaluations.
        evaluations: Planned number of evaluations.
        remarks: Additional remarks for the privacy statement.

    Attributes:
        delta: The delta of (epsilon, delta).
        mechanism: Maps a noise multiplier to the `Mechanism` of the rounds.
        evaluation: Noise and account of private evaluations; None if evaluations have no noise.
        account: The privacy account of rounds and evaluations.

    Raises:
        OptionError: If options and plan are incompatible.

    Example:
        >>> plan = CohortPlan(clients, num_domains=2, rounds=50, clients_per_round=10)
        >>> options = ServerNoiseOptions(target_epsilon=2.0)
        >>> private = PrivateTraining("central", options, PlainSum(), algorithm, plan)
        >>> train(
        ...     algorithm, clients, rounds=50, aggregation=private.aggregation(),
        ...     cohorts=private.cohorts, observers=[PrivacyAccount(private)],
        ... )
        >>> private.statement(50).text
    """

    def __init__(
        self,
        kind: str,
        options: PrivacyOptions,
        inner: Aggregation,
        algorithm: Algorithm,
        plan: CohortPlan,
        *,
        task: Optional[Task] = None,
        evaluations: int = 0,
        remarks: Sequence[str] = (),
    ) -> None:
        self._kind, self._options, self._inner = kind, options, inner
        self._algorithm, self._plan, self._remarks = algorithm, plan, remarks
        given = [options.noise_multiplier is not None, options.target_epsilon is not None]
        if sum(given) != 1:
            raise OptionError(
                "noise_multiplier",
                "a number, or a target_epsilon in its place",
                Verbatim("both" if all(given) else "neither"),
            )
        self._noisy_cohorts: Optional[NoisyCohorts] = None
        if isinstance(options, DistributedOptions):
            self._noisy_cohorts = noisy_cohorts(
                plan.random_sampling(kind), options.participation, inner.min_clients
            )
        self.delta = default_delta(plan.num_clients) if options.delta is None else options.delta
        check_delta(self.delta, plan.num_clients)
        check_rounds(plan.rounds)
        check_metric_bounds(algorithm.problem.model)
        self.mechanism = self._mechanism()
        if options.target_epsilon is None:
            assert options.noise_multiplier is not None
            noise_multiplier = options.noise_multiplier
        else:
            noise_multiplier = noise_for_epsilon(
                lambda z: [self.mechanism(z)], [plan.rounds], options.target_epsilon, self.delta
            )
        self.noise_multiplier = float(noise_multiplier)
        num_models = len(algorithm.models(algorithm.initialize()))
        self.evaluation: Optional[PrivateEvaluation] = None
        if (
            task is not None
            and isinstance(options, ServerNoiseOptions)
            and options.private_evaluation is not None
        ):
            mechanism = self.mechanism(self.noise_multiplier)
            planned = evaluations * num_models
            self.evaluation = PrivateEvaluation(options, task, inner, planned, mechanism)
        self.account = PrivateAccount(
            plan.rounds,
            self.mechanism,
            self.noise_multiplier,
            self.delta,
            self.evaluation,
            num_models,
        )
        check_tail(self._tail(plan.rounds), self.delta)

    def aggregation(self) -> Aggregation:
        """Returns the training aggregation, with the noise that the account assumes."""
        clients = self._noisy_cohorts
        facts = NoiseFacts(
            self._plan.mean_size,
            noise_key(self._options),
            self.noise_multiplier,
            *(() if clients is None else (clients.min_clients, clients.noise_clients)),
        )
        build = PRIVACIES[self._kind].build
        assert build is not None
        return build(self._kind, self._inner, self._options, facts)

    def cohorts(self, state: RunState) -> Cohorts:
        """Returns the cohorts of the rounds, drawn with the secret key in `state`."""
        clients = self._noisy_cohorts
        if clients is None or not isinstance(clients.sampling, SecretCohorts):
            return self._plan.secret(state)
        sums = Round(self._algorithm, self.aggregation()).steps[0].aggregation
        assert isinstance(sums, DistributedDpSum)
        return self._plan.secret_coins(state, self._algorithm, clients.noise_clients, sums.bundle)

    def resume_from(
        self, state: RunState, evaluations: Optional[PlannedEvaluations] = None
    ) -> None:
        """Resumes the account after a state's rounds, with the noise multiplier in the state.

        Args:
            state: State after some rounds.
            evaluations: Private evaluations of the run; None to account only for its rounds.
        """
        self.noise_multiplier = float(state.aggregations[0].noise_multiplier)
        self.account.resume_from(int(state.round_num), self.noise_multiplier, evaluations)

    def accounts_for(self, aggregation: Aggregation) -> bool:
        """Returns whether an aggregation has the noise that the account assumes."""
        return (
            isinstance(aggregation, PrivateAggregation)
            and aggregation.noise_multiplier == self.noise_multiplier
        )

    def statement(self, rounds: int) -> PrivacyStatement:
        """Returns the privacy statement after some rounds."""
        split, sum_remarks = self._split()
        remarks = [
            _PUBLIC,
            _EXACT_TOTALS,
            *self._remarks,
            *([] if self._noisy_cohorts is None else [_SIMULATED_NOISE]),
            *sum_remarks,
        ]
        if self._options.noise_seed is not None:
            remarks.append(
                f"noise and cohorts are those of noise_seed={self._options.noise_seed}: anyone who "
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
            noise_generator=self._options.generator.title,
            noise_tail=self._tail(rounds),
        )

    def to_json(self, rounds: int) -> dict[str, Any]:
        """Returns the guarantees after some rounds and their evaluations as a JSON value."""
        training = self.statement(rounds).to_dict()
        if self.evaluation is None:
            return training
        evaluations = self.evaluation.statement(self.account.evaluations(rounds))
        return {**training, "evaluation": evaluations.to_dict()}

    def lines(self, rounds: int) -> list[str]:
        """Returns the guarantees after some rounds and their evaluations as lines of text."""
        training = self.statement(rounds)
        lines = [f"private training: {training.text}"]
        note = noise_warning(
            self.noise_multiplier, self._plan.clients_per_round, rounds, self._kind == "tree"
        )
        if note is not None:
            lines.append(f"note: {note}")
        if self.evaluation is not None:
            evaluations = self.evaluation.statement(self.account.evaluations(rounds))
            lines.append(f"private evaluation, of test clients: {evaluations.text}")
        return [*lines, f"noise generator: {training.noise_generator}"]

    def _mechanism(self) -> MechanismBuilder:
        if self._kind == "tree":
            participations = self._participations()
            return lambda noise_multiplier: TreeNoise(float(noise_multiplier), participations)
        if self._kind == "central":
            sampling = self._plan.random_sampling(self._kind)
            return lambda noise_multiplier: CentralNoise(float(noise_multiplier), sampling)
        return self._integer_noise()

    def _participations(self) -> Participations:
        plan = self._plan
        if plan.sampling != "turns":
            raise OptionError(
                "cohort_sampling",
                "turns with tree privacy, whose account limits how often a client takes part",
                plan.sampling,
            )
        return Participations(
            max_participations=math.ceil(plan.rounds / plan.separation),
            min_separation=plan.separation,
        )

    def _integer_noise(self) -> MechanismBuilder:
        if SecurityProperty.SECURE_SUMS not in self._inner.guarantees:
            raise OptionError(
                "aggregation",
                "secure sums with distributed privacy, as one client's noise does not hide its "
                "values",
                Verbatim("other sums"),
            )
        clients = self._noisy_cohorts
        assert clients is not None
        # Any noise multiplier serves here, as groups and their sizes do not depend on it.
        facts = NoiseFacts(float(self._plan.clients_per_round), noise_key(self._options), 1.0)
        build = PRIVACIES[self._kind].build
        assert build is not None
        release = build(self._kind, self._inner, self._options, facts)
        assert isinstance(release, DistributedDpSum)
        steps, groups = release.integer_clip, _groups(Round(self._algorithm, release))
        return lambda noise_multiplier: DistributedNoise(
            tuple(IntegerGroup(factor * float(noise_multiplier), steps, d) for factor, d in groups),
            "skellam",
            *clients,
        )

    def _tail(self, rounds: int) -> float:
        """Bounds the probability that any noise so far is outside its generator's range."""
        tail = noise_tail(self.mechanism(self.noise_multiplier), rounds)
        if self.account.is_composed:
            assert self.evaluation is not None
            tail += self.evaluation.tail(self.account.evaluations(rounds))
        return tail

    def _split(self) -> tuple[dict[str, float], Sequence[str]]:
        """Returns the noise multiplier of each group of values, and the aggregation's remarks."""
        steps = Round(self._algorithm, self.aggregation()).steps
        split: dict[str, float] = {}
        remarks: Sequence[str] = ()
        for step in steps:
            private, bounds = step.aggregation, step.bounds
            assert isinstance(private, PrivateAggregation)
            remarks = private.remarks
            prefix = "" if len(steps) == 1 else f"{step.step.name} "
            for group, factor in zip(private.groups(bounds), private.noise_factors(bounds)):
                split[prefix + group.name] = factor * self.noise_multiplier
        return split, remarks


class PrivacyAccount(Observer):
    """Adds the epsilon spent so far to each round's report."""

    def __init__(self, private: PrivateTraining) -> None:
        self._private = private

    def accounts_for(self, aggregation: Aggregation) -> bool:
        """Returns whether an aggregation has the noise that the account assumes."""
        return self._private.accounts_for(aggregation)

    def after_round(self, finished: FinishedRound) -> None:
        """Adds the epsilon spent up to a round and its evaluation."""
        finished.report = self._private.account.report(finished.report, finished.num)


def _groups(round_: Round) -> list[tuple[float, int]]:
    """Returns (z_g / z, number of integers) for each group of values, over all steps."""
    groups: list[tuple[float, int]] = []

    def sum_step(k: int, message: Any, client_state: Any) -> Any:
        step = round_.steps[k]
        release = step.aggregation
        assert isinstance(release, DistributedDpSum)

        def work(message: Any, examples: Any, client_state: Any) -> Any:
            place = Place(tf.constant(0), tf.constant(0))
            client = Clients.from_arrays(client_arrays(examples, client_state, place))
            return step.client_work(message, client)

        result = traced_specs(work, message, dict(round_.client_data_spec), client_state)
        codecs = release.codecs(tf.nest.flatten(result.output.values), step.bounds)
        sizes = [codec.size for codec in codecs]
        groups.extend(zip(release.noise_factors(step.bounds), sizes))
        return result

    trace_steps(round_, sum_step)
    return groups


def _in_both(num_clients: int) -> str:
    if num_clients == 1:
        return "1 client is a training and a test client"
    return f"{num_clients} clients are training and test clients"
