"""Noise of a private plan: its keys, and its description in a manifest.

A server adds noise in its result graph, with the key in its state. The initial state of a
deployment has a secret key of its own. Conformance rounds, which are public, are made with a public
key, in a state of their own.

Nodes of a fleet that add noise themselves do so outside of the graphs, as the manifest tells them:
no state has a key, and conformance rounds are without noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple, Optional

import numpy as np

from tff_agnostic.aggregations.aggregation import Aggregation
from tff_agnostic.aggregations.distributed_sum import Integers, SumOfDevices
from tff_agnostic.aggregations.noise import Noise, TreeResidual
from tff_agnostic.aggregations.private_sum import (
    CentralDpSum,
    PrivacyOptions,
    PrivateAggregation,
    ServerNoiseOptions,
)
from tff_agnostic.aggregations.secure_sum import SecureSum
from tff_agnostic.base.errors import counted
from tff_agnostic.base.later import tf, tff
from tff_agnostic.computations.algorithm import Algorithm, RunState
from tff_agnostic.computations.round import RoundStep
from tff_agnostic.deployment.compiled_plan import CompiledPlan
from tff_agnostic.privacy.distributed import ROUNDING_BETA, rounded_sensitivity

# Not secret: with it the noise of conformance rounds can be removed, which hides no one.
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
_GAUSSIAN = (
    "Gaussian, in whole steps of a grid, to which sums are rounded, added by the server's result "
    "graph to the sum of a round"
)
_NOISES = {
    "central": f"{_GAUSSIAN}; that of each round is independent",
    "tree": f"{_GAUSSIAN}; that of a round is the noise of the nodes of a tree that cover all "
    "rounds up to it, less that of the round before",
}
_PLAIN = (
    "every client's update checkpoint, until it has been summed; plain sums hide nothing from who "
    "computes them"
)
_SECURE = "sums over the clients of a round of the values below, and nothing of a single client"


class NodesAccount(NamedTuple):
    """What the server of a fleet learns of a client whose nodes add the noise.

    Attributes:
        delta: The delta of the epsilons.
        epsilons: From a state, epsilon after a client was in 1, 2, ... sums.
        takes_part: The probability of a client's own coin with which it sends its values, as two
            whole numbers.
        taken_for_granted: The account's assumption, a sentence without full stop.
        adjacency: How neighbouring client populations differ.
    """

    delta: float
    epsilons: Callable[[RunState], Sequence[float]]
    takes_part: tuple[int, int]
    taken_for_granted: str
    adjacency: str


class FleetNoise(NamedTuple):
    """The noise of a plan that is exported.

    Attributes:
        key: The secret key of the deployment; zeros of as many numbers if nodes add the noise.
        guarantee: What is promised by a fleet as the run has simulated it, from the state that is
            exported, as `PrivacyStatement.to_dict` has it.
        expected_devices: Devices that a round has on average, which the graphs divide by; None if
            they do not.
        server_must: Further duties of a server.
        of_nodes: The account of nodes that add the noise themselves; None if the server adds it.
        draw: The draw of cohorts that the guarantee is for, as a server of a fleet enforces it:
            `fleet.node_noise.server_noise.Draw`. Empty if nodes add the noise.
        rounds: Number of rounds that the guarantee is for.
    """

    key: tuple[int, ...]
    guarantee: Callable[[RunState], Mapping[str, Any]]
    expected_devices: Optional[float] = None
    server_must: tuple[str, ...] = ()
    of_nodes: Optional[NodesAccount] = None
    draw: Mapping[str, Any] = {}
    rounds: int = 1

    @property
    def has_secret(self) -> bool:
        """Whether the key is one."""
        return self.of_nodes is None


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
        "noise": _NOISES[release.name],
        "noise_generator": release.options.generator.title,
        **_of_tree(release.noise),
        "noise_multiplier": z,
        "delta": guarantee["delta"],
        "draw": dict(noise.draw),
        "rounds": noise.rounds,
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
        "clip_norms": _kind_of_clipping(options),
        "guarantee_as_simulated": dict(guarantee),
        "server_must": [
            f"choose the devices of a round so that this holds: {guarantee['sampling']}",
            *_on_average(noise),
            f"release no more than {counted(noise.rounds, 'round')}",
            _SECRET,
            *_ALWAYS,
            *noise.server_must,
        ],
        "secret_files": ["server_state.ckpt"],
        "conformance_key": "public, and in conformance/ alone; the fleet's is another one",
    }


def node_noise_facts(
    step: RoundStep, state: RunState, noise: FleetNoise, plan: CompiledPlan
) -> dict[str, Any]:
    """Returns the manifest's entry on noise that nodes add: what `fleet.node_noise` reads.

    Args:
        step: What is exported, whose integers nodes add noise to.
        plan: Its plan, which names the tensors.
    """
    release, account = step.aggregation, noise.of_nodes
    assert isinstance(release, SumOfDevices) and account is not None
    names, spec, num_values = _names_of_parts(release, step.bounds, plan)
    codecs = release.codecs(tf.nest.flatten(spec.values), step.bounds)
    paddings, grouped, groups = iter(range(num_values, len(names))), set(), []
    norms = iter(state.aggregations[0].clip_norms)
    for group, codec in zip(release.groups(step.bounds), codecs):
        parts = list(group.positions)
        parts += [next(paddings)] if codec.size > codec.num_values else []
        grouped.update(parts)
        bound = rounded_sensitivity(codec.steps, codec.size, ROUNDING_BETA).l2
        # Raises a `UserError` if it is so wide that drawing it takes too long.
        _ = codec.num_words
        groups.append(
            {
                "name": group.name,
                "tensors": [names[i] for i in parts],
                "clip_norm": group.limit * (float(next(norms)) if group.is_update else 1.0),
                "clip_in_steps": codec.steps,
                "values": codec.size,
                # Of whole numbers, whose squares add up to a whole number.
                "largest_squared_norm": math.floor(bound**2),
                "variance": codec.variance,
                "modulus": 2**codec.bits,
            }
        )
    ungrouped = [i for i in range(num_values) if i not in grouped]
    epsilons = [float(epsilon) for epsilon in account.epsilons(state)]
    return {
        "mechanism": release.name,
        "noise": "Skellam, drawn by each node itself and added to the integers of the client's "
        "graph, modulo each group's modulus, before the secure sum",
        "noise_multiplier": float(state.aggregations[0].noise_multiplier),
        "noise_clients": int(release.noise_clients or release.expected_clients),
        "fewest_clients": release.min_clients,
        "takes_part": list(account.takes_part),
        "delta": account.delta,
        "groups": groups,
        # A client counts as one; what is public anyway is not sent.
        "without_noise": {**{names[i]: 0 for i in ungrouped}, names[-1]: 1},
        "clip_norms": _kind_of_clipping(release.options),
        "epsilon_after": epsilons,
        "neighbours": account.adjacency,
        "taken_for_granted": account.taken_for_granted,
        "guarantee_as_simulated": dict(noise.guarantee(state)),
        "server_must": list(noise.server_must),
        "secret_files": [],
    }


def _names_of_parts(
    release: SumOfDevices, bounds: Any, plan: CompiledPlan
) -> tuple[list[str], Any, int]:
    """Returns what a client sends, in the order of `tf.nest.flatten`.

    Returns:
        The tensors' names in the plan; values, paddings and the number of clients. The specs in
        the same structure. The number of values.
    """
    of_values = release.released_bounds(bounds)
    num_values, num_parts = len(tf.nest.flatten(of_values)), len(plan.secure)
    numbers = iter(range(num_parts))
    numbered = Integers(
        tf.nest.map_structure(lambda _: next(numbers), of_values),
        [next(numbers) for _ in range(num_parts - num_values - 1)],
        next(numbers),
    )
    # TFF has its own order, which is not TensorFlow's where there are mappings.
    order = tff.structure.flatten(tff.structure.from_container(numbered, recursive=True))
    secure = dict(zip(order, plan.secure))

    def spec(number: int) -> tf.TensorSpec:
        leaf = secure[number].leaf
        return tf.TensorSpec(leaf.shape, leaf.dtype)

    names = [secure[number].name for number in range(num_parts)]
    return names, tf.nest.map_structure(spec, numbered), num_values


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


def _kind_of_clipping(options: PrivacyOptions) -> str:
    return "adaptive" if options.is_adaptive else "fixed"


def _of_tree(noise: Noise) -> dict[str, Any]:
    if not isinstance(noise, TreeResidual):
        return {}
    return {"tree_restart_every": noise.restart_every}


def privacy_facts(
    plan: CompiledPlan, algorithm: Algorithm, aggregation: Aggregation, max_clients: int
) -> dict[str, Any]:
    """Returns what the server sees, and of each secure sum its bit width and its bounds.

    `max_clients` are the most clients that the sums have room for.
    """
    (step,) = algorithm.steps
    of_values, are_remainders = step.bounds(aggregation.limits), False
    if isinstance(aggregation, PrivateAggregation):
        are_remainders = isinstance(aggregation, SumOfDevices)
        of_values, aggregation = aggregation.released_bounds(of_values), aggregation.inner
    if not isinstance(aggregation, SecureSum):
        return {"server_sees": _PLAIN, "secure_sums": []}
    bounds = tff.structure.flatten(tff.structure.from_container(of_values, recursive=True))
    values = [value for value in plan.secure if value.leaf.path.startswith("values/")]
    quantised = [] if are_remainders else values
    ranges = [
        (
            value,
            -bound.limit if bound.signed else 0,
            bound.limit,
            1 if bound.integer else aggregation.step(bound),
        )
        for value, bound in zip(quantised, bounds)
    ]
    others = [value for value in plan.secure if value not in quantised]
    ranges += [(value, 0, 2**value.bits - 1, 1) for value in others]
    sums = [
        {
            "tensor": value.name,
            "bits": value.bits,
            "modulus": value.modulus,
            "from": least,
            "to": most,
            "step": step,
        }
        for value, least, most, step in ranges
    ]
    return {
        "server_sees": _SECURE,
        "minimum_clients_per_round": aggregation.min_clients,
        "maximum_clients_per_round": max_clients,
        "secure_sums": sums,
    }
