"""Sensitivity of DP-FTRL's trees of sums to a client that participates in several rounds.

DP-FTRL (Kairouz et al. 2021) builds a binary tree over the rounds, and releases a noised sum for
each complete node. A client that contributes k times to a node changes its sum by at most k clip
norms C. The squared sensitivity of all releases is S^2 = C^2 sum_nodes k^2, and rho = S^2 / (2 z^2
C^2).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Optional

import numpy as np

from tff_agnostic.base.errors import counted
from tff_agnostic.base.options import OptionError, Verbatim

# A number of participations that exceeds the rounds of any run.
_UNBOUNDED = 2**31
# Maximum number of steps in the search for the worst pattern, at which it takes half a minute.
_MAX_STEPS = 3 * 10**6
# Entry of `_Options.free` for sums that no pattern reaches.
_IMPOSSIBLE = -1


@dataclasses.dataclass(frozen=True)
class Participations:
    """Limits on a client's participation, and restarts of the tree.

    Attributes:
        max_participations: Maximum number of rounds in which a client participates; None for no
            limit.
        min_separation: b, the minimum number of rounds from a client's participation to its next
            one; 1 for no limit.
        restart_every: Number of rounds per tree; None for one tree over all rounds.
    """

    max_participations: Optional[int] = None
    min_separation: int = 1
    restart_every: Optional[int] = None

    def __post_init__(self) -> None:
        for flag, value in (
            ("max_participations", self.max_participations),
            ("min_separation", self.min_separation),
            ("tree_restart_every", self.restart_every),
        ):
            if value is not None and value < 1:
                raise OptionError(flag, "at least 1", value)
        if self.max_participations is None and self.min_separation == 1:
            expected = "a bound on how often a client takes part, or a min_separation above 1"
            raise OptionError("max_participations", expected, Verbatim("none"))

    @property
    def assumption(self) -> str:
        """Returns the limits as a sentence without full stop."""
        parts = []
        if self.max_participations is not None:
            times = "once" if self.max_participations == 1 else f"{self.max_participations} times"
            parts.append(f"a client takes part at most {times}")
        if self.min_separation > 1:
            parts.append(
                f"a client that took part waits until at least {self.min_separation} rounds later"
            )
        trees = "one tree"
        if self.restart_every is not None:
            trees = f"a new tree every {counted(self.restart_every, 'round')}"
        return f"{' and '.join(parts)}, however clients are chosen; {trees}"


@functools.lru_cache(maxsize=64)
def squared_sensitivity(participations: Participations, rounds: int) -> float:
    """Returns the squared sensitivity (S / C)^2, maximised over a client's participation patterns.

    The maximum is exact, over all patterns that `participations` allows (Kairouz et al. 2021,
    appendix D.2, covers one tree). One participation in one tree of T rounds gives floor(log2 T) +
    1. If a client participates in several trees, the trees' values add up.

    Args:
        rounds: Number T of rounds, at least 0.
    """
    if rounds == 0:
        return 0.0
    per_tree = min(participations.restart_every or rounds, rounds)
    most = participations.max_participations or _UNBOUNDED
    if most == 1 or participations.min_separation >= rounds:
        return float(per_tree.bit_length())
    # A larger separation has no effect. Clipping to a power of 2 lets similar numbers of
    # rounds share cached results.
    separation = min(participations.min_separation, 1 << rounds.bit_length())
    num_whole, rest = divmod(rounds, per_tree)
    if separation == 1 and most >= rounds:
        # Participation in every round is the worst pattern, which the search would
        # take long to find.
        return float(num_whole * _with_all_rounds(per_tree) + _with_all_rounds(rest))
    times = min(most, -(-rounds // separation))
    if times**2 * separation > _MAX_STEPS:
        pattern = f"take part {times} times, {separation} rounds apart"
        problem = f"{rounds}, in which a client may {pattern}: too many to find the worst pattern"
        raise OptionError("rounds", "fewer rounds with tree privacy", Verbatim(problem))
    reachable = _Forest(per_tree, most, separation).after(num_whole)
    for size in _block_sizes(rest):
        reachable = _with_block(reachable, size, most, separation)
    return float(max(np.max(options.sums) for options in reachable))


def noise_covariance(participations: Participations, rounds: int) -> np.ndarray:
    """Returns the covariance of the rounds' noise, [T, T], in units of one node's noise variance.

    The sum over rounds 1 to t has the noise of the nodes that cover these rounds. Round t itself
    has the difference between this noise and the noise of the sum over rounds 1 to t - 1. Two such
    prefixes share the nodes for the leading bits in which their lengths agree.

    Args:
        participations: Only `restart_every` is used.
    """
    per_tree = participations.restart_every or rounds
    tree, position = np.divmod(np.arange(rounds), per_tree)
    shared = np.zeros([rounds, rounds])
    ends = position + 1
    for h in range(int(per_tree).bit_length()):
        has_node = (ends >> h) % 2 == 1
        is_same = (ends >> h)[:, None] == ends >> h
        shared += has_node[:, None] & is_same
    shared *= tree[:, None] == tree
    difference = np.eye(rounds) - np.eye(rounds, k=-1) * (position > 0)[:, None]
    covariance: np.ndarray = difference @ shared @ difference.T
    return covariance


class _Options(NamedTuple):
    """The sums that participation patterns reach with a given number of participations.

    Attributes:
        sums: Values of sum_nodes k^2 in descending order, float [options].
        free: Numbers of rounds, int [options, b]. Entry [i, s] is the maximum number of last rounds
            without the client, in patterns whose sum is at least `sums[i]` and whose first s rounds
            are without the client. It is at most b - 1, as more rounds change nothing;
            `_IMPOSSIBLE` if no such pattern exists.
    """

    sums: np.ndarray
    free: np.ndarray


@functools.lru_cache(maxsize=32)
class _Forest:
    """The `_Options` after 0, 1, 2, ... trees of equal size, each computed from the previous."""

    def __init__(self, per_tree: int, most: int, separation: int) -> None:
        self._sizes = tuple(_block_sizes(per_tree))
        self._most, self._separation = most, separation
        # Before the first tree there are no rounds, so `free` has only the column s = 0.
        self._options_after: list[tuple[_Options, ...]] = [
            (_Options(np.zeros(1), np.full((1, 1), separation - 1)),)
        ]
        self._is_final = False

    def after(self, num_trees: int) -> tuple[_Options, ...]:
        """Returns the `_Options` after `num_trees` trees; entry k is for k participations."""
        while len(self._options_after) <= num_trees and not self._is_final:
            last = following = self._options_after[-1]
            for size in self._sizes:
                following = _with_block(following, size, self._most, self._separation)
            self._options_after.append(following)
            # If `following` equals `last`, all participations are used: further trees add nothing.
            self._is_final = _are_equal(last, following)
        return self._options_after[min(num_trees, len(self._options_after) - 1)]


def _are_equal(first: Sequence[_Options], second: Sequence[_Options]) -> bool:
    return len(first) == len(second) and all(
        np.array_equal(a.sums, b.sums) and np.array_equal(a.free, b.free)
        for a, b in zip(first, second)
    )


def _block_sizes(rounds: int) -> Iterator[int]:
    """Yields the sizes of the complete subtrees that cover a tree's rounds, in order."""
    while rounds > 0:
        size = 1 << (rounds.bit_length() - 1)
        yield size
        rounds -= size


def _with_all_rounds(rounds: int) -> int:
    return sum((rounds >> h) * (1 << h) ** 2 for h in range(rounds.bit_length()))


def _with_block(
    before: tuple[_Options, ...], size: int, most: int, separation: int
) -> tuple[_Options, ...]:
    """Returns the `_Options` after another complete subtree; entry k is for k participations."""
    inside = _complete_tree(size.bit_length() - 1, most, separation)
    results = []
    for k in range(min(most, len(before) - 1 + len(inside)) + 1):
        parts = []
        if k < len(before):
            parts.append(_with_rounds_after(before[k], size, separation))
        for right in range(max(1, k - len(before) + 1), min(k, len(inside)) + 1):
            parts.append(_joined(before[k - right], inside[right - 1]))
        best = _undominated(parts)
        if not len(best.sums):
            break  # More participations are impossible.
        results.append(best)
    return tuple(results)


@functools.lru_cache(maxsize=256)
def _complete_tree(height: int, most: int, separation: int) -> tuple[_Options, ...]:
    """Returns the `_Options` of 2^height rounds; entry k - 1 is for k participations."""
    size = 1 << height
    if height == 0 or min(most, -(-size // separation)) == 1:
        free = np.minimum(size - 1 - np.arange(separation), separation - 1)
        return (_Options(np.array([height + 1.0]), np.maximum(free, _IMPOSSIBLE)[None]),)
    half = _complete_tree(height - 1, most, separation)
    later = np.maximum(np.arange(separation) - size // 2, 0)
    results = []
    for k in range(1, min(most, -(-size // separation)) + 1):
        parts = []
        if k <= len(half):
            parts.append(_with_rounds_after(half[k - 1], size // 2, separation))
            parts.append(_Options(half[k - 1].sums, half[k - 1].free[:, later]))
        for right in range(max(1, k - len(half)), min(k - 1, len(half)) + 1):
            parts.append(_joined(half[k - right - 1], half[right - 1]))
        best = _undominated(parts)
        results.append(_Options(best.sums + k**2, best.free))
    return tuple(results)


def _with_rounds_after(options: _Options, rounds: int, separation: int) -> _Options:
    more = np.minimum(options.free + rounds, separation - 1)
    return _Options(options.sums, np.where(options.free == _IMPOSSIBLE, _IMPOSSIBLE, more))


def _joined(left: _Options, right: _Options) -> _Options:
    """Returns the `_Options` of two halves together; their participations add up.

    If the client is absent from the last e rounds of the left half, it must be absent from the
    first b - 1 - e rounds of the right half.
    """
    separation = right.free.shape[1]
    at = np.where(left.free == _IMPOSSIBLE, 0, separation - 1 - left.free)
    free = np.where(
        left.free[:, None] == _IMPOSSIBLE, _IMPOSSIBLE, right.free[:, at].swapaxes(0, 1)
    )
    sums = left.sums[:, None] + right.sums
    return _Options(sums.ravel(), free.reshape(-1, free.shape[-1]))


def _undominated(parts: Sequence[_Options]) -> _Options:
    """Merges `_Options`, without sums that other sums dominate."""
    sums = np.concatenate([part.sums for part in parts])
    order = np.argsort(-sums, kind="stable")
    # A pattern whose sum is at least `sums[i]` also counts for every smaller sum.
    free = np.maximum.accumulate(np.concatenate([part.free for part in parts])[order], axis=0)
    is_better = np.any(np.diff(free, axis=0, prepend=_IMPOSSIBLE) > 0, axis=1)
    return _Options(sums[order][is_better], free[is_better])
