"""Keras models of this package's layers as models of Keras' own layers, with the same numbers."""

from __future__ import annotations

from typing import Any, Callable

from tff_agnostic.later import tf
from tff_agnostic.models.keras_platform import keras_platform, layers_of

# A layer of this package has this method. It returns what takes the layer's place in a functional
# model: a function that is called as the layer is, makes Keras' own layers, and gives them the
# present values of the layer's weights.
PLAIN_FORM = "plain_form"
PlainForm = Callable[..., Any]

_KERAS = ("keras.", "tensorflow.")


def plain_keras(model: tf.keras.Model) -> tf.keras.Model:
    """Returns a model with the values of `model`, in which layers with a plain form have it.

    Args:
        model: A Keras model. Only functional and sequential ones can be taken apart: others are
            returned unchanged, and so is a model without a layer to replace.

    Returns:
        A model that may share layers, and so variables, with `model`.
    """
    if not any(hasattr(layer, PLAIN_FORM) for layer in layers_of(model)):
        return model
    if not keras_platform().is_graph(model):
        return model
    return keras_platform().rebuilt(model, _form_of)


def foreign_layers(model: tf.keras.Model) -> dict[str, str]:
    """Returns the layers of a model that are not Keras' own: name -> module and class.

    The model itself counts where it is neither functional nor sequential.
    """
    found = {}
    for layer in layers_of(model):
        kind = type(layer)
        if not kind.__module__.startswith(_KERAS):
            found[layer.name] = f"{kind.__module__}.{kind.__name__}"
    return found


def classes_of(model: tf.keras.Model) -> dict[str, type]:
    """Returns the classes of a model's layers that Keras does not know, by name, for loading it.

    Layers with a plain form are not among them: an LSTM in a file is Keras' own.
    """
    kinds = {type(layer) for layer in layers_of(model) if not hasattr(layer, PLAIN_FORM)}
    return {kind.__name__: kind for kind in kinds if not kind.__module__.startswith(_KERAS)}


def _form_of(layer: tf.keras.layers.Layer) -> PlainForm:
    if hasattr(layer, PLAIN_FORM):
        form: PlainForm = getattr(layer, PLAIN_FORM)()
        return form
    if isinstance(layer, tf.keras.Model):
        return plain_keras(layer)
    return layer


def with_weights(
    layer: tf.keras.layers.Layer, input_size: int, *weights: Any
) -> tf.keras.layers.Layer:
    """Builds a layer of Keras' for inputs [B, T, input_size], and gives it its weights."""
    layer.build((None, None, input_size))
    layer.set_weights([tf.convert_to_tensor(w).numpy() for w in weights])
    return layer
