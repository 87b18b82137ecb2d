"""Keras models as pure functions: conversion, checks, penalties, precision, frozen layers.

Tensors replace a Keras model's variables while its call is traced; see `keras_platform`.
`tff.learning.models.functional_model_from_keras` instead imports a GraphDef, which cannot be
vectorised over clients, cannot run outside TFF, and leaves dropout unseeded.
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import json
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Callable, NamedTuple, Optional, Union

import numpy as np

from tff_agnostic.base.later import tf
from tff_agnostic.base.options import OptionError, Verbatim
from tff_agnostic.base.registry import Registry
from tff_agnostic.models.batch_mixing import (
    Mixing,
    example_refusal,
    find_model_mixing,
    on_made_up_examples,
    per_example_loss,
    perturbed,
)
from tff_agnostic.models.keras_platform import keras_platform, model_layers, name_layers_afresh
from tff_agnostic.models.metrics import ColumnLoss, Metric
from tff_agnostic.models.model import Examples, Model, ModelWeights

# Keras policy and loss scale of each precision. Without a loss scale, float16 gradients below 6e-8
# would underflow to 0; bfloat16 has the range of float32.
_POLICIES: Registry[tuple[str, float]] = Registry(
    "precision",
    {
        "float32": ("float32", 1.0),
        "mixed_bfloat16": ("mixed_bfloat16", 1.0),
        "mixed_float16": ("mixed_float16", 1024.0),
    },
)
PRECISIONS: Registry[str] = Registry("precision", {name: name for name in _POLICIES})
_FROZEN_LAYERS = "frozen_layers"

Predict = Callable[[ModelWeights, Any, bool, "tf.Tensor"], "tf.Tensor"]


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
        loss: A Keras loss with `reduction="none"`, or a function (labels, predictions) -> [n].
        example_spec: Specs of "x" and "y" with a first dimension of None.
        metrics: Metrics to report in addition to the loss.
        seed: Seed of the initial weights.

    Returns:
        The model in functional form. Dropout and other random layers draw from each call's seed.

    Raises:
        ValueError: If the model has no trainable weights, or some are not float32 or not in layer
            attributes. If layers update their own state while training, as batch normalisation
            does. If the call adds losses or captures variables. If `loss` does not return one
            number per example. If an example's outputs, loss or metrics depend on other examples of
            its batch.
    """
    tf.keras.utils.set_random_seed(seed)
    name_layers_afresh()
    keras_model = build()
    refuse_other_dtypes(keras_model)
    refuse_stateful_layers(keras_model)
    keras_platform().make_reentrant(keras_model)
    trainable = list(keras_model.trainable_weights)
    non_trainable = list(keras_model.non_trainable_weights)
    if not (trainable or non_trainable or keras_model.built):
        # Only Keras 3 needs this check, as Keras 2 raises a similar error by itself.
        raise ValueError(
            f"weights of the model {keras_model.name!r} have not yet been created: its first layer "
            "must be a tf.keras.Input"
        )
    predict = _model_call(keras_model, trainable + non_trainable)

    penalties = keras_platform().penalties(keras_model, trainable)
    model = Model(
        initial_weights=_values(keras_model),
        example_spec=example_spec,
        predict=predict,
        loss=loss,
        regularizer=WeightPenalties(tuple(penalties)) if penalties else None,
        constraint=_constraints(trainable),
        metrics=tuple(metrics),
        loss_scale=current_loss_scale(),
        keras_model=keras_model,
    )
    model = _checked(model)
    if not trainable:
        frozen = f", and {len(non_trainable)} frozen" if non_trainable else ""
        raise ValueError(
            f"expected a model with weights to train, found none{frozen}: there is nothing to learn"
        )
    return model


def fixed_from_keras(keras_model: tf.keras.Model, like: Model) -> Model:
    """Wraps a trained Keras model as a `Model` without trainable weights.

    As it is not trained again, it may have moving averages, added losses and weights of any dtype.

    Args:
        keras_model: The Keras model; none of its weights are trainable afterwards.
        like: A model with the same inputs, labels and loss.

    Raises:
        ValueError: If the model is not a pure function of weights in layer attributes.
    """
    keras_model.trainable = False
    keras_platform().make_reentrant(keras_model)
    weights = list(keras_model.weights)
    model = Model(
        initial_weights=ModelWeights([], [weight.numpy() for weight in weights]),
        example_spec=like.example_spec,
        predict=_model_call(keras_model, weights),
        loss=like.loss,
        keras_model=keras_model,
    )
    traced = trace_outputs(model, _predicting(model, training=False))
    refuse_captured_state(traced)
    fixed = perturbed(model.initial_weights)
    on_made_up_examples(
        model.example_spec, lambda made: _refuse_mixing(model, fixed, traced, made, training=False)
    )
    return model


def with_seed(model: Model, build: Callable[[], tf.keras.Model], seed: int) -> Model:
    """Returns `model` with the initial weights of another seed.

    Args:
        model: The result of `model_from_keras` for `build` and seed 0.
        seed: Seed of the initial weights.
    """
    if seed == 0:
        return model
    tf.keras.utils.set_random_seed(seed)
    return dataclasses.replace(model, initial_weights=_values(build()))


def sharing_functions(model: Model, earlier: Iterable[Model]) -> Model:
    """Returns `model`, but with an earlier model's functions if that model computes the same.

    A runtime then reuses its traces of the earlier model. Two models compute the same if both are
    graphs of Keras' own layers with equal configurations, equal Keras losses and equal metrics. A
    model without an equal earlier model, or with other layers or losses, is returned unchanged.

    Args:
        model: The result of `model_from_keras`.
        earlier: Earlier results of `model_from_keras`.
    """
    description = _description(model)
    for other in earlier if description is not None else ():
        if other.metrics == model.metrics and _description(other) == description:
            return dataclasses.replace(other, initial_weights=model.initial_weights)
    return model


def _description(model: Model) -> Optional[str]:
    """Returns a string that identifies all of a model except its metrics; None if none can."""
    keras_model = model.keras_model
    loss = model.loss.loss if isinstance(model.loss, ColumnLoss) else model.loss
    if keras_model is None or not keras_platform().is_graph(keras_model):
        return None
    # The configuration of a layer with `adapt` does not contain its adapted state.
    if any(hasattr(layer, "adapt") for layer in model_layers(keras_model)):
        return None
    # Check the loss's function as well, as a Keras loss may wrap a user's function.
    computed_by = (type(loss), getattr(loss, "fn", type(loss)))
    if not isinstance(loss, tf.keras.losses.Loss) or not all(map(_is_keras_object, computed_by)):
        return None
    try:
        with warnings.catch_warnings():
            # Suppress Keras' warnings about lambdas in configurations.
            warnings.simplefilter("ignore")
            config = json.loads(keras_model.to_json())
        loss_text = json.dumps([type(loss).__name__, loss.get_config()], sort_keys=True)
    except (NotImplementedError, TypeError, ValueError):
        return None
    if not _names_keras_only(config.get("config")):
        return None
    # Describe specs and losses by strings, which contain shapes, dtypes and settings.
    parts = (
        config,
        str(model.example_spec),
        type(model.loss).__name__,
        loss_text,
        model.loss_scale,
    )
    return json.dumps(parts, sort_keys=True)


def _is_keras_object(made: Any) -> bool:
    return _is_keras_module(getattr(made, "__module__", None) or "")


def _is_keras_module(module: str) -> bool:
    return module.partition(".")[0] == "keras"


def _names_keras_only(config: Any) -> bool:
    """Whether a configuration names only Keras' layers, without user code or tensor operations."""
    if isinstance(config, Mapping):
        if "class_name" in config:
            name, module = str(config["class_name"]), str(config.get("module") or "")
            # A tensor operation is of class TFOpLambda in Keras 2, and of keras.ops in Keras 3.
            if "Lambda" in name or "Op" in name or not _is_keras_module(module):
                return False
        # Reject lambdas: their configurations contain their code as "value".
        return "value" not in config and all(map(_names_keras_only, config.values()))
    return not isinstance(config, list) or all(map(_names_keras_only, config))


def _model_call(keras_model: tf.keras.Model, variables: Sequence[tf.Variable]) -> Predict:
    """Returns a Keras model's call as a function of its variables' values."""
    call = keras_platform().pure_call(keras_model, variables)

    def predict(weights: ModelWeights, x: Any, training: bool, seed: tf.Tensor) -> tf.Tensor:
        values = [*weights.trainable, *weights.non_trainable]
        return tf.nest.map_structure(as_float32, call(values, x, training, seed))

    return predict


def _values(keras_model: tf.keras.Model) -> ModelWeights:
    return ModelWeights(
        trainable=[v.numpy() for v in keras_model.trainable_weights],
        non_trainable=[v.numpy() for v in keras_model.non_trainable_weights],
    )


def refuse_other_dtypes(keras_model: tf.keras.Model) -> None:
    """Raises `ValueError` if a trainable weight is not float32."""
    # Nested layers come last in the list; reverse it to name the innermost layer.
    for module in reversed(model_layers(keras_model)):
        for weight in module.trainable_weights:
            dtype = weight.numpy().dtype.name
            if dtype != "float32":
                raise ValueError(
                    f"layer {module.name!r} keeps its weights in {dtype}: expected float32, for "
                    "the sums of updates; a run's precision sets the type in which layers compute"
                )


def refuse_stateful_layers(keras_model: tf.keras.Model) -> None:
    """Raises `ValueError` if training would add losses, or update state other than weights."""
    for module in model_layers(keras_model):
        if isinstance(module, tf.keras.layers.BatchNormalization) and module.trainable:
            raise ValueError(
                f"layer {module.name!r} updates moving averages while training, which no federated "
                "sum carries to the server: use GroupNormalization or LayerNormalization"
            )
        if isinstance(module, tf.keras.layers.Normalization) and _has_seen_nothing(module):
            raise ValueError(
                f"layer {module.name!r} is not adapted to data, and leaves numbers unchanged: give "
                "it mean=data.x_mean and variance=data.x_deviation**2"
            )
        if getattr(module, "activity_regularizer", None) is not None:
            raise ValueError(
                f"layer {module.name!r} has an activity regularizer; only weight regularizers are "
                "part of the objective"
            )


def _has_seen_nothing(layer: tf.keras.layers.Normalization) -> bool:
    # A layer has no weights for mean and variance if they are arguments of its constructor.
    mean, variance = (getattr(layer, name, None) for name in ("adapt_mean", "adapt_variance"))
    if mean is None or variance is None:
        return False
    return bool(tf.reduce_all(mean == 0.0)) and bool(tf.reduce_all(variance == 1.0))


def _checked(model: Model) -> Model:
    """Traces and checks a model; returns it with the loss of `per_example_loss`.

    Raises:
        ValueError: If a check of the model's traced calls fails.
    """
    # Find losses that the model's call adds, as they would be missing from the objective.
    layers_with_losses: list[str] = []

    def note_losses() -> None:
        layers_with_losses.extend(keras_platform().layers_with_losses(model.keras_model))

    training = trace_outputs(model, _predicting(model, training=True), note_losses)
    if layers_with_losses:
        raise ValueError(
            f"layer {layers_with_losses[0]!r} adds a loss in its call; only weight regularizers "
            "are part of the objective"
        )
    refuse_captured_state(training)
    evaluating = trace_outputs(model, _predicting(model, training=False))
    weights = perturbed(model.initial_weights)

    def on_examples(made: Examples) -> Model:
        _refuse_mixing(model, weights, training, made, training=True)
        _refuse_mixing(model, weights, evaluating, made, training=False)
        outputs = evaluating(tuple(weights), made, tf.zeros([2], tf.int32))
        loss = per_example_loss(model.loss, made["y"], outputs)
        _refuse_other_shapes(loss, model.example_spec["y"], evaluating.structured_outputs)
        metrics = {f"metric {metric.name}": metric.per_example for metric in model.metrics}
        refusal = example_refusal({"loss": loss, **metrics}, made["y"], outputs)
        if refusal is not None:
            raise ValueError(refusal)
        return dataclasses.replace(model, loss=loss)

    return on_made_up_examples(model.example_spec, on_examples)


def _predicting(model: Model, training: bool) -> Callable[[ModelWeights, Examples, tf.Tensor], Any]:
    return lambda weights, examples, seed: model.predict(weights, examples["x"], training, seed)


def _refuse_other_shapes(loss: Any, labels: tf.TensorSpec, outputs: Any) -> None:
    """Raises `ValueError` if a loss reads variables, or is not one number per example."""
    specs = tf.nest.map_structure(lambda one: tf.TensorSpec(one.shape, one.dtype), outputs)
    traced = tf.function(loss, autograph=False).get_concrete_function(labels, specs)
    refuse_captured_state(traced)
    if traced.structured_outputs.shape.rank not in (None, 1):
        raise ValueError(
            "loss: expected one number per example, shape [n], found shape "
            f'{traced.structured_outputs.shape}; Keras losses need reduction="none"'
        )


def _refuse_mixing(
    model: Model, weights: ModelWeights, traced: Any, made: Examples, training: bool
) -> None:
    """Raises `ValueError` if a model's outputs for an example depend on the rest of its batch."""
    mixing = find_model_mixing(lambda rows, seed: traced(tuple(weights), rows, seed), made)
    if mixing is None:
        return
    assert model.keras_model is not None
    place = f"the model {model.keras_model.name!r}"
    # Omit the layer if it is not found in the graph; the error is correct without its name.
    with contextlib.suppress(Exception):
        layer, mixing = _mixing_layer(model.keras_model, weights, made["x"], training)
        place = f"layer {layer!r}"
    raise ValueError(
        f"{mixing.message(place, 'outputs of an example')}: use layers that see one example at a "
        "time, such as LayerNormalization"
    )


def _mixing_layer(
    keras_model: tf.keras.Model, weights: ModelWeights, x: Any, training: bool
) -> tuple[str, Mixing]:
    """Returns the name of a graph's first layer with batch-dependent outputs, and its `Mixing`."""
    pairs = [
        (layer.name, output)
        for layer in keras_model.layers
        for output in tf.nest.flatten(layer.output)
        # Skip outputs without a row per example, such as a mean over the batch: the layer that uses
        # the mean is found instead.
        if len(output.shape) and output.shape[0] is None
    ]
    variables = [*keras_model.trainable_weights, *keras_model.non_trainable_weights]
    # In Keras 3 a sequential model has `inputs`, but no `input` before its first call.
    is_sequential = isinstance(keras_model, tf.keras.Sequential)
    inputs = keras_model.inputs[0] if is_sequential else keras_model.input
    probe = tf.keras.Model(inputs, [output for _, output in pairs])
    call = keras_platform().pure_call(probe, variables)
    values = [*weights.trainable, *weights.non_trainable]
    mixing = find_model_mixing(lambda rows, seed: call(values, rows, training, seed), x)
    assert mixing is not None
    return pairs[mixing.output][0], mixing


def trace_outputs(
    model: Model,
    compute: Callable[[ModelWeights, Examples, tf.Tensor], Any],
    while_tracing: Callable[[], None] = lambda: None,
) -> Any:
    """Returns `compute` traced as a function of weights (a tuple), examples and a seed, int32 [2].

    Args:
        compute: Function of `ModelWeights`, examples and a seed.
        while_tracing: Called at the end of the trace.

    Raises:
        ValueError: If the model assigns to a weight.
    """

    def outputs(weights: Any, examples: Examples, seed: tf.Tensor) -> Any:
        result = compute(ModelWeights(*weights), examples, seed)
        while_tracing()
        return result

    weight_specs = tf.nest.map_structure(
        lambda w: tf.TensorSpec(w.shape, w.dtype), tuple(model.initial_weights)
    )
    try:
        return tf.function(outputs, autograph=False).get_concrete_function(
            weight_specs, model.example_spec, tf.TensorSpec([2], tf.int32)
        )
    except AttributeError as e:
        # The model called `assign` of a weight: tensors replace the weights, and have no `assign`.
        raise ValueError(
            f"the model is not a pure function of its weights: {' '.join(str(e).split())}"
        ) from e


def refuse_captured_state(traced: Any) -> None:
    """Raises `ValueError` if a traced function reads variables that are not its arguments."""
    # Reject variables that a closure captures, as they would silently keep their first values.
    if any(tensor.dtype == tf.resource for tensor in traced.graph.external_captures):
        names = sorted({variable.name for variable in traced.graph.variables})
        raise ValueError(
            "the model's call: expected no state except weights in attributes of layers, found "
            f"{', '.join(names) or 'a resource'}"
        )


@dataclasses.dataclass(frozen=True)
class _WeightFunctions:
    """Functions that each take one trainable weight.

    Attributes:
        functions: One or more pairs of a trainable weight's position and its function.
    """

    functions: tuple[tuple[int, Callable[[tf.Tensor], tf.Tensor]], ...]

    def without(self, frozen: Sequence[int]) -> Any:
        """Returns the functions of weights that remain trainable; None if no function remains.

        Args:
            frozen: Positions of the frozen weights.
        """
        remaining = [
            (position - sum(gone < position for gone in frozen), function)
            for position, function in self.functions
            if position not in frozen
        ]
        return type(self)(tuple(remaining)) if remaining else None


class WeightPenalties(_WeightFunctions):
    """The sum of all weights' regularizers, as a function of the trainable weights."""

    def __call__(self, weights: Sequence[tf.Tensor]) -> tf.Tensor:
        """Returns the sum of the penalties, a scalar."""
        return tf.add_n([penalty(weights[position]) for position, penalty in self.functions])


class WeightConstraints(_WeightFunctions):
    """All weights' constraints, as a function of the trainable weights."""

    def __call__(self, weights: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns weights that satisfy their constraints."""
        constrain = dict(self.functions)
        return [constrain[k](w) if k in constrain else w for k, w in enumerate(weights)]


def _constraints(trainable: Sequence[tf.Variable]) -> Optional[WeightConstraints]:
    """Returns the constraints of variables; None if there are none.

    Raises:
        ValueError: If a constraint cannot be traced, or is not idempotent.
    """
    constraints = [(k, v.constraint) for k, v in enumerate(trainable) if v.constraint is not None]
    for position, constraint in constraints:
        variable, kind = trainable[position], type(constraint).__name__
        place = f"weight {keras_platform().weight_name(variable)}"
        weight = np.random.default_rng(0).normal(size=variable.shape)
        traced = tf.function(lambda w, constrain=constraint: constrain(w), autograph=False)
        try:
            once = traced(tf.constant(weight, tf.float32))
        # An example is Keras 2's RadialConstraint, which creates variables; Keras cannot use it.
        except Exception as e:
            raise ValueError(
                f"{place}: expected a constraint that TensorFlow can trace, found {kind}, which "
                f"raises {type(e).__name__}"
            ) from e
        # The constraint must be idempotent, as the server applies it again after averaging.
        if not np.allclose(traced(once), once, rtol=1e-4, atol=1e-5):
            raise ValueError(
                f"{place}: expected a constraint that does not change its own results, found {kind}"
            )
    return WeightConstraints(tuple(constraints)) if constraints else None


@contextlib.contextmanager
def computing_in(precision: str) -> Iterator[None]:
    """Gives Keras layers built in this context a precision, a name in `PRECISIONS`."""
    policy, _ = _POLICIES[precision]
    before = tf.keras.mixed_precision.global_policy()
    tf.keras.mixed_precision.set_global_policy(policy)
    try:
        yield
    finally:
        tf.keras.mixed_precision.set_global_policy(before)


def current_loss_scale() -> float:
    """Returns the loss scale for models built under the current Keras policy."""
    name = tf.keras.mixed_precision.global_policy().name
    return _POLICIES[name][1] if name in _POLICIES else 1.0


def as_float32(value: tf.Tensor) -> tf.Tensor:
    """Casts 16-bit floats to float32; returns other tensors unchanged."""
    return tf.cast(value, tf.float32) if value.dtype in (tf.float16, tf.bfloat16) else value


def freeze(model: Model, patterns: Sequence[str]) -> Model:
    """Returns a model in which layers that match one of the patterns are frozen.

    The frozen layers' weights become the first non-trainable weights, so that algorithms,
    aggregations and runtimes need no special case. Their regularizers are constant, and omitted
    from the loss.

    Args:
        model: A model made from a Keras model, without frozen layers.
        patterns: Names of layers, or glob patterns such as `block_*`.
    """
    if not patterns:
        return model
    names = _layer_weights(model)
    unknown = [p for p in patterns if not any(fnmatchcase(name, p) for name in names)]
    if unknown:
        expected = f"layers with weights to train, or patterns of them ({', '.join(names)})"
        raise OptionError(_FROZEN_LAYERS, expected, unknown[0])
    frozen = {
        position
        for name, positions in names.items()
        if any(fnmatchcase(name, pattern) for pattern in patterns)
        for position in positions
    }
    if len(frozen) == len(model.initial_weights.trainable):
        frozen_layers = Verbatim(f"all that have weights: {', '.join(names)}")
        raise OptionError(_FROZEN_LAYERS, "some layers to stay trainable", frozen_layers)
    positions = tuple(sorted(frozen))

    def without_frozen(function: Any) -> Any:
        return function.without(positions) if isinstance(function, _WeightFunctions) else function

    return dataclasses.replace(
        model,
        initial_weights=with_frozen(model.initial_weights, positions),
        predict=_Predict(model.predict, positions),
        regularizer=without_frozen(model.regularizer),
        constraint=without_frozen(model.constraint),
        frozen=positions,
    )


class LastLayer(NamedTuple):
    """The last trainable layer of a model.

    Attributes:
        name: Name of the layer.
        others: Patterns of the names of the layers to freeze so that only this layer is trained.
    """

    name: str
    others: tuple[str, ...]


def last_layer(model: Model) -> LastLayer:
    """Returns the layer with the model's last trainable weight.

    Args:
        model: A model made from a Keras model; some of its layers may be frozen.
    """
    layers, frozen = _layer_weights(model), set(model.frozen)
    trained = set().union(*layers.values()) - frozen
    last = max(trained)
    # If layers are nested, choose the innermost, which comes after the layers that contain it.
    holders = [n for n in layers if last in layers[n]]
    name = min(reversed(holders), key=lambda n: len(layers[n]))
    others = [
        n
        for n, positions in layers.items()
        if positions.isdisjoint(layers[name]) and positions - frozen
    ]
    unowned = trained - layers[name] - set().union(*(layers[n] for n in others))
    if unowned:
        expected = f"a model whose last layer, {name}, can be trained without the others"
        reason = Verbatim("weights that belong to no layer but the model")
        raise OptionError(_FROZEN_LAYERS, expected, reason)
    return LastLayer(name, tuple(map(glob.escape, others)))


def with_frozen(weights: ModelWeights, frozen: Sequence[int]) -> ModelWeights:
    """Reorders a Keras model's weights: frozen weights become the first non-trainable ones.

    Args:
        weights: Trainable and non-trainable weights in the Keras model's order.
        frozen: Positions among the trainable weights, ascending; see `Model.frozen`.
    """
    trainable = list(weights.trainable)
    kept = [weight for k, weight in enumerate(trainable) if k not in set(frozen)]
    return ModelWeights(kept, [*(trainable[k] for k in frozen), *weights.non_trainable])


def as_in_keras(weights: ModelWeights, frozen: Sequence[int]) -> ModelWeights:
    """Reorders weights as in the Keras model: the inverse of `with_frozen`."""
    trainable, others = list(weights.trainable), list(weights.non_trainable)
    for position, weight in zip(frozen, others):
        trainable.insert(position, weight)
    return ModelWeights(trainable, others[len(frozen) :])


# This is a dataclass, not a closure, so that equal models stay equal after freezing,
# and are traced once.
@dataclasses.dataclass(frozen=True)
class _Predict:
    predict: Callable[[ModelWeights, Any, bool, tf.Tensor], tf.Tensor]
    frozen: tuple[int, ...]

    def __call__(self, weights: ModelWeights, x: Any, training: bool, seed: tf.Tensor) -> tf.Tensor:
        return self.predict(as_in_keras(weights, self.frozen), x, training, seed)


def _layer_weights(model: Model) -> Mapping[str, set[int]]:
    """Maps each layer's name to the positions of its trainable weights."""
    keras_model = model.keras_model
    if keras_model is None:
        raise OptionError(_FROZEN_LAYERS, "a task with a Keras model", Verbatim("another model"))
    position_by_id = {id(weight): k for k, weight in enumerate(keras_model.trainable_weights)}
    result: dict[str, set[int]] = {}
    for layer in model_layers(keras_model):
        positions = {position_by_id[id(w)] for w in getattr(layer, "trainable_weights", ())}
        if layer is not keras_model and positions:
            result.setdefault(layer.name, set()).update(positions)
    return result
