"""Delta-FL, Algorithms 1 and 2 of Laguel et al. 2021: models for the clients with large losses.

The paper is "A Superquantile Approach to Federated Learning with Heterogeneous Devices".

A model of conformity level theta minimises the superquantile of the clients' losses: their mean
over the theta of all clients, by weight, for whom the model is worst. theta = 1 is FedAvg; a theta
below every client's weight is the worst client. Several levels make a family of models, each
trained on the same cohorts as if it were alone.

A round of the paper asks for the losses, finds their quantile, and trains the clients above it.
Where the threshold is known before, from the round before or tracked, the round has one step; see
`tail_thresholds`. Algorithm 1 keeps a threshold for several rounds, which then have no survey.

Algorithm 2 counts in full every client whose loss is at least the threshold; by default those at
the threshold count what is left of theta here. `--preset=paper` is the algorithm as printed.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, NamedTuple, Union

import numpy as np

from tff_agnostic import computations as core
from tff_agnostic.algorithms.tail_thresholds import (
    CutThreshold,
    Refined,
    Smoothed,
    Threshold,
    Tracked,
    exact_share,
    paper_share,
)
from tff_agnostic.base.options import Options, Verbatim, Within
from tff_agnostic.later import tf


@dataclasses.dataclass(frozen=True)
class ExactBoundary(Options):
    """Clients at the threshold count as much as is left of theta."""


@dataclasses.dataclass(frozen=True)
class PaperBoundary(Options):
    """Clients at the threshold count in full, as printed."""


@dataclasses.dataclass(frozen=True)
class SmoothBoundary(Options):
    """Clients above the threshold count the more the larger their loss: the smoothed objective.

    Attributes:
        width: Distance from the threshold to the loss from which a client counts in full.
    """

    width: Annotated[float, Within(above=0)] = 0.1


Boundary = Union[ExactBoundary, PaperBoundary, SmoothBoundary]


@dataclasses.dataclass(frozen=True)
class SurveyThreshold(Options):
    """The quantile of the losses of a survey, in bins 2.7% wide.

    Attributes:
        rounds: Number of rounds that train with the threshold of a survey (Algorithm 1 of the
            paper).
    """

    rounds: Annotated[int, Within(least=1)] = 1
    steps: ClassVar[tuple[str, ...]] = ("survey",)


@dataclasses.dataclass(frozen=True)
class RefinedThreshold(SurveyThreshold):
    """The exact quantile, from three surveys.

    Attributes:
        rounds: Number of rounds that train with the threshold of a survey (Algorithm 1 of the
            paper).
    """

    steps: ClassVar[tuple[str, ...]] = ("survey", "second_survey", "third_survey")


@dataclasses.dataclass(frozen=True)
class LaggedThreshold(Options):
    """The quantile of the losses of the round before, without a survey."""


@dataclasses.dataclass(frozen=True)
class TrackedThreshold(Options):
    """A threshold that moves by factors, without a survey.

    Attributes:
        rate: Step size of the logarithm of the threshold.
    """

    rate: Annotated[float, Within(above=0)] = 0.2


@dataclasses.dataclass(frozen=True)
class DeltaFlOptions(
    core.AveragingOptions,
    core.ClientWeightingOptions,
    core.HoldoutOptions,
):
    """Options of Delta-FL.

    Attributes:
        theta: Levels theta of Delta-FL, comma-separated: the part of the clients, by weight, those
            with the largest losses, that a model is trained for; 1 is FedAvg. Each level has a
            model.
        threshold: How clients learn whether they train: from a survey of the losses, in bins 2.7%
            wide (survey); from three surveys, which find the quantile exactly (refined); or in one
            step, from the losses of the round before (lagged), or from a threshold that moves by
            factors (tracked).
        boundary: Part that clients at the threshold count: what is left of theta (exact); all, as
            printed (paper); or, above it, more with their loss, of the smoothed objective (smooth).
    """

    theta: Annotated[tuple[float, ...], Within(above=0, most=1)] = (0.5,)
    threshold: Union[SurveyThreshold, RefinedThreshold, LaggedThreshold, TrackedThreshold] = (
        SurveyThreshold()
    )
    boundary: Boundary = ExactBoundary()

    def __post_init__(self) -> None:
        """Checks which options fit each other; see `Options`."""
        super().__post_init__()
        if isinstance(self.threshold, RefinedThreshold) and self.is_smooth:
            raise self.error(
                "threshold",
                "survey or lagged with a smooth boundary, which depends on all losses above the "
                "threshold",
                Verbatim("refined"),
            )
        if not self.theta:
            raise self.error("theta", "levels above 0 and at most 1")
        # Models, columns and plots have these names, so levels must not round to the same one.
        names = [f"{theta:g}" for theta in self.theta]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise self.error("theta", "different levels", Verbatim(f"{twice} twice"))

    @property
    def is_smooth(self) -> bool:
        """Whether the objective is the smoothed one."""
        return isinstance(self.boundary, SmoothBoundary)

    @property
    def surveys(self) -> tuple[str, ...]:
        """Names of the steps before the training in which clients send their losses."""
        return self.threshold.steps if isinstance(self.threshold, SurveyThreshold) else ()

    @property
    def rounds_per_survey(self) -> int:
        """Number of rounds that train with the threshold of a survey."""
        return self.threshold.rounds if isinstance(self.threshold, SurveyThreshold) else 1

    def thresholds(self) -> tuple[Threshold, ...]:
        """Returns the threshold of each level."""
        return tuple(map(self._threshold, self.theta))

    def _threshold(self, theta: float) -> Threshold:
        if isinstance(self.threshold, TrackedThreshold):
            return Tracked(theta, self.threshold.rate)
        if isinstance(self.boundary, SmoothBoundary):
            return Smoothed(theta, self.boundary.width)
        share_at = paper_share if isinstance(self.boundary, PaperBoundary) else exact_share
        if isinstance(self.threshold, RefinedThreshold):
            return Refined(theta, share_at)
        return CutThreshold(theta, share_at)


class Level(NamedTuple):
    """State of a level at the server.

    Attributes:
        weights: w_t.
        optimizer_state: State of the server optimizer.
        threshold: eta for the next round; () if each round has a survey.
    """

    weights: core.ModelWeights
    optimizer_state: Any
    threshold: Any


class DeltaFlState(NamedTuple):
    """State of the server.

    Attributes:
        levels: State of each level.
        rounds_since_survey: Number of rounds since the last survey, int32 scalar; 0 if the next
            round has one; () if all rounds or no rounds have surveys.
    """

    levels: tuple[Level, ...]
    rounds_since_survey: Any = ()


class Survey(NamedTuple):
    """Output of a client before the training: a statistic of its loss for each level."""

    said: tuple[Any, ...]


class FirstQuestion(NamedTuple):
    """Message of the first survey.

    Attributes:
        weights: w_t of each level.
        questions: Question of each level; see `Threshold.question`.
    """

    weights: tuple[core.ModelWeights, ...]
    questions: tuple[Any, ...]


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
    broadcast: FirstQuestion,
    clients: core.Clients,
    *,
    model: core.Model,
    num_domains: int,
    thresholds: tuple[Threshold, ...],
    client_weighting: str,
    holdout: core.Holdout,
) -> core.ClientResult:
    """Algorithm 2, line 4: sends the client's losses, and remembers its measurements."""
    at_levels = tuple(
        core.measure_domains(model, num_domains, weights, clients, holdout)[0]
        for weights in broadcast.weights
    )
    survey = _statements(broadcast.questions, at_levels, clients, thresholds, client_weighting)
    return core.ClientResult(survey, at_levels)


def later_survey_work(
    broadcast: tuple[Any, ...],
    clients: core.Clients,
    *,
    thresholds: tuple[Threshold, ...],
    client_weighting: str,
) -> Survey:
    """Answers the question of a later survey, from the measurements that a client remembers."""
    return _statements(broadcast, clients.state, clients, thresholds, client_weighting)


def _statements(
    questions: tuple[Any, ...],
    at_levels: tuple[core.DomainSums, ...],
    clients: core.Clients,
    thresholds: tuple[Threshold, ...],
    client_weighting: str,
) -> Survey:
    def said(threshold: Threshold, question: Any, sums: core.DomainSums) -> Any:
        def statistic(sums: core.DomainSums) -> tuple[Any, tf.Tensor]:
            loss = _loss(sums)
            weight = _whole_weight(client_weighting, sums)
            return threshold.statement(question, loss, weight), tf.math.is_finite(loss)

        of_client, is_known = clients.map(statistic, sums)
        return core.zero_unless(is_known & (clients.num_examples > 0), of_client)

    return Survey(tuple(map(said, thresholds, questions, at_levels)))


def tail_work(
    broadcast: TailBroadcast,
    clients: core.Clients,
    *,
    model: core.Model,
    num_domains: int,
    options: core.ClientTraining,
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
        thresholds: Threshold of each level.
        client_weighting: Member of `core.CLIENT_WEIGHTINGS`.
        is_surveyed: Whether thresholds are from surveys; otherwise clients send statistics of
            their losses here.
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
            # A client outside of the tail may have weights that are not finite: 0 * NaN is NaN.
            delta = [
                tf.where(weight > 0, weight * (w - w_k), 0.0)
                for w, w_k in zip(weights.trainable, trained)
            ]
            said = () if is_surveyed else threshold.statement(eta, loss, whole)
            floats = [value for value in tf.nest.flatten(sums) if value.dtype.is_floating]
            return LevelOutput(delta, weight, said), core.all_finite([loss, *delta, *floats])

        output, is_finite = clients.map(weighted, trained, sums, share)
        return core.zero_unless(is_finite & (clients.num_examples > 0), output), is_finite

    # In a round without the surveys that an algorithm has, clients remember nothing.
    if clients.state:
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
    """Returns alpha_k, up to a factor common to all clients, int64.

    A client that measures nothing, such as one whose only example is trained on, has no place in
    the tail, and no weight.
    """
    whole = core.CLIENT_WEIGHTINGS[client_weighting](tf.reduce_sum(sums.trained_counts))
    measures = tf.cast(tf.reduce_sum(sums.counts) > 0, tf.int64)
    return tf.cast(whole, tf.int64) * measures


def delta_fl(problem: core.Problem, options: DeltaFlOptions) -> core.Algorithm:
    """Returns Delta-FL, with a step for each survey and one for the training."""
    model, optimizer = problem.model, options.server.build(problem.model)
    thresholds = options.thresholds()
    surveys = options.surveys
    keeps_thresholds = not surveys or options.rounds_per_survey > 1
    holdout = options.holdout(problem.seed)

    def initialize() -> DeltaFlState:
        def level(threshold: Threshold) -> Level:
            start = core.initial_model(model, optimizer)
            eta = core.as_tensors(threshold.initial()) if keeps_thresholds else ()
            return Level(*start, eta)

        since_survey = tf.constant(0) if options.rounds_per_survey > 1 else ()
        return DeltaFlState(tuple(map(level, thresholds)), since_survey)

    def has_survey(state: DeltaFlState) -> tf.Tensor:
        return tf.equal(state.rounds_since_survey, 0)

    def statements(*sums: Any) -> list[tuple[Any, ...]]:
        """Returns the statements for each level, of all surveys so far, or of the training."""
        if surveys:
            return list(zip(*(sent.said for sent in sums[: len(surveys)])))
        return [(output.said,) for output in sums[-1].levels]

    def etas(state: DeltaFlState, *sums: Any) -> list[Any]:
        if not surveys:
            return [level.threshold for level in state.levels]
        # eta_t = Quantile(1 - theta, (F_k(w_t), alpha_k))
        said = statements(*sums)
        if not keeps_thresholds:
            return [t.next(t.initial(), *of_level) for t, of_level in zip(thresholds, said)]

        def kept(threshold: Threshold, eta: Any, said: Any) -> Any:
            new = threshold.next(eta, *said)
            return tf.nest.map_structure(lambda n, o: tf.where(has_survey(state), n, o), new, eta)

        return list(map(kept, thresholds, (level.threshold for level in state.levels), said))

    def questions(state: DeltaFlState, *sums: Any) -> Any:
        if sums:
            return tuple(t.question(*said) for t, said in zip(thresholds, statements(*sums)))
        weights = tuple(level.weights for level in state.levels)
        return FirstQuestion(weights, tuple(t.question() for t in thresholds))

    def broadcast(state: DeltaFlState, *sums: Any) -> TailBroadcast:
        pairs = zip(state.levels, etas(state, *sums))
        return TailBroadcast(tuple(LevelMessage(level.weights, eta) for level, eta in pairs))

    def finish(state: DeltaFlState, *sums: Any) -> DeltaFlState:
        said = [()] * len(thresholds) if surveys else statements(*sums)

        def level(threshold: Threshold, before: Level, eta: Any, output: Any, said: Any) -> Level:
            # w_{t+1} = sum alpha_k w_k / sum alpha_k over the clients of the tail
            trained: Level = core.average_and_apply(optimizer, before, output.delta, output.weight)
            if not keeps_thresholds:
                return trained
            return trained._replace(threshold=threshold.next(eta, *said) if said else eta)

        outputs = sums[-1].levels
        levels = map(level, thresholds, state.levels, etas(state, *sums), outputs, said)
        if options.rounds_per_survey == 1:
            return DeltaFlState(tuple(levels))
        since_survey = (state.rounds_since_survey + 1) % options.rounds_per_survey
        return DeltaFlState(tuple(levels), since_survey)

    def models(state: DeltaFlState) -> core.Models:
        return {
            core.MAIN_MODEL if len(state.levels) == 1 else _name(theta): level.weights
            for theta, level in zip(options.theta, state.levels)
        }

    def with_weights(state: DeltaFlState, weights: core.ModelWeights) -> DeltaFlState:
        first, *others = state.levels
        return state._replace(levels=(first._replace(weights=weights), *others))

    def level_columns(k: int, threshold: Threshold) -> list[core.Column]:
        def kept_share(r: core.RoundView) -> tf.Tensor:
            total = tf.cast(threshold.total(*statements(*r.sums)[k]), tf.float32)
            kept = tf.math.divide_no_nan(r.sums[-1].levels[k].weight, total)
            if options.rounds_per_survey == 1:
                return kept
            # Without a survey the server does not learn the cohort's weight.
            return tf.where(has_survey(r.before), kept, np.nan)

        name = _name(options.theta[k])
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
    is_due = has_survey if options.rounds_per_survey > 1 else None

    def survey_bounds(limits: core.ClientLimits) -> Survey:
        heaviest = options.largest_weight(limits)
        return Survey(tuple(t.bounds(heaviest, limits.loss) for t in thresholds))

    def survey(name: str) -> core.CommunicationStep:
        is_first = name == surveys[0]
        later = {key: shared[key] for key in ("thresholds", "client_weighting")}
        return core.CommunicationStep(
            name=name,
            broadcast=questions,
            client_work=core.HashablePartial(survey_work, **shared)
            if is_first
            else core.HashablePartial(later_survey_work, **later),
            bounds=survey_bounds,
            # A client decides by its first measurements whether it trains: it measures once.
            keeps_client_state=is_first,
            is_due=is_due,
        )

    training = core.CommunicationStep(
        name="training",
        broadcast=broadcast,
        client_work=core.HashablePartial(
            tail_work,
            options=options.client,
            is_surveyed=bool(surveys),
            **shared,
        ),
        bounds=functools.partial(_output_bounds, model, options, thresholds, bool(surveys)),
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
        steps=(*map(survey, surveys), training),
        finish=finish,
        columns=(*columns, *of_levels),
        models=models,
        with_weights=with_weights,
        single_step_options=("threshold=lagged", "threshold=tracked") if surveys else (),
        check_report=functools.partial(_check_thresholds, options),
    )


def _check_thresholds(options: DeltaFlOptions, report: Mapping[str, Any]) -> None:
    """Refuses a round whose threshold cannot order the losses: it would train every client."""
    train = report["client_work"]["train"]
    counts = np.asarray(train["num_examples"], np.float64)
    present = counts > 0
    mean_loss = (
        float(np.asarray(train["loss"])[present] @ counts[present]) if present.any() else 0.0
    )
    for theta, threshold in zip(options.theta, options.thresholds()):
        loss = float(report["levels"][_name(theta)]["threshold"])
        if theta < 1 and threshold.is_unordered(loss, mean_loss):
            found = (
                f"the threshold of level {theta:g} among {threshold.unordered}: use refined, which "
                "orders all losses, or add a constant to the loss"
            )
            raise options.error("threshold", "losses that it can order", Verbatim(found))


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
        delta = core.Bound(weight * limits.update, signed=True, ratio=ratio)
        return LevelOutput(
            delta=[delta for _ in model.initial_weights.trainable],
            weight=core.Bound(weight, ratio=ratio, denominator=True),
            said=() if surveys else threshold.bounds(heaviest, limits.loss),
        )

    return TailOutput(
        levels=tuple(level(k, threshold) for k, threshold in enumerate(thresholds)),
        sums=core.domain_sums_bounds(model, limits, options.measured_share > 0),
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
        "threshold": "refined",  # line 4: the quantile of the losses themselves
        "boundary": "paper",  # line 6: F_k >= eta_t counts in full
        "client_weighting": "examples",  # alpha_k
        "client_normalizer": "batch",  # line 12
        "measured_share": 0.0,
    },
)
