"""What plays an export: the platform's servers and devices, or a fleet of `plan_runner` on Flower.

An export for a fleet is a folder with the plan in one folder, for the server and the nodes, and
with the app in another, which Flower's server is given. The app names the plan by its manifest's
hash, so it cannot be among the files that the manifest names.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Container
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plan_runner.fleet.app_files import app_files
from tff_agnostic.deployment.server_task import ServerTaskSettings
from tff_agnostic.errors import UserError
from tff_agnostic.registry import Registry
from tff_agnostic.settings import settings_in

if TYPE_CHECKING:
    from plan_runner.private_sums.noise import NodeNoise

FCP, FLOWER = "fcp", "flower"
# Folders of an export for a fleet.
PLAN, APP = "plan", "app"
# Secure sums take 3; one more may be lost.
_DEMO_NODES = 4
_README = """\
# {algorithm} on {task}, after {rounds} rounds: a plan for a fleet

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
                *(option.flag for option in settings_in(ServerTaskSettings)),
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
    from plan_runner.private_sums.noise import noise_of_manifest

    content = (folder / PLAN / "manifest.json").read_bytes()
    sha256, nodes = hashlib.sha256(content).hexdigest(), nodes_of_demo(noise_of_manifest(content))
    (folder / APP).mkdir()
    for name, text in app_files(sha256).items():
        (folder / APP / name).write_text(text, "utf-8")
    readme = _README.format(
        algorithm=manifest["algorithm"],
        task=manifest["task"],
        rounds=manifest["rounds_trained"],
        sha256=sha256,
        nodes=nodes,
    )
    (folder / "README.md").write_text(readme, "utf-8")
    return nodes
