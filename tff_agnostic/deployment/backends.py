"""What plays an export: the platform's servers and devices, or a fleet of `plan_runner` on Flower.

An export for a fleet is a folder with the plan in one folder, for the server and the nodes, and
with the app in another, which Flower's server is given. The app names the plan by its manifest's
hash, so it cannot be among the files that the manifest names.

The platform's servers are given a message that creates a task. It is JSON in the mapping of proto3
(names in camelCase, 64-bit integers as texts), with the messages of the On-Device Personalization
server: `shuffler/proto/task.proto` of privacysandbox/odp-federatedcompute at commit 015930f. It was
never sent to a server.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Container, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Callable

from fleet.app_files import app_files
from tff_agnostic.base.errors import UserError, counted
from tff_agnostic.base.options import Options, Within
from tff_agnostic.base.registry import Registry
from tff_agnostic.deployment.rounds import EVALUATION, TRAINING

if TYPE_CHECKING:
    from fleet.node_noise.noise import NodeNoise


# Defaults of the platform's own task builder.
_CLIENT_VERSIONS = {"minClientVersion": "0", "maxClientVersion": "999999999"}
_TRAFFIC_WEIGHT = 100
# Options that only messages of one kind have a place for.
_OF_ONE_KIND = {
    "rounds_between": TRAINING,
    "training_population": EVALUATION,
    "training_task_id": EVALUATION,
    "every_iterations": EVALUATION,
}
_IN_ADDRESS = re.compile(r"[\w.-]+", re.ASCII)


@dataclasses.dataclass(frozen=True)
class ServerTaskSettings(Options):
    """Options of a task at a server; every field is a flag of the same name.

    Attributes:
        population: Of the task message: name of the population of devices.
        iterations: Of the task message: rounds after which the task is complete.
        over_selection: Of the task message: how many more devices than --clients_per_round a round
            may have, as a share of them.
        rounds_between: Of the task message of a training: rounds between two contributions of one
            device.
        training_population: Task message of an evaluation: population of the training whose
            checkpoints are evaluated, if it is another one.
        training_task_id: Task message of an evaluation: the server's number of the training in that
            population; 0 for none.
        every_iterations: Task message of an evaluation: its checkpoint is one of the training's
            last day; every so many rounds there is a candidate.
    """

    population: str = "population"
    iterations: Annotated[int, Within(least=1)] = 100
    over_selection: Annotated[float, Within(least=0.0)] = 0.3
    rounds_between: Annotated[int, Within(least=1)] = 1
    training_population: str = ""
    training_task_id: Annotated[int, Within(least=0)] = 0
    every_iterations: Annotated[int, Within(least=1)] = 1

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


FCP, FLOWER = "fcp", "flower"
# Folders of an export for a fleet.
PLAN, APP = "plan", "app"
# Secure sums take 3; one more may be lost.
_DEMO_NODES = 4
_README = """\
# {algorithm} on {task}, after {rounds}: a plan for a fleet

`plan/` is the plan, for the server and all nodes; nodes do without `server_state.ckpt`, which may
hold a secret. Their operators pin the SHA-256 of `plan/manifest.json`, which is
{sha256}.
`app/` is what Flower's server is given to start a run: it names this hash, and holds no other code.

    ./run fleet demo --export=plan --clients=CLIENTS --nodes={nodes} --rounds=3

plays it here, where CLIENTS has a file NAME.tfrecord a client; more: docs/how_to/live_fleet.md.
"""


@dataclasses.dataclass(frozen=True)
class Backend:
    """What plays an export.

    Attributes:
        profiles: Names of the kinds of plans that it plays, the default first.
        not_verified: What was not tried with an export when it is written.
        is_fleet: Whether it is a fleet of `plan_runner`, whose nodes add noise of their own, and
            whose server has no message that creates a task.
        without: Flags of `export` that have no effect with it.
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
            ("no fleet has played these files yet: ./run fleet demo does that on one machine",),
            is_fleet=True,
            without=(
                *(field.name for field in dataclasses.fields(ServerTaskSettings)),
                *("collection_uri", "client_graph", "require_odp_ops"),
            ),
        ),
    },
)


def profile_of(backend: str, given: str | None) -> str:
    """Returns the name of an export's profile.

    Args:
        backend: Name of what plays it.
        given: What the user has asked for.
    """
    known = BACKENDS[backend].profiles
    if given is not None and given not in known:
        raise UserError(
            f"--profile: expected {' or '.join(known)} with --backend={backend}, found {given}: "
            "its clients are summed by secure aggregation"
        )
    return given or known[0]


def nodes_of_demo(noise: NodeNoise | None) -> int:
    """Returns how many nodes a demo has: as many as the noise that they add takes, or more."""
    return _DEMO_NODES if noise is None else max(_DEMO_NODES, noise.fewest_clients)


def write_app(folder: Path, manifest: dict[str, Any]) -> int:
    """Writes the app and the README of an export for a fleet beside its plan.

    Args:
        folder: Has the plan.
        manifest: The plan's.

    Returns:
        How many nodes a demo of it has.
    """
    # Only fleets need the package `cryptography`, which a plain installation lacks.
    from fleet.node_noise.noise import noise_of_manifest

    content = (folder / PLAN / "manifest.json").read_bytes()
    sha256, nodes = hashlib.sha256(content).hexdigest(), nodes_of_demo(noise_of_manifest(content))
    (folder / APP).mkdir()
    for name, text in app_files(sha256).items():
        (folder / APP / name).write_text(text, "utf-8")
    readme = _README.format(
        algorithm=manifest["algorithm"],
        task=manifest["task"],
        rounds=counted(manifest["rounds_trained"], "round"),
        sha256=sha256,
        nodes=nodes,
    )
    (folder / "README.md").write_text(readme, "utf-8")
    return nodes
