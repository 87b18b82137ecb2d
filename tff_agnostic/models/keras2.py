"""The Keras 2 platform (TensorFlow 2.14): replaces variables by tensors during tracing.

It uses private attributes of Keras; see `keras_platform` for the purpose of each function.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, Optional

from tff_agnostic.base.later import tf
from tff_agnostic.models.keras_platform import KERAS_2, LayerSeeds, Penalty, PureCall, model_layers

# Attributes in which Keras registers a layer's variables; the forward pass never reads them.
_BOOKKEEPING = frozenset(
    {"_trainable_weights", "_non_trainable_weights", "_self_tracked_trackables"}
)

Slot = tuple[dict[str, Any], str, Any]
# A slot, the indices of the weights in it, and the compute dtype of its layer.
WeightSlot = tuple[Slot, list[int], Optional[str]]


class Keras2:
    """See `KerasPlatform`."""

    release = KERAS_2

    def name_layers_afresh(self) -> None:
        """Resets Keras' name counters."""
        tf.keras.backend.reset_uids()

    def pure_call(self, keras_model: tf.keras.Model, variables: Sequence[tf.Variable]) -> PureCall:
        """Replaces the attributes of layers that hold variables or random generators."""
        weight_slots = find_weight_slots(keras_model, variables)
        random_slots = find_random_slots(keras_model)

        def call(values: Sequence[tf.Tensor], x: Any, training: bool, seed: tf.Tensor) -> Any:
            generators = [StatelessGenerator(seed, i) for i in range(len(random_slots))]
            with swapped(weight_slots, values), swapped_each(random_slots, generators):
                return keras_model(x, training=training)

        return call

    def make_reentrant(self, keras_model: tf.keras.Model) -> None:
        """Disables fused normalisation."""
        # The fused CPU kernel of TensorFlow 2.14 (oneDNN) stores values of a call in the kernel
        # object, so threads that run it concurrently overwrite each other's values.
        for module in model_layers(keras_model):
            if isinstance(module, tf.keras.layers.LayerNormalization):
                module._fused = False
            if isinstance(module, tf.keras.layers.BatchNormalization):
                module.fused = False

    def penalties(
        self, keras_model: tf.keras.Model, trainable: Sequence[tf.Variable]
    ) -> list[Penalty]:
        """Extracts the regularizers from the layers' losses.

        Keras binds a regularizer to its variable, as one `functools.partial` inside another, so
        replacing the layer's attributes would not affect it.
        """
        index_by_id = {id(w): i for i, w in enumerate(trainable)}
        penalties = []
        for module in model_layers(keras_model):
            for tagged in module._callable_losses:
                penalty = tagged.args[0]
                bound: tuple = getattr(penalty, "args", ())
                if len(bound) != 1 or id(bound[0]) not in index_by_id:
                    raise ValueError(
                        f"layer {module.name!r} adds a loss that is not a regularizer of one "
                        "trainable weight; only weight regularizers are part of the objective"
                    )
                penalties.append((index_by_id[id(bound[0])], penalty.func))
        return penalties

    def layers_with_losses(self, keras_model: tf.keras.Model) -> list[str]:
        """See `KerasPlatform.layers_with_losses`."""
        return [module.name for module in model_layers(keras_model) if module._eager_losses]

    def weight_name(self, weight: tf.Variable) -> str:
        """Returns the variable's name without the output index."""
        name: str = weight.name
        return name.partition(":")[0]

    def is_graph(self, keras_model: tf.keras.Model) -> bool:
        """Whether Keras marks the model as a graph."""
        return bool(getattr(keras_model, "_is_graph_network", False))

    def rebuilt(
        self,
        keras_model: tf.keras.Model,
        make_form: Callable[[tf.keras.layers.Layer], Callable[..., Any]],
    ) -> tf.keras.Model:
        """Rebuilds the model node by node, in Keras' order."""
        inputs = [
            tf.keras.Input(x.shape[1:], batch_size=x.shape[0], dtype=x.dtype, name=layer.name)
            for x, layer in zip(keras_model.inputs, keras_model._input_layers)
        ]
        # As in Keras' own traversal, each tensor has a list of copies, one for each use.
        uses: Mapping[str, int] = keras_model._tensor_usage_count
        values = {
            str(id(x)): [new] * uses[str(id(x))] for x, new in zip(keras_model.inputs, inputs)
        }
        forms: dict[int, Callable[..., Any]] = {}
        for depth in sorted(keras_model._nodes_by_depth, reverse=True):
            for node in keras_model._nodes_by_depth[depth]:
                if node.is_input:
                    continue
                args, kwargs = node.map_arguments(values)
                # Create only one form of a layer that is called several times.
                if id(node.layer) not in forms:
                    forms[id(node.layer)] = make_form(node.layer)
                outputs = tf.nest.flatten(forms[id(node.layer)](*args, **kwargs))
                for key, value in zip(node.flat_output_ids, outputs):
                    values[key] = [value] * uses[key]
        outputs = [values[str(id(x))].pop() for x in keras_model.outputs]
        return tf.keras.Model(
            tf.nest.pack_sequence_as(keras_model._nested_inputs, inputs),
            tf.nest.pack_sequence_as(keras_model._nested_outputs, outputs),
            name=keras_model.name,
        )

    def save(self, keras_model: tf.keras.Model, path: Path) -> None:
        """See `KerasPlatform.save`; the .keras format is not this release's default."""
        keras_model.save(path, save_format="keras")

    def load(self, source: Any, classes: Mapping[str, Any], safe_mode: bool) -> tf.keras.Model:
        """See `KerasPlatform.load`; Keras' function accepts both paths and HDF5 files."""
        return tf.keras.models.load_model(source, classes, compile=False, safe_mode=safe_mode)

    @contextlib.contextmanager
    def recurrence_as_loops(self, layers: Sequence[Any]) -> Iterator[None]:
        """Replaces the `call` of LSTMs by their base class's `call`."""
        lstm = tf.keras.layers.LSTM
        layers_to_change = [
            layer for layer in layers if isinstance(layer, lstm) and type(layer).call is lstm.call
        ]
        for layer in layers_to_change:
            # The LSTM's `call` may select a fused kernel; the base class's `call` always runs the
            # cell step by step.
            layer.call = functools.partial(tf.keras.layers.RNN.call, layer)
        try:
            yield
        finally:
            for layer in layers_to_change:
                del layer.call


def find_weight_slots(
    keras_model: tf.keras.Model, weights: Sequence[tf.Variable]
) -> list[WeightSlot]:
    """Finds every attribute that holds weights, and the indices of these weights.

    A slot is an attribute that holds either one variable or a list of variables.
    """
    index_by_id = {id(w): i for i, w in enumerate(weights)}
    slots: list[WeightSlot] = []
    for module in model_layers(keras_model):
        attributes = vars(module)
        dtype = getattr(module, "compute_dtype", None)
        for name, value in attributes.items():
            if name in _BOOKKEEPING:
                continue
            if id(value) in index_by_id:
                slots.append(((attributes, name, value), [index_by_id[id(value)]], dtype))
            elif isinstance(value, (list, tuple)) and value:
                indices = [index_by_id.get(id(v), -1) for v in value]
                if min(indices) >= 0:
                    slots.append(((attributes, name, value), indices, dtype))
    indices_found = {i for _, indices, _ in slots for i in indices}
    missing = [w.name for i, w in enumerate(weights) if i not in indices_found]
    if missing:
        raise ValueError(
            "every weight must be an attribute of a layer, or in a list that is one; these are "
            f"not: {', '.join(missing)}"
        )
    return slots


def find_random_slots(keras_model: tf.keras.Model) -> list[Slot]:
    """Finds every attribute that holds a layer's random generator."""
    return [
        (vars(module), "_random_generator", vars(module)["_random_generator"])
        for module in model_layers(keras_model)
        if "_random_generator" in vars(module)
    ]


@contextlib.contextmanager
def swapped(slots: Sequence[WeightSlot], values: Sequence[tf.Tensor]) -> Iterator[None]:
    """Replaces each weight by a tensor inside this context."""
    replacements = []
    for (_, _, original), indices, dtype in slots:
        chosen = [_in_dtype(values[i], dtype) for i in indices]
        replacements.append(chosen if isinstance(original, (list, tuple)) else chosen[0])
    with swapped_each([slot for slot, _, _ in slots], replacements):
        yield


@contextlib.contextmanager
def swapped_each(slots: Sequence[Slot], replacements: Sequence[Any]) -> Iterator[None]:
    """Replaces the value of each slot inside this context."""
    # Write to the attribute dictionaries directly, as Keras' __setattr__ would track the tensors.
    for (attributes, name, _), replacement in zip(slots, replacements):
        attributes[name] = replacement
    try:
        yield
    finally:
        for attributes, name, original in slots:
            attributes[name] = original


def _in_dtype(value: tf.Tensor, dtype: Optional[str]) -> tf.Tensor:
    # Keras casts variables that mixed-precision layers read, but not the tensors used here.
    current = tf.as_dtype(value.dtype)
    if dtype is None or current == dtype or not current.is_floating:
        return value
    return tf.cast(value, dtype)


class StatelessGenerator(LayerSeeds):
    """The methods of `keras.backend.RandomGenerator` that layers use, with stateless seeds."""

    def make_seed_for_stateless_op(self) -> tf.Tensor:
        """Returns a new seed, int32 [2]."""
        return self.next()

    def dropout(self, inputs: tf.Tensor, rate: float, noise_shape: Any = None) -> tf.Tensor:
        """Sets a fraction `rate` of the inputs to 0, and scales up the others."""
        return tf.nn.experimental.stateless_dropout(
            inputs, rate=rate, noise_shape=noise_shape, seed=self.next()
        )

    def random_uniform(
        self, shape: Any, minval: float = 0.0, maxval: Any = None, dtype: Any = None, **_: Any
    ) -> tf.Tensor:
        """Draws uniform values."""
        high = 1.0 if maxval is None else maxval
        return tf.random.stateless_uniform(shape, self.next(), minval, high, dtype or tf.float32)

    def random_normal(
        self, shape: Any, mean: float = 0.0, stddev: float = 1.0, dtype: Any = None, **_: Any
    ) -> tf.Tensor:
        """Draws normal values."""
        return tf.random.stateless_normal(shape, self.next(), mean, stddev, dtype or tf.float32)

    def truncated_normal(
        self, shape: Any, mean: float = 0.0, stddev: float = 1.0, dtype: Any = None, **_: Any
    ) -> tf.Tensor:
        """Draws normal values within two standard deviations."""
        return tf.random.stateless_truncated_normal(
            shape, self.next(), mean, stddev, dtype or tf.float32
        )
