"""Conversion of TFF models to a `Model`, and back."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable

import numpy as np

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.later import tf, tff
from tff_agnostic.models.batch_mixing import (
    example_refusal,
    find_model_mixing,
    on_made_up_examples,
    perturbed,
)
from tff_agnostic.models.keras import refuse_captured_state, trace_outputs
from tff_agnostic.models.metrics import Metric
from tff_agnostic.models.model import Examples, Model, ModelWeights

# Operations that draw random numbers from their own state instead of a given seed.
_DRAWS = frozenset(
    {
        "Multinomial",
        "ParameterizedTruncatedNormal",
        "RandomGammaV2",
        "RandomPoissonV2",
        "RandomShuffle",
        "RandomStandardNormal",
        "RandomUniform",
        "RandomUniformInt",
        "StatefulUniform",
        "TruncatedNormal",
    }
)
# Sizes of synthetic batches, whose loss must equal the mean of the examples' losses, and
# tolerances for this check.
_CHECKED_SIZES = (1, 3, 5)
_RTOL, _ATOL = 1e-4, 1e-5
_SEED = (0, 0)


def model_from_tff(model: Any, metrics: Sequence[Metric], seed: int) -> Model:
    """Returns a TFF model as a `Model`; see `models.from_tff`."""
    restore_keras_classes()
    if isinstance(model, tff.learning.models.FunctionalModel):
        return _checked(lambda: _from_functional(model, metrics))
    if isinstance(model, tff.learning.models.VariableModel):
        raise UserError(
            "models.from_tff: expected a function that builds a VariableModel, found a built "
            "model, whose variables cannot be replaced"
        )
    if isinstance(model, tf.keras.Model):
        raise UserError(
            "models.from_tff: expected a TFF model, found a Keras model: use "
            "models.model_from_keras"
        )
    if callable(model):
        return _checked(lambda: _from_variables(model, metrics, seed))
    raise UserError(
        "models.from_tff: expected a tff.learning.models.FunctionalModel, or a function that "
        f"builds a VariableModel, found {type(model).__name__}"
    )


def _checked(convert: Callable[[], tuple[Model, _BatchLoss]]) -> Model:
    """Converts a model, and checks that it has the properties of a `Model`."""
    try:
        model, batch_loss = convert()
        _refuse_impure(model, batch_loss)
    except UserError:
        raise
    except _Assigned as e:
        raise UserError(
            f"models.from_tff: expected a pure function of the weights, found that {e}"
        ) from e
    except Exception as e:
        # Errors that TensorFlow and Keras raise while they trace a model.
        lines = [line.strip() for line in str(e).splitlines() if line.strip()]
        reason = lines[-1] if lines else type(e).__name__
        raise UserError(
            "models.from_tff: expected a pure function of the weights, found a model that fails "
            f"with tensors as weights: {reason}"
        ) from e
    return model


# (weights, examples, training) -> the mean loss of a batch, as TFF computes it.
_BatchLoss = Callable[[ModelWeights, Examples, bool], tf.Tensor]


def _traced(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a method, so that it is traced if it is called eagerly."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        bound = functools.partial(method, self)
        if tf.executing_eagerly():
            bound = tf.function(bound, autograph=False)
        return bound(*args, **kwargs)

    return call


@dataclasses.dataclass(frozen=True)
class _FunctionalPredict:
    model: Any

    @_traced
    def __call__(self, weights: ModelWeights, x: Any, training: bool, seed: tf.Tensor) -> Any:
        del seed  # No random values are allowed.
        with _as_in_graphs():
            return self.model.predict_on_batch(_packed(self.model, weights), x, training)


@dataclasses.dataclass(frozen=True)
class _FunctionalLoss:
    """Computes each example's loss, as the loss of a batch with one example.

    TFF's loss is one number per batch, mostly the mean, so domains could not have different
    weights. The loss is therefore vectorised over batches of one example.
    """

    model: Any

    @_traced
    def __call__(self, labels: tf.Tensor, predictions: Any) -> tf.Tensor:
        def one_example(example: Any) -> tf.Tensor:
            label, prediction = tf.nest.map_structure(lambda v: v[tf.newaxis], example)
            with _as_in_graphs():
                return _scalar(self.model.loss(output=prediction, label=label))

        return tf.vectorized_map(one_example, (labels, predictions))


def _from_functional(model: Any, metrics: Sequence[Metric]) -> tuple[Model, _BatchLoss]:
    trainable, fixed = (tf.nest.flatten(weights) for weights in model.initial_weights)
    converted = Model(
        initial_weights=_float_weights(trainable, fixed),
        example_spec=_example_spec(model.input_spec),
        predict=_FunctionalPredict(model),
        loss=_FunctionalLoss(model),
        metrics=tuple(metrics),
    )

    def batch_loss(weights: ModelWeights, examples: Examples, training: bool) -> tf.Tensor:
        with _as_in_graphs():
            output = model.predict_on_batch(_packed(model, weights), examples["x"], training)
            return _scalar(model.loss(output=output, label=examples["y"]))

    return converted, batch_loss


def _packed(model: Any, weights: ModelWeights) -> Any:
    """Returns weights in the structure of a functional model."""
    return tuple(
        tf.nest.pack_sequence_as(initial, list(values))
        for initial, values in zip(model.initial_weights, weights)
    )


@contextlib.contextmanager
def _as_in_graphs() -> Iterator[None]:
    """Makes the outermost context a graph, as in TFF's computations.

    In contexts that could create variables, functional models of Keras layers cannot be traced.
    """
    graph = tf.compat.v1.get_default_graph()
    with _keras_classes_kept(), tf.Graph().as_default(), graph.as_default():
        yield


@contextlib.contextmanager
def _keras_classes_kept() -> Iterator[None]:
    """Restores base classes that Keras replaces while it builds layers in graphs.

    Otherwise, previously built models could no longer be called.
    """
    before = {cls: cls.__bases__ for cls in _subclasses(tf.keras.layers.Layer)}
    try:
        yield
    finally:
        for cls, bases in before.items():
            if cls.__bases__ != bases:
                cls.__bases__ = bases


def _subclasses(cls: type) -> set[type]:
    result = set(cls.__subclasses__())
    return result.union(*map(_subclasses, result)) if result else result


def restore_keras_classes() -> None:
    """Restores Keras classes after TFF's own conversions."""
    public: list[Any] = [tf.keras.Model, tf.keras.Sequential, *vars(tf.keras.layers).values()]
    for cls in public:
        if isinstance(cls, type) and issubclass(cls, tf.Module):
            with contextlib.suppress(TypeError), tf.init_scope():
                made: Any = cls
                made.__new__(made)


class _Assigned(Exception):
    """Raised on assignment to a weight."""


class _WeightTensor:
    """A tensor that replaces a variable, for code that expects a variable.

    Args:
        tensor: The value.
        is_weight: Whether the variable is a weight; assignments to it raise an error. Other
            variables only accumulate metrics, so assignments to them are ignored.
    """

    def __init__(self, tensor: tf.Tensor, is_weight: bool) -> None:
        self._tensor = tensor
        self._is_weight = is_weight

    def __tf_tensor__(self, dtype: Any = None, name: Any = None) -> tf.Tensor:
        """Returns the tensor, as TensorFlow's conversion protocol requires."""
        del name
        return self._tensor if dtype is None else tf.cast(self._tensor, dtype)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tensor, name)

    def value(self) -> tf.Tensor:
        """Returns the tensor."""
        return self._tensor

    read_value = value

    def assign(self, *args: Any, **kwargs: Any) -> tf.Tensor:
        """Ignores an assignment, or raises an error for a weight."""
        del args, kwargs
        if self._is_weight:
            raise _Assigned(
                "it assigns to a weight while it is called, as batch normalisation does to its "
                "moving averages: use GroupNormalization or LayerNormalization"
            )
        return self._tensor

    assign_add = assign_sub = assign


def _operator(name: str) -> Callable[..., Any]:
    def apply(self: _WeightTensor, *args: Any) -> Any:
        return getattr(self.value(), name)(*args)

    return apply


for _name in tf.Tensor.OVERLOADABLE_OPERATORS:
    if _name not in ("__eq__", "__ne__"):
        setattr(_WeightTensor, _name, _operator(_name))


@dataclasses.dataclass(frozen=True, eq=False)
class _VariableModel(Model):
    """A model with variables; for each trace it is built again, with tensors as variables.

    Attributes:
        build: The user's function that builds the model.
        variables: Roles of the variables, in the order of their creation.
    """

    build: Callable[[], Any] = lambda: None
    variables: tuple[_Variable, ...] = ()

    @_traced
    def example_losses(
        self, weights: ModelWeights, examples: Examples, training: bool, seed: tf.Tensor
    ) -> tuple[tf.Tensor, Any]:
        """Returns each example's loss and prediction, computed as a batch of one example."""
        del seed

        def one_example(example: Any) -> Any:
            batch = tf.nest.map_structure(lambda v: v[tf.newaxis], example)
            output = _forward(self, weights, batch, training)
            predictions = tf.nest.map_structure(lambda v: v[0], output.predictions)
            return _scalar(output.loss), predictions

        one = {key: examples[key] for key in ("x", "y")}
        return tf.vectorized_map(one_example, one)


@dataclasses.dataclass(frozen=True)
class _Variable:
    """A variable that a model creates.

    Attributes:
        group: 0 for trainable weights, 1 for other weights, None for variables internal to the
            model.
        position: Index among the weights of its group.
        value: Initial value, an array; None for weights.
    """

    group: Any
    position: int = 0
    value: Any = None

    def __hash__(self) -> int:
        """Returns the hash of the role, without the value."""
        return hash((self.group, self.position))


def _from_variables(
    build: Callable[[], Any], metrics: Sequence[Metric], seed: int
) -> tuple[Model, _BatchLoss]:
    weights, input_spec, variables = _built_once(build, seed)

    def predict(weights: ModelWeights, x: Any, training: bool, seed: tf.Tensor) -> Any:
        del seed
        with _built_with(model, weights) as built:
            return built.predict_on_batch(x, training)

    def loss(labels: tf.Tensor, predictions: Any) -> tf.Tensor:
        raise UserError(
            "a VariableModel computes its loss from its inputs only: use a FunctionalModel here, "
            "whose loss is a function of labels and predictions"
        )

    model = _VariableModel(
        initial_weights=_float_weights(*weights),
        example_spec=_example_spec(input_spec),
        predict=predict,
        loss=loss,
        metrics=tuple(metrics),
        build=build,
        variables=variables,
    )

    def batch_loss(weights: ModelWeights, examples: Examples, training: bool) -> tf.Tensor:
        return _scalar(_forward(model, weights, examples, training).loss)

    return model, batch_loss


def _built_once(build: Callable[[], Any], seed: int) -> Any:
    """Calls a function that builds a model with variables.

    Returns:
        Arrays of the model's trainable and other weights, its input spec, and its variables.
    """
    made: list[tf.Variable] = []

    def noted(creator: Callable[..., Any], **kwargs: Any) -> tf.Variable:
        made.append(creator(**kwargs))
        return made[-1]

    with _keras_classes_kept(), tf.Graph().as_default() as graph:
        tf.compat.v1.set_random_seed(seed)
        with tf.variable_creator_scope(noted):
            built = build()
        if not isinstance(built, tff.learning.models.VariableModel):
            raise UserError(
                "models.from_tff: expected a function that returns a "
                f"tff.learning.models.VariableModel, found {type(built).__name__}"
            )
        groups = [list(built.trainable_variables), list(built.non_trainable_variables)]
        position_by_id = {
            id(v): (g, k) for g, group in enumerate(groups) for k, v in enumerate(group)
        }
        if not set(position_by_id) <= {id(variable) for variable in made}:
            raise UserError(
                "models.from_tff: expected a function that creates all weights of its model, found "
                "weights created before its call"
            )
        if any(variable.constraint is not None for variable in groups[0]):
            raise UserError(
                "models.from_tff: expected weights without constraints, which TFF does not apply, "
                "found constraints: use models.model_from_keras"
            )
        with tf.compat.v1.Session(graph=graph) as session:
            session.run(tf.compat.v1.variables_initializer(made))
            values = session.run([variable.read_value() for variable in made])
    weights: tuple[list[Any], list[Any]] = ([None] * len(groups[0]), [None] * len(groups[1]))
    variables = []
    for variable, value in zip(made, values):
        if id(variable) in position_by_id:
            group, position = position_by_id[id(variable)]
            weights[group][position] = value
            variables.append(_Variable(group, position))
        else:
            variables.append(_Variable(None, value=value))
    return weights, built.input_spec, tuple(variables)


@contextlib.contextmanager
def _built_with(model: _VariableModel, weights: ModelWeights) -> Iterator[Any]:
    """Builds a model with tensors of the current graph instead of variables."""
    remaining = iter(model.variables)

    def replaced(creator: Callable[..., Any], **kwargs: Any) -> Any:
        del creator, kwargs
        variable = next(remaining, None)
        if variable is None:
            raise UserError("the model creates more variables than in its first build")
        if variable.group is None:
            return _WeightTensor(tf.constant(variable.value), is_weight=False)
        value = tf.convert_to_tensor(list(weights[variable.group])[variable.position])
        return _WeightTensor(value, is_weight=True)

    with _as_in_graphs(), tf.variable_creator_scope(replaced):
        yield model.build()


def _forward(model: _VariableModel, weights: ModelWeights, examples: Any, training: bool) -> Any:
    batch = OrderedDict((key, examples[key]) for key in ("x", "y"))
    with _built_with(model, weights) as built:
        keyed = isinstance(built.input_spec, Mapping)
        output = built.forward_pass(batch if keyed else tuple(batch.values()), training)
    if output.loss is None or output.predictions is None:
        raise UserError(
            "models.from_tff: expected forward_pass to return a loss and predictions, found "
            f"{'no loss' if output.loss is None else 'no predictions'}"
        )
    return output


def _scalar(loss: Any) -> tf.Tensor:
    loss = tf.cast(loss, tf.float32)
    if loss.shape.rank != 0:
        raise UserError(
            f"models.from_tff: expected a loss that is one number per batch, found {loss.shape}"
        )
    return loss


def _float_weights(trainable: Sequence[Any], fixed: Sequence[Any]) -> ModelWeights:
    # A Python number becomes float32, as in TensorFlow.
    weights = ModelWeights(
        *([tf.convert_to_tensor(w).numpy() for w in values] for values in (trainable, fixed))
    )
    if not weights.trainable:
        raise UserError("models.from_tff: expected a model with weights to train, found none")
    for weight in weights.trainable:
        if weight.dtype != np.float32:
            raise UserError(
                "models.from_tff: expected float32 weights, in which updates are summed, found "
                f"{weight.dtype}"
            )
    return weights


def _example_spec(input_spec: Any) -> OrderedDict[str, Any]:
    """Returns the specs of batches, "x" and "y"; the batch dimension is None."""
    where = "models.from_tff, input_spec"
    if isinstance(input_spec, Mapping) and set(input_spec) == {"x", "y"}:
        x, y = input_spec["x"], input_spec["y"]
    elif isinstance(input_spec, (tuple, list)) and len(input_spec) == 2:
        x, y = input_spec
    else:
        raise UserError(f"{where}: expected inputs and labels, (x, y), found {input_spec!r}")

    def with_any_size(spec: Any) -> tf.TensorSpec:
        if not isinstance(spec, tf.TensorSpec):
            raise UserError(f"{where}: expected tf.TensorSpecs, found {type(spec).__name__}")
        if not spec.shape.rank or spec.shape[1:].num_elements() is None:
            raise UserError(
                f"{where}: expected a known shape except for the batch dimension, found "
                f"{spec.shape}"
            )
        return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype)

    if isinstance(x, (tuple, list)):
        raise UserError(f"{where}: expected x to be a tensor, or tensors by name, found {x!r}")
    return OrderedDict(x=tf.nest.map_structure(with_any_size, x), y=with_any_size(y))


def _refuse_impure(model: Model, batch_loss: _BatchLoss) -> None:
    """Raises a `UserError` if a model has hidden state, draws random numbers or mixes examples."""
    training, evaluating = (_traced_batch(model, batch_loss, mode) for mode in (True, False))
    refuse_captured_state(training)
    definition = training.graph.as_graph_def()
    nodes = [*definition.node, *(n for f in definition.library.function for n in f.node_def)]
    drawing = sorted({node.op for node in nodes} & _DRAWS)
    if drawing:
        raise UserError(
            "models.from_tff: expected a model without its own random numbers, found "
            f"{drawing[0]}, as in a Dropout layer: models.model_from_keras gives it seeds"
        )
    weights = tuple(perturbed(model.initial_weights))

    def without_batch_loss(traced: Any) -> Callable[[Examples, tf.Tensor], Any]:
        return lambda rows, seed: traced(weights, rows, seed)[1:]

    def check(made: Examples) -> None:
        for traced in (training, evaluating):
            mixing = find_model_mixing(without_batch_loss(traced), made)
            if mixing is not None:
                raise UserError(mixing.message("models.from_tff", "outputs of an example"))
        for size in _CHECKED_SIZES:
            _refuse_joint_loss(*training(weights, _first(made, size), tf.constant(_SEED))[:2])
        outputs = training(weights, made, tf.constant(_SEED))[2]
        metrics = {f"metric {m.name}": m.per_example for m in model.metrics}
        refusal = example_refusal(metrics, made["y"], outputs)
        if refusal is not None:
            raise UserError(f"models.from_tff: {refusal}")

    on_made_up_examples(model.example_spec, check)


def _traced_batch(model: Model, batch_loss: _BatchLoss, training: bool) -> Any:
    """Returns a traced function; see `trace_outputs`.

    The function returns the batch's loss, the examples' losses, and the predictions.
    """

    def outputs(weights: ModelWeights, examples: Examples, seed: tf.Tensor) -> Any:
        losses = model.example_losses(weights, examples, training, seed)
        return batch_loss(weights, examples, training), *losses

    return trace_outputs(model, outputs)


def _first(made: Examples, size: int) -> Any:
    return tf.nest.map_structure(lambda column: column[:size], made)


def _refuse_joint_loss(batch_loss: tf.Tensor, losses: tf.Tensor) -> None:
    """Checks that the loss of a batch is the mean of its examples' losses."""
    if not np.all(np.isfinite(losses)):
        raise UserError(
            "models.from_tff: expected finite losses of made-up examples (labels 0 and 1), on "
            f"which the loss is checked, found {np.asarray(losses).tolist()}"
        )
    mean = float(tf.reduce_mean(losses))
    if not np.isclose(batch_loss, mean, rtol=_RTOL, atol=_ATOL):
        raise UserError(
            "models.from_tff: expected the loss of a batch to be the mean of its examples' "
            f"losses, without which domains cannot be weighted, found {float(batch_loss):.4g} "
            f"where that mean is {mean:.4g}"
        )


def model_to_tff(model: Model) -> Any:
    """Returns a model as a `tff.learning.models.FunctionalModel`; see `models.to_tff`."""
    if model.regularizer is not None:
        raise UserError(
            "models.to_tff: expected a model without regularizers, found one: a FunctionalModel's "
            "loss does not see the weights"
        )
    if model.constraint is not None:
        raise UserError(
            "models.to_tff: expected a model without weight constraints, which TFF does not apply, "
            "found one with constraints"
        )
    draws = _uses_seed(model)

    @tf.function(autograph=False)
    def predict_on_batch(weights: Any, x: Any, training: bool = True) -> Any:
        # TFF passes no seed, so draw one: two batches must not have the same dropout.
        seed = tf.zeros([2], tf.int32)
        if draws and training:
            seed = tf.random.uniform([2], maxval=tf.int32.max, dtype=tf.int32)
        return model.predict(ModelWeights(*map(list, weights)), x, training, seed)

    def loss(output: Any, label: Any, sample_weight: Any = None) -> tf.Tensor:
        losses = tf.cast(model.loss(label, output), tf.float32)
        if sample_weight is not None:
            losses *= tf.cast(sample_weight, tf.float32)
        return tf.math.divide_no_nan(tf.reduce_sum(losses), tf.cast(tf.size(losses), tf.float32))

    names = ["loss", *(metric.name for metric in model.metrics)]

    @tf.function(autograph=False)
    def initialize_metrics() -> Any:
        return OrderedDict((name, (tf.constant(0.0), tf.constant(0.0))) for name in names)

    @tf.function(autograph=False)
    def update_metrics(
        state: Any, labels: Any, batch_output: Any, sample_weight: Any = None
    ) -> Any:
        del sample_weight
        predictions = batch_output.predictions
        losses = tf.cast(model.loss(labels, predictions), tf.float32)
        sums = OrderedDict(loss=(losses, tf.ones_like(losses)))
        sums.update((m.name, tuple(m.per_example(labels, predictions))) for m in model.metrics)
        return OrderedDict(
            (name, tuple(b + tf.reduce_sum(v) for b, v in zip(state[name], ratio)))
            for name, ratio in sums.items()
        )

    @tf.function(autograph=False)
    def finalize_metrics(state: Any) -> Any:
        values = {"loss": tf.identity, **{m.name: m.value for m in model.metrics}}
        return OrderedDict(
            (name, values[name](tf.math.divide_no_nan(*state[name]))) for name in names
        )

    return tff.learning.models.FunctionalModel(
        initial_weights=tuple(tuple(weights) for weights in model.initial_weights),
        predict_on_batch_fn=predict_on_batch,
        loss_fn=loss,
        metrics_fns=(initialize_metrics, update_metrics, finalize_metrics),
        input_spec=(model.example_spec["x"], model.example_spec["y"]),
    )


def _uses_seed(model: Model) -> bool:
    """Whether the predictions in training depend on the seed."""

    def predict(seed: tf.Tensor, trainable: Any, fixed: Any, x: Any) -> Any:
        return model.predict(ModelWeights(trainable, fixed), x, True, seed)

    specs = [
        [tf.TensorSpec(np.shape(w), np.asarray(w).dtype) for w in weights]
        for weights in model.initial_weights
    ]
    traced = tf.function(predict, autograph=False).get_concrete_function(
        tf.TensorSpec([2], tf.int32), *specs, model.example_spec["x"]
    )
    return bool(traced.graph.inputs[0].consumers())
