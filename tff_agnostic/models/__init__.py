"""Models as pure functions of their weights, created from Keras models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tff_agnostic.models.classifiers import emnist_cnn, logistic_regression
from tff_agnostic.models.keras import model_from_keras
from tff_agnostic.models.metrics import (
    Metric,
    SentenceLoss,
    accuracy,
    binary_accuracy,
    mean_absolute_error,
    root_mean_squared_error,
    text_metrics,
)
from tff_agnostic.models.model import Examples, Model, from_tff, to_tff
from tff_agnostic.models.next_word import keyboard_cifg, next_word_lstm, two_layer_lstm
from tff_agnostic.models.user_model import ModelData, load_user_model

if TYPE_CHECKING:
    from tff_agnostic.models.cifg import CIFG
    from tff_agnostic.models.lstm import LSTM

__all__ = [
    "CIFG",
    "LSTM",
    "Examples",
    "Metric",
    "Model",
    "ModelData",
    "SentenceLoss",
    "accuracy",
    "binary_accuracy",
    "emnist_cnn",
    "from_tff",
    "keyboard_cifg",
    "load_user_model",
    "logistic_regression",
    "mean_absolute_error",
    "model_from_keras",
    "next_word_lstm",
    "root_mean_squared_error",
    "text_metrics",
    "to_tff",
    "two_layer_lstm",
]


def __getattr__(name: str) -> Any:
    # Import on first use, because these modules load Keras.
    if name == "CIFG":
        from tff_agnostic.models.cifg import CIFG

        return CIFG
    if name == "LSTM":
        from tff_agnostic.models.lstm import LSTM

        return LSTM
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
