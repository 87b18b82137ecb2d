"""Vectors of integers modulo m: addition, masks, and packing into bits.

A modulus is any number from 1 to 2^64. Vectors are flat uint64 arrays of numbers below the modulus.
"""

from __future__ import annotations

import numpy as np

from fleet.secure_aggregation.primitives import KeyStream

LARGEST_MODULUS = 1 << 64
# How many numbers to pack at a time. Multiples of 8 numbers fill complete bytes.
_PIECE = 1 << 14
_COUNTER_BYTES = 8


def add_into(total: np.ndarray, values: np.ndarray, modulus: int) -> None:
    """Adds values to a total in place, modulo `modulus`."""
    np.add(total, values, out=total)
    if _is_power_of_two(modulus):
        _reduce(total, modulus)
    else:
        # A sum above 2^64 wraps, and is smaller than its terms.
        over = (total < values) | (total >= np.uint64(modulus))
        np.subtract(total, np.uint64(modulus), out=total, where=over)


def subtract_from(total: np.ndarray, values: np.ndarray, modulus: int) -> None:
    """Subtracts values from a total in place, modulo `modulus`."""
    if _is_power_of_two(modulus):
        np.subtract(total, values, out=total)
        _reduce(total, modulus)
    else:
        under = total < values
        np.subtract(total, values, out=total)
        np.add(total, np.uint64(modulus), out=total, where=under)


def _is_power_of_two(modulus: int) -> bool:
    return modulus & (modulus - 1) == 0


def _reduce(total: np.ndarray, modulus: int) -> None:
    if modulus < LARGEST_MODULUS:
        np.bitwise_and(total, np.uint64(modulus - 1), out=total)


def apply_mask(total: np.ndarray, modulus: int, key: bytes, number: int, sign: int) -> None:
    """Adds a mask to a total in place, or subtracts the mask.

    The mask is the key stream of AES-256-CTR. If the modulus is not a power of two, words at or
    above the largest multiple of the modulus up to 2^64 are skipped, so that the mask is uniform.

    Args:
        key: Key from which the mask derives, used for one pair or client in one session.
        number: Index of the tensor in the plan. Each tensor uses a separate part of the stream.
        sign: 1 to add the mask, -1 to subtract it.
    """
    if modulus == 1:
        return
    stream = KeyStream(key, number.to_bytes(_COUNTER_BYTES, "big") + bytes(_COUNTER_BYTES))
    combine = add_into if sign > 0 else subtract_from
    whole = LARGEST_MODULUS % modulus == 0
    done = 0
    while done < total.size:
        words = stream.words(total.size - done)
        if not whole:
            words = words[words < np.uint64(LARGEST_MODULUS - LARGEST_MODULUS % modulus)]
            words = words % np.uint64(modulus)
        elif modulus < LARGEST_MODULUS:
            words = words & np.uint64(modulus - 1)
        combine(total[done : done + words.size], words, modulus)
        done += words.size


def bits(modulus: int) -> int:
    """Returns the number of bits for a number below the modulus."""
    return (modulus - 1).bit_length()


def packed_size(size: int, modulus: int) -> int:
    """Returns the size of a packed vector in bytes."""
    return -(-size * bits(modulus) // 8)


def pack(values: np.ndarray, modulus: int) -> bytes:
    """Packs numbers into consecutive bits, least significant bit first."""
    width = bits(modulus)
    pieces = []
    for start in range(0, values.size, _PIECE):
        words = values[start : start + _PIECE].astype("<u8").view(np.uint8).reshape(-1, 8)
        digits = np.unpackbits(words, axis=1, count=width, bitorder="little")
        pieces.append(np.packbits(digits, bitorder="little").tobytes())
    return b"".join(pieces)


def unpack(packed: bytes | memoryview, size: int, modulus: int) -> np.ndarray | None:
    """Returns the numbers of a packed vector; None if a number or the padding is invalid.

    Args:
        packed: `packed_size` bytes; padding bits after the last number must be 0.
    """
    width, content = bits(modulus), np.frombuffer(packed, np.uint8)
    values = np.zeros(size, np.uint64)
    for start in range(0, size, _PIECE):
        count = min(size - start, _PIECE)
        rest = content[start * width // 8 :]
        digits = np.zeros((count, 64), np.uint8)
        flat = np.unpackbits(rest, count=count * width, bitorder="little")
        digits[:, :width] = flat.reshape(count, width)
        words = np.packbits(digits, axis=1, bitorder="little").view("<u8")
        values[start : start + count] = words.ravel()
    spare = packed_size(size, modulus) * 8 - size * width
    if spare and packed[-1] >> (8 - spare):
        return None
    return None if (values > np.uint64(modulus - 1)).any() else values
