"""The matrix products that a round of AgnosticFedAvg needs in any implementation, by model."""

import dataclasses
from collections.abc import Sequence
from typing import Callable

from benchmarks.timing.workloads import Workload
from tff_agnostic.base.registry import Registry


@dataclasses.dataclass(frozen=True)
class Product:
    """A matrix product [m, k] x [k, n] that is repeated within a round.

    Attributes:
        m: Rows of the left matrix.
        k: Columns of the left matrix.
        n: Columns of the right matrix.
        count: Number of operations per round.
        batch: Number of independent products in one operation.
    """

    m: int
    k: int
    n: int
    count: int
    batch: int = 1

    @property
    def flops(self) -> int:
        """Number of additions and multiplications in a round."""
        return 2 * self.m * self.k * self.n * self.count * self.batch


@dataclasses.dataclass(frozen=True)
class Layer:
    """A layer as a matrix product [rows, inputs] x [inputs, outputs] per example.

    Attributes:
        rows: Number of rows per example, such as the positions of a convolution.
        inputs: Number of input columns, such as the size of a convolution's patch.
        outputs: Number of output columns.
        first: Whether this is the first layer, which needs no gradient of its inputs.
        steps: Number of sequential steps of a recurrent layer, each with `rows` rows. The weights'
            gradient is one product over all steps.
    """

    rows: int
    inputs: int
    outputs: int
    first: bool = False
    steps: int = 1

    def forward(self, examples: int, count: int, batch: int) -> list[Product]:
        """Returns the products of `count` forward passes, each of `batch` models at once."""
        m = self.rows * examples
        return [Product(m, self.inputs, self.outputs, count * self.steps, batch)]

    def backward(self, examples: int, count: int, batch: int) -> list[Product]:
        """Returns the products of `count` backward passes, each of `batch` models at once."""
        m = self.rows * examples
        products = [Product(self.inputs, m * self.steps, self.outputs, count, batch)]
        if not self.first:
            products.append(Product(m, self.outputs, self.inputs, count * self.steps, batch))
        return products


def _emnist_cnn(workload: Workload) -> list[Layer]:
    return [
        Layer(rows=26 * 26, inputs=9, outputs=32, first=True),
        Layer(rows=24 * 24, inputs=9 * 32, outputs=64),
        Layer(rows=1, inputs=12 * 12 * 64, outputs=128),
        Layer(rows=1, inputs=128, outputs=workload.classes),
    ]


def _next_word_lstm(workload: Workload) -> list[Layer]:
    (tokens,) = workload.features
    return [
        Layer(rows=tokens, inputs=96, outputs=4 * 670),
        Layer(rows=1, inputs=670, outputs=4 * 670, steps=tokens),
        Layer(rows=tokens, inputs=670, outputs=96),
        Layer(rows=tokens, inputs=96, outputs=workload.classes),
    ]


def _logistic(workload: Workload) -> list[Layer]:
    (features,) = workload.features
    return [Layer(rows=1, inputs=features, outputs=workload.classes, first=True)]


@dataclasses.dataclass(frozen=True)
class _Form:
    """A model as matrix products.

    Attributes:
        layers: Returns the model's layers for a workload.
        vectorised: Whether one operation computes a step of all clients at once.
    """

    layers: Callable[[Workload], list[Layer]]
    vectorised: bool = False


_FORMS: Registry[_Form] = Registry(
    "model",
    {
        "emnist_cnn": _Form(_emnist_cnn),
        "next_word_lstm": _Form(_next_word_lstm),
        "logistic": _Form(_logistic, vectorised=True),
    },
)


def round_products(workload: Workload) -> list[Product]:
    """Returns the products of one round: its domain pass, and every client's local epoch."""
    return [product for part in products_by_part(workload).values() for product in part]


def products_by_part(workload: Workload) -> dict[str, list[Product]]:
    """Returns a round's products for the domain pass, and for local forward and backward passes."""
    form = _FORMS[workload.model]
    times, batch = (1, workload.clients) if form.vectorised else (workload.clients, 1)
    domain_batch = workload.domain_pass_batch
    passes = workload.examples // domain_batch
    result: dict[str, list[Product]] = {"domain pass": [], "local forward": [], "backward": []}
    for layer in form.layers(workload):
        local = workload.batch_size, times * workload.steps, batch
        result["domain pass"] += layer.forward(domain_batch, times * passes, batch)
        result["local forward"] += layer.forward(*local)
        result["backward"] += layer.backward(*local)
    return result


def total_flops(products: Sequence[Product]) -> int:
    """Returns the number of additions and multiplications of all products."""
    return sum(product.flops for product in products)
