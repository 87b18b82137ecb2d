"""What is promised to a client, in words and numbers, for files and tables."""

import dataclasses
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
        return (
            f"({self.epsilon:.4g}, {self.delta:.3g})-differential privacy of each {self.unit} "
            f"after {self.rounds} {self.of_what}"
        )

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
