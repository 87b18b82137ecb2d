"""FedBoost on point masses, figures 3 and 4 of Hamer et al. 2020, and appendix D.

Example: .venv/bin/python -m benchmarks.fedboost_synthetic.measure --predictors=100

q predictors, each sure of an outcome of its own; clients hold the outcomes by a power law, lambda_k
in proportion to 1 / k, and all take part in every round, so that a round's gradient is the mean
over outcomes. The steps are the package's own, without its clients: 20,000 rounds take seconds.
"""

import argparse
import itertools
from collections.abc import Sequence
from typing import Optional

import numpy as np
import tensorflow as tf
from tabulate import tabulate

from tff_agnostic.boosting.alpha import AlphaSteps, BoostOptions, alpha_steps
from tff_agnostic.boosting.ensemble import EnsembleModel, ensemble
from tff_agnostic.boosting.mixture_losses import MIXTURE_LOSSES
from tff_agnostic.boosting.sampling import GRADIENT_ESTIMATORS
from tff_agnostic.errors import counted
from tff_agnostic.models.model import ModelWeights
from tff_agnostic.models.next_word import unigram_model

_ETA = 0.001
_ESTIMATORS = ("masked", "divided", "unbiased")


def power_law(q: int) -> np.ndarray:
    """Returns lambda, float64 [q]."""
    weights = 1.0 / np.arange(1, q + 1)
    share: np.ndarray = weights / weights.sum()
    return share


def point_masses(q: int) -> EnsembleModel:
    """Returns the ensemble, with the squared loss."""
    with np.errstate(divide="ignore"):
        scores = np.log(np.eye(q, dtype=np.float32))
    predictors = [ModelWeights([row], []) for row in scores]
    return ensemble(unigram_model(q), predictors, loss="squared")


def excess(alpha: np.ndarray, lambda_: np.ndarray) -> float:
    """Returns the expected squared loss above its optimum, at alpha = lambda: their distance."""
    return float(np.sum((alpha - lambda_) ** 2))


def trained(steps: AlphaSteps, shares: np.ndarray, rounds: int) -> np.ndarray:
    """Returns alpha after so many rounds, float32 [q], given the share of each outcome."""
    model = steps.model
    weights, outcomes = tf.constant(shares, tf.float32), tf.range(len(shares))
    stacks = [tf.constant(stack) for stack in model.initial_weights.non_trainable]
    loss = MIXTURE_LOSSES[model.mixture_loss]
    estimator = GRADIENT_ESTIMATORS[steps.options.estimator(model)]
    members = model.members
    assert members is not None

    def next_alpha(t: tf.Tensor, alpha: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        message = steps.broadcast(ModelWeights([alpha], stacks), tf.ones([1]), t)
        outputs = members.outputs(message.weights.non_trainable, outcomes)
        found = loss.at(outputs, message.weights.trainable[0], outcomes)
        estimates = estimator.estimate(found.gradients, outputs.squared_norms(), message.sent)
        gradient = tf.linalg.matvec(estimates, weights, transpose_a=True)
        return t + 1, steps.next(alpha, gradient, tf.constant(1.0), t)

    def run() -> tf.Tensor:
        start = (tf.constant(0), tf.constant(model.initial_weights.trainable[0]))
        return tf.while_loop(lambda t, _: t < rounds, next_alpha, start)[1]

    return np.asarray(tf.function(run).get_concrete_function()())


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Prints a row per estimator, a column per way to sample."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--predictors", type=int, default=100)
    parser.add_argument("--estimators", nargs="+", choices=_ESTIMATORS, default=_ESTIMATORS)
    parser.add_argument("--budgets", type=int, nargs="+", default=[32, 64])
    parser.add_argument("--rounds", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--draw", default="independent")
    chosen = parser.parse_args(argv)
    model, lambda_ = point_masses(chosen.predictors), power_law(chosen.predictors)

    def cell(estimator: str, sampling: str, budget: Optional[int]) -> float:
        options = BoostOptions(
            predictor_sampling=sampling,
            budget=budget,
            predictor_draw=chosen.draw,
            gradient_estimator=estimator,
            uniform_share=0.0,
            alpha_learning_rate=_ETA,
        )
        steps = alpha_steps(model, options, chosen.seed)
        return excess(trained(steps, lambda_, chosen.rounds), lambda_)

    ways = list(itertools.product(("uniform", "weighted"), chosen.budgets))
    # With gamma_k = 1 all estimates are the gradient.
    of_all = cell("masked", "none", None)
    rows = [
        [e, of_all, *(cell(e, sampling, budget) for sampling, budget in ways)]
        for e in chosen.estimators
    ]
    headers = ["estimator", "full", *(f"{s} {c}" for s, c in ways)]
    start = excess(np.full(chosen.predictors, 1 / chosen.predictors), lambda_)
    print(f"excess at the start {start:.5f}, after {counted(chosen.rounds, 'round')}:")
    print(tabulate(rows, headers=headers, floatfmt=".5f"))


if __name__ == "__main__":
    main()
