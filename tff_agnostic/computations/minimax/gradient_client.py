"""A client that sends one gradient, for algorithms whose server takes every step."""

import dataclasses
from typing import Optional

import tensorflow as tf

from tff_agnostic.computations.client_group import ClientGroup, PerClient
from tff_agnostic.computations.client_update import client_weight, update_outputs
from tff_agnostic.computations.kept_out import ExampleSplit, measured
from tff_agnostic.computations.minimax.gradient_pass import gradient_pass
from tff_agnostic.computations.structures import AnyTrainingOutput, TrainingBroadcast
from tff_agnostic.models.functional import Model


@dataclasses.dataclass(frozen=True)
class GradientClient:
    """What a client does: one gradient at w, and its losses there.

    Attributes:
        model: The model.
        num_domains: p.
        sample_size: Examples that it draws; all if None.
        split: Which examples losses are measured on, and which the gradient is of.
    """

    model: Model
    num_domains: int
    sample_size: Optional[int] = None
    split: ExampleSplit = ExampleSplit()

    def __call__(
        self,
        broadcast: TrainingBroadcast,
        clients: ClientGroup,
        seed: tf.Tensor,
        per_client: PerClient,
    ) -> AnyTrainingOutput:
        """Returns what each client sends: in `weighted_delta` the gradient of its scaled losses."""
        weights, alpha = broadcast
        training, apart = clients, None
        if self.split.is_apart:
            apart, training = measured(
                self.model, self.num_domains, self.split, weights, clients, per_client
            )
        gradient, passed = gradient_pass(
            self.model,
            self.num_domains,
            weights,
            training,
            alpha,
            seed,
            per_client,
            self.sample_size,
        )
        sums = passed if apart is None else apart
        beta = per_client(lambda n_k: client_weight(alpha, n_k), sums.trained)
        return update_outputs(gradient, beta, sums, clients, per_client)
