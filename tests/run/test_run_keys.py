"""Keys are as long as their generators want them, and cohorts are drawn as the account assumes."""

import hashlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from scipy import stats

from tff_agnostic.aggregations.privacy_options import PrivacyOptions
from tff_agnostic.data.sampling import poisson_cohort, sample_cohort, turns
from tff_agnostic.run.private_account import cohort_seed, noise_key

_IDS = [f"{k:03d}" for k in range(200)]
_NUMBERS = {"philox": 2, "secure": 4}


def _state(key: tuple[int, ...]) -> Any:
    return SimpleNamespace(aggregations=(SimpleNamespace(noise_key=np.array(key, np.int64)),))


@pytest.mark.parametrize("generator", _NUMBERS)
def test_keys_are_new_unless_they_are_seeded(generator):
    unseeded = PrivacyOptions(noise_generator=generator)
    keys = {noise_key(unseeded) for _ in range(20)}
    assert len(keys) == 20
    assert {len(key) for key in keys} == {_NUMBERS[generator]}
    smallest = {"philox": 0, "secure": -(2**63)}[generator]
    assert all(smallest <= number < 2**63 for key in keys for number in key)
    # All bits of a number are used.
    assert min(map(min, keys)) < smallest + 2**61
    seeded = PrivacyOptions(noise_generator=generator, noise_seed=3)
    assert (
        noise_key(seeded)
        == noise_key(seeded)
        != noise_key(PrivacyOptions(noise_generator=generator, noise_seed=4))
    )


def test_keys_and_cohorts_of_philox_are_those_of_earlier_releases():
    key = noise_key(PrivacyOptions(noise_seed=3))
    assert key == (2963875794002553787, 8040795128286049514)
    assert poisson_cohort(_IDS, 4, cohort_seed(_state(key)), 2) == [
        "125",
        "050",
        "098",
        "140",
    ]


def test_secure_cohorts_are_coins_of_chacha20():
    """Each client's number is 53 bits of the stream of a key that is made of the noise's."""
    key, round_num = (1, 2, -3, 4), 6
    digest = hashlib.sha256(b"cohorts" + np.array(key, np.int64).tobytes()).digest()
    nonce = np.array([0, 11, round_num, 0], np.uint32).tobytes()
    cipher = Cipher(algorithms.ChaCha20(digest, nonce), None)
    words = np.frombuffer(cipher.encryptor().update(bytes(8 * len(_IDS))), np.uint64)
    expected = {_IDS[i] for i in np.flatnonzero(words < 2**64 * 0.2)}
    assert set(poisson_cohort(_IDS, 40, cohort_seed(_state(key)), round_num)) == expected


def test_secure_cohorts_are_drawn_with_equal_chances():
    seed, took_part = cohort_seed(_state((1, 2, 3, 4))), np.zeros([2, len(_IDS)])
    for round_num in range(1, 401):
        for k, draw in enumerate((poisson_cohort, sample_cohort)):
            cohort = draw(_IDS, 30, seed, round_num)
            took_part[k, [int(client) for client in cohort]] += 1
            assert len({*cohort}) == len(cohort)
            assert k == 0 or len(cohort) == 30
    for counts in took_part:
        variance = 400 * 0.15 * 0.85
        statistic = np.sum((counts - 400 * 0.15) ** 2) / variance
        assert stats.chi2(len(_IDS)).cdf(statistic) < 0.99
    strata = np.arange(len(_IDS)) % 2
    assert len(sample_cohort(_IDS, 31, seed, 1, strata)) == 31


def test_secure_cohorts_are_drawn_again_in_a_resumed_run():
    seed, again, other = (cohort_seed(_state((1, 2, 3, k))) for k in (4, 4, 5))
    assert poisson_cohort(_IDS, 30, seed, 3) == poisson_cohort(_IDS, 30, again, 3)
    assert poisson_cohort(_IDS, 30, seed, 3) != poisson_cohort(_IDS, 30, seed, 4)
    assert poisson_cohort(_IDS, 30, seed, 3) != poisson_cohort(_IDS, 30, other, 3)
    assert turns(_IDS, 30, seed) == turns(_IDS, 30, again)
    assert sorted(client for cohort in turns(_IDS, 30, seed) for client in cohort) == _IDS
