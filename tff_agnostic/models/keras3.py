"""The Keras 3 platform: replaces variables by tensors through `keras.StatelessScope`.

See `keras_platform` for the purpose of each function.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Callable, Optional

from keras.src.legacy.saving.legacy_h5_format import load_model_from_hdf5
from keras.src.models.functional import Functional
from keras.src.utils import naming

from tff_agnostic.base.later import h5py, tf
from tff_agnostic.models.keras_platform import KERAS_3, LayerSeeds, Penalty, PureCall, model_layers

# Seeds for each random generator in the call that is being traced, by the generator's index.
_SEEDS: contextvars.ContextVar[Optional[Sequence[LayerSeeds]]] = contextvars.ContextVar(
    "seeds", default=None
)


class Keras3:
    """See `KerasPlatform`."""

    release = KERAS_3

    def name_layers_afresh(self) -> None:
        """Resets Keras' name counters, but not its other global state."""
        naming.reset_uids()

    def pure_call(self, keras_model: tf.keras.Model, variables: Sequence[tf.Variable]) -> PureCall:
        """See `KerasPlatform.pure_call`."""
        num_seeds = _draw_from_given_seeds(keras_model)

        def call(values: Sequence[tf.Tensor], x: Any, training: bool, seed: tf.Tensor) -> Any:
            scope = tf.keras.StatelessScope(zip(variables, values), collect_losses=True)
            given = list(map(scope.get_current_value, variables))
            with scope, _given([LayerSeeds(seed, k) for k in range(num_seeds)]):
                outputs = keras_model(x, training=training)
            for variable, value in zip(variables, given):
                if scope.get_current_value(variable) is not value:
                    raise ValueError(
                        "the model is not a pure function of its weights: its call assigns to "
                        f"{self.weight_name(variable)}"
                    )
            return outputs

        return call

    def make_reentrant(self, keras_model: tf.keras.Model) -> None:
        """Does nothing, as no op of Keras 3 layers keeps values between calls."""

    def penalties(
        self, keras_model: tf.keras.Model, trainable: Sequence[tf.Variable]
    ) -> list[Penalty]:
        """See `KerasPlatform.penalties`."""
        return [(k, v.regularizer) for k, v in enumerate(trainable) if v.regularizer is not None]

    def layers_with_losses(self, keras_model: tf.keras.Model) -> list[str]:
        """See `KerasPlatform.layers_with_losses`."""
        return [layer.name for layer in model_layers(keras_model) if layer._loss_ids]

    def weight_name(self, weight: tf.Variable) -> str:
        """Returns the variable's path."""
        path: str = weight.path
        return path

    def is_graph(self, keras_model: tf.keras.Model) -> bool:
        """Whether the model is functional, or sequential and built."""
        is_built = isinstance(keras_model, tf.keras.Sequential) and keras_model.built
        return is_built or isinstance(keras_model, Functional)

    def rebuilt(
        self,
        keras_model: tf.keras.Model,
        make_form: Callable[[tf.keras.layers.Layer], Callable[..., Any]],
    ) -> tf.keras.Model:
        """Clones the graph, and calls the functions from `make_form` instead of the layers."""
        # Create only one form of a layer that is called several times; `keras.ops` have none.
        form = functools.cache(make_form)

        def call(layer: Any, *args: Any, mask: Any = None, **kwargs: Any) -> Any:
            # Drop the recorded masks, which belong to the original graph; the new
            # graph computes its own.
            del mask
            return (form(layer) if isinstance(layer, tf.keras.layers.Layer) else layer)(
                *args, **kwargs
            )

        if not isinstance(keras_model, tf.keras.Sequential):
            with _without_mask_warnings():
                return tf.keras.models.clone_model(
                    keras_model, clone_function=lambda layer: layer, call_function=call
                )
        (keras_input,) = keras_model.inputs
        inputs = tf.keras.Input(
            batch_shape=keras_input.shape, dtype=keras_input.dtype, name=keras_input.name
        )
        outputs = functools.reduce(lambda x, layer: call(layer, x), keras_model.layers, inputs)
        return tf.keras.Model(inputs, outputs, name=keras_model.name)

    def save(self, keras_model: tf.keras.Model, path: Path) -> None:
        """See `KerasPlatform.save`; the path's suffix selects the format."""
        keras_model.save(path)

    def load(self, source: Any, classes: Mapping[str, Any], safe_mode: bool) -> tf.keras.Model:
        """See `KerasPlatform.load`; Keras' public function accepts only paths."""
        with _without_mask_warnings():
            if isinstance(source, h5py.File):
                return load_model_from_hdf5(source, classes, compile=False)
            return tf.keras.models.load_model(source, classes, compile=False, safe_mode=safe_mode)

    def recurrence_as_loops(self, layers: Sequence[Any]) -> AbstractContextManager[None]:
        """Does nothing, as Keras 3's LSTMs are loops that the converter does not recognise."""
        return contextlib.nullcontext()


@contextlib.contextmanager
def _without_mask_warnings() -> Iterator[None]:
    # Ignore Keras' warnings about layers that use a mask but do not pass it on.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="(?s)Layer .* does not support masking")
        yield


@contextlib.contextmanager
def _given(seeds: Sequence[LayerSeeds]) -> Iterator[None]:
    token = _SEEDS.set(seeds)
    try:
        yield
    finally:
        _SEEDS.reset(token)


def _draw_from_given_seeds(keras_model: tf.keras.Model) -> int:
    """Makes random generators use the seeds in `_SEEDS` if set; returns the number of seeds.

    The generators' own state has 64-bit seeds, from which ops would derive other random numbers
    than in Keras 2.
    """
    layers = tf.keras.layers
    # In Keras 2 these layers have an index for seeds even if they draw nothing; a recurrent layer
    # has one in addition to its cell's.
    counted = (layers.Dropout, layers.LSTM, layers.GRU, layers.SimpleRNN)
    count = 0
    for layer in model_layers(keras_model):
        generators = layer._seed_generators
        for k, generator in enumerate(generators):
            # Use the class's method, as an earlier `pure_call` may have replaced the instance's.
            class_next = functools.partial(type(generator).next, generator)
            generator.next = functools.partial(_next_seed, class_next, count + k)
        count += max(len(generators), isinstance(layer, counted))
    return count


def _next_seed(class_next: Callable[..., tf.Tensor], index: int, ordered: bool = True) -> tf.Tensor:
    seeds = _SEEDS.get()
    return class_next(ordered) if seeds is None else seeds[index].next()
