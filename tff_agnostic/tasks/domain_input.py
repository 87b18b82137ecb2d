"""Adds an example's domain to the inputs of a task's model.

Each domain has an embedding vector, which is added to the network's scores. This equals a last
layer whose inputs are the network's outputs and the one-hot domain. A vector shifts the scores of
its domain, for example to the domain's class frequencies, but does not affect the features of x.
The vectors are initially zero, so that the initial model ignores the domain.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import numpy as np

from tff_agnostic.base.later import tf
from tff_agnostic.base.options import OptionError, Verbatim
from tff_agnostic.base.registry import Registry
from tff_agnostic.data.clients import ClientDataset, known_counts
from tff_agnostic.data.inputs import DOMAIN, ONLY, UNKNOWN, Input, ModelInputs, Whole
from tff_agnostic.models.keras import model_from_keras
from tff_agnostic.models.metrics import takes_scores
from tff_agnostic.models.model import Examples, Model, ModelWeights
from tff_agnostic.tasks.task import Task

NO_DOMAIN_INPUT, EMBEDDING = "none", "embedding"
DOMAIN_INPUTS: Registry[str] = Registry(
    "domain input",
    {
        NO_DOMAIN_INPUT: "a model of x alone",
        EMBEDDING: "a vector of each domain, added to the scores",
    },
)
# Names of the input with the domain's id, and of the layer with the domain vectors.
INPUT, LAYER = "domain", "domain_scores"
_FIELD = "domain_input"
# Number of models with a domain input to cache, so that equal models are traced once.
_MAX_KEPT = 8


def with_domain_input(task: Task, kind: str) -> Task:
    """Returns a task whose model has the domain as an additional input.

    Args:
        task: The task, without frozen layers.
        kind: A name in `DOMAIN_INPUTS`.
    """
    if kind == NO_DOMAIN_INPUT:
        return task
    if set(task.domain_names) == set(task.class_names or ()):
        expected = f"{NO_DOMAIN_INPUT}, as the domains of this task are its classes"
        raise OptionError(_FIELD, expected, kind)
    inputs: Mapping[str, Input] = {ONLY: Whole(UNKNOWN)}
    columns = column = None
    if task.inputs is not None:
        inputs, columns = task.inputs.inputs, task.inputs.columns
        column = None if columns is None else columns.roles.get("domain")
    domain = Whole(DOMAIN, column, task.domain_names)
    return dataclasses.replace(
        task,
        train=ClientsWithDomain(task.train),
        test=ClientsWithDomain(task.test),
        model=with_domain(task.model, task.num_domains),
        # Track no weights, as the task's positions refer to the weights of the original model.
        tracked_weights={},
        inputs=ModelInputs({**inputs, INPUT: domain}, columns),
    )


class ClientsWithDomain:
    """The clients of another dataset, with each example's domain as an additional input."""

    def __init__(self, clients: ClientDataset) -> None:
        self._clients = clients

    @property
    def client_ids(self) -> Sequence[str]:
        """The sorted client ids."""
        return self._clients.client_ids

    def read(self, client_id: str) -> Examples:
        """Returns one client's examples."""
        examples = self._clients.read(client_id)
        return {**examples, "x": {**_by_name(examples["x"]), INPUT: examples["domain_id"]}}

    def client_domain_counts(self) -> Optional[np.ndarray]:
        """Returns the number of examples by client and domain; see `known_counts`."""
        return known_counts(self._clients)


def with_domain(model: Model, num_domains: int) -> Model:
    """Returns a model whose x is a mapping with the domain ids as `INPUT`, int32 [n].

    It has one more trainable weight, the domain vectors, initially zeros, float32 [num_domains,
    scores].

    Args:
        model: A model made from a Keras model, without frozen layers.
        num_domains: Number of domains p.
    """
    wider = _with_domain(model, num_domains)
    outer = wider.keras_model
    assert outer is not None
    (vectors,) = outer.get_layer(LAYER).trainable_weights
    position = next(k for k, weight in enumerate(outer.trainable_weights) if weight is vectors)
    # Use this model's initial weights, as equal models with other weights share a cached model.
    trainable = list(model.initial_weights.trainable)
    trainable.insert(position, wider.initial_weights.trainable[position])
    weights = ModelWeights(trainable, model.initial_weights.non_trainable)
    return dataclasses.replace(wider, initial_weights=weights)


@functools.lru_cache(maxsize=_MAX_KEPT)
def _with_domain(model: Model, num_domains: int) -> Model:
    network, x_spec = model.keras_model, model.example_spec["x"]
    if network is None:
        raise OptionError(_FIELD, "a task with a Keras model", Verbatim("another model"))
    specs = _by_name(x_spec)
    if INPUT in specs:
        problem = Verbatim(", ".join(specs))
        raise OptionError(_FIELD, f"model inputs without the name {INPUT!r}", problem)
    size = _num_scores(model, specs)

    def build() -> tf.keras.Model:
        layers = tf.keras.layers
        inputs = {
            name: tf.keras.Input(spec.shape[1:], dtype=spec.dtype, name=name)
            for name, spec in specs.items()
        }
        domain = tf.keras.Input([], dtype=tf.int32, name=INPUT)
        scores = network(inputs if isinstance(x_spec, Mapping) else inputs[ONLY])
        vectors = layers.Embedding(num_domains, size, embeddings_initializer="zeros", name=LAYER)
        # Add the same vector at all positions of a sentence.
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


def _num_scores(model: Model, specs: Mapping[str, Any]) -> int:
    """Returns the number of a model's scores, after checking that vectors can be added to them."""
    labels = model.example_spec["y"]
    are_numbers = isinstance(labels, tf.TensorSpec) and labels.dtype.is_floating
    if not (takes_scores(model.loss) or (are_numbers and takes_scores(model.loss) is None)):
        expected = (
            "a model whose outputs are scores or numbers, to which vectors can be added: a loss "
            "with from_logits=True, or labels that are real numbers"
        )
        raise OptionError(_FIELD, expected, Verbatim("another loss"))
    zeros = {
        name: tf.zeros([1, *(n or 1 for n in s.shape[1:])], s.dtype) for name, s in specs.items()
    }
    x = zeros if isinstance(model.example_spec["x"], Mapping) else zeros[ONLY]
    weights = tf.nest.map_structure(tf.convert_to_tensor, model.initial_weights)
    outputs = model.predict(weights, x, False, tf.zeros([2], tf.int32))
    if not tf.is_tensor(outputs) or outputs.shape.rank < 2:
        expected = "a model with outputs [n, scores] or [n, steps, scores]"
        raise OptionError(_FIELD, expected, Verbatim("others"))
    return int(outputs.shape[-1])


def _by_name(x: Any) -> dict[str, Any]:
    return dict(x) if isinstance(x, Mapping) else {ONLY: x}
