"""One interface to Keras 2 and Keras 3, and conversion to models of Keras' own layers.

`tf.keras` is Keras 2 in TensorFlow 2.14 and Keras 3 in later releases. No other module in this
package depends on which it is. `plain_keras` converts a model with layers of this package to Keras'
own layers with the same outputs.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Callable, Protocol

from tff_agnostic.base.later import tf

# (values of variables, x, training, seed int32 [2]) -> the outputs of a model.
PureCall = Callable[[Sequence["tf.Tensor"], Any, bool, "tf.Tensor"], Any]
# A variable's position, and the function of its penalty in the objective.
Penalty = tuple[int, Callable[["tf.Tensor"], "tf.Tensor"]]

KERAS_2 = "Keras 2"
KERAS_3 = "Keras 3"
# Method of this package's layers. It returns a function that replaces the layer in a functional
# model: called like the layer, it creates Keras' own layers with the current values of the layer's
# weights.
PLAIN_FORM = "plain_form"
PlainForm = Callable[..., Any]
_KERAS = ("keras.", "tensorflow.")


class KerasPlatform(Protocol):
    """A release of Keras, as far as releases differ.

    Attributes:
        release: `KERAS_2` or `KERAS_3`.
    """

    release: str

    def name_layers_afresh(self) -> None:
        """Makes Keras restart the numbering of unnamed layers.

        Names are then the same in every process, and in every trial of a process.
        """

    def pure_call(self, keras_model: tf.keras.Model, variables: Sequence[tf.Variable]) -> PureCall:
        """Returns the call of a model as a function of its variables' values, in order.

        Random layers draw from `LayerSeeds`: the same numbers on every platform.

        Raises:
            ValueError: If values cannot replace a variable; the returned function raises it if the
                model's call assigns to a variable.
        """

    def make_reentrant(self, keras_model: tf.keras.Model) -> None:
        """Makes layers choose ops that several threads may run at once."""

    def penalties(
        self, keras_model: tf.keras.Model, trainable: Sequence[tf.Variable]
    ) -> list[Penalty]:
        """Returns the regularizers of single weights.

        Raises:
            ValueError: If a layer has another kind of loss outside of its call.
        """

    def layers_with_losses(self, keras_model: tf.keras.Model) -> list[str]:
        """Returns the names of layers that added a loss in their latest traced call."""

    def weight_name(self, weight: tf.Variable) -> str:
        """Returns a weight's name with its layer's name, such as `dense/kernel`."""

    def is_graph(self, keras_model: tf.keras.Model) -> bool:
        """Returns whether a model is a graph of layers: functional, or a built sequential one."""

    def rebuilt(
        self,
        keras_model: tf.keras.Model,
        make_form: Callable[[tf.keras.layers.Layer], Callable[..., Any]],
    ) -> tf.keras.Model:
        """Returns a functional model with each layer replaced by a function.

        Args:
            keras_model: A graph of layers.
            make_form: Layer -> function that is called like the layer; called once per layer.
        """

    def save(self, keras_model: tf.keras.Model, path: Path) -> None:
        """Writes a .keras file."""

    def load(self, source: Any, classes: Mapping[str, Any], safe_mode: bool) -> tf.keras.Model:
        """Loads a model.

        Args:
            source: The path of a file, or an open HDF5 file.
            classes: Classes of layers in addition to Keras' own, by name.
            safe_mode: Whether Keras refuses lambdas.
        """

    def recurrence_as_loops(self, layers: Sequence[Any]) -> AbstractContextManager[None]:
        """Makes Keras' LSTMs loops in functions traced inside this context.

        Otherwise TensorFlow Lite's converter inserts its own LSTM, which starts from the state of
        the previous example unless the caller resets its variables. A subclass that overrides
        `call` does not change.
        """


@functools.cache
def keras_platform() -> KerasPlatform:
    """Returns the platform of this process; loads TensorFlow."""
    # Not every release exposes its version in `tf.keras`.
    if hasattr(tf.keras, "StatelessScope"):
        from tff_agnostic.models.keras3 import Keras3

        return Keras3()
    from tff_agnostic.models.keras2 import Keras2

    return Keras2()


class LayerSeeds:
    """The seeds of one layer in one call of a model.

    Args:
        seed: Seed of the call, int32 [2].
        layer_index: Index of the layer among those that draw.
    """

    def __init__(self, seed: tf.Tensor, layer_index: int) -> None:
        self._seed = tf.random.experimental.stateless_fold_in(seed, layer_index)
        self._calls = 0

    def next(self) -> tf.Tensor:
        """Returns a seed that is unique to this call, int32 [2]."""
        self._calls += 1
        return tf.random.experimental.stateless_fold_in(self._seed, self._calls)


def model_layers(keras_model: tf.keras.Model) -> list[Any]:
    """Returns the model and all layers in it."""
    # `submodules` also traverses the dropout mask caches of Keras 2, and fails there.
    return list(keras_model._flatten_layers())


def name_layers_afresh() -> None:
    """See `KerasPlatform.name_layers_afresh`."""
    keras_platform().name_layers_afresh()


def plain_keras(model: tf.keras.Model) -> tf.keras.Model:
    """Returns a model with the outputs of `model`, but plain forms of layers that have one.

    Args:
        model: A Keras model. It is returned unchanged if it is neither functional nor sequential,
            or if it has no layer with a plain form.

    Returns:
        A model that may share layers, and thus variables, with `model`.
    """
    if not any(hasattr(layer, PLAIN_FORM) for layer in model_layers(model)):
        return model
    if not keras_platform().is_graph(model):
        return model
    return keras_platform().rebuilt(model, _plain_form)


def foreign_layers(model: tf.keras.Model) -> dict[str, str]:
    """Returns a model's layers that are not Keras' own: name -> module and class.

    This includes the model itself if it is neither functional nor sequential.
    """
    layers = {}
    for layer in model_layers(model):
        kind = type(layer)
        if not kind.__module__.startswith(_KERAS):
            layers[layer.name] = f"{kind.__module__}.{kind.__name__}"
    return layers


def layer_classes(model: tf.keras.Model) -> dict[str, type]:
    """Returns the classes of a model's layers that Keras needs for loading it, by name.

    Layers with a plain form are excluded: they are saved as Keras' own layers.
    """
    kinds = {type(layer) for layer in model_layers(model) if not hasattr(layer, PLAIN_FORM)}
    return {kind.__name__: kind for kind in kinds if not kind.__module__.startswith(_KERAS)}


def _plain_form(layer: tf.keras.layers.Layer) -> PlainForm:
    if hasattr(layer, PLAIN_FORM):
        form: PlainForm = getattr(layer, PLAIN_FORM)()
        return form
    if isinstance(layer, tf.keras.Model):
        return plain_keras(layer)
    return layer


def with_weights(
    layer: tf.keras.layers.Layer, input_size: int, *weights: Any
) -> tf.keras.layers.Layer:
    """Builds a Keras layer for inputs [B, T, input_size], and sets its weights."""
    layer.build((None, None, input_size))
    layer.set_weights([tf.convert_to_tensor(w).numpy() for w in weights])
    return layer
