"""TFF's models in place of a `Model`, and the other way; the bridge loads when it is asked."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from tff_agnostic.models.metrics import Metric
from tff_agnostic.models.model import Model

# Above this folder: nothing here needs it unless a model of TFF's is at hand.
_BRIDGE = "tff_agnostic.computations.tff_bridge.models"


def from_tff(model: Any, metrics: Sequence[Metric] = (), seed: int = 0) -> Model:
    """Returns a TFF model as a `Model`.

    Its own metrics are not taken over: they are no sums over examples.

    Args:
        model: A `tff.learning.models.FunctionalModel`, or a function without arguments that builds
            a `VariableModel`, which has to be a pure function of its weights.
        metrics: What to measure beside the loss.
        seed: Seeds the initial weights of a `VariableModel`.
    """
    converted: Model = importlib.import_module(_BRIDGE).model_from_tff(model, metrics, seed)
    return converted


def to_tff(model: Model) -> Any:
    """Returns a `tff.learning.models.FunctionalModel` of the same loss, metrics and weights.

    Its loss is the mean over a batch. Random layers draw anew in each call.
    """
    return importlib.import_module(_BRIDGE).model_to_tff(model)


def as_model(model: Any) -> Model:
    """Returns a `Model` as it is, and a model of TFF's as one; see `from_tff`."""
    return model if isinstance(model, Model) else from_tff(model)
