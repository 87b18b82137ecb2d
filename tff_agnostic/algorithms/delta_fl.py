"""Delta-FL, Algorithm 2 of Laguel et al. 2021: models for the clients with the largest losses.

The paper is "A Superquantile Approach to Federated Learning with Heterogeneous Devices".

A model of conformity level theta minimises the superquantile of the clients' losses: their mean
over the theta of all clients, by weight, for whom the model is worst. theta = 1 is FedAvg; a theta
below every client's weight is the worst client. Several levels make a family of models, each
trained on the same cohorts as if it were alone.
"""

import functools
from collections import OrderedDict
from typing import Any, NamedTuple

import tensorflow as tf

from tff_agnostic.aggregations.limits import Bound, ClientLimits
from tff_agnostic.algorithms.spec import AlgorithmSpec, Problem, Trait
from tff_agnostic.computations.exchange import MAIN_MODEL, Algorithm, Exchange, Report, Sums
from tff_agnostic.computations.local_training import LocalTrainingOptions
from tff_agnostic.computations.server_update import (
    TrainingState,
    as_tensors,
    average_and_apply,
    client_counts_bounds,
    initial_training_state,
    measured_sums_bounds,
    training_quantities,
    training_report,
)
from tff_agnostic.computations.tails.options import THRESHOLDS, DeltaFlOptions
from tff_agnostic.computations.tails.tail_clients import (
    LevelMessage,
    LevelOutput,
    Survey,
    SurveyClient,
    TailBroadcast,
    TailClient,
    TailOutput,
)
from tff_agnostic.computations.tails.thresholds import Threshold
from tff_agnostic.models.functional import Model, ModelWeights
from tff_agnostic.quantities import Quantity, Unit
from tff_agnostic.settings import part_of


class Level(NamedTuple):
    """What the server remembers of a level.

    Attributes:
        weights: w_t.
        optimizer_state: State of the server optimizer.
        threshold: eta for the next round; () where each round has a survey.
    """

    weights: ModelWeights
    optimizer_state: Any
    threshold: Any


class DeltaFlState(NamedTuple):
    """What the server remembers: of each level by itself."""

    levels: tuple[Level, ...]


def delta_fl(problem: Problem, options: DeltaFlOptions) -> Algorithm:
    """Returns Delta-FL, of two exchanges with a survey and otherwise of one."""
    model, p = problem.model, problem.num_domains
    optimizer = options.build_server_optimizer()
    thresholds = options.thresholds()
    surveys = THRESHOLDS[options.threshold].surveys
    split = options.example_split(problem.seed)

    def initialize() -> DeltaFlState:
        def level(threshold: Threshold) -> Level:
            start: TrainingState = initial_training_state(model, optimizer)
            return Level(*start, () if surveys else as_tensors(threshold.initial()))

        return DeltaFlState(tuple(map(level, thresholds)))

    def etas(state: DeltaFlState, sums: Sums) -> list[Any]:
        if not surveys:
            return [level.threshold for level in state.levels]
        # eta_t = Quantile(1 - theta, (F_k(w_t), alpha_k))
        return [t.next(t.initial(), said) for t, said in zip(thresholds, sums[0].said)]

    def prepare(state: DeltaFlState, sums: Sums) -> TailBroadcast:
        pairs = zip(state.levels, etas(state, sums))
        return TailBroadcast(tuple(LevelMessage(level.weights, eta) for level, eta in pairs))

    def finish(state: DeltaFlState, sums: Sums) -> tuple[DeltaFlState, Report]:
        summed: TailOutput = sums[-1]
        said = sums[0].said if surveys else [output.said for output in summed.levels]
        levels, norms, of_levels = [], [], OrderedDict()
        for k, (threshold, level, eta) in enumerate(
            zip(thresholds, state.levels, etas(state, sums))
        ):
            output = summed.levels[k]
            # w_{t+1} = sum alpha_k w_k / sum alpha_k over the clients of the tail
            update = average_and_apply(
                optimizer, level.weights, level.optimizer_state, output.delta, output.weight
            )
            following = () if surveys else threshold.next(eta, said[k])
            levels.append(Level(update.weights, update.optimizer_state, following))
            norms.append(update.update_norm)
            total = tf.cast(threshold.total(said[k]), tf.float32)
            of_levels[_name(options.conformity[k])] = OrderedDict(
                threshold=threshold.loss(eta),
                kept_share=tf.math.divide_no_nan(output.weight, total),
            )
        report = training_report(model, summed.sums, summed.clients, norms[0], domain_weights={})
        report["levels"] = of_levels
        return DeltaFlState(tuple(levels)), report

    def models(state: DeltaFlState) -> dict[str, ModelWeights]:
        return {
            MAIN_MODEL if len(state.levels) == 1 else _name(theta): level.weights
            for theta, level in zip(options.conformity, state.levels)
        }

    def with_weights(state: DeltaFlState, weights: ModelWeights) -> DeltaFlState:
        first, *others = state.levels
        return DeltaFlState((first._replace(weights=weights), *others))

    shared = (model, p)
    training = Exchange(
        name="training",
        prepare=prepare,
        client=TailClient(
            *shared,
            part_of(options, LocalTrainingOptions),
            thresholds,
            options.client_weighting,
            states=not surveys,
            split=split,
        ),
        bounds=functools.partial(_output_bounds, model, options, thresholds, not surveys),
    )
    survey = Exchange(
        name="survey",
        prepare=lambda state, sums: tuple(level.weights for level in state.levels),
        client=SurveyClient(*shared, thresholds, options.client_weighting, split),
        bounds=lambda limits: Survey(
            tuple(t.bounds(options.largest_weight(limits), limits.max_loss) for t in thresholds)
        ),
        # A client decides whether it trains by what it has measured: one pass over its examples.
        keeps=True,
    )
    return Algorithm(
        name="delta_fl",
        initialize=initialize,
        exchanges=(survey, training) if surveys else (training,),
        finish=finish,
        models=models,
        quantities=_quantities(model, options),
        client_data_spec=model.client_data_spec(),
        seed=problem.seed,
        with_weights=with_weights,
        in_one_exchange="--threshold=lagged or --threshold=tracked" if surveys else "",
    )


def _name(theta: float) -> str:
    return f"conformity_{theta:g}"


def _output_bounds(
    model: Model,
    options: DeltaFlOptions,
    thresholds: tuple[Threshold, ...],
    states: bool,
    limits: ClientLimits,
) -> TailOutput:
    heaviest = options.largest_weight(limits)

    def level(k: int, threshold: Threshold) -> LevelOutput:
        ratio, weight = f"update {k}", limits.beta(heaviest)
        delta = Bound(weight * limits.max_delta, signed=True, ratio=ratio)
        return LevelOutput(
            delta=[delta for _ in model.initial_weights.trainable],
            weight=Bound(weight, ratio=ratio, denominator=True),
            said=threshold.bounds(heaviest, limits.max_loss) if states else (),
        )

    return TailOutput(
        levels=tuple(level(k, threshold) for k, threshold in enumerate(thresholds)),
        sums=measured_sums_bounds(model, limits, options.domain_loss_share > 0),
        clients=client_counts_bounds(),
    )


def _quantities(model: Model, options: DeltaFlOptions) -> "OrderedDict[str, Any]":
    is_apart = options.domain_loss_share > 0
    quantities = training_quantities(model, domain_weights={}, is_apart=is_apart)
    of_levels = OrderedDict()
    for theta in options.conformity:
        suffix = "" if len(options.conformity) == 1 else f"/{_name(theta)}"
        of_levels[_name(theta)] = OrderedDict(
            threshold=Quantity(f"threshold{suffix}", "loss from which on clients train"),
            kept_share=Quantity(
                f"kept_share{suffix}",
                "share of the cohort's weight that trains",
                unit=Unit.SHARE,
                is_drawn=True,
            ),
        )
    quantities["levels"] = of_levels
    return quantities


ALGORITHM = AlgorithmSpec(
    label="Delta-FL",
    paper="Laguel et al. 2021, Algorithm 2",
    build=delta_fl,
    options=DeltaFlOptions,
    traits=frozenset({Trait.DOMAIN_BLIND, Trait.COHORT_TWICE_IS_ONCE}),
)
