"""What is promised to a client, in words and numbers, for files and tables."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from tff_agnostic.files import finite_or_none
from tff_agnostic.privacy.accountant import PrivacyAccountant

UNIT = "client"
_EVALUATIONS = "evaluations, and the clients that they are on"
# What no account covers.
_NEVER_COVERED = (
    "tuning: other runs on the same clients, and the choice of settings by their results",
    "the choice of the algorithm by results on the same clients",
)
# What no account of training covers.
NOT_COVERED = (_EVALUATIONS, *_NEVER_COVERED)


# Above it, epsilon promises next to nothing.
WEAK_EPSILON = 10.0


def guarantee(epsilon: float, delta: float, of_what: str) -> str:
    """Returns what is promised, in words: a number of which little follows is not called more.

    Args:
        epsilon: Epsilon; infinite without noise.
        delta: Its delta.
        of_what: What follows "differential privacy", such as "of each client after 3 rounds".
    """
    if not math.isfinite(epsilon):
        return f"no differential privacy {of_what}: without noise epsilon is infinite"
    weak = f", which promises next to nothing: epsilon is above {WEAK_EPSILON:g}"
    return (
        f"({epsilon:.4g}, {delta:.3g})-differential privacy {of_what}"
        f"{weak if epsilon > WEAK_EPSILON else ''}"
    )


def drowned(
    noise_multiplier: float, clients_per_round: int, rounds: int, is_tree: bool = False
) -> Optional[str]:
    """Returns a sentence, without full stop, on noise in which nothing can be seen; None otherwise.

    Args:
        noise_multiplier: z of a round's release.
        clients_per_round: Clients of a round.
        rounds: Rounds: what clients send adds up over them, and noise to its root of their number.
        is_tree: Whether the noise is that of sums over the rounds, in which it does not add up.
    """
    if noise_multiplier <= clients_per_round * (rounds if is_tree else math.sqrt(rounds)):
        return None
    return (
        f"nothing can be learnt: the noise of a round is {noise_multiplier:.4g} times what one "
        f"client can change, and {rounds} rounds of {clients_per_round} clients do not stand out"
    )


@dataclasses.dataclass(frozen=True)
class PrivacyStatement:
    """The guarantee of a run, and what it rests on.

    Attributes:
        epsilon: Epsilon of everything released so far.
        delta: The delta that it is for.
        rounds: Rounds, or other releases, after which it holds.
        noise_multiplier: z of a round's whole release.
        split: Noise multiplier of each group of the release.
        adjacency: In what neighbouring fleets differ.
        sampling: What is taken for granted of cohorts, a sentence without full stop.
        accountant: Name of the accountant.
        unit: Whose data the neighbours differ in.
        not_covered: What it says nothing of.
        remarks: What a reader has to know beside, e.g. that a noise seed was given.
        of_what: What `rounds` counts.
        noise_generator: What the noise is made of; None where there is no run.
    """

    epsilon: float
    delta: float
    rounds: int
    noise_multiplier: float
    split: Mapping[str, float]
    adjacency: str
    sampling: str
    accountant: str
    unit: str = UNIT
    not_covered: tuple[str, ...] = NOT_COVERED
    remarks: tuple[str, ...] = ()
    of_what: str = "rounds"
    noise_generator: Optional[str] = None

    def to_dict(self) -> dict[str, Any]:
        """Returns it for JSON; an infinite epsilon, that of no noise, is None."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        values[values.pop("of_what")] = values.pop("rounds")
        if self.noise_generator is None:
            del values["noise_generator"]
        return {
            **values,
            "epsilon": finite_or_none(self.epsilon),
            "split": dict(self.split),
            "not_covered": list(self.not_covered),
            "remarks": list(self.remarks),
        }

    @property
    def text(self) -> str:
        """Returns the guarantee in one line."""
        of_what = f"of each {self.unit} after {self.rounds} {self.of_what}"
        return guarantee(self.epsilon, self.delta, of_what)

    def rows(self) -> list[tuple[str, str]]:
        """Returns lines of a table: what, and its value."""
        split = ", ".join(f"{name} {z:.4g}" for name, z in self.split.items())
        return [
            ("guarantee", self.text),
            ("neighbours", self.adjacency),
            ("taken for granted", self.sampling),
            ("noise multiplier", f"{self.noise_multiplier:.6g}"),
            ("of each group", split),
            ("accountant", self.accountant),
            *([] if self.noise_generator is None else [("noise generator", self.noise_generator)]),
            *(("not covered", text) for text in self.not_covered),
            *(("remark", text) for text in self.remarks),
        ]


def statement(
    accountant: PrivacyAccountant,
    counts: Sequence[int],
    split: Mapping[str, float],
    remarks: Sequence[str] = (),
    evaluations_are_private: bool = False,
    of_what: str = "rounds",
    noise_generator: Optional[str] = None,
) -> PrivacyStatement:
    """Returns what holds after a number of releases.

    Args:
        accountant: What accounts for them.
        counts: How often each mechanism was released; the first of them is what is told of.
        split: Noise multiplier of each group of its releases.
        remarks: See `PrivacyStatement`.
        evaluations_are_private: Whether evaluations have a statement, too.
        of_what: See `PrivacyStatement`.
        noise_generator: See `PrivacyStatement`.
    """
    first = accountant.mechanisms[0]
    assumptions = dict.fromkeys(mechanism.assumption for mechanism in accountant.mechanisms)
    return PrivacyStatement(
        epsilon=accountant.epsilon(*counts),
        delta=accountant.delta,
        rounds=counts[0],
        noise_multiplier=first.noise_multiplier,
        split=dict(split),
        adjacency=first.adjacency,
        sampling="; ".join(assumptions),
        accountant=accountant.name,
        not_covered=_NEVER_COVERED if evaluations_are_private else NOT_COVERED,
        remarks=tuple(remarks),
        of_what=of_what,
        noise_generator=noise_generator,
    )
