"""Keras models as pure functions: variables are swapped for tensors while a call is traced.

`tff.learning.models.functional_model_from_keras` does the same through an imported GraphDef, which
cannot be vectorised over clients, refuses to run outside TFF, and leaves dropout unseeded.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable, Optional, Union

import tensorflow as tf

from tff_agnostic.models.functional import Model, ModelWeights
from tff_agnostic.models.metrics import Metric
from tff_agnostic.models.precision import as_float32, current_loss_scale

# Keras' own bookkeeping of a layer's variables; its forward pass never reads them.
_BOOKKEEPING = frozenset(
    {"_trainable_weights", "_non_trainable_weights", "_self_tracked_trackables"}
)

Slot = tuple[dict[str, Any], str, Any]
# With the indices of the weights that it holds, and the dtype in which its layer computes.
WeightSlot = tuple[Slot, list[int], Optional[str]]


def model_from_keras(
    build: Callable[[], tf.keras.Model],
    *,
    loss: Union[tf.keras.losses.Loss, Callable[[tf.Tensor, tf.Tensor], tf.Tensor]],
    example_spec: Mapping[str, Any],
    metrics: Sequence[Metric] = (),
    seed: int = 0,
) -> Model:
    """Wraps a Keras model as a `Model`.

    Args:
        build: Returns a built Keras model; called once, after the global seeds are set.
        loss: A Keras loss with `reduction="none"`, or a function; (labels, predictions) -> [n].
        example_spec: Specs of "x" and "y" with a first dimension of None.
        metrics: What to measure beside the loss.
        seed: Seeds the initial weights.

    Returns:
        The functional form. Dropout and other random layers draw from the seed of each call.

    Raises:
        ValueError: If the model has no trainable weights, or some of another type than float32; if
            it has weights that no layer attribute holds, or layers that update their own state
            while training, such as batch normalisation; if its call adds losses or
            reaches variables in other ways; or if `loss` does not return one number per example.
    """
    tf.keras.utils.set_random_seed(seed)
    keras_model = build()
    _refuse_other_dtypes(keras_model)
    _refuse_stateful_layers(keras_model)
    _avoid_fused_normalization(keras_model)
    trainable = list(keras_model.trainable_weights)
    non_trainable = list(keras_model.non_trainable_weights)
    weight_slots = _find_weight_slots(keras_model, trainable + non_trainable)
    random_slots = _find_random_slots(keras_model)

    def predict(weights: ModelWeights, x: Any, training: bool, seed: tf.Tensor) -> tf.Tensor:
        values = [*weights.trainable, *weights.non_trainable]
        generators = [_StatelessGenerator(seed, i) for i in range(len(random_slots))]
        with _swapped(weight_slots, values), _swapped_each(random_slots, generators):
            return tf.nest.map_structure(as_float32, keras_model(x, training=training))

    penalties = _find_penalties(keras_model, trainable)

    def regularizer(weights: Sequence[tf.Tensor]) -> tf.Tensor:
        return tf.add_n([penalty(weights[i]) for i, penalty in penalties])

    model = Model(
        initial_weights=_values(keras_model),
        example_spec=example_spec,
        predict=predict,
        loss=loss,
        regularizer=regularizer if penalties else None,
        metrics=tuple(metrics),
        loss_scale=current_loss_scale(),
    )
    _refuse_impure_calls(keras_model, model)
    if not trainable:
        frozen = f", and {len(non_trainable)} frozen" if non_trainable else ""
        raise ValueError(
            f"expected a model with weights to train, found none{frozen}: there is nothing to learn"
        )
    return model


def with_seed(model: Model, build: Callable[[], tf.keras.Model], seed: int) -> Model:
    """Returns a model with the initial weights of a seed, equal to `model` in all else.

    Args:
        model: What `model_from_keras` made of `build`.
        build: As there.
        seed: Seeds the initial weights.
    """
    tf.keras.utils.set_random_seed(seed)
    return dataclasses.replace(model, initial_weights=_values(build()))


def _values(keras_model: tf.keras.Model) -> ModelWeights:
    return ModelWeights(
        trainable=[v.numpy() for v in keras_model.trainable_weights],
        non_trainable=[v.numpy() for v in keras_model.non_trainable_weights],
    )


class _StatelessGenerator:
    """What Keras layers ask of `keras.backend.RandomGenerator`, from a stateless seed."""

    def __init__(self, seed: tf.Tensor, layer_index: int) -> None:
        self._seed = tf.random.experimental.stateless_fold_in(seed, layer_index)
        self._calls = 0

    def _next_seed(self) -> tf.Tensor:
        self._calls += 1
        return tf.random.experimental.stateless_fold_in(self._seed, self._calls)

    def make_seed_for_stateless_op(self) -> tf.Tensor:
        return self._next_seed()

    def dropout(self, inputs: tf.Tensor, rate: float, noise_shape: Any = None) -> tf.Tensor:
        return tf.nn.experimental.stateless_dropout(
            inputs, rate=rate, noise_shape=noise_shape, seed=self._next_seed()
        )

    def random_uniform(
        self, shape: Any, minval: float = 0.0, maxval: Any = None, dtype: Any = None, **_: Any
    ) -> tf.Tensor:
        high = 1.0 if maxval is None else maxval
        return tf.random.stateless_uniform(
            shape, self._next_seed(), minval, high, dtype or tf.float32
        )

    def random_normal(
        self, shape: Any, mean: float = 0.0, stddev: float = 1.0, dtype: Any = None, **_: Any
    ) -> tf.Tensor:
        return tf.random.stateless_normal(
            shape, self._next_seed(), mean, stddev, dtype or tf.float32
        )

    def truncated_normal(
        self, shape: Any, mean: float = 0.0, stddev: float = 1.0, dtype: Any = None, **_: Any
    ) -> tf.Tensor:
        return tf.random.stateless_truncated_normal(
            shape, self._next_seed(), mean, stddev, dtype or tf.float32
        )


def _modules(keras_model: tf.keras.Model) -> list[tf.Module]:
    # `submodules` would also walk into Keras' dropout mask caches, and fails there.
    return list(keras_model._flatten_layers())


def _refuse_other_dtypes(keras_model: tf.keras.Model) -> None:
    for module in _modules(keras_model):
        for weight in getattr(module, "_trainable_weights", ()) if module.trainable else ():
            dtype = weight.numpy().dtype.name
            if dtype != "float32":
                raise ValueError(
                    f"layer {module.name!r} keeps its weights in {dtype}: expected float32, in "
                    "which updates are summed; --precision says what layers compute in"
                )


def _refuse_stateful_layers(keras_model: tf.keras.Model) -> None:
    for module in _modules(keras_model):
        if isinstance(module, tf.keras.layers.BatchNormalization) and module.trainable:
            raise ValueError(
                f"layer {module.name!r} updates moving averages while training, which no federated "
                "sum carries to the server: use GroupNormalization or LayerNormalization"
            )
        if getattr(module, "activity_regularizer", None) is not None:
            raise ValueError(
                f"layer {module.name!r} has an activity regularizer; only weight regularizers are "
                "part of the objective"
            )


def _avoid_fused_normalization(keras_model: tf.keras.Model) -> None:
    # The CPU kernel of TensorFlow 2.14 (oneDNN's) keeps values of a call in itself: threads that
    # run it at once, as lanes do, write to each other's memory.
    for module in _modules(keras_model):
        if isinstance(module, tf.keras.layers.LayerNormalization):
            module._fused = False
        if isinstance(module, tf.keras.layers.BatchNormalization):
            module.fused = False


def _refuse_impure_calls(keras_model: tf.keras.Model, model: Model) -> None:
    # What the attributes of layers do not show: a variable reached through a closure would keep its
    # first value without a word, a loss added in a call would be missing from the objective.
    layers_with_losses: list[str] = []

    def losses(weights: Any, x: Any, y: Any) -> tf.Tensor:
        result, _ = model.example_losses(
            ModelWeights(*weights), {"x": x, "y": y}, training=True, seed=tf.zeros([2], tf.int32)
        )
        layers_with_losses.extend(m.name for m in _modules(keras_model) if m._eager_losses)
        return result

    weight_specs = tf.nest.map_structure(
        lambda w: tf.TensorSpec(w.shape, w.dtype), tuple(model.initial_weights)
    )
    try:
        traced = tf.function(losses, autograph=False).get_concrete_function(
            weight_specs, model.example_spec["x"], model.example_spec["y"]
        )
    except AttributeError as e:
        # What an assignment to a weight comes to, which is a tensor here.
        raise ValueError(
            f"the model is not a pure function of its weights: {' '.join(str(e).split())}"
        ) from e
    if layers_with_losses:
        raise ValueError(
            f"layer {layers_with_losses[0]!r} adds a loss in its call; only weight regularizers "
            "are part of the objective"
        )
    if any(tensor.dtype == tf.resource for tensor in traced.graph.external_captures):
        names = sorted({variable.name for variable in traced.graph.variables})
        raise ValueError(
            "the model's call may reach its weights through attributes of layers only, and no "
            f"other state; it reads {', '.join(names) or 'a resource'} in another way"
        )
    if traced.structured_outputs.shape.rank not in (None, 1):
        raise ValueError(
            "loss: expected one number per example, shape [n], found shape "
            f'{traced.structured_outputs.shape}; Keras losses need reduction="none"'
        )


def _find_weight_slots(
    keras_model: tf.keras.Model, weights: Sequence[tf.Variable]
) -> list[WeightSlot]:
    """Finds every attribute that holds weights, with the indices of the weights it holds.

    A slot is an attribute that holds either one variable or a list of variables.
    """
    index_of = {id(w): i for i, w in enumerate(weights)}
    slots: list[WeightSlot] = []
    for module in _modules(keras_model):
        attributes = vars(module)
        dtype = getattr(module, "compute_dtype", None)
        for name, value in attributes.items():
            if name in _BOOKKEEPING:
                continue
            if id(value) in index_of:
                slots.append(((attributes, name, value), [index_of[id(value)]], dtype))
            elif isinstance(value, (list, tuple)) and value:
                indices = [index_of.get(id(v), -1) for v in value]
                if min(indices) >= 0:
                    slots.append(((attributes, name, value), indices, dtype))
    found = {i for _, indices, _ in slots for i in indices}
    missing = [w.name for i, w in enumerate(weights) if i not in found]
    if missing:
        raise ValueError(
            "every weight must be an attribute of a layer, or in a list that is one; these are "
            f"not: {', '.join(missing)}"
        )
    return slots


def _in_dtype(value: tf.Tensor, dtype: Optional[str]) -> tf.Tensor:
    # What Keras does when a layer of mixed precision reads one of its variables.
    own = tf.as_dtype(value.dtype)
    if dtype is None or own == dtype or not own.is_floating:
        return value
    return tf.cast(value, dtype)


def _find_penalties(
    keras_model: tf.keras.Model, trainable: Sequence[tf.Variable]
) -> list[tuple[int, Callable[[tf.Tensor], tf.Tensor]]]:
    """Returns (index of a trainable weight, its regularizer) pairs.

    Keras binds a regularizer to its variable (a `functools.partial` in another that tags it), not
    to the layer's attribute, so swapping attributes would not reach it.
    """
    index_of = {id(w): i for i, w in enumerate(trainable)}
    penalties = []
    for module in _modules(keras_model):
        for tagged in module._callable_losses:
            penalty = tagged.args[0]
            bound: tuple = getattr(penalty, "args", ())
            if len(bound) != 1 or id(bound[0]) not in index_of:
                raise ValueError(
                    f"layer {module.name!r} adds a loss that is not a regularizer of one trainable "
                    "weight; only weight regularizers are part of the objective"
                )
            penalties.append((index_of[id(bound[0])], penalty.func))
    return penalties


def _find_random_slots(keras_model: tf.keras.Model) -> list[Slot]:
    return [
        (vars(module), "_random_generator", vars(module)["_random_generator"])
        for module in _modules(keras_model)
        if "_random_generator" in vars(module)
    ]


@contextlib.contextmanager
def _swapped(slots: Sequence[WeightSlot], values: Sequence[tf.Tensor]) -> Iterator[None]:
    replacements = []
    for (_, _, original), indices, dtype in slots:
        chosen = [_in_dtype(values[i], dtype) for i in indices]
        replacements.append(chosen if isinstance(original, (list, tuple)) else chosen[0])
    with _swapped_each([slot for slot, _, _ in slots], replacements):
        yield


@contextlib.contextmanager
def _swapped_each(slots: Sequence[Slot], replacements: Sequence[Any]) -> Iterator[None]:
    # The attribute dictionaries are written directly: Keras' __setattr__ would track the tensors.
    for (attributes, name, _), replacement in zip(slots, replacements):
        attributes[name] = replacement
    try:
        yield
    finally:
        for attributes, name, original in slots:
            attributes[name] = original
