"""The workloads' models in PyTorch, for Flower and pfl-research."""

import torch
from torch import nn
from torch.nn import functional

from benchmarks.timing.workloads import Workload


class EmnistCnn(nn.Module):
    """The CNN of Reddi et al. 2021; x float32 [n, 1, 28, 28]."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 32, 3),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout(0.25),
            nn.Flatten(),
            nn.Linear(9216, 128),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(128, classes),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns scores [n, classes]."""
        return self.layers(x)


class NextWordLstm(nn.Module):
    """The LSTM of Reddi et al. 2021; x int [n, tokens]."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(classes, 96)
        self.lstm = nn.LSTM(96, 670, batch_first=True)
        # PyTorch adds two biases, but the paper's model has one.
        self.lstm.bias_hh_l0.requires_grad_(False).zero_()
        self.projection = nn.Linear(670, 96)
        self.output = nn.Linear(96, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns scores [n * tokens, classes]."""
        hidden, _ = self.lstm(self.embedding(x))
        return self.output(self.projection(hidden)).flatten(0, 1)


MODELS = {
    "emnist_cnn": lambda workload: EmnistCnn(workload.classes),
    "next_word_lstm": lambda workload: NextWordLstm(workload.classes),
    "logistic": lambda workload: nn.Linear(workload.features[0], workload.classes),
}


def make_model(workload: Workload) -> nn.Module:
    """Returns the workload's model with PyTorch's initial weights."""
    torch.manual_seed(0)
    return MODELS[workload.model](workload)


def num_parameters(model: nn.Module) -> int:
    """Number of trainable scalars."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def make_tensors(workload: Workload, client: dict) -> tuple[torch.Tensor, torch.Tensor]:
    """Converts a client's x and y to tensors with channels first and int64 ids."""
    x = torch.from_numpy(client["x"])
    if workload.model == "emnist_cnn":
        x = x.permute(0, 3, 1, 2).contiguous()
    return x.long() if workload.tokens else x, torch.from_numpy(client["y"]).long()


def mean_loss(scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Returns the mean cross-entropy of a batch."""
    return functional.cross_entropy(scores, y.flatten())
