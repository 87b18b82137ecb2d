"""q-FedAvg: Li, Sanjabi, Beirami, Smith 2020, "Fair Resource Allocation in Federated Learning".

It minimises f_q(w) = sum_k p_k / (q + 1) F_k(w)^(q+1): the larger q, the more a client with a large
loss weighs. q = 0 is FedAvg; q towards infinity is agnostic over clients.

Losses are measured in units of c, the cohort's mean loss of the round before, so that no power
overflows. That changes no update: Delta_k and h_k are both c^q times smaller.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from tff_agnostic import computations as core
from tff_agnostic.later import tf
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
    core.LocalTrainingOptions,
    core.ServerOptimizerOptions,
    core.ClientWeightingOptions,
    core.HoldoutOptions,
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

    weights: core.ModelWeights
    optimizer_state: Any
    unit_loss: tf.Tensor


class QFflBroadcast(NamedTuple):
    """What the server broadcasts: w^t and c."""

    weights: core.ModelWeights
    unit_loss: tf.Tensor


class QFflOutput(NamedTuple):
    """What a client sends.

    Attributes:
        delta: Delta_k / L, like the trainable weights.
        h: h_k / L, float32 scalar.
        sums: Losses, counts and metric sums per domain at w^t.
        clients: Outcome of the client.
    """

    delta: list[tf.Tensor]
    h: tf.Tensor
    sums: core.DomainSums
    clients: core.ClientCounts

    @property
    def domain_sums(self) -> core.DomainSums:
        """Losses, counts and metric sums per domain."""
        return self.sums


def client_work(
    broadcast: QFflBroadcast,
    clients: core.Clients,
    *,
    model: core.Model,
    num_domains: int,
    options: core.LocalTrainingOptions,
    q: float,
    client_weighting: str,
    holdout: core.Holdout,
) -> QFflOutput:
    """What a client does; it measures its domains for the report only."""
    weights, unit_loss = broadcast
    # F_k(w^t), over all of the client's examples that are measured, before it trains.
    sums, training = core.measure_domains(model, num_domains, weights, clients, holdout)
    alpha = tf.ones([num_domains])
    n = clients.map(lambda n_k: core.client_weight(alpha, n_k), sums.trained_counts)
    # w_k: E epochs of SGD with step 1 / L from w^t.
    trained, _ = core.local_sgd(model, options, weights, training, alpha, n)

    def delta_and_h(trained: list[tf.Tensor], sums: core.DomainSums, n: tf.Tensor) -> Any:
        # A client that measures nothing counts as one of the usual loss.
        loss = sums.mean_loss(otherwise=unit_loss)
        change = [w - w_k for w, w_k in zip(weights.trainable, trained)]
        # At a rate of 0 nothing changes, and h_k / L is F^q: the limit.
        lipschitz = options.client_rate.inverse_at(clients.round_num)
        weight = core.CLIENT_WEIGHTINGS[client_weighting](n)
        return weighted_update(change, loss, unit_loss, weight, q, lipschitz)

    delta, h = clients.map(delta_and_h, trained, sums, n)
    output: QFflOutput = core.zero_if_not_finite(
        QFflOutput(delta, h, sums, core.UNCOUNTED), h, clients
    )
    return output


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


def q_ffl(problem: core.Problem, options: QFflOptions) -> core.Algorithm:
    """Returns q-FedAvg; with an SGD server of rate 1, w^{t+1} = w^t - sum Delta_k / sum h_k."""
    model, optimizer = problem.model, options.build_server_optimizer()
    holdout = options.holdout(problem.seed)

    def initialize() -> QFflState:
        return QFflState(*core.initial_model(model, optimizer), tf.constant(1.0))

    def broadcast(state: QFflState) -> QFflBroadcast:
        return QFflBroadcast(state.weights, state.unit_loss)

    def finish(state: QFflState, summed: QFflOutput) -> QFflState:
        trained = core.average_and_apply(optimizer, state, summed.delta, summed.h)
        of_cohort = summed.sums.mean_loss(otherwise=state.unit_loss)
        unit_loss = tf.where(of_cohort > 0, of_cohort, state.unit_loss)
        next_state: QFflState = trained._replace(unit_loss=unit_loss)
        return next_state

    def bounds(limits: core.ClientLimits) -> QFflOutput:
        heaviest = limits.beta(options.largest_weight(limits) * _MAX_LOSS_RATIO**options.q)
        delta = core.Bound(heaviest * limits.max_delta, signed=True, ratio="update")
        return QFflOutput(
            delta=[delta for _ in model.initial_weights.trainable],
            h=core.Bound(
                heaviest * (1.0 + options.q * _MAX_CURVATURE), ratio="update", denominator=True
            ),
            sums=core.domain_sums_bounds(model, limits, holdout.is_active),
            clients=core.client_counts_bounds(),
        )

    training = core.CommunicationStep(
        name="training",
        broadcast=broadcast,
        client_work=core.HashablePartial(
            client_work,
            model=model,
            num_domains=problem.num_domains,
            options=part_of(options, core.LocalTrainingOptions),
            q=options.q,
            client_weighting=options.client_weighting,
            holdout=holdout,
        ),
        bounds=bounds,
    )
    unit_loss = core.ReportField("unit_loss", "unit of losses, c")
    return core.Algorithm(
        name="q_ffl",
        problem=problem,
        initialize=initialize,
        steps=(training,),
        finish=finish,
        columns=core.training_columns(
            model,
            holdout.is_active,
            finalizer=[core.Column(unit_loss, lambda r: r.before.unit_loss)],
        ),
    )


ALGORITHM = core.AlgorithmSpec(
    label="q-FFL",
    paper="Li et al. 2020, Algorithm 2 (q-FedAvg)",
    build=q_ffl,
    options=QFflOptions,
    traits=frozenset(
        {
            core.Trait.DOMAIN_BLIND,
            core.Trait.COHORT_TWICE_IS_ONCE,
            core.Trait.LEARNS_FROM_EVERY_DOMAIN,
        }
    ),
    paper_settings={
        **core.AVERAGE,
        "batch_normalizer": "batch",
        "client_weighting": "equal",
        "domain_loss_share": 0.0,
    },
)
