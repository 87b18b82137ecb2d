"""Types that define a federated algorithm: problem, communication steps, report, registry entry.

A round has one or more communication steps. In each step the server broadcasts a message, every
client returns a named tuple, and the server receives only the sum of these tuples. All functions
are pure TensorFlow without variables, so that every runtime can trace them.
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

# Models by name; the main model comes first.
Models = Mapping[str, ModelWeights]

# Values that a round reports, in nested mappings; leaves are scalars, or vectors over p domains.
Report = Mapping[str, Any]

# One sum over the cohort for each finished step of the round.
Sums = tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Problem:
    """A learning problem: a model and its domains.

    Attributes:
        model: The model; TFF models are converted, see `models.from_tff`.
        domain_names: Names of the p domains; their order gives the domain ids.
        seed: Seed of the run; local shuffling and dropout derive from it.
        expected_counts: Expected number of examples of each domain in a round; None if unknown.
        expected_kept_out: Like `expected_counts`, but counts the examples that clients hold out of
            training; None to derive it from the algorithm's holdout fraction.

    Example:
        >>> model = logistic_regression(num_features=4, num_classes=2)
        >>> Problem(model, ("common", "rare"), expected_counts=(40.0, 5.0)).num_domains
        2
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
    def numbered(cls, model: Model, num_domains: int, seed: int = 0) -> Problem:
        """Returns a problem with domains named "0", "1" and so on."""
        return cls(model, tuple(map(str, range(num_domains))), seed)


@dataclasses.dataclass(frozen=True, init=False)
class HashablePartial:
    """A hashable `functools.partial`: equal if function and keyword arguments are equal.

    Runtimes trace equal client work only once, even across the trials of a comparison. Client work
    therefore takes its parameters through this class instead of capturing them in a closure. The
    parameters must be hashable: numbers, strings, tuples, models, frozen dataclasses.

    Args:
        function: A module-level function, so that other processes can import it.
        **static: Keyword arguments to bind.
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
    """A client's output in a step, and its state for the later steps of the round.

    Attributes:
        output: Values to sum over clients, a named tuple with float32 or int64 leaves.
        state: State that stays on the client, and becomes its `Clients.state` in the later steps;
            any structure of tensors, () if the client keeps no state.
    """

    output: Any
    state: Any = ()


@dataclasses.dataclass(frozen=True)
class CommunicationStep:
    """A broadcast followed by a sum over clients.

    Attributes:
        name: Purpose of the step, such as "training"; unique within the round.
        broadcast: `(state, *sums)` -> message to the clients, with the sums of the round's earlier
            steps.
        client_work: (broadcast, `Clients`) -> output of each client, a named tuple with float32 or
            int64 leaves. For vectorised clients every leaf has a leading axis of clients. The
            function must be hashable; see `HashablePartial`.
        bounds: `ClientLimits` -> a `Bound` for every leaf of one client's output.
        keeps_client_state: Whether clients replace their state for the later steps of the round;
            `client_work` then returns a `ClientResult`.
        bytes_per_example: Bytes of the broadcast that a client reads per example, if clients only
            look up rows of the broadcast's tables; None if they use the complete broadcast, such as
            a model's weights. Runtimes decide by this number whether to vectorise clients.
        is_due: state -> whether the round includes the step, a boolean scalar; None if every round
            includes it. A step that is not due has the sum over no clients, and leaves client
            states unchanged. Rounds in TFF always include all steps, so `finish` must itself ignore
            the sum of a step that is not due.
    """

    name: str
    broadcast: Callable[..., Any]
    client_work: Callable[[Any, Clients], Any]
    bounds: Callable[[ClientLimits], Any]
    keeps_client_state: bool = False
    bytes_per_example: Optional[int] = None
    is_due: Optional[Callable[[Any], Any]] = None


class RoundView(NamedTuple):
    """A finished round: the input of the functions that compute its report.

    Attributes:
        before: State of the algorithm before the round.
        sums: Sum of the client outputs of each step.
        after: State after the round.
        round_num: Number t of the round, from 0, int32 scalar.
    """

    before: Any
    sums: Sums
    after: Any
    round_num: Any = 0


class Column(NamedTuple):
    """A scalar, or a vector with an entry per domain, that every round reports.

    Attributes:
        field: Description of the value.
        value: Computes the value on the server.
        path: Keys of the value in the nested report; the field's name if empty.
    """

    field: ReportField
    value: Callable[[RoundView], Any]
    path: tuple[str, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of the value in the nested report."""
        return self.path or (self.field.name,)


def _replace_weights(state: Any, weights: ModelWeights) -> Any:
    return state._replace(weights=weights)


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """A federated algorithm, for any runtime and any aggregation.

    Attributes:
        name: Name in the registry, or name of the user's file.
        initialize: () -> state before the first round.
        steps: The communication steps of a round, in order.
        finish: `(state, *sums)` -> the next state, on the server, with the sums of all steps.
        columns: Values that a round reports, in the order of metrics.csv.
        models: state -> the models to evaluate and save, the main one first. Accepts NumPy arrays
            as well as tensors.
        with_weights: (state, weights) -> state whose main model has the given weights.
        lambda_set: The set of domain mixtures whose worst case the algorithm minimises; None if it
            has no such set.
        single_step_options: Options, each as NAME=VALUE, that reduce the algorithm to one step per
            round; empty if it has one step anyway, or if no option does.
        check_report: Called with a round's report, if its values have no noise; raises a
            `UserError` if they show that the algorithm does not suit the problem.
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
        """Descriptions of the values in `report`, in the same structure."""
        return nested((column.keys, column.field) for column in self.columns)

    def report(self, view: RoundView) -> Report:
        """Returns the report of a round."""
        return nested((column.keys, column.value(view)) for column in self.columns)

    def main_model(self, state: Any) -> ModelWeights:
        """Returns the weights of the main model of a state."""
        return next(iter(self.models(state).values()))

    def with_main_model(self, name: str) -> Algorithm:
        """Returns the algorithm with its model `name` as the main model."""

        def models(state: Any) -> Models:
            models_by_name = self.models(state)
            return {name: models_by_name[name], **models_by_name}

        return dataclasses.replace(self, models=models)


class RunState(NamedTuple):
    """The server's complete state between rounds, as saved in checkpoints.

    Attributes:
        algorithm: State of the algorithm.
        aggregations: The aggregation's state for each step.
        round_num: Number of completed rounds, int32 scalar.
    """

    algorithm: Any
    aggregations: tuple[Any, ...]
    round_num: tf.Tensor


class Trait(enum.Enum):
    """A property of an algorithm; shared property tests check each claimed trait."""

    ONE_DOMAIN_IS_FED_AVG = "with a single domain it is FedAvg"
    DOMAIN_BLIND = "the model does not depend on which domain an example belongs to"
    PARTITION_BLIND = "where clients take one full step, it does not matter who holds an example"
    COHORT_TWICE_IS_ONCE = "a cohort that holds every client twice gives the same model"
    LEARNS_FROM_EVERY_DOMAIN = "examples of every single domain move the model"


@dataclasses.dataclass(frozen=True)
class AlgorithmSpec:
    """The registry entry of an algorithm; a user's own file assigns one to `ALGORITHM`.

    Attributes:
        label: Name in tables and plots.
        paper: Citation of the paper.
        build: (problem, options) -> the algorithm; raises a `UserError` if problem and options are
            incompatible.
        options: Class of the algorithm's options, a frozen dataclass derived from
            `base.options.Options` or, usually, from `AveragingOptions`.
        traits: Traits to test, in addition to the properties of every algorithm.
        paper_settings: Values of settings, by flag, that reproduce the paper's algorithm or figure
            exactly, for `--preset=paper`. Settings that the paper leaves open, such as a step size,
            are not included.
        paper_arguments: Further keyword arguments of `build` with `--preset=paper`.
    """

    label: str
    paper: str
    build: Callable[..., Algorithm]
    options: type = Options
    traits: frozenset[Trait] = frozenset()
    paper_settings: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)
    paper_arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)
