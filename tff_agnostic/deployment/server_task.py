"""The message that creates a task at a server of the platform.

It is JSON in the mapping of proto3 (names in camelCase, 64-bit integers as texts), with the
messages of the On-Device Personalization server: `shuffler/proto/task.proto` of
privacysandbox/odp-federatedcompute at commit 015930f. It was never sent to a server.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from typing import Any, Callable

from tff_agnostic.deployment.rounds import EVALUATION, TRAINING
from tff_agnostic.errors import UserError
from tff_agnostic.registry import Registry
from tff_agnostic.settings import Settings, setting

# Defaults of the platform's own task builder.
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
class ServerTaskSettings(Settings):
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
        "Task message of an evaluation: population of the training whose checkpoints are "
        "evaluated, if it is another one.",
    )
    training_task_id: int = setting(
        0,
        "Task message of an evaluation: the server's number of the training in that population; "
        "0 for none.",
        at_least=0,
    )
    every_iterations: int = setting(
        1,
        "Task message of an evaluation: its checkpoint is one of the training's last day; every so "
        "many rounds there is a candidate.",
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
        given: Names of the settings that the user gave.
        kind: Kind of the rounds; see `rounds.KINDS`.
    """
    for name in given:
        of = _OF_ONE_KIND.get(name, kind)
        if of != kind:
            raise UserError(f"--{name} has no effect with --kind={kind}: it needs --kind={of}")


def task_message(kind: str, settings: ServerTaskSettings, clients_per_round: int) -> dict[str, Any]:
    """Returns a CreateTaskRequest.

    A round ends with `clients_per_round` devices at least. The plans and the checkpoint are not in
    it: the server's answer says where to put them.

    Args:
        kind: Of rounds; see `rounds.KINDS`.
        clients_per_round: c.
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


def _training(settings: ServerTaskSettings) -> dict[str, Any]:
    policies = [
        {
            "id": "rounds_between",
            "minSepPolicy": {"minimumSeparation": str(settings.rounds_between)},
        },
        # A device service was seen to fail on a device without examples.
        {"id": "examples", "dataAvailabilityPolicy": {"minExampleCount": 1}},
    ]
    return {"trainingInfo": {"eligibilityTaskInfo": {"eligibilityPolicies": policies}}}


def _evaluation(settings: ServerTaskSettings) -> dict[str, Any]:
    size = str(settings.every_iterations)
    info = {
        "checkPointSelector": {"iterationSelector": {"size": size}},
        # The server does not take the task's own population where this is empty.
        "trainingPopulationName": settings.training_population or settings.population,
    }
    if settings.training_task_id:
        info["trainingTaskId"] = str(settings.training_task_id)
    return {"evaluationInfo": info}


_INFOS: Registry[Callable[[ServerTaskSettings], dict[str, Any]]] = Registry(
    "kind of plan", {TRAINING: _training, EVALUATION: _evaluation}
)
