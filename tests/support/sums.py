"""Private and secure sums, and eager sums of client outputs through them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Optional

import tensorflow as tf

from tests.support.options import make_options
from tff_agnostic.aggregations.aggregation import Aggregation, ClientFacts, PlainSum
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


def encoded(
    aggregation: Aggregation, output: Any, bounds: Any, examples_cut: int = 0, state: Any = None
) -> Any:
    """Returns a client's encoded output.

    Args:
        aggregation: Encodes the output.
        output: Output of the client's work.
        bounds: Bounds in the output's structure.
        examples_cut: Number of the client's skipped examples.
        state: The aggregation's state; None for its initial state.
    """
    state = aggregation.initialize(bounds) if state is None else state
    facts = ClientFacts(tf.constant(7, tf.int64), tf.constant(examples_cut, tf.int64))
    return aggregation.encode(aggregation.client_params(state), output, bounds, facts)


def decoded_sum(
    aggregation: Aggregation,
    outputs: Sequence[Any],
    bounds: Any,
    examples_cut: Optional[Sequence[int]] = None,
) -> tuple[Any, Any]:
    """Returns the server's sum of client outputs, and the aggregation's report."""
    cuts = [0] * len(outputs) if examples_cut is None else examples_cut
    submitted = [encoded(aggregation, o, bounds, cut) for o, cut in zip(outputs, cuts)]
    summed = tf.nest.map_structure(lambda *values: tf.add_n(values), *submitted)
    _, decoded, report = aggregation.decode(aggregation.initialize(bounds), summed, bounds)
    return decoded, report
