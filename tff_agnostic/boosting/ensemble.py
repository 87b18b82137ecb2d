"""An ensemble as a model whose only trainable weights are alpha, and the kinds of predictors.

Source: Hamer, Mohri, Suresh 2020, section 2.2: h_alpha = sum_k alpha_k h_k with alpha on the
simplex. The predictors' arrays are the model's non-trainable weights.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple, Optional

import numpy as np

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.later import tf
from tff_agnostic.boosting.members import (
    ClassMembers,
    DiscreteMembers,
    ModelMembers,
    NumberMembers,
    PredictorFamily,
    TwoClassMembers,
    WordMembers,
)
from tff_agnostic.boosting.mixture_losses import MIXTURE_LOSSES, MixtureLoss
from tff_agnostic.boosting.predictor_store import (
    Architecture,
    PredictorStore,
    SeveralArchitectures,
    store_for,
)
from tff_agnostic.models.metrics import ColumnLoss, SentenceLoss, sparse_cross_entropy, takes_scores
from tff_agnostic.models.model import Model, ModelWeights
from tff_agnostic.models.next_word import unigram_loss


@dataclasses.dataclass(frozen=True, eq=False)
class EnsembleModel(Model):
    """A mixture of predictors of one family; its weights alpha are the only trainable array.

    Attributes:
        members: The family of the predictors.
        mixture_loss: Name in `MIXTURE_LOSSES` of the loss that `loss` computes.
        names: Names of the q predictors.
        predictors: Model and weights of each predictor, to write files; empty unless predictors are
            Keras models.
    """

    members: Optional[PredictorFamily] = None
    mixture_loss: str = "log"
    names: tuple[str, ...] = ()
    predictors: tuple[tuple[Model, ModelWeights], ...] = ()

    @property
    def num_predictors(self) -> int:
        """The number of predictors q."""
        return len(self.initial_weights.trainable[0])

    @property
    def num_bytes(self) -> int:
        """Size in bytes of all predictors and their weights alpha."""
        return sum(np.asarray(array).nbytes for array in tf.nest.flatten(self.initial_weights))

    @property
    def bytes_per_example(self) -> Optional[int]:
        """See `Model`."""
        return self.message_bytes_per_example(self.num_predictors)

    def message_bytes_per_example(self, count: int) -> Optional[int]:
        """Returns the bytes of a message with `count` predictors that one example reads."""
        assert self.members is not None
        return self.members.bytes_per_example(count)

    def message_bytes(self, count: int) -> int:
        """Returns the size in bytes of a message with `count` predictors."""
        assert self.members is not None
        return self.members.num_bytes(self.initial_weights.non_trainable, count)


@dataclasses.dataclass(frozen=True)
class _Predict:
    members: PredictorFamily

    def __call__(self, weights: ModelWeights, x: Any, training: bool, seed: tf.Tensor) -> tf.Tensor:
        del training, seed
        outputs = self.members.outputs(weights.non_trainable, x)
        return self.members.predictions(outputs, weights.trainable[0], x)


@dataclasses.dataclass(frozen=True)
class _Loss:
    members: PredictorFamily
    loss: MixtureLoss

    @property
    def from_logits(self) -> Optional[bool]:
        """True for the log loss of classes, a cross-entropy of scores log h(x); otherwise None."""
        is_log = self.loss is MIXTURE_LOSSES["log"]
        return True if is_log and isinstance(self.members, ClassMembers) else None

    def __call__(self, labels: tf.Tensor, predictions: tf.Tensor) -> tf.Tensor:
        losses = self.loss.from_terms(self.members.fit(labels, predictions))
        return self.members.per_example(losses, labels)


def ensemble(
    model: Model,
    predictors: Sequence[ModelWeights],
    names: Sequence[str] = (),
    loss: Optional[str] = None,
    architectures: Optional[Sequence[Architecture]] = None,
) -> EnsembleModel:
    """Returns the ensemble of predictors with the inputs and outputs of a model.

    Args:
        model: Model that defines inputs and metrics and, if `architectures` is None, the
            predictors' architecture.
        predictors: Weights of each predictor; at least one predictor.
        names: Names of the predictors; numbers if empty.
        loss: Name in `MIXTURE_LOSSES`. None for the log loss if outputs are distributions, and for
            the squared loss if they are real numbers.
        architectures: Architecture of each predictor; None if all have the model's architecture.
    """
    form = output_kind(model)
    if architectures is None:
        architectures = [model_architecture(model)] * len(predictors)
    members = form.members(store_for(architectures), model.loss)
    if loss is None:
        loss = "log" if members.are_densities else "squared"
    mixture_loss = MIXTURE_LOSSES[loss]
    if isinstance(members, DiscreteMembers):
        members = DiscreteMembers(with_norm=not mixture_loss.needs_densities)
    if mixture_loss.needs_densities and not members.are_densities:
        raise UserError(
            f"loss: expected squared, found {loss}: this model predicts numbers, whose mixture is "
            "not a distribution"
        )
    names = tuple(names) or tuple(map(str, range(len(predictors))))
    stacks = members.stacked(predictors)
    _check(members, predictors, stacks, names, mixture_loss)
    q = len(predictors)
    return EnsembleModel(
        initial_weights=ModelWeights([np.full([q], 1 / q, np.float32)], stacks),
        example_spec=model.example_spec,
        predict=_Predict(members),
        loss=_Loss(members, mixture_loss),
        metrics=model.metrics,
        members=members,
        mixture_loss=loss,
        names=names,
        predictors=_keras_predictors(model, predictors),
    )


def _keras_predictors(
    model: Model, predictors: Sequence[ModelWeights]
) -> tuple[tuple[Model, ModelWeights], ...]:
    if model.keras_model is None:
        return ()
    return tuple((model, weights) for weights in predictors)


def _check(
    members: PredictorFamily,
    predictors: Sequence[ModelWeights],
    stacks: Sequence[np.ndarray],
    names: Sequence[str],
    loss: MixtureLoss,
) -> None:
    are_discrete = isinstance(members, DiscreteMembers)
    for k, name in enumerate(names):
        # Check the probabilities, as single scores may be infinite.
        arrays = [stacks[0][:, k]] if are_discrete else tf.nest.flatten(predictors[k])
        if not all(np.all(np.isfinite(np.asarray(array))) for array in arrays):
            raise UserError(
                f"base predictors: {name}: expected finite numbers, found NaN or infinity"
            )
    if isinstance(members, ModelMembers) and isinstance(members.held, SeveralArchitectures):
        for name, weights in zip(names, predictors):
            _check_float32(name, weights)
    if are_discrete and loss.needs_densities:
        lost = np.argwhere(stacks[0] <= 0)
        if len(lost):
            outcome, k = lost[0]
            raise UserError(
                f"base predictors: {names[k]}: expected positive probabilities, found 0 of "
                f"outcome {outcome}, whose log loss is infinite: smooth it"
            )


def _check_float32(name: str, weights: ModelWeights) -> None:
    for array in map(np.asarray, tf.nest.flatten(weights)):
        if not np.array_equal(array.astype(np.float32).astype(array.dtype), array):
            raise UserError(
                f"base predictors: {name}: expected weights that float32 holds exactly, as "
                f"predictors of several architectures share an array, found {array.dtype} values"
            )


class OutputKind(NamedTuple):
    """A kind of predictions.

    Attributes:
        matches: Whether a model with a given loss has predictions of this kind.
        members: (storage of the predictors, loss of the task's model) -> the predictors' family.
        are_models: Whether predictors are models with inputs, whose architectures may differ.
    """

    matches: Callable[[Any], bool]
    members: Callable[[PredictorStore, Any], PredictorFamily]
    are_models: bool = True


def _is_class_loss(loss: Any) -> bool:
    return loss is sparse_cross_entropy or isinstance(
        loss, tf.keras.losses.SparseCategoricalCrossentropy
    )


def _keras_form(loss: Any) -> Any:
    return loss.loss if isinstance(loss, ColumnLoss) else loss


def _is_number_loss(loss: Any) -> bool:
    return isinstance(_keras_form(loss), tf.keras.losses.MeanSquaredError)


def _is_two_class_loss(loss: Any) -> bool:
    keras_loss = _keras_form(loss)
    # With label smoothing, labels are not classes.
    return (
        isinstance(keras_loss, tf.keras.losses.BinaryCrossentropy)
        and not keras_loss.get_config()["label_smoothing"]
    )


_FORMS = (
    OutputKind(
        lambda loss: loss is unigram_loss, lambda held, loss: DiscreteMembers(), are_models=False
    ),
    OutputKind(_is_class_loss, lambda held, loss: ClassMembers(held)),
    OutputKind(
        _is_two_class_loss,
        lambda held, loss: TwoClassMembers(held, from_scores=bool(takes_scores(loss))),
    ),
    OutputKind(
        lambda loss: isinstance(loss, SentenceLoss),
        lambda held, loss: WordMembers(held, loss.expected_length),
    ),
    OutputKind(_is_number_loss, lambda held, loss: NumberMembers(held)),
)


def output_kind(model: Model) -> OutputKind:
    """Returns the kind of a model's predictions."""
    for form in _FORMS:
        if form.matches(model.loss):
            return form
    loss = _keras_form(model.loss)
    name = getattr(loss, "__name__", type(loss).__name__)
    raise UserError(
        "base predictors: expected a task whose model has class scores, class probabilities or "
        "numbers with the loss sparse_cross_entropy, Keras' SparseCategoricalCrossentropy, "
        "BinaryCrossentropy or MeanSquaredError, sentences with SentenceLoss, or one of words, "
        f"found the loss {name}: only distributions and numbers can be mixed"
    )


def model_architecture(model: Model) -> Architecture:
    """Returns the architecture of predictors trained as models of a task."""
    output_kind(model)
    return Architecture(model, from_scores=bool(takes_scores(model.loss)))
