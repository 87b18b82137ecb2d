"""The function that Flower's actors run, which trains one client in PyTorch."""

import functools

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from torch_models import make_model, make_tensors, mean_loss

from benchmarks.timing.workloads import Workload, make_clients


@functools.lru_cache(maxsize=1)
def _tensors(workload: Workload) -> list[tuple[torch.Tensor, torch.Tensor]]:
    # Cached, because an actor trains many clients.
    return [make_tensors(workload, client) for client in make_clients(workload)]


@functools.lru_cache(maxsize=1)
def _model(workload: Workload) -> torch.nn.Module:
    return make_model(workload)


def train(message: Message, context: Context, workload: Workload) -> Message:
    """Trains one client for an epoch."""
    model = _model(workload)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    model.train()
    x, y = _tensors(workload)[int(context.node_config["partition-id"])]
    optimizer = torch.optim.SGD(model.parameters(), lr=workload.learning_rate)
    for rows in torch.randperm(len(x)).split(workload.batch_size):
        optimizer.zero_grad()
        mean_loss(model(x[rows]), y[rows]).backward()
        optimizer.step()
    content = RecordDict(
        {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": len(x)}),
        }
    )
    return Message(content=content, reply_to=message)
