"""What TensorFlow Federated has of its own - models, aggregators, clients - in this package.

Nothing imports this module before it is needed: `models.from_tff`, `models.to_tff` and
`aggregations.from_tff` load it when they are called.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, ClassVar, NamedTuple, Optional

import numpy as np

from tff_agnostic.aggregations.aggregation import (
    Bound,
    ClientFacts,
    ClientLimits,
    Guarantee,
)
from tff_agnostic.aggregations.secure_sum import SecureSum
from tff_agnostic.computations.tff_process import PlacedAggregation, build_evaluation
from tff_agnostic.data.clients import ClientDataset
from tff_agnostic.data.store import Store
from tff_agnostic.data.store_format import FEATURES, LABEL, Record
from tff_agnostic.data.store_writer import StoreWriter
from tff_agnostic.errors import UserError
from tff_agnostic.later import tf, tff
from tff_agnostic.models.keras import refuse_captured_state, trace_losses
from tff_agnostic.models.metrics import Metric
from tff_agnostic.models.model import Examples, Model, ModelWeights
from tff_agnostic.models.tff_models import as_model
from tff_agnostic.report_fields import Quantities

# Operations that draw random numbers from a state of their own, not from a seed that is given.
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
# Batches of made-up examples on which a model is checked, and how equal its numbers have to be.
_CHECKED_SIZES = (1, 3, 5)
_RTOL, _ATOL = 1e-4, 1e-5


def model_from_tff(model: Any, metrics: Sequence[Metric], seed: int) -> Model:
    """Returns a TFF model as a `Model`; see `models.from_tff`."""
    restore_keras_classes()
    if isinstance(model, tff.learning.models.FunctionalModel):
        return _checked(lambda: _from_functional(model, metrics))
    if isinstance(model, tff.learning.models.VariableModel):
        raise UserError(
            "models.from_tff: expected a function that builds a VariableModel, found one that is "
            "built: its variables cannot be replaced"
        )
    if callable(model):
        return _checked(lambda: _from_variables(model, metrics, seed))
    raise UserError(
        "models.from_tff: expected a tff.learning.models.FunctionalModel, or a function that "
        f"builds a VariableModel, found {type(model).__name__}"
    )


def _checked(convert: Callable[[], tuple[Model, _BatchLoss]]) -> Model:
    """Returns a converted model of which the promises of `Model` were checked."""
    try:
        model, batch_loss = convert()
        _refuse_impure(model)
        _refuse_joint_losses(model, batch_loss)
    except UserError:
        raise
    except _Assigned as e:
        raise UserError(
            f"models.from_tff: expected a pure function of the weights, found that {e}"
        ) from e
    except Exception as e:
        # TensorFlow's and Keras' own refusals, of what a model does while it is traced.
        lines = [line.strip() for line in str(e).splitlines() if line.strip()]
        found = lines[-1] if lines else type(e).__name__
        raise UserError(
            "models.from_tff: expected a pure function of the weights, found one that fails where "
            f"its weights are tensors: {found}"
        ) from e
    return model


# (weights, examples, training) -> the mean loss of a batch, as TFF computes it.
_BatchLoss = Callable[[ModelWeights, Examples, bool], tf.Tensor]


def _traced(method: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a method that is traced where it is called eagerly."""

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
        del seed  # Nothing random is let in.
        with _as_in_graphs():
            return self.model.predict_on_batch(_packed(self.model, weights), x, training)


@dataclasses.dataclass(frozen=True)
class _FunctionalLoss:
    """The loss of each example: that of a batch of it alone.

    TFF's loss is one number of a batch, mostly its mean, in which an example cannot be given the
    weight of its domain. It is vectorised over the examples.
    """

    model: Any

    @_traced
    def __call__(self, labels: tf.Tensor, predictions: Any) -> tf.Tensor:
        def of_example(example: Any) -> tf.Tensor:
            label, prediction = tf.nest.map_structure(lambda v: v[tf.newaxis], example)
            with _as_in_graphs():
                return _scalar(self.model.loss(output=prediction, label=label))

        return tf.vectorized_map(of_example, (labels, predictions))


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
    """Returns weights in the structure that a functional model has them in."""
    return tuple(
        tf.nest.pack_sequence_as(of_model, list(values))
        for of_model, values in zip(model.initial_weights, weights)
    )


@contextlib.contextmanager
def _as_in_graphs() -> Iterator[None]:
    """Traces as if the outermost context were a graph, as in TFF's computations.

    Functional models of Keras layers refuse to be traced where they could make variables.
    """
    graph = tf.compat.v1.get_default_graph()
    with _keras_classes_kept(), tf.Graph().as_default(), graph.as_default():
        yield


@contextlib.contextmanager
def _keras_classes_kept() -> Iterator[None]:
    """Gives classes of Keras the bases back that it exchanges where layers are built in graphs.

    Models that were built before could not be called any more.
    """
    before = {cls: cls.__bases__ for cls in _subclasses(tf.keras.layers.Layer)}
    try:
        yield
    finally:
        for cls, bases in before.items():
            if cls.__bases__ != bases:
                cls.__bases__ = bases


def _subclasses(cls: type) -> set[type]:
    found = set(cls.__subclasses__())
    return found.union(*map(_subclasses, found)) if found else found


def restore_keras_classes() -> None:
    """Makes Keras take back what TFF's own conversions left its classes in."""
    public: list[Any] = [tf.keras.Model, tf.keras.Sequential, *vars(tf.keras.layers).values()]
    for cls in public:
        if isinstance(cls, type) and issubclass(cls, tf.Module):
            with contextlib.suppress(TypeError), tf.init_scope():
                made: Any = cls
                made.__new__(made)


class _Assigned(Exception):
    """A weight was assigned to."""


class _WeightTensor:
    """A tensor in place of a variable, for code that expects one.

    Args:
        tensor: The value.
        is_weight: Whether it may not be assigned to. Of the others, which count what was measured,
            values are of no consequence, and assignments are left out.
    """

    def __init__(self, tensor: tf.Tensor, is_weight: bool) -> None:
        self._tensor = tensor
        self._is_weight = is_weight

    def __tf_tensor__(self, dtype: Any = None, name: Any = None) -> tf.Tensor:
        """Returns the tensor, where TensorFlow asks for one."""
        del name
        return self._tensor if dtype is None else tf.cast(self._tensor, dtype)

    def __getattr__(self, name: str) -> Any:
        """Returns what the tensor has of that name."""
        return getattr(self._tensor, name)

    def value(self) -> tf.Tensor:
        """Returns the tensor."""
        return self._tensor

    read_value = value

    def assign(self, *args: Any, **kwargs: Any) -> tf.Tensor:
        """Leaves an assignment out, or refuses it."""
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
    """A model of variables, built anew with tensors in their place whenever it is traced.

    Attributes:
        build: The user's function.
        variables: What each variable is that it makes, in this order.
    """

    build: Callable[[], Any] = lambda: None
    variables: tuple[_Variable, ...] = ()

    @_traced
    def example_losses(
        self, weights: ModelWeights, examples: Examples, training: bool, seed: tf.Tensor
    ) -> tuple[tf.Tensor, Any]:
        """Returns the loss of each example and the predictions; each is a batch by itself."""
        del seed

        def of_example(example: Any) -> Any:
            batch = tf.nest.map_structure(lambda v: v[tf.newaxis], example)
            output = _forward(self, weights, batch, training)
            predictions = tf.nest.map_structure(lambda v: v[0], output.predictions)
            return _scalar(output.loss), predictions

        one = {key: examples[key] for key in ("x", "y")}
        return tf.vectorized_map(of_example, one)


@dataclasses.dataclass(frozen=True)
class _Variable:
    """A variable that a model makes.

    Attributes:
        group: 0 for trainable weights, 1 for others, None for what only the model itself needs.
        position: Among the weights of its group.
        value: Its initial value, an array; None of weights.
    """

    group: Any
    position: int = 0
    value: Any = None

    def __hash__(self) -> int:
        """Of what it is, without its value."""
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
    """Builds the model of a function with variables.

    Returns:
        Arrays of its trainable and of its other weights, its input spec, and its variables.
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
        place_of = {id(v): (g, k) for g, group in enumerate(groups) for k, v in enumerate(group)}
        if not set(place_of) <= {id(variable) for variable in made}:
            raise UserError(
                "models.from_tff: expected a function that makes all weights of its model when it "
                "is called, found some that were made before"
            )
        with tf.compat.v1.Session(graph=graph) as session:
            session.run(tf.compat.v1.variables_initializer(made))
            values = session.run([variable.read_value() for variable in made])
    weights: tuple[list[Any], list[Any]] = ([None] * len(groups[0]), [None] * len(groups[1]))
    variables = []
    for variable, value in zip(made, values):
        if id(variable) in place_of:
            group, position = place_of[id(variable)]
            weights[group][position] = value
            variables.append(_Variable(group, position))
        else:
            variables.append(_Variable(None, value=value))
    return weights, built.input_spec, tuple(variables)


@contextlib.contextmanager
def _built_with(model: _VariableModel, weights: ModelWeights) -> Iterator[Any]:
    """Builds a model whose variables are tensors of the graph that is being traced."""
    left = iter(model.variables)

    def replaced(creator: Callable[..., Any], **kwargs: Any) -> Any:
        del creator, kwargs
        variable = next(left, None)
        if variable is None:
            raise UserError("the model makes more variables than when it was built first")
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
            f"models.from_tff: expected a loss that is one number of a batch, found {loss.shape}"
        )
    return loss


def _float_weights(trainable: Sequence[Any], fixed: Sequence[Any]) -> ModelWeights:
    # A number of Python's is float32, as in TensorFlow.
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
    """Returns the specs of examples, with a first dimension of None."""
    where = "models.from_tff, input_spec"
    if isinstance(input_spec, Mapping) and set(input_spec) == {"x", "y"}:
        x, y = input_spec["x"], input_spec["y"]
    elif isinstance(input_spec, (tuple, list)) and len(input_spec) == 2:
        x, y = input_spec
    else:
        raise UserError(f"{where}: expected inputs and labels, (x, y), found {input_spec!r}")

    def of_any_size(spec: Any) -> tf.TensorSpec:
        if not isinstance(spec, tf.TensorSpec):
            raise UserError(f"{where}: expected tf.TensorSpecs, found {type(spec).__name__}")
        if not spec.shape.rank or spec.shape[1:].num_elements() is None:
            raise UserError(
                f"{where}: expected shapes that are known but for the first dimension, of the "
                f"batch, found {spec.shape}"
            )
        return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype)

    if isinstance(x, (tuple, list)):
        raise UserError(f"{where}: expected x to be a tensor, or tensors by name, found {x!r}")
    return OrderedDict(x=tf.nest.map_structure(of_any_size, x), y=of_any_size(y))


def _refuse_impure(model: Model) -> None:
    traced = trace_losses(model, training=True)
    refuse_captured_state(traced)
    definition = traced.graph.as_graph_def()
    nodes = [*definition.node, *(n for f in definition.library.function for n in f.node_def)]
    drawing = sorted({node.op for node in nodes} & _DRAWS)
    if drawing:
        raise UserError(
            "models.from_tff: expected a model that draws no random numbers of its own, found "
            f"{drawing[0]}, as of a Dropout layer: models.model_from_keras gives it seeds"
        )


def _refuse_joint_losses(model: Model, batch_loss: _BatchLoss) -> None:
    """Checks on made-up batches that the loss of a batch is the mean of its examples' losses."""
    specs = [tf.TensorSpec(np.shape(w), w.dtype) for w in model.initial_weights.trainable]

    @tf.function(input_signature=[specs, dict(model.example_spec)], autograph=False)
    def losses(trainable: Any, examples: Any) -> Any:
        weights = ModelWeights(trainable, [tf.constant(w) for w in model.initial_weights[1]])
        own, predictions = model.example_losses(
            weights, examples, training=True, seed=tf.zeros([2], tf.int32)
        )
        return own, batch_loss(weights, examples, True), predictions

    rng = np.random.default_rng(0)
    for size in _CHECKED_SIZES:
        trainable = [
            w + rng.normal(0, 0.1, np.shape(w)).astype(np.float32)
            for w in model.initial_weights.trainable
        ]
        examples = tf.nest.map_structure(
            lambda spec, n=size: _made_up(rng, spec, n), dict(model.example_spec)
        )
        own, of_batch, predictions = losses(trainable, examples)
        alone = losses(trainable, tf.nest.map_structure(lambda v: v[:1], examples))
        if not np.all(np.isfinite(own)):
            raise UserError(
                "models.from_tff: expected finite losses of made-up examples (labels 0 and 1), on "
                f"which the loss is checked, found {np.asarray(own).tolist()}"
            )
        firsts = tf.nest.map_structure(lambda v: v[:1], predictions)
        if not _equal(firsts, alone[2]):
            raise UserError(
                "models.from_tff: expected predictions of an example that do not depend on the "
                "others of its batch, found others where it is alone (batch normalisation?)"
            )
        if not _equal(tf.reduce_mean(own), of_batch):
            raise UserError(
                "models.from_tff: expected the loss of a batch to be the mean of its examples' "
                f"losses, without which domains cannot be weighted, found {float(of_batch):.4g} "
                f"where that mean is {float(tf.reduce_mean(own)):.4g}"
            )


def _made_up(rng: np.random.Generator, spec: tf.TensorSpec, size: int) -> np.ndarray:
    shape = [size, *spec.shape[1:]]
    if spec.dtype.is_floating:
        return rng.uniform(size=shape).astype(spec.dtype.as_numpy_dtype)
    if spec.dtype.is_integer or spec.dtype.is_bool:
        return rng.integers(2, size=shape).astype(spec.dtype.as_numpy_dtype)
    raise UserError(
        f"models.from_tff, input_spec: expected numbers, found {spec.dtype.name}, of which no "
        "examples can be made up to check the loss"
    )


def _equal(found: Any, expected: Any) -> bool:
    pairs = zip(tf.nest.flatten(found), tf.nest.flatten(expected))
    return all(np.allclose(a, b, rtol=_RTOL, atol=_ATOL) for a, b in pairs)


def model_to_tff(model: Model) -> Any:
    """Returns a model as a `tff.learning.models.FunctionalModel`; see `models.to_tff`."""
    if model.regularizer is not None:
        raise UserError(
            "models.to_tff: expected a model without regularizers, found one: a FunctionalModel's "
            "loss does not see the weights"
        )
    draws = _uses_seed(model)

    @tf.function(autograph=False)
    def predict_on_batch(weights: Any, x: Any, training: bool = True) -> Any:
        # TFF hands no seed on, and two batches shall not have the same dropout.
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
    """Returns whether the predictions while training depend on the seed."""

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


class _Summand(NamedTuple):
    """What a client encodes.

    Attributes:
        updates: For each update of the answer its values, and the client's weight.
        others: All else, for the secure sum.
    """

    updates: tuple[Any, ...]
    others: Any


class _FactoryState(NamedTuple):
    """State of a `FactorySum`: that of the process of each update; () before a process has it."""

    updates: Any


@dataclasses.dataclass(frozen=True)
class _Update:
    """The values of an answer that the server divides by their weights' sum, by their positions.

    Attributes:
        values: Of the update, as `tf.nest.flatten` numbers the leaves of an answer.
        weight: Of the client's weight.
    """

    values: tuple[int, ...]
    weight: int


@dataclasses.dataclass(frozen=True)
class FactorySum(PlacedAggregation):
    """Updates averaged by one of TFF's aggregation factories, all else in secure sums.

    An update beta^k delta^k with its weight beta^k is found by its bounds: signed values that form
    a ratio with a denominator. A weighted factory is given delta^k and beta^k, and returns the mean
    weighted by them. An unweighted one is given beta^k delta^k / `mean_weight`, and returns the
    mean; so the weights, which are what an agnostic algorithm moves, stay part of the average. The
    server goes on with the mean times the sum of the weights, as if it were the sum.

    Attributes:
        factory: A `tff.aggregators.WeightedAggregationFactory`, or an unweighted one, that returns
            a mean, as those of `tff.learning` do.
        others: How losses, counts and weights are summed.
        mean_weight: What an unweighted factory takes for a client's weight.
        only_secure: Whether rounds are refused in which anything but a secure sum leaves clients.
        name: Name of the aggregation.
    """

    factory: Any
    others: SecureSum = SecureSum()
    mean_weight: float = 1.0
    only_secure: bool = False
    name: str = "tff"

    @property
    def cuts_clients(self) -> bool:
        """Whether no more than `limits.max_examples` examples of a client are used."""
        return True

    @property
    def guarantees(self) -> frozenset[Guarantee]:
        """What is checked before anything runs."""
        return frozenset({Guarantee.SECURE_SUMS}) if self.only_secure else frozenset()

    @property
    def limits(self) -> ClientLimits:
        """Limits of what one client may send in secure sums."""
        return self.others.limits

    @property
    def min_clients(self) -> int:
        """The fewest clients of a sum."""
        return self.others.min_clients

    @property
    def is_weighted(self) -> bool:
        """Whether the factory takes weights."""
        return isinstance(self.factory, tff.aggregators.WeightedAggregationFactory)

    def on_clients(self) -> FactorySum:
        """Refuses to be played without TFF."""
        raise UserError(
            "an aggregator of TFF's sums in TFF's executor only: expected --runtime=tff, found "
            "another runtime"
        )

    def initialize(self, bounds: Any) -> Any:
        """Returns the state without the processes' states, which TFF adds."""
        del bounds
        return _FactoryState(())

    def rounding(self, bound: Bound) -> float:
        """Returns the rounding of secure sums."""
        return self.others.rounding(bound)

    def client_params(self, state: Any) -> Any:
        """Returns nothing."""
        del state
        return ()

    def encode(self, params: Any, output: Any, bounds: Any, client: ClientFacts) -> Any:
        """Returns a `_Summand`; without an update, what the secure sum has."""
        updates = _updates_in(bounds)
        rest, rest_bounds = _without(updates, output, bounds)
        others = self.others.encode(params, rest, rest_bounds, client)
        if not updates:
            return others
        leaves = tf.nest.flatten(output)
        encoded = []
        for update in updates:
            weight = leaves[update.weight]
            divisor = weight if self.is_weighted else tf.constant(self.mean_weight, tf.float32)
            values = [tf.math.divide_no_nan(leaves[i], divisor) for i in update.values]
            encoded.append((values, weight))
        return _Summand(tuple(encoded), others)

    def federated_sum(self, encoded: tff.Value, bounds: Any) -> tff.Value:
        """Returns the secure sum of an answer without an update."""
        return self.others.federated_sum(encoded, bounds)

    def process(self, encoded_type: tff.Type, bounds: Any) -> Any:
        """Returns the process of a step with updates; None where a step has none."""
        updates = _updates_in(bounds)
        if not updates:
            return None
        _, rest_bounds = _without(updates, bounds, bounds)
        processes = [self._process_of(*pair) for pair in encoded_type.updates]

        @tff.federated_computation
        def initialize_fn() -> Any:
            return tff.federated_zip(tuple(process.initialize() for process in processes))

        @tff.federated_computation(
            initialize_fn.type_signature.result, tff.FederatedType(encoded_type, tff.CLIENTS)
        )
        def next_fn(states: Any, encoded: Any) -> Any:
            outputs = []
            for k, process in enumerate(processes):
                values, weight = encoded.updates[k][0], encoded.updates[k][1]
                weights = (weight,) if process.is_weighted else ()
                outputs.append(process.next(states[k], values, *weights))
            others = self.others.federated_sum(encoded.others, rest_bounds)
            means = tuple(output.result for output in outputs)
            return tff.templates.MeasuredProcessOutput(
                tff.federated_zip(tuple(output.state for output in outputs)),
                tff.federated_zip(_Summand(means, others)),
                tff.federated_value((), tff.SERVER),
            )

        return _Placed(initialize_fn, next_fn)

    def _process_of(self, values_type: tff.Type, weight_type: tff.Type) -> Any:
        types = (values_type, weight_type) if self.is_weighted else (values_type,)
        process = self.factory.create(*types)
        found = process.next.type_signature.result.result.member
        if not values_type.is_assignable_from(found):
            raise UserError(
                f"aggregations.from_tff: expected a factory that returns what it is given, "
                f"{values_type}, found one that returns {found}"
            )
        return process

    def with_placed(self, state: _FactoryState, placed: Any) -> _FactoryState:
        """Returns the state with those of the processes."""
        return state._replace(updates=placed)

    def placed_in(self, state: _FactoryState) -> Any:
        """Returns the states of the processes."""
        return state.updates

    def decode(self, state: Any, summed: Any, bounds: Any) -> tuple[Any, Any, Mapping[str, Any]]:
        """Returns the state, the sums - each mean times the sum of the weights - and a report."""
        updates = _updates_in(bounds)
        if not updates:
            return self.others.decode(state, summed, bounds)
        _, rest_bounds = _without(updates, bounds, bounds)
        _, rest, report = self.others.decode((), summed.others, rest_bounds)
        in_updates = {i for update in updates for i in update.values}
        of_others = iter(tf.nest.flatten(rest))
        leaves: list[Any] = [
            None if i in in_updates else next(of_others)
            for i in range(len(tf.nest.flatten(bounds)))
        ]
        num_clients = tf.cast(summed.others.num_clients, tf.float32)
        for update, mean in zip(updates, summed.updates):
            weight = tf.cast(leaves[update.weight], tf.float32)
            factor = weight if self.is_weighted else num_clients * self.mean_weight
            for i, value in zip(update.values, tf.nest.flatten(mean)):
                # Without any weight a weighted mean is 0/0.
                leaves[i] = tf.where(weight > 0, value * factor, tf.zeros_like(value))
        return state, tf.nest.pack_sequence_as(bounds, leaves), report

    def quantities(self, bounds: Any, prefix: str = "") -> Quantities:
        """Describes the report of the secure sums."""
        _, rest_bounds = _without(_updates_in(bounds), bounds, bounds)
        return self.others.quantities(rest_bounds, prefix)


class _Placed(NamedTuple):
    """What `tff.templates.AggregationProcess` has, of which TFF asks for a type of values."""

    initialize: tff.Computation
    next: tff.Computation

    @property
    def state_type(self) -> tff.Type:
        """Type of the state at the server."""
        return self.initialize.type_signature.result


def factory_sum(factory: Any, others: SecureSum, mean_weight: float, only_secure: bool) -> Any:
    """Returns a `FactorySum`; see `aggregations.from_tff`."""
    kinds = (
        tff.aggregators.WeightedAggregationFactory,
        tff.aggregators.UnweightedAggregationFactory,
    )
    if not isinstance(factory, kinds):
        raise UserError(
            "aggregations.from_tff: expected a weighted or unweighted factory of tff.aggregators, "
            f"found {type(factory).__name__}"
        )
    if mean_weight <= 0:
        raise UserError(
            f"aggregations.from_tff: expected a positive mean_weight, found {mean_weight}"
        )
    return FactorySum(factory, others, mean_weight, only_secure)


def _updates_in(bounds: Any) -> tuple[_Update, ...]:
    """Returns the updates of an answer, found by its bounds."""
    leaves = tf.nest.flatten(bounds)
    ratios = OrderedDict.fromkeys(b.ratio for b in leaves if b.signed and not b.entrywise)
    found = []
    for ratio in ratios:
        weights = [i for i, b in enumerate(leaves) if b.ratio == ratio and b.denominator]
        values = [i for i, b in enumerate(leaves) if b.ratio == ratio and b.signed]
        if ratio is not None and len(weights) == 1:
            found.append(_Update(tuple(values), weights[0]))
    return tuple(found)


def _without(updates: Sequence[_Update], values: Any, bounds: Any) -> tuple[Any, Any]:
    """Returns values and their bounds with () in place of updates."""
    position = iter(range(len(tf.nest.flatten(bounds))))
    in_updates = {i for update in updates for i in update.values}
    is_update = tf.nest.map_structure(lambda _: next(position) in in_updates, bounds)

    def others(part: Any, marks: Any) -> Any:
        leaves = tf.nest.flatten(marks)
        if leaves and all(leaves):
            return ()
        if not any(leaves):
            return part
        if hasattr(part, "_fields"):
            return part._make(map(others, part, marks))
        if isinstance(part, Mapping):
            return OrderedDict((key, others(part[key], marks[key])) for key in part)
        return type(part)(map(others, part, marks))

    return others(values, is_update), others(bounds, is_update)


# Examples that TensorFlow hands over at once.
_ROWS_AT_ONCE = 4096


class _TffClients:
    """Clients whose examples are datasets of TensorFlow's, read one client at a time."""

    def __init__(
        self, client_ids: Sequence[str], dataset_of: Callable[[str], Any], domain_of: Any
    ) -> None:
        self._ids = sorted(client_ids)
        self._dataset_of = dataset_of
        self._domain_of = domain_of

    @property
    def client_ids(self) -> Sequence[str]:
        """Every client's id, sorted."""
        return self._ids

    def read(self, client_id: str) -> Examples:
        """Returns one client's examples."""
        columns = self.columns(client_id)
        if "domain_id" not in columns:
            domain = np.int32(self.domain_of(client_id))
            columns["domain_id"] = np.full(len(columns["y"]), domain, np.int32)
        columns["domain_id"] = columns["domain_id"].astype(np.int32)
        return columns

    def domain_of(self, client_id: str) -> Any:
        """Returns what the caller says of a client's domain."""
        if self._domain_of is None:
            raise UserError(
                f"client {client_id}: expected examples with a domain_id, or domain_of to say it, "
                "found neither"
            )
        return self._domain_of(client_id)

    def columns(self, client_id: str) -> OrderedDict[str, Any]:
        """Returns the columns of one client as its dataset has them."""
        dataset = self._dataset_of(client_id)
        spec = dataset.element_spec
        if isinstance(spec, tuple) and len(spec) == 2:
            dataset = dataset.map(lambda x, y: OrderedDict(x=x, y=y))
        elif not isinstance(spec, Mapping) or not {"x", "y"} <= set(spec):
            raise UserError(
                f'client {client_id}: expected examples (x, y), or a mapping of "x", "y" and '
                f'"domain_id", found {spec}'
            )
        spec = dataset.element_spec
        parts = list(dataset.batch(_ROWS_AT_ONCE).as_numpy_iterator())
        if not parts:
            parts = [
                tf.nest.map_structure(
                    lambda s: np.zeros([0, *s.shape], s.dtype.as_numpy_dtype), spec
                )
            ]
        columns = tf.nest.map_structure(lambda *arrays: np.concatenate(arrays), *parts)
        names = ("x", "y", *(["domain_id"] if "domain_id" in spec else []))
        return OrderedDict((name, columns[name]) for name in names)


def clients_from_tff(source: Any, domain_of: Any) -> _TffClients:
    """Returns TFF's clients as a `ClientDataset`; see `data.tff_clients.from_tff`."""
    if isinstance(source, tff.simulation.datasets.ClientData):
        dataset_of = source.create_tf_dataset_for_client
        return _TffClients(source.client_ids, dataset_of, domain_of)
    if isinstance(source, Sequence) and all(isinstance(d, tf.data.Dataset) for d in source):
        width = len(str(max(len(source) - 1, 0)))
        by_id = {f"{k:0{width}d}": dataset for k, dataset in enumerate(source)}
        return _TffClients(list(by_id), by_id.__getitem__, domain_of)
    raise UserError(
        "clients: expected a tff.simulation.datasets.ClientData, or a list of tf.data.Datasets, "
        f"found {type(source).__name__}"
    )


def store_from_tff(
    path: Path, splits: Mapping[str, Any], domain_of: Any, feature_name: str
) -> None:
    """Writes TFF's clients into a store; see `data.tff_clients.to_store`."""
    with StoreWriter(path) as writer:
        for split, source in splits.items():
            clients = clients_from_tff(source, domain_of)
            for client_id in clients.client_ids:
                columns = clients.columns(client_id)
                domains = columns.get("domain_id")
                for row, label in enumerate(columns["y"]):
                    domain = clients.domain_of(client_id) if domains is None else domains[row]
                    features = {
                        feature_name: _stored(columns["x"][row]),
                        LABEL: label.item(),
                    }
                    writer.add(split, Record(client_id, str(domain), features))
        writer.finish(FEATURES, source="clients of TFF")


def _stored(values: Any) -> np.ndarray:
    values = np.asarray(values)
    return values.astype(np.float32 if values.dtype.kind == "f" else np.int64)


def client_data_of(store: Store, split: str) -> Any:
    """Returns a split of a store as a `ClientData`; see `data.tff_clients.to_tff`."""
    _ = store.client_ids(split)  # Refuses a split without clients.
    spec = OrderedDict(
        (name, tf.TensorSpec(feature.shape, tf.as_dtype(feature.dtype)))
        for name, feature in sorted(store.description.features.items())
    )
    return tff.simulation.datasets.load_and_parse_sql_client_data(str(store.path), spec, split)


class ClientSource(tff.program.FederatedDataSource):
    """A source of clients for TFF's programs; see `data.tff_clients.source`."""

    def __init__(self, clients: ClientDataset, process: Any, seed: int) -> None:
        self._clients = clients
        self._type = process.next.type_signature.parameter[1]
        self._seed = seed

    @property
    def federated_type(self) -> tff.FederatedType:
        """The type of a cohort."""
        return self._type

    def iterator(self) -> _ClientIterator:
        """Returns an iterator that begins with the first cohort."""
        iterator = _ClientIterator(self._seed, 0)
        return iterator.bound_to(self)

    def cohort(self, seed: int, number: int, size: int) -> list[Examples]:
        """Returns the clients of a cohort: a function of the seed and its number."""
        ids = self._clients.client_ids
        if size > len(ids):
            raise UserError(f"clients of a round: expected at most {len(ids)}, found {size}")
        rng = np.random.default_rng([seed, number])
        chosen = sorted(rng.choice(len(ids), size, replace=False))
        read = (self._clients.read(ids[k]) for k in chosen)
        return [OrderedDict((key, c[key]) for key in ("x", "y", "domain_id")) for c in read]


class _ClientIterator(tff.program.FederatedDataSourceIterator):
    """Counts cohorts; what a program saves of it is two numbers.

    A program restores it from bytes, which hold no clients: those are of the source of its seed
    that was made last.
    """

    _sources: ClassVar[dict[int, ClientSource]] = {}

    def __init__(self, seed: int, number: int) -> None:
        self._seed, self._number = seed, number

    def bound_to(self, source: ClientSource) -> _ClientIterator:
        """Returns the iterator, which draws from a source."""
        self._sources[self._seed] = source
        return self

    @classmethod
    def from_bytes(cls, buffer: bytes) -> _ClientIterator:
        """Returns what `to_bytes` saved."""
        seed, number = np.frombuffer(buffer, np.int64).tolist()
        return cls(seed, number)

    def to_bytes(self) -> bytes:
        """Returns the seed and the number of the next cohort."""
        return np.array([self._seed, self._number], np.int64).tobytes()

    @property
    def federated_type(self) -> tff.FederatedType:
        """The type of a cohort."""
        return self._sources[self._seed].federated_type

    def select(self, k: Optional[int] = None) -> list[Examples]:
        """Returns the next cohort, of k clients."""
        if k is None:
            raise UserError("clients of a round: expected a number, found None")
        cohort = self._sources[self._seed].cohort(self._seed, self._number, k)
        self._number += 1
        return cohort


class _EvaluationState(NamedTuple):
    """State of an evaluation of TFF's programs: the model, and sums so far, [p] each."""

    weights: ModelWeights
    losses: Any
    counts: Any


def evaluation_process(model: Any, num_domains: int) -> Any:
    """Returns federated evaluation as a TFF learning process.

    `tff.learning.programs.EvaluationManager` runs it. Each round evaluates a cohort, and changes no
    weights. Reports have the losses and counts of each domain, and of the worst one, of the
    round and of all rounds so far.

    Args:
        model: The model, or one of TFF's.
        num_domains: p.
    """
    own = as_model(model)
    evaluate = build_evaluation(own, num_domains)
    client_type = evaluate.type_signature.parameter[1]

    @tff.tensorflow.computation
    def initial() -> Any:
        weights = tf.nest.map_structure(tf.constant, own.initial_weights)
        return _EvaluationState(weights, tf.zeros([num_domains]), tf.zeros([num_domains], tf.int64))

    state_type = initial.type_signature.result

    def metrics_of(losses: tf.Tensor, counts: tf.Tensor) -> Any:
        means = tf.math.divide_no_nan(losses, tf.cast(counts, tf.float32))
        worst = tf.reduce_max(tf.where(counts > 0, means, tf.zeros_like(means)))
        return OrderedDict(loss=means, num_examples=counts, worst_loss=worst)

    @tff.tensorflow.computation(state_type)
    def weights_of(state: Any) -> Any:
        return state.weights

    @tff.tensorflow.computation(state_type, weights_of.type_signature.result)
    def with_weights(state: Any, weights: Any) -> Any:
        return state._replace(weights=weights)

    @tff.tensorflow.computation(state_type, evaluate.type_signature.result.member)
    def added(state: Any, output: Any) -> Any:
        now = output.sums.losses, output.sums.counts
        after = state._replace(losses=state.losses + now[0], counts=state.counts + now[1])
        rounds = OrderedDict(
            current_round_metrics=metrics_of(*now),
            total_rounds_metrics=metrics_of(after.losses, after.counts),
        )
        return after, OrderedDict(client_work=OrderedDict(eval=rounds))

    @tff.federated_computation
    def initialize_fn() -> Any:
        return tff.federated_eval(initial, tff.SERVER)

    @tff.federated_computation(tff.FederatedType(state_type, tff.SERVER), client_type)
    def next_fn(state: Any, clients: Any) -> Any:
        output = evaluate(tff.federated_map(weights_of, state), clients)
        after, metrics = tff.federated_map(added, (state, output))
        return tff.learning.templates.LearningProcessOutput(after, metrics)

    return tff.learning.templates.LearningProcess(initialize_fn, next_fn, weights_of, with_weights)
