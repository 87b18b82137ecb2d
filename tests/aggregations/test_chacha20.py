"""The key stream is ChaCha20's, byte for byte, however it is computed."""

import numpy as np
import pytest
import tensorflow as tf
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from tff_agnostic.aggregations.chacha20 import joined_halves, keystream
from tff_agnostic.computations.clients import vectorised_clients


def _found(key: bytes, nonce: bytes, num_words: int) -> bytes:
    numbers = tf.constant(np.frombuffer(key, np.int64))
    words = keystream(numbers, tf.constant(np.frombuffer(nonce, np.uint32)), num_words)
    return words.numpy().tobytes()


def _expected(key: bytes, nonce: bytes, num_bytes: int) -> bytes:
    """OpenSSL's, with a block counter that begins at 0."""
    cipher = Cipher(algorithms.ChaCha20(key, bytes(4) + nonce), None)
    return cipher.encryptor().update(bytes(num_bytes))


def test_rfc_8439_section_2_3_2():
    """The block function's test vector, whose counter is 1."""
    nonce = bytes.fromhex("000000090000004a00000000")
    block = bytes.fromhex(
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"
    )
    assert _found(bytes(range(32)), nonce, 32)[64:] == block


@pytest.mark.parametrize("num_words", [1, 2, 16, 17, 5000])
def test_it_has_the_bytes_of_another_implementation(num_words):
    rng = np.random.default_rng(num_words)
    for _ in range(3):
        key, nonce = rng.bytes(32), rng.bytes(12)
        assert _found(key, nonce, num_words) == _expected(key, nonce, 4 * num_words)
    extremes = b"\xff" * 32, b"\xff" * 12
    assert _found(*extremes, num_words) == _expected(*extremes, 4 * num_words)


def test_numbers_of_64_bits_are_its_bytes():
    key, nonce = bytes(range(32)), bytes(range(12))
    words = keystream(
        tf.constant(np.frombuffer(key, np.int64)),
        tf.constant(np.frombuffer(nonce, np.uint32)),
        20,
    )
    assert joined_halves(words).numpy().tobytes() == _expected(key, nonce, 80)


@pytest.mark.parametrize("how", ["in a graph", "in step", "by XLA"])
def test_it_is_the_same_however_it_is_computed(how):
    key = tf.constant(np.frombuffer(bytes(range(32)), np.int64))

    def one(place: tf.Tensor) -> tf.Tensor:
        nonce = tf.stack([tf.constant(7, tf.uint32), tf.constant(0, tf.uint32), place])
        return keystream(key, nonce, 40)

    def of_many(places: tf.Tensor) -> tf.Tensor:
        if how == "in step":
            return vectorised_clients(one, places)
        return tf.stack([one(place) for place in tf.unstack(places)])

    places = tf.constant([3, 2**32 - 1], tf.uint32)
    found = tf.function(of_many, autograph=False, jit_compile=how == "by XLA")(places)
    for place, words in zip(places.numpy(), found.numpy()):
        nonce = np.array([7, 0, place], np.uint32).tobytes()
        assert words.tobytes() == _expected(bytes(range(32)), nonce, 160)
