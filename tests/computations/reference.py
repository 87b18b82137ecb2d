"""Algorithm 1 of Ro et al. 2021 in NumPy and float64, written only from the paper.

The module imports nothing from the package. Functions, symbols and line numbers are the paper's.
DECISION marks choices that the paper leaves open. Models have hand-written gradients, so that the
package and the reference share no automatic differentiation.
"""

import dataclasses
from collections.abc import Sequence
from typing import Callable, NamedTuple, Optional, Protocol

import numpy as np

Weights = list[np.ndarray]


class Client(NamedTuple):
    """A client's examples S_k: features [n, d], classes [n], domains [n]."""

    x: np.ndarray
    y: np.ndarray
    domain: np.ndarray


class Model(NamedTuple):
    """A hypothesis class.

    Attributes:
        losses: Called with (w, x, y); returns L(w, x_j, y_j) of each example.
        gradient: Called with (w, x, y, scale); returns the gradient of the losses summed with
            weights scale_j.
    """

    losses: Callable[[Weights, np.ndarray, np.ndarray], np.ndarray]
    gradient: Callable[[Weights, np.ndarray, np.ndarray, np.ndarray], Weights]


def _cross_entropy(w: Weights, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    scores = x @ w[0] + w[1]
    top = scores.max(axis=1)
    log_sum = np.log(np.exp(scores - top[:, None]).sum(axis=1)) + top
    return log_sum - scores[np.arange(len(y)), y]


def _cross_entropy_gradient(w: Weights, x: np.ndarray, y: np.ndarray, scale: np.ndarray) -> Weights:
    scores = x @ w[0] + w[1]
    probabilities = np.exp(scores - scores.max(axis=1)[:, None])
    probabilities /= probabilities.sum(axis=1)[:, None]
    probabilities[np.arange(len(y)), y] -= 1.0
    error = probabilities * scale[:, None]
    return [x.T @ error, error.sum(axis=0)]


# The weights are w = [matrix [d, classes], offsets [classes]].
SOFTMAX_REGRESSION = Model(_cross_entropy, _cross_entropy_gradient)

# The weights are w = [scalar], and an example's loss is x * w.
LINEAR = Model(losses=lambda w, x, y: x * w[0], gradient=lambda w, x, y, scale: [np.sum(scale * x)])


# CLIENT


class ClientParams(NamedTuple):
    """The paper's gamma_w, E and B, and two decisions.

    DECISION: `normalizer` is the divisor of a batch's loss, "client" or "batch".
    DECISION: `is_one_pass` is a variation of the paper. It measures L not at w (line 3), but during
    the first epoch, before the step on an example's batch.
    """

    gamma_w: float
    E: int
    B: int
    normalizer: str = "client"
    is_one_pass: bool = False


class ClientResult(NamedTuple):
    """The values that a client returns in line 13."""

    w: Weights
    beta: float
    L: np.ndarray
    N: np.ndarray


def client(
    model: Model, S_k: Client, w: Weights, alpha: np.ndarray, params: ClientParams
) -> ClientResult:
    """Runs the paper's procedure CLIENT(k, w, alpha)."""
    p = len(alpha)
    L, N, beta = np.zeros(p), np.zeros(p), 0.0
    for i in range(p):  # line 2
        in_domain = S_k.domain == i
        size = np.count_nonzero(in_domain)
        if size and not params.is_one_pass:
            mean_loss = model.losses(w, S_k.x[in_domain], S_k.y[in_domain]).mean()
            L[i] = size * mean_loss  # line 3
        N[i] = size  # line 4
        beta += alpha[i] * size  # line 5
    n = len(S_k.y)
    batches = [np.arange(start, min(start + params.B, n)) for start in range(0, n, params.B)]  # 7
    for epoch in range(params.E):  # line 8
        for b in batches:  # line 9
            if params.is_one_pass and epoch == 0:
                np.add.at(L, S_k.domain[b], model.losses(w, S_k.x[b], S_k.y[b]))
            if beta == 0:
                continue  # DECISION: a client without weight does not train.
            scale = alpha[S_k.domain[b]]
            divisor = beta if params.normalizer == "client" else scale.sum()
            if divisor == 0:
                continue
            g = model.gradient(w, S_k.x[b], S_k.y[b], scale / divisor)
            w = [w_m - params.gamma_w * g_m for w_m, g_m in zip(w, g)]  # line 10
    return ClientResult(w, beta, L, N)


# Updates of lambda


def exponentiated_gradient(lambda_: np.ndarray, L: np.ndarray, gamma: float) -> np.ndarray:
    """Returns lambda after line 12, rescaled to lambda's sum, which is 1 in the paper."""
    moved = lambda_ * np.exp(gamma * L)
    return lambda_.sum() * moved / moved.sum()


def projected_gradient(lambda_: np.ndarray, L: np.ndarray, gamma: float) -> np.ndarray:
    """Returns the projection of v = lambda + gamma L, max(v - tau, 0), with tau from bisection."""
    v, total = lambda_ + gamma * L, lambda_.sum()
    low, high = v.min() - total, v.max()
    for _ in range(200):
        tau = (low + high) / 2
        if np.maximum(v - tau, 0).sum() > total:
            low = tau
        else:
            high = tau
    return np.maximum(v - tau, 0)


def fixed(lambda_: np.ndarray, L: np.ndarray, gamma: float) -> np.ndarray:
    """Returns lambda unchanged."""
    del L, gamma
    return lambda_


LAMBDA_UPDATES: dict[str, Callable[[np.ndarray, np.ndarray, float], np.ndarray]] = {
    "exponentiated_gradient": exponentiated_gradient,
    "projected_gradient": projected_gradient,
    "fixed": fixed,
}


# Server optimizers. Line 9 is w_t = average of w^k. DECISION: w - average is the gradient.


class ServerOptimizer(Protocol):
    """An optimizer of the server, which can keep a state between steps."""

    def step(self, w: Weights, g: Weights) -> Weights:
        """Returns the weights after a step with gradient g."""


@dataclasses.dataclass
class Sgd:
    """Plain SGD; with the learning rate 1, line 9 is as printed."""

    learning_rate: float = 1.0

    def step(self, w: Weights, g: Weights) -> Weights:
        return [w_m - self.learning_rate * g_m for w_m, g_m in zip(w, g)]


@dataclasses.dataclass
class Adam:
    """Kingma and Ba's Adam with epsilon outside the bias correction, like TFF's."""

    learning_rate: float
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7

    def __post_init__(self) -> None:
        self.t = 0
        self.m: list[np.ndarray] = []
        self.v: list[np.ndarray] = []

    def step(self, w: Weights, g: Weights) -> Weights:
        if not self.m:
            self.m, self.v = [np.zeros_like(x) for x in g], [np.zeros_like(x) for x in g]
        self.t += 1
        self.m = [self.beta_1 * m + (1 - self.beta_1) * x for m, x in zip(self.m, g)]
        self.v = [self.beta_2 * v + (1 - self.beta_2) * x**2 for v, x in zip(self.v, g)]
        rate = self.learning_rate * np.sqrt(1 - self.beta_2**self.t) / (1 - self.beta_1**self.t)
        return [x - rate * m / (np.sqrt(v) + self.epsilon) for x, m, v in zip(w, self.m, self.v)]


# SERVER


@dataclasses.dataclass
class Server:
    """The paper's procedure SERVER, whose method `round` runs one round.

    Attributes:
        model: The hypothesis class.
        w: Weights w_{t-1}.
        lambda_: Domain weights lambda_{t-1}.
        window: Domain counts N_{t-r} .. N_{t-1}, oldest first.
        gamma_lambda: Learning rate of lambda.
        client_params: Parameters of the clients.
        optimizer: Server optimizer, whose gradient is the average delta.
        lambda_update: Key in `LAMBDA_UPDATES`.
        freeze_absent: DECISION: whether domains without examples in a round keep their weight.
        baselines: DECISION: b in max(L - b, 0), which replaces L of present domains in line 12.
    """

    model: Model
    w: Weights
    lambda_: np.ndarray
    window: list[np.ndarray]
    gamma_lambda: float
    client_params: ClientParams
    optimizer: ServerOptimizer
    lambda_update: str = "exponentiated_gradient"
    freeze_absent: bool = False
    baselines: Optional[np.ndarray] = None

    def __post_init__(self) -> None:
        self.last_mean = np.mean(self.window, axis=0)

    def alpha(self) -> np.ndarray:
        """Returns line 4's alpha. DECISION: a domain absent from the window keeps its last mean."""
        mean = np.sum(self.window, axis=0) / len(self.window)
        self.last_mean = np.where(mean > 0, mean, self.last_mean)
        return self.lambda_ / self.last_mean

    def round(self, cohort: Sequence[Client]) -> None:
        """Runs lines 4 to 12; `cohort` is line 5's set, and lines 6 to 8 compute `results`."""
        alpha = self.alpha()
        results = [client(self.model, S_k, self.w, alpha, self.client_params) for S_k in cohort]
        beta_t = sum(r.beta for r in results)
        if beta_t > 0:
            average = [sum(r.beta * r.w[m] for r in results) / beta_t for m in range(len(self.w))]
            delta = [w_m - a for w_m, a in zip(self.w, average)]
            self.w = self.optimizer.step(self.w, delta)  # line 9
        N_t = np.sum([r.N for r in results], axis=0)  # line 10
        if N_t.sum() == 0:
            return  # DECISION: a round without examples keeps the state.
        L = np.zeros_like(self.lambda_)  # "if a round does not have any samples [...] zero"
        present = N_t > 0
        L[present] = np.sum([r.L for r in results], axis=0)[present] / N_t[present]  # line 11
        if self.baselines is not None:
            L[present] = np.maximum(L[present] - self.baselines[present], 0)
        self.lambda_ = self._next_lambda(L, present)  # line 12
        self.window = [*self.window[1:], N_t]

    def _next_lambda(self, L: np.ndarray, present: np.ndarray) -> np.ndarray:
        update = LAMBDA_UPDATES[self.lambda_update]
        if not self.freeze_absent:
            return update(self.lambda_, L, self.gamma_lambda)
        # DECISION: the present domains' weights keep their sum.
        result = self.lambda_.copy()
        result[present] = update(self.lambda_[present], L[present], self.gamma_lambda)
        return result
