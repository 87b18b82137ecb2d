"""Delta-FL, Algorithm 2 of Laguel et al. 2021: models for the clients with the largest losses.

The paper is "A Superquantile Approach to Federated Learning with Heterogeneous Devices".

A model of conformity level theta minimises the superquantile of the clients' losses: their mean
over the theta of all clients, by weight, for whom the model is worst. theta = 1 is FedAvg; a theta
below every client's weight is the worst client. Several levels make a family of models, each
trained on the same cohorts as if it were alone.
"""

import dataclasses
import functools
from collections import OrderedDict
from typing import Any, Callable, NamedTuple

import tensorflow as tf

from tff_agnostic.aggregations.aggregation import Bound, ClientLimits
from tff_agnostic.algorithms.tail_thresholds import (
    Binned,
    Smoothed,
    Threshold,
    Tracked,
    exact_cut,
    paper_cut,
)
from tff_agnostic.computations.algorithm import (
    MAIN_MODEL,
    Algorithm,
    AlgorithmSpec,
    AnswerAndKept,
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
    all_finite,
    client_counts_bounds,
    client_weight,
    zeros_unless,
)
from tff_agnostic.computations.clients import ClientGroup, PerClient
from tff_agnostic.computations.domain_losses import (
    AnyDomainSums,
    DomainLossOptions,
    ExampleSplit,
    Measured,
    mean_loss,
    measured,
    measured_sums_bounds,
    trained_on,
)
from tff_agnostic.computations.local_training import LocalTrainingOptions, local_training
from tff_agnostic.computations.server import (
    ServerOptimizerOptions,
    TrainingState,
    as_tensors,
    average_and_apply,
    initial_training_state,
    training_quantities,
    training_report,
)
from tff_agnostic.errors import UserError
from tff_agnostic.models.model import Model, ModelWeights
from tff_agnostic.registry import Registry
from tff_agnostic.report_fields import Quantity, Unit
from tff_agnostic.settings import part_of, setting

# (theta, settings) -> the threshold of a level, made of a histogram.
BOUNDARIES: Registry[Callable[[float, "DeltaFlOptions"], Threshold]] = Registry(
    "boundary",
    {
        "exact": lambda theta, options: Binned(theta, exact_cut),
        "paper": lambda theta, options: Binned(theta, paper_cut),
        "smooth": lambda theta, options: Smoothed(theta, options.smoothing),
    },
)


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


class _Way(NamedTuple):
    """How clients learn whether they train.

    Attributes:
        threshold: (theta, settings) -> the threshold of a level.
        surveys: Whether losses are asked for in an exchange of their own.
    """

    threshold: Callable[[float, "DeltaFlOptions"], Threshold]
    surveys: bool = False


def _of_histogram(theta: float, options: "DeltaFlOptions") -> Threshold:
    return BOUNDARIES[options.boundary](theta, options)


def _tracked(theta: float, options: "DeltaFlOptions") -> Threshold:
    return Tracked(theta, options.threshold_rate)


THRESHOLDS: Registry[_Way] = Registry(
    "threshold",
    {
        "survey": _Way(_of_histogram, surveys=True),
        "lagged": _Way(_of_histogram),
        "tracked": _Way(_tracked),
    },
)


@dataclasses.dataclass(frozen=True)
class DeltaFlOptions(
    LocalTrainingOptions, ServerOptimizerOptions, ClientWeightingOptions, DomainLossOptions
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
        "How clients learn whether they train: from a survey of the losses, an exchange of its "
        "own; or in one exchange, from the losses of the round before (lagged), or from a "
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


class LevelOutput(NamedTuple):
    """What a client sends for a level.

    Attributes:
        delta: w_t - w_k times the client's weight, like the trainable weights.
        weight: alpha_k times the share of it that counts, float32 scalar.
        said: A statement of its loss, where there is no survey.
    """

    delta: list[tf.Tensor]
    weight: tf.Tensor
    said: Any


class TailOutput(NamedTuple):
    """What a client sends.

    Attributes:
        levels: Of each level.
        sums: Losses, counts and metric sums per domain at the first level's w_t.
        clients: What became of the client.
    """

    levels: tuple[LevelOutput, ...]
    sums: AnyDomainSums
    clients: ClientCounts


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


class LevelMessage(NamedTuple):
    """What the server broadcasts for a level: w_t and eta_t."""

    weights: ModelWeights
    threshold: Any


class TailBroadcast(NamedTuple):
    """What the server broadcasts."""

    levels: tuple[LevelMessage, ...]


class Survey(NamedTuple):
    """What a client sends before the training: a statement of its loss for each level."""

    said: tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class SurveyClient:
    """Algorithm 2, line 4: what a client does before the training.

    Attributes:
        model: The model.
        num_domains: p.
        thresholds: Of each level.
        client_weighting: Member of `CLIENT_WEIGHTINGS`.
        split: Which examples losses are measured on.
    """

    model: Model
    num_domains: int
    thresholds: tuple[Threshold, ...]
    client_weighting: str
    split: ExampleSplit = ExampleSplit()

    def __call__(
        self,
        broadcast: tuple[ModelWeights, ...],
        clients: ClientGroup,
        seed: tf.Tensor,
        per_client: PerClient,
    ) -> AnswerAndKept:
        """Returns what each client sends; it keeps what it has measured."""
        del seed
        at_levels = tuple(
            measured(self.model, self.num_domains, self.split, weights, clients, per_client).sums
            for weights in broadcast
        )
        said = tuple(
            self._statement(threshold, sums, clients, per_client)
            for threshold, sums in zip(self.thresholds, at_levels)
        )
        return AnswerAndKept(Survey(said), at_levels)

    def _statement(
        self,
        threshold: Threshold,
        sums: AnyDomainSums,
        clients: ClientGroup,
        per_client: PerClient,
    ) -> Any:
        def statement(sums: AnyDomainSums) -> tuple[Any, tf.Tensor]:
            loss = _loss(sums)
            said = threshold.statement((), loss, _whole_weight(self.client_weighting, sums))
            return said, tf.math.is_finite(loss)

        said, is_known = per_client(statement, sums)
        return zeros_unless(is_known & (clients.num_examples > 0), said)


@dataclasses.dataclass(frozen=True)
class TailClient:
    """Algorithm 2, lines 6 to 8: what a client does in the exchange in which it may train.

    Attributes:
        model: The model.
        num_domains: p.
        options: How clients train.
        thresholds: Of each level.
        client_weighting: Member of `CLIENT_WEIGHTINGS`.
        states: Whether it measures its losses itself and sends statements of them, too; otherwise
            it has kept what a `SurveyClient` measured.
        split: Which examples losses are measured on, and which are trained on.
    """

    model: Model
    num_domains: int
    options: LocalTrainingOptions
    thresholds: tuple[Threshold, ...]
    client_weighting: str
    states: bool
    split: ExampleSplit = ExampleSplit()

    def __call__(
        self, broadcast: TailBroadcast, clients: ClientGroup, seed: tf.Tensor, per_client: PerClient
    ) -> TailOutput:
        """Returns what each client sends."""
        at_levels = self._at_levels(broadcast, clients, per_client)
        outputs, are_finite = zip(
            *(
                self._level(threshold, message, *at_level, seed, per_client)
                for threshold, message, at_level in zip(
                    self.thresholds, broadcast.levels, at_levels
                )
            )
        )
        sums = zeros_unless(are_finite[0], at_levels[0].sums)
        is_empty = tf.equal(clients.num_examples, 0)
        is_finite = functools.reduce(tf.logical_and, are_finite) | is_empty
        trains = functools.reduce(tf.logical_or, [output.weight > 0 for output in outputs])

        def one_if(condition: tf.Tensor) -> tf.Tensor:
            return tf.cast(condition, tf.int64)

        counts = ClientCounts(
            contributed=one_if(is_finite & trains),
            zero_weight=one_if(is_finite & ~trains & ~is_empty),
            empty=one_if(is_empty),
            non_finite=one_if(~is_finite),
        )
        return TailOutput(outputs, sums, counts)

    def _at_levels(
        self, broadcast: TailBroadcast, clients: ClientGroup, per_client: PerClient
    ) -> list[Measured]:
        if not self.states:
            training = trained_on(self.split, clients)
            return [Measured(sums, training) for sums in clients.kept]
        return [
            measured(self.model, self.num_domains, self.split, weights, clients, per_client)
            for weights, _ in broadcast.levels
        ]

    def _level(
        self,
        threshold: Threshold,
        message: LevelMessage,
        sums: AnyDomainSums,
        clients: ClientGroup,
        seed: tf.Tensor,
        per_client: PerClient,
    ) -> tuple[LevelOutput, tf.Tensor]:
        """Returns what each client sends for a level, and whether all of it was finite."""
        weights, eta = message
        # F_k(w_t) >= eta_t
        share = threshold.share(eta, per_client(_loss, sums))
        training = _only(share > 0, clients, per_client)
        alpha = tf.ones([self.num_domains])
        n = per_client(lambda s: client_weight(alpha, s.trained), sums)
        # w_k: n_local steps of SGD from w_t.
        trained, _ = local_training(
            self.model, self.options, weights, training, alpha, n, seed, per_client
        )

        def weighted(
            trained: list[tf.Tensor], sums: AnyDomainSums, share: tf.Tensor
        ) -> tuple[LevelOutput, tf.Tensor]:
            loss, whole = _loss(sums), _whole_weight(self.client_weighting, sums)
            weight = share * tf.cast(whole, tf.float32)
            delta = [weight * (w - w_k) for w, w_k in zip(weights.trainable, trained)]
            said = threshold.statement(eta, loss, whole) if self.states else ()
            is_finite = all_finite([loss, *delta, *_floats(sums)])
            return LevelOutput(delta, weight, said), is_finite

        output, is_finite = per_client(weighted, trained, sums, share)
        return zeros_unless(is_finite & (clients.num_examples > 0), output), is_finite


def _loss(sums: AnyDomainSums) -> tf.Tensor:
    """Returns F_k; of a client that measures nothing 0, and it has no weight."""
    return mean_loss(sums, otherwise=tf.constant(0.0))


def _whole_weight(client_weighting: str, sums: AnyDomainSums) -> tf.Tensor:
    """Returns alpha_k, up to a factor of all clients, int64.

    A client that measures nothing, as one whose only example is trained on, has no place in the
    tail, and none of the weight.
    """
    whole = CLIENT_WEIGHTINGS[client_weighting](tf.reduce_sum(sums.trained))
    measures = tf.cast(tf.reduce_sum(sums.counts) > 0, tf.int64)
    return tf.cast(whole, tf.int64) * measures


def _floats(structure: Any) -> list[tf.Tensor]:
    return [value for value in tf.nest.flatten(structure) if value.dtype.is_floating]


def _only(kept: tf.Tensor, clients: ClientGroup, per_client: PerClient) -> ClientGroup:
    """Returns clients of which those that are not kept have no examples, and so take no steps."""
    num_examples = tf.where(kept, clients.num_examples, 0)
    if per_client.fixed_shapes:
        return clients._replace(num_examples=num_examples)
    capacity = tf.minimum(clients.capacity, tf.reduce_max(num_examples))
    return clients._replace(num_examples=num_examples, capacity=capacity)
