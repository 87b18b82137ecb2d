"""Projections and worst mixtures by SciPy's general solvers, as references."""

from collections.abc import Sequence
from typing import Any, Callable, Optional

import numpy as np
from scipy import optimize

# A solver's set: bounds of each coordinate, an optional g with g(x) >= 0, and a sum of 1.
Bounds = Sequence[tuple[float, float]]
Inside = Optional[Callable[[np.ndarray], float]]


def nearest(point: np.ndarray, bounds: Bounds, inside: Inside, start: np.ndarray) -> np.ndarray:
    """Returns argmin_x ||x - point||^2 in the set."""
    # The solver's tolerance is absolute, so scale values to about 1.
    scale = 1.0 + np.abs(point).max()
    return _minimum(lambda x: np.sum((x - point) ** 2) / scale, bounds, inside, start)


def nearest_in_entropy(
    point: np.ndarray, bounds: Bounds, inside: Inside, start: np.ndarray
) -> np.ndarray:
    """Returns argmin_x sum_i x_i log(x_i / point_i) in the set."""

    def divergence(x: np.ndarray) -> float:
        x = np.maximum(x, 1e-300)
        return float(np.sum(x * np.log(x / point)))

    return _minimum(divergence, bounds, inside, start)


def worst(losses: np.ndarray, bounds: Bounds, inside: Inside, start: np.ndarray) -> np.ndarray:
    """Returns argmax_lambda sum_i lambda_i losses_i in the set."""
    scale = np.abs(losses).max()
    return _minimum(lambda x: -float(losses @ x) / scale, bounds, inside, start)


def assert_on_simplex(vector: Any) -> None:
    vector = np.asarray(vector)
    assert np.all(np.isfinite(vector))
    assert np.all(vector >= 0)
    np.testing.assert_allclose(vector.sum(), 1.0, rtol=1e-6)


def _minimum(
    objective: Callable[[np.ndarray], float], bounds: Bounds, inside: Inside, start: np.ndarray
) -> np.ndarray:
    constraints: list[dict[str, Any]] = [{"type": "eq", "fun": lambda x: x.sum() - 1.0}]
    if inside is not None:
        constraints.append({"type": "ineq", "fun": inside})
    actual = optimize.minimize(
        objective,
        start,
        method="SLSQP",
        bounds=bounds,
        constraints=constraints,
        options={"maxiter": 1000, "ftol": 1e-13},
    )
    # Status 8: within rounding errors, no direction decreases the objective.
    assert actual.status in (0, 8), actual.message
    return np.asarray(actual.x)
