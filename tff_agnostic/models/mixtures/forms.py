"""What can be mixed: the form of predictions follows from the loss that a model has."""

from typing import Any, Callable, NamedTuple

import tensorflow as tf

from tff_agnostic.errors import UserError
from tff_agnostic.models.functional import Model
from tff_agnostic.models.losses import OfColumns, sparse_cross_entropy, takes_scores
from tff_agnostic.models.mixtures.class_members import ClassMembers, TwoClassMembers
from tff_agnostic.models.mixtures.holding import Architecture, Held
from tff_agnostic.models.mixtures.members import (
    DiscreteMembers,
    Members,
    NumberMembers,
    WordMembers,
)
from tff_agnostic.models.sentences import SentenceLoss
from tff_agnostic.models.unigram import unigram_loss


class Form(NamedTuple):
    """A form of predictions.

    Attributes:
        is_of: Whether models of a loss have it.
        members: What makes members of predictors, given the loss of the task's model.
        are_models: Whether members are models with inputs, and may be of several architectures.
    """

    is_of: Callable[[Any], bool]
    members: Callable[[Held, Any], Members]
    are_models: bool = True


def _is_class_loss(loss: Any) -> bool:
    return loss is sparse_cross_entropy or isinstance(
        loss, tf.keras.losses.SparseCategoricalCrossentropy
    )


def _of_keras(loss: Any) -> Any:
    return loss.loss if isinstance(loss, OfColumns) else loss


def _is_number_loss(loss: Any) -> bool:
    return isinstance(_of_keras(loss), tf.keras.losses.MeanSquaredError)


def _is_two_class_loss(loss: Any) -> bool:
    of_keras = _of_keras(loss)
    # A smoothed label is no class.
    return (
        isinstance(of_keras, tf.keras.losses.BinaryCrossentropy)
        and not of_keras.get_config()["label_smoothing"]
    )


_FORMS = (
    Form(lambda loss: loss is unigram_loss, lambda held, loss: DiscreteMembers(), are_models=False),
    Form(_is_class_loss, lambda held, loss: ClassMembers(held)),
    Form(
        _is_two_class_loss,
        lambda held, loss: TwoClassMembers(held, from_scores=bool(takes_scores(loss))),
    ),
    Form(
        lambda loss: isinstance(loss, SentenceLoss),
        lambda held, loss: WordMembers(held, loss.expected_length),
    ),
    Form(_is_number_loss, lambda held, loss: NumberMembers(held)),
)


def form_of(model: Model) -> Form:
    """Returns the form of a model's predictions.

    Raises:
        UserError: If a mixture of them means nothing.
    """
    for form in _FORMS:
        if form.is_of(model.loss):
            return form
    loss = _of_keras(model.loss)
    name = getattr(loss, "__name__", type(loss).__name__)
    raise UserError(
        "--base_predictors: expected a task whose model has class scores, class probabilities or "
        "numbers with the loss sparse_cross_entropy, Keras' SparseCategoricalCrossentropy, "
        "BinaryCrossentropy or MeanSquaredError, sentences with SentenceLoss, or one of words, "
        f"found the loss {name}: of what it is not known to be a distribution or a number, a "
        "mixture means nothing"
    )


def architecture_of(model: Model) -> Architecture:
    """Returns the architecture of predictors that are trained models of a task.

    Raises:
        UserError: As `form_of` does.
    """
    form_of(model)
    return Architecture(model, from_scores=bool(takes_scores(model.loss)))
