"""Cryptographic primitives match published vectors; arithmetic matches Python's integers."""

from __future__ import annotations

import itertools
import random
import runpy
import sys
from fractions import Fraction

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from fleet.secure_aggregation import masks, primitives, shamir
from fleet.secure_aggregation.errors import SumError

MODULI = [1, 2, 3, 97, 255, 256, 997, 1 << 32, (1 << 32) - 1, 3 << 60, 1 << 62, (1 << 62) - 57]
MODULI += [(1 << 63) + 9, (1 << 64) - 59, (1 << 64) - 1, 1 << 64]


# --- Primitives match published test vectors


def test_derived_keys_equal_rfc_5869():
    info = bytes(range(0xF0, 0xFA))
    key = primitives.derive_key(b"\x0b" * 22, bytes(range(13)), info)
    assert key.hex() == "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf"


def test_key_agreement_equals_rfc_7748():
    bob = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
    alice = bytes.fromhex("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a")
    public = "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    shared = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"
    assert primitives.exchange_public(bob).hex() == public
    assert primitives.agree(bob, alice).hex() == shared


def test_identities_equal_rfc_8032():
    secret = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
    public = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    assert primitives.identity_public(secret).hex() == public
    signature = primitives.sign(secret, b"text")
    assert primitives.is_signed(bytes.fromhex(public), b"text", signature)
    assert not primitives.is_signed(bytes.fromhex(public), b"Text", signature)
    assert not primitives.is_signed(bytes(32), b"text", signature)


def test_key_stream_equals_sp_800_38a():
    key = "603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4"
    start = bytes.fromhex("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff")
    blocks = (
        "0bdf7df1591716335e9a8b15c860c502",
        "5a6e699d536119065433863c8f657b94",
        "1bc12c9c01610d5d0d8bd6a3378eca62",
        "2956e1c8693536b1bee99c73a31576b6",
    )
    stream = primitives.KeyStream(bytes.fromhex(key), start)
    assert stream.words(3).tobytes() + stream.words(5).tobytes() == bytes.fromhex("".join(blocks))


def test_unseal_equals_gcm_specification():
    sealed = bytes(12) + bytes.fromhex(
        "cea7403d4d606b6e074ec5d3baf39d18d0d1c8a799996bf0265b98b5d48ab919"
    )
    assert primitives.unseal(bytes(32), sealed, b"") == bytes(16)
    assert primitives.unseal(bytes(32), sealed, b"x") is None
    assert primitives.unseal(bytes(32), sealed[:-1] + b"\0", b"") is None
    text, again = (primitives.seal(bytes(32), b"text", b"context") for _ in range(2))
    assert text != again
    assert primitives.unseal(bytes(32), text, b"context") == b"text"


def test_missing_cryptography_raises_sum_error(monkeypatch):
    for name in [n for n in sys.modules if n.split(".")[0] == "cryptography"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SumError, match=r"^[^\n]*expected the package cryptography.*fleet\]'$"):
        runpy.run_path(primitives.__file__)


# --- Shamir's secret sharing hides and reveals secrets


def test_field_prime_is_the_smallest_above_all_secrets():
    def is_prime(number: int) -> bool:
        """Returns the result of Fermat's primality test."""
        return all(pow(base, number - 1, number) == 1 for base in (2, 3, 5, 7))

    assert is_prime(shamir.PRIME)
    assert not any(is_prime(n) for n in range((1 << 256) + 1, shamir.PRIME, 2))


def by_fractions(shares: dict[int, bytes], at: int = 0) -> int:
    """Returns the value at x = `at` of the polynomial through the shares."""
    value = Fraction(0)
    for x, share in shares.items():
        term = Fraction(int.from_bytes(share, "big"))
        for other in shares:
            if other != x:
                term *= Fraction(at - other, x - other)
        value += term
    return value.numerator * pow(value.denominator, -1, shamir.PRIME) % shamir.PRIME


@pytest.mark.parametrize(
    ("secret", "threshold", "holders"),
    [(bytes(32), 1, 1), (b"\xff" * 32, 2, 3), (bytes(range(32)), 5, 5), (b"a" * 32, 11, 20)],
)
def test_shares_reveal_the_secret(secret, threshold, holders):
    generator = random.Random(threshold)
    points = generator.sample(range(1, 1000), holders)
    shares = shamir.split(secret, threshold, points)
    assert list(shares) == points
    for _ in range(4):
        some = {x: shares[x] for x in generator.sample(points, threshold)}
        assert shamir.combine(some) == secret
        assert by_fractions(some).to_bytes(32, "big") == secret
        # The polynomial through the shares `some` passes through all other shares.
        assert all(by_fractions(some, x) == int.from_bytes(shares[x], "big") for x in points)


def test_fewer_shares_fit_every_secret():
    """Any other secret and t - 1 shares determine a polynomial of degree t - 1."""
    shares = shamir.split(b"a" * 32, 3, [1, 2, 3, 4])
    few = {x: shares[x] for x in (2, 4)}
    other = {0: b"\0" + b"b" * 32, **few}
    forged = {3: by_fractions(other, 3).to_bytes(33, "big"), **few}
    assert shamir.combine(forged) == b"b" * 32
    # Splitting is random: equal shares would reveal that secrets are equal.
    assert shamir.split(b"a" * 32, 3, [1, 2, 3, 4]) != shares
    assert all(shamir.is_share(share) for share in shares.values())
    assert not shamir.is_share((shamir.PRIME).to_bytes(33, "big"))
    assert not shamir.is_share(bytes(32))


def test_combine_returns_none_beyond_the_largest_secret():
    over = ((1 << 256) + 5).to_bytes(33, "big")
    assert shamir.combine({1: over}) is None


# --- Vectors are added, packed and masked modulo m


def vectors(modulus: int, size: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = random.Random(f"{modulus} {seed}")
    ends = [0, modulus - 1, modulus // 2, min(1, modulus - 1)]
    rows = [
        (ends + [generator.randrange(modulus) for _ in range(size)])[:size],
        (ends[::-1] + [generator.randrange(modulus) for _ in range(size)])[:size],
    ]
    return tuple(np.array(row, np.uint64) for row in rows)


@pytest.mark.parametrize("modulus", MODULI)
def test_vector_arithmetic_equals_python_integers(modulus):
    for size in (0, 1, 5, 63, 64, 65, 1000):
        a, b = vectors(modulus, size)
        total = a.copy()
        masks.add_into(total, b, modulus)
        assert total.tolist() == [(x + y) % modulus for x, y in zip(a.tolist(), b.tolist())]
        masks.subtract_from(total, b, modulus)
        assert total.tolist() == a.tolist()
        masks.subtract_from(total, b, modulus)
        assert total.tolist() == [(x - y) % modulus for x, y in zip(a.tolist(), b.tolist())]
        width = (modulus - 1).bit_length()
        packed = masks.pack(a, modulus)
        number = sum(value << (width * i) for i, value in enumerate(a.tolist()))
        assert packed == number.to_bytes(-(-width * size // 8), "little")
        assert len(packed) == masks.packed_size(size, modulus)
        assert masks.unpack(packed, size, modulus).tolist() == a.tolist()


def test_long_vectors_are_packed_in_one_stream():
    a, _ = vectors(997, 70_001)
    packed = masks.pack(a, 997)
    number = int.from_bytes(packed, "little")
    assert [number >> (10 * i) & 1023 for i in (0, 65_535, 65_536, 70_000)] == [
        int(a[i]) for i in (0, 65_535, 65_536, 70_000)
    ]
    np.testing.assert_array_equal(masks.unpack(packed, a.size, 997), a)


def test_unpack_rejects_large_numbers_and_spare_bits():
    for size in (1, 63, 64, 65, 129):
        one_more = np.zeros(size, np.uint64)
        one_more[-1] = 997
        assert masks.unpack(masks.pack(one_more, 1024), size, 997) is None
        packed = bytearray(masks.pack(np.zeros(size, np.uint64), 997))
        if size * 10 % 8:
            packed[-1] |= 0x80
            assert masks.unpack(bytes(packed), size, 997) is None


def mask_by_blocks(key: bytes, number: int, size: int, modulus: int) -> list[int]:
    """Returns a mask computed block by block with AES; words that would bias it are skipped."""
    cipher = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    fair = (1 << 64) // modulus * modulus
    mask: list[int] = []
    for counter in itertools.count():
        if len(mask) >= size:
            return mask[:size]
        block = cipher.update(number.to_bytes(8, "big") + counter.to_bytes(8, "big"))
        words = [int.from_bytes(block[i : i + 8], "little") for i in (0, 8)]
        mask += [word % modulus for word in words if word < fair]


@pytest.mark.parametrize("modulus", MODULI)
def test_mask_equals_key_stream_and_is_removable(modulus):
    key = primitives.digest("key", b"1")
    a, _ = vectors(modulus, 300)
    total = a.copy()
    masks.apply_mask(total, modulus, key, 3, 1)
    mask = mask_by_blocks(key, 3, 300, modulus)
    assert total.tolist() == [(x + y) % modulus for x, y in zip(a.tolist(), mask)]
    masks.apply_mask(total, modulus, key, 3, -1)
    assert total.tolist() == a.tolist()


def test_long_mask_equals_one_key_stream():
    key, size = primitives.digest("key", b"2"), (1 << 16) + 3
    for modulus in (1 << 20, (1 << 63) + 9):
        total = np.zeros(size, np.uint64)
        masks.apply_mask(total, modulus, key, 0, 1)
        assert total.tolist() == mask_by_blocks(key, 0, size, modulus)
