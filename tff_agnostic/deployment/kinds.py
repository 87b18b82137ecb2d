"""The kinds of rounds that a plan can have, by name: training, and evaluation."""

import dataclasses
from typing import Any, Callable, Optional, Protocol

import tensorflow_federated as tff

from tff_agnostic.aggregations.aggregation import Aggregation
from tff_agnostic.computations.aggregated import AggregatedExchange, AggregatedRound
from tff_agnostic.computations.exchange import Algorithm, RunState
from tff_agnostic.deployment.conformance import NUM_ROUNDS, Rounds
from tff_agnostic.deployment.evaluation.metrics import EvaluationMetrics
from tff_agnostic.deployment.evaluation.rounds import EvaluationRounds, evaluated_algorithm
from tff_agnostic.deployment.profiles import round_of
from tff_agnostic.quantities import Quantities
from tff_agnostic.registry import Registry
from tff_agnostic.runtimes.tff import TffRuntime

TRAINING, EVALUATION = "training", "evaluation"


class Asked(Protocol):
    """What rounds are made of; an `ExportRequest` is one."""

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm."""

    @property
    def aggregation(self) -> Aggregation:
        """How clients are summed."""

    @property
    def num_domains(self) -> int:
        """How many domains there are, p."""

    @property
    def evaluation(self) -> Optional[EvaluationMetrics]:
        """What an evaluation reports."""


class PlannedRounds(Rounds, Protocol):
    """Rounds in TFF.

    Attributes:
        round_: (state at the server, client data) -> (state, metrics) at the server.
        quantities: Says of metrics what follows from them for all domains together; what is not
            described has no such value.
    """

    round_: tff.Computation
    quantities: Quantities

    def initialize(self) -> RunState:
        """Returns the state before the first round."""


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of rounds.

    Attributes:
        rounds: (runtime, what is asked) -> rounds.
        algorithm: Returns the algorithm with the exchanges that these rounds have.
        exchange: Returns the one exchange of a round, with its aggregation.
        num_conformance_rounds: How many rounds an export has to reproduce.
        is_in_paper: Whether Ro et al. 2021 count what it sends.
    """

    rounds: Callable[[TffRuntime, Asked], PlannedRounds]
    algorithm: Callable[[Asked], Algorithm]
    exchange: Callable[[Asked], AggregatedExchange]
    num_conformance_rounds: int
    is_in_paper: bool


class _TrainingRounds:
    def __init__(self, runtime: TffRuntime, asked: Asked) -> None:
        self._training = runtime.training(asked.algorithm, asked.aggregation)
        self.round_ = round_of(self._training.process.learning_process)
        self.quantities = self._training.quantities

    def initialize(self) -> RunState:
        return self._training.initialize()

    def next(self, state: RunState, cohort: Any) -> tuple[RunState, Any]:
        return self._training.next(state, cohort)


def _evaluation_rounds(runtime: TffRuntime, asked: Asked) -> PlannedRounds:
    assert asked.evaluation is not None, "an evaluation has to be told what it reports"
    return EvaluationRounds(
        runtime, asked.algorithm, asked.aggregation, asked.num_domains, asked.evaluation
    )


def _evaluated(asked: Asked) -> Algorithm:
    assert asked.evaluation is not None, "an evaluation has to be told what it reports"
    return evaluated_algorithm(asked.algorithm, asked.evaluation, asked.num_domains)


def _training_exchange(asked: Asked) -> AggregatedExchange:
    (exchange,) = AggregatedRound(asked.algorithm, asked.aggregation).exchanges
    return exchange


def _evaluation_exchange(asked: Asked) -> AggregatedExchange:
    (exchange,) = _evaluated(asked).exchanges
    return AggregatedExchange(exchange, asked.aggregation)


KINDS: Registry[Kind] = Registry(
    "kind of plan",
    {
        TRAINING: Kind(
            _TrainingRounds, lambda asked: asked.algorithm, _training_exchange, NUM_ROUNDS, True
        ),
        # Each leaves the model as it is: a second one would differ in its noise alone.
        EVALUATION: Kind(_evaluation_rounds, _evaluated, _evaluation_exchange, 1, False),
    },
)
