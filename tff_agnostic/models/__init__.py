"""Models as pure functions of their weights, made from Keras models."""

from tff_agnostic.models.cifg import CIFG
from tff_agnostic.models.emnist_cnn import emnist_cnn
from tff_agnostic.models.functional import Examples, Model
from tff_agnostic.models.keras import model_from_keras
from tff_agnostic.models.keyboard_cifg import keyboard_cifg
from tff_agnostic.models.logistic import logistic_regression
from tff_agnostic.models.lstm import LSTM
from tff_agnostic.models.metrics import Metric, accuracy
from tff_agnostic.models.next_word_lstm import next_word_lstm, two_layer_lstm
from tff_agnostic.models.number_metrics import (
    binary_accuracy,
    mean_absolute_error,
    root_mean_squared_error,
)
from tff_agnostic.models.sentences import SentenceLoss
from tff_agnostic.models.text_metrics import text_metrics
from tff_agnostic.models.user_model import ModelData, load_user_model

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
    "keyboard_cifg",
    "load_user_model",
    "logistic_regression",
    "mean_absolute_error",
    "model_from_keras",
    "next_word_lstm",
    "root_mean_squared_error",
    "text_metrics",
    "two_layer_lstm",
]
