"""FedBoost's settings beside the exact optimum: the table in docs/results/fed_boost_estimators.md.

Example: .venv/bin/python -m benchmarks.fedboost_synthetic.oracle

Eight random predictors over 20 outcomes; the data are outcomes of a random mixture of three of
them and of noise. All clients take part in every round. The optimum of the squared loss is that of
a quadratic program, and of the log loss the limit of expectation maximisation, which is exact for
mixture weights. The steps are the package's own, without its clients.
"""

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import numpy as np
import scipy.optimize
from tabulate import tabulate

from benchmarks.fedboost_synthetic.measure import trained
from tff_agnostic.boosting.alpha import BoostOptions, alpha_steps
from tff_agnostic.boosting.ensemble import ensemble
from tff_agnostic.models.model import ModelWeights
from tff_agnostic.models.next_word import unigram_model

_PREDICTORS, _OUTCOMES = 8, 20
_LOSSES = ("log", "squared")
# By what a table's row is called; all with the entropy, C = 3 of 8.
_ROWS: Mapping[str, Mapping[str, Any]] = {
    "the figure": {
        "gradient_estimator": "masked",
        "predictor_draw": "independent",
        "uniform_share": 0.0,
    },
    "masked": {"gradient_estimator": "masked", "uniform_share": 0.0},
    "masked, share .2": {"gradient_estimator": "masked"},
    "divided": {"gradient_estimator": "divided", "uniform_share": 0.0},
    "divided, share .2": {"gradient_estimator": "divided"},
    "unbiased": {"gradient_estimator": "unbiased", "uniform_share": 0.0},
    "unbiased, share .2": {"gradient_estimator": "unbiased"},
    "unbiased, share .2, coins": {
        "gradient_estimator": "unbiased",
        "predictor_draw": "independent",
    },
    "centred": {"gradient_estimator": "centred", "uniform_share": 0.0},
    "centred, share .2": {"gradient_estimator": "centred"},
    "no sampling": {"predictor_sampling": "none", "budget": None, "gradient_estimator": "divided"},
}


@dataclasses.dataclass(frozen=True)
class Oracle:
    """A problem whose optimum is known.

    Attributes:
        loss: "log" or "squared".
        predictors: h_k, float64 [q, outcomes].
        shares: Of the outcomes in the data, float64 [outcomes].
        optimum: The least loss of a mixture.
    """

    loss: str
    predictors: np.ndarray
    shares: np.ndarray
    optimum: float

    def excess(self, alpha: np.ndarray) -> float:
        """Returns the loss of a mixture above the least one."""
        return _loss(self.loss, self.predictors, self.shares, alpha) - self.optimum


def oracle(loss: str, seed: int) -> Oracle:
    """Returns a random problem."""
    rng = np.random.default_rng(seed)
    predictors = rng.dirichlet(np.full(_OUTCOMES, 0.4), _PREDICTORS) * 0.98 + 0.02 / _OUTCOMES
    mixture = np.zeros(_PREDICTORS)
    mixture[:3] = rng.dirichlet(np.full(3, 2.0))
    shares = 0.9 * mixture @ predictors + 0.1 * rng.dirichlet(np.ones(_OUTCOMES))
    best = {"log": _by_expectation_maximisation, "squared": _by_program}[loss](predictors, shares)
    return Oracle(loss, predictors, shares, _loss(loss, predictors, shares, best))


def _loss(loss: str, predictors: np.ndarray, shares: np.ndarray, alpha: np.ndarray) -> float:
    mixed = alpha @ predictors
    if loss == "log":
        return float(-shares @ np.log(mixed))
    # The mean over the data of |h - one_hot(y)|^2.
    return float(mixed @ mixed - 2 * shares @ mixed + 1)


def _by_expectation_maximisation(predictors: np.ndarray, shares: np.ndarray) -> np.ndarray:
    alpha = np.full(len(predictors), 1 / len(predictors))
    for _ in range(200_000):
        following = alpha * (predictors @ (shares / (alpha @ predictors)))
        if np.abs(following - alpha).max() < 1e-14:
            break
        alpha = following
    return alpha


def _by_program(predictors: np.ndarray, shares: np.ndarray) -> np.ndarray:
    found = scipy.optimize.minimize(
        lambda a: _loss("squared", predictors, shares, a),
        np.full(len(predictors), 1 / len(predictors)),
        jac=lambda a: 2 * predictors @ (a @ predictors - shares),
        bounds=[(0, 1)] * len(predictors),
        constraints={"type": "eq", "fun": lambda a: a.sum() - 1, "jac": np.ones_like},
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 1000},
    )
    best: np.ndarray = np.maximum(found.x, 0) / np.maximum(found.x, 0).sum()
    return best


def excess_after(
    problem: Oracle, settings: Mapping[str, Any], eta: float, rounds: int, seed: int
) -> float:
    """Returns the excess of the last alpha."""
    scores = np.log(problem.predictors).astype(np.float32)
    predictors = [ModelWeights([row], []) for row in scores]
    model = ensemble(unigram_model(_OUTCOMES), predictors, loss=problem.loss)
    options = BoostOptions(**{"budget": 3, "alpha_learning_rate": eta, **settings})
    steps = alpha_steps(model, options, seed)
    return problem.excess(np.asarray(trained(steps, problem.shares, rounds), np.float64))


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Prints a table for each loss: a row for settings, a column for each rate."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=1500)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.1, 0.01])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--losses", nargs="+", choices=_LOSSES, default=_LOSSES)
    chosen = parser.parse_args(argv)
    for loss in chosen.losses:
        problems = {seed: oracle(loss, seed) for seed in chosen.seeds}
        uniform = np.full(_PREDICTORS, 1 / _PREDICTORS)
        start = [problem.excess(uniform) for problem in problems.values()]
        other = {"log": "unbiased", "squared": "centred"}[loss]
        rows = [
            [
                name,
                *(
                    _mean_and_spread(
                        [
                            excess_after(problem, settings, eta, chosen.rounds, seed)
                            for seed, problem in problems.items()
                        ]
                    )
                    for eta in chosen.rates
                ),
            ]
            for name, settings in _ROWS.items()
            if settings["gradient_estimator"] != other
        ]
        print(f"{loss} loss: excess at the start {_mean_and_spread(start)}, after {chosen.rounds}")
        print(tabulate(rows, headers=["settings", *(f"eta {eta:g}" for eta in chosen.rates)]))
        print()


def _mean_and_spread(values: Sequence[float]) -> str:
    return f"{np.mean(values):.4f} ({np.min(values):.4f} to {np.max(values):.4f})"


if __name__ == "__main__":
    main()
