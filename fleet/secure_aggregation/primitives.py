"""Cryptographic primitives of secure aggregation: keys, signatures, ciphers and random bytes.

Only this module imports `cryptography`.
"""

from __future__ import annotations

import hashlib
import os

import numpy as np

from fleet.secure_aggregation.errors import SumError

try:
    from cryptography.exceptions import InvalidSignature, InvalidTag
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ImportError:
    raise SumError(
        "secure aggregation: expected the package cryptography, found none: "
        "pip install 'tff-agnostic[fleet]'"
    ) from None

KEY_BYTES = 32
SIGNATURE_BYTES = 64
DIGEST_BYTES = 32
_NONCE_BYTES = 12
# Bytes that `seal` adds: a nonce and the tag of AES-GCM.
SEALED_BYTES = _NONCE_BYTES + 16
# How many words of a mask to generate at a time; this many fit a processor's cache.
_PIECE_WORDS = 1 << 16
_ZEROS = bytes(8 * _PIECE_WORDS)


def random_bytes(count: int) -> bytes:
    """Returns random bytes from the operating system."""
    return os.urandom(count)


def digest(label: str, *parts: bytes) -> bytes:
    """Returns SHA-256 of length-prefixed parts, after a label that names the digest's purpose."""
    value = hashlib.sha256()
    for part in (label.encode(), *parts):
        value.update(len(part).to_bytes(8, "big"))
        value.update(part)
    return value.digest()


def derive_key(secret: bytes, salt: bytes, info: bytes) -> bytes:
    """Derives a 32-byte key by HKDF with SHA-256 (RFC 5869)."""
    return HKDF(SHA256(), KEY_BYTES, salt, info).derive(secret)


def exchange_public(secret: bytes) -> bytes:
    """Returns the public key of an X25519 secret key (RFC 7748)."""
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def agree(secret: bytes, public: bytes) -> bytes:
    """Returns the X25519 shared secret of one party's secret key and another's public key.

    Raises:
        ValueError: The public key is weak: the shared secret would always be zero.
    """
    key = X25519PrivateKey.from_private_bytes(secret)
    return key.exchange(X25519PublicKey.from_public_bytes(public))


def identity_public(secret: bytes) -> bytes:
    """Returns the public key of an Ed25519 secret key (RFC 8032)."""
    return Ed25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def sign(secret: bytes, message: bytes) -> bytes:
    """Signs the SHA-256 of a message with an Ed25519 secret key."""
    hashed = hashlib.sha256(message).digest()
    return Ed25519PrivateKey.from_private_bytes(secret).sign(hashed)


def is_signed(public: bytes, message: bytes, signature: bytes) -> bool:
    """Whether a signature is from `sign` with the secret key of `public`."""
    try:
        key = Ed25519PublicKey.from_public_bytes(public)
        key.verify(signature, hashlib.sha256(message).digest())
    except (InvalidSignature, ValueError):
        return False
    return True


def seal(key: bytes, text: bytes, context: bytes) -> bytes:
    """Encrypts a plaintext with AES-256-GCM, and authenticates the context."""
    nonce = random_bytes(_NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, text, context)


def unseal(key: bytes, sealed: bytes, context: bytes) -> bytes | None:
    """Decrypts `seal`'s output; returns None if the output, the key or the context is wrong."""
    try:
        return AESGCM(key).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], context)
    except InvalidTag:
        return None


class KeyStream:
    """The key stream of AES-256-CTR as little-endian 64-bit words.

    Args:
        start: The first counter block, 16 bytes.
    """

    def __init__(self, key: bytes, start: bytes) -> None:
        self._cipher = Cipher(algorithms.AES(key), modes.CTR(start)).encryptor()
        self._room = bytearray()

    def words(self, count: int) -> np.ndarray:
        """Returns the next words, at most 2^16, in an array that the next call overwrites."""
        count = min(count, _PIECE_WORDS)
        # The cipher requires a buffer with space for one more block than it writes.
        if len(self._room) < 8 * count + 15:
            self._room = bytearray(8 * count + 15)
        self._cipher.update_into(memoryview(_ZEROS)[: 8 * count], self._room)
        return np.frombuffer(self._room, "<u8", count)
