"""What it is worth that each client chooses its model from a family (Laguel et al. 2021).

How a client finds its level the paper leaves open. Here it measures every model on a share of its
own examples and takes the one with the smallest loss; what it then has is measured on the rest of
its examples, beside each model of the family, and beside what the best choice would have been.
"""

import dataclasses
from collections import OrderedDict
from typing import Any, NamedTuple

import tensorflow as tf

from tff_agnostic.aggregations.limits import Bound, ClientLimits
from tff_agnostic.computations.client_group import ClientGroup, PerClient, one_client
from tff_agnostic.computations.domain_pass import domain_pass
from tff_agnostic.computations.evaluation import (
    EvaluationOutput,
    Measurement,
    evaluation_bounds,
    evaluation_output,
    weights_spec,
)
from tff_agnostic.computations.exchange import Exchange
from tff_agnostic.computations.kept_out import ExampleSplit
from tff_agnostic.computations.structures import DomainSums, MetricSums, all_finite
from tff_agnostic.models.functional import Model, ModelWeights
from tff_agnostic.models.measures import measures_of


class ChoiceOutput(NamedTuple):
    """What a client contributes, from the examples that it does not choose by.

    A client that has no examples to choose by, as one with a single example, or for which a model
    gives values that are not finite, adds nothing but to the count of such clients.

    Attributes:
        models: The evaluation of each model.
        chosen: That of the model which the client chooses.
        in_hindsight: Of each measure by itself, that of the model which turned out best in it.
        num_choices: 1 at the model that is chosen, int64 [r].
        clients: Number of clients that chose, had too few examples to choose, or gave values that
            are not finite, int64 scalars.
    """

    models: tuple[EvaluationOutput, ...]
    chosen: EvaluationOutput
    in_hindsight: EvaluationOutput
    num_choices: tf.Tensor
    clients: "OrderedDict[str, tf.Tensor]"


@dataclasses.dataclass(frozen=True)
class ChoosingClients:
    """The clients' side: measures r models, and chooses one.

    Attributes:
        model: The model.
        num_domains: p.
        split: Which examples a client chooses by.
    """

    model: Model
    num_domains: int
    split: ExampleSplit

    def __call__(
        self,
        family: tuple[ModelWeights, ...],
        clients: ClientGroup,
        seed: tf.Tensor,
        per_client: PerClient = one_client,
    ) -> ChoiceOutput:
        """Returns what each client contributes; nothing in it is random but the split."""
        del seed
        to_choose_by, rest = self.split(clients)
        losses, sums = [], []
        for weights in family:
            by = domain_pass(self.model, self.num_domains, weights, to_choose_by, per_client)
            losses.append(tf.reduce_sum(by.losses, axis=-1))
            sums.append(domain_pass(self.model, self.num_domains, weights, rest, per_client))
        return per_client(self._choose, losses, sums, to_choose_by.num_examples, rest.num_examples)

    def _choose(
        self, losses: list[tf.Tensor], sums: list[DomainSums], num_chosen_by: Any, num_rest: Any
    ) -> ChoiceOutput:
        # All models are measured on the same examples: the smallest sum has the smallest mean. Of
        # equal ones it is the first, the main model.
        choice = _first_best(tf.stack(losses), higher_is_better=False)
        is_finite = all_finite([losses, [[s.losses, s.metric_sums] for s in sums]])
        has_examples = (num_chosen_by > 0) & (num_rest > 0)
        chooses = is_finite & has_examples
        stacked = tf.nest.map_structure(lambda *values: tf.stack(values), *sums)
        chosen = tf.nest.map_structure(lambda values: tf.gather(values, choice), stacked)

        def output(of: DomainSums) -> EvaluationOutput:
            found = evaluation_output(self.model, of, tf.equal(num_rest, 0))
            return tf.nest.map_structure(
                lambda value: tf.where(chooses, value, tf.zeros_like(value)), found
            )

        return ChoiceOutput(
            models=tuple(map(output, sums)),
            chosen=output(chosen),
            in_hindsight=output(self._in_hindsight(stacked)),
            num_choices=tf.one_hot(choice, len(sums), dtype=tf.int64) * tf.cast(chooses, tf.int64),
            clients=OrderedDict(
                chose=tf.cast(chooses, tf.int64),
                too_few=tf.cast(~has_examples, tf.int64),
                non_finite=tf.cast(has_examples & ~is_finite, tf.int64),
            ),
        )

    def _in_hindsight(self, stacked: DomainSums) -> DomainSums:
        """Returns, of sums [r, p], those of the model with the best value of each measure."""
        counts = tf.cast(stacked.counts, tf.float32)

        def best(measure: str, ratio: MetricSums) -> MetricSums:
            values = tf.math.divide_no_nan(
                tf.reduce_sum(ratio.numerator, axis=1), tf.reduce_sum(ratio.denominator, axis=1)
            )
            row = _first_best(values, measures_of(self.model)[measure].higher_is_better)
            return MetricSums(*(tf.gather(values, row) for values in ratio))

        return DomainSums(
            losses=best("loss", MetricSums(stacked.losses, counts)).numerator,
            counts=stacked.counts[0],
            metric_sums=OrderedDict(
                (name, best(name, ratio)) for name, ratio in stacked.metric_sums.items()
            ),
        )


def measurement_of_choice(
    model: Model, num_domains: int, num_models: int, split: ExampleSplit
) -> Measurement:
    """Returns the evaluation of a family, a tuple of weights; its sums are a `ChoiceOutput`.

    Args:
        model: The model.
        num_domains: p.
        num_models: r.
        split: Which of its examples a client chooses by: those that are kept out.
    """
    one = Bound(1, integer=True)

    def bounds(limits: ClientLimits) -> ChoiceOutput:
        evaluation = evaluation_bounds(model, limits)
        clients = OrderedDict(chose=one, too_few=one, non_finite=one)
        return ChoiceOutput((evaluation,) * num_models, evaluation, evaluation, one, clients)

    return Measurement(
        Exchange(
            name="choice",
            prepare=lambda family, sums: family,
            client=ChoosingClients(model, num_domains, split),
            bounds=bounds,
        ),
        (weights_spec(model),) * num_models,
        model.client_data_spec(),
    )


def _first_best(values: tf.Tensor, higher_is_better: bool) -> tf.Tensor:
    """Returns the row of the best of values [r], the first of equal ones; not finite is worst."""
    costs = -values if higher_is_better else values
    return tf.argmin(tf.where(tf.math.is_finite(costs), costs, tf.constant(float("inf"))))
