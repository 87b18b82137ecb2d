"""What a private run keeps secret, what its rounds release, and what it has spent."""

from __future__ import annotations

import hashlib
import math
import secrets
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Callable, Optional, Union

import numpy as np

from tff_agnostic.aggregations import chacha20
from tff_agnostic.aggregations.aggregation import SecurityProperty
from tff_agnostic.aggregations.distributed_sum import DistributedDpSum
from tff_agnostic.aggregations.noise import beyond_sums
from tff_agnostic.aggregations.noise_generators import beyond_tail
from tff_agnostic.aggregations.private_sum import DistributedOptions, PrivacyOptions
from tff_agnostic.aggregations.registry import PRIVACIES, NoiseFacts
from tff_agnostic.computations.algorithm import Algorithm, Report, RunState
from tff_agnostic.computations.clients import Clients, Place, arrays_of_client
from tff_agnostic.computations.round import Round, play_on_specs, traced_specs
from tff_agnostic.data.sampling import Seed, domain_strata, num_turns
from tff_agnostic.errors import UserError
from tff_agnostic.later import tf
from tff_agnostic.privacy.accountant import PrivacyAccountant
from tff_agnostic.privacy.distributed import DistributedNoise, IntegerGroup
from tff_agnostic.privacy.mechanisms import CentralNoise, Mechanism, TreeNoise
from tff_agnostic.privacy.sampling import (
    CohortSampling,
    FixedSizeCohorts,
    NoiseOfClients,
    PoissonCohorts,
    SecretParticipation,
    StratifiedCohorts,
    noise_of_clients,
)
from tff_agnostic.privacy.tree import Participations
from tff_agnostic.program.options.flag_table import flags_in_errors
from tff_agnostic.registry import Registry
from tff_agnostic.report_fields import ReportField, ReportFields, Role
from tff_agnostic.run.evaluation import Evaluations, num_evaluations
from tff_agnostic.run.options import RunConfig
from tff_agnostic.run.release_ledger import Release
from tff_agnostic.run.spec import RunSpec
from tff_agnostic.tasks.task import Task
from tff_agnostic.training.private_evaluation import PrivateEvaluation

# Keeps what cohorts are drawn with apart from the key of the noise, of which it tells nothing.
_COHORTS = b"cohorts"
# Keeps the noise of a seed apart from other draws.
_NOISE_STREAM = 17
_EPSILON = ReportField("epsilon", "epsilon spent in training so far", role=Role.PRIVACY)
_OF_EVALUATIONS: ReportFields = OrderedDict(
    evaluation_epsilon=ReportField("evaluation_epsilon", "epsilon spent in evaluations so far"),
    evaluations=ReportField("evaluations", "private evaluations of a model so far"),
)


def noise_key(options: PrivacyOptions) -> tuple[int, ...]:
    """Returns a secret from the operating system, or what --noise_seed gives in its place."""
    generator = options.generator
    if options.noise_seed is None:
        return generator.key(secrets.token_bytes(generator.key_bytes))
    sequence = np.random.SeedSequence([options.noise_seed, _NOISE_STREAM])
    return generator.key(sequence.generate_state(generator.key_bytes // 8, np.uint64).tobytes())


def cohort_seed(state: RunState) -> Seed:
    """Returns what cohorts are drawn with: a secret, as the account takes for granted.

    The run's own seed is in config.json, and every client is sent it. Cohorts are drawn by the
    generator of the noise if that is ChaCha20, and otherwise by NumPy's.
    """
    key = np.asarray(state.aggregations[0].noise_key, np.int64)
    digest = hashlib.sha256(_COHORTS + key.tobytes()).digest()
    if len(key) == chacha20.KEY_NUMBERS:
        return lambda *place: SecretNumbers(digest, place)
    return int.from_bytes(digest[:16], "little")


class SecretNumbers:
    """Random numbers of ChaCha20, with the methods of `numpy.random.Generator` that cohorts need.

    Args:
        key: 32 bytes.
        place: What they are for, at most two numbers below 2^32; other places have others.
    """

    def __init__(self, key: bytes, place: tuple[int, ...]) -> None:
        self._key = np.frombuffer(key, np.int64)
        self._place = place
        self._calls = 0

    def random(self, size: int) -> np.ndarray:
        """Returns numbers in [0, 1), multiples of 2^-53."""
        return (self._words(size) >> np.uint64(11)).astype(np.float64) / 2.0**53

    def uniform(self) -> float:
        """Returns such a number."""
        return float(self.random(1)[0])

    def permutation(self, values: Union[int, np.ndarray]) -> np.ndarray:
        """Returns an array, or the numbers below one, in random order."""
        values = np.arange(values) if isinstance(values, int) else values
        return values[np.argsort(self._words(len(values)), kind="stable")]

    def choice(self, values: Union[int, np.ndarray], size: int, replace: bool) -> np.ndarray:
        """Returns so many of them, none twice, in random order."""
        assert not replace
        return self.permutation(values)[:size]

    def _words(self, size: int) -> np.ndarray:
        # Every call has a stream of its own.
        first, second = (*self._place, 0)[:2]
        nonce = np.array([first, second, self._calls], np.uint32)
        self._calls += 1
        with tf.device("/cpu:0"):
            words = chacha20.keystream(tf.constant(self._key), tf.constant(nonce), 2 * size)
        return words.numpy().view(np.uint64)


# From a noise multiplier to what a round releases with it.
MechanismOf = Callable[[float], Mechanism]


def _fixed_size(spec: RunSpec, task: Task) -> CohortSampling:
    return FixedSizeCohorts(len(task.train.client_ids), spec.config.clients_per_round)


def _poisson(spec: RunSpec, task: Task) -> CohortSampling:
    return PoissonCohorts(len(task.train.client_ids), spec.config.clients_per_round)


def _stratified(spec: RunSpec, task: Task) -> CohortSampling:
    _, sizes = np.unique(domain_strata(task.train, task.num_domains), return_counts=True)
    return StratifiedCohorts(tuple(map(int, sizes)), spec.config.clients_per_round)


_SAMPLED: Registry[Callable[[RunSpec, Task], CohortSampling]] = Registry(
    "sampled cohort", {"poisson": _poisson, "uniform": _fixed_size, "stratified": _stratified}
)


def _sampling(spec: RunSpec, task: Task) -> CohortSampling:
    name = spec.config.cohort_sampling
    if name not in _SAMPLED:
        raise UserError(
            f"--cohort_sampling: expected {', '.join(_SAMPLED)} with "
            f"--privacy={spec.config.privacy}, whose account is of cohorts that are drawn by "
            f"chance, found {name}"
        )
    return _SAMPLED[name](spec, task)


def _central(spec: RunSpec, task: Task, algorithm: Algorithm) -> MechanismOf:
    del algorithm
    sampling = _sampling(spec, task)
    return lambda noise_multiplier: CentralNoise(float(noise_multiplier), sampling)


def _tree(spec: RunSpec, task: Task, algorithm: Algorithm) -> MechanismOf:
    del algorithm
    config = spec.config
    if config.cohort_sampling != "turns":
        raise UserError(
            "--cohort_sampling: expected turns with --privacy=tree, whose account is of how often "
            f"a client takes part, found {config.cohort_sampling}"
        )
    separation = num_turns(len(task.train.client_ids), config.clients_per_round)
    participations = Participations(
        max_participations=math.ceil(config.rounds / separation),
        min_separation=separation,
    )
    return lambda noise_multiplier: TreeNoise(float(noise_multiplier), participations)


def _distributed(spec: RunSpec, task: Task, algorithm: Algorithm) -> MechanismOf:
    inner = spec.build_aggregation()
    if SecurityProperty.SECURE_SUMS not in inner.guarantees:
        raise UserError(
            "--aggregation: expected secure with --privacy=distributed, where a client's own noise "
            f"hides it in a sum only whose parts nobody sees, found {spec.config.aggregation}"
        )
    whose = noise_of_run(spec, task)
    # Groups and their sizes do not depend on the noise.
    facts = NoiseFacts(float(spec.config.clients_per_round), noise_key(spec.privacy), 1.0)
    build = PRIVACIES[spec.config.privacy].build
    assert build is not None
    release = build(spec.config.privacy, inner, spec.privacy, facts)
    assert isinstance(release, DistributedDpSum)
    steps, groups = release.integer_clip, _groups(Round(algorithm, release))
    return lambda noise_multiplier: DistributedNoise(
        tuple(IntegerGroup(factor * float(noise_multiplier), steps, d) for factor, d in groups),
        "skellam",
        *whose,
    )


def noise_of_run(spec: RunSpec, task: Task) -> NoiseOfClients:
    """Returns whose noise the rounds of a run have where clients add it."""
    options = spec.privacy
    assert isinstance(options, DistributedOptions)
    is_secret = isinstance(options.participation, SecretParticipation)
    if is_secret and "participation" in spec.given and spec.config.cohort_sampling != "poisson":
        raise UserError(
            "--participation: expected public with "
            f"--cohort_sampling={spec.config.cohort_sampling}, of which everybody knows the number "
            "of clients, found secret"
        )
    with flags_in_errors(options):
        return noise_of_clients(
            _sampling(spec, task), options.participation, spec.build_aggregation().min_clients
        )


def _groups(round_: Round) -> list[tuple[float, int]]:
    """Returns z_g / z and the number of integers of each group of all steps."""
    found: list[tuple[float, int]] = []

    def sum_of_step(k: int, message: Any, client_state: Any) -> Any:
        step = round_.steps[k]
        release = step.aggregation
        assert isinstance(release, DistributedDpSum)

        def work(message: Any, examples: Any, client_state: Any) -> Any:
            place = Place(tf.constant(0), tf.constant(0))
            client = Clients.of(arrays_of_client(examples, client_state, place))
            return step.client_work(message, client)

        result = traced_specs(work, message, dict(round_.client_data_spec), client_state)
        codecs = release.codecs(tf.nest.flatten(result.output.values), step.bounds)
        sizes = [codec.size for codec in codecs]
        found.extend(zip(release.noise_factors(step.bounds), sizes))
        return result

    play_on_specs(round_, sum_of_step)
    return found


MECHANISMS: Registry[Callable[[RunSpec, Task, Algorithm], MechanismOf]] = Registry(
    "privacy", {"central": _central, "distributed": _distributed, "tree": _tree}
)


def noise_tail(mechanism: Mechanism, releases: int) -> float:
    """Returns a bound on the probability that any noise lies beyond its generator's tail.

    A server's noise is then not the accounted noise. A sum of clients' noise is then larger than
    all sums of tables.

    Args:
        mechanism: The mechanism of each release.
        releases: Number of releases.
    """
    if mechanism.noise_multiplier == 0:
        return 0.0
    if isinstance(mechanism, DistributedNoise):
        beyond = (
            group.dimension * beyond_sums(mechanism.variance(group), mechanism.min_clients)
            for group in mechanism.groups
        )
        return releases * math.fsum(beyond)
    # A tree over n releases has fewer than 2 n nodes.
    return beyond_tail(2 * releases if isinstance(mechanism, TreeNoise) else releases)


class RunAccount:
    """The account of a run.

    Args:
        config: Of the run.
        mechanism: What a round releases with a noise multiplier.
        noise_multiplier: The one that it has.
        delta: The delta of (epsilon, delta).
        evaluation: The noise of its evaluations; None if they have none.
        num_models: How many models an evaluation is of.

    Attributes:
        accountant: Accounts for training, and for evaluations of the same clients.
    """

    def __init__(
        self,
        config: RunConfig,
        mechanism: MechanismOf,
        noise_multiplier: float,
        delta: float,
        evaluation: Optional[PrivateEvaluation],
        num_models: int,
    ) -> None:
        self._config = config
        self._mechanism = mechanism
        self._delta = delta
        self._evaluation = evaluation
        self._num_models = num_models
        # Those of the run, and rounds that were completed before this process.
        self._evaluations: Optional[Evaluations] = None
        self._completed = 0
        # Of the ledger that this process found: how many lines it had, those that are made again,
        # and how many evaluations of a model the others are.
        self._num_taken_over, self._over = 0, 0
        self._again: list[Release] = []
        self.accountant = self._accountant(noise_multiplier)
        self._pool = ThreadPoolExecutor(1, "privacy-accountant")
        self._ahead: dict[tuple[int, int], Future[Report]] = {}

    @property
    def is_composed(self) -> bool:
        """Whether evaluations are accounted for with training: they have clients in common."""
        return self._evaluation is not None and self._evaluation.num_shared > 0

    def quantities(self, quantities: ReportFields) -> ReportFields:
        """Returns a description of what `report` returns."""
        of_evaluations = {} if self._evaluation is None else _OF_EVALUATIONS
        return OrderedDict(quantities, privacy=OrderedDict(epsilon=_EPSILON, **of_evaluations))

    def report(self, report: Report, rounds: int) -> Report:
        """Returns the report of a round with what was spent up to it.

        Args:
            rounds: The round; if it has an evaluation, that was made.
        """
        now, later = (rounds, self.evaluations(rounds)), (rounds + 1, self.evaluations(rounds + 1))
        spent = self._ahead.get(now) or self._pool.submit(self._spent, *now)
        if rounds < self._config.rounds:
            # While the next round runs: privacy losses take longer than a small model's rounds.
            self._ahead = {later: self._pool.submit(self._spent, *later)}
        return OrderedDict(report, privacy=spent.result())

    def spent(self, rounds: int) -> Report:
        """Returns what was spent up to a round and its evaluation, in the form of `quantities`."""
        return self._spent(rounds, self.evaluations(rounds))

    def _spent(self, rounds: int, evaluations: int) -> Report:
        counts = self._counts(rounds, evaluations)
        spent: OrderedDict[str, Any] = OrderedDict(epsilon=self.accountant.epsilon(*counts))
        if self._evaluation is not None:
            spent.update(
                evaluation_epsilon=self._evaluation.epsilon(evaluations), evaluations=evaluations
            )
        return spent

    def epsilon(self, rounds: int) -> float:
        """Returns what training has spent up to a round."""
        return self.accountant.epsilon(*self.counts(rounds))

    def counts(self, rounds: int) -> list[int]:
        """Returns how often each mechanism of the accountant was released up to a round."""
        return self._counts(rounds, self.evaluations(rounds))

    def _counts(self, rounds: int, evaluations: int) -> list[int]:
        return [rounds, evaluations] if self.is_composed else [rounds]

    def evaluations(self, rounds: int) -> int:
        """Returns how many evaluations of a model were released up to a round.

        These are the ones in the run's ledger, and those that are still due. One that a crash lost
        counts with its round if the run will make it again, and at once if not.
        """
        runs = self._evaluations
        if runs is None or runs.ledger is None:
            return 0
        again = [release for release in self._again if release.round_num <= rounds]
        counted = again + runs.ledger.releases[self._num_taken_over :]
        made = {r.round_num for r in counted if r.round_num > self._completed}
        due = runs.num_due(self._completed, rounds) - len(made)
        return self._over + sum(r.num_models for r in counted) + due * self._num_models

    def go_on_from(
        self, rounds: int, noise_multiplier: float, evaluations: Optional[Evaluations]
    ) -> None:
        """Goes on after some rounds.

        Args:
            rounds: How many.
            noise_multiplier: Of their noise, which may be worked out for fewer rounds.
            evaluations: Those of the run; None if its rounds alone are accounted for.
        """
        self._evaluations, self._completed = evaluations, rounds
        self._ahead = {}
        self.accountant = self._accountant(noise_multiplier)
        if evaluations is None or evaluations.ledger is None:
            return

        def is_made_again(release: Release) -> bool:
            planned = evaluations.evaluated(release.round_num)
            return release.round_num > rounds and release.evaluated == planned

        taken_over = evaluations.ledger.releases
        self._num_taken_over = len(taken_over)
        self._again = [release for release in taken_over if is_made_again(release)]
        of_again = sum(release.num_models for release in self._again)
        self._over = sum(release.num_models for release in taken_over) - of_again

    def check_plan(self, earlier: Optional[tuple[int, int]]) -> None:
        """Refuses other evaluations than those that the budget of evaluations was for.

        Args:
            earlier: Rounds of the run that goes on, and rounds between its evaluations; None if
                none goes on.
        """
        last, every = self._config.rounds, self._config.evaluate_every
        if earlier is None:
            return
        wanted = num_evaluations(*earlier)
        expected = (
            f"--private_evaluation: expected {wanted} evaluations, for which the noise of the "
            "run's budget was computed, found "
        )
        if num_evaluations(last, every) != wanted:
            raise UserError(
                f"{expected}{num_evaluations(last, every)}: keep the run's --rounds and "
                "--evaluate_every; a run that is to get more rounds later needs "
                "--private_evaluation=noise:multiplier=.. from its start"
            )
        runs = self._evaluations
        assert runs is not None and runs.ledger is not None
        planned = ((t, runs.evaluated(t)) for t in range(self._completed + 1, last + 1))
        found = runs.ledger.known() | {(t, evaluated) for t, evaluated in planned if evaluated}
        if len(found) > wanted:
            raise UserError(
                f"{expected}{len(found)} with those that were made already: go on with the "
                "--evaluate_every and --evaluation_clients that the run had"
            )

    def _accountant(self, noise_multiplier: float) -> PrivacyAccountant:
        mechanisms = [self._mechanism(noise_multiplier)]
        if self.is_composed:
            assert self._evaluation is not None
            mechanisms.append(self._evaluation.mechanism)
        return PrivacyAccountant(mechanisms, self._delta)
