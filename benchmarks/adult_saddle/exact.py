"""The exact saddle point of logistic regression on two domains, computed by SciPy.

The binary model has one weight per feature and a bias b. The score of class 1 is s = x w + b. An
example's loss is log(1 + exp(-s)) for class 1 and log(1 + exp(s)) for class 0. The game is min over
(w, b), max over lambda in [0, 1], of

    lambda L_0(w, b) + (1 - lambda) L_1(w, b) + ridge / 2 (||w||^2 + b^2)

where L_k is domain k's mean loss. For a fixed lambda, the optimal w is unique. The minimum over w
is a concave function of lambda with slope L_0 - L_1. At the saddle point, the slope is 0.

A softmax of two scores with weights u_0 and u_1 is this model with w = u_1 - u_0. Among all pairs
with this difference, (-w / 2, w / 2) has the minimum norm, ||u_0||^2 + ||u_1||^2 = ||w||^2 / 2. So
a ridge of 2 r on the softmax weights equals a ridge of r here.
"""

from typing import NamedTuple, Optional

import numpy as np
from scipy import optimize, special

# Tolerance of lambda, and of the gradient at an optimal w.
_TOLERANCE = 1e-9


class Saddle(NamedTuple):
    """The optimal w for a given lambda, and the losses of w.

    Attributes:
        lambda_: Weight of domain 0.
        w: Weights [d + 1], the bias last.
        losses: L_0 and L_1, without the ridge.
        value: The objective, with the ridge.
    """

    lambda_: float
    w: np.ndarray
    losses: np.ndarray
    value: float


class TwoDomains:
    """Logistic regression on two domains, with identical examples merged."""

    def __init__(self, x: np.ndarray, y: np.ndarray, domain_id: np.ndarray, ridge: float) -> None:
        """Merges identical examples.

        Args:
            x: Features [n, d].
            y: Classes [n], 0 or 1.
            domain_id: Domains [n], 0 or 1.
            ridge: Factor of the ridge penalty.
        """
        rows = np.column_stack([x, np.ones(len(y)), y, domain_id])
        unique, counts = np.unique(rows, axis=0, return_counts=True)
        self._x = unique[:, :-2]
        # +1 for class 1, -1 for class 0.
        self._sign = 2.0 * unique[:, -2] - 1.0
        domains = np.eye(2)[unique[:, -1].astype(int)]
        # Column k has each row's weight in the mean loss of domain k.
        self._share = counts[:, np.newaxis] * domains / (counts @ domains)
        self._ridge = ridge

    def losses(self, w: np.ndarray) -> np.ndarray:
        """Returns the domains' losses L_0 and L_1."""
        return np.logaddexp(0.0, -self._sign * (self._x @ w)) @ self._share

    def value(self, w: np.ndarray, lambda_: float) -> float:
        """Returns the objective with the ridge."""
        return float(self.losses(w) @ [lambda_, 1 - lambda_] + self._ridge / 2 * w @ w)

    def worst(self, w: np.ndarray) -> float:
        """Returns the maximum of the objective over lambda."""
        return float(self.losses(w).max() + self._ridge / 2 * w @ w)

    def least(self, lambda_: float, start: Optional[np.ndarray] = None) -> Saddle:
        """Returns the optimal w for a fixed lambda.

        Args:
            lambda_: Weight of domain 0.
            start: Initial weights; zeros if None.
        """
        share = self._share @ [lambda_, 1 - lambda_]
        has_weight = share > 0
        x, sign, share = self._x[has_weight], self._sign[has_weight], share[has_weight]

        def value(w: np.ndarray) -> float:
            return float(np.logaddexp(0.0, -sign * (x @ w)) @ share + self._ridge / 2 * w @ w)

        def gradient(w: np.ndarray) -> np.ndarray:
            return -x.T @ (share * sign * special.expit(-sign * (x @ w))) + self._ridge * w

        def hessian(w: np.ndarray) -> np.ndarray:
            p = special.expit(x @ w)
            return (x.T * (share * p * (1 - p))) @ x + self._ridge * np.eye(len(w))

        zeros = np.zeros(x.shape[1])
        solution = optimize.minimize(
            value,
            zeros if start is None else start,
            method="trust-exact",
            jac=gradient,
            hess=hessian,
            options={"gtol": _TOLERANCE},
        )
        return Saddle(lambda_, solution.x, self.losses(solution.x), float(solution.fun))

    def saddle(self) -> Saddle:
        """Returns the saddle point, which must have equal losses L_0 = L_1."""
        at = self.least(0.5)

        def slope(lambda_: float) -> float:
            nonlocal at
            at = self.least(lambda_, at.w)
            return float(at.losses[0] - at.losses[1])

        lambda_ = optimize.brentq(slope, 0.0, 1.0, xtol=_TOLERANCE)
        return self.least(lambda_, at.w)

    def gap(self, w: np.ndarray, lambda_: float) -> float:
        """Returns the duality gap: max over lambda for this w, minus min over w for this lambda."""
        return self.worst(w) - self.least(lambda_, w).value


def accuracies(w: np.ndarray, x: np.ndarray, y: np.ndarray, domain_id: np.ndarray) -> np.ndarray:
    """Returns the accuracy of w on all examples, on domain 0 and on domain 1, [3]."""
    is_right = (np.column_stack([x, np.ones(len(y))]) @ w > 0) == (y == 1)
    return np.array([is_right.mean(), *(is_right[domain_id == k].mean() for k in (0, 1))])
