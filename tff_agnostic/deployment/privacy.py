"""Noise of a private plan: its keys, and its description in a manifest.

A server adds noise in its result graph, with the key in its state. The initial state of a
deployment has a secret key of its own. Conformance rounds, which are public, are made with a public
key, in a state of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple, Optional

import numpy as np

from tff_agnostic.aggregations.aggregation import Aggregation
from tff_agnostic.aggregations.privacy_options import ServerNoiseOptions, TreeOptions
from tff_agnostic.aggregations.private_sum import CentralDpSum, PrivateAggregation
from tff_agnostic.aggregations.secure_sum import SecureSum
from tff_agnostic.computations.algorithm import Algorithm, RunState
from tff_agnostic.computations.round import RoundStep
from tff_agnostic.deployment.compiled_plan import CompiledPlan
from tff_agnostic.later import tf, tff

# Not secret: with it the noise of conformance rounds can be removed, which hides no one. A
# generator takes as many of these numbers as its keys have.
CONFORMANCE_KEY = (0x434F4E464F524D41, 0x4E4345204B455920) * 2
_SECRET = (
    "keep server_state.ckpt and every state after it secret, as well as what the prepare graph "
    "leaves for the result graph: they hold the key of the noise (server/aggregations/0/noise_key)"
)
_ALWAYS = (
    "play each round of a state once: noise is made of the key and of the number of releases, so a "
    "round that is played again with other devices has the same noise, and the difference of the "
    "two has none",
    "release a round without devices too, where a round may have none",
    "look at no sum before the result graph has added noise, and at nothing else of a device",
)
_GAUSSIAN = "Gaussian, {form}, added by the server's result graph to the sum of a round"
_NOISES = {
    "central": f"{_GAUSSIAN}; that of each round is independent",
    "tree": f"{_GAUSSIAN}; that of a round is the noise of the nodes of a tree that cover all "
    "rounds up to it, less that of the round before",
}
# Descriptions of noise, by whether it is exact.
_FORMS = {False: "of float32", True: "in whole steps of a grid, to which sums are rounded"}
_PLAIN = (
    "every client's update checkpoint, until it has been summed; plain sums hide nothing from who "
    "computes them"
)
_SECURE = "sums over the clients of a round of the values below, and nothing of a single client"


class FleetNoise(NamedTuple):
    """The noise of a plan that is exported.

    Attributes:
        key: The secret key of the deployment.
        guarantee: What is promised by a fleet as the run has simulated it, from the state that is
            exported, as `PrivacyStatement.to_dict` has it.
        expected_devices: Devices that a round has on average, which the graphs divide by; None if
            they do not.
        server_must: Further duties of a server.
    """

    key: tuple[int, ...]
    guarantee: Callable[[RunState], Mapping[str, Any]]
    expected_devices: Optional[float] = None
    server_must: tuple[str, ...] = ()


def with_key(state: RunState, key: Sequence[int]) -> RunState:
    """Returns a state with another key of the noise, before its first release.

    A tree begins anew: nodes of another key's tree would be taken away that were never added.
    """
    aggregations = tuple(
        aggregation._replace(noise_key=np.array(key, np.int64), releases=np.int64(0))
        for aggregation in state.aggregations
    )
    return state._replace(aggregations=aggregations)


def noise_facts(step: RoundStep, state: RunState, noise: FleetNoise) -> dict[str, Any]:
    """Returns the manifest's entry on the noise, with the duties of a server.

    Args:
        step: What is exported, whose sums have noise.
    """
    release, private_state = step.aggregation, state.aggregations[0]
    assert isinstance(release, CentralDpSum)
    z = float(private_state.noise_multiplier)
    limits = release.group_limits(tf.constant(private_state.clip_norms), step.bounds)
    groups = release.groups(step.bounds)
    guarantee = noise.guarantee(state)
    options = release.options
    is_joint = isinstance(options, ServerNoiseOptions) and options.joint_clipping
    return {
        "mechanism": release.name,
        "noise": _NOISES[release.name].format(form=_FORMS[release.generator.is_exact]),
        "noise_generator": release.generator.title,
        **_of_tree(options),
        "noise_multiplier": z,
        "delta": guarantee["delta"],
        **_of_devices(noise),
        "groups": [
            {
                "name": group.name,
                "clip_norm": float(limit),
                "noise_multiplier": factor * z,
                "deviation": factor * z * float(limit),
            }
            for group, limit, factor in zip(groups, limits, release.noise_factors(step.bounds))
        ],
        "clipped": "as one vector" if is_joint else "each group by itself",
        "clip_norms": options.clipping,
        "guarantee_as_simulated": dict(guarantee),
        "server_must": [
            f"choose the devices of a round so that this holds: {guarantee['sampling']}",
            *_on_average(noise),
            _SECRET,
            *_ALWAYS,
            *noise.server_must,
        ],
        "secret_files": ["server_state.ckpt"],
        "conformance_key": "public, and in conformance/ alone; the fleet's is another one",
    }


def _of_devices(noise: FleetNoise) -> dict[str, float]:
    expected = noise.expected_devices
    return {} if expected is None else {"expected_devices_per_round": expected}


def _on_average(noise: FleetNoise) -> list[str]:
    if noise.expected_devices is None:
        return []
    return [
        f"have {noise.expected_devices:g} devices in a round on average: the graphs divide by "
        "numbers that are worked out for so many"
    ]


def _of_tree(options: Any) -> dict[str, Any]:
    is_tree = isinstance(options, TreeOptions)
    return {"tree_restart_every": options.tree_restart_every} if is_tree else {}


def privacy_facts(
    plan: CompiledPlan, algorithm: Algorithm, aggregation: Aggregation, max_clients: int
) -> dict[str, Any]:
    """Returns what the server sees, and of each secure sum its bit width and its bounds.

    `max_clients` are the most clients that the sums have room for.
    """
    (step,) = algorithm.steps
    of_values = step.bounds(aggregation.limits)
    if isinstance(aggregation, PrivateAggregation):
        of_values, aggregation = aggregation.released_bounds(of_values), aggregation.inner
    if not isinstance(aggregation, SecureSum):
        return {"server_sees": _PLAIN, "secure_sums": []}
    bounds = tff.structure.flatten(tff.structure.from_container(of_values, recursive=True))
    quantised = [value for value in plan.secure if value.leaf.path.startswith("values/")]
    others = [value for value in plan.secure if value not in quantised]
    sums = []
    for value, bound in zip(quantised, bounds):
        sums.append(
            {
                "tensor": value.name,
                "bits": value.bits,
                "modulus": value.modulus,
                "from": -bound.limit if bound.signed else 0,
                "to": bound.limit,
                "step": 1 if bound.integer else aggregation.step(bound),
            }
        )
    for value in others:
        sums.append(
            {
                "tensor": value.name,
                "bits": value.bits,
                "modulus": value.modulus,
                "from": 0,
                "to": 2**value.bits - 1,
                "step": 1,
            }
        )
    return {
        "server_sees": _SECURE,
        "minimum_clients_per_round": aggregation.min_clients,
        "maximum_clients_per_round": max_clients,
        "secure_sums": sums,
    }
