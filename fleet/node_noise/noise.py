"""The noise that a node adds to its integers, as specified in its own copy of the manifest.

A plan's graphs output a client's clipped, rounded integers without noise. The node checks these
integers, adds noise, and passes the result modulo m to secure aggregation. The guarantee depends
neither on the server nor on the graphs, because the checks limit a client's influence on a sum to
the sensitivity that the noise assumes.
"""

from __future__ import annotations

import dataclasses
import json
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Optional, TypeVar

import numpy as np

from fleet.node_noise.divergences import TOLERANCE, SkellamSum, composed_epsilon
from fleet.node_noise.skellam import Draw, check_variance, skellam
from fleet.secure_aggregation.sum_plan import SummedTensor
from plan_runner.errors import PlanError, counted

WHERE = "manifest.json: privacy: differential_privacy"
# Exceptions that JSON with an unexpected structure can raise.
_MALFORMED = (ArithmeticError, AttributeError, KeyError, RecursionError, TypeError, ValueError)
_LARGEST_MODULUS = 1 << 62
_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class NoisedGroup:
    """Tensors that are clipped together, as one vector of integers per client.

    Attributes:
        tensors: Names of the tensors in the plan.
        modulus: Modulus of the tensors' sums, a power of two.
        largest_squared_norm: Maximum squared l2 norm of a client's integers.
        variance: Variance of the noise that each client adds to each integer.
        values: Number of integers in the vector.
    """

    name: str
    tensors: tuple[str, ...]
    modulus: int
    largest_squared_norm: int
    variance: float
    values: int

    def check_client(self, values: Mapping[str, np.ndarray]) -> None:
        """Checks that a client's integers do not exceed the norm that the noise assumes."""
        half, total = self.modulus // 2, 0
        for name in self.tensors:
            flat = values[name].astype(np.int64).ravel()
            signed = np.where(flat >= half, flat - self.modulus, flat)
            if signed.size and int(np.abs(signed).max()) ** 2 > self.largest_squared_norm:
                raise self._too_long()
            if self.largest_squared_norm * signed.size < 1 << 63:
                total += int(np.dot(signed, signed))
            else:
                total += sum(int(value) ** 2 for value in signed)
        if total > self.largest_squared_norm:
            raise self._too_long()

    def _too_long(self) -> PlanError:
        return PlanError(
            f"{self.name}: expected integers whose squares add up to at most "
            f"{self.largest_squared_norm}, the limit of the noise, found larger ones"
        )


@dataclasses.dataclass(frozen=True)
class NodeNoise:
    """Noise that a plan's nodes add.

    Attributes:
        groups: Groups of the tensors with noise.
        without_noise: Constants that every client sends without noise, keyed by tensor name.
        min_clients: Minimum number of clients with noise in an unmasked sum.
        takes_part: Probability that a client sends its values. Otherwise it secretly sends only
            noise.
        claimed: The plan author's epsilon after a client took part in 1, 2, ... sums. The length of
            this tuple limits the number of sums; its values do not affect `epsilon`.
    """

    groups: tuple[NoisedGroup, ...]
    without_noise: Mapping[str, int]
    min_clients: int
    takes_part: Fraction
    delta: float
    claimed: tuple[float, ...]

    @property
    def noise_multiplier(self) -> float:
        """Noise multiplier z of a sum with the minimum number of clients, over all groups.

        z = (sum_g z_g^-2)^(-1/2), z_g = sqrt(min_clients variance_g / largest_squared_norm_g).
        """
        shares = [
            group.largest_squared_norm / (self.min_clients * group.variance)
            if group.variance
            else math.inf
            for group in self.groups
        ]
        total = math.fsum(shares)
        return 1 / math.sqrt(total) if total else math.inf

    @property
    def in_sum(self) -> SkellamSum:
        """Noise of a sum over the minimum number of clients."""
        return SkellamSum(
            tuple(
                (g.largest_squared_norm, self.min_clients * g.variance, g.values)
                for g in self.groups
            ),
            self.takes_part,
        )

    def epsilon(self, sums: int) -> float:
        """Returns a client's epsilon towards the server after it took part in `sums` sums."""
        return composed_epsilon({self.in_sum: sums}, self.delta)

    def check_plan(self, tensors: Sequence[SummedTensor], min_clients: int) -> None:
        """Checks that the noise matches a plan's tensors and minimum number of clients.

        Args:
            tensors: Tensors that the plan sums.
            min_clients: Minimum number of clients in an unmasked sum.
        """
        if min_clients < self.min_clients:
            raise PlanError(
                f"min_clients: expected at least {self.min_clients}, as the plan's noise requires, "
                f"found {min_clients}"
            )
        moduli = {name: group.modulus for group in self.groups for name in group.tensors}
        named = sorted([*moduli, *self.without_noise])
        if named != sorted(tensor.name for tensor in tensors):
            raise PlanError(f"{WHERE}: expected the plan's tensors, each once, found {named}")
        sizes = {tensor.name: tensor.size for tensor in tensors}
        for group in self.groups:
            size = sum(sizes[name] for name in group.tensors)
            if group.values != size:
                raise PlanError(
                    f"{WHERE}: {group.name}: values: expected {size} as in the plan, found "
                    f"{group.values}"
                )
        for tensor in tensors:
            expected = moduli.get(tensor.name)
            if expected is not None and (tensor.modulus, tensor.bound) != (expected, expected):
                raise PlanError(
                    f"{WHERE}: {tensor.name}: expected the plan's modulus {tensor.modulus}, found "
                    f"{expected}"
                )

    def add_noise(
        self, values: Mapping[str, np.ndarray], draw: Draw = skellam
    ) -> dict[str, np.ndarray]:
        """Returns a client's integers with its noise, modulo each group's modulus.

        Args:
            values: Outputs of the client's graph, modulo each group's modulus.
            draw: Called with a variance and a number of values; returns noise.
        """
        for name, constant in self.without_noise.items():
            if (values[name] != constant).any():
                raise PlanError(
                    f"{name}: expected {constant} of every client, found a different value"
                )
        for group in self.groups:
            group.check_client(values)
        is_silent = secrets.randbelow(self.takes_part.denominator) >= self.takes_part.numerator
        sent = {name: values[name] for name in self.without_noise}
        for group in self.groups:
            modulus = np.int64(group.modulus)
            variance = Fraction(group.variance)
            for name in group.tensors:
                value = np.zeros_like(values[name]) if is_silent else values[name]
                noise = draw(variance, value.size).reshape(value.shape)
                # Overflow is harmless, because the modulus divides 2^64.
                sent[name] = np.mod(value.astype(np.int64) + noise, modulus)
        return sent


@dataclasses.dataclass(frozen=True)
class PrivacyRequirements:
    """Privacy requirements of a node's operator: table `privacy` of `node.toml`.

    Attributes:
        min_noise_multiplier: Minimum `NodeNoise.noise_multiplier`. A value above 0 rejects plans
            whose nodes add no noise.
        max_sums: Maximum number of sums in which the node takes part.
        max_epsilon: Maximum epsilon over all of the node's sums.
        delta: Delta for `max_epsilon`, independent of the plans' delta.
    """

    min_noise_multiplier: float = 0.0
    max_sums: Optional[int] = None
    max_epsilon: Optional[float] = None
    delta: Optional[float] = None

    def check(self, where: str) -> None:
        """Checks the ranges and the combination of the settings."""
        minimum = self.min_noise_multiplier
        has_limit = self.max_sums is not None or self.max_epsilon is not None
        expected = {
            "min_noise_multiplier: a number from 0": 0 <= minimum < math.inf,
            "max_sums: a number above 0": self.max_sums is None or self.max_sums > 0,
            "max_epsilon: a number above 0": self.max_epsilon is None or self.max_epsilon > 0,
            "max_epsilon and delta: both or neither": (
                (self.max_epsilon is None) == (self.delta is None)
            ),
            "delta: a number between 0 and 1": self.delta is None or 0 < self.delta < 1,
            "min_noise_multiplier: above 0 with max_sums or max_epsilon": minimum > 0
            or not has_limit,
        }
        check_all(expected, where, self)

    def check_noise(self, noise: Optional[NodeNoise]) -> None:
        """Checks that a plan's noise meets `min_noise_multiplier`."""
        minimum = self.min_noise_multiplier
        if noise is None and minimum > 0:
            raise PlanError(
                "min_noise_multiplier: expected a plan whose nodes add noise, found a plan whose "
                "nodes add none: train with --privacy=distributed, export with --backend=flower"
            )
        if noise is not None and noise.noise_multiplier < minimum:
            raise PlanError(
                f"min_noise_multiplier: expected at least {minimum:g}, found "
                f"{noise.noise_multiplier:.6g} with {noise.min_clients} clients"
            )

    def check_sums(self, sums: Mapping[SkellamSum, int]) -> None:
        """Checks `max_sums` and `max_epsilon`, given the node's number of sums for each noise."""
        number = sum(sums.values())
        if self.max_sums is not None and number > self.max_sums:
            raise PlanError(
                f"max_sums: expected at most {counted(self.max_sums, 'sum')} with this node, this "
                f"would be number {number}"
            )
        if self.max_epsilon is None or self.delta is None:
            return
        epsilon = composed_epsilon(sums, self.delta)
        if epsilon > self.max_epsilon:
            raise PlanError(
                f"max_epsilon: expected at most {self.max_epsilon:g} at delta {self.delta:g}, "
                f"after {counted(number, 'sum')} with this node it would be {epsilon:.6g}"
            )


def parse_node_noise(manifest: bytes) -> Optional[NodeNoise]:
    """Parses a manifest's entry on noise that nodes add; returns None if there is none."""
    return parse_noise(manifest, {"distributed": _node_noise})


def parse_noise(
    manifest: bytes, mechanisms: Mapping[str, Callable[[dict[str, Any]], _T]]
) -> Optional[_T]:
    """Parses a manifest's entry on privacy; returns None if `mechanisms` lacks its mechanism.

    Args:
        mechanisms: Functions that parse and check the manifest's entry, keyed by mechanism name.
    """
    try:
        privacy = json.loads(manifest).get("privacy", {})
        if "differential_privacy" not in privacy:
            return None
        entry = privacy["differential_privacy"]
        convert = mechanisms.get(entry["mechanism"])
        return None if convert is None else convert(entry)
    except PlanError:
        raise
    # Malformed JSON raises these exceptions, as do numbers that are too large for arithmetic.
    except _MALFORMED as e:
        raise PlanError(f"{WHERE}: expected the noise of a plan, cannot read it ({e!r})") from e


def _node_noise(entry: dict[str, Any]) -> NodeNoise:
    groups = tuple(
        NoisedGroup(
            str(group["name"]),
            tuple(map(str, group["tensors"])),
            int(group["modulus"]),
            int(group["largest_squared_norm"]),
            float(group["variance"]),
            int(group["values"]),
        )
        for group in entry["groups"]
    )
    noise = NodeNoise(
        groups,
        {str(name): int(value) for name, value in entry["without_noise"].items()},
        int(entry["fewest_clients"]),
        Fraction(*map(int, entry["takes_part"])),
        float(entry["delta"]),
        tuple(map(float, entry["epsilon_after"])),
    )
    numbers = [noise.delta, *noise.claimed, *(group.variance for group in groups)]
    check_all(
        {
            "groups: at least one": len(groups) > 0,
            "finite numbers from 0": all(math.isfinite(n) and n >= 0 for n in numbers),
            "epsilon_after: increasing numbers": list(noise.claimed) == sorted(noise.claimed),
            "fewest_clients: at least 1": noise.min_clients >= 1,
            "takes_part: a probability above 0": 0 < float(noise.takes_part) <= 1,
            "groups: modulus: a power of 2": all(
                2 <= g.modulus <= _LARGEST_MODULUS and not g.modulus & (g.modulus - 1)
                for g in groups
            ),
            "groups: largest_squared_norm and values: numbers from 0": all(
                min(g.largest_squared_norm, g.values) >= 0 for g in groups
            ),
        },
        WHERE,
        noise,
    )
    for group in groups:
        check_variance(Fraction(group.variance), f"{WHERE}: {group.name}: variance")
    has_epsilon = noise.epsilon(1) >= 0 and noise.noise_multiplier >= 0
    check_all({"numbers that have an epsilon": has_epsilon}, WHERE, noise)
    for sums, claim in enumerate(noise.claimed, 1):
        epsilon = noise.epsilon(sums)
        if claim < epsilon * (1 - TOLERANCE):
            raise PlanError(
                f"{WHERE}: epsilon_after: expected at least {epsilon:.6g} after "
                f"{counted(sums, 'sum')}, which follows from the noise, found {claim:g}"
            )
    return noise


def check_all(expected: Mapping[str, bool], where: str, actual: object) -> None:
    """Raises PlanError if a condition is False; the condition's key describes valid values."""
    for words, holds in expected.items():
        if not holds:
            raise PlanError(f"{where}: expected {words}; found {actual}")
