"""Every registered algorithm, and one with two steps, with options for tests."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from tests.support import two_steps
from tests.support.clients import NUM_DOMAINS
from tests.support.options import make_options
from tff_agnostic.algorithms import ALGORITHMS, AlgorithmSpec, Problem
from tff_agnostic.boosting.alpha import AlphaSteps, EnsembleOptions
from tff_agnostic.boosting.ensemble import EnsembleModel, ensemble
from tff_agnostic.computations import Algorithm
from tff_agnostic.models import Model, logistic_regression
from tff_agnostic.models.model import ModelWeights
from tff_agnostic.models.next_word import unigram_model
from tff_agnostic.program.options.flags import option_flags

CASES: dict[str, AlgorithmSpec] = {**ALGORITHMS, two_steps.NAME: two_steps.ALGORITHM}

# Values of options by flag. Each algorithm uses only the flags that it has.
VALUES: dict[str, Any] = {
    "client_learning_rate": 0.3,
    "client_epochs": 2,
    "client_batch_size": 4,
    "lambda_learning_rate": 0.1,
    "window": 2,
    "target_domain": "1",
    "q": 1.5,
    "mu": 0.7,
    "tilt": 1.5,
    "cohort_share": 0.8,
    "theta": (0.8,),
    "alpha_learning_rate": 0.02,
}


def build(
    name: str,
    model: Optional[Model] = None,
    num_domains: int = NUM_DOMAINS,
    seed: int = 7,
    **values: Any,
) -> Algorithm:
    """Returns an algorithm with `VALUES`, which `values` overrides.

    A key of `values` is a flag or an argument of the builder; keys of neither kind are ignored.
    """
    spec = CASES[name]
    flags = {flag.name for flag in option_flags(spec.options)}
    chosen = {flag: value for flag, value in {**VALUES, **values}.items() if flag in flags}
    model = logistic_regression(4, 3) if model is None else model
    if issubclass(spec.options, EnsembleOptions):
        model = random_ensemble(model)
    problem = Problem.numbered(model, num_domains, seed)
    options = make_options(spec.options, **chosen)
    return spec.build(problem, options, **builder_arguments(spec.build, values))


def builder_arguments(build: Callable[..., Algorithm], values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the entries of `values` that are keyword arguments of `build`."""
    parameters = inspect.signature(build).parameters.values()
    names = {p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
    return {name: value for name, value in values.items() if name in names}


@functools.cache
def random_ensemble(model: Model, q: int = 4, loss: Optional[str] = None) -> EnsembleModel:
    """Returns an ensemble of q random predictors with a model's architecture."""
    rng = np.random.default_rng(6)
    predictors = [
        ModelWeights(
            [w + rng.normal(size=w.shape).astype(w.dtype) for w in model.initial_weights.trainable],
            model.initial_weights.non_trainable,
        )
        for _ in range(q)
    ]
    return ensemble(model, predictors, loss=loss)


def sampled_mask(steps: AlphaSteps, alpha: np.ndarray, step: int) -> np.ndarray:
    """Returns 1 for each predictor that the package samples at a step, and 0 for the others."""
    drawn = steps.drawn(tf.constant(alpha, tf.float32), tf.constant(step))
    mask = np.zeros(len(alpha))
    mask[np.asarray(drawn.indices)] = np.asarray(drawn.is_sampled)
    return mask


def unigram_ensemble(distributions: np.ndarray, loss: str) -> EnsembleModel:
    """Returns an ensemble whose predictors are distributions of words, given as an array's rows."""
    scores = [ModelWeights([np.log(row).astype(np.float32)], []) for row in distributions]
    return ensemble(unigram_model(distributions.shape[1]), scores, loss=loss)
