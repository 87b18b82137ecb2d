"""Every kind of differential privacy by name."""

import dataclasses
from typing import Any, Callable, NamedTuple, Optional

from tff_agnostic.aggregations.aggregation import Aggregation
from tff_agnostic.aggregations.private.noise import Noise, TreeResidual, gaussian
from tff_agnostic.aggregations.private.options import PrivacyOptions, TreeOptions
from tff_agnostic.aggregations.private.private_sum import PrivateSum
from tff_agnostic.registry import Registry
from tff_agnostic.settings import Settings


class NoiseFacts(NamedTuple):
    """What a run settles beside its settings.

    Attributes:
        expected_clients: Clients that a round is expected to have.
        noise_key: The secret key, two numbers of 63 bits.
        noise_multiplier: z.
    """

    expected_clients: float
    noise_key: tuple[int, int]
    noise_multiplier: float


@dataclasses.dataclass(frozen=True)
class PrivacySpec:
    """A registry entry.

    Attributes:
        options: A frozen dataclass of settings, which become flags.
        noise: From an instance of it to the kind of noise; None where there is none.
    """

    options: type
    noise: Optional[Callable[[Any], Noise]]

    def build(self, name: str, inner: Aggregation, options: Any, facts: NoiseFacts) -> Aggregation:
        """Returns private sums over inner ones.

        Raises:
            ValueError: If there is no noise to add.
        """
        if self.noise is None:
            raise ValueError(f"{name} has no noise")
        return PrivateSum(inner, options, self.noise(options), name, *facts)


PRIVACIES: Registry[PrivacySpec] = Registry(
    "privacy",
    {
        "none": PrivacySpec(Settings, None),
        "central": PrivacySpec(PrivacyOptions, lambda options: gaussian),
        "tree": PrivacySpec(TreeOptions, lambda options: TreeResidual(options.tree_restart_every)),
    },
)
