"""The privacy of what is exported: sums with noise, the key of a fleet, and what it is promised."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, Callable, NamedTuple, Optional

from tff_agnostic.aggregations.aggregation import Aggregation
from tff_agnostic.aggregations.private.options import ServerNoiseOptions
from tff_agnostic.aggregations.private.private_sum import PrivateSum
from tff_agnostic.aggregations.private.registry import PRIVACIES
from tff_agnostic.computations.aggregated import AggregatedRound
from tff_agnostic.computations.evaluation import Measurement
from tff_agnostic.computations.exchange import Algorithm, RunState
from tff_agnostic.deployment.kinds import EVALUATION, TRAINING
from tff_agnostic.deployment.noise import FleetNoise
from tff_agnostic.errors import UserError
from tff_agnostic.models.functional import Model
from tff_agnostic.program.evaluation.evaluation_release import consistent
from tff_agnostic.program.private.run_keys import noise_key
from tff_agnostic.program.private.run_privacy import RunPrivacy, run_privacy
from tff_agnostic.program.specs.enough_clients import check_sizes_by_chance
from tff_agnostic.program.specs.run_spec import RunSpec
from tff_agnostic.registry import Registry
from tff_agnostic.tasks.task import Task

Restore = Callable[[RunState], RunState]
# From a fleet's sums to the state of the run's training.
_Trained = Callable[[PrivateSum], RunState]
_OF_RANGES = (
    "the smallest and the largest values of some training clients, between which those of the "
    "made-up clients in conformance/ are drawn"
)
_OF_TRAINING_STATE = (
    "give it newer weights as the tensors server/algorithm/... and server/round_num of a training's"
    " checkpoint, beside the tensors server/aggregations/... that its own last round has left: with"
    " an earlier number of releases noise would be used again"
)


class FleetPrivacy(NamedTuple):
    """What an export has of privacy.

    Attributes:
        aggregation: Sums with noise.
        noise: The noise of the fleet.
        restore: Returns the state to start from, given the initial one; its key is not the fleet's.
        of_evaluation: Fields of `EvaluationMetrics` that are others with noise.
    """

    aggregation: Aggregation
    noise: FleetNoise
    restore: Restore
    of_evaluation: Mapping[str, Any] = {}


def fleet_privacy(
    kind: str,
    spec: RunSpec,
    task: Task,
    algorithm: Algorithm,
    restore: Optional[Restore],
    noise_generator: str,
) -> Optional[FleetPrivacy]:
    """Returns the privacy of an export; None if the run has none.

    Args:
        kind: Name of the kind of rounds.
        spec: The run to deploy.
        task: Its task, loaded.
        algorithm: Its algorithm.
        restore: Returns the state of the run's training, given the initial one.
        noise_generator: What the fleet's noise is made of, whatever the run's was.

    Raises:
        UserError: If the run's noise is not a server's, or its evaluations have none.
    """
    privacy = spec.config.privacy
    if PRIVACIES[privacy].build is None:
        return None
    if not isinstance(spec.privacy, ServerNoiseOptions):
        raise UserError(
            f"--privacy: expected none, central or tree for an export, found {privacy}: its sums "
            "are modular ones, which plans of the profiles do not have, and devices would need "
            "random numbers of their own operating systems"
        )
    of_fleet = dataclasses.replace(spec.privacy, noise_generator=noise_generator)
    fleet = dataclasses.replace(spec, privacy=of_fleet)

    def trained(aggregation: PrivateSum) -> RunState:
        # The run's key may be of another length than the fleet's.
        key = noise_key(spec.privacy)
        of_run = dataclasses.replace(aggregation, options=spec.privacy, noise_key=key)
        initial = AggregatedRound(algorithm, of_run).initialize()
        return initial if restore is None else restore(initial)

    return _OF_KINDS[kind](fleet, task, algorithm, trained)


def _of_training(
    spec: RunSpec, task: Task, algorithm: Algorithm, trained: _Trained
) -> FleetPrivacy:
    # Rounds are the fleet's own: nobody is evaluated.
    without = dataclasses.replace(spec.privacy, private_evaluation=False)
    privacy = _privacy(dataclasses.replace(spec, privacy=without), task, algorithm)
    aggregation = _sums(privacy, spec)
    check_sizes_by_chance(spec.config, aggregation)
    privacy.describe(algorithm, aggregation)

    def guarantee(state: RunState) -> dict[str, Any]:
        # The noise that was trained with goes on, whatever the flags ask for.
        privacy.go_on_from(state)
        return _with_ranges(privacy.statement(spec.config.rounds).to_dict())

    expected = float(spec.config.clients_per_round)
    noise = FleetNoise(noise_key(spec.privacy), guarantee, expected)
    return FleetPrivacy(aggregation, noise, lambda initial: trained(aggregation))


def _of_evaluation(
    spec: RunSpec, task: Task, algorithm: Algorithm, trained: _Trained
) -> FleetPrivacy:
    privacy = _privacy(spec, task, algorithm)
    private = privacy.evaluation
    if private is None:
        raise UserError(
            f"--kind: expected {TRAINING} of a run with --privacy={spec.config.privacy} and "
            f"without --private_evaluation, found {EVALUATION}: its sums would have no "
            "noise, which a run with --private_evaluation gives them"
        )

    def restored(initial: RunState) -> RunState:
        # The weights of training, and none of its secrets.
        return trained(_sums(privacy, spec))._replace(aggregations=initial.aggregations)

    def measurement(model: Model, num_domains: int) -> Measurement:
        del model, num_domains
        assert private is not None
        return private.measurement

    noise = FleetNoise(
        noise_key(spec.privacy),
        lambda state: _with_ranges(private.statement(1).to_dict()),
        server_must=(_OF_TRAINING_STATE,),
    )
    tidied = functools.partial(consistent, limits=private.bounds)
    of_evaluation = {"measurement": measurement, "tidied": tidied}
    return FleetPrivacy(private.aggregation, noise, restored, of_evaluation)


def _sums(privacy: RunPrivacy, spec: RunSpec) -> PrivateSum:
    aggregation = privacy.aggregation(spec.build_aggregation())
    assert isinstance(aggregation, PrivateSum)
    return aggregation


def _privacy(spec: RunSpec, task: Task, algorithm: Algorithm) -> RunPrivacy:
    privacy = run_privacy(spec, task, algorithm)
    assert privacy is not None
    return privacy


def _with_ranges(guarantee: Mapping[str, Any]) -> dict[str, Any]:
    return {**guarantee, "not_covered": [*guarantee["not_covered"], _OF_RANGES]}


_OF_KINDS: Registry[Callable[[RunSpec, Task, Algorithm, _Trained], FleetPrivacy]] = Registry(
    "kind of plan", {TRAINING: _of_training, EVALUATION: _of_evaluation}
)
