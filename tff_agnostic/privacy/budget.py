"""How one release divides its budget among groups of values, each clipped and noised by itself.

A group g with sensitivity c_g gets Gaussian noise of standard deviation z_g c_g. All groups of a
round together are one Gaussian mechanism of noise multiplier z_eff = (sum_g z_g^-2)^(-1/2)
(McMahan and Andrew 2018, section 3), so with z_g = z / sqrt(w_g) and shares w_g that add up to 1
the whole release has the multiplier z.
"""

import dataclasses
import math
from collections.abc import Iterable

from tff_agnostic.errors import UserError
from tff_agnostic.settings import setting

_TOLERANCE = 1e-6
# The sensitivity of a bit from which 1/2 is taken away.
_BIT_SENSITIVITY = 0.5
# Noise multipliers from here on can be accounted for: with less, epsilon is in the thousands, and
# says nothing.
LEAST_NOISE = 2.0**-6
# What the name of a group's bit ends in.
CLIP_BIT = "/clip"


@dataclasses.dataclass(frozen=True)
class Group:
    """What is clipped and noised by itself.

    Attributes:
        name: Its name; of several exchanges with one cohort, e.g. "survey/losses".
        share: w_g, its share of the budget, above 0.
    """

    name: str
    share: float


@dataclasses.dataclass(frozen=True)
class BudgetSplit:
    """The groups of all that one cohort's round releases: whatever is in none is not to be sent.

    Exchanges with the same cohort are one release, and their groups stand side by side in one
    split. To compose them as separately sampled releases would be too optimistic.

    Attributes:
        groups: The groups, whose shares add up to 1.

    Raises:
        UserError: If names are not different, or shares not positive or no split of 1.
    """

    groups: tuple[Group, ...]

    def __post_init__(self) -> None:
        """Checks names and shares."""
        names = [group.name for group in self.groups]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise UserError(f"shares of a budget: expected different groups, found {twice!r} twice")
        for group in self.groups:
            if not (math.isfinite(group.share) and group.share > 0):
                raise UserError(
                    f"shares of a budget: expected numbers above 0, found {group.share:g} of "
                    f"{group.name!r}"
                )
        total = math.fsum(group.share for group in self.groups)
        if abs(total - 1) > _TOLERANCE:
            raise UserError(f"shares of a budget: expected to add up to 1, found {total:g}")

    def noise_multipliers(self, noise_multiplier: float) -> dict[str, float]:
        """Returns z_g of each group: noise of z_g times the group's sensitivity is to be added.

        Args:
            noise_multiplier: z, of the whole release.
        """
        return {g.name: float(noise_multiplier) / math.sqrt(g.share) for g in self.groups}

    def with_clip_bits(self, names: Iterable[str], share: float) -> "BudgetSplit":
        """Returns the split in which the clip norms of some groups adapt (Andrew et al. 2021).

        Each of them sends a bit, whether it was within its norm: one more group of the release,
        called after it with `CLIP_BIT`. What other groups have is scaled down for it.

        Args:
            names: The groups whose norms adapt.
            share: What each bit gets; the noise on the sum of bits is `clip_bit_stddev`.

        Raises:
            UserError: If a group is unknown, or nothing is left for the groups.
        """
        names = tuple(names)
        known = [group.name for group in self.groups]
        unknown = next((name for name in names if name not in known), None)
        if unknown is not None:
            raise UserError(
                f"shares of a budget: expected a group of {', '.join(known)} to clip adaptively, "
                f"found {unknown!r}"
            )
        rest = 1 - share * len(names)
        if not (share > 0 and rest > 0):
            raise UserError(
                f"shares of a budget: expected {len(names)} clip bits to leave something of 1 to "
                f"the groups, found a share of {share:g} each"
            )
        scaled = [dataclasses.replace(group, share=group.share * rest) for group in self.groups]
        bits = [Group(f"{name}{CLIP_BIT}", share) for name in names]
        return BudgetSplit((*scaled, *bits))


def update_share_setting() -> float:
    """Returns the setting of how much of a round's budget updates have, for options to declare."""
    share: float = setting(
        0.8,
        "Share of a round's privacy budget for updates; sums of losses, counts and metrics have "
        "the rest.",
        positive=True,
        below=1.0,
    )
    return share


def effective_noise_multiplier(noise_multipliers: Iterable[float]) -> float:
    """Returns z_eff = (sum_g z_g^-2)^(-1/2) of independent Gaussian releases about one cohort.

    A group without noise makes it 0.
    """
    # Arrays' own numbers are no `float` to dp-accounting, which then counts the first only.
    multipliers = [float(z) for z in noise_multipliers]
    if min(multipliers) <= 0:
        return 0.0
    return math.fsum(z**-2 for z in multipliers) ** -0.5


def clip_bit_stddev(noise_multiplier: float) -> float:
    """Returns sigma_b, the standard deviation of the noise on a sum of clip bits.

    Each client sends its bit less 1/2, whose size is 1/2 whatever the bit is (Andrew et al. 2021,
    section 2.2 and Theorem 1: z_b = 2 sigma_b).

    Args:
        noise_multiplier: z_b, of the group that the bit is.
    """
    return _BIT_SENSITIVITY * float(noise_multiplier)
