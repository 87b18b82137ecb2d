"""Workloads of benchmarks: shapes of cohorts and models, with random data.

NumPy only: every side imports this module in its own environment.
"""

import dataclasses
import json
from typing import Any

import numpy as np

from tff_agnostic.base.registry import Registry

# Number of examples per step of this package's domain pass; all sides use it.
_DOMAIN_PASS_BATCH = 256


@dataclasses.dataclass(frozen=True)
class Workload:
    """One round's work: one local epoch of SGD on every client, and their average.

    Attributes:
        name: Name for tables.
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
        """Number of examples per step of the domain pass."""
        return min(self.examples, _DOMAIN_PASS_BATCH)

    def describe(self) -> str:
        """Returns the sizes as text."""
        unit = f"sentences x {self.features[0]} tokens" if self.tokens else "examples"
        return (
            f"{self.clients:,} clients x {self.examples} {unit}, batch {self.batch_size}, "
            f"{self.parameters:,} parameters"
        )

    def to_json(self) -> str:
        """Returns the command line form."""
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def from_json(text: str) -> "Workload":
        """Returns the workload with this command line form."""
        fields = json.loads(text)
        shapes = {name: tuple(fields[name]) for name in ("features", "labels")}
        return Workload(**{**fields, **shapes})


def logistic(clients: int, domains: int = 2) -> Workload:
    """Returns softmax regression on many small clients."""
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


# The models of Reddi et al. 2021, and a small model that shows a simulator's overhead.
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
    """Returns the round's clients, the same on every side.

    Token ids start at 1: 0 pads sentences, and these are full.

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
