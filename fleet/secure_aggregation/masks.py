"""Vectors of integers modulo m: masks, sums, and the bits in which they are sent.

A modulus is any number from 1 to 2^64. Vectors are flat uint64 arrays of numbers below it.
"""

from __future__ import annotations

import numpy as np

from fleet.secure_aggregation.primitives import KeyStream

LARGEST_MODULUS = 1 << 64
_WORD = 64
# Number of groups of 64 numbers to pack at a time.
_GROUPS = 1 << 10
_COUNTER_BYTES = 8


def add_into(total: np.ndarray, values: np.ndarray, modulus: int) -> None:
    """Adds values to a total, in place."""
    np.add(total, values, out=total)
    if _is_power_of_two(modulus):
        _cut(total, modulus)
    else:
        # A sum above 2^64 wraps, and is smaller than its terms.
        over = (total < values) | (total >= np.uint64(modulus))
        np.subtract(total, np.uint64(modulus), out=total, where=over)


def subtract_from(total: np.ndarray, values: np.ndarray, modulus: int) -> None:
    """Subtracts values from a total, in place."""
    if _is_power_of_two(modulus):
        np.subtract(total, values, out=total)
        _cut(total, modulus)
    else:
        under = total < values
        np.subtract(total, values, out=total)
        np.add(total, np.uint64(modulus), out=total, where=under)


def _is_power_of_two(modulus: int) -> bool:
    return modulus & (modulus - 1) == 0


def _cut(total: np.ndarray, modulus: int) -> None:
    if modulus < LARGEST_MODULUS:
        np.bitwise_and(total, np.uint64(modulus - 1), out=total)


def apply_mask(total: np.ndarray, modulus: int, key: bytes, number: int, sign: int) -> None:
    """Adds a mask to a total, in place, or subtracts it.

    The mask is the key stream of AES-256-CTR. If the modulus is not a power of two, the words above
    its largest multiple are skipped, so that the mask is uniform.

    Args:
        key: Key of one pair or one client, in one session.
        number: Index of the tensor in the plan; each has a separate part of the stream.
        sign: 1 or -1.
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
    """Returns the number of bits of a number below the modulus."""
    return (modulus - 1).bit_length()


def packed_size(size: int, modulus: int) -> int:
    """Returns the size of a packed vector in bytes."""
    return -(-size * bits(modulus) // 8)


def pack(values: np.ndarray, modulus: int) -> bytes:
    """Packs numbers into bits, one after the other, the least bit first."""
    width, size = bits(modulus), values.size
    pieces = []
    for start in range(0, size, _GROUPS * _WORD):
        piece = values[start : start + _GROUPS * _WORD]
        groups = -(-piece.size // _WORD)
        # A column of 64 numbers makes a column of `width` words.
        columns = np.zeros(groups * _WORD, np.uint64)
        columns[: piece.size] = piece
        columns = np.ascontiguousarray(columns.reshape(groups, _WORD).T)
        words = np.zeros((width, groups), np.uint64)
        for row, (word, offset) in enumerate(_bit_offsets(width)):
            words[word] |= columns[row] << np.uint64(offset)
            if offset + width > _WORD:
                words[word + 1] |= columns[row] >> np.uint64(_WORD - offset)
        pieces.append(np.ascontiguousarray(words.T).astype("<u8").tobytes())
    return b"".join(pieces)[: packed_size(size, modulus)]


def unpack(packed: bytes | memoryview, size: int, modulus: int) -> np.ndarray | None:
    """Returns the numbers of a packed vector; None if one is not below the modulus.

    Args:
        packed: `packed_size` bytes; bits after the last number must be 0.
    """
    width = bits(modulus)
    values = np.zeros(size, np.uint64)
    most = np.uint64(modulus - 1)
    for start in range(0, size, _GROUPS * _WORD):
        count = min(size - start, _GROUPS * _WORD)
        groups = -(-count // _WORD)
        room = np.zeros(groups * width * 8, np.uint8)
        part = np.frombuffer(packed, np.uint8)[start * width // 8 :][: room.size]
        room[: part.size] = part
        words = np.ascontiguousarray(room.view("<u8").reshape(groups, width).T).astype(np.uint64)
        columns = np.zeros((_WORD, groups), np.uint64)
        for row, (word, offset) in enumerate(_bit_offsets(width)):
            columns[row] = words[word] >> np.uint64(offset)
            if offset + width > _WORD:
                columns[row] |= words[word + 1] << np.uint64(_WORD - offset)
        if width < _WORD:
            columns &= np.uint64((1 << width) - 1)
        numbers = columns.T.ravel()
        if (numbers > most).any() or numbers[count:].any():
            return None
        values[start : start + count] = numbers[:count]
    spare = packed_size(size, modulus) * 8 - size * width
    if spare and packed[-1] >> (8 - spare):
        return None
    return values


def _bit_offsets(width: int) -> list[tuple[int, int]]:
    """Returns the word and the bit at which each of 64 numbers begins; none of no bits."""
    return [divmod(row * width, _WORD) for row in range(_WORD)] if width else []
