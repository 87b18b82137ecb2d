"""q-FedAvg: Li, Sanjabi, Beirami, Smith 2020, "Fair Resource Allocation in Federated Learning".

It minimises f_q(w) = sum_k p_k / (q + 1) F_k(w)^(q+1): the larger q, the more a client with a large
loss weighs. q = 0 is FedAvg; q towards infinity is agnostic over clients.

Losses are measured in units of c, the cohort's mean loss of the round before, so that no power
overflows. That changes no update: Delta_k and h_k are both c^q times smaller.
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
from tff_agnostic.report_fields import Quantity
from tff_agnostic.settings import part_of, setting

# Added to losses before powers are taken, as in the authors' code: 0 ^ (q - 1) is infinite.
_TINY_LOSS = 1e-10
# In secure sums a client whose loss is more than this many times the cohort's mean, or whose h_k
# is more than this many times its weight, is scaled down as a whole.
_MAX_LOSS_RATIO = 2.0
_MAX_CURVATURE = 100.0
# With more, that ratio to the power of q is beyond float32 when it is summed. Papers have up to 15.
_MAX_Q = 100.0


@dataclasses.dataclass(frozen=True)
class QFflOptions(
    LocalTrainingOptions, ServerOptimizerOptions, ClientWeightingOptions, DomainLossOptions
):
    """Settings of q-FedAvg; the paper draws clients with probabilities p_k.

    Attributes:
        q: How much large losses count.
    """

    q: float = setting(
        1.0,
        "How much clients with large losses count in q-FFL; 0 is FedAvg.",
        at_least=0.0,
        at_most=_MAX_Q,
    )


class QFflState(NamedTuple):
    """What the server remembers.

    Attributes:
        weights: w^t.
        optimizer_state: State of the server optimizer.
        unit_loss: c, the cohort's mean loss of the last round with examples; 1 at first.
    """

    weights: ModelWeights
    optimizer_state: Any
    unit_loss: tf.Tensor


class QFflBroadcast(NamedTuple):
    """What the server broadcasts: w^t and c."""

    weights: ModelWeights
    unit_loss: tf.Tensor


class QFflOutput(NamedTuple):
    """What a client sends.

    Attributes:
        delta: Delta_k / L, like the trainable weights.
        h: h_k / L, float32 scalar.
        sums: Losses, counts and metric sums per domain at w^t.
        clients: What became of the client.
    """

    delta: list[tf.Tensor]
    h: tf.Tensor
    sums: AnyDomainSums
    clients: ClientCounts


@dataclasses.dataclass(frozen=True)
class QFflClient:
    """What a client does.

    Attributes:
        model: The model.
        num_domains: p, for the losses per domain that are reported.
        options: How clients train.
        q: The power.
        client_weighting: Member of `CLIENT_WEIGHTINGS`.
        split: Which examples are measured, and which are trained on.
    """

    model: Model
    num_domains: int
    options: LocalTrainingOptions
    q: float
    client_weighting: str
    split: ExampleSplit = ExampleSplit()

    def __call__(
        self,
        broadcast: QFflBroadcast,
        clients: ClientGroup,
        seed: tf.Tensor,
        per_client: PerClient,
    ) -> QFflOutput:
        """Returns what each client sends."""
        weights, unit_loss = broadcast
        # F_k(w^t), over all of the client's examples that are measured, before it trains.
        sums, training = measured(
            self.model, self.num_domains, self.split, weights, clients, per_client
        )
        alpha = tf.ones([self.num_domains])
        n = per_client(lambda n_k: client_weight(alpha, n_k), sums.trained)
        # w_k: E epochs of SGD with step 1 / L from w^t.
        trained, _ = local_training(
            self.model, self.options, weights, training, alpha, n, seed, per_client
        )

        def delta_and_h(trained: list[tf.Tensor], sums: AnyDomainSums, n: tf.Tensor) -> Any:
            # A client that measures nothing counts as one of the usual loss.
            loss = mean_loss(sums, otherwise=unit_loss)
            change = [w - w_k for w, w_k in zip(weights.trainable, trained)]
            lipschitz = 1.0 / self.options.client_learning_rate
            weight = CLIENT_WEIGHTINGS[self.client_weighting](n)
            return weighted_update(change, loss, unit_loss, weight, self.q, lipschitz)

        delta, h = per_client(delta_and_h, trained, sums, n)
        output = QFflOutput(delta, h, sums, no_clients(clients))
        return only_sound(output, h, clients, per_client)


def weighted_update(
    change: list[tf.Tensor],
    mean_loss: tf.Tensor,
    unit_loss: tf.Tensor,
    weight: tf.Tensor,
    q: float,
    lipschitz: float,
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Returns Delta_k / L and h_k / L of one client, both times its weight.

    With Dw_k = L (w^t - w_k) and F = F_k(w^t), the paper has Delta_k = F^q Dw_k and
    h_k = q F^(q-1) ||Dw_k||^2 + L F^q. Here F is in units of c, which puts 1 / c before the norm.

    Args:
        change: w^t - w_k.
        mean_loss: F_k(w^t), float32 scalar.
        unit_loss: c.
        weight: Weight of the client.
        q: The power.
        lipschitz: L.
    """
    loss = (mean_loss + _TINY_LOSS) / unit_loss
    powered = weight * tf.pow(loss, q)
    delta = [powered * x for x in change]
    squared_norm = tf.add_n([tf.reduce_sum(tf.square(x)) for x in change])
    curvature = weight * q * tf.pow(loss, q - 1.0) * lipschitz * squared_norm / unit_loss
    return delta, powered + curvature


def q_ffl(problem: Problem, options: QFflOptions) -> Algorithm:
    """Returns q-FedAvg; with an SGD server of rate 1, w^{t+1} = w^t - sum Delta_k / sum h_k."""
    model, p = problem.model, problem.num_domains
    optimizer = options.build_server_optimizer()
    split = options.example_split(problem.seed)

    def initialize() -> QFflState:
        return QFflState(*initial_training_state(model, optimizer), tf.constant(1.0))

    def prepare(state: QFflState, sums: Sums) -> QFflBroadcast:
        del sums
        return QFflBroadcast(state.weights, state.unit_loss)

    def finish(state: QFflState, sums: Sums) -> tuple[QFflState, Report]:
        (summed,) = sums
        update = average_and_apply(
            optimizer, state.weights, state.optimizer_state, summed.delta, summed.h
        )
        of_cohort = mean_loss(summed.sums, otherwise=state.unit_loss)
        unit_loss = tf.where(of_cohort > 0, of_cohort, state.unit_loss)
        report = training_report(
            model, summed.sums, summed.clients, update.update_norm, domain_weights={}
        )
        report["finalizer"]["unit_loss"] = state.unit_loss
        return QFflState(update.weights, update.optimizer_state, unit_loss), report

    def bounds(limits: ClientLimits) -> QFflOutput:
        heaviest = limits.beta(options.largest_weight(limits) * _MAX_LOSS_RATIO**options.q)
        delta = Bound(heaviest * limits.max_delta, signed=True, ratio="update")
        return QFflOutput(
            delta=[delta for _ in model.initial_weights.trainable],
            h=Bound(
                heaviest * (1.0 + options.q * _MAX_CURVATURE), ratio="update", denominator=True
            ),
            sums=measured_sums_bounds(model, limits, split.is_apart),
            clients=client_counts_bounds(),
        )

    quantities = training_quantities(model, domain_weights={}, is_apart=split.is_apart)
    quantities["finalizer"]["unit_loss"] = Quantity("unit_loss", "unit of losses, c")
    training = Exchange(
        name="training",
        prepare=prepare,
        client=QFflClient(
            model,
            p,
            part_of(options, LocalTrainingOptions),
            options.q,
            options.client_weighting,
            split,
        ),
        bounds=bounds,
    )
    return Algorithm(
        name="q_ffl",
        initialize=initialize,
        exchanges=(training,),
        finish=finish,
        models=lambda state: {MAIN_MODEL: state.weights},
        quantities=OrderedDict(quantities),
        client_data_spec=model.client_data_spec(),
        seed=problem.seed,
    )


ALGORITHM = AlgorithmSpec(
    label="q-FFL",
    paper="Li et al. 2020, Algorithm 2 (q-FedAvg)",
    build=q_ffl,
    options=QFflOptions,
    traits=frozenset(
        {
            Trait.DOMAIN_BLIND,
            Trait.COHORT_TWICE_IS_ONCE,
            Trait.LEARNS_FROM_EVERY_DOMAIN,
        }
    ),
)
