"""Benchmark process that runs pfl-research's `FederatedAveraging` on `SimulatedBackend`."""

import os
from collections.abc import Iterator
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import nn
from torch_models import make_model, make_tensors, mean_loss, num_parameters

from benchmarks.timing.side import Side

_NEVER = 1_000_000_000
THREADS = {"one thread": 1, "a thread for each core": os.cpu_count() or 1}


class PflModule(nn.Module):
    """A model with the two methods that pfl requires."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Returns the mean loss of a batch."""
        return mean_loss(self.model(x), y)

    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
        """Returns no metrics, because pfl always evaluates clients in the first round."""
        del x, y
        return {}


class RoundByRound(TrainingProcessCallback):
    """Starts each round of `FederatedAveraging.run` on request."""

    def __init__(self, rounds: Iterator[str]) -> None:
        self._rounds = rounds

    def _wait(self) -> bool:
        setting = next(self._rounds, None)
        if setting is not None:
            torch.set_num_threads(THREADS[setting])
        return setting is not None

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        """Waits for the first requested round."""
        del model
        self._wait()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """Waits for the next requested round, and stops the training after the last one."""
        del aggregate_metrics, model, central_iteration
        return not self._wait(), Metrics()


def main() -> None:
    """Runs the rounds that the benchmark requests."""
    side = Side.from_command_line()
    workload = side.workload
    module = PflModule(make_model(workload))
    model = PyTorchModel(
        module,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
    )
    data = {str(k): make_tensors(workload, c) for k, c in enumerate(side.clients())}
    dataset = FederatedDataset.from_slices(data, get_user_sampler("minimize_reuse", list(data)))
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=_NEVER,
            evaluation_frequency=_NEVER,
            train_cohort_size=workload.clients,
            val_cohort_size=0,
        ),
        SimulatedBackend(dataset, dataset, postprocessors=[WeightByDatapoints()]),
        model,
        NNTrainHyperParams(
            local_num_epochs=1,
            local_learning_rate=workload.learning_rate,
            local_batch_size=workload.batch_size,
        ),
        NNEvalHyperParams(local_batch_size=workload.batch_size),
        callbacks=[
            RoundByRound(
                side.setting_rounds(num_parameters(module), ["pfl", "torch"], list(THREADS))
            )
        ],
        send_metrics_to_platform=False,
    )


if __name__ == "__main__":
    main()
