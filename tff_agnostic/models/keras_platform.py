"""A common interface to Keras 2 and Keras 3, and conversion to Keras' own layers.

`tf.keras` is Keras 2 in TensorFlow 2.14 and Keras 3 in later releases. No other module in this
package depends on the version. `plain_keras` replaces this package's layers in a model by Keras'
own layers with the same outputs.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Callable, Protocol

from tff_agnostic.base.later import tf

# Function that maps (values of variables, x, training, seed int32 [2]) to a model's outputs.
PureCall = Callable[[Sequence["tf.Tensor"], Any, bool, "tf.Tensor"], Any]
# The position of a variable, and the function that maps its value to a penalty.
Penalty = tuple[int, Callable[["tf.Tensor"], "tf.Tensor"]]

KERAS_2 = "Keras 2"
KERAS_3 = "Keras 3"
# Name of a method of this package's layers. It returns a function that replaces the layer
# in a functional model: called like the layer, it applies Keras' own layers with copies
# of the layer's weights.
PLAIN_FORM = "plain_form"
PlainForm = Callable[..., Any]
_KERAS = ("keras.", "tensorflow.")


class KerasPlatform(Protocol):
    """The operations that differ between Keras releases.

    Attributes:
        release: `KERAS_2` or `KERAS_3`.
    """

    release: str

    def name_layers_afresh(self) -> None:
        """Makes Keras restart the numbering of unnamed layers.

        Layer names are then the same in every process and every trial.
        """

    def pure_call(self, keras_model: tf.keras.Model, variables: Sequence[tf.Variable]) -> PureCall:
        """Returns the call of a model as a function of its variables' values, in order.

        Random layers draw from `LayerSeeds`, which gives the same numbers on every platform.

        Raises:
            ValueError: If values cannot replace a variable. The returned function also raises
                ValueError if the model's call assigns to a variable.
        """

    def make_reentrant(self, keras_model: tf.keras.Model) -> None:
        """Makes layers choose ops that several threads may run at once."""

    def penalties(
        self, keras_model: tf.keras.Model, trainable: Sequence[tf.Variable]
    ) -> list[Penalty]:
        """Returns the regularizers of single weights.

        Raises:
            ValueError: If a layer has a loss that is neither a regularizer of one weight nor added
                by its call.
        """

    def layers_with_losses(self, keras_model: tf.keras.Model) -> list[str]:
        """Returns the names of layers that added a loss in their latest traced call."""

    def weight_name(self, weight: tf.Variable) -> str:
        """Returns a weight's name with its layer's name, such as `dense/kernel`."""

    def is_graph(self, keras_model: tf.keras.Model) -> bool:
        """Returns whether a model is a graph of layers: functional, or sequential and built."""

    def rebuilt(
        self,
        keras_model: tf.keras.Model,
        make_form: Callable[[tf.keras.layers.Layer], Callable[..., Any]],
    ) -> tf.keras.Model:
        """Returns a functional model with each layer replaced by a function.

        Args:
            keras_model: A graph of layers.
            make_form: Maps a layer to the function that replaces it; called once per layer.
        """

    def save(self, keras_model: tf.keras.Model, path: Path) -> None:
        """Writes a .keras file."""

    def load(self, source: Any, classes: Mapping[str, Any], safe_mode: bool) -> tf.keras.Model:
        """Loads a model.

        Args:
            source: The path of a file, or an open HDF5 file.
            classes: Layer classes that are not Keras' own, by name.
            safe_mode: Whether Keras rejects lambdas.
        """

    def recurrence_as_loops(self, layers: Sequence[Any]) -> AbstractContextManager[None]:
        """Makes functions traced inside this context run Keras' LSTMs as loops.

        Otherwise TensorFlow Lite's converter inserts its own LSTM, which starts from the previous
        example's state unless the caller resets its variables. LSTM subclasses that override `call`
        are left unchanged.
        """


@functools.cache
def keras_platform() -> KerasPlatform:
    """Returns the `KerasPlatform` of the installed Keras; loads TensorFlow."""
    # Look for a class of Keras 3, as not every release has its version in `tf.keras`.
    if hasattr(tf.keras, "StatelessScope"):
        from tff_agnostic.models.keras3 import Keras3

        return Keras3()
    from tff_agnostic.models.keras2 import Keras2

    return Keras2()


class LayerSeeds:
    """The seeds of one layer in one call of a model.

    Args:
        seed: Seed of the call, int32 [2].
        layer_index: Index of the layer among the layers that draw random numbers.
    """

    def __init__(self, seed: tf.Tensor, layer_index: int) -> None:
        self._seed = tf.random.experimental.stateless_fold_in(seed, layer_index)
        self._calls = 0

    def next(self) -> tf.Tensor:
        """Returns a new seed, int32 [2]."""
        self._calls += 1
        return tf.random.experimental.stateless_fold_in(self._seed, self._calls)


def model_layers(keras_model: tf.keras.Model) -> list[Any]:
    """Returns the model and all layers in it."""
    # Keras 2's `submodules` would traverse the caches of dropout masks, and fail there.
    return list(keras_model._flatten_layers())


def name_layers_afresh() -> None:
    """See `KerasPlatform.name_layers_afresh`."""
    keras_platform().name_layers_afresh()


def plain_keras(model: tf.keras.Model) -> tf.keras.Model:
    """Returns a model with the same outputs, with Keras' layers instead of this package's.

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
    """Returns the module and class of each layer that is not Keras' own, by the layer's name.

    This includes the model itself if it is neither functional nor sequential.
    """
    layers = {}
    for layer in model_layers(model):
        kind = type(layer)
        if not kind.__module__.startswith(_KERAS):
            layers[layer.name] = f"{kind.__module__}.{kind.__name__}"
    return layers


def layer_classes(model: tf.keras.Model) -> dict[str, type]:
    """Returns the layer classes that Keras needs in order to load a model, by name.

    Layers with a plain form are excluded, as they are saved as Keras' own layers.
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
