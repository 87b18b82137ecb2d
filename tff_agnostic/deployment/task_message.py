"""What a server of the platform is told to create a task, as JSON.

The messages are those of the On-Device Personalization server, `shuffler/proto/task.proto` of
privacysandbox/odp-federatedcompute at commit 015930f, in the JSON mapping of proto3: names in
camelCase, 64-bit integers as texts. None was sent to a server here.
"""

import dataclasses
import re
from collections.abc import Iterable
from typing import Any, Callable

from tff_agnostic.deployment.kinds import EVALUATION, TRAINING
from tff_agnostic.errors import UserError
from tff_agnostic.registry import Registry
from tff_agnostic.settings import Settings, setting

# What the platform's own task builder gives tasks that say nothing else.
_CLIENT_VERSIONS = {"minClientVersion": "0", "maxClientVersion": "999999999"}
_TRAFFIC_WEIGHT = 100
# Settings that only messages of one kind have a place for.
_OF_ONE_KIND = {
    "rounds_between": TRAINING,
    "training_population": EVALUATION,
    "training_task_id": EVALUATION,
    "every_iterations": EVALUATION,
}
_IN_ADDRESS = re.compile(r"[\w.-]+", re.ASCII)


@dataclasses.dataclass(frozen=True)
class TaskSettings(Settings):
    """Settings of a task at a server; every field is a flag of the same name."""

    population: str = setting(
        "population", "Of the task message: name of the population of devices."
    )
    iterations: int = setting(
        100, "Of the task message: rounds after which the task is complete.", at_least=1
    )
    over_selection: float = setting(
        0.3,
        "Of the task message: how many more devices than --clients_per_round a round may have, as "
        "a share of them.",
        at_least=0.0,
    )
    rounds_between: int = setting(
        1,
        "Of the task message of a training: rounds between two contributions of one device.",
        at_least=1,
    )
    training_population: str = setting(
        "",
        "Of the task message of an evaluation: population of the training whose checkpoints are "
        "evaluated, if it is another one.",
    )
    training_task_id: int = setting(
        0,
        "Of the task message of an evaluation: which training of that population, as the server "
        "has numbered it; 0 says none.",
        at_least=0,
    )
    every_iterations: int = setting(
        1,
        "Of the task message of an evaluation: it takes the checkpoint of one of the training's "
        "rounds of the last day, every so many of which are candidates.",
        at_least=1,
    )

    def __post_init__(self) -> None:
        """Refuses populations that could not stand in the address of a task, too."""
        super().__post_init__()
        for flag in ("population", "training_population"):
            name = getattr(self, flag)
            if not _IN_ADDRESS.fullmatch(name) and (name or flag == "population"):
                raise UserError(
                    f"--{flag}: expected a name of letters, digits, '.', '_' and '-', as it stands "
                    f"in an address, found {name!r}"
                )


def check_heeded(given: Iterable[str], kind: str) -> None:
    """Refuses settings that messages of a kind have no place for.

    Args:
        given: Names of the settings that somebody gave.
        kind: Of rounds; see `kinds.KINDS`.

    Raises:
        UserError: Naming the first of them.
    """
    for name in given:
        of = _OF_ONE_KIND.get(name, kind)
        if of != kind:
            raise UserError(f"--{name} has no effect with --kind={kind}: it needs --kind={of}")


def task_message(kind: str, settings: TaskSettings, clients_per_round: int) -> dict[str, Any]:
    """Returns a CreateTaskRequest.

    A round ends with `clients_per_round` devices at least. The plans and the checkpoint are not in
    it: the server's answer says where to put them.

    Args:
        kind: Of rounds; see `kinds.KINDS`.
        settings: Of the task.
        clients_per_round: c.

    Raises:
        UserError: If there is no such kind.
    """
    most = int(clients_per_round * (1.0 + settings.over_selection))
    return {
        "task": {
            "populationName": settings.population,
            "totalIteration": str(settings.iterations),
            "minAggregationSize": str(clients_per_round),
            "maxAggregationSize": str(most),
            **_CLIENT_VERSIONS,
            "info": {"trafficWeight": str(_TRAFFIC_WEIGHT), **_INFOS[kind](settings)},
        }
    }


def _training(settings: TaskSettings) -> dict[str, Any]:
    policies = [
        {
            "id": "rounds_between",
            "minSepPolicy": {"minimumSeparation": str(settings.rounds_between)},
        },
        # A device service was seen to fail on a device without examples.
        {"id": "examples", "dataAvailabilityPolicy": {"minExampleCount": 1}},
    ]
    return {"trainingInfo": {"eligibilityTaskInfo": {"eligibilityPolicies": policies}}}


def _evaluation(settings: TaskSettings) -> dict[str, Any]:
    size = str(settings.every_iterations)
    info = {
        "checkPointSelector": {"iterationSelector": {"size": size}},
        # The server does not take the task's own population where this is empty.
        "trainingPopulationName": settings.training_population or settings.population,
    }
    if settings.training_task_id:
        info["trainingTaskId"] = str(settings.training_task_id)
    return {"evaluationInfo": info}


_INFOS: Registry[Callable[[TaskSettings], dict[str, Any]]] = Registry(
    "kind of plan", {TRAINING: _training, EVALUATION: _evaluation}
)
