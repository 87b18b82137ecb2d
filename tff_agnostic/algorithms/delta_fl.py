"""Delta-FL, Algorithms 1 and 2 of Laguel et al. 2021: models for the clients with large losses.

The paper is "A Superquantile Approach to Federated Learning with Heterogeneous Devices".

A model with conformity level theta minimises the superquantile (CVaR) of the client losses. This is
the mean over the clients with the largest losses, up to a fraction theta of the total weight.
Training with theta = 1 is FedAvg. If theta is below every client's weight, only the worst client
counts. Several levels form a family of models, which train independently on the same cohorts.

A round of Algorithm 2 first surveys the clients' losses to find their quantile, and then trains the
clients above it. With a lagged or tracked threshold, the round has only the second step; see
`tail_thresholds`. Algorithm 1 surveys only every few rounds, and keeps the threshold in between.

In Algorithm 2 every client whose loss is at least the threshold counts in full. Here, by default,
clients exactly at the threshold share what remains of theta after the clients above it.
`--preset=paper` runs the algorithm as printed.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple, Union

import numpy as np

from tff_agnostic import computations as core
from tff_agnostic.algorithms.tail_thresholds import (
    Boundary,
    ExactBoundary,
    LaggedThreshold,
    RefinedThreshold,
    SmoothBoundary,
    SurveyThreshold,
    Threshold,
    TrackedThreshold,
    build_threshold,
)
from tff_agnostic.base.later import tf
from tff_agnostic.base.options import Verbatim, Within


@dataclasses.dataclass(frozen=True)
class DeltaFlOptions(core.AveragingOptions, core.ClientWeightingOptions, core.HoldoutOptions):
    """Options of Delta-FL.

    Attributes:
        theta: Levels theta of Delta-FL, comma-separated. Each level trains a model for the clients
            with the largest losses that make up this fraction of the total weight; 1 is FedAvg.
        threshold: How the threshold is found above which clients train. survey: from one survey of
            the losses, in bins 2.7% wide. refined: exactly, from three surveys. lagged: from the
            previous round's losses, without a survey. tracked: the threshold moves by factors,
            without a survey.
        boundary: How clients at the threshold count. exact: with what remains of theta. paper: in
            full, as in the paper. smooth: with a weight that increases with the loss above the
            threshold (smoothed objective).
    """

    theta: Annotated[tuple[float, ...], Within(above=0, most=1)] = (0.5,)
    threshold: Union[SurveyThreshold, RefinedThreshold, LaggedThreshold, TrackedThreshold] = (
        SurveyThreshold()
    )
    boundary: Boundary = ExactBoundary()

    def __post_init__(self) -> None:
        super().__post_init__()
        is_smooth = isinstance(self.boundary, SmoothBoundary)
        if isinstance(self.threshold, RefinedThreshold) and is_smooth:
            reason = "with a smooth boundary, which depends on all losses above the threshold"
            raise self.error("threshold", f"survey or lagged {reason}", Verbatim("refined"))
        if not self.theta:
            raise self.error("theta", "levels above 0 and at most 1")
        # Models, columns and plots use these names, so levels must not round to the same name.
        names = [f"{theta:g}" for theta in self.theta]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise self.error("theta", "different levels", Verbatim(f"{twice} twice"))

    def thresholds(self) -> tuple[Threshold, ...]:
        """Returns the threshold of each level."""
        return tuple(build_threshold(t, self.threshold, self.boundary) for t in self.theta)


class Level(NamedTuple):
    """Server state of a level.

    Attributes:
        weights: Weights w_t of the level's model.
        optimizer_state: State of the server optimizer.
        threshold: Threshold eta for the next round; () if each round has a survey.
    """

    weights: core.ModelWeights
    optimizer_state: Any
    threshold: Any


class DeltaFlState(NamedTuple):
    """State of the server.

    Attributes:
        levels: State of each level.
        rounds_since_survey: Number of rounds since the last survey, int32 scalar; 0 if the next
            round has a survey; () if all rounds or no rounds have surveys.
    """

    levels: tuple[Level, ...]
    rounds_since_survey: Any = ()


class SurveyMessage(NamedTuple):
    """Message of a survey.

    Attributes:
        weights: w_t of each level in the first survey; () in later surveys, as clients keep their
            losses.
        questions: Question of each level; see `Threshold.question`.
    """

    weights: tuple[core.ModelWeights, ...]
    questions: tuple[Any, ...]


class Survey(NamedTuple):
    """A client's answer to a survey, for each level."""

    answers: tuple[Any, ...]


class LevelMessage(NamedTuple):
    """Message for training a level: w_t and eta_t."""

    weights: core.ModelWeights
    threshold: Any


class TailBroadcast(NamedTuple):
    """Message of the training step."""

    levels: tuple[LevelMessage, ...]


class LevelOutput(NamedTuple):
    """Output of a client for a level.

    Attributes:
        delta: (w_t - w_k) times `weight`, with the structure of the trainable weights.
        weight: The client's weight alpha_k times the fraction of the client that counts at this
            threshold, float32 scalar.
        answer: The client's answer for the next threshold; () if thresholds come from surveys.
    """

    delta: list[tf.Tensor]
    weight: tf.Tensor
    answer: Any


class TailOutput(NamedTuple):
    """Output of a client.

    Attributes:
        levels: Output for each level.
        domain_sums: Losses, counts and metric sums per domain at the first level's w_t.
        clients: Whether and how the client took part.
    """

    levels: tuple[LevelOutput, ...]
    domain_sums: core.DomainSums
    clients: core.ClientCounts


def survey_work(
    broadcast: SurveyMessage,
    clients: core.Clients,
    *,
    model: core.Model,
    num_domains: int,
    thresholds: tuple[Threshold, ...],
    client_weighting: str,
    holdout: core.Holdout,
) -> core.ClientResult:
    """Runs line 4 of Algorithm 2: sends a statistic of F_k(w_t), and keeps the losses."""

    def answer(threshold: Threshold, question: Any, sums: core.DomainSums) -> Any:
        def client_answer(sums: core.DomainSums) -> tuple[Any, tf.Tensor]:
            loss, weight = _loss(sums), _whole_weight(client_weighting, sums)
            return threshold.answer(question, loss, weight), tf.math.is_finite(loss)

        answers, is_known = clients.map(client_answer, sums)
        return core.zero_unless(is_known & (clients.num_examples > 0), answers)

    measured = _measured(model, num_domains, broadcast.weights, clients, holdout)
    answers = map(answer, thresholds, broadcast.questions, measured)
    return core.ClientResult(Survey(tuple(answers)), measured)


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
    """Runs lines 6 to 8 of Algorithm 2: trains each client whose loss is in the tail.

    Args:
        broadcast: Weights w_t and threshold eta_t of each level.
        client_weighting: A name in `core.CLIENT_WEIGHTINGS`.
        is_surveyed: Whether thresholds come from surveys; otherwise clients send statistics of
            their losses here.
        holdout: Selects the examples that clients hold out of training, to measure losses on.
    """
    alpha = tf.ones([num_domains])
    training = holdout.training(clients)

    def level(
        threshold: Threshold, message: LevelMessage, sums: core.DomainSums
    ) -> tuple[LevelOutput, tf.Tensor]:
        """Returns the output of each client for a level, and whether it is finite."""
        weights, eta = message
        # Clients with F_k(w_t) >= eta_t take part.
        share = threshold.share(eta, clients.map(_loss, sums))
        n = clients.map(lambda s: core.client_weight(alpha, s.trained_counts), sums)
        # w_k: n_local steps of SGD from w_t.
        trained, _ = core.local_sgd(model, options, weights, training.only(share > 0), alpha, n)

        def weighted(
            trained: list[tf.Tensor], sums: core.DomainSums, share: tf.Tensor
        ) -> tuple[LevelOutput, tf.Tensor]:
            loss, whole = _loss(sums), _whole_weight(client_weighting, sums)
            weight = share * tf.cast(whole, tf.float32)
            # Multiplying by a weight of 0 does not exclude a client outside the tail: its w_k may
            # not be finite, and 0 * NaN is NaN.
            delta = [
                tf.where(weight > 0, weight * (w - w_k), 0.0)
                for w, w_k in zip(weights.trainable, trained)
            ]
            answer = () if is_surveyed else threshold.answer(eta, loss, whole)
            floats = [value for value in tf.nest.flatten(sums) if value.dtype.is_floating]
            return LevelOutput(delta, weight, answer), core.all_finite([loss, *delta, *floats])

        output, is_finite = clients.map(weighted, trained, sums, share)
        return core.zero_unless(is_finite & (clients.num_examples > 0), output), is_finite

    weights = tuple(message.weights for message in broadcast.levels)
    measured = _measured(model, num_domains, weights, clients, holdout)
    outputs, are_finite = zip(*map(level, thresholds, broadcast.levels, measured))
    trains = functools.reduce(tf.logical_or, [output.weight > 0 for output in outputs])
    is_finite = functools.reduce(tf.logical_and, are_finite)
    return TailOutput(
        outputs,
        core.zero_unless(are_finite[0], measured[0]),
        core.count_clients(is_finite, trains, tf.equal(clients.num_examples, 0)),
    )


def _measured(
    model: core.Model,
    num_domains: int,
    weights: tuple[core.ModelWeights, ...],
    clients: core.Clients,
    holdout: core.Holdout,
) -> tuple[core.DomainSums, ...]:
    """Returns the clients' losses at each level, measured once per round."""
    return clients.state or tuple(
        core.measure_domains(model, num_domains, w, clients, holdout)[0] for w in weights
    )


def _loss(sums: core.DomainSums) -> tf.Tensor:
    """Returns F_k; 0 for a client without measured examples, whose weight is 0."""
    return sums.mean_loss(otherwise=tf.constant(0.0))


def _whole_weight(client_weighting: str, sums: core.DomainSums) -> tf.Tensor:
    """Returns alpha_k, up to a factor common to all clients, int64.

    A client without measured examples, such as a client that trains on its only example, has the
    weight 0 and is not in the tail.
    """
    whole = core.CLIENT_WEIGHTINGS[client_weighting](tf.reduce_sum(sums.trained_counts))
    measures = tf.cast(tf.reduce_sum(sums.counts) > 0, tf.int64)
    return tf.cast(whole, tf.int64) * measures


def delta_fl(problem: core.Problem, options: DeltaFlOptions) -> core.Algorithm:
    """Returns Delta-FL, with a communication step for each survey and one for training."""
    model, optimizer = problem.model, options.server.build(problem.model)
    thresholds, surveys = options.thresholds(), options.threshold.surveys
    has_pauses = options.threshold.rounds > 1
    keeps_thresholds = has_pauses or not surveys
    holdout = options.holdout(problem.seed)

    def initialize() -> DeltaFlState:
        def level(threshold: Threshold) -> Level:
            eta = core.as_tensors(threshold.initial()) if keeps_thresholds else ()
            return Level(*core.initial_model(model, optimizer), eta)

        since_survey = tf.constant(0) if has_pauses else ()
        return DeltaFlState(tuple(map(level, thresholds)), since_survey)

    def has_survey(state: DeltaFlState) -> tf.Tensor:
        return tf.equal(state.rounds_since_survey, 0) if has_pauses else tf.constant(True)

    def answers(k: int, *sums: Any) -> list[Any]:
        """Returns level k's summed answers: to the surveys so far, or those sent with updates."""
        if surveys:
            return [survey.answers[k] for survey in sums[: len(surveys)]]
        return [sums[-1].levels[k].answer]

    def questions(state: DeltaFlState, *sums: Any) -> SurveyMessage:
        weights = () if sums else tuple(level.weights for level in state.levels)
        level_questions = (t.question(*answers(k, *sums)) for k, t in enumerate(thresholds))
        return SurveyMessage(weights, tuple(level_questions))

    def eta(k: int, state: DeltaFlState, *sums: Any) -> Any:
        """Returns eta_t, from this round's survey or from an earlier round."""
        kept = state.levels[k].threshold if keeps_thresholds else thresholds[k].initial()
        if not surveys:
            return kept
        # Line 5: eta_t = Quantile(1 - theta, (F_k(w_t), alpha_k))
        new = thresholds[k].next(kept, *answers(k, *sums))
        return tf.nest.map_structure(lambda n, o: tf.where(has_survey(state), n, o), new, kept)

    def broadcast(state: DeltaFlState, *sums: Any) -> TailBroadcast:
        def message(k: int, level: Level) -> LevelMessage:
            return LevelMessage(level.weights, eta(k, state, *sums))

        return TailBroadcast(tuple(map(message, range(len(thresholds)), state.levels)))

    def finish(state: DeltaFlState, *sums: Any) -> DeltaFlState:
        def level(k: int, before: Level, output: Any) -> Level:
            # Line 9: w_{t+1} = sum alpha_k w_k / sum alpha_k over the clients of the tail
            after: Level = core.average_and_apply(optimizer, before, output.delta, output.weight)
            if not surveys:
                lagged = thresholds[k].next(before.threshold, *answers(k, *sums))
                return after._replace(threshold=lagged)
            return after._replace(threshold=eta(k, state, *sums)) if has_pauses else after

        levels = tuple(map(level, range(len(thresholds)), state.levels, sums[-1].levels))
        if not has_pauses:
            return DeltaFlState(levels)
        return DeltaFlState(levels, (state.rounds_since_survey + 1) % options.threshold.rounds)

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
            total = tf.cast(threshold.total(*answers(k, *r.sums)), tf.float32)
            kept = tf.math.divide_no_nan(r.sums[-1].levels[k].weight, total)
            # Without a survey, the server does not learn the cohort's weight.
            return tf.where(has_survey(r.before), kept, np.nan)

        name = _name(options.theta[k])
        suffix = "" if len(thresholds) == 1 else f"/{name}"
        loss = core.ReportField(f"threshold{suffix}", "loss from which on clients train")
        share = core.ReportField(
            f"kept_share{suffix}",
            "share of the cohort's weight that trains",
            unit=core.Unit.SHARE,
            is_drawn=True,
        )
        return [
            core.Column(
                loss,
                lambda r: threshold.loss(eta(k, r.before, *r.sums)),
                ("levels", name, "threshold"),
            ),
            core.Column(share, kept_share, ("levels", name, "kept_share")),
        ]

    shared = {
        "model": model,
        "num_domains": problem.num_domains,
        "thresholds": thresholds,
        "client_weighting": options.client_weighting,
        "holdout": holdout,
    }

    def survey_bounds(limits: core.ClientLimits) -> Survey:
        heaviest = options.largest_weight(limits)
        return Survey(tuple(t.bounds(heaviest, limits.loss) for t in thresholds))

    def survey(name: str) -> core.CommunicationStep:
        return core.CommunicationStep(
            name=name,
            broadcast=questions,
            client_work=core.HashablePartial(survey_work, **shared),
            bounds=survey_bounds,
            keeps_client_state=True,
            is_due=has_survey if has_pauses else None,
        )

    def training_bounds(limits: core.ClientLimits) -> TailOutput:
        heaviest = options.largest_weight(limits)
        weight = limits.beta(heaviest)

        def level(k: int, threshold: Threshold) -> LevelOutput:
            delta = core.Bound(weight * limits.update, signed=True, ratio=f"update {k}")
            return LevelOutput(
                delta=[delta for _ in model.initial_weights.trainable],
                weight=core.Bound(weight, ratio=f"update {k}", denominator=True),
                answer=() if surveys else threshold.bounds(heaviest, limits.loss),
            )

        return TailOutput(
            levels=tuple(level(k, threshold) for k, threshold in enumerate(thresholds)),
            domain_sums=core.domain_sums_bounds(model, limits, holdout.is_active),
            clients=core.client_counts_bounds(),
        )

    training = core.CommunicationStep(
        name="training",
        broadcast=broadcast,
        client_work=core.HashablePartial(
            tail_work, options=options.client, is_surveyed=bool(surveys), **shared
        ),
        bounds=training_bounds,
    )
    columns = core.training_columns(
        model,
        holdout.is_active,
        norm=lambda r: core.update_norm(r.before.levels[0].weights, r.after.levels[0].weights),
    )
    level_fields = (column for k, t in enumerate(thresholds) for column in level_columns(k, t))
    return core.Algorithm(
        name="delta_fl",
        problem=problem,
        initialize=initialize,
        steps=(*map(survey, surveys), training),
        finish=finish,
        columns=(*columns, *level_fields),
        models=models,
        with_weights=with_weights,
        single_step_options=("threshold=lagged", "threshold=tracked") if surveys else (),
        check_report=functools.partial(_check_thresholds, options),
    )


def _check_thresholds(options: DeltaFlOptions, report: Mapping[str, Any]) -> None:
    """Raises OptionError if a threshold cannot order the losses: every client would then train."""
    train = report["client_work"]["train"]
    counts = np.asarray(train["num_examples"], np.float64)
    # A domain without examples has no loss.
    losses = np.where(counts > 0, train["loss"], 0.0)
    mean_loss = float(losses @ counts / max(counts.sum(), 1.0))
    for theta, threshold in zip(options.theta, options.thresholds()):
        loss = float(report["levels"][_name(theta)]["threshold"])
        if theta < 1 and (among := threshold.unordered(loss, mean_loss)):
            problem = (
                f"the threshold of level {theta:g} among {among}: use refined, which orders all "
                "losses, or add a constant to the loss"
            )
            raise options.error("threshold", "losses that it can order", Verbatim(problem))


def _name(theta: float) -> str:
    return f"conformity_{theta:g}"


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
