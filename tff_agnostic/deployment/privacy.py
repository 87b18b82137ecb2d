"""Noise of a private plan: its key, and its description in a manifest.

A server adds noise in its result graph; its state contains the secret key. Conformance rounds are
public, and have a public key in a separate state. The nodes of a fleet add noise outside of the
graphs, so that no state has a key, and conformance rounds have no noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple, Optional

import numpy as np

from tff_agnostic.aggregations.aggregation import Aggregation
from tff_agnostic.aggregations.distributed_sum import DeviceSum, Integers
from tff_agnostic.aggregations.noise import TreeResidual
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

# This key is public, as conformance rounds have no real clients.
CONFORMANCE_KEY = (0x434F4E464F524D41, 0x4E4345204B455920) * 2
_SECRET = (
    "keep server_state.ckpt and every state after it secret, as well as the state that the "
    "prepare graph writes for the result graph: they contain the key of the noise "
    "(server/aggregations/0/noise_key)"
)
_ALWAYS = (
    "run each round of a state only once: noise depends only on the key and on the number of "
    "releases, so a second run with other devices has the same noise, and the difference has none",
    "if rounds may have no devices, release these rounds as well",
    "look at no sum before the result graph has added noise, and at no other value of a device",
)
_ON_AVERAGE = (
    "have {:g} devices in a round on average: the graphs divide by numbers that assume this mean"
)
_GAUSSIAN = (
    "Gaussian, in whole steps of a grid, to which sums are rounded; the server's result graph "
    "adds it to the sum of a round"
)
_NOISES = {
    "central": f"{_GAUSSIAN}; the noise of each round is independent",
    "tree": f"{_GAUSSIAN}; the noise of a round is the noise of the tree nodes that cover all "
    "rounds so far, minus the noise of the previous round",
}
_PLAIN = (
    "every client's update checkpoint, until it has been summed; plain sums hide nothing from the "
    "party that computes them"
)
_SECURE = "sums over the clients of a round of the values below, and nothing of a single client"


class NodesAccount(NamedTuple):
    """The privacy account of a client, if nodes add the noise.

    Attributes:
        delta: Delta for which the epsilons hold.
        epsilons: Called with a state; returns a client's epsilons after its values were in 1, 2,
            ... sums.
        takes_part: Probability that a client sends its values, as a fraction of two integers.
        taken_for_granted: Assumption of the account, a sentence without full stop.
        adjacency: How neighbouring client populations differ.
    """

    delta: float
    epsilons: Callable[[RunState], Sequence[float]]
    takes_part: tuple[int, int]
    taken_for_granted: str
    adjacency: str


class FleetNoise(NamedTuple):
    """The noise of an exported plan.

    Attributes:
        key: Secret key of the noise in the deployment; zeros if nodes add the noise.
        guarantee: Called with the exported state; returns `PrivacyStatement.to_dict` of a fleet
            with the run's settings.
        expected_devices: Mean number of devices in a round, by which the graphs divide; None if
            they do not.
        server_must: Sentences on duties of the server, for the manifest's list of duties.
        nodes: Privacy account, if nodes add the noise; None if the server adds it.
        draw: Cohort sampling that the guarantee assumes, as in
            `fleet.node_noise.server_noise.Draw`; empty if nodes add the noise.
        rounds: Number of rounds that the guarantee covers.
    """

    key: tuple[int, ...]
    guarantee: Callable[[RunState], Mapping[str, Any]]
    expected_devices: Optional[float] = None
    server_must: tuple[str, ...] = ()
    nodes: Optional[NodesAccount] = None
    draw: Mapping[str, Any] = {}
    rounds: int = 1

    @property
    def has_secret(self) -> bool:
        """Whether the state contains a secret key."""
        return self.nodes is None


def with_key(state: RunState, key: Sequence[int]) -> RunState:
    """Returns a state with another noise key, and with the number of releases set to 0.

    The tree of noise restarts, as the noise of the earlier key cannot be subtracted.
    """
    aggregations = tuple(
        aggregation._replace(noise_key=np.array(key, np.int64), releases=np.int64(0))
        for aggregation in state.aggregations
    )
    return state._replace(aggregations=aggregations)


def noise_facts(step: RoundStep, state: RunState, noise: FleetNoise) -> dict[str, Any]:
    """Returns the manifest's entry on noise that the server adds, with the server's duties."""
    release, private_state = step.aggregation, state.aggregations[0]
    assert isinstance(release, CentralDpSum)
    z = float(private_state.noise_multiplier)
    limits = release.group_limits(tf.constant(private_state.clip_norms), step.bounds)
    groups = release.groups(step.bounds)
    guarantee = noise.guarantee(state)
    options = release.options
    is_joint = isinstance(options, ServerNoiseOptions) and options.joint_clipping
    tree = {}
    if isinstance(release.noise, TreeResidual):
        tree["tree_restart_every"] = release.noise.restart_every
    expected = noise.expected_devices
    duties = [
        f"choose the devices of a round so that this holds: {guarantee['sampling']}",
        f"release no more than {counted(noise.rounds, 'round')}",
        _SECRET,
        *_ALWAYS,
        *noise.server_must,
    ]
    if expected is not None:
        duties.insert(1, _ON_AVERAGE.format(expected))
    return {
        "mechanism": release.name,
        "noise": _NOISES[release.name],
        "noise_generator": release.options.generator.title,
        **tree,
        "noise_multiplier": z,
        "delta": guarantee["delta"],
        "draw": dict(noise.draw),
        "rounds": noise.rounds,
        **({} if expected is None else {"expected_devices_per_round": expected}),
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
        "clip_norms": _clipping_kind(options),
        "guarantee_as_simulated": dict(guarantee),
        "server_must": duties,
        "secret_files": ["server_state.ckpt"],
        "conformance_key": "public, and only in conformance/; the fleet has another key",
    }


def node_noise_facts(
    step: RoundStep, state: RunState, noise: FleetNoise, plan: CompiledPlan
) -> dict[str, Any]:
    """Returns the manifest's entry on noise that nodes add; `fleet.node_noise` reads it.

    Args:
        step: Step whose integers get noise.
        plan: The plan, with the names of the tensors.
    """
    release, account = step.aggregation, noise.nodes
    assert isinstance(release, DeviceSum) and account is not None
    names, spec, num_values = _part_names(release, step.bounds, plan)
    codecs = release.codecs(tf.nest.flatten(spec.values), step.bounds)
    paddings, grouped, groups = iter(range(num_values, len(names))), set(), []
    norms = iter(state.aggregations[0].clip_norms)
    for group, codec in zip(release.groups(step.bounds), codecs):
        parts = list(group.positions)
        parts += [next(paddings)] if codec.size > codec.num_values else []
        grouped.update(parts)
        bound = rounded_sensitivity(codec.steps, codec.size, ROUNDING_BETA).l2
        # `num_words` raises a `UserError` if the noise is too wide to sample.
        _ = codec.num_words
        groups.append(
            {
                "name": group.name,
                "tensors": [names[i] for i in parts],
                "clip_norm": group.limit * (float(next(norms)) if group.is_update else 1.0),
                "clip_in_steps": codec.steps,
                "values": codec.size,
                # Round down, as the squares of integers sum to an integer.
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
        "fewest_clients": release.min_noise_clients,
        "takes_part": list(account.takes_part),
        "delta": account.delta,
        "groups": groups,
        # Tensors without noise, and the constant that each client sends in them: 1 in the number of
        # clients, and 0 in the others.
        "without_noise": {**{names[i]: 0 for i in ungrouped}, names[-1]: 1},
        "clip_norms": _clipping_kind(release.options),
        "epsilon_after": epsilons,
        "neighbours": account.adjacency,
        "taken_for_granted": account.taken_for_granted,
        "guarantee_as_simulated": dict(noise.guarantee(state)),
        "server_must": list(noise.server_must),
        "secret_files": [],
    }


def _part_names(release: DeviceSum, bounds: Any, plan: CompiledPlan) -> tuple[list[str], Any, int]:
    """Returns the names and specs of a client's tensors, in the order of `tf.nest.flatten`.

    Returns:
        Three items: the names of the values, then of the paddings, then of the number of clients;
        the specs of these tensors in the structure of `Integers`; the number of values.
    """
    value_bounds = release.released_bounds(bounds)
    num_values, num_parts = len(tf.nest.flatten(value_bounds)), len(plan.secure)
    numbers = iter(range(num_parts))
    numbered = Integers(
        tf.nest.map_structure(lambda _: next(numbers), value_bounds),
        [next(numbers) for _ in range(num_parts - num_values - 1)],
        next(numbers),
    )
    # TFF's order differs from TensorFlow's if the values contain mappings.
    order = tff.structure.flatten(tff.structure.from_container(numbered, recursive=True))
    secure = dict(zip(order, plan.secure))

    def spec(number: int) -> tf.TensorSpec:
        leaf = secure[number].leaf
        return tf.TensorSpec(leaf.shape, leaf.dtype)

    names = [secure[number].name for number in range(num_parts)]
    return names, tf.nest.map_structure(spec, numbered), num_values


def _clipping_kind(options: PrivacyOptions) -> str:
    return "adaptive" if options.is_adaptive else "fixed"


def privacy_facts(
    plan: CompiledPlan, algorithm: Algorithm, aggregation: Aggregation, max_clients: int
) -> dict[str, Any]:
    """Returns the manifest's entry on what the server sees, with bits and ranges of secure sums.

    Args:
        max_clients: Maximum number of clients in a sum.
    """
    (step,) = algorithm.steps
    value_bounds, are_remainders = step.bounds(aggregation.limits), False
    if isinstance(aggregation, PrivateAggregation):
        are_remainders = isinstance(aggregation, DeviceSum)
        value_bounds, aggregation = aggregation.released_bounds(value_bounds), aggregation.inner
    if not isinstance(aggregation, SecureSum):
        return {"server_sees": _PLAIN, "secure_sums": []}
    bounds = tff.structure.flatten(tff.structure.from_container(value_bounds, recursive=True))
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
