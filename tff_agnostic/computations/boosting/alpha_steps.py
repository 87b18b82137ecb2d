"""How alpha moves: what is sent of the ensemble, and the step that the clients' sum gives.

Source: Hamer, Mohri, Suresh 2020, figures 1 and 2.
"""

import dataclasses
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Callable

import tensorflow as tf

from tff_agnostic.aggregations.limits import ClientLimits
from tff_agnostic.computations.boosting.client import BoostBroadcast, BoostClient
from tff_agnostic.computations.boosting.estimators import Sent
from tff_agnostic.computations.boosting.options import MIRROR_MAPS, BoostOptions
from tff_agnostic.computations.boosting.sampling import (
    PREDICTOR_DRAWS,
    PREDICTOR_SAMPLINGS,
    Drawn,
)
from tff_agnostic.computations.exchange import MAIN_MODEL, Exchange, Sums
from tff_agnostic.computations.seeds import fold_in
from tff_agnostic.computations.server_update import training_output_bounds
from tff_agnostic.errors import UserError
from tff_agnostic.models.functional import Model, ModelWeights
from tff_agnostic.models.mixtures.ensemble import EnsembleModel
from tff_agnostic.quantities import Quantity

# Describes what a round says of its predictors.
PREDICTOR_QUANTITIES: Mapping[str, Quantity] = OrderedDict(
    sampled=Quantity("predictors/sampled", "predictors that were sampled"),
    bytes_sent=Quantity(
        "predictors/bytes_sent", "bytes that each client is sent, room that was not used included"
    ),
    bytes_of_ensemble=Quantity(
        "predictors/bytes_of_ensemble", "bytes that it would be sent of the whole ensemble"
    ),
)
_FLOAT_BYTES = 4


def ensemble_of(model: Model, algorithm: str) -> EnsembleModel:
    """Returns the model of a problem as an ensemble.

    Raises:
        UserError: If it is none.
    """
    if not isinstance(model, EnsembleModel):
        raise UserError(
            f"--base_predictors: --algorithm={algorithm} learns how to mix trained predictors: "
            "expected folders of runs, Keras models or files of base_predictors, found none"
        )
    return model


@dataclasses.dataclass(frozen=True)
class AlphaSteps:
    """Moves alpha, and prepares what clients need for it.

    Attributes:
        model: The ensemble.
        options: The settings.
        budget: C.
        seed: Of the run.
    """

    model: EnsembleModel
    options: BoostOptions
    budget: int
    seed: int

    @property
    def room(self) -> int:
        """How many predictors a message has room for."""
        if self.options.predictor_sampling == "none":
            return self.model.num_predictors
        draw = PREDICTOR_DRAWS[self.options.predictor_draw]
        return draw.room(self.budget, self.model.num_predictors)

    def gammas(self, alpha: tf.Tensor) -> tf.Tensor:
        """Returns gamma_k, float32 [q]."""
        sampling = PREDICTOR_SAMPLINGS[self.options.predictor_sampling]
        return sampling(alpha, self.budget, self.options.uniform_share)

    def drawn(self, alpha: tf.Tensor, step: tf.Tensor) -> Drawn:
        """Returns H_t (line 2), the same whenever it is asked for.

        Args:
            alpha: alpha_t, float32 [q].
            step: Number of the step in the run, int: what the draw is made from.
        """
        q = self.model.num_predictors
        if self.options.predictor_sampling == "none":
            return Drawn(tf.range(q), tf.ones([q]))
        seed = fold_in(tf.constant(self.seed, tf.int64), step)
        draw = PREDICTOR_DRAWS[self.options.predictor_draw]
        return draw(self.gammas(alpha), self.budget, seed)

    def broadcast(self, weights: ModelWeights, scale: tf.Tensor, step: tf.Tensor) -> BoostBroadcast:
        """Returns what is sent (line 3): the sampled predictors, gathered.

        Args:
            weights: Of the whole ensemble.
            scale: What an example of each domain counts, float32 [p].
            step: As in `drawn`.
        """
        (alpha,) = weights.trainable
        indices, is_sampled = self.drawn(alpha, step)
        of_each = tf.gather(alpha, indices)
        gamma = tf.gather(self.gammas(alpha), indices)
        # alpha~_k = alpha_k / gamma_k, 0 for what was not sampled. Of a round without any predictor
        # there is no step, but losses that clients can measure.
        mixed = tf.where(tf.reduce_any(is_sampled > 0), of_each / gamma * is_sampled, of_each)
        members = self.model.members
        assert members is not None
        stacks = members.chosen(weights.non_trainable, indices)
        sent = Sent(of_each, gamma, is_sampled)
        return BoostBroadcast(ModelWeights([mixed], stacks), sent, scale)

    def next(
        self, alpha: tf.Tensor, gradient: tf.Tensor, weight: tf.Tensor, step: tf.Tensor
    ) -> tf.Tensor:
        """Returns alpha_{t+1} (lines 4 and 5); alpha_t where nothing was sampled or weighs.

        Args:
            alpha: alpha_t, float32 [q].
            gradient: Sum of the clients' gradients, float32 [room].
            weight: What it is divided by.
            step: As in `drawn`.
        """
        indices, is_sampled = self.drawn(alpha, step)
        # delta_t L, 0 for predictors that were not sent
        delta = tf.math.divide_no_nan(gradient, weight)
        delta = tf.scatter_nd(indices[:, tf.newaxis], delta, tf.shape(alpha))
        mirror_map = MIRROR_MAPS[self.options.mirror_map]
        # [grad F]^{-1}(grad F(alpha_t) - eta delta_t L), projected
        moved = mirror_map(alpha, -delta, self.options.alpha_learning_rate)
        has_step = (weight > 0) & tf.reduce_any(is_sampled > 0)
        return tf.where(has_step, moved, alpha)

    def report(
        self, alpha: tf.Tensor, step: tf.Tensor, num_domains: int
    ) -> "OrderedDict[str, Any]":
        """Returns what a round says of its predictors; of the first of its repetitions.

        Bytes are those of all repetitions.
        """
        model, repetitions = self.model, self.options.repetitions
        # The predictors; of each alpha~, alpha, gamma and whether it was sampled; and the scales.
        sent = model.message_bytes(self.room) + (4 * self.room + num_domains) * _FLOAT_BYTES
        return OrderedDict(
            sampled=tf.cast(tf.reduce_sum(self.drawn(alpha, step).is_sampled), tf.int64),
            bytes_sent=tf.constant(repetitions * sent, tf.int64),
            bytes_of_ensemble=tf.constant(repetitions * model.num_bytes, tf.int64),
        )


def alpha_steps(model: EnsembleModel, options: BoostOptions, seed: int) -> AlphaSteps:
    """Returns what moves alpha.

    Raises:
        UserError: If the settings do not fit the ensemble.
    """
    return AlphaSteps(model, options, options.checked_budget(model), seed)


def last_and_mean(weights: ModelWeights, mean_alpha: Any) -> dict[str, ModelWeights]:
    """Returns the models of a state: the ensemble of the last alpha, and that of the mean."""
    return {MAIN_MODEL: weights, "mean": ModelWeights([mean_alpha], weights.non_trainable)}


def repeated_exchange(
    alphas: AlphaSteps,
    num_domains: int,
    prepare: Callable[[Any, Sums], BoostBroadcast],
    max_beta: Callable[[ClientLimits], float],
) -> tuple[Exchange, ...]:
    """Returns the exchange of each repetition of a round, of several by names of their own.

    Args:
        alphas: What is sent, and to which ensemble it belongs.
        num_domains: p.
        prepare: Makes what is sent of the state and the repetitions before.
        max_beta: The bound of a client's weight, where its limits state none.
    """
    model, options = alphas.model, alphas.options
    exchange = Exchange(
        name="training",
        prepare=prepare,
        client=BoostClient(model, num_domains, options.gradient_estimator, alphas.room),
        bounds=lambda limits: training_output_bounds(model, limits, max_beta(limits)),
        bytes_per_example=model.message_bytes_per_example(alphas.room),
    )
    if options.repetitions == 1:
        return (exchange,)
    names = [f"repetition_{r + 1}" for r in range(options.repetitions)]
    return tuple(dataclasses.replace(exchange, name=name) for name in names)


def start_from(state: Any, weights: ModelWeights) -> Any:
    """Returns a state of either algorithm that begins with other weights, and their mean."""
    return state._replace(
        weights=weights, mean_alpha=weights.trainable[0], taken=tf.zeros_like(state.taken)
    )
