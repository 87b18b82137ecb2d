"""Workloads of benchmarks: sizes of cohorts and models, with random data.

Every side imports this module in a separate environment, so it needs only NumPy.
"""

import dataclasses
import json
from typing import Any

import numpy as np

from tff_agnostic.base.registry import Registry

# Maximum number of examples per step of the domain pass, as in this package.
_DOMAIN_PASS_BATCH = 256


@dataclasses.dataclass(frozen=True)
class Workload:
    """The work of one round: every client trains one epoch of SGD, and the server averages.

    Attributes:
        name: Name in tables.
        model: Name of the model, which every side implements.
        clients: Number of clients per round.
        examples: Number of examples per client.
        batch_size: Number of examples per local step; divides `examples`.
        features: Shape of one example.
        labels: Shape of one example's labels.
        classes: Exclusive upper limit of labels and token ids.
        tokens: Whether examples are int32 token ids instead of float32.
        parameters: Number of trainable scalars of every side's model.
        domains: Number of domains of an agnostic algorithm.
        learning_rate: Learning rate of the clients; the server's rate is 1.
    """

    name: str
    model: str
    clients: int
    examples: int
    batch_size: int
    features: tuple[int, ...]
    classes: int
    parameters: int
    labels: tuple[int, ...] = ()
    tokens: bool = False
    domains: int = 2
    learning_rate: float = 0.1

    @property
    def steps(self) -> int:
        """Number of local steps of one client."""
        return self.examples // self.batch_size

    @property
    def domain_pass_batch(self) -> int:
        """Number of examples per step of AgnosticFedAvg's domain pass, which measures losses."""
        return min(self.examples, _DOMAIN_PASS_BATCH)

    def describe(self) -> str:
        """Returns the sizes as a human-readable string."""
        unit = f"sentences x {self.features[0]} tokens" if self.tokens else "examples"
        return (
            f"{self.clients:,} clients x {self.examples} {unit}, batch {self.batch_size}, "
            f"{self.parameters:,} parameters"
        )

    def to_json(self) -> str:
        """Returns the JSON form for command lines."""
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def from_json(text: str) -> "Workload":
        """Parses the result of `to_json`."""
        fields = json.loads(text)
        shapes = {name: tuple(fields[name]) for name in ("features", "labels")}
        return Workload(**{**fields, **shapes})


def logistic(clients: int, domains: int = 2) -> Workload:
    """Returns a workload of softmax regression with small clients."""
    return Workload(
        name="logistic",
        model="logistic",
        clients=clients,
        examples=40,
        batch_size=10,
        features=(60,),
        classes=10,
        parameters=610,
        domains=domains,
    )


# Two models of Reddi et al. 2021, and a small model that shows a simulator's overhead.
WORKLOADS: Registry[Workload] = Registry(
    "workload",
    {
        "emnist_cnn": Workload(
            name="emnist_cnn",
            model="emnist_cnn",
            clients=10,
            examples=200,
            batch_size=20,
            features=(28, 28, 1),
            classes=62,
            parameters=1_206_590,
        ),
        "stackoverflow_lstm": Workload(
            name="stackoverflow_lstm",
            model="next_word_lstm",
            clients=10,
            examples=64,
            batch_size=16,
            features=(20,),
            labels=(20,),
            classes=10_004,
            tokens=True,
            parameters=4_050_748,
        ),
        "logistic": logistic(clients=500),
    },
)


def make_clients(workload: Workload) -> list[dict[str, Any]]:
    """Returns random clients, which are the same on every side.

    Token ids start at 1, because 0 is padding, and all sentences have full length.

    Returns:
        For each client "x" [n, *features], "y" int32 [n, *labels], "domain_id" int32 [n].
    """
    rng = np.random.default_rng(0)
    n, low = workload.examples, int(workload.tokens)
    clients = []
    for _ in range(workload.clients):
        shape = (n, *workload.features)
        x: np.ndarray = rng.random(shape, np.float32)
        if workload.tokens:
            x = rng.integers(low, workload.classes, shape, np.int32)
        y = rng.integers(low, workload.classes, (n, *workload.labels), np.int32)
        domain_id = rng.integers(0, workload.domains, n, np.int32)
        clients.append({"x": x, "y": y, "domain_id": domain_id})
    return clients
