"""The protocol of runtimes."""

from collections.abc import Sequence
from typing import Any, Optional, Protocol

from tff_agnostic.computations.aggregation import Aggregation
from tff_agnostic.computations.algorithm import FederatedAlgorithm, Metrics, ServerState
from tff_agnostic.computations.evaluation import EvaluationOutput
from tff_agnostic.computations.secure_check import SecurityReport
from tff_agnostic.models.functional import Examples, Model, ModelWeights


class Training(Protocol):
    """Rounds of one algorithm; states and metrics are structures of NumPy arrays.

    Attributes:
        security: What reaches the server, where secure sums were asked for and checked.
    """

    security: Optional[SecurityReport]

    def initialize(self) -> ServerState:
        """Returns the state before the first round."""

    def next(self, state: ServerState, cohort: Sequence[Examples]) -> tuple[ServerState, Metrics]:
        """Runs one round on a cohort."""


class Evaluation(Protocol):
    """Federated evaluation of one model."""

    def __call__(self, weights: ModelWeights, clients: Sequence[Examples]) -> EvaluationOutput:
        """Returns the sums over `clients`."""


class Runtime(Protocol):
    """Executes algorithms; a context manager that owns whatever it starts."""

    def __enter__(self) -> "Runtime":
        """Acquires processes and devices."""

    def __exit__(self, *exc_info: object) -> None:
        """Releases them."""

    def training(self, algorithm: FederatedAlgorithm, aggregation: Aggregation) -> Training:
        """Prepares rounds of `algorithm`.

        Raises:
            UserError: If `aggregation` promises secure sums and the compiled round would let
                anything else reach the server.
        """

    def evaluation(self, model: Model, num_domains: int, aggregation: Aggregation) -> Evaluation:
        """Prepares evaluations of `model`.

        Raises:
            UserError: As for `training`.
        """

    def take_events(self) -> list[str]:
        """Returns what a user should know to have happened since the last call, a line each."""


def to_numpy_examples(examples: Examples) -> dict[str, Any]:
    """Returns a client's columns in the order that TFF types expect."""
    return {key: examples[key] for key in ("x", "y", "domain_id")}
