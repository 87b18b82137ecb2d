"""The problems that both implementations solve, and the files that they exchange.

Both environments import this module, so it needs only NumPy.
"""

import dataclasses
import json
from pathlib import Path

import numpy as np

_ROUNDS, _CLIENTS_PER_ROUND = 25, 4

Client = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Settings:
    """Hyperparameters, with the paper's symbols in parentheses.

    Attributes:
        name: Label in the output.
        client_sizes: Number of examples of each client.
        batch_size: Client batch size (B).
        epochs: Number of local epochs (E).
        client_learning_rate: Learning rate of the clients (gamma_w).
        server_learning_rate: Learning rate of the server optimizer.
        server_momentum: Momentum of the server optimizer; 0 is plain SGD.
        domain_learning_rate: Learning rate of the domain weights (gamma_lambda).
        window_size: Number of rounds in the window of example counts (r).
        initial_weights: Initial domain weights (lambda_0).
        initial_counts: Initial example counts per domain (N_0).
        own_batches: Whether FedJAX fills an epoch's last batch with examples of the next epoch. If
            not, the last batch may be smaller, as in the paper.
    """

    name: str
    client_sizes: tuple[int, ...]
    batch_size: int
    epochs: int
    client_learning_rate: float
    server_learning_rate: float
    server_momentum: float
    domain_learning_rate: float
    window_size: int
    initial_weights: tuple[float, ...]
    initial_counts: tuple[float, ...]
    own_batches: bool


@dataclasses.dataclass(frozen=True)
class Problem:
    """Softmax regression on clients with unequal domains, and a fixed sequence of cohorts.

    Attributes:
        settings: Hyperparameters.
        matrix: Initial weight matrix, float32 [features, classes].
        offsets: Initial biases, float32 [classes].
        clients: For each client, "x" float32 [n, features], "y" int32 [n], "domain_id" int32 [n].
        cohorts: Indices of each round's clients, int [rounds, clients per round].
    """

    settings: Settings
    matrix: np.ndarray
    offsets: np.ndarray
    clients: list[Client]
    cohorts: np.ndarray


@dataclasses.dataclass(frozen=True)
class Trajectory:
    """The algorithm's states after each round; rounds are the first dimension.

    Attributes:
        matrix: Weight matrices, [rounds, features, classes].
        offsets: Biases, [rounds, classes].
        lambda_: Domain weights, [rounds, domains].
        window: Example counts of the last r rounds, [rounds, r, domains].
    """

    matrix: np.ndarray
    offsets: np.ndarray
    lambda_: np.ndarray
    window: np.ndarray

    @staticmethod
    def stacked(
        rounds: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]],
    ) -> "Trajectory":
        """Stacks the arrays (matrix, offsets, lambda, window) of all rounds."""
        return Trajectory(*[np.stack([np.asarray(v) for v in column]) for column in zip(*rounds)])


def make_problem(settings: Settings, seed: int) -> Problem:
    """Draws a random problem, whose domains differ in size, difficulty and classes.

    Only a third of the clients have the last domain, so that some rounds lack this domain. No
    domain is absent for `window_size` consecutive rounds, as FedJAX's weights would become NaN.
    """
    rng = np.random.default_rng(seed)
    num_features, num_classes, num_domains = 6, 4, len(settings.initial_weights)
    truth = rng.normal(size=[num_domains, num_features, num_classes])
    clients = []
    for k, size in enumerate(settings.client_sizes):
        present = num_domains if k % 3 == 0 else num_domains - 1
        domain_id = rng.choice(present, size=size, p=rng.dirichlet(np.ones(present)))
        x = rng.normal(size=[size, num_features]) * (1 + domain_id[:, None])
        scores = np.einsum("nf,nfc->nc", x, truth[domain_id]) + rng.gumbel(size=[size, num_classes])
        clients.append(
            {
                "x": x.astype(np.float32),
                "y": scores.argmax(axis=1).astype(np.int32),
                "domain_id": domain_id.astype(np.int32),
            }
        )
    cohorts: list[np.ndarray] = []
    window: list[np.ndarray] = [np.ones([num_domains])] * settings.window_size
    while len(cohorts) < _ROUNDS:
        cohort = rng.choice(len(clients), size=_CLIENTS_PER_ROUND, replace=False)
        domain_ids = np.concatenate([clients[k]["domain_id"] for k in cohort])
        next_window = [*window[1:], np.bincount(domain_ids, minlength=num_domains)]
        if np.all(np.sum(next_window, axis=0) > 0):
            cohorts.append(cohort)
            window = next_window
    return Problem(
        settings,
        matrix=(0.1 * rng.normal(size=[num_features, num_classes])).astype(np.float32),
        offsets=(0.1 * rng.normal(size=[num_classes])).astype(np.float32),
        clients=clients,
        cohorts=np.stack(cohorts),
    )


def save_problem(problem: Problem, path: Path) -> None:
    """Writes a problem to a file for the other environment."""
    arrays = {
        f"client_{k}_{name}": column
        for k, client in enumerate(problem.clients)
        for name, column in client.items()
    }
    np.savez(
        path,
        settings=json.dumps(dataclasses.asdict(problem.settings)),
        matrix=problem.matrix,
        offsets=problem.offsets,
        cohorts=problem.cohorts,
        **arrays,
    )


def load_problem(path: Path) -> Problem:
    """Reads a file that `save_problem` wrote."""
    with np.load(path) as archive:
        settings = Settings(**json.loads(str(archive["settings"])))
        clients = [
            {name: archive[f"client_{k}_{name}"] for name in ("x", "y", "domain_id")}
            for k in range(len(settings.client_sizes))
        ]
        return Problem(settings, archive["matrix"], archive["offsets"], clients, archive["cohorts"])


def save_trajectory(trajectory: Trajectory, path: Path) -> None:
    """Writes a trajectory to a file for the other environment."""
    np.savez(path, **dataclasses.asdict(trajectory))


def load_trajectory(path: Path) -> Trajectory:
    """Reads a file that `save_trajectory` wrote."""
    with np.load(path) as archive:
        return Trajectory(
            **{field.name: archive[field.name] for field in dataclasses.fields(Trajectory)}
        )
