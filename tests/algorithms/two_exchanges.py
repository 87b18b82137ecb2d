"""An algorithm of two exchanges, as a user would write it: only clients above the mean loss train.

First exchange: every client sends its mean loss at w, and a 1; second: those whose loss is not
below the mean of the sums train, and are averaged by their numbers of examples. Clients keep their
loss between the two. Beside the last weights there is the mean of all iterates as a second model.
"""

import dataclasses
from collections import OrderedDict
from typing import Any, NamedTuple

import tensorflow as tf

from tff_agnostic.aggregations.aggregation import Bound, ClientLimits
from tff_agnostic.algorithms.fed_avg import FedAvgOptions, train_without_domain_pass
from tff_agnostic.computations.algorithm import (
    Algorithm,
    AlgorithmSpec,
    AnswerAndKept,
    Exchange,
    Problem,
    Report,
    Sums,
    Trait,
)
from tff_agnostic.computations.client_output import (
    TrainingBroadcast,
    TrainingOutput,
    domain_sums,
    training_output_bounds,
    zeros_unless,
)
from tff_agnostic.computations.clients import ClientGroup, PerClient
from tff_agnostic.computations.domain_losses import domain_counts, domain_pass
from tff_agnostic.computations.local_training import LocalTrainingOptions
from tff_agnostic.computations.server import (
    as_tensors,
    average_and_apply,
    initial_training_state,
    training_quantities,
    training_report,
)
from tff_agnostic.models.model import Model, ModelWeights
from tff_agnostic.report_fields import Quantity
from tff_agnostic.settings import part_of

NAME = "above_mean"


class State(NamedTuple):
    weights: ModelWeights
    optimizer_state: Any
    sum_of_iterates: list[tf.Tensor]
    rounds: tf.Tensor


class SurveyOutput(NamedTuple):
    loss: tf.Tensor
    clients: tf.Tensor


class TrainingMessage(NamedTuple):
    training: TrainingBroadcast
    mean_loss: tf.Tensor


@dataclasses.dataclass(frozen=True)
class Survey:
    model: Model
    num_domains: int

    def __call__(
        self, weights: ModelWeights, clients: ClientGroup, seed: tf.Tensor, per_client: PerClient
    ) -> AnswerAndKept:
        del seed
        mean_loss = _mean_losses(self.model, self.num_domains, weights, clients, per_client)
        is_known = tf.math.is_finite(mean_loss) & (clients.num_examples > 0)
        answer = zeros_unless(
            is_known, SurveyOutput(mean_loss, tf.ones_like(clients.num_examples, tf.int64))
        )
        return AnswerAndKept(answer, mean_loss)


@dataclasses.dataclass(frozen=True)
class Training:
    model: Model
    num_domains: int
    options: LocalTrainingOptions

    def __call__(
        self,
        broadcast: TrainingMessage,
        clients: ClientGroup,
        seed: tf.Tensor,
        per_client: PerClient,
    ) -> TrainingOutput:
        output = train_without_domain_pass(
            self.model,
            self.num_domains,
            self.options,
            broadcast.training,
            clients,
            seed,
            per_client,
        )
        trains = clients.kept >= broadcast.mean_loss
        return zeros_unless(trains, output)._replace(clients=output.clients)


def _mean_losses(
    model: Model,
    num_domains: int,
    weights: ModelWeights,
    clients: ClientGroup,
    per_client: PerClient,
) -> tf.Tensor:
    sums = domain_pass(model, num_domains, weights, clients, per_client)
    counts = domain_counts(num_domains, clients)

    def mean(losses: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
        n = tf.cast(tf.reduce_sum(counts), tf.float32)
        return tf.math.divide_no_nan(tf.reduce_sum(losses), n)

    return per_client(mean, sums.losses, counts)


def above_mean(problem: Problem, options: FedAvgOptions) -> Algorithm:
    model, p = problem.model, problem.num_domains
    optimizer = options.build_server_optimizer()
    alpha = [1.0] * p

    def initialize() -> State:
        weights, optimizer_state = initial_training_state(model, optimizer)
        zeros = [tf.zeros_like(w) for w in weights.trainable]
        return as_tensors(State(weights, optimizer_state, zeros, 0))

    def prepare_training(state: State, sums: Sums) -> TrainingMessage:
        (survey,) = sums
        mean_loss = tf.math.divide_no_nan(survey.loss, tf.cast(survey.clients, tf.float32))
        return TrainingMessage(TrainingBroadcast(state.weights, tf.constant(alpha)), mean_loss)

    def finish(state: State, sums: Sums) -> tuple[State, Report]:
        survey, summed = sums
        update = average_and_apply(
            optimizer, state.weights, state.optimizer_state, summed.weighted_delta, summed.beta
        )
        report = training_report(
            model, domain_sums(summed), summed.clients, update.update_norm, domain_weights={}
        )
        report["finalizer"]["surveyed"] = survey.clients
        iterates = [a + w for a, w in zip(state.sum_of_iterates, update.weights.trainable)]
        return State(update.weights, update.optimizer_state, iterates, state.rounds + 1), report

    def models(state: State) -> dict[str, ModelWeights]:
        count = tf.cast(state.rounds, tf.float32)
        mean = [tf.math.divide_no_nan(a, count) for a in state.sum_of_iterates]
        return {
            "model": state.weights,
            "mean_iterate": ModelWeights(mean, state.weights.non_trainable),
        }

    def survey_bounds(limits: ClientLimits) -> SurveyOutput:
        return SurveyOutput(Bound(limits.max_loss), Bound(1, integer=True))

    quantities = training_quantities(model, domain_weights={}, while_training=True)
    quantities["finalizer"]["surveyed"] = Quantity("surveyed", "clients with a loss")
    return Algorithm(
        name=NAME,
        initialize=initialize,
        exchanges=(
            Exchange(
                "survey",
                lambda state, sums: state.weights,
                Survey(model, p),
                survey_bounds,
                keeps=True,
            ),
            Exchange(
                "training",
                prepare_training,
                Training(model, p, part_of(options, LocalTrainingOptions)),
                lambda limits: training_output_bounds(model, limits, float(limits.max_examples)),
            ),
        ),
        finish=finish,
        models=models,
        quantities=OrderedDict(quantities),
        client_data_spec=model.client_data_spec(),
        seed=problem.seed,
    )


ALGORITHM = AlgorithmSpec(
    label="Above the mean",
    paper="none",
    build=above_mean,
    options=FedAvgOptions,
    traits=frozenset(
        {Trait.DOMAIN_BLIND, Trait.COHORT_TWICE_IS_ONCE, Trait.LEARNS_FROM_EVERY_DOMAIN}
    ),
)
