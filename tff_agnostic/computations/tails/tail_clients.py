"""What clients of Delta-FL do (Laguel et al. 2021, Algorithm 2): say their losses, and train."""

import dataclasses
import functools
from typing import Any, NamedTuple

import tensorflow as tf

from tff_agnostic.computations.client_group import ClientGroup, PerClient
from tff_agnostic.computations.client_update import client_weight, zeros_unless
from tff_agnostic.computations.client_weighting import CLIENT_WEIGHTINGS
from tff_agnostic.computations.exchange import AnswerAndKept
from tff_agnostic.computations.kept_out import (
    ExampleSplit,
    Measured,
    mean_loss,
    measured,
    trained_on,
)
from tff_agnostic.computations.local_training import LocalTrainingOptions, local_training
from tff_agnostic.computations.structures import AnyDomainSums, ClientCounts, all_finite
from tff_agnostic.computations.tails.thresholds import Threshold
from tff_agnostic.models.functional import Model, ModelWeights


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
