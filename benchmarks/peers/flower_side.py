"""Benchmark process that runs Flower's `FedAvg` in simulation, with PyTorch clients on Ray."""

import functools
import logging
import os
from collections.abc import Iterable
from typing import Any

# Disable telemetry. Flower and Ray read these variables when they are imported.
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import flower_clients
from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch_models import make_model, num_parameters

from benchmarks.timing.side import Side

# One actor per core, with one thread each: this is faster than one actor with all cores.
_BACKEND = {
    "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    "init_args": {"logging_level": "ERROR", "log_to_driver": False},
}


class EveryClientCounts(FedAvg):
    """FedAvg that stops if a client fails."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        """Averages the replies; raises RuntimeError if a client failed."""
        replies = list(replies)
        failed = [reply.error.reason for reply in replies if reply.has_error()]
        if failed:
            raise RuntimeError(f"{len(failed)} of {len(replies)} clients failed: {failed[0]}")
        return super().aggregate_train(server_round, replies)


def main() -> None:
    """Runs the rounds that the benchmark requests."""
    side = Side.from_command_line()
    workload = side.workload
    logging.getLogger("flwr").setLevel(logging.WARNING)
    client_app, server_app = ClientApp(), ServerApp()
    client_app.train()(functools.partial(flower_clients.train, workload=workload))

    @server_app.main()
    def _(grid: Grid, context: Context) -> None:
        del context
        model = make_model(workload)
        arrays = ArrayRecord(model.state_dict())
        strategy = EveryClientCounts(
            fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=workload.clients
        )
        for _ in side.rounds(num_parameters(model), ["flwr", "ray", "torch"]):
            arrays = strategy.start(grid, arrays, num_rounds=1).arrays

    run_simulation(server_app, client_app, workload.clients, backend_config=_BACKEND)


if __name__ == "__main__":
    main()
