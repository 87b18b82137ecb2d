"""The privacy of exports: the noise in their sums, and their initial state."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, Callable, NamedTuple, Optional

from tff_agnostic.aggregations.aggregation import Aggregation
from tff_agnostic.aggregations.distributed_sum import DeviceSum, DistributedDpSum
from tff_agnostic.aggregations.private_sum import (
    CentralDpSum,
    DistributedOptions,
    PrivateAggregation,
)
from tff_agnostic.aggregations.registry import PRIVACIES
from tff_agnostic.base.errors import UserError, counted
from tff_agnostic.base.registry import Registry
from tff_agnostic.computations.algorithm import Algorithm, RunState
from tff_agnostic.computations.evaluation import Measurement
from tff_agnostic.computations.round import Round
from tff_agnostic.data.sampling import mean_cohort_size
from tff_agnostic.deployment.backends import FLOWER
from tff_agnostic.deployment.privacy import FleetNoise, NodesAccount
from tff_agnostic.deployment.rounds import EVALUATION, TRAINING
from tff_agnostic.models.model import Model
from tff_agnostic.privacy.accountant import PrivacyAccountant
from tff_agnostic.privacy.distributed import DistributedNoise
from tff_agnostic.privacy.mechanisms import CentralNoise, Mechanism, TreeNoise
from tff_agnostic.privacy.sampling import (
    EveryClient,
    FixedSizeCohorts,
    IntegerSampling,
    KnownCohorts,
    PoissonCohorts,
    SecretCohorts,
    StratifiedCohorts,
)
from tff_agnostic.program.runs.privacy import private_training, run_noisy_cohorts
from tff_agnostic.program.runs.spec import RunSettings, check_random_sizes
from tff_agnostic.tasks.task import Task
from tff_agnostic.training.private import PrivateTraining
from tff_agnostic.training.private_cohorts import noise_key
from tff_agnostic.training.private_evaluation import consistent

_STATE_DUTY = (
    "give it newer weights as the tensors server/algorithm/... and server/round_num of a training's"
    " checkpoint, with the tensors server/aggregations/... of its own last round: with an earlier"
    " number of releases noise would be used again"
)

# Names of sampling schemes in a manifest.
_SCHEMES = {
    PoissonCohorts: "poisson",
    FixedSizeCohorts: "fixed_size",
    StratifiedCohorts: "stratified",
    EveryClient: "everyone",
}

Restore = Callable[[RunState], RunState]

# Called with a fleet's aggregation; returns the state of the run's training.
_Trained = Callable[[PrivateAggregation], RunState]


class FleetPrivacy(NamedTuple):
    """The privacy of an export.

    Attributes:
        aggregation: Aggregation with noise.
        noise: The fleet's noise, for the manifest.
        restore: Called with the initial state; returns the state from which the fleet starts. The
            noise key in this state is not the fleet's.
        evaluation_changes: Fields of `EvaluationMetrics` to replace.
    """

    aggregation: Aggregation
    noise: FleetNoise
    restore: Restore
    evaluation_changes: Mapping[str, Any] = {}


def fleet_privacy(
    kind: str,
    spec: RunSettings,
    task: Task,
    algorithm: Algorithm,
    restore: Optional[Restore],
    nodes_add_noise: bool = False,
) -> Optional[FleetPrivacy]:
    """Returns the privacy of an export; None if the run has none.

    Args:
        kind: Name of the kind of rounds.
        restore: Called with the initial state; returns the state of the run's training.
        nodes_add_noise: Whether the plan's nodes add noise; the platform's devices do not.
    """
    privacy = spec.config.privacy
    if PRIVACIES[privacy].build is None:
        return None
    adds_at_clients = isinstance(spec.privacy, DistributedOptions)
    if adds_at_clients and not nodes_add_noise:
        raise UserError(
            f"--privacy: expected none, central or tree for an export, found {privacy}: devices of "
            f"the platform add no noise, but nodes of a fleet do (--backend={FLOWER})"
        )

    def trained(aggregation: PrivateAggregation) -> RunState:
        initial = Round(algorithm, aggregation).initialize()
        return initial if restore is None else restore(initial)

    if adds_at_clients and kind == TRAINING:
        return _node_privacy(spec, task, algorithm, trained)
    return _PRIVACY_BY_KIND[kind](spec, task, algorithm, trained)


def _node_privacy(
    spec: RunSettings, task: Task, algorithm: Algorithm, trained: _Trained
) -> FleetPrivacy:
    """Returns the privacy of an export whose nodes add the noise.

    The epsilons hold against the server. The server selects the nodes, so only random choices of
    the nodes themselves count as sampling.
    """
    privacy = _privacy(spec, task, algorithm)
    simulated = privacy.aggregation()
    assert isinstance(simulated, DistributedDpSum)
    fields = {field.name: getattr(simulated, field.name) for field in dataclasses.fields(simulated)}
    # Use the state's noise, which may be computed for fewer rounds than the run has now.
    fields["noise_multiplier"] = float(trained(simulated).aggregations[0].noise_multiplier)
    aggregation = DeviceSum(**fields)
    run_noise, rounds = run_noisy_cohorts(spec, task), spec.config.rounds
    takes_part = (1, 1)
    sampling: IntegerSampling = KnownCohorts()
    if isinstance(run_noise.sampling, SecretCohorts):
        takes_part = (spec.config.clients_per_round, run_noise.noise_clients)
        # As nodes take part in any order, each sum counts for every node.
        sampling = SecretCohorts(run_noise.noise_clients, run_noise.noise_clients, takes_part[0])

    def epsilons(state: RunState) -> list[float]:
        z = float(state.aggregations[0].noise_multiplier)
        mechanism = privacy.mechanism(z)
        assert isinstance(mechanism, DistributedNoise)
        server_mechanism = dataclasses.replace(mechanism, sampling=sampling)
        accountant = PrivacyAccountant([server_mechanism], privacy.delta)
        return [accountant.epsilon(count) for count in range(1, rounds + 1)]

    account = NodesAccount(
        privacy.delta, epsilons, takes_part, sampling.assumption, sampling.adjacency
    )
    duties = (
        f"have {counted(run_noise.noise_clients, 'node')} in a round: their noise together is that "
        "of the run",
        f"open no sum over fewer than {counted(run_noise.min_clients, 'node')}",
        "count each sum before it is opened, whatever becomes of its round",
    )
    zeros = (0,) * len(aggregation.noise_key)
    guarantee = _guarantee(privacy, rounds)
    noise = FleetNoise(zeros, guarantee, server_must=duties, nodes=account)
    return FleetPrivacy(aggregation, noise, lambda initial: trained(aggregation))


def _training_privacy(
    spec: RunSettings, task: Task, algorithm: Algorithm, trained: _Trained
) -> FleetPrivacy:
    # A fleet's training rounds include no evaluations.
    without = dataclasses.replace(spec.privacy, private_evaluation=None)
    privacy = _privacy(dataclasses.replace(spec, privacy=without), task, algorithm)
    aggregation = _sums(privacy)
    check_random_sizes(spec.config, aggregation)

    config = spec.config
    guarantee = _guarantee(privacy, config.rounds)
    in_round = mean_cohort_size(
        config.cohort_sampling, len(task.train.client_ids), config.clients_per_round
    )
    mechanism = privacy.mechanism(1.0)
    draw = _draw(mechanism, len(task.train.client_ids), in_round)
    noise = FleetNoise(
        noise_key(spec.privacy), guarantee, in_round, draw=draw, rounds=config.rounds
    )
    return FleetPrivacy(aggregation, noise, lambda initial: trained(aggregation))


def _evaluation_privacy(
    spec: RunSettings, task: Task, algorithm: Algorithm, trained: _Trained
) -> FleetPrivacy:
    privacy = _privacy(spec, task, algorithm)
    private = privacy.evaluation
    if private is None:
        raise UserError(
            f"--kind: expected {TRAINING} for a run with --privacy={spec.config.privacy} and "
            f"without --private_evaluation, found {EVALUATION}: its sums would have no noise"
        )

    if private.counts_answers:
        raise UserError(
            "--kind: expected the evaluation of a run whose --private_evaluation has "
            "statistics=false, found statistics=true: exports do not count answers by class"
        )

    def restored(initial: RunState) -> RunState:
        # Take the weights that the training reached, without the secrets in its state.
        return trained(_sums(privacy))._replace(aggregations=initial.aggregations)

    def measurement(model: Model, num_domains: int) -> Measurement:
        del model, num_domains
        assert private is not None
        return private.measurement

    noise = FleetNoise(
        noise_key(spec.privacy),
        lambda state: private.statement(1).to_dict(),
        server_must=(_STATE_DUTY,),
        draw=_draw(private.mechanism, *[len(task.test.client_ids)] * 2),
    )
    tidied = functools.partial(consistent, limits=private.bounds)
    evaluation_changes = {"measurement": measurement, "tidied": tidied}
    return FleetPrivacy(private.aggregation, noise, restored, evaluation_changes)


def _draw(mechanism: Mechanism, clients: int, per_round: float) -> dict[str, Any]:
    """Returns the manifest's entry on the cohort sampling that the privacy account assumes.

    Args:
        clients: Number of clients of the population.
        per_round: Expected number of clients per round.
    """
    if isinstance(mechanism, TreeNoise):
        limits, rate = mechanism.participations, 1.0
        scheme: dict[str, Any] = {
            "scheme": "spaced",
            "max_participations": limits.max_participations,
            "min_separation": limits.min_separation,
        }
    else:
        assert isinstance(mechanism, CentralNoise)
        sampling = mechanism.sampling
        scheme, rate = {"scheme": _SCHEMES[type(sampling)]}, sampling.rate
    return {
        **scheme,
        "clients": clients,
        "per_round": float(per_round),
        "rate": rate,
        "sensitivity": mechanism.sensitivity,
    }


def _sums(privacy: PrivateTraining) -> CentralDpSum:
    aggregation = privacy.aggregation()
    assert isinstance(aggregation, CentralDpSum)
    return aggregation


def _privacy(spec: RunSettings, task: Task, algorithm: Algorithm) -> PrivateTraining:
    privacy = private_training(spec, task, algorithm)
    assert privacy is not None
    return privacy


def _guarantee(privacy: PrivateTraining, rounds: int) -> Callable[[RunState], dict[str, Any]]:
    def guarantee(state: RunState) -> dict[str, Any]:
        # Keep the noise of the training run, whatever the flags are now.
        privacy.resume_from(state)
        return privacy.statement(rounds).to_dict()

    return guarantee


_PRIVACY_BY_KIND: Registry[Callable[[RunSettings, Task, Algorithm, _Trained], FleetPrivacy]] = (
    Registry("kind of plan", {TRAINING: _training_privacy, EVALUATION: _evaluation_privacy})
)
