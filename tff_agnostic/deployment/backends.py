"""Execution backends of exports: the platform's servers and devices, or a fleet on Flower.

An export for a fleet has its README outside of the plan's folder, as the manifest must list every
file in that folder.

An export for the platform has a message that creates a task at a server. The message is JSON in
proto3's mapping (names in camelCase, 64-bit integers as strings). It follows the On-Device
Personalization server, `shuffler/proto/task.proto` of privacysandbox/odp-federatedcompute at commit
015930f. No server has received such a message yet.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Annotated, Any, Callable

from tff_agnostic.base.errors import counted
from tff_agnostic.base.options import OptionError, Options, Verbatim, Within
from tff_agnostic.base.registry import Registry
from tff_agnostic.deployment.rounds import EVALUATION, TRAINING

# Defaults of the platform's own task builder.
_CLIENT_VERSIONS = {"minClientVersion": "0", "maxClientVersion": "999999999"}
_TRAFFIC_WEIGHT = 100
_IN_ADDRESS = re.compile(r"[\w.-]+", re.ASCII)


@dataclasses.dataclass(frozen=True)
class ServerTaskSettings(Options):
    """Options of a task at a server.

    Attributes:
        population: Task message: name of the population of devices.
        iterations: Task message: rounds after which the task is complete.
        over_selection: Task message: maximum number of additional devices in a round, as a fraction
            of --clients_per_round.
    """

    population: str = "population"
    iterations: Annotated[int, Within(least=1)] = 100
    over_selection: Annotated[float, Within(least=0.0)] = 0.3

    def __post_init__(self) -> None:
        super().__post_init__()
        if not _IN_ADDRESS.fullmatch(self.population):
            expected = "a name of letters, digits, '.', '_' and '-', for an address"
            raise OptionError("population", expected, self.population, type(self))


def task_message(
    kind: str,
    settings: ServerTaskSettings,
    clients_per_round: int,
    min_separation: int = 1,
) -> dict[str, Any]:
    """Returns a CreateTaskRequest for rounds with at least `clients_per_round` devices.

    The server's response contains the upload addresses of the plans and the checkpoint.

    Args:
        min_separation: Minimum number of rounds between two participations of a device.
    """
    most = int(clients_per_round * (1.0 + settings.over_selection))
    info = _INFOS[kind](settings.population, min_separation)
    return {
        "task": {
            "populationName": settings.population,
            "totalIteration": str(settings.iterations),
            "minAggregationSize": str(clients_per_round),
            "maxAggregationSize": str(most),
            **_CLIENT_VERSIONS,
            "info": {"trafficWeight": str(_TRAFFIC_WEIGHT), **info},
        }
    }


def _training(population: str, min_separation: int) -> dict[str, Any]:
    del population
    policies = [
        {"id": "rounds_between", "minSepPolicy": {"minimumSeparation": str(min_separation)}},
        # Require at least one example, as some device services fail on devices without examples.
        {"id": "examples", "dataAvailabilityPolicy": {"minExampleCount": 1}},
    ]
    return {"trainingInfo": {"eligibilityTaskInfo": {"eligibilityPolicies": policies}}}


def _evaluation(population: str, min_separation: int) -> dict[str, Any]:
    del min_separation
    return {
        "evaluationInfo": {
            "checkPointSelector": {"iterationSelector": {"size": "1"}},
            # The server requires this name even if the model was trained on the task's own
            # population.
            "trainingPopulationName": population,
        }
    }


_INFOS: Registry[Callable[[str, int], dict[str, Any]]] = Registry(
    "kind of plan", {TRAINING: _training, EVALUATION: _evaluation}
)


FCP, FLOWER = "fcp", "flower"
# Name of the plan's folder in an export for a fleet.
PLAN = "plan"
# Minimum number of nodes in a demo: secure sums need 3 clients, so one of 4 may fail.
_DEMO_NODES = 4
_README = """\
# {algorithm} on {task}, after {rounds}: a plan for a fleet

`plan/` is the plan, for the server and all nodes; nodes do without `server_state.ckpt`, which may
hold a secret. Their operators pin the SHA-256 of `plan/manifest.json`, which is
{sha256}.
"""


@dataclasses.dataclass(frozen=True)
class Backend:
    """An execution backend of exports.

    Attributes:
        profiles: Names of the supported profiles, the default first.
        not_verified: Statements on what has not been tested for a new export.
        is_fleet: Whether a fleet's nodes run the plan. If so, they can add the noise, and no task
            message is written.
        without: Names of the export options without effect.
    """

    profiles: tuple[str, ...]
    not_verified: tuple[str, ...]
    is_fleet: bool = False
    without: Container[str] = ()


BACKENDS: Registry[Backend] = Registry(
    "backend",
    {
        FCP: Backend(
            ("daf", "secure"),
            (
                "the platform's C++ client has not run the client's graph",
                "no server of the platform has read the plan",
                "no device has run the TFLite graph",
                "no secure aggregation protocol has carried the sums: integers are added in the "
                "clear",
            ),
        ),
        FLOWER: Backend(
            ("secure",),
            ("no fleet has run these files yet: ./run fleet demo does that on one machine",),
            is_fleet=True,
            without=(
                *(field.name for field in dataclasses.fields(ServerTaskSettings)),
                *("collection_uri", "client_graph"),
            ),
        ),
    },
)


def choose_profile(backend: str, given: str | None) -> str:
    """Returns the name of an export's profile; if `given` is None, it is the backend's default."""
    names = BACKENDS[backend].profiles
    if given is not None and given not in names:
        expected = f"{' or '.join(names)} with the backend {backend}, which needs secure sums"
        raise OptionError("profile", expected, Verbatim(given))
    return given or names[0]


def demo_size(manifest: Mapping[str, Any]) -> int:
    """Returns the number of nodes in a demo: `_DEMO_NODES`, or more if the noise needs more."""
    noise = manifest["privacy"].get("differential_privacy", {})
    return max(_DEMO_NODES, noise.get("fewest_clients", 0))


def write_readme(folder: Path, manifest: Mapping[str, Any], how_to: str) -> None:
    """Writes the README of a fleet's export next to its plan, with instructions for running it."""
    sha256 = hashlib.sha256((folder / PLAN / "manifest.json").read_bytes()).hexdigest()
    readme = _README.format(
        algorithm=manifest["algorithm"],
        task=manifest["task"],
        rounds=counted(manifest["rounds_trained"], "round"),
        sha256=sha256,
    )
    (folder / "README.md").write_text(f"{readme}\n{how_to}", "utf-8")
