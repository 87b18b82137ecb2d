"""Private evaluations: their noise and account.

All outputs of one evaluation form one release. Its groups of values are the sums by domain, the
distributions of measures over clients, and with `statistics` the tables of predictions by class.
Clients send no statistics by client size and no bootstrap replicates: hiding a client in 200
replicates takes about 20 times the noise that hides it in the sums.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Optional

import numpy as np

from tff_agnostic.aggregations.aggregation import Aggregation, Bound, ClientLimits
from tff_agnostic.aggregations.noise_generators import SECURE, beyond_tail
from tff_agnostic.aggregations.private_sum import (
    BudgetEvaluation,
    CentralDpSum,
    PrivateState,
    ServerNoiseOptions,
)
from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import content_digest
from tff_agnostic.base.later import tf
from tff_agnostic.base.options import OptionError, Verbatim
from tff_agnostic.computations.class_sums import ClassCounting, class_counting
from tff_agnostic.computations.evaluation import (
    ClientDistribution,
    EvaluationOutput,
    Measurement,
    evaluation_bounds,
    model_measurement,
)
from tff_agnostic.models.model import Model
from tff_agnostic.privacy.accountant import (
    PrivacyAccountant,
    PrivacyStatement,
    check_delta,
    check_tail,
    default_delta,
    noise_for_epsilon,
    statement,
)
from tff_agnostic.privacy.mechanisms import CentralNoise, Mechanism
from tff_agnostic.privacy.sampling import EveryClient
from tff_agnostic.tasks.task import Task

_PUBLIC = "the number of test clients is assumed to be public"
# Prefix of a hash, which distinguishes evaluation noise from training noise.
_EVALUATIONS = b"evaluations"
_ASSUMES_OTHER_NAMES = (
    "test clients are taken for others than training clients: no name is among both"
)
_CLIENT_DISTRIBUTIONS = "over_clients"


@dataclasses.dataclass(frozen=True)
class Release:
    """The evaluation of all models of a run after one round.

    Attributes:
        round_num: Number of the round.
        evaluated: Digest of the evaluated clients, bounds and noise; see
            `PrivateEvaluation.digest`.
        place: Digest of the inputs from which the noise key is derived, except the run's secret.
        sums: Digest of the noisy sums.
        num_models: Number of models; each model is a separate release.
    """

    round_num: int
    evaluated: str
    place: str
    sums: str
    num_models: int


class PrivateEvaluation:
    """Noise and privacy account of evaluations.

    Each evaluation of a model is one release about all test clients, or about a sample that does
    not depend on their data.

    Args:
        options: Privacy options with a `private_evaluation`.
        task: The task whose test clients are evaluated.
        inner: The aggregation of clipped outputs.
        planned: Number of model evaluations that share an epsilon budget.
        training: Mechanism of training, if test clients may also be training clients; evaluations
            then use its neighbouring relation.

    Attributes:
        aggregation: The aggregation, with noise.
        measurement: The evaluation, with bounds on client outputs.
        bounds: Bounds of a client's output.
        mechanism: Mechanism of one model evaluation.
        num_shared: Number of clients that are both training and test clients, by id.
        delta: The delta of the guarantee for test clients.
    """

    def __init__(
        self,
        options: ServerNoiseOptions,
        task: Task,
        inner: Aggregation,
        planned: int,
        training: Optional[Mechanism] = None,
    ) -> None:
        check_metric_bounds(task.model)
        noise = options.private_evaluation
        assert noise is not None
        num_clients = len(task.test.client_ids)
        self.delta = default_delta(num_clients) if options.delta is None else options.delta
        check_delta(self.delta, num_clients)
        self.num_shared = len({*task.test.client_ids} & {*task.train.client_ids})
        sampling = (
            EveryClient()
            if training is None
            else EveryClient(training.adjacency, training.sensitivity)
        )
        if isinstance(noise, BudgetEvaluation):
            multiplier = noise_for_epsilon(
                lambda z: [CentralNoise(float(z), sampling)], [planned], noise.epsilon, self.delta
            )
        else:
            multiplier = noise.multiplier
        self.mechanism = CentralNoise(float(multiplier), sampling)
        check_tail(self.tail(planned), self.delta)
        counting = _counting(task) if noise.statistics else None
        self.measurement = private_measurement(
            task.model, task.num_domains, noise.clients_share > 0, counting
        )
        self.aggregation = _aggregation(
            options, inner, self.measurement, self.mechanism, noise.clients_share
        )
        self.bounds = self.measurement.step.bounds(self.aggregation.limits)
        self._split_name = task.test_split
        self._account = PrivacyAccountant([self.mechanism], self.delta)
        self._noise_seed = options.noise_seed

    @property
    def counts_answers(self) -> bool:
        """Whether evaluations count predictions by class."""
        return self.bounds.classes != ()

    def digest(self, client_ids: Sequence[str]) -> str:
        """Returns a digest of the evaluated clients, the bounds and the noise level.

        Evaluations that differ in any of these need independent noise. If two samples had the same
        noise, the difference between their sums would be exact. If one noise were scaled to two
        levels, the two results would reveal it.

        Args:
            client_ids: Ids of the clients, in order.
        """
        groups = self.aggregation.groups(self.bounds)
        factors = self.aggregation.noise_factors(self.bounds)
        scales = [(group.name, group.limit, factor) for group, factor in zip(groups, factors)]
        z = self.mechanism.noise_multiplier
        return content_digest([self._split_name, list(client_ids), z, scales])

    def state(self, key: tuple[int, ...], release: int) -> PrivateState:
        """Returns the aggregation's state for an evaluation.

        Args:
            key: See `evaluation_key`.
            release: Index of the evaluated model.
        """
        return PrivateState(
            np.array(key, np.int64),
            np.int64(release),
            np.float64(self.mechanism.noise_multiplier),
            np.zeros([0], np.float32),
        )

    def consistent(self, output: EvaluationOutput) -> EvaluationOutput:
        """Returns consistent noisy sums as NumPy arrays; see the function `consistent`."""
        return tf.nest.map_structure(np.asarray, consistent(output, self.bounds))

    def epsilon(self, releases: int) -> float:
        """Returns the epsilon of test clients after a number of model evaluations."""
        return self._account.epsilon(releases)

    def statement(self, releases: int) -> PrivacyStatement:
        """Returns the guarantee for test clients after a number of model evaluations."""
        groups = self.aggregation.groups(self.bounds)
        factors = self.aggregation.noise_factors(self.bounds)
        z = self.mechanism.noise_multiplier
        split = {group.name: factor * z for group, factor in zip(groups, factors)}
        remarks = [_PUBLIC, *([] if self.num_shared else [_ASSUMES_OTHER_NAMES])]
        remarks += self.aggregation.remarks
        if self._noise_seed is not None:
            remarks.append(
                f"noise is that of noise_seed={self._noise_seed}: anyone who knows it can "
                "remove the noise, so nothing is private"
            )
        return statement(
            self._account,
            [releases],
            split,
            remarks,
            evaluations_are_private=True,
            count_noun="evaluations",
            noise_generator=SECURE.title,
            noise_tail=self.tail(releases),
        )

    def tail(self, releases: int) -> float:
        """Bounds the probability that the noise of evaluations differs from the accounted noise.

        Args:
            releases: Number of model evaluations.
        """
        return beyond_tail(releases) if self.mechanism.noise_multiplier else 0.0


def check_metric_bounds(model: Model) -> None:
    """Checks that every metric has bounds on an example's contribution to its sums."""
    for metric in model.metrics:
        for name in ("max_numerator", "max_denominator"):
            if not math.isfinite(getattr(metric, name)):
                raise UserError(
                    f"metric {metric.name}: expected a finite {name}, the maximum that an example "
                    f"adds to a sum, as noise cannot hide unbounded values, found "
                    f"{getattr(metric, name)}"
                )


def evaluation_key(noise_key: Any, place: str) -> tuple[int, ...]:
    """Derives the secret of an evaluation, which does not reveal the run's secret.

    Args:
        noise_key: The run's secret, int64.
        place: String that identifies the evaluation within the run.
    """
    secret = np.asarray(noise_key, np.int64).tobytes()
    digest = hashlib.sha256(_EVALUATIONS + secret + place.encode()).digest()
    return SECURE.key(digest)


def _aggregation(
    options: ServerNoiseOptions,
    inner: Aggregation,
    measurement: Any,
    mechanism: Mechanism,
    clients_share: float,
) -> CentralDpSum:
    release = CentralDpSum(
        inner,
        options,
        "central",
        expected_clients=1.0,
        # The state of each evaluation overrides this key and multiplier.
        noise_key=SECURE.key(bytes(SECURE.key_bytes)),
        noise_multiplier=mechanism.noise_multiplier,
    )
    bounds = measurement.step.bounds(release.limits)
    groups = [group.name for group in release.groups(bounds)]
    shares = evaluation_shares(groups, clients_share)
    return dataclasses.replace(release, shares=shares)


def private_measurement(
    model: Model,
    num_domains: int,
    with_client_distributions: bool,
    counting: Optional[ClassCounting] = None,
) -> Measurement:
    """Returns the evaluation of one model's weights, with the bounds that private sums need.

    Args:
        with_client_distributions: Whether to measure distributions over clients.
        counting: How predictions are counted by class; None to not count them.
    """
    usual = model_measurement(model, num_domains, counting=counting)

    def bounds(limits: ClientLimits) -> EvaluationOutput:
        return private_evaluation_bounds(
            model, num_domains, limits, with_client_distributions, counting
        )

    return dataclasses.replace(usual, step=dataclasses.replace(usual.step, bounds=bounds))


def _counting(task: Task) -> ClassCounting:
    counting = class_counting(task.model, task.num_domains)
    if counting is None:
        raise OptionError(
            "private_evaluation",
            "statistics only with a classifier of few enough classes to count",
            Verbatim("statistics with another model"),
        )
    return counting


def private_evaluation_bounds(
    model: Model,
    num_domains: int,
    limits: ClientLimits,
    with_client_distributions: bool,
    counting: Optional[ClassCounting] = None,
) -> EvaluationOutput:
    """Returns the bounds of one client's output; see `private_measurement`.

    Values whose public sum is 0 are not sent. In a distribution over clients, a client counts in
    the rows of its domains and in the row of all domains: at most p + 1 ones, whose norm is sqrt(p
    + 1). `ClassCounting.bounds` gives the norms of prediction tables.
    """
    usual, rows = evaluation_bounds(model, limits), math.sqrt(num_domains + 1)

    def row_bound(bound: Bound, is_denominator: bool = False) -> Bound:
        if not with_client_distributions:
            return not_sent(bound)
        return dataclasses.replace(bound, max_norm=bound.limit * rows, denominator=is_denominator)

    def not_sent(bound: Bound) -> Bound:
        return dataclasses.replace(bound, public_sum=0.0)

    return EvaluationOutput(
        sums=usual.sums,
        over_clients=OrderedDict(
            (
                name,
                ClientDistribution(
                    row_bound(distribution.num_clients, is_denominator=True),
                    row_bound(distribution.total),
                    row_bound(distribution.histogram),
                ),
            )
            for name, distribution in usual.over_clients.items()
        ),
        by_size=OrderedDict(
            (name, type(sizes)(*map(not_sent, sizes))) for name, sizes in usual.by_size.items()
        ),
        clients=OrderedDict(
            (name, dataclasses.replace(bound, exclusive_group="clients"))
            for name, bound in usual.clients.items()
        ),
        classes=() if counting is None else counting.bounds(limits),
    )


def evaluation_shares(groups: Sequence[str], clients_share: float) -> tuple[float, ...]:
    """Returns the privacy share w_g of each group of values.

    Args:
        clients_share: Total share of the groups with distributions over clients, which divide it
            equally; the other groups divide the rest.
    """
    kinds = [group.startswith(_CLIENT_DISTRIBUTIONS) for group in groups]
    num_spread = sum(kinds)
    if not num_spread:
        return tuple(1.0 / len(kinds) for _ in kinds)
    each = {
        True: clients_share / num_spread,
        False: (1.0 - clients_share) / (len(kinds) - num_spread),
    }
    return tuple(each[kind] for kind in kinds)


def consistent(output: EvaluationOutput, limits: EvaluationOutput) -> EvaluationOutput:
    """Makes noisy distributions over clients consistent, at no privacy cost.

    Totals are clipped to [0, number of clients times their maximum value]. Histograms get
    nonnegative entries that sum to the number of clients. For this, each cumulative count becomes
    the mean of the running maximum from the left and the running minimum from the right, which are
    both monotone. If a measure's denominator is not positive in a domain, the domain's number of
    clients becomes 0.

    Args:
        output: Noisy sums.
        limits: The bound of each value.
    """
    sums = output.sums
    denominators = {name: metric.denominator for name, metric in sums.metric_sums.items()}
    over_clients = OrderedDict(
        (
            name,
            _consistent(
                distribution, limits.over_clients[name], denominators.get(name, sums.counts)
            ),
        )
        for name, distribution in output.over_clients.items()
    )
    return output._replace(over_clients=over_clients)


def _consistent(
    distribution: ClientDistribution, limits: Any, denominators: tf.Tensor
) -> ClientDistribution:
    has_examples = denominators > 0
    has_examples = tf.concat([has_examples, [tf.reduce_any(has_examples)]], axis=0)
    num_clients = tf.where(has_examples, tf.maximum(distribution.num_clients, 0), 0)
    most = tf.cast(num_clients, tf.float64) * limits.total.limit
    total = tf.clip_by_value(tf.cast(distribution.total, tf.float64), 0.0, most)
    counts = _counts(tf.convert_to_tensor(distribution.histogram), num_clients[:, tf.newaxis])
    return ClientDistribution(num_clients, tf.cast(total, tf.float32), counts)


def _counts(histograms: tf.Tensor, num_clients: tf.Tensor) -> tf.Tensor:
    reached = tf.cumsum(histograms, axis=1)
    before = _largest_so_far(reached)
    after = -_largest_so_far(-reached[:, ::-1])[:, ::-1]
    middle = tf.cast(tf.round(tf.cast(before + after, tf.float64) / 2), tf.int64)
    rising = tf.clip_by_value(middle[:, :-1], 0, num_clients)
    rising = tf.concat([tf.zeros_like(num_clients), rising, num_clients], axis=1)
    return rising[:, 1:] - rising[:, :-1]


def _largest_so_far(values: tf.Tensor) -> tf.Tensor:
    """Returns the running maximum over columns, by repeated doubling."""
    step, width = 1, values.shape[1]
    while step < width:
        later = tf.maximum(values[:, step:], values[:, :-step])
        values = tf.concat([values[:, :step], later], axis=1)
        step *= 2
    return values
