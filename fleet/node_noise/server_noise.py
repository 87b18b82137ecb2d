"""Noise that a plan's server adds, and the epsilon of the released rounds.

The plan's graphs add the noise, and the server samples the cohorts. `ServerNoise.sampled_epsilon`
assumes cohorts that are sampled as the manifest describes. `ServerNoise.known_epsilon` assumes that
the attacker knows all cohorts.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any, Optional

import numpy as np

from fleet.node_noise.divergences import (
    TOLERANCE,
    epsilon_from_divergences,
    epsilon_lower_bound,
    gaussian,
    gaussian_epsilon,
    poisson_sampled_gaussian,
    sampled_without_replacement,
    tree_sensitivity,
)
from fleet.node_noise.noise import WHERE, check_all, parse_noise
from plan_runner.errors import PlanError, counted

POISSON, FIXED_SIZE, STRATIFIED = "poisson", "fixed_size", "stratified"
SPACED, EVERYONE = "spaced", "everyone"
_SCHEMES = (POISSON, FIXED_SIZE, STRATIFIED, SPACED, EVERYONE)
# Maximum number of rounds, as the lower bound of epsilon needs memory in proportion to it.
_MAX_ROUNDS = 10**6


@dataclasses.dataclass(frozen=True)
class Draw:
    """Sampling scheme of cohorts that a plan's epsilon assumes.

    Attributes:
        scheme: POISSON samples clients independently, FIXED_SIZE without replacement, STRATIFIED
            without replacement in each stratum. SPACED allows any cohorts that respect the limits
            on a client's rounds. EVERYONE allows any cohorts, as epsilon counts every round.
        clients: Number of clients in the population.
        per_round: Mean number of clients in a round.
        rate: Maximum over clients of the probability of being in a round.
        sensitivity: Distance between the sums of neighbouring populations, in clip norms.
        max_participations: Maximum number of rounds per client; None for no limit.
        min_separation: Minimum difference between the numbers of a client's rounds.
    """

    scheme: str
    clients: int
    per_round: float
    rate: float
    sensitivity: float
    max_participations: Optional[int] = None
    min_separation: int = 1

    @property
    def text(self) -> str:
        """Human-readable description."""
        size = f"{self.per_round:g} of {counted(self.clients, 'client')}"
        if self.scheme != SPACED:
            return f"{self.scheme}, {size}"
        limit = self.max_participations
        times = "" if limit is None else f", at most {counted(limit, 'round')} of a client"
        return f"{size}{times}, at least {counted(self.min_separation, 'round')} apart"

    def may_take_part(self, rounds: Iterable[int], number: int) -> bool:
        """Whether a client that took part in `rounds` may take part in round `number`."""
        earlier = [other for other in rounds if other != number]
        limit = self.max_participations
        return (limit is None or len(earlier) < limit) and all(
            abs(number - other) >= self.min_separation for other in earlier
        )


@dataclasses.dataclass(frozen=True)
class ServerNoise:
    """Noise that a plan's server adds, and the guarantee that the plan's author claims.

    Attributes:
        noise_multiplier: Standard deviation of a round's noise, divided by the clip norm.
        draw: Sampling scheme of the cohorts.
        rounds: Number of rounds that the guarantee covers.
        claimed: The plan author's epsilon after `rounds` rounds.
        is_tree: Whether the noise is added to the nodes of trees over rounds (DP-FTRL).
        restart_every: Number of rounds per tree; None for one tree over all rounds.
    """

    noise_multiplier: float
    delta: float
    draw: Draw
    rounds: int
    claimed: float
    is_tree: bool = False
    restart_every: Optional[int] = None

    def sampled_epsilon(self, rounds: int) -> float:
        """Returns epsilon after this number of rounds, with cohorts sampled as planned.

        Epsilon is an upper bound from Renyi divergences; it is exact for a rate of 1.
        """
        draw, z = self.draw, self.noise_multiplier
        if not rounds:
            return 0.0
        if not z:
            return math.inf
        exact = gaussian_epsilon(draw.sensitivity * math.sqrt(rounds) / z, self.delta)
        if draw.rate == 1:
            return exact
        if draw.scheme == POISSON:
            divergences = poisson_sampled_gaussian(z, draw.rate)
        else:
            divergences = sampled_without_replacement(gaussian(draw.sensitivity / z), draw.rate)
        return min(exact, epsilon_from_divergences(rounds * divergences, self.delta))

    def known_epsilon(self, rounds: Iterable[int], last: int) -> float:
        """Returns a client's epsilon if the attacker knows the client's rounds.

        Args:
            rounds: Rounds in which the client took part, from 1.
            last: Number of rounds so far.
        """
        numbers = set(rounds)
        if self.is_tree:
            distance = tree_sensitivity(numbers, last, self.restart_every)
        else:
            distance = math.sqrt(len(numbers))
        if not distance:
            return 0.0
        if not self.noise_multiplier:
            return math.inf
        distance *= self.draw.sensitivity / self.noise_multiplier
        return gaussian_epsilon(distance, self.delta)

    def check(self) -> None:
        """Checks the parameters, and that the claimed epsilon is not below a lower bound."""
        draw, limit = self.draw, self.draw.max_participations
        rate = draw.rate * (1 + 1e-9)
        expected = {
            f"draw: scheme: one of {', '.join(_SCHEMES)}": draw.scheme in _SCHEMES,
            "draw: scheme: spaced with a tree, and no other": self.is_tree
            == (draw.scheme == SPACED),
            "delta: a number between 0 and 1": 0 < self.delta < 1,
            "noise_multiplier: a number from 0": 0 <= self.noise_multiplier < math.inf,
            "draw: clients and per_round: numbers of clients": 0 < draw.per_round <= draw.clients,
            "draw: rate: a probability of at least per_round / clients": (
                draw.per_round <= rate * draw.clients and draw.rate <= 1
            ),
            "draw: sensitivity: 1 or 2": draw.sensitivity in (1, 2),
            "draw: max_participations and min_separation: at least 1": (
                draw.min_separation >= 1 and (limit is None or limit >= 1)
            ),
            f"rounds: from 1 to {_MAX_ROUNDS}": 1 <= self.rounds <= _MAX_ROUNDS,
            "tree_restart_every: at least 1": self.restart_every is None or self.restart_every >= 1,
        }
        check_all(expected, WHERE, self)
        if draw.scheme == SPACED:
            # The worst-case client takes part as early and as often as possible.
            numbers = range(1, self.rounds + 1, self.draw.min_separation)
            bound = self.known_epsilon(numbers[: self.draw.max_participations], self.rounds)
        elif self.noise_multiplier:
            bound = epsilon_lower_bound(
                self.noise_multiplier,
                self.draw.rate,
                self.rounds,
                self.delta,
                self.draw.sensitivity,
            )
        else:
            bound = math.inf
        if self.claimed < bound * (1 - TOLERANCE):
            raise PlanError(
                f"{WHERE}: guarantee_as_simulated: epsilon: expected at least {bound:.6g} after "
                f"{counted(self.rounds, 'round')}, which follows from the noise and the sampling, "
                f"found {self.claimed:g}"
            )


def parse_server_noise(manifest: bytes) -> Optional[ServerNoise]:
    """Parses and checks a manifest's entry on the server's noise; returns None if there is none."""
    return parse_noise(manifest, {"central": _server_noise, "tree": _server_noise})


def _server_noise(entry: dict[str, Any]) -> ServerNoise:
    draw, claimed = entry["draw"], entry["guarantee_as_simulated"]["epsilon"]
    limit, restart = draw.get("max_participations"), entry.get("tree_restart_every")
    multipliers = np.array([float(group["noise_multiplier"]) for group in entry["groups"]])
    # All groups together are one Gaussian release (McMahan and Andrew 2018, section 3).
    z = float(np.sum(multipliers**-2.0) ** -0.5) if multipliers.all() else 0.0
    noise = ServerNoise(
        z,
        float(entry["delta"]),
        Draw(
            str(draw["scheme"]),
            int(draw["clients"]),
            float(draw["per_round"]),
            float(draw["rate"]),
            float(draw["sensitivity"]),
            None if limit is None else int(limit),
            int(draw.get("min_separation", 1)),
        ),
        int(entry["rounds"]),
        # JSON has no infinity, so null represents the epsilon without noise.
        math.inf if claimed is None else float(claimed),
        entry["mechanism"] == "tree",
        None if restart is None else int(restart),
    )
    noise.check()
    return noise
