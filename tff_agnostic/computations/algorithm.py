"""What a federated algorithm is: problem, communication steps, algorithm, registry entry, traits.

What an algorithm is made of: exchanges between server and clients, and what becomes of the sums.

A round is one exchange, or several: the server prepares a broadcast, every client answers with a
named tuple, and the server sees nothing but the sum of the answers. All functions are pure
TensorFlow without variables, so that every runtime can take them, and a compiler take them apart.
"""

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any, Callable, NamedTuple, Optional, Protocol

import tensorflow as tf

from tff_agnostic.aggregations.aggregation import ClientLimits
from tff_agnostic.computations.clients import ClientGroup, PerClient
from tff_agnostic.domain_weights.sets import LambdaSet
from tff_agnostic.models.model import Model, ModelWeights
from tff_agnostic.report_fields import Quantities
from tff_agnostic.settings import Settings

MAIN_MODEL = "model"

# The models of a state by name, the main one first.
Models = Mapping[str, ModelWeights]

# Nested mappings of what a round reports; leaves are scalars or vectors [p].
Report = Mapping[str, Any]

# The sum over the cohort of what clients answered, in each exchange of a round so far.
Sums = tuple[Any, ...]


class ClientFunction(Protocol):
    """What clients do in an exchange.

    Functions that are equal are traced once, and serve each other's runs: a frozen dataclass that
    holds what it depends on.
    """

    def __call__(
        self, broadcast: Any, clients: ClientGroup, seed: tf.Tensor, per_client: PerClient, /
    ) -> Any:
        """Returns what each client answers.

        Args:
            broadcast: What the server prepared, the same for every client.
            clients: One client, or many in step; see `clients`.
            seed: Seed of each client in this round, int64, in the shape of `clients.num_examples`.
            per_client: How functions of one client are applied to each of them.

        Returns:
            A named tuple whose leaves are float32 or int64; in step, with a leading axis of
            clients. Every leaf is only ever summed over the cohort. In an exchange that keeps
            something, such a tuple in an `AnswerAndKept`.
        """


class AnswerAndKept(NamedTuple):
    """What clients return in an exchange of which they keep something.

    Attributes:
        answer: What they send; see `ClientFunction`.
        kept: What stays with each of them, and is its `ClientGroup.kept` in the later exchanges of
            the round: any structure of tensors; in step, each with a leading axis of clients.
    """

    answer: Any
    kept: Any


@dataclasses.dataclass(frozen=True)
class Exchange:
    """One broadcast and one sum.

    Attributes:
        name: What it is for, such as "training"; different from the round's other ones.
        prepare: (state, sums of the round's earlier exchanges) -> what is broadcast.
        client: What clients do.
        bounds: What one client may answer, from the limits of an aggregation: a `Bound` for every
            leaf of the answer, in its structure.
        keeps: Whether clients keep something for the later exchanges of the round, in place of what
            they had kept before; `client` then returns an `AnswerAndKept`.
        bytes_per_example: What a client computes with for each of its examples, if it only looks
            that up in what is broadcast, such as tables; None if it computes with all of that, as
            with the weights of a model. Runtimes choose by it how clients run.
    """

    name: str
    prepare: Callable[[Any, Sums], Any]
    client: ClientFunction
    bounds: Callable[[ClientLimits], Any]
    keeps: bool = False
    bytes_per_example: Optional[int] = None


def _replace_weights(state: Any, weights: ModelWeights) -> Any:
    return state._replace(weights=weights)


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """A federated algorithm, for any runtime and any aggregation.

    Attributes:
        name: Name in the registry, or of the user's file.
        initialize: () -> state before the first round.
        exchanges: What happens between server and clients in a round, in this order.
        finish: (state, sums of all exchanges) -> (state, report), on the server.
        models: state -> the models that are evaluated and saved, the main one first. It works on
            NumPy arrays as on tensors.
        quantities: What `finish` reports, described in the structure of the report.
        client_data_spec: Specs of one client's examples.
        seed: Seed of the run; local shuffling and dropout derive from it.
        with_weights: (state, weights) -> state with other weights of the main model.
        lambda_set: The mixtures of domains of which it minimises the worst; None if it has no such
            set.
        in_one_exchange: Which settings give it one exchange a round, as flags; "" if it has one, or
            no settings do.
    """

    name: str
    initialize: Callable[[], Any]
    exchanges: tuple[Exchange, ...]
    finish: Callable[[Any, Sums], tuple[Any, Report]]
    models: Callable[[Any], Models]
    quantities: Quantities
    client_data_spec: Mapping[str, Any]
    seed: int = 0
    with_weights: Callable[[Any, ModelWeights], Any] = _replace_weights
    lambda_set: Optional[LambdaSet] = None
    in_one_exchange: str = ""

    def main_model(self, state: Any) -> ModelWeights:
        """Returns the weights of the main model of a state."""
        return next(iter(self.models(state).values()))

    def with_main_model(self, name: str) -> "Algorithm":
        """Returns the algorithm with another one of its models as the main one."""

        def models(state: Any) -> Models:
            of_state = self.models(state)
            return {name: of_state[name], **of_state}

        return dataclasses.replace(self, models=models)


class RunState(NamedTuple):
    """Everything that the server remembers between rounds; what a checkpoint holds.

    Attributes:
        algorithm: The state of the algorithm.
        aggregations: The state of the aggregation of each exchange.
        round_num: Number of rounds completed, int32 scalar.
    """

    algorithm: Any
    aggregations: tuple[Any, ...]
    round_num: tf.Tensor


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
