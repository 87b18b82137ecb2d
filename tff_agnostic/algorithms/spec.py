"""What a registered algorithm is: its settings, how it is built, and which properties it has."""

import dataclasses
import enum
from typing import Any, Callable, Optional

from tff_agnostic.computations.exchange import Algorithm
from tff_agnostic.models.functional import Model
from tff_agnostic.settings import Settings


class Trait(enum.Enum):
    """A property of an algorithm, which the shared property tests check where it is claimed."""

    ONE_DOMAIN_IS_FED_AVG = "with a single domain it is FedAvg"
    DOMAIN_BLIND = "the model does not depend on which domain an example belongs to"
    PARTITION_BLIND = "where clients take one full step, it does not matter who holds an example"
    COHORT_TWICE_IS_ONCE = "a cohort that holds every client twice gives the same model"
    LEARNS_FROM_EVERY_DOMAIN = "examples of every single domain move the model"


@dataclasses.dataclass(frozen=True)
class Problem:
    """What is to be learned, as far as an algorithm is concerned.

    Attributes:
        model: The model.
        domain_names: Names of the p domains; their order gives the domain ids.
        seed: Of the run.
        expected_counts: Examples of each domain that a round is expected to have, from the totals
            over the training clients; None if nobody knows.
    """

    model: Model
    domain_names: tuple[str, ...]
    seed: int = 0
    expected_counts: Optional[tuple[float, ...]] = None

    @property
    def num_domains(self) -> int:
        """The number of domains p."""
        return len(self.domain_names)

    @classmethod
    def of_numbered_domains(cls, model: Model, num_domains: int, seed: int = 0) -> "Problem":
        """Returns a problem whose domains are called "0", "1" and so on."""
        return cls(model, tuple(map(str, range(num_domains))), seed)


@dataclasses.dataclass(frozen=True)
class AlgorithmSpec:
    """A registry entry; a user's own file defines one as `ALGORITHM`.

    Attributes:
        label: What tables and plots call it.
        paper: Where it is from.
        build: (problem, options) -> the algorithm; raises a `UserError` if they do not fit.
        options: A frozen dataclass of settings, all of which become flags: a subclass of
            `settings.Settings`, mostly of `LocalTrainingOptions` and `ServerOptimizerOptions` too.
        traits: Which of the shared property tests hold, beside those that hold for every algorithm.
    """

    label: str
    paper: str
    build: Callable[[Problem, Any], Algorithm]
    options: type = Settings
    traits: frozenset[Trait] = frozenset()
