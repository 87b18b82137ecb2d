"""TERM over clients: Li, Beirami, Sanjabi, Smith 2021, "Tilted Empirical Risk Minimization".

It minimises (1/t) log(sum_k p_k exp(t F_k(w))). t = 0 is FedAvg; with t towards infinity the client
with the largest loss is all that matters, with t towards minus infinity the one with the smallest.
The gradient is the clients' mean with weights p_k exp(t F_k), over the sum of the round's own.

Clients send p_k exp(t (F_k - c)), so that no power overflows: the quotient is the same for any c,
which is the mean of the F_k by the weights of the round before.
"""

import dataclasses
from collections import OrderedDict
from typing import Any, NamedTuple

import tensorflow as tf

from tff_agnostic.aggregations.aggregation import Bound, ClientLimits
from tff_agnostic.computations.algorithm import (
    MAIN_MODEL,
    Algorithm,
    AlgorithmSpec,
    Exchange,
    Problem,
    Report,
    Sums,
    Trait,
)
from tff_agnostic.computations.client_output import (
    CLIENT_WEIGHTINGS,
    ClientCounts,
    ClientWeightingOptions,
    client_counts_bounds,
    client_weight,
    no_clients,
    only_sound,
)
from tff_agnostic.computations.clients import ClientGroup, PerClient
from tff_agnostic.computations.domain_losses import (
    AnyDomainSums,
    DomainLossOptions,
    ExampleSplit,
    mean_loss,
    measured,
    measured_sums_bounds,
)
from tff_agnostic.computations.local_training import LocalTrainingOptions, local_training
from tff_agnostic.computations.server import (
    ServerOptimizerOptions,
    average_and_apply,
    initial_training_state,
    training_quantities,
    training_report,
)
from tff_agnostic.models.model import Model, ModelWeights
from tff_agnostic.report_fields import Quantity, Unit
from tff_agnostic.settings import part_of, setting

# In secure sums a client that weighs more than this for each example is scaled down as a whole.
_MAX_TILT = 20.0
# Exponents t (F_k - c) are cut to this range. The sums of a round stay finite above it; below it a
# round whose clients all have weights there still averages them.
LOWEST, HIGHEST = -16.0, 50.0


@dataclasses.dataclass(frozen=True)
class TermOptions(
    LocalTrainingOptions, ServerOptimizerOptions, ClientWeightingOptions, DomainLossOptions
):
    """Settings of TERM.

    Attributes:
        tilt: t; negative for the clients with small losses.
    """

    tilt: float = setting(
        1.0,
        "t of TERM: how much clients with large losses count; 0 is FedAvg, and with negative "
        "numbers those with small losses count.",
    )


class TermState(NamedTuple):
    """What the server remembers.

    Attributes:
        weights: w^t.
        optimizer_state: State of the server optimizer.
        tilt: t, and 0 until a loss is known from which exponents can be counted.
        center: c, the mean of the F_k of the last round by its own weights.
        mean_loss: The mean loss of the last round's examples.
    """

    weights: ModelWeights
    optimizer_state: Any
    tilt: tf.Tensor
    center: tf.Tensor
    mean_loss: tf.Tensor


class TermBroadcast(NamedTuple):
    """What the server broadcasts: w^t, t and c, and the F_k of clients that cannot measure it."""

    weights: ModelWeights
    tilt: tf.Tensor
    center: tf.Tensor
    mean_loss: tf.Tensor


class TermOutput(NamedTuple):
    """What a client sends.

    Attributes:
        delta: w^t - w_k times the client's weight, like the trainable weights.
        weight: p_k exp(t (F_k - c)), float32 scalar.
        weighted_loss: F_k times the weight.
        capped: 1 if the exponent is beyond what weights can be, int64 scalar.
        sums: Losses, counts and metric sums per domain at w^t.
        clients: What became of the client.
    """

    delta: list[tf.Tensor]
    weight: tf.Tensor
    weighted_loss: tf.Tensor
    capped: tf.Tensor
    sums: AnyDomainSums
    clients: ClientCounts


@dataclasses.dataclass(frozen=True)
class TermClient:
    """What a client does.

    Attributes:
        model: The model.
        num_domains: p, for the losses per domain that are reported.
        options: How clients train.
        client_weighting: Member of `CLIENT_WEIGHTINGS`.
        split: Which examples are measured, and which are trained on.
    """

    model: Model
    num_domains: int
    options: LocalTrainingOptions
    client_weighting: str
    split: ExampleSplit = ExampleSplit()

    def __call__(
        self,
        broadcast: TermBroadcast,
        clients: ClientGroup,
        seed: tf.Tensor,
        per_client: PerClient,
    ) -> TermOutput:
        """Returns what each client sends."""
        weights, tilt, center, usual_loss = broadcast
        # F_k(w^t), over all of the client's examples that are measured, before it trains.
        sums, training = measured(
            self.model, self.num_domains, self.split, weights, clients, per_client
        )
        alpha = tf.ones([self.num_domains])
        n = per_client(lambda n_k: client_weight(alpha, n_k), sums.trained)
        trained, _ = local_training(
            self.model, self.options, weights, training, alpha, n, seed, per_client
        )

        def weighted(trained: list[tf.Tensor], sums: AnyDomainSums, n: tf.Tensor) -> Any:
            loss = mean_loss(sums, otherwise=usual_loss)
            factor, is_capped = tilted(loss, center, tilt)
            weight = CLIENT_WEIGHTINGS[self.client_weighting](n) * factor
            delta = [weight * (w - w_k) for w, w_k in zip(weights.trainable, trained)]
            return delta, weight, weight * loss, tf.cast(is_capped, tf.int64)

        delta, weight, weighted_loss, capped = per_client(weighted, trained, sums, n)
        output = TermOutput(delta, weight, weighted_loss, capped, sums, no_clients(clients))
        return only_sound(output, weight, clients, per_client)


def term(problem: Problem, options: TermOptions) -> Algorithm:
    """Returns TERM over clients; the first round with examples is one of FedAvg."""
    model, p = problem.model, problem.num_domains
    optimizer = options.build_server_optimizer()
    split = options.example_split(problem.seed)

    def initialize() -> TermState:
        return TermState(*initial_training_state(model, optimizer), *[tf.constant(0.0)] * 3)

    def prepare(state: TermState, sums: Sums) -> TermBroadcast:
        del sums
        return TermBroadcast(state.weights, state.tilt, state.center, state.mean_loss)

    def finish(state: TermState, sums: Sums) -> tuple[TermState, Report]:
        (summed,) = sums
        # w^{t+1} = sum_k p_k exp(t F_k) w_k / sum_k p_k exp(t F_k)
        update = average_and_apply(
            optimizer, state.weights, state.optimizer_state, summed.delta, summed.weight
        )
        of_cohort = mean_loss(summed.sums, otherwise=state.mean_loss)
        center = next_center(summed.weight, summed.weighted_loss, of_cohort)
        is_measured = tf.reduce_sum(summed.sums.counts) > 0
        tilt, center = (
            tf.where(is_measured, new, old)
            for new, old in ((options.tilt, state.tilt), (center, state.center))
        )
        report = training_report(
            model, summed.sums, summed.clients, update.update_norm, domain_weights={}
        )
        report["finalizer"].update(center=state.center, capped=summed.capped)
        return (
            TermState(update.weights, update.optimizer_state, tilt, center, of_cohort),
            report,
        )

    def bounds(limits: ClientLimits) -> TermOutput:
        heaviest = limits.beta(options.largest_weight(limits) * _MAX_TILT)
        delta = Bound(heaviest * limits.max_delta, signed=True, ratio="update")
        return TermOutput(
            delta=[delta for _ in model.initial_weights.trainable],
            weight=Bound(heaviest, ratio="update", denominator=True),
            weighted_loss=Bound(heaviest * limits.max_loss, ratio="update"),
            capped=Bound(1, integer=True),
            sums=measured_sums_bounds(model, limits, split.is_apart),
            clients=client_counts_bounds(),
        )

    quantities = training_quantities(model, domain_weights={}, is_apart=split.is_apart)
    quantities["finalizer"].update(
        center=Quantity("center", "loss c from which exponents are counted"),
        capped=Quantity("capped", "clients beyond the largest weight", unit=Unit.CLIENTS),
    )
    training = Exchange(
        name="training",
        prepare=prepare,
        client=TermClient(
            model, p, part_of(options, LocalTrainingOptions), options.client_weighting, split
        ),
        bounds=bounds,
    )
    return Algorithm(
        name="term",
        initialize=initialize,
        exchanges=(training,),
        finish=finish,
        models=lambda state: {MAIN_MODEL: state.weights},
        quantities=OrderedDict(quantities),
        client_data_spec=model.client_data_spec(),
        seed=problem.seed,
    )


ALGORITHM = AlgorithmSpec(
    label="TERM",
    paper="Li et al. 2021, over clients",
    build=term,
    options=TermOptions,
    traits=frozenset(
        {
            Trait.DOMAIN_BLIND,
            Trait.COHORT_TWICE_IS_ONCE,
            Trait.LEARNS_FROM_EVERY_DOMAIN,
        }
    ),
)


def tilted(loss: tf.Tensor, center: tf.Tensor, tilt: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns exp(t (F_k - c)), and whether it would be larger than weights can be.

    Args:
        loss: F_k, float32 of any shape.
        center: c, float32 scalar.
        tilt: t, float32 scalar.
    """
    exponent = tilt * (loss - center)
    return tf.exp(tf.clip_by_value(exponent, LOWEST, HIGHEST)), exponent > HIGHEST


def next_center(weight: tf.Tensor, weighted_loss: tf.Tensor, usual_loss: tf.Tensor) -> tf.Tensor:
    """Returns c of the next round: the mean of the F_k by the weights of this one.

    With it the same losses would have weights p_k exp(t (F_k - c)) whose sum is at most that of the
    p_k, and at least the smallest p_k: the logarithm of that quotient is the divergence of the
    weights from the p_k. Where all weights were lost in the rounding of a secure sum it is the mean
    loss of the examples.

    Args:
        weight: Sum of the clients' weights.
        weighted_loss: Sum of their F_k times their weights.
        usual_loss: The mean loss of the round's examples.
    """
    tilted_loss = tf.math.divide_no_nan(weighted_loss, weight)
    return tf.where(weight > 0, tilted_loss, usual_loss)
