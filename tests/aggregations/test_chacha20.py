"""The key stream equals ChaCha20's byte for byte."""

import numpy as np
import pytest
import tensorflow as tf
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from tff_agnostic.aggregations.chacha20 import joined_halves, keystream
from tff_agnostic.computations.clients import vectorised_clients


def _stream(key: bytes, nonce: bytes, num_words: int) -> bytes:
    numbers = tf.constant(np.frombuffer(key, np.int64))
    words = keystream(numbers, tf.constant(np.frombuffer(nonce, np.uint32)), num_words)
    return words.numpy().tobytes()


def _expected(key: bytes, nonce: bytes, num_bytes: int) -> bytes:
    """Returns OpenSSL's key stream with a block counter that begins at 0."""
    cipher = Cipher(algorithms.ChaCha20(key, bytes(4) + nonce), None)
    return cipher.encryptor().update(bytes(num_bytes))


def test_block_equals_rfc_8439():
    """The block function's test vector, with the counter 1."""
    nonce = bytes.fromhex("000000090000004a00000000")
    block = bytes.fromhex(
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"
    )
    assert _stream(bytes(range(32)), nonce, 32)[64:] == block


@pytest.mark.parametrize("num_words", [1, 17, 5000])
def test_stream_equals_openssls(num_words):
    rng = np.random.default_rng(num_words)
    for key, nonce in ((rng.bytes(32), rng.bytes(12)), (b"\xff" * 32, b"\xff" * 12)):
        assert _stream(key, nonce, num_words) == _expected(key, nonce, 4 * num_words)
        words = keystream(
            tf.constant(np.frombuffer(key, np.int64)),
            tf.constant(np.frombuffer(nonce, np.uint32)),
            2 * num_words,
        )
        assert joined_halves(words).numpy().tobytes() == _expected(key, nonce, 8 * num_words)


@pytest.mark.parametrize("mode", ["graph", "vectorised", "xla"])
def test_graphs_and_xla_give_the_same_stream(mode):
    key = tf.constant(np.frombuffer(bytes(range(32)), np.int64))

    def stream(place: tf.Tensor) -> tf.Tensor:
        nonce = tf.stack([tf.constant(7, tf.uint32), tf.constant(0, tf.uint32), place])
        return keystream(key, nonce, 40)

    def streams(places: tf.Tensor) -> tf.Tensor:
        if mode == "vectorised":
            return vectorised_clients(stream, places)
        return tf.stack([stream(place) for place in tf.unstack(places)])

    places = tf.constant([3, 2**32 - 1], tf.uint32)
    actual = tf.function(streams, autograph=False, jit_compile=mode == "xla")(places)
    for place, words in zip(places.numpy(), actual.numpy()):
        nonce = np.array([7, 0, place], np.uint32).tobytes()
        assert words.tobytes() == _expected(bytes(range(32)), nonce, 160)
