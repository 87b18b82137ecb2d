"""What a federated algorithm is: problem, communication steps, columns, registry entry, traits.

A round has one communication step or several. In each the server broadcasts, every client answers
with a named tuple, and the server sees the sum of these answers and nothing else. All functions are
pure TensorFlow without variables, so that every runtime can trace them and a compiler can take them
apart.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any, Callable, NamedTuple, Optional

from tff_agnostic.aggregations.aggregation import ClientLimits
from tff_agnostic.base.later import tf
from tff_agnostic.base.options import Options
from tff_agnostic.base.report_fields import ReportField, ReportFields, nested
from tff_agnostic.computations.clients import Clients
from tff_agnostic.domain_weights.sets import LambdaSet
from tff_agnostic.models.model import Model, ModelWeights, as_model

MAIN_MODEL = "model"

# The models of a state by name, the main one first.
Models = Mapping[str, ModelWeights]

# Nested mappings of what a round reports; leaves are scalars or vectors [p].
Report = Mapping[str, Any]

# The sums over the cohort of the round's steps so far.
Sums = tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Problem:
    """What is learned.

    Attributes:
        model: The model; one of TFF's is converted, see `models.from_tff`.
        domain_names: Names of the p domains; their order gives the domain ids.
        seed: Of the run; local shuffling and dropout derive from it.
        expected_counts: Examples of each domain that a round is expected to have, from the totals
            over the training clients; None if they are not known.
        expected_kept_out: Those of them that clients keep out of their training; None for the
            algorithm's share of all of them.
    """

    model: Model
    domain_names: tuple[str, ...]
    seed: int = 0
    expected_counts: Optional[tuple[float, ...]] = None
    expected_kept_out: Optional[tuple[float, ...]] = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "model", as_model(self.model))

    @property
    def num_domains(self) -> int:
        """The number of domains p."""
        return len(self.domain_names)

    @classmethod
    def of_numbered_domains(cls, model: Model, num_domains: int, seed: int = 0) -> Problem:
        """Returns a problem whose domains are called "0", "1" and so on."""
        return cls(model, tuple(map(str, range(num_domains))), seed)


@dataclasses.dataclass(frozen=True, init=False)
class HashablePartial:
    """A function with some of its keyword arguments; equal if function and arguments are equal.

    Client work is traced once for all that is equal, across the trials of a comparison too. What it
    depends on is therefore given here and not captured in a closure. All of it has to be hashable:
    numbers, strings, tuples, models, frozen dataclasses.

    Args:
        function: A function of a module, which other processes can import.
        **static: Its keyword arguments.
    """

    function: Callable[..., Any]
    static: tuple[tuple[str, Any], ...]

    def __init__(self, function: Callable[..., Any], /, **static: Any) -> None:
        object.__setattr__(self, "function", function)
        object.__setattr__(self, "static", tuple(static.items()))

    def __call__(self, *args: Any) -> Any:
        """Returns `function(*args, **static)`."""
        return self.function(*args, **dict(self.static))


class ClientResult(NamedTuple):
    """What a client sends in a step, and what it remembers for the later steps of the round.

    Attributes:
        output: What goes into the sum: a named tuple whose leaves are float32 or int64.
        state: What stays on the client and is its `Clients.state` in the later steps: any structure
            of tensors; () if it remembers nothing.
    """

    output: Any
    state: Any = ()


@dataclasses.dataclass(frozen=True)
class CommunicationStep:
    """One broadcast and one sum.

    Attributes:
        name: What it is for, such as "training"; the round's other steps have other names.
        broadcast: (state, sums of the round's earlier steps, each an argument) -> what clients
            receive.
        client_work: (broadcast, `Clients`) -> what each client sends, a named tuple whose leaves
            are float32 or int64; vectorised, each with a leading axis of clients. Only sums over
            the cohort reach the server. It is hashable; see `HashablePartial`.
        bounds: What one client may send, from the limits of an aggregation: a `Bound` for every
            leaf, in the structure of what it sends.
        keeps_client_state: Whether clients remember something for the later steps of the round, in
            place of what they had; `client_work` then returns a `ClientResult`.
        bytes_per_example: What a client reads of the broadcast for each example, if it only gathers
            from tables in it; None if it computes with all of it, as with a model's weights.
            Runtimes choose by it whether clients are vectorised.
        is_due: state -> whether a round has the step, a boolean scalar; None if every round has it.
            In a round without the step, its sum is the sum over no clients, and clients remember
            nothing of it. Rounds in TFF have all steps, so the algorithm ignores the sum itself.
    """

    name: str
    broadcast: Callable[..., Any]
    client_work: Callable[[Any, Clients], Any]
    bounds: Callable[[ClientLimits], Any]
    keeps_client_state: bool = False
    bytes_per_example: Optional[int] = None
    is_due: Optional[Callable[[Any], Any]] = None


class RoundView(NamedTuple):
    """A finished round, for what is reported of it.

    Attributes:
        before: State of the algorithm before the round.
        sums: The sum of each step.
        after: State after the round.
        round_num: t, its number, from 0, int32 scalar.
    """

    before: Any
    sums: Sums
    after: Any
    round_num: Any = 0


class Column(NamedTuple):
    """A number, or a vector [p], that every round reports.

    Attributes:
        field: What it is.
        value: Computes it on the server.
        path: Keys under which the nested report has it; its name alone if empty.
    """

    field: ReportField
    value: Callable[[RoundView], Any]
    path: tuple[str, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """Where the report has it."""
        return self.path or (self.field.name,)


def _replace_weights(state: Any, weights: ModelWeights) -> Any:
    return state._replace(weights=weights)


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """A federated algorithm, for any runtime and any aggregation.

    Attributes:
        name: Name in the registry, or of the user's file.
        problem: What is learned.
        initialize: () -> state before the first round.
        steps: The communication steps of a round, in this order.
        finish: (state, the sum of each step as an argument) -> the next state, on the server.
        columns: What a round reports, in the order in which metrics.csv has it.
        models: state -> the models that are evaluated and saved, the main one first. It works on
            NumPy arrays as on tensors.
        with_weights: (state, weights) -> state with other weights of the main model.
        lambda_set: The mixtures of domains whose worst the algorithm minimises; None if it has no
            such set.
        single_step_options: Options that give it one step a round, each as NAME=VALUE; none if
            it has one, or if no option does.
        check_report: Raises a `UserError` if the report of a round without noise shows that the
            algorithm does not apply.
    """

    name: str
    problem: Problem
    initialize: Callable[[], Any]
    steps: tuple[CommunicationStep, ...]
    finish: Callable[..., Any]
    columns: tuple[Column, ...] = ()
    models: Callable[[Any], Models] = lambda state: {MAIN_MODEL: state.weights}
    with_weights: Callable[[Any, ModelWeights], Any] = _replace_weights
    lambda_set: Optional[LambdaSet] = None
    single_step_options: tuple[str, ...] = ()
    check_report: Callable[[Report], None] = lambda report: None

    @property
    def client_data_spec(self) -> Mapping[str, Any]:
        """Tensor specs of one client's examples."""
        return self.problem.model.client_data_spec()

    @property
    def quantities(self) -> ReportFields:
        """Describes `report`, in its structure."""
        return nested((column.keys, column.field) for column in self.columns)

    def report(self, view: RoundView) -> Report:
        """Returns what a round reports."""
        return nested((column.keys, column.value(view)) for column in self.columns)

    def main_model(self, state: Any) -> ModelWeights:
        """Returns the weights of the main model of a state."""
        return next(iter(self.models(state).values()))

    def with_main_model(self, name: str) -> Algorithm:
        """Returns the algorithm with another one of its models as the main one."""

        def models(state: Any) -> Models:
            of_state = self.models(state)
            return {name: of_state[name], **of_state}

        return dataclasses.replace(self, models=models)


class RunState(NamedTuple):
    """Everything that the server remembers between rounds; what a checkpoint holds.

    Attributes:
        algorithm: The state of the algorithm.
        aggregations: The state of the aggregation of each step.
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
class AlgorithmSpec:
    """A registry entry; a user's own file defines one as `ALGORITHM`.

    Attributes:
        label: What tables and plots call it.
        paper: Where it is from.
        build: Called with a problem and options, and maybe `paper_arguments`; returns the
            algorithm, or raises a `UserError` if they do not fit.
        options: Class of its options, a frozen dataclass and subclass of `base.options.Options`,
            mostly of `AveragingOptions`.
        traits: Which of the shared property tests hold, beside those that hold for every algorithm.
        paper_settings: Values of settings, by flag, with which it is the algorithm or figure to the
            letter: those of `--preset=paper`. What the paper leaves to whoever runs it, such as a
            step size, is not among them.
        paper_arguments: Further arguments of `build` with `--preset=paper`.
    """

    label: str
    paper: str
    build: Callable[..., Algorithm]
    options: type = Options
    traits: frozenset[Trait] = frozenset()
    paper_settings: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)
    paper_arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)
