"""Shamir's secret sharing of 32-byte secrets over a prime field (Shamir 1979)."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from fleet.secure_aggregation import primitives

SECRET_BYTES = 32
# The smallest prime above 2^256, so that every 32-byte secret is an element of the field.
PRIME = (1 << 256) + 297
SHARE_BYTES = 33
# With 128 bits more than the prime, random numbers modulo the prime are uniform up to 2^-128.
_RANDOM_BYTES = SHARE_BYTES + 16


def split(secret: bytes, threshold: int, points: Sequence[int]) -> dict[int, bytes]:
    """Splits a secret into shares: any `threshold` shares reveal it, fewer reveal nothing.

    Args:
        points: Arguments of the polynomial, one positive integer per holder.

    Returns:
        The shares, keyed by point.
    """
    if len(secret) != SECRET_BYTES or not 1 <= threshold <= len(set(points)) == len(points):
        raise ValueError("expected a secret of 32 bytes and a threshold within distinct points")
    if not all(0 < point < PRIME for point in points):
        raise ValueError("expected points above 0")
    coefficients = [int.from_bytes(secret, "big")]
    for _ in range(threshold - 1):
        random = primitives.random_bytes(_RANDOM_BYTES)
        coefficients.append(int.from_bytes(random, "big") % PRIME)
    return {point: _evaluated(coefficients, point) for point in points}


def _evaluated(coefficients: Sequence[int], point: int) -> bytes:
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * point + coefficient) % PRIME
    return value.to_bytes(SHARE_BYTES, "big")


def is_share(share: bytes) -> bool:
    """Whether the bytes encode an element of the field."""
    return len(share) == SHARE_BYTES and int.from_bytes(share, "big") < PRIME


def combine(shares: Mapping[int, bytes]) -> bytes | None:
    """Reconstructs a secret from shares, keyed by point; None if the secret exceeds 32 bytes."""
    points = tuple(sorted(shares))
    value = 0
    for point, weight in zip(points, _weights_at_zero(points)):
        value += weight * int.from_bytes(shares[point], "big")
    value %= PRIME
    return value.to_bytes(SECRET_BYTES, "big") if value >> (8 * SECRET_BYTES) == 0 else None


# The weights are cached, because most secrets of a session have the same holders.
@functools.lru_cache(maxsize=64)
def _weights_at_zero(points: tuple[int, ...]) -> list[int]:
    """Returns each point's Lagrange weight for the polynomial's value at 0."""
    weights = []
    for point in points:
        above, below = 1, 1
        for other in points:
            if other != point:
                above = above * other % PRIME
                below = below * (other - point) % PRIME
        weights.append(above * pow(below, -1, PRIME) % PRIME)
    return weights
