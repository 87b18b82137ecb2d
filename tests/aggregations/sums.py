"""Builders of private and secure sums for tests."""

from dataclasses import replace
from typing import Any, Optional

from tests.options import make_options
from tff_agnostic.aggregations.aggregation import Aggregation, PlainSum
from tff_agnostic.aggregations.registry import PRIVACIES, NoiseFacts
from tff_agnostic.aggregations.secure_sum import SecureSum, SecureSumOptions

# Limits of a client, so small that adversarial clients exceed all of them.
LIMITS = {"limit_examples": 20, "limit_loss": 5.0}
# Noise keys by name of the clients' noise generator.
KEYS: dict[str, tuple[int, ...]] = {"philox": (12, 34), "secure": (12, 34, -56, 78)}


def secure_sum(**settings: Any) -> SecureSum:
    return SecureSum(make_options(SecureSumOptions, **LIMITS, secure_min_clients=1, **settings))


def private_sum(
    name: str = "central",
    inner: Aggregation = PlainSum(),
    noise_multiplier: float = 0.0,
    expected_clients: float = 4.0,
    noise_key: Optional[tuple[int, ...]] = None,
    min_clients: int = 0,
    noise_clients: int = 0,
    integer_clip: Optional[float] = None,
    **settings: Any,
) -> Any:
    """Returns a private sum; by default without noise, and with its generator's key from `KEYS`."""
    spec = PRIVACIES[name]
    assert spec.build is not None
    options = make_options(
        spec.options, **{"noise_multiplier": noise_multiplier, **LIMITS, **settings}
    )
    if noise_key is None:
        # Option classes without the field `noise_generator` always use the secure generator.
        noise_key = KEYS[getattr(options, "noise_generator", "secure")]
    facts = NoiseFacts(expected_clients, noise_key, noise_multiplier, min_clients, noise_clients)
    release: Any = spec.build(name, inner, options, facts)
    return release if integer_clip is None else replace(release, integer_clip=integer_clip)
