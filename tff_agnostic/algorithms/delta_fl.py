"""Delta-FL, Algorithm 2 of Laguel et al. 2021: models for the clients with the largest losses.

The paper is "A Superquantile Approach to Federated Learning with Heterogeneous Devices".

A model of conformity level theta minimises the superquantile of the clients' losses: their mean
over the theta of all clients, by weight, for whom the model is worst. theta = 1 is FedAvg; a theta
below every client's weight is the worst client. Several levels make a family of models, each
trained on the same cohorts as if it were alone.

A round of the paper asks for the losses, finds their quantile, and trains the clients above it.
Where the threshold is known before, from the round before or tracked, the round has one step; see
`tail_thresholds`.

Algorithm 2 counts in full every client whose loss is at least the threshold; by default those at
the threshold count what is left of theta here. `--preset=paper` is the algorithm as printed.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Callable, NamedTuple

from tff_agnostic import computations as core
from tff_agnostic.algorithms.tail_thresholds import (
    CutThreshold,
    Smoothed,
    Threshold,
    Tracked,
    exact_cut,
    paper_cut,
)
from tff_agnostic.errors import UserError
from tff_agnostic.later import tf
from tff_agnostic.registry import Registry
from tff_agnostic.settings import part_of, setting

# (theta, settings) -> the threshold of a level, made of a histogram.
BOUNDARIES: Registry[Callable[[float, DeltaFlOptions], Threshold]] = Registry(
    "boundary",
    {
        "exact": lambda theta, options: CutThreshold(theta, exact_cut),
        "paper": lambda theta, options: CutThreshold(theta, paper_cut),
        "smooth": lambda theta, options: Smoothed(theta, options.smoothing),
    },
)


class _ThresholdChoice(NamedTuple):
    """How clients learn whether they train.

    Attributes:
        threshold: (theta, settings) -> the threshold of a level.
        surveys: Whether clients send their losses in a step before the training.
    """

    threshold: Callable[[float, DeltaFlOptions], Threshold]
    surveys: bool = False


THRESHOLDS: Registry[_ThresholdChoice] = Registry(
    "threshold",
    {
        "survey": _ThresholdChoice(
            lambda theta, options: BOUNDARIES[options.boundary](theta, options), surveys=True
        ),
        "lagged": _ThresholdChoice(
            lambda theta, options: BOUNDARIES[options.boundary](theta, options)
        ),
        "tracked": _ThresholdChoice(lambda theta, options: Tracked(theta, options.threshold_rate)),
    },
)


@dataclasses.dataclass(frozen=True)
class DeltaFlOptions(
    core.LocalTrainingOptions,
    core.ServerOptimizerOptions,
    core.ClientWeightingOptions,
    core.HoldoutOptions,
):
    """Settings of Delta-FL.

    Attributes:
        conformity: The levels theta, each in (0, 1], all different; the first one's model is what
            tables and plots of a single model show.
        threshold: Member of `THRESHOLDS`.
        boundary: Member of `BOUNDARIES`.
        smoothing: nu of the smoothed objective, in the unit of the loss.
        threshold_rate: r of a tracked threshold.
    """

    conformity: tuple[float, ...] = setting(
        (0.5,),
        "Levels theta of Delta-FL, comma-separated: the part of the clients, by weight, those with "
        "the largest losses, that a model is trained for; 1 is FedAvg. Each level has a model.",
    )
    threshold: str = setting(
        "survey",
        "How clients learn whether they train: from a survey of the losses, a step of its own; or "
        "in one step, from the losses of the round before (lagged), or from a "
        "threshold that moves by factors (tracked).",
        choices=THRESHOLDS,
    )
    boundary: str = setting(
        "exact",
        "What clients at the threshold count: what is left of theta (exact); all, as printed "
        "(paper); or, above it, more with their loss, of the smoothed objective (smooth).",
        choices=BOUNDARIES,
        only_with=("threshold", ("survey", "lagged")),
    )
    smoothing: float = setting(
        0.1,
        "How far above the threshold a loss is from which on a client counts in full.",
        positive=True,
        only_with=("boundary", ("smooth",)),
    )
    threshold_rate: float = setting(
        0.2,
        "How fast a tracked threshold moves.",
        positive=True,
        only_with=("threshold", ("tracked",)),
    )

    def __post_init__(self) -> None:
        """Checks the levels too; see `Settings`."""
        super().__post_init__()
        if not self.conformity:
            raise UserError("--conformity: expected levels in (0, 1], found none")
        for theta in self.conformity:
            if not 0 < theta <= 1:
                raise UserError(f"--conformity: expected levels in (0, 1], found {theta:g}")
        # Models, columns and plots are called so: levels that round to one name are one.
        names = [f"{theta:g}" for theta in self.conformity]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise UserError(f"--conformity: expected different levels, found {twice} twice")

    def thresholds(self) -> tuple[Threshold, ...]:
        """Returns the threshold of each level."""
        return tuple(THRESHOLDS[self.threshold].threshold(theta, self) for theta in self.conformity)


class Level(NamedTuple):
    """What the server remembers of a level.

    Attributes:
        weights: w_t.
        optimizer_state: State of the server optimizer.
        threshold: eta for the next round; () where each round has a survey.
    """

    weights: core.ModelWeights
    optimizer_state: Any
    threshold: Any


class DeltaFlState(NamedTuple):
    """What the server remembers: of each level by itself."""

    levels: tuple[Level, ...]


class Survey(NamedTuple):
    """What a client sends before the training: a statistic of its loss for each level."""

    said: tuple[Any, ...]


class LevelMessage(NamedTuple):
    """What the server broadcasts for a level: w_t and eta_t."""

    weights: core.ModelWeights
    threshold: Any


class TailBroadcast(NamedTuple):
    """What the server broadcasts."""

    levels: tuple[LevelMessage, ...]


class LevelOutput(NamedTuple):
    """What a client sends for a level.

    Attributes:
        delta: w_t - w_k times the client's weight, like the trainable weights.
        weight: alpha_k times the share of it that counts, float32 scalar.
        said: A statistic of its loss; () after a survey.
    """

    delta: list[tf.Tensor]
    weight: tf.Tensor
    said: Any


class TailOutput(NamedTuple):
    """What a client sends.

    Attributes:
        levels: For each level.
        sums: Losses, counts and metric sums per domain at the first level's w_t.
        clients: Outcome of the client.
    """

    levels: tuple[LevelOutput, ...]
    sums: core.DomainSums
    clients: core.ClientCounts

    @property
    def domain_sums(self) -> core.DomainSums:
        """Losses, counts and metric sums per domain."""
        return self.sums


def survey_work(
    broadcast: tuple[core.ModelWeights, ...],
    clients: core.Clients,
    *,
    model: core.Model,
    num_domains: int,
    thresholds: tuple[Threshold, ...],
    client_weighting: str,
    holdout: core.Holdout,
) -> core.ClientResult:
    """Algorithm 2, line 4: sends the client's losses, and remembers what it measured."""
    at_levels = tuple(
        core.measure_domains(model, num_domains, weights, clients, holdout)[0]
        for weights in broadcast
    )

    def said(threshold: Threshold, sums: core.DomainSums) -> Any:
        def statistic(sums: core.DomainSums) -> tuple[Any, tf.Tensor]:
            loss = _loss(sums)
            weight = _whole_weight(client_weighting, sums)
            return threshold.statement((), loss, weight), tf.math.is_finite(loss)

        of_client, is_known = clients.map(statistic, sums)
        return core.zero_unless(is_known & (clients.num_examples > 0), of_client)

    return core.ClientResult(Survey(tuple(map(said, thresholds, at_levels))), at_levels)


def tail_work(
    broadcast: TailBroadcast,
    clients: core.Clients,
    *,
    model: core.Model,
    num_domains: int,
    options: core.LocalTrainingOptions,
    thresholds: tuple[Threshold, ...],
    client_weighting: str,
    is_surveyed: bool,
    holdout: core.Holdout,
) -> TailOutput:
    """Algorithm 2, lines 6 to 8: trains, if the client's loss is in the tail.

    Args:
        broadcast: What the server broadcasts.
        num_domains: p.
        options: How clients train.
        thresholds: Of each level.
        client_weighting: Member of `core.CLIENT_WEIGHTINGS`.
        is_surveyed: Whether clients remember their losses from `survey_work`; otherwise they
            measure them here, and send statistics of them too.
        holdout: Which examples losses are measured on, and which are trained on.
    """
    alpha = tf.ones([num_domains])

    def level(
        threshold: Threshold, message: LevelMessage, sums: core.DomainSums, training: core.Clients
    ) -> tuple[LevelOutput, tf.Tensor]:
        """Returns what each client sends for a level, and whether all of it was finite."""
        weights, eta = message
        # F_k(w_t) >= eta_t
        share = threshold.share(eta, clients.map(_loss, sums))
        n = clients.map(lambda s: core.client_weight(alpha, s.trained_counts), sums)
        # w_k: n_local steps of SGD from w_t.
        trained, _ = core.local_sgd(model, options, weights, training.only(share > 0), alpha, n)

        def weighted(
            trained: list[tf.Tensor], sums: core.DomainSums, share: tf.Tensor
        ) -> tuple[LevelOutput, tf.Tensor]:
            loss, whole = _loss(sums), _whole_weight(client_weighting, sums)
            weight = share * tf.cast(whole, tf.float32)
            delta = [weight * (w - w_k) for w, w_k in zip(weights.trainable, trained)]
            said = () if is_surveyed else threshold.statement(eta, loss, whole)
            floats = [value for value in tf.nest.flatten(sums) if value.dtype.is_floating]
            return LevelOutput(delta, weight, said), core.all_finite([loss, *delta, *floats])

        output, is_finite = clients.map(weighted, trained, sums, share)
        return core.zero_unless(is_finite & (clients.num_examples > 0), output), is_finite

    if is_surveyed:
        training = holdout.training(clients)
        measured = [(sums, training) for sums in clients.state]
    else:
        measured = [
            core.measure_domains(model, num_domains, weights, clients, holdout)
            for weights, _ in broadcast.levels
        ]
    outputs, are_finite = zip(
        *(
            level(threshold, message, *of_level)
            for threshold, message, of_level in zip(thresholds, broadcast.levels, measured)
        )
    )
    trains = functools.reduce(tf.logical_or, [output.weight > 0 for output in outputs])
    is_finite = functools.reduce(tf.logical_and, are_finite)
    return TailOutput(
        outputs,
        core.zero_unless(are_finite[0], measured[0][0]),
        core.count_clients(is_finite, trains, tf.equal(clients.num_examples, 0)),
    )


def _loss(sums: core.DomainSums) -> tf.Tensor:
    """Returns F_k; of a client that measures nothing 0, and it has no weight."""
    return sums.mean_loss(otherwise=tf.constant(0.0))


def _whole_weight(client_weighting: str, sums: core.DomainSums) -> tf.Tensor:
    """Returns alpha_k, up to a factor of all clients, int64.

    A client that measures nothing, such as one whose only example is trained on, has no place in
    the tail, and none of the weight.
    """
    whole = core.CLIENT_WEIGHTINGS[client_weighting](tf.reduce_sum(sums.trained_counts))
    measures = tf.cast(tf.reduce_sum(sums.counts) > 0, tf.int64)
    return tf.cast(whole, tf.int64) * measures


def delta_fl(problem: core.Problem, options: DeltaFlOptions) -> core.Algorithm:
    """Returns Delta-FL, of two steps with a survey and otherwise of one."""
    model, optimizer = problem.model, options.build_server_optimizer(problem.model)
    thresholds = options.thresholds()
    surveys = THRESHOLDS[options.threshold].surveys
    holdout = options.holdout(problem.seed)

    def initialize() -> DeltaFlState:
        def level(threshold: Threshold) -> Level:
            start = core.initial_model(model, optimizer)
            return Level(*start, () if surveys else core.as_tensors(threshold.initial()))

        return DeltaFlState(tuple(map(level, thresholds)))

    def etas(state: DeltaFlState, *sums: Any) -> list[Any]:
        if not surveys:
            return [level.threshold for level in state.levels]
        # eta_t = Quantile(1 - theta, (F_k(w_t), alpha_k))
        return [t.next(t.initial(), said) for t, said in zip(thresholds, sums[0].said)]

    def broadcast(state: DeltaFlState, *sums: Any) -> TailBroadcast:
        pairs = zip(state.levels, etas(state, *sums))
        return TailBroadcast(tuple(LevelMessage(level.weights, eta) for level, eta in pairs))

    def statistics(*sums: Any) -> list[Any]:
        return sums[0].said if surveys else [output.said for output in sums[-1].levels]

    def finish(state: DeltaFlState, *sums: Any) -> DeltaFlState:
        def level(threshold: Threshold, before: Level, eta: Any, output: Any, said: Any) -> Level:
            # w_{t+1} = sum alpha_k w_k / sum alpha_k over the clients of the tail
            trained: Level = core.average_and_apply(optimizer, before, output.delta, output.weight)
            return trained._replace(threshold=() if surveys else threshold.next(eta, said))

        return DeltaFlState(
            tuple(
                map(
                    level,
                    thresholds,
                    state.levels,
                    etas(state, *sums),
                    sums[-1].levels,
                    statistics(*sums),
                )
            )
        )

    def models(state: DeltaFlState) -> core.Models:
        return {
            core.MAIN_MODEL if len(state.levels) == 1 else _name(theta): level.weights
            for theta, level in zip(options.conformity, state.levels)
        }

    def with_weights(state: DeltaFlState, weights: core.ModelWeights) -> DeltaFlState:
        first, *others = state.levels
        return DeltaFlState((first._replace(weights=weights), *others))

    def level_columns(k: int, threshold: Threshold) -> list[core.Column]:
        def kept_share(r: core.RoundView) -> tf.Tensor:
            total = tf.cast(threshold.total(statistics(*r.sums)[k]), tf.float32)
            return tf.math.divide_no_nan(r.sums[-1].levels[k].weight, total)

        name = _name(options.conformity[k])
        suffix = "" if len(thresholds) == 1 else f"/{name}"
        return [
            core.Column(
                core.ReportField(f"threshold{suffix}", "loss from which on clients train"),
                lambda r: threshold.loss(etas(r.before, *r.sums)[k]),
                ("levels", name, "threshold"),
            ),
            core.Column(
                core.ReportField(
                    f"kept_share{suffix}",
                    "share of the cohort's weight that trains",
                    unit=core.Unit.SHARE,
                    is_drawn=True,
                ),
                kept_share,
                ("levels", name, "kept_share"),
            ),
        ]

    shared = {
        "model": model,
        "num_domains": problem.num_domains,
        "thresholds": thresholds,
        "client_weighting": options.client_weighting,
        "holdout": holdout,
    }
    survey = core.CommunicationStep(
        name="survey",
        broadcast=lambda state: tuple(level.weights for level in state.levels),
        client_work=core.HashablePartial(survey_work, **shared),
        bounds=lambda limits: Survey(
            tuple(t.bounds(options.largest_weight(limits), limits.max_loss) for t in thresholds)
        ),
        # A client decides whether it trains by what it has measured: one pass over its examples.
        keeps_client_state=True,
    )
    training = core.CommunicationStep(
        name="training",
        broadcast=broadcast,
        client_work=core.HashablePartial(
            tail_work,
            options=part_of(options, core.LocalTrainingOptions),
            is_surveyed=surveys,
            **shared,
        ),
        bounds=functools.partial(_output_bounds, model, options, thresholds, surveys),
    )
    columns = core.training_columns(
        model,
        holdout.is_active,
        norm=lambda r: core.update_norm(r.before.levels[0].weights, r.after.levels[0].weights),
    )
    of_levels = [c for k, threshold in enumerate(thresholds) for c in level_columns(k, threshold)]
    return core.Algorithm(
        name="delta_fl",
        problem=problem,
        initialize=initialize,
        steps=(survey, training) if surveys else (training,),
        finish=finish,
        columns=(*columns, *of_levels),
        models=models,
        with_weights=with_weights,
        single_step_flags="--threshold=lagged or --threshold=tracked" if surveys else "",
    )


def _name(theta: float) -> str:
    return f"conformity_{theta:g}"


def _output_bounds(
    model: core.Model,
    options: DeltaFlOptions,
    thresholds: tuple[Threshold, ...],
    surveys: bool,
    limits: core.ClientLimits,
) -> TailOutput:
    heaviest = options.largest_weight(limits)

    def level(k: int, threshold: Threshold) -> LevelOutput:
        ratio, weight = f"update {k}", limits.beta(heaviest)
        delta = core.Bound(weight * limits.max_delta, signed=True, ratio=ratio)
        return LevelOutput(
            delta=[delta for _ in model.initial_weights.trainable],
            weight=core.Bound(weight, ratio=ratio, denominator=True),
            said=() if surveys else threshold.bounds(heaviest, limits.max_loss),
        )

    return TailOutput(
        levels=tuple(level(k, threshold) for k, threshold in enumerate(thresholds)),
        sums=core.domain_sums_bounds(model, limits, options.domain_loss_share > 0),
        clients=core.client_counts_bounds(),
    )


ALGORITHM = core.AlgorithmSpec(
    label="Delta-FL",
    paper="Laguel et al. 2021, Algorithm 2",
    build=delta_fl,
    options=DeltaFlOptions,
    traits=frozenset({core.Trait.DOMAIN_BLIND, core.Trait.COHORT_TWICE_IS_ONCE}),
    paper_settings={
        **core.AVERAGE,  # line 9
        "threshold": "survey",  # line 4
        "boundary": "paper",  # line 6: F_k >= eta_t counts in full
        "client_weighting": "examples",  # alpha_k
        "batch_normalizer": "batch",  # line 12
        "domain_loss_share": 0.0,
    },
)
