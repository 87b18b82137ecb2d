"""Benchmark process that runs one of this package's algorithms on one runtime."""

import dataclasses
from importlib.util import find_spec
from typing import Callable

from benchmarks.timing.side import Side
from benchmarks.timing.workloads import Workload
from tff_agnostic.algorithms import ALGORITHMS, Problem
from tff_agnostic.base.registry import Registry
from tff_agnostic.computations import PlainSum
from tff_agnostic.models import logistic_regression
from tff_agnostic.models.classifiers import emnist_cnn
from tff_agnostic.models.model import Model
from tff_agnostic.models.next_word import next_word_lstm
from tff_agnostic.program.options.flags import build
from tff_agnostic.runtimes.registry import RUNTIMES

MODELS: Registry[Callable[[Workload], Model]] = Registry(
    "model",
    {
        "emnist_cnn": lambda workload: emnist_cnn(workload.classes),
        "next_word_lstm": lambda _: next_word_lstm(),
        "logistic": lambda workload: logistic_regression(workload.features[0], workload.classes),
    },
)

# Packages whose versions are reported if they are installed; TensorFlow Federated may be missing.
_PACKAGES = [
    name
    for name in ("tensorflow", "tensorflow-federated")
    if find_spec(name.replace("-", "_")) is not None
]


def main() -> None:
    """Runs the rounds that the benchmark requests."""
    side = Side.from_command_line()
    workload = side.workload
    # Remove the metrics, because the algorithm needs only losses, and peers compute no metrics.
    model = dataclasses.replace(MODELS[workload.model](workload), metrics=())
    name, *settings = side.algorithm.split(":")
    spec = ALGORITHMS[name]
    options = build(
        spec.options,
        {
            "client_learning_rate": workload.learning_rate,
            "client_batch_size": workload.batch_size,
            # Average the loss over the batch, as the peers do.
            "client_normalizer": "batch",
            **dict(setting.split("=") for setting in settings),
        },
    )
    algorithm = spec.build(Problem.numbered(model, workload.domains), options)
    clients = side.clients()
    where = RUNTIMES[side.runtime]
    values = dict(device=side.device, client_mode=side.client_mode)
    with where.build(build(where.options, values)) as runtime:
        training = runtime.training(algorithm, PlainSum())
        state = training.initialize()
        for _ in side.rounds(model.num_parameters, _PACKAGES):
            state, _ = training.next(state, clients)


if __name__ == "__main__":
    main()
