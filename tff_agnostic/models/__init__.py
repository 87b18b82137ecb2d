"""Models as pure functions of their weights, made from Keras models."""

from tff_agnostic.models.functional import Examples, Model
from tff_agnostic.models.keras import model_from_keras
from tff_agnostic.models.logistic import logistic_regression
from tff_agnostic.models.metrics import Metric, accuracy

__all__ = [
    "Examples",
    "Metric",
    "Model",
    "accuracy",
    "logistic_regression",
    "model_from_keras",
]
