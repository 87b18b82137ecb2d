"""The noise that a node adds to its integers, as its own copy of the export's manifest says.

A plan's graphs give a client's clipped, rounded integers without noise. The node checks them, adds
noise, and hands the remainders to the secure sum. So neither the graphs, which are another's code,
nor the server have a part in what is promised: with the checks here no client changes a sum by more
than the noise is for, whatever the graphs do.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Optional

import numpy as np

from fleet.node_noise.divergences import TOLERANCE, SkellamSum, composed_epsilon
from fleet.node_noise.skellam import Draw, check_variance, fresh_words, skellam
from fleet.secure_aggregation.sum_plan import SummedTensor, SumPlan
from plan_runner.errors import PlanError, counted
from plan_runner.export import NAME

WHERE = "manifest.json: privacy: differential_privacy"
_DISTRIBUTED = "distributed"
_LARGEST_MODULUS = 1 << 62
_WORD_BITS = 64


@dataclasses.dataclass(frozen=True)
class NoisedGroup:
    """Tensors that are clipped together; of each client one vector of integers.

    Attributes:
        name: What it is.
        tensors: Their names in the plan.
        modulus: What they are summed modulo: a power of two.
        largest_squared_norm: Bound of a client's integers: of the sum of their squares.
        variance: Variance of the noise that each client adds to each integer.
        values: Number of integers.
    """

    name: str
    tensors: tuple[str, ...]
    modulus: int
    largest_squared_norm: int
    variance: float
    values: int

    def check_client(self, values: Mapping[str, np.ndarray]) -> None:
        """Checks that a client's integers are no longer than the noise is for."""
        half, total = self.modulus // 2, 0
        for name in self.tensors:
            # The numbers nearest 0 that have these remainders.
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
            f"{self.largest_squared_norm}, for which the noise is, found larger ones"
        )


@dataclasses.dataclass(frozen=True)
class NodeNoise:
    """The noise of a plan.

    Attributes:
        groups: What gets noise.
        without_noise: What gets none: values that every client sends alike, by tensor.
        fewest_clients: The fewest clients with noise in a sum that is opened.
        takes_part: The probability with which a client's values are in a sum; otherwise it sends
            zeros with its noise, and nobody else knows.
        delta: The delta of the epsilons.
        claimed: Epsilon after a client was in 1, 2, ... sums, as the plan's author has written it.
            It limits the number of sums; `epsilon` is computed from the noise.
    """

    groups: tuple[NoisedGroup, ...]
    without_noise: Mapping[str, int]
    fewest_clients: int
    takes_part: Fraction
    delta: float
    claimed: tuple[float, ...]

    @property
    def noise_multiplier(self) -> float:
        """Deviation of the noise of the fewest clients, for each unit of what one client changes.

        Of all groups together: (sum_g z_g^-2)^(-1/2).
        """
        shares = [
            group.largest_squared_norm / (self.fewest_clients * group.variance)
            if group.variance
            else math.inf
            for group in self.groups
        ]
        return 1 / math.sqrt(math.fsum(shares))

    @property
    def in_sum(self) -> SkellamSum:
        """The noise of a sum over the minimum number of clients."""
        return SkellamSum(
            tuple(
                (g.largest_squared_norm, self.fewest_clients * g.variance, g.values)
                for g in self.groups
            ),
            self.takes_part,
        )

    def epsilon(self, sums: int) -> float:
        """Returns epsilon of what the server sees after a client was in this many sums."""
        return composed_epsilon({self.in_sum: sums}, self.delta)

    def check_plan(self, tensors: Sequence[SummedTensor], min_clients: int) -> None:
        """Checks that the noise is that of a plan's sums.

        Args:
            tensors: All that a client sends.
            min_clients: The fewest clients whose sum is opened.
        """
        if min_clients < self.fewest_clients:
            raise PlanError(
                f"min_clients: expected at least {self.fewest_clients}, the fewest clients whose "
                f"noise epsilon is for, found {min_clients}"
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
            values: Of the client's graph: remainders.
            draw: Draws the noise, from a variance and a number of values.
        """
        for name, constant in self.without_noise.items():
            if (values[name] != constant).any():
                raise PlanError(f"{name}: expected {constant} of every client, found another value")
        for group in self.groups:
            group.check_client(values)
        is_silent = not _bernoulli(self.takes_part)
        sent = {name: values[name] for name in self.without_noise}
        for group in self.groups:
            modulus = np.int64(group.modulus)
            variance = Fraction(group.variance)
            for name in group.tensors:
                own = np.zeros_like(values[name]) if is_silent else values[name]
                noise = draw(variance, own.size).reshape(own.shape)
                # Remainders are at least 0 whatever the sign; a power of two divides 2^64.
                sent[name] = np.mod(own.astype(np.int64) + noise, modulus)
        return sent


@dataclasses.dataclass(frozen=True)
class PrivacyRequirements:
    """Privacy requirements of a node's operator: table `privacy` of `node.toml`.

    Attributes:
        least_noise_multiplier: The least `NodeNoise.noise_multiplier`; above 0, plans without noise
            of clients are refused.
        most_sums: In how many sums the node may be.
        most_epsilon: Maximum epsilon of all its sums together, at `most_delta`.
        most_delta: The delta at which the node computes that epsilon, whatever plans claim.
    """

    least_noise_multiplier: float = 0.0
    most_sums: Optional[int] = None
    most_epsilon: Optional[float] = None
    most_delta: Optional[float] = None

    def check(self, where: str) -> None:
        """Checks the numbers."""
        if not 0 <= self.least_noise_multiplier < math.inf:
            raise PlanError(
                f"{where}: least_noise_multiplier: expected a number from 0, found "
                f"{self.least_noise_multiplier}"
            )
        for name in ("most_sums", "most_epsilon"):
            found = getattr(self, name)
            if found is not None and not found > 0:
                raise PlanError(f"{where}: {name}: expected a number above 0, found {found}")
        if (self.most_epsilon is None) != (self.most_delta is None):
            raise PlanError(
                f"{where}: expected both of most_epsilon and most_delta, found one of them"
            )
        if self.most_delta is not None and not 0 < self.most_delta < 1:
            raise PlanError(
                f"{where}: most_delta: expected a number between 0 and 1, found {self.most_delta}"
            )
        if self.least_noise_multiplier == 0 and (self.most_sums or self.most_epsilon):
            raise PlanError(
                f"{where}: expected a least_noise_multiplier with most_sums or most_epsilon, found "
                "none"
            )

    def check_noise(self, noise: Optional[NodeNoise]) -> None:
        """Checks that a plan's noise is enough."""
        least = self.least_noise_multiplier
        if noise is None:
            if least > 0:
                raise PlanError(
                    "least_noise_multiplier: expected a plan to which clients add noise, as "
                    f"./run export --backend=flower makes of --privacy=distributed; {least:g} is "
                    "demanded, found one without"
                )
            return
        if noise.noise_multiplier < least:
            raise PlanError(
                f"least_noise_multiplier: expected noise of at least {least:g} times what a client "
                f"changes, found {noise.noise_multiplier:.6g} with {noise.fewest_clients} clients"
            )

    def check_sums(self, sums: Mapping[SkellamSum, int]) -> None:
        """Checks that the node may take part in sums with these noises, over all its plans."""
        number = sum(sums.values())
        if self.most_sums is not None and number > self.most_sums:
            raise PlanError(
                f"most_sums: expected at most {counted(self.most_sums, 'sum')} with this node, "
                f"this would be number {number}"
            )
        if self.most_epsilon is None or self.most_delta is None:
            return
        epsilon = composed_epsilon(sums, self.most_delta)
        if epsilon > self.most_epsilon:
            raise PlanError(
                f"most_epsilon: expected at most {self.most_epsilon:g} at delta "
                f"{self.most_delta:g}, after {counted(number, 'sum')} with this node it would be "
                f"{epsilon:.6g}"
            )


def noise_of_export(export: Path, pinned: str) -> Optional[NodeNoise]:
    """Returns the noise that clients add; None if an export's manifest has none.

    Args:
        export: Folder of the export.
        pinned: SHA-256 of its manifest, as hexadecimal digits.
    """
    return noise_of_manifest(pinned_manifest(export, pinned))


def pinned_manifest(export: Path, pinned: str) -> bytes:
    """Returns the content of an export's manifest.

    Args:
        export: Folder of the export.
        pinned: SHA-256 of the manifest, as hexadecimal digits.
    """
    path = export / NAME
    try:
        content = path.read_bytes()
    except OSError as e:
        raise PlanError(f"{path}: expected a manifest, cannot read it ({e.strerror})") from e
    found = hashlib.sha256(content).hexdigest()
    if found != pinned:
        raise PlanError(f"{path}: expected the pinned sha256 {pinned}, found {found}")
    return content


def noise_of_manifest(content: bytes) -> Optional[NodeNoise]:
    """Returns the noise that clients add; None if a manifest says of none.

    Args:
        content: The manifest, which the node's operator has pinned.
    """
    try:
        found = json.loads(content)["privacy"]["differential_privacy"]
    except KeyError:
        return None
    except (ValueError, TypeError, RecursionError) as e:
        raise PlanError(f"{WHERE}: expected JSON, cannot read it ({e})") from e
    try:
        if found["mechanism"] != _DISTRIBUTED:
            return None
        noise = NodeNoise(
            tuple(
                NoisedGroup(
                    str(group["name"]),
                    tuple(map(str, group["tensors"])),
                    int(group["modulus"]),
                    int(group["largest_squared_norm"]),
                    float(group["variance"]),
                    int(group["values"]),
                )
                for group in found["groups"]
            ),
            {str(name): int(value) for name, value in found["without_noise"].items()},
            int(found["fewest_clients"]),
            Fraction(*map(int, found["takes_part"])),
            float(found["delta"]),
            tuple(map(float, found["epsilon_after"])),
        )
    except (KeyError, ValueError, TypeError, AttributeError, ZeroDivisionError) as e:
        raise PlanError(f"{WHERE}: expected the noise of clients, cannot read it ({e!r})") from e
    _check(noise)
    return noise


def _check(noise: NodeNoise) -> None:
    numbers = [noise.delta, *noise.claimed, *(group.variance for group in noise.groups)]
    if not noise.groups or not all(math.isfinite(number) and number >= 0 for number in numbers):
        raise PlanError(f"{WHERE}: expected groups with noise, and finite numbers")
    if list(noise.claimed) != sorted(noise.claimed) or noise.fewest_clients < 1:
        raise PlanError(f"{WHERE}: expected epsilons that grow, and at least one client")
    if not 0 < noise.takes_part <= 1:
        raise PlanError(f"{WHERE}: takes_part: expected a probability, found {noise.takes_part}")
    for group in noise.groups:
        where = f"{WHERE}: {group.name}"
        if not 2 <= group.modulus <= _LARGEST_MODULUS or group.modulus & (group.modulus - 1):
            raise PlanError(f"{where}: modulus: expected a power of 2, found {group.modulus}")
        if group.largest_squared_norm < 0:
            raise PlanError(f"{where}: largest_squared_norm: expected one from 0")
        if group.values < 0:
            raise PlanError(f"{where}: values: expected a number from 0, found {group.values}")
        check_variance(Fraction(group.variance), f"{where}: variance")
    for sums, claim in enumerate(noise.claimed, 1):
        epsilon = noise.epsilon(sums)
        if claim < epsilon * (1 - TOLERANCE):
            raise PlanError(
                f"{WHERE}: epsilon_after: expected at least {epsilon:.6g} after "
                f"{counted(sums, 'sum')}, which follows from the noise, found {claim:g}"
            )


def check_sum_plan(noise: Optional[NodeNoise], sums: SumPlan) -> None:
    """Checks that the noise is that of a plan's sums; see `NodeNoise.check_plan`."""
    if noise is not None:
        noise.check_plan(sums.tensors, sums.min_clients)


def _bernoulli(probability: Fraction) -> bool:
    """Returns true with exactly this probability: digits of a number below it, or not."""
    words = fresh_words()
    numerator, denominator = probability.numerator, probability.denominator
    while 0 < numerator < denominator:
        numerator <<= _WORD_BITS
        digit, rest = divmod(numerator, denominator)
        word = int(words(1)[0])
        if word != digit:
            return word < digit
        numerator = rest
    return numerator > 0
