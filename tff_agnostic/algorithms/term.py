"""TERM over clients: Li, Beirami, Sanjabi, Smith 2021, "Tilted Empirical Risk Minimization".

It minimises (1/t) log(sum_k p_k exp(t F_k(w))). t = 0 is FedAvg. As t -> infinity, only the client
with the largest loss counts; as t -> -infinity, only the client with the smallest loss. The
gradient is the mean of the clients' gradients with weights p_k exp(t F_k).

Clients send p_k exp(t (F_k - c)), so that no exponential overflows. The weighted mean is the same
for any c; here c is the previous round's weighted mean of the F_k.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from tff_agnostic import computations as core
from tff_agnostic.base.later import tf

# Largest factor exp(t (F_k - c)) that secure sums allow for; they scale down clients with larger
# factors.
_MAX_TILT = 20.0
# Exponents t (F_k - c) are clipped to [_LOWEST, _HIGHEST]. A round's sums then stay finite, and a
# round in which all exponents are below the range still averages its clients.
_LOWEST, _HIGHEST = -16.0, 50.0


@dataclasses.dataclass(frozen=True)
class TermOptions(core.AveragingOptions, core.ClientWeightingOptions, core.LossOptions):
    """Options of TERM.

    Attributes:
        tilt: t of TERM: emphasis of clients with large losses; 0 is FedAvg, and negative numbers
            emphasise small losses.
    """

    tilt: float = 1.0


class TermMemory(NamedTuple):
    """The server's memory between rounds, which is broadcast to the clients.

    Attributes:
        tilt: t of TERM; 0 before any loss is known.
        center: c, the mean of the last round's F_k with that round's client weights.
        mean_loss: Mean loss of the last round's examples; assumed as F_k of clients without
            measured examples.
    """

    tilt: tf.Tensor
    center: tf.Tensor
    mean_loss: tf.Tensor


class TermSums(NamedTuple):
    """Further values that a client sends.

    Attributes:
        weighted_loss: The loss F_k times the client's weight, float32 scalar.
        capped: 1 if the exponent is clipped, int64 scalar.
    """

    weighted_loss: Any
    capped: Any


def client_work(
    broadcast: core.Broadcast,
    clients: core.Clients,
    *,
    model: core.Model,
    num_domains: int,
    training: core.ClientTraining,
    client_weighting: str,
    holdout: core.Holdout,
    while_training: bool,
) -> core.TrainingOutput:
    """Sends the delta with the weight p_k exp(t (F_k - c)); domains matter only for reports."""
    weights, (tilt, center, usual_loss) = broadcast
    alpha = tf.ones([num_domains])
    if while_training:
        # F_k over the first epoch: the loss of each batch before its step.
        counts = core.domain_counts(num_domains, clients)
        n = clients.map(lambda n_k: core.client_weight(alpha, n_k), counts)
        trained, sums = core.local_sgd(model, training, weights, clients, alpha, n, num_domains)
    else:
        # F_k(w^t), over the client's measured examples, before it trains.
        sums, trained_on = core.measure_domains(model, num_domains, weights, clients, holdout)
        n = clients.map(lambda n_k: core.client_weight(alpha, n_k), sums.trained_counts)
        trained, _ = core.local_sgd(model, training, weights, trained_on, alpha, n)

    def weighted(trained: list[tf.Tensor], sums: core.DomainSums, n: tf.Tensor) -> Any:
        loss = sums.mean_loss(otherwise=usual_loss)
        # p_k exp(t (F_k - c))
        factor, is_capped = tilted(loss, center, tilt)
        weight = core.CLIENT_WEIGHTINGS[client_weighting](n) * factor
        delta = [weight * (w - w_k) for w, w_k in zip(weights.trainable, trained)]
        return delta, weight, TermSums(weight * loss, tf.cast(is_capped, tf.int64))

    delta, weight, extra = clients.map(weighted, trained, sums, n)
    return core.update_output(delta, weight, sums, clients, extra)


def term(problem: core.Problem, options: TermOptions) -> core.Algorithm:
    """Returns TERM over clients; the first round with examples is a FedAvg round."""
    # `core.averaging` computes w^{t+1} = sum_k p_k exp(t F_k) w_k / sum_k p_k exp(t F_k).
    holdout = options.holdout(problem.seed)

    def remember(memory: TermMemory, summed: core.TrainingOutput) -> TermMemory:
        sums = summed.domain_sums
        mean_loss = sums.mean_loss(otherwise=memory.mean_loss)
        center = next_center(summed.beta, summed.extra.weighted_loss, mean_loss)
        is_measured = tf.reduce_sum(sums.counts) > 0
        return TermMemory(
            tilt=tf.where(is_measured, options.tilt, memory.tilt),
            center=tf.where(is_measured, center, memory.center),
            mean_loss=mean_loss,
        )

    def bounds(limits: core.ClientLimits) -> core.TrainingOutput:
        heaviest = limits.beta(options.largest_weight(limits) * _MAX_TILT)
        weighted_loss = core.Bound(heaviest * limits.loss, ratio="update")
        return core.training_bounds(problem.model, heaviest, holdout=holdout)(limits)._replace(
            extra=TermSums(weighted_loss, core.Bound(1, integer=True))
        )

    center = core.ReportField("center", "loss c from which exponents are counted")
    capped = core.ReportField("capped", "clients beyond the largest weight", unit=core.Unit.CLIENTS)
    return core.averaging(
        "term",
        problem,
        options,
        client_work,
        static={
            "client_weighting": options.client_weighting,
            "holdout": holdout,
            "while_training": options.is_measured_while_training,
        },
        memory=lambda: TermMemory(*[tf.constant(0.0)] * 3),
        remember=remember,
        bounds=bounds,
        columns=[
            core.Column(center, lambda r: r.before.memory.center),
            core.Column(capped, lambda r: r.sums[0].extra.capped),
        ],
        is_held_out=holdout.is_active,
        while_training=options.is_measured_while_training,
    )


def tilted(loss: tf.Tensor, center: tf.Tensor, tilt: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns exp(t (F_k - c)), and whether its exponent is clipped from above."""
    exponent = tilt * (loss - center)
    return tf.exp(tf.clip_by_value(exponent, _LOWEST, _HIGHEST)), exponent > _HIGHEST


def next_center(weight: tf.Tensor, weighted_loss: tf.Tensor, mean_loss: tf.Tensor) -> tf.Tensor:
    """Returns the next round's c: the mean of the F_k with this round's client weights.

    Let S be the sum of the next round's weights p_k exp(t (F_k - c)). If the losses do not change,
    -log(S / sum_k p_k) = KL(q || p), where q_k is proportional to p_k exp(t F_k). Then min_k p_k <=
    S <= sum_k p_k. If a secure sum has rounded all weights to 0, c is the examples' mean loss.
    """
    return tf.where(weight > 0, tf.math.divide_no_nan(weighted_loss, weight), mean_loss)


ALGORITHM = core.AlgorithmSpec(
    label="TERM",
    paper="Li et al. 2021, over clients",
    build=term,
    options=TermOptions,
    traits=frozenset(core.Trait) - {core.Trait.ONE_DOMAIN_IS_FED_AVG, core.Trait.PARTITION_BLIND},
    paper_settings={
        **core.AVERAGE,
        "client_normalizer": "batch",
        "client_weighting": "examples",
        "measured_share": 0.0,
        "measure_losses": "before_training",
    },
)
