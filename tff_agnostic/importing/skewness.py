"""How much the rarest domain limits what can be learned of the worst mixture."""

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Skewness:
    """s(Lambda || m) of Mohri et al. 2019, eq. 4, where Lambda is the whole simplex.

    Attributes:
        value: m / m_k of the rarest domain k; p when all p domains are as frequent.
        rarest: That domain.
        num_examples: m_k, of that domain.
        num_domains: p.
    """

    value: float
    rarest: str
    num_examples: int
    num_domains: int

    def meaning(self) -> str:
        """Returns what it means for the choice of domains."""
        if self.num_domains == 1:
            return f"There is one domain, {self.rarest}: nothing to weigh against one another."
        # The bound of theorem 1 has s / m under its root, which is 1 / m_k.
        return (
            f"Skewness s(Lambda || m) on the training split: {self.value:.1f}; "
            f"{self.num_domains} domains of equal size would have {self.num_domains}. For the "
            "worst mixture of domains the learning bound is only as good as "
            f"the {self.num_examples} examples of {self.rarest} make it: if that is few, merge "
            "it with a domain that is like it, or collect more of it."
        )


def skewness(examples: Mapping[str, int]) -> Skewness:
    """Returns the skewness for the numbers of examples by domain, all positive."""
    rarest = min(examples, key=lambda domain: (examples[domain], domain))
    return Skewness(
        sum(examples.values()) / examples[rarest], rarest, examples[rarest], len(examples)
    )
