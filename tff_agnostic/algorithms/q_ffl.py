"""q-FedAvg: Li, Sanjabi, Beirami, Smith 2020, "Fair Resource Allocation in Federated Learning".

It minimises f_q(w) = sum_k p_k / (q + 1) F_k(w)^(q+1). The larger q is, the more weight clients
with large losses have. With q = 0 it is FedAvg; as q -> infinity, only the largest client loss
counts.

Clients send powers of F_k / c, so that no power overflows. This divides both Delta_k and h_k by
c^q, which leaves the update unchanged. Here c is the previous round's mean loss with weights h_k;
with a large q, it is close to the largest loss. Powers are clipped to exp(50), which mainly happens
before the first c is known; each round reports the number of clipped clients.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import numpy as np

from tff_agnostic import computations as core
from tff_agnostic.base.errors import UserError, counted
from tff_agnostic.base.later import tf
from tff_agnostic.base.options import Within

# Constant added to losses, as in the authors' code, because 0^(q - 1) is infinite for q < 1.
_TINY_LOSS = 1e-10
# Powers (F_k / c)^q are clipped to [exp(_LOWEST), exp(_HIGHEST)]. Sums over a cohort then stay
# finite, and a round in which all losses fell far below c still averages its clients.
_LOWEST, _HIGHEST = -60.0, 50.0
# Secure sums assume F_k / c <= _MAX_LOSS_RATIO and h_k / L <= (1 + q _MAX_CURVATURE) (F_k / c)^q.
# They scale down clients beyond these limits.
_MAX_LOSS_RATIO = 2.0
_MAX_CURVATURE = 100.0
# Maximum q: from 128 on, `_MAX_LOSS_RATIO`^q overflows float32. Papers use q up to 15.
_MAX_Q = 100.0


@dataclasses.dataclass(frozen=True)
class QFflOptions(core.AveragingOptions, core.ClientWeightingOptions, core.HoldoutOptions):
    """Options of q-FedAvg.

    Attributes:
        q: Emphasis of clients with large losses in q-FFL; 0 is FedAvg.
    """

    q: Annotated[float, Within(least=0.0, most=_MAX_Q)] = 1.0


class QFflSums(NamedTuple):
    """Further values that a client sends.

    Attributes:
        weighted_loss: The loss F_k times h_k / L, float32 scalar.
        capped: 1 if the client's power is clipped, int64 scalar.
        negative: 1 if the loss is below 0, so that its power is undefined, int64 scalar.
    """

    weighted_loss: Any
    capped: Any
    negative: Any


def client_work(
    broadcast: core.Broadcast,
    clients: core.Clients,
    *,
    model: core.Model,
    num_domains: int,
    training: core.ClientTraining,
    q: float,
    client_weighting: str,
    holdout: core.Holdout,
) -> core.TrainingOutput:
    """Sends Delta_k / L as the delta and h_k / L as the weight; domains matter only for reports."""
    weights, unit_loss = broadcast
    # F_k(w^t), over the client's measured examples, before it trains.
    sums, trained_on = core.measure_domains(model, num_domains, weights, clients, holdout)
    alpha = tf.ones([num_domains])
    n = clients.map(lambda n_k: core.client_weight(alpha, n_k), sums.trained_counts)
    # w_k: E epochs of SGD with step 1 / L from w^t.
    trained, _ = core.local_sgd(model, training, weights, trained_on, alpha, n)

    def weighted(trained: list[tf.Tensor], sums: core.DomainSums, n: tf.Tensor) -> Any:
        # Assume the loss c for a client without measured examples.
        loss = sums.mean_loss(otherwise=unit_loss)
        change = [w - w_k for w, w_k in zip(weights.trainable, trained)]
        # At a learning rate of 0, the weights do not change and h_k / L is its limit F^q.
        lipschitz = training.rate.inverse_at(clients.round_num)
        p_k = core.CLIENT_WEIGHTINGS[client_weighting](n)
        delta, h, is_capped = weighted_update(change, loss, unit_loss, p_k, q, lipschitz)
        is_negative = (loss < 0) & (q > 0)
        capped, negative = tf.cast(is_capped, tf.int64), tf.cast(is_negative, tf.int64)
        return delta, h, QFflSums(h * loss, capped, negative)

    delta, h, extra = clients.map(weighted, trained, sums, n)
    return core.update_output(delta, h, sums, clients, extra)


def weighted_update(
    change: list[tf.Tensor],
    loss: tf.Tensor,
    unit_loss: tf.Tensor,
    weight: tf.Tensor,
    q: float,
    lipschitz: float,
) -> tuple[list[tf.Tensor], tf.Tensor, tf.Tensor]:
    """Returns a client's p_k Delta_k / L and p_k h_k / L, and whether they are clipped.

    With Dw_k = L (w^t - w_k) and F = F_k(w^t), the paper has Delta_k = F^q Dw_k and
    h_k = q F^(q-1) ||Dw_k||^2 + L F^q. Here F / c replaces F, so that the squared norm is divided
    by c. The arguments are w^t - w_k, F, c, p_k, q and L.
    """
    ratio = (loss + _TINY_LOSS) / unit_loss
    is_capped = tf.constant(False)
    if q > 0:
        # Both limits must be normal float32 numbers; math.exp overflows beyond 709.
        limits = np.finfo(np.float32)
        ends = [math.exp(min(exponent / q, 700.0)) for exponent in (_LOWEST, _HIGHEST)]
        lowest, highest = np.clip(ends, limits.tiny, limits.max).tolist()
        is_capped = ratio > highest
        ratio = tf.clip_by_value(ratio, lowest, highest)
    powered = weight * tf.pow(ratio, q)
    delta = [powered * x for x in change]
    squared_norm = tf.add_n([tf.reduce_sum(tf.square(x)) for x in change])
    curvature = weight * q * tf.pow(ratio, q - 1.0) * lipschitz * squared_norm / unit_loss
    return delta, powered + curvature, is_capped


def q_ffl(problem: core.Problem, options: QFflOptions) -> core.Algorithm:
    """Returns q-FedAvg; with an SGD server of rate 1, w^{t+1} = w^t - sum Delta_k / sum h_k."""
    holdout, q = options.holdout(problem.seed), options.q

    def next_unit(unit_loss: tf.Tensor, summed: core.TrainingOutput) -> tf.Tensor:
        # c = sum_k h_k F_k / sum_k h_k
        mean = tf.math.divide_no_nan(summed.extra.weighted_loss, summed.beta)
        return tf.where(mean > 0, mean, unit_loss)

    def bounds(limits: core.ClientLimits) -> core.TrainingOutput:
        heaviest = limits.beta(options.largest_weight(limits) * _MAX_LOSS_RATIO**q)
        largest_h = heaviest * (1.0 + q * _MAX_CURVATURE)
        one = core.Bound(1, integer=True)
        return core.training_bounds(problem.model, heaviest, holdout=holdout)(limits)._replace(
            beta=core.Bound(largest_h, ratio="update", denominator=True),
            extra=QFflSums(core.Bound(heaviest * limits.loss, ratio="update"), one, one),
        )

    unit_loss = core.ReportField("unit_loss", "unit of losses, c")
    capped = core.ReportField("capped", "clients beyond the largest power", unit=core.Unit.CLIENTS)
    negative = core.ReportField("negative", "clients with losses below 0", unit=core.Unit.CLIENTS)
    return core.averaging(
        "q_ffl",
        problem,
        options,
        client_work,
        static={"q": q, "client_weighting": options.client_weighting, "holdout": holdout},
        memory=lambda: tf.constant(1.0),
        remember=next_unit,
        bounds=bounds,
        columns=[
            core.Column(unit_loss, lambda r: r.before.memory),
            core.Column(capped, lambda r: r.sums[0].extra.capped),
            core.Column(negative, lambda r: r.sums[0].extra.negative),
        ],
        is_held_out=holdout.is_active,
        check_report=_check_losses,
    )


def _check_losses(report: Mapping[str, Any]) -> None:
    if (num_clients := int(report["finalizer"]["negative"])) > 0:
        raise UserError(
            "q-FFL: expected losses of at least 0, whose powers weight the clients, "
            f"found {counted(num_clients, 'client')} with a mean loss below 0; add a "
            "constant to the loss, or use TERM (term), which constants do not change"
        )


ALGORITHM = core.AlgorithmSpec(
    label="q-FFL",
    paper="Li et al. 2020, Algorithm 2 (q-FedAvg)",
    build=q_ffl,
    options=QFflOptions,
    traits=frozenset(core.Trait) - {core.Trait.ONE_DOMAIN_IS_FED_AVG, core.Trait.PARTITION_BLIND},
    paper_settings={
        **core.AVERAGE,
        "client_normalizer": "batch",
        "client_weighting": "equal",
        "measured_share": 0.0,
    },
)
