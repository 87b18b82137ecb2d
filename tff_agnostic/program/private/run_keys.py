"""The secrets of a private run: the key of its noise, and what its cohorts are drawn with."""

import hashlib
import secrets
from typing import Optional

import numpy as np

from tff_agnostic.computations.exchange import RunState

_KEY_BITS = 63
# Keeps what cohorts are drawn with apart from the key of the noise, of which it tells nothing.
_COHORTS = b"cohorts"
# Keeps the noise of a seed apart from other draws.
_NOISE_STREAM = 17


def noise_key(noise_seed: Optional[int]) -> tuple[int, int]:
    """Returns a secret from the operating system, or what a seed gives in its place."""
    if noise_seed is None:
        return secrets.randbits(_KEY_BITS), secrets.randbits(_KEY_BITS)
    first, second = np.random.SeedSequence([noise_seed, _NOISE_STREAM]).generate_state(2, np.uint64)
    return int(first >> np.uint64(1)), int(second >> np.uint64(1))


def cohort_seed(state: RunState) -> int:
    """Returns what cohorts are drawn with: a secret, as the account takes for granted.

    The run's own seed is in config.json, and every client is sent it.
    """
    key = np.asarray(state.aggregations[0].noise_key, np.int64).tobytes()
    return int.from_bytes(hashlib.sha256(_COHORTS + key).digest()[:16], "little")
