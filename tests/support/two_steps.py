"""An algorithm of two steps, as a user would write it: only clients above the mean loss train.

In the first step, every client sends its mean loss at w, and a 1. The server divides the sums. In
the second step, clients with at least this mean loss train, and the server averages them by their
numbers of examples. Clients remember their loss between the steps. The mean of all iterates is a
second model.
"""

from typing import Any, NamedTuple

import tensorflow as tf

from tff_agnostic import computations as core
from tff_agnostic.algorithms.fed_avg import FedAvgOptions, client_work

NAME = "above_mean"


class State(NamedTuple):
    weights: core.ModelWeights
    optimizer_state: Any
    iterate_sum: list[tf.Tensor]
    rounds: tf.Tensor


class SurveyOutput(NamedTuple):
    loss: tf.Tensor
    clients: tf.Tensor


class TrainingMessage(NamedTuple):
    training: core.Broadcast
    mean_loss: tf.Tensor


def survey_work(
    weights: core.ModelWeights, clients: core.Clients, *, model: core.Model, num_domains: int
) -> core.ClientResult:
    sums, _ = core.measure_domains(model, num_domains, weights, clients, core.Holdout())
    mean_loss = clients.map(lambda sums: sums.mean_loss(tf.constant(0.0)), sums)
    is_known = tf.math.is_finite(mean_loss) & (clients.num_examples > 0)
    answer = SurveyOutput(mean_loss, tf.ones_like(clients.num_examples, tf.int64))
    return core.ClientResult(core.zero_unless(is_known, answer), mean_loss)


def training_work(
    broadcast: TrainingMessage,
    clients: core.Clients,
    *,
    model: core.Model,
    num_domains: int,
    training: core.ClientTraining,
) -> core.TrainingOutput:
    output = client_work(
        broadcast.training, clients, model=model, num_domains=num_domains, training=training
    )
    trains = clients.state >= broadcast.mean_loss
    return core.zero_unless(trains, output)._replace(clients=output.clients)


def above_mean(problem: core.Problem, options: FedAvgOptions) -> core.Algorithm:
    model, p = problem.model, problem.num_domains
    optimizer = options.server.build(model)
    alpha = [1.0] * p

    def initialize() -> State:
        weights, optimizer_state = core.initial_model(model, optimizer)
        zeros = [tf.zeros_like(w) for w in weights.trainable]
        return core.as_tensors(State(weights, optimizer_state, zeros, 0))

    def broadcast(state: State, survey: SurveyOutput) -> TrainingMessage:
        mean_loss = tf.math.divide_no_nan(survey.loss, tf.cast(survey.clients, tf.float32))
        return TrainingMessage(core.Broadcast(state.weights, tf.constant(alpha)), mean_loss)

    def finish(state: State, survey: SurveyOutput, summed: core.TrainingOutput) -> State:
        del survey
        after = core.average_and_apply(optimizer, state, summed.weighted_delta, summed.beta)
        iterates = [a + w for a, w in zip(state.iterate_sum, after.weights.trainable)]
        return after._replace(iterate_sum=iterates, rounds=state.rounds + 1)

    def models(state: State) -> dict[str, core.ModelWeights]:
        count = tf.cast(state.rounds, tf.float32)
        mean = [tf.math.divide_no_nan(a, count) for a in state.iterate_sum]
        return {
            "model": state.weights,
            "mean_iterate": core.ModelWeights(mean, state.weights.non_trainable),
        }

    def survey_bounds(limits: core.ClientLimits) -> SurveyOutput:
        return SurveyOutput(core.Bound(limits.loss), core.Bound(1, integer=True))

    surveyed = core.ReportField("surveyed", "clients with a loss")
    return core.Algorithm(
        name=NAME,
        problem=problem,
        initialize=initialize,
        steps=(
            core.CommunicationStep(
                "survey",
                lambda state: state.weights,
                core.HashablePartial(survey_work, model=model, num_domains=p),
                survey_bounds,
                keeps_client_state=True,
            ),
            core.CommunicationStep(
                "training",
                broadcast,
                core.HashablePartial(
                    training_work, model=model, num_domains=p, training=options.client
                ),
                core.training_bounds(model),
            ),
        ),
        finish=finish,
        columns=core.training_columns(
            model,
            finalizer=[core.Column(surveyed, lambda r: r.sums[0].clients)],
            while_training=True,
        ),
        models=models,
    )


ALGORITHM = core.AlgorithmSpec(
    label="Above the mean",
    paper="none",
    build=above_mean,
    options=FedAvgOptions,
    traits=frozenset(
        {
            core.Trait.DOMAIN_BLIND,
            core.Trait.COHORT_TWICE_IS_ONCE,
            core.Trait.LEARNS_FROM_EVERY_DOMAIN,
        }
    ),
)
