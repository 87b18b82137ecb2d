"""What a client counts before its loss does: its number of examples, or as much as any other."""

import dataclasses

import tensorflow as tf

from tff_agnostic.aggregations.limits import ClientLimits
from tff_agnostic.registry import Registry
from tff_agnostic.settings import Settings, setting

# n_k -> p_k, up to a factor of all clients.
CLIENT_WEIGHTINGS = Registry("client weighting", {"examples": lambda n: n, "equal": tf.ones_like})


@dataclasses.dataclass(frozen=True)
class ClientWeightingOptions(Settings):
    """Part of the settings of algorithms whose objective is one over clients.

    Attributes:
        client_weighting: Member of `CLIENT_WEIGHTINGS`: "examples" where cohorts are drawn
            uniformly (p_k is then in the weight), "equal" where clients are drawn with
            probabilities p_k.
    """

    client_weighting: str = setting(
        "examples",
        "What a client counts: its number of examples, or equally.",
        choices=CLIENT_WEIGHTINGS,
    )

    def largest_weight(self, limits: ClientLimits) -> float:
        """Returns the most that a client counts within the limits of an aggregation."""
        return 1.0 if self.client_weighting == "equal" else float(limits.max_examples)
