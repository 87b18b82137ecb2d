"""Tasks whose model is told the domain of an example, where it is known when the model is used.

Each domain has a vector of its own, an embedding, that is added to the scores of the network: the
same as a last layer whose inputs have the domain beside what the network made of x, one-hot. It
moves the scores of a domain, as its class shares or its words ask for, and not what the network
sees in x. Vectors start from zeros: the first model is that without them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import numpy as np

from tff_agnostic.data.clients import ClientDataset, known_counts
from tff_agnostic.data.inputs import DOMAIN, ONLY, UNKNOWN, Input, ModelInputs, Whole
from tff_agnostic.errors import UserError
from tff_agnostic.later import tf
from tff_agnostic.models.keras import model_from_keras
from tff_agnostic.models.metrics import takes_scores
from tff_agnostic.models.model import Examples, Model, ModelWeights
from tff_agnostic.registry import Registry
from tff_agnostic.tasks.task import Task

NO_DOMAIN_INPUT, EMBEDDING = "none", "embedding"
DOMAIN_INPUTS: Registry[str] = Registry(
    "domain input",
    {
        NO_DOMAIN_INPUT: "a model of x alone",
        EMBEDDING: "a vector of each domain, added to the scores",
    },
)
# The input that is the domain's number, and the layer that has the vectors.
INPUT, LAYER = "domain", "domain_scores"
_FLAG = f"--domain_input={EMBEDDING}"
# Of models that are told; equal ones are traced once.
_MAX_KEPT = 8


def with_domain_input(task: Task, kind: str) -> Task:
    """Returns a task whose model and clients have the domain as a further input.

    Args:
        task: The task, without frozen layers.
        kind: A name of `DOMAIN_INPUTS`.
    """
    if kind == NO_DOMAIN_INPUT:
        return task
    if set(task.domain_names) == set(task.class_names or ()):
        raise UserError(
            f"{_FLAG}: expected domains that are not the classes, as the domain would be the label,"
            f" found {', '.join(task.domain_names)}"
        )
    columns = None if task.inputs is None else task.inputs.columns
    inputs: dict[str, Input] = {ONLY: Whole(UNKNOWN)}
    if task.inputs is not None:
        inputs = dict(task.inputs.inputs)
    column = None if columns is None else columns.roles.get("domain")
    return dataclasses.replace(
        task,
        train=TellingClients(task.train),
        test=TellingClients(task.test),
        model=told(task.model, task.num_domains),
        # Those of the task are about the weights of its own model.
        tracked_weights={},
        figures={},
        inputs=ModelInputs({**inputs, INPUT: Whole(DOMAIN, column, task.domain_names)}, columns),
    )


class TellingClients:
    """The clients of another dataset, with the domains of their examples among the inputs."""

    def __init__(self, clients: ClientDataset) -> None:
        self._clients = clients

    @property
    def client_ids(self) -> Sequence[str]:
        """Every client's id, sorted."""
        return self._clients.client_ids

    def read(self, client_id: str) -> Examples:
        """Returns one client's examples."""
        examples = self._clients.read(client_id)
        x = {**_by_name(examples["x"]), INPUT: examples["domain_id"]}
        return {name: x if name == "x" else column for name, column in examples.items()}

    def client_domain_counts(self) -> Optional[np.ndarray]:
        """Returns the examples of each client by domain; see `CountedClients`."""
        return known_counts(self._clients)


def told(model: Model, num_domains: int) -> Model:
    """Returns a model of x and the domain: x is a mapping, in which `INPUT` is int32 [n].

    Its weights are those of `model`, with the vectors of the domains, zeros, float32
    [num_domains, scores], among those that are trained.

    Args:
        model: A model of a Keras model, without frozen layers.
        num_domains: p.
    """
    wider = _told(model, num_domains)
    outer = wider.keras_model
    assert outer is not None
    (vectors,) = outer.get_layer(LAYER).trainable_weights
    position = next(k for k, weight in enumerate(outer.trainable_weights) if weight is vectors)
    # Equal models may have other initial weights.
    trainable = list(model.initial_weights.trainable)
    trainable.insert(position, wider.initial_weights.trainable[position])
    weights = ModelWeights(trainable, model.initial_weights.non_trainable)
    return dataclasses.replace(wider, initial_weights=weights)


@functools.lru_cache(maxsize=_MAX_KEPT)
def _told(model: Model, num_domains: int) -> Model:
    network = model.keras_model
    if network is None:
        raise UserError(f"{_FLAG}: expected a task with a Keras model, found another")
    specs = _by_name(model.example_spec["x"])
    if INPUT in specs:
        raise UserError(f"{_FLAG}: expected inputs without {INPUT!r}, found {', '.join(specs)}")
    _check_scores(model, specs)

    def build() -> tf.keras.Model:
        layers = tf.keras.layers
        inputs = {
            name: tf.keras.Input(spec.shape[1:], dtype=spec.dtype, name=name)
            for name, spec in specs.items()
        }
        domain = tf.keras.Input([], dtype=tf.int32, name=INPUT)
        scores = network(inputs if isinstance(model.example_spec["x"], Mapping) else inputs[ONLY])
        size = int(scores.shape[-1])
        vectors = layers.Embedding(num_domains, size, embeddings_initializer="zeros", name=LAYER)
        # The same for all steps of a sentence.
        shape = [1] * (len(scores.shape) - 2) + [size]
        added = layers.Reshape(shape, name=f"{LAYER}_of_steps")(vectors(domain))
        scores = layers.Add(name="scores")([added, scores])
        return tf.keras.Model({**inputs, INPUT: domain}, scores)

    return model_from_keras(
        build,
        loss=model.loss,
        example_spec={
            "x": {**specs, INPUT: tf.TensorSpec([None], tf.int32)},
            "y": model.example_spec["y"],
        },
        metrics=model.metrics,
    )


def _check_scores(model: Model, specs: Mapping[str, Any]) -> None:
    labels = model.example_spec["y"]
    are_numbers = isinstance(labels, tf.TensorSpec) and labels.dtype.is_floating
    if not (takes_scores(model.loss) or (are_numbers and takes_scores(model.loss) is None)):
        raise UserError(
            f"{_FLAG}: expected a model whose outputs are scores or numbers, to which vectors can "
            "be added: a loss with from_logits=True, or labels that are real numbers"
        )
    zeros = {
        name: tf.zeros([1, *(n or 1 for n in s.shape[1:])], s.dtype) for name, s in specs.items()
    }
    x = zeros if isinstance(model.example_spec["x"], Mapping) else zeros[ONLY]
    weights = tf.nest.map_structure(tf.convert_to_tensor, model.initial_weights)
    outputs = model.predict(weights, x, False, tf.zeros([2], tf.int32))
    if not tf.is_tensor(outputs) or outputs.shape.rank < 2:
        raise UserError(f"{_FLAG}: expected outputs [n, scores] or [n, steps, scores]")


def _by_name(x: Any) -> dict[str, Any]:
    return dict(x) if isinstance(x, Mapping) else {ONLY: x}
